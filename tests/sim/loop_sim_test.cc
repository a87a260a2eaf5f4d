// Goal: whatever happens in whatever order, every request gets the tokens of an undisturbed run or
// an error with a reason, exactly one end, and all blocks of both workers come back. Method: random
// workloads from seeds over both loops and a hand-over that misbehaves as far as its contract lets
// it: cancels, deadlines, slow readers, slow steps, broken transfers, spoiled logits, tiny pools.
// The failing seed is printed.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <set>

#include "tests/sim/loop_cluster.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using worker::EndReason;
using worker::TestRouter;

class Workload {
 public:
  explicit Workload(uint32_t seed) : random_(seed), cluster_(Options(seed)) {
    if (Pick(0, 1) == 0) cluster_.transfer().set_failure_permille(Pick(0, 30));
  }

  void Run() {
    int to_submit = Pick(3, 25);
    const bool spoil = Pick(0, 4) == 0;
    if (spoil) SpoilSome();
    for (int round = 0; to_submit > 0 || !cluster_.router().AllOver(); ++round) {
      ASSERT_LT(round, 20000) << "no end in sight";
      if (to_submit > 0 && Pick(0, 6) == 0) {
        Submit();
        --to_submit;
      }
      Disturb();
      cluster_.Round();
      if (Pick(0, 7) == 0) cluster_.router().Retry();
      if (Pick(0, 3) == 0) cluster_.Advance(milliseconds(Pick(1, 20)));
      LoopCluster::ExpectLoadAddsUp(cluster_.decode().load());
      LoopCluster::ExpectLoadAddsUp(cluster_.prefill().load());
    }
    Finish();
  }

  int complete() const { return complete_; }
  uint64_t preemptions() const { return preemptions_; }
  uint64_t parts_copied() { return cluster_.transfer().parts_copied(); }

 private:
  int32_t Pick(int32_t low, int32_t high) {
    return low + static_cast<int32_t>(random_() % static_cast<uint32_t>(high - low + 1));
  }

  LoopClusterOptions Options(uint32_t seed) {
    LoopClusterOptions options;
    options.seed = seed * 7919 + 1;
    options.block_tokens = 1 << Pick(1, 3);
    options.kv_layers = Pick(0, 1) == 0 ? 1 : options.block_tokens >> Pick(0, 1);
    options.prefill_blocks = Pick(8, 30);
    options.decode_blocks = Pick(8, 30);
    options.prefill_limits.sequences_max = Pick(1, 6);
    options.prefill_limits.tokens_max = options.prefill_limits.sequences_max + Pick(0, 16);
    options.decode_limits.sequences_max = Pick(1, 8);
    options.decode_limits.tokens_max = options.decode_limits.sequences_max + Pick(0, 16);
    options.compute_time = Pick(0, 1) == 0 ? HostExecutor::ComputeTime::kAtWait
                                           : HostExecutor::ComputeTime::kAtExecute;
    options.limits.paused_hold = milliseconds(Pick(0, 200));
    options.limits.passes_max = Pick(0, 8);
    return options;
  }

  void Submit() {
    TestRouter::Request request;
    // Sometimes more than the smaller pool has room for.
    const int32_t length = Pick(0, 5) == 0 ? Pick(1, 120) : Pick(1, 24);
    request.prompt = SimPrompt(length, Pick(0, kSimVocabulary - 1));
    request.max_tokens = static_cast<uint32_t>(Pick(1, 40));
    request.disaggregated = Pick(0, 3) > 0;
    if (Pick(0, 2) == 0) request.credits = static_cast<uint32_t>(Pick(0, 4));
    if (Pick(0, 5) == 0) request.deadline = cluster_.clock().Now() + milliseconds(Pick(0, 500));
    const std::vector<int32_t> undisturbed = SimContinuation(request.prompt, request.max_tokens);
    if (Pick(0, 3) == 0) {
      request.eos = {undisturbed[Pick(0, static_cast<int32_t>(undisturbed.size()) - 1)]};
    }
    ids_.push_back(cluster_.router().Submit(request));
  }

