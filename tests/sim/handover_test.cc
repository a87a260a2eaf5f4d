// Goal: both loops with threads of their own, over the real hand-over (local wire, control messages
// in memory), give the tokens of an undisturbed run, whatever is cancelled meanwhile, and every
// block of both workers comes back. This is what ThreadSanitizer watches.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "decode_worker/loop/decode_loop.h"
#include "engine/testing/witness_executor.h"
#include "kvtransfer/local/local_wire.h"
#include "kvtransfer/memory_link.h"
#include "kvtransfer/transfer_receiver.h"
#include "kvtransfer/transfer_sender.h"
#include "prefill_worker/loop/prefill_loop.h"
#include "worker/loop/testing/test_router.h"

// Copies of absl::Status share a reference count. Debian's library is not instrumented, so
// ThreadSanitizer does not see the count order the last two drops, and reports a race inside the
// status; the transfer's threads hand statuses to each other all the time.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:libabsl_status.so\nrace:absl/status/status.h\n";
}

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using worker::EndReason;
using worker::TestRouter;

constexpr int32_t kVocabulary = 50000;
constexpr int32_t kBlockTokens = 4;
constexpr Duration kLimit = seconds(60);

std::vector<int32_t> Prompt(int32_t length, int32_t first) {
  std::vector<int32_t> out(length);
  for (int32_t i = 0; i < length; ++i) out[i] = (first + i) % kVocabulary;
  return out;
}

struct ClusterOptions {
  int32_t num_blocks = 64;
  int32_t chunk_tokens = 32;
  Duration step_time = Duration::zero();
};

// Two workers in this process.
class Cluster {
 public:
  explicit Cluster(const ClusterOptions& options)
      : prefill_kv_(options.num_blocks, kBlockTokens),
        decode_kv_(options.num_blocks, kBlockTokens),
        prefill_executor_(ExecutorOptions(options, prefill_kv_)),
        decode_executor_(ExecutorOptions(options, decode_kv_)),
        wire_(kvtransfer::MakeLocalWire()) {
    receiver_ = kvtransfer::MakeTransferReceiver(Setup(0x7001));
    sender_ = kvtransfer::MakeTransferSender(Setup(0x5001), &network_);
    network_.Listen("d:1", [this](std::shared_ptr<kvtransfer::ControlLink> link) {
      receiver_->AcceptLink(std::move(link));
    });
    prefill_worker::PrefillLoopOptions prefill;
    prefill.loop = LoopOptions(prefill_kv_, &prefill_executor_, router_.prefill_sink());
    prefill.sender = sender_.get();
    prefill_ = std::make_unique<prefill_worker::PrefillLoop>(prefill);
    decode_worker::DecodeLoopOptions decode;
    decode.loop = LoopOptions(decode_kv_, &decode_executor_, router_.decode_sink());
    decode.receiver = receiver_.get();
    decode_ = std::make_unique<decode_worker::DecodeLoop>(decode);
    router_.Connect(prefill_.get(), decode_.get());
    prefill_->StartThread();
    decode_->StartThread();
  }
  // The order of a worker's end: transfers, then loops.
  ~Cluster() {
    network_.StopListening("d:1");
    sender_->Shutdown();
    receiver_->Shutdown();
    prefill_->Stop();
    decode_->Stop();
    EXPECT_EQ(prefill_->Audit().free, prefill_kv_.memory().num_blocks);
    EXPECT_EQ(decode_->Audit().free, decode_kv_.memory().num_blocks);
    EXPECT_EQ(router_.violations(), std::vector<std::string>{});
    prefill_.reset();
    decode_.reset();
    sender_.reset();
    receiver_.reset();
    wire_->Shutdown();
  }

  // Everything over, and the loops hold nothing any more.
  bool AwaitQuiet() {
    if (!router_.AwaitAllOver(kLimit)) return false;
    const TimePoint give_up = Clock::Real()->Now() + kLimit;
    while (!prefill_->idle() || !decode_->idle()) {
      if (Clock::Real()->Now() >= give_up) return false;
      std::this_thread::yield();
    }
    return true;
  }

  TestRouter& router() { return router_; }
  prefill_worker::PrefillLoop& prefill() { return *prefill_; }
  decode_worker::DecodeLoop& decode() { return *decode_; }

