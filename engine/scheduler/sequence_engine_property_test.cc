// Goal: no workload makes the scheduler lose a block, a token or a sequence, or stop making
// progress. Method: random workloads from seeds on tiny pools, with cancels, slow readers,
// reservations and preemption; a watcher checks after every turn, and tokens are compared with an
// undisturbed run. The failing seed is printed.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <random>

#include "engine/kvcache/block_table.h"
#include "engine/scheduler/sequence_engine.h"
#include "engine/testing/witness_executor.h"

namespace baton {
namespace {

constexpr int32_t kVocabulary = 50000;

class Simulation {
 public:
  explicit Simulation(uint32_t seed)
      : random_(seed),
        block_tokens_(1 << Pick(1, 3)),
        num_blocks_(Pick(6, 24)),
        kv_(num_blocks_, block_tokens_),
        executor_(ExecutorOptions()),
        engine_({.executor = &executor_,
                 .num_blocks = num_blocks_,
                 .block_tokens = block_tokens_,
                 .growth_watermark_blocks = Pick(1, 2),
                 .passes_max = Pick(0, 6),
                 .paused_hold = std::chrono::milliseconds(Pick(0, 50))}) {}

  void Run() {
    int to_add = Pick(5, 40);
    int turns = 0;
    while (to_add > 0 || !live_.empty() || engine_.steps_in_flight() > 0) {
      ASSERT_LT(++turns, 50000) << "no end in sight: " << live_.size() << " sequences left";
      now_ += std::chrono::milliseconds(1);
      if (to_add > 0 && Pick(0, 3) == 0) {
        Add();
        --to_add;
      }
      if (!live_.empty() && Pick(0, 30) == 0) Cancel();
      GrantSome();
      JoinSome();
      Turn();
      if (testing::Test::HasFailure()) return;
      Watch();
    }
    EXPECT_EQ(engine_.pool().Audit().free, num_blocks_);
    EXPECT_TRUE(engine_.sequences().empty());
  }

  uint64_t preemptions() const { return engine_.counters().preemptions; }

 private:
  struct Live {
    std::vector<int32_t> prompt;
    std::vector<int32_t> tokens;
    int32_t max_tokens = 0;
    TimePoint join_at = kNever;
  };

  int32_t Pick(int32_t low, int32_t high) {
    return low + static_cast<int32_t>(random_() % static_cast<uint32_t>(high - low + 1));
  }

  WitnessExecutor::Options ExecutorOptions() {
    WitnessExecutor::Options options;
    options.limits.sequences_max = Pick(1, 8);
    options.limits.tokens_max = options.limits.sequences_max + Pick(0, 12);
    options.limits.context_tokens_max = Pick(8, 200);
    options.kv = kv_.memory();
    options.vocabulary_size = kVocabulary;
    options.compute_time = Pick(0, 1) == 0 ? HostExecutor::ComputeTime::kAtWait
                                           : HostExecutor::ComputeTime::kAtExecute;
    return options;
  }

  void Add() {
    SequenceSpec spec;
    const int32_t room = engine_.context_tokens_max() - 1;
    const int32_t length = Pick(1, Pick(0, 3) == 0 ? room : std::min(room, 3 * block_tokens_));
    for (int32_t i = 0; i < length; ++i) spec.token_ids.push_back(Pick(0, kVocabulary - 1));
    spec.num_prompt_tokens = length;
    spec.max_tokens = Pick(1, 60);
    spec.credits = Pick(0, 2) == 0 ? Pick(0, 4) : kUnlimitedCredits;
    Live live = {.prompt = spec.token_ids, .tokens = {}, .max_tokens = spec.max_tokens};
    if (Pick(0, 2) > 0) {
      live_[engine_.Add(spec)] = live;
      return;
    }
    const auto id = engine_.Reserve(spec, block_tokens_);
    if (!id.ok()) {
      EXPECT_EQ(id.status().code(), absl::StatusCode::kResourceExhausted);
      return;
    }
    engine_.SetWired(*id, true);
    live.join_at = now_ + std::chrono::milliseconds(Pick(0, 60));
    live_[*id] = live;
  }

  SequenceId PickLive() {
    auto it = live_.begin();
    std::advance(it, Pick(0, static_cast<int32_t>(live_.size()) - 1));
    return it->first;
  }

