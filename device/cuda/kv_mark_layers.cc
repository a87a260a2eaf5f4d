#include "device/cuda/kv_mark_layers.h"

#include <algorithm>

#include "common/base/check.h"

namespace baton {

std::vector<int32_t> KvMarkLayers(int32_t num_layers) {
  CHECK_GE(num_layers, 1);
  std::vector<int32_t> marks = {num_layers};
  // From the end: 1, 2, 4 layers of 32 before it, then by quarters, and one eighth to begin with.
  for (const int32_t sixteenths : {15, 14, 12, 8, 4, 2}) {
    marks.push_back(num_layers * sixteenths / 16);
  }
  marks.push_back(num_layers - 1);
  std::sort(marks.begin(), marks.end());
  marks.erase(std::unique(marks.begin(), marks.end()), marks.end());
  if (marks.front() == 0) marks.erase(marks.begin());
  return marks;
}

}  // namespace baton