 private:
  static WitnessExecutor::Options ExecutorOptions(const ClusterOptions& options, TestKvPool& kv) {
    WitnessExecutor::Options out;
    out.limits = {
        .tokens_max = options.chunk_tokens, .sequences_max = 16, .context_tokens_max = 1024};
    out.kv = kv.memory();
    out.vocabulary_size = kVocabulary;
    out.step_time = options.step_time;
    return out;
  }
  kvtransfer::TransferSetup Setup(uint64_t instance_id) {
    kvtransfer::TransferSetup setup;
    // Two blocks a chunk, so that hand-overs take several.
    setup.options.staging_slot_bytes = 2 * kTestSlotBytes * kBlockTokens;
    setup.options.staging_slots = 4;
    setup.options.poison_free_staging = true;
    setup.instance_id = instance_id;
    setup.kv_layouts = {{worker::kTestLoopModel, "test slots"}};
    setup.wire = wire_.get();
    return setup;
  }
  static worker::LoopOptions LoopOptions(TestKvPool& kv, StepExecutor* executor,
                                         worker::EventSink* sink) {
    worker::LoopOptions out;
    out.model = std::string(worker::kTestLoopModel);
    out.kv = kv.memory();
    out.executor = executor;
    out.sink = sink;
    return out;
  }

  TestKvPool prefill_kv_;
  TestKvPool decode_kv_;
  WitnessExecutor prefill_executor_;
  WitnessExecutor decode_executor_;
  std::unique_ptr<kvtransfer::Wire> wire_;
  kvtransfer::MemoryNetwork network_;
  std::unique_ptr<kvtransfer::LinkedTransferReceiver> receiver_;
  std::unique_ptr<kvtransfer::TransferSender> sender_;
  TestRouter router_;
  std::unique_ptr<prefill_worker::PrefillLoop> prefill_;
  std::unique_ptr<decode_worker::DecodeLoop> decode_;
};

void ExpectComplete(const TestRouter::State& state) {
  ASSERT_TRUE(state.reason.has_value());
  EXPECT_EQ(*state.reason, EndReason::kLength) << state.status;
  EXPECT_EQ(state.TokenIds(),
            WitnessContinuation(state.request.prompt,
                                static_cast<int32_t>(state.request.max_tokens), kVocabulary));
}

TEST(Handover, BatchesOfOneToSixteenOfEveryPromptLengthRoundABlockAreExact) {
  // One token, a block and one token less and more, multiples, and longer than a chunk.
  const std::vector<int32_t> lengths = {1, 3, 4, 5, 8, 12, 13, 31, 32, 33, 70};
  for (int batch = 1; batch <= 16; ++batch) {
    Cluster cluster({.num_blocks = 512});
    std::vector<RequestId> ids;
    for (int i = 0; i < batch; ++i) {
      TestRouter::Request request;
      request.prompt = Prompt(lengths[(batch + i) % lengths.size()], 1000 * i);
      request.max_tokens = static_cast<uint32_t>(2 + (i * 7) % 23);
      ids.push_back(cluster.router().Submit(request));
    }
    ASSERT_TRUE(cluster.AwaitQuiet()) << "batch " << batch;
    for (RequestId id : ids) {
      const TestRouter::State state = cluster.router().state(id);
      ExpectComplete(state);
      const int32_t blocks =
          (static_cast<int32_t>(state.request.prompt.size()) + kBlockTokens - 1) / kBlockTokens;
      EXPECT_EQ(state.kv_bytes, blocks * kBlockTokens * kTestSlotBytes);
    }
  }
}

TEST(Handover, DisaggregatedAndCombinedGiveTheSameTokensSideBySide) {
  Cluster cluster({.num_blocks = 128});
  std::vector<RequestId> ids;
  for (int i = 0; i < 12; ++i) {
    TestRouter::Request request;
    request.prompt = Prompt(3 + 5 * (i / 2), 500 * (i / 2));
    request.max_tokens = 20;
    request.disaggregated = i % 2 == 0;
    ids.push_back(cluster.router().Submit(request));
  }
  ASSERT_TRUE(cluster.AwaitQuiet());
  for (RequestId id : ids) ExpectComplete(cluster.router().state(id));
}