  void Cancel() {
    const SequenceId id = PickLive();
    engine_.Remove(id);
    live_.erase(id);
  }

  // Readers come back: everybody is granted something in the end.
  void GrantSome() {
    for (const auto& [id, live] : live_) {
      if (Pick(0, 40) == 0) engine_.GrantCredits(id, Pick(1, 10), now_);
    }
  }

  // A transfer completes: the KV appears in the blocks, as P would have computed it.
  void JoinSome() {
    std::vector<SequenceId> ended;
    for (auto& [id, live] : live_) {
      if (live.join_at > now_) continue;
      live.join_at = kNever;
      const std::vector<BlockId>& table = engine_.Find(id)->block_table;
      for (size_t i = 0; i < live.prompt.size(); ++i) {
        WriteTestSlot(kv_.memory(), table[i / block_tokens_],
                      static_cast<int32_t>(i) % block_tokens_,
                      {.token_id = live.prompt[i], .position = static_cast<int32_t>(i)});
      }
      const int32_t first = WitnessNextToken(live.prompt, kVocabulary);
      live.tokens.push_back(first);
      engine_.SetWired(id, false);
      if (engine_.Join(id, first).has_value()) ended.push_back(id);
    }
    for (SequenceId id : ended) Finish(id);
  }

  void Finish(SequenceId id) {
    const Live& live = live_[id];
    const int32_t count = static_cast<int32_t>(live.tokens.size());
    EXPECT_EQ(live.tokens, WitnessContinuation(live.prompt, count, kVocabulary));
    const int32_t room = engine_.context_tokens_max() - static_cast<int32_t>(live.prompt.size());
    EXPECT_EQ(count, std::min(live.max_tokens, room));
    engine_.Remove(id);
    live_.erase(id);
  }

  void Turn() {
    bool launched = false;
    if (!engine_.pipeline_full()) launched = *engine_.Launch(now_);
    if (engine_.steps_in_flight() == 0) return;
    if (launched && !engine_.pipeline_full() && Pick(0, 3) > 0) return;
    auto outcome = engine_.Collect(Duration::zero());
    ASSERT_TRUE(outcome.ok() && outcome->has_value());
    for (const Sampled& sampled : (**outcome).sampled) {
      Live& live = live_[sampled.id];
      EXPECT_EQ(sampled.index, static_cast<int32_t>(live.tokens.size()));
      live.tokens.push_back(sampled.token.token_id);
      if (sampled.finish.has_value()) Finish(sampled.id);
    }
  }

  // SCH-02 and SCH-04: with nothing in flight, whoever can be served at once must have been.
  void Watch() {
    const BlockCounts counts = engine_.pool().Audit();
    ASSERT_EQ(counts.total, num_blocks_);
    if (engine_.steps_in_flight() > 0) return;
    bool holding = false;
    for (const auto& [id, s] : engine_.sequences()) {
      holding = holding || s.phase != SequencePhase::kWaiting;
    }
    if (holding) return;
    for (const auto& [id, s] : engine_.sequences()) {
      if (!s.has_credit()) continue;
      // The plan of this turn saw it before the end of the step gave its blocks back: once more.
      ASSERT_TRUE(*engine_.Launch(now_))
          << "nothing runs, " << counts.free << " blocks are free, and sequence " << id << " waits";
      return;
    }
  }

  std::mt19937 random_;
  const int32_t block_tokens_;
  const int32_t num_blocks_;
  TestKvPool kv_;
  WitnessExecutor executor_;
  SequenceEngine engine_;
  TimePoint now_{std::chrono::seconds(1)};
  std::map<SequenceId, Live> live_;
};

TEST(SequenceEngineProperty, EveryRandomWorkloadEndsWithTheRightTokensAndAFreePool) {
  uint64_t preemptions = 0;
  for (uint32_t seed = 0; seed < 1500; ++seed) {
    Simulation simulation(seed);
    simulation.Run();
    preemptions += simulation.preemptions();
    ASSERT_FALSE(HasFailure()) << "failing seed " << seed;
  }
  // The workloads are tight enough to mean something.
  EXPECT_GT(preemptions, 1000u);
}

}  // namespace
}  // namespace baton
