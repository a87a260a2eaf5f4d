#include "engine/testing/witness_executor.h"

#include "common/base/check.h"

namespace baton {
namespace {

constexpr uint64_t kStart = 0x243f6a8885a308d3u;

// One step of the hash; the constants are those of splitmix64.
uint64_t Mix(uint64_t hash, int32_t token_id, int32_t position) {
  uint64_t x = hash ^ (static_cast<uint64_t>(static_cast<uint32_t>(token_id)) << 32 |
                       static_cast<uint32_t>(position));
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

int32_t ToToken(uint64_t hash, int32_t vocabulary_size) {
  return static_cast<int32_t>(hash % static_cast<uint64_t>(vocabulary_size));
}

}  // namespace

int32_t WitnessNextToken(absl::Span<const int32_t> tokens, int32_t vocabulary_size) {
  uint64_t hash = kStart;
  for (size_t i = 0; i < tokens.size(); ++i) {
    hash = Mix(hash, tokens[i], static_cast<int32_t>(i));
  }
  return ToToken(hash, vocabulary_size);
}

std::vector<int32_t> WitnessContinuation(std::vector<int32_t> prompt, int32_t count,
                                         int32_t vocabulary_size) {
  const size_t num_prompt = prompt.size();
  for (int32_t i = 0; i < count; ++i) {
    prompt.push_back(WitnessNextToken(prompt, vocabulary_size));
  }
  return std::vector<int32_t>(prompt.begin() + static_cast<int64_t>(num_prompt), prompt.end());
}

WitnessExecutor::WitnessExecutor(const Options& options) : HostExecutor(options) {
  CHECK(options.kv.base != nullptr);
}

int32_t WitnessExecutor::NextToken(const SequenceStep& step, int32_t last_token) {
  const KvMemory& kv = options().kv;
  const int32_t end = step.start_position + static_cast<int32_t>(step.token_ids.size());
  uint64_t hash = kStart;
  for (int32_t position = 0; position < end; ++position) {
    const TestSlot slot =
        ReadTestSlot(kv, step.block_table[position / kv.block_tokens], position % kv.block_tokens);
    hash = Mix(hash, slot.token_id, slot.position);
  }
  return ToToken(hash, options().vocabulary_size);
}

}  // namespace baton