TEST(Handover, TwoHundredRoundsOfCancelsHarmNobodyElse) {
  Cluster cluster(
      {.num_blocks = 48, .chunk_tokens = 16, .step_time = std::chrono::microseconds(20)});
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "failing seed " << seed);
    std::mt19937 random(seed);
    std::vector<RequestId> ids;
    for (int i = 0; i < 6; ++i) {
      TestRouter::Request request;
      request.prompt = Prompt(1 + static_cast<int32_t>(random() % 40), 2000 * i);
      request.max_tokens = 2 + random() % 12;
      ids.push_back(cluster.router().Submit(request));
    }
    const RequestId victim = ids[random() % ids.size()];
    const TimePoint at = Clock::Real()->Now() + std::chrono::microseconds(random() % 1500);
    while (Clock::Real()->Now() < at) std::this_thread::yield();
    cluster.router().Cancel(victim);
    TestRouter::Request probe;
    probe.prompt = Prompt(9, 40000);
    probe.max_tokens = 4;
    probe.deadline = Clock::Real()->Now() + kLimit;
    ids.push_back(cluster.router().Submit(probe));
    ASSERT_TRUE(cluster.router().AwaitAllOver(kLimit));
    for (RequestId id : ids) {
      const TestRouter::State state = cluster.router().state(id);
      if (state.cancel_sent && *state.reason == EndReason::kCancelled) {
        EXPECT_EQ(id, victim);
        const std::vector<int32_t> tokens = state.TokenIds();
        EXPECT_EQ(tokens, WitnessContinuation(state.request.prompt,
                                              static_cast<int32_t>(tokens.size()), kVocabulary));
      } else {
        ExpectComplete(state);
      }
    }
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_TRUE(cluster.AwaitQuiet());
}

TEST(Handover, OneTokenRequestsInParallelNeedNoHandOverAndLeaveNothingBehind) {
  Cluster cluster({.num_blocks = 64});
  std::vector<RequestId> ids;
  for (int i = 0; i < 200; ++i) {
    TestRouter::Request request;
    request.prompt = Prompt(1 + i % 20, 100 * i);
    request.max_tokens = 1;
    ids.push_back(cluster.router().Submit(request));
  }
  ASSERT_TRUE(cluster.AwaitQuiet());
  for (RequestId id : ids) ExpectComplete(cluster.router().state(id));
  EXPECT_EQ(cluster.prefill().load().free_blocks, 64u);
  EXPECT_EQ(cluster.decode().load().free_blocks, 64u);
}

TEST(Handover, StoppingInTheMiddleEndsEverythingAsUnavailable) {
  for (int round = 0; round < 10; ++round) {
    Cluster cluster({.num_blocks = 64, .step_time = milliseconds(1)});
    std::vector<RequestId> ids;
    for (int i = 0; i < 8; ++i) {
      TestRouter::Request request;
      request.prompt = Prompt(20 + i, 100 * i);
      request.max_tokens = 500;
      ids.push_back(cluster.router().Submit(request));
    }
    const TimePoint at = Clock::Real()->Now() + milliseconds(3 * round);
    while (Clock::Real()->Now() < at) std::this_thread::yield();
    cluster.prefill().Stop();
    cluster.decode().Stop();
    EXPECT_TRUE(cluster.router().AwaitAllOver(kLimit));
    for (RequestId id : ids) {
      EXPECT_EQ(cluster.router().state(id).status.code(), absl::StatusCode::kUnavailable)
          << cluster.router().state(id).status;
    }
  }
}

TEST(Handover, ABrokenSessionLeavesNothingBehind) {
  Cluster cluster({.num_blocks = 64, .step_time = milliseconds(1)});
  for (int i = 0; i < 10; ++i) {
    TestRouter::Request request;
    request.prompt = Prompt(10 + 3 * i, 100 * i);
    request.max_tokens = 400;
    cluster.router().Submit(request);
  }
  const TimePoint at = Clock::Real()->Now() + milliseconds(20);
  while (Clock::Real()->Now() < at) std::this_thread::yield();
  cluster.router().EndSession();
  const TimePoint give_up = Clock::Real()->Now() + kLimit;
  while (!cluster.prefill().idle() || !cluster.decode().idle()) {
    ASSERT_LT(Clock::Real()->Now(), give_up);
    std::this_thread::yield();
  }
  EXPECT_EQ(cluster.decode().load().free_blocks, 64u);
}

}  // namespace
}  // namespace baton
