// Like the WITNESS model, but stricter: the next token is a hash of every (token, position) that
// lies in the KV memory under the block table. A missing, doubled, foreign, shifted or late block
// shows at once as a wrong token.
#ifndef BATON_ENGINE_TESTING_WITNESS_EXECUTOR_H_
#define BATON_ENGINE_TESTING_WITNESS_EXECUTOR_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/testing/host_executor.h"

namespace baton {

// What an undisturbed run gives: the token behind `tokens`.
int32_t WitnessNextToken(absl::Span<const int32_t> tokens, int32_t vocabulary_size);
// The first `count` tokens generated behind `prompt`.
std::vector<int32_t> WitnessContinuation(std::vector<int32_t> prompt, int32_t count,
                                         int32_t vocabulary_size);

class WitnessExecutor : public HostExecutor {
 public:
  // REQUIRES: options.kv has memory.
  explicit WitnessExecutor(const Options& options);

 protected:
  int32_t NextToken(const SequenceStep& step, int32_t last_token) override;
};

}  // namespace baton

#endif  // BATON_ENGINE_TESTING_WITNESS_EXECUTOR_H_
