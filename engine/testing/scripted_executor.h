// Like the SUCC model: the next token depends on the current token only, so any script of tokens
// can be played. By default token t is followed by t + 1, and the last of the vocabulary by 0.
#ifndef BATON_ENGINE_TESTING_SCRIPTED_EXECUTOR_H_
#define BATON_ENGINE_TESTING_SCRIPTED_EXECUTOR_H_

#include <cstdint>
#include <functional>

#include "engine/testing/host_executor.h"

namespace baton {

class ScriptedExecutor : public HostExecutor {
 public:
  // `successor` maps a token id to the next; default as above.
  explicit ScriptedExecutor(const Options& options,
                            std::function<int32_t(int32_t)> successor = nullptr);

 protected:
  int32_t NextToken(const SequenceStep& step, int32_t last_token) override;

 private:
  const std::function<int32_t(int32_t)> successor_;
};

}  // namespace baton

#endif  // BATON_ENGINE_TESTING_SCRIPTED_EXECUTOR_H_