  void SpoilSome() {
    const int32_t position = Pick(5, 60);
    const auto spoiled = [position](const SequenceStep& s) {
      return s.start_position + static_cast<int32_t>(s.token_ids.size()) == position;
    };
    cluster_.prefill_executor().SpoilLogitsIf(spoiled);
    cluster_.decode_executor().SpoilLogitsIf(spoiled);
  }

  void Disturb() {
    // A slow step: much may happen while it is in flight.
    HoldOrRelease(cluster_.prefill_executor());
    HoldOrRelease(cluster_.decode_executor());
    if (ids_.empty()) return;
    const RequestId id = ids_[Pick(0, static_cast<int32_t>(ids_.size()) - 1)];
    if (Pick(0, 60) == 0) cluster_.router().Cancel(id);
    if (Pick(0, 8) == 0) cluster_.router().Grant(id, static_cast<uint32_t>(Pick(1, 12)));
  }

  void HoldOrRelease(WitnessExecutor& executor) {
    const int32_t draw = Pick(0, 19);
    if (draw == 0) executor.Hold();
    if (draw >= 16) executor.Release();
  }

  void Finish() {
    cluster_.prefill_executor().Release();
    cluster_.decode_executor().Release();
    cluster_.transfer().set_failure_permille(0);
    preemptions_ = cluster_.decode().load().preemptions;
    cluster_.ExpectQuiet();
    for (RequestId id : ids_) Check(cluster_.router().state(id));
  }

  void Check(const TestRouter::State& state) {
    const std::vector<int32_t> tokens = state.TokenIds();
    EXPECT_EQ(tokens.size(), state.tokens.size()) << "a token index is missing";
    EXPECT_EQ(tokens, SimContinuation(state.request.prompt, tokens.size()));
    EXPECT_LE(tokens.size(), state.request.max_tokens);
    const bool eos =
        !tokens.empty() && !state.request.eos.empty() && tokens.back() == state.request.eos.front();
    switch (*state.reason) {
      case EndReason::kEos:
        EXPECT_TRUE(eos);
        ++complete_;
        break;
      case EndReason::kLength:
        EXPECT_FALSE(eos);
        EXPECT_FALSE(tokens.empty());
        ++complete_;
        break;
      case EndReason::kError:
        CheckError(state);
        break;
      case EndReason::kCancelled:
        EXPECT_TRUE(state.cancel_sent);
        break;
      case EndReason::kStopToken:
      case EndReason::kHandedOver:
        ADD_FAILURE() << "unexpected end reason " << static_cast<int>(*state.reason);
    }
  }

  void CheckError(const TestRouter::State& state) {
    const std::set<absl::StatusCode> expected = {
        absl::StatusCode::kUnavailable,      // A broken transfer.
        absl::StatusCode::kInternal,         // Spoiled logits.
        absl::StatusCode::kInvalidArgument,  // Never fits.
        absl::StatusCode::kDeadlineExceeded,
    };
    EXPECT_TRUE(expected.contains(state.status.code())) << state.status;
    if (state.request.deadline == kNever) {
      EXPECT_NE(state.status.code(), absl::StatusCode::kDeadlineExceeded);
    }
  }

  std::mt19937 random_;
  LoopCluster cluster_;
  std::vector<RequestId> ids_;
  int complete_ = 0;
  uint64_t preemptions_ = 0;
};

TEST(LoopSim, EveryRandomWorkloadEndsWithRightTokensAndAllBlocksBack) {
  int complete = 0;
  uint64_t preemptions = 0;
  uint64_t parts_copied = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    Workload workload(seed);
    workload.Run();
    complete += workload.complete();
    preemptions += workload.preemptions();
    parts_copied += workload.parts_copied();
    ASSERT_FALSE(HasFailure()) << "failing seed " << seed;
  }
  // The workloads mean something: many requests end well, and the pools are tight.
  EXPECT_GT(complete, 1500);
  EXPECT_GT(preemptions, 50u);
  EXPECT_GT(parts_copied, 1000u) << "layers are handed over while steps run";
}

}  // namespace
}  // namespace baton
