// For tests of engine/weights: temporary folders, files made of a header and data, small models.
#ifndef BATON_ENGINE_WEIGHTS_WEIGHTS_TESTING_H_
#define BATON_ENGINE_WEIGHTS_WEIGHTS_TESTING_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/dtype.h"

namespace baton {

// A folder that is removed with everything in it at the end of the test.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(absl::string_view name) const;
  void Write(absl::string_view name, absl::string_view content) const;
  std::string Read(absl::string_view name) const;
  void Remove(absl::string_view name) const;

 private:
  std::string path_;
};

// Length, header and data as they stand in a safetensors file.
std::string SafetensorsBytes(absl::string_view header, absl::string_view data);
absl::Span<const std::byte> AsBytes(absl::string_view text);

struct TestTensor {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::kF32;
  char fill = 0;  // every byte of the data
};
// A valid file with these tensors, in this order.
std::string SafetensorsBytes(const std::vector<TestTensor>& tensors);

// config.json of a one-layer Llama (hidden 16, 2 heads of 8 over 1 KV head, feed-forward 12,
// 24 tokens, context 64), with the given keys replaced or added; a value "" removes the key. Values
// are JSON.
std::string TinyConfig(const std::map<std::string, std::string>& changes = {});

// The tensors of TinyConfig().
std::vector<TestTensor> TinyTensors();

}  // namespace baton

#endif  // BATON_ENGINE_WEIGHTS_WEIGHTS_TESTING_H_
