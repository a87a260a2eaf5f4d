#include "engine/testing/scripted_executor.h"

#include <utility>

namespace baton {

ScriptedExecutor::ScriptedExecutor(const Options& options,
                                   std::function<int32_t(int32_t)> successor)
    : HostExecutor(options), successor_(std::move(successor)) {}

int32_t ScriptedExecutor::NextToken(const SequenceStep& step, int32_t last_token) {
  if (successor_) return successor_(last_token);
  return (last_token + 1) % options().vocabulary_size;
}

}  // namespace baton
