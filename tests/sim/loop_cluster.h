// One prefill and one decode worker's loop with strict executors, and a router's side, in one
// thread: nothing happens but in Turn() and Pump(), time stands still but for Advance(), and
// everything that is open is drawn from a seed.
#ifndef BATON_TESTS_SIM_LOOP_CLUSTER_H_
#define BATON_TESTS_SIM_LOOP_CLUSTER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "decode_worker/loop/decode_loop.h"
#include "engine/testing/witness_executor.h"
#include "gtest/gtest.h"
#include "prefill_worker/loop/prefill_loop.h"
#include "worker/loop/testing/fake_transfer.h"
#include "worker/loop/testing/test_router.h"

namespace baton {

inline constexpr int32_t kSimVocabulary = 50000;

struct LoopClusterOptions {
  uint32_t seed = 0;
  int32_t block_tokens = 4;
  // More than one: the prefill worker pushes layers as they are computed.
  int32_t kv_layers = 1;
  int32_t prefill_blocks = 32;
  int32_t decode_blocks = 32;
  StepLimits prefill_limits = {.tokens_max = 16, .sequences_max = 8, .context_tokens_max = 512};
  StepLimits decode_limits = {.tokens_max = 16, .sequences_max = 16, .context_tokens_max = 512};
  HostExecutor::ComputeTime compute_time = HostExecutor::ComputeTime::kAtWait;
  worker::LoopLimits limits;
};

class LoopCluster {
 public:
  explicit LoopCluster(const LoopClusterOptions& options)
      : transfer_(options.seed),
        prefill_kv_(options.prefill_blocks, options.block_tokens, options.kv_layers),
        decode_kv_(options.decode_blocks, options.block_tokens, options.kv_layers),
        prefill_executor_(ExecutorOptions(options, options.prefill_limits, prefill_kv_)),
        decode_executor_(ExecutorOptions(options, options.decode_limits, decode_kv_)) {
    prefill_worker::PrefillLoopOptions prefill;
    prefill.loop = LoopOptions(options, prefill_kv_, &prefill_executor_, router_.prefill_sink());
    prefill.sender = transfer_.sender();
    prefill_ = std::make_unique<prefill_worker::PrefillLoop>(prefill);
    decode_worker::DecodeLoopOptions decode;
    decode.loop = LoopOptions(options, decode_kv_, &decode_executor_, router_.decode_sink());
    decode.receiver = transfer_.receiver();
    decode_ = std::make_unique<decode_worker::DecodeLoop>(decode);
    router_.Connect(prefill_.get(), decode_.get());
  }
  ~LoopCluster() {
    transfer_.PumpDry();
    prefill_->Stop();
    decode_->Stop();
  }

  // Both loops, the hand-over and the router, until nothing happens any more: everything is over,
  // or waits for time to pass, for credits, or for a held executor.
  void RunDry() {
    for (int quiet = 0; quiet < 5;) {
      const uint64_t before = Events();
      Round();
      quiet = Events() == before ? quiet + 1 : 0;
    }
  }
  void Round() {
    prefill_->Turn(Duration::zero());
    decode_->Turn(Duration::zero());
    const bool pumped = transfer_.Pump();
    pumped_ += pumped ? 1 : 0;
  }
  void Advance(Duration by) { clock_.Advance(by); }

  // Everything has come back, and nothing was said that should not have been.
  void ExpectQuiet() {
    RunDry();
    EXPECT_TRUE(router_.AllOver());
    EXPECT_EQ(router_.violations(), std::vector<std::string>{});
    EXPECT_EQ(transfer_.violations(), 0) << "source blocks changed before quiescence";
    EXPECT_EQ(prefill_->Audit().free, prefill_kv_.memory().num_blocks);
    EXPECT_EQ(decode_->Audit().free, decode_kv_.memory().num_blocks);
    EXPECT_TRUE(prefill_->idle());
    EXPECT_TRUE(decode_->idle());
    ExpectLoadAddsUp(prefill_->load());
    ExpectLoadAddsUp(decode_->load());
  }
  static void ExpectLoadAddsUp(const worker::LoopLoad& load) {
    EXPECT_EQ(load.quarantined_blocks + load.in_flight_blocks + load.leased_blocks +
                  load.owned_blocks + load.cached_blocks + load.free_blocks,
              load.total_blocks);
  }

  worker::TestRouter& router() { return router_; }
  worker::FakeTransfer& transfer() { return transfer_; }
  prefill_worker::PrefillLoop& prefill() { return *prefill_; }
  decode_worker::DecodeLoop& decode() { return *decode_; }
  WitnessExecutor& prefill_executor() { return prefill_executor_; }
  WitnessExecutor& decode_executor() { return decode_executor_; }
  FakeClock& clock() { return clock_; }

  // What on_broken of any loop was told.
  const std::vector<absl::Status>& broken() const { return broken_; }

 private:
  uint64_t Events() const {
    return pumped_ + router_.outputs() + prefill_executor_.steps_executed() +
           decode_executor_.steps_executed() + prefill_->load().steps + decode_->load().steps;
  }

  static WitnessExecutor::Options ExecutorOptions(const LoopClusterOptions& options,
                                                  const StepLimits& limits, TestKvPool& kv) {
    WitnessExecutor::Options out;
    out.limits = limits;
    out.kv = kv.memory();
    out.vocabulary_size = kSimVocabulary;
    out.compute_time = options.compute_time;
    return out;
  }
  worker::LoopOptions LoopOptions(const LoopClusterOptions& options, TestKvPool& kv,
                                  StepExecutor* executor, worker::EventSink* sink) {
    worker::LoopOptions out;
    out.model = std::string(worker::kTestLoopModel);
    out.kv = kv.memory();
    out.executor = executor;
    out.sink = sink;
    out.on_broken = [this](const absl::Status& status) { broken_.push_back(status); };
    out.clock = &clock_;
    out.limits = options.limits;
    out.limits.stop_limit = std::chrono::milliseconds(200);
    out.limits.layer_push_bytes_min = 1;
    return out;
  }

  std::vector<absl::Status> broken_;
  FakeClock clock_;
  worker::FakeTransfer transfer_;
  TestKvPool prefill_kv_;
  TestKvPool decode_kv_;
  WitnessExecutor prefill_executor_;
  WitnessExecutor decode_executor_;
  worker::TestRouter router_;
  std::unique_ptr<prefill_worker::PrefillLoop> prefill_;
  std::unique_ptr<decode_worker::DecodeLoop> decode_;
  uint64_t pumped_ = 0;
};

inline std::vector<int32_t> SimPrompt(int32_t length, int32_t first = 1) {
  std::vector<int32_t> out(length);
  for (int32_t i = 0; i < length; ++i) out[i] = (first + i) % kSimVocabulary;
  return out;
}

inline std::vector<int32_t> SimContinuation(const std::vector<int32_t>& prompt, size_t count) {
  return WitnessContinuation(prompt, static_cast<int32_t>(count), kSimVocabulary);
}

}  // namespace baton

#endif  // BATON_TESTS_SIM_LOOP_CLUSTER_H_
