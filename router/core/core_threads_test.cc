// The core on its own thread, with workers and clients on others: random cancels, deadlines,
// refusals and deaths. Every request must end exactly once, every successful one must have exactly
// its tokens, and every account must return to zero. Run under ThreadSanitizer.
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "gtest/gtest.h"
#include "router/core/router_core.h"
#include "router/policy/least_loaded_policy.h"
#include "router/testing/fake_session.h"
#include "router/testing/table_codec.h"
#include "router/testing/worker_frames.h"

namespace baton::router {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint32_t kMaxTokens = 6;

// What P tells D outside the router.
class Handovers {
 public:
  void Add(RequestId id, uint32_t attempt) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    arrived_.insert({id.value, attempt});
  }
  bool Take(RequestId id, uint32_t attempt) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return arrived_.erase({id.value, attempt}) > 0;
  }

 private:
  Mutex mutex_;
  std::set<std::pair<uint64_t, uint32_t>> arrived_ GUARDED_BY(mutex_);
};

// One worker process after the other at one address, each killed after a random while.
class AutoWorker {
 public:
  AutoWorker(RouterCore* core, Handovers* handovers, worker::v1::WorkerRole role, uint64_t number,
             const std::atomic<bool>* mortal, const std::atomic<bool>* stop)
      : core_(core),
        handovers_(handovers),
        role_(role),
        number_(number),
        mortal_(mortal),
        stop_(stop),
        rng_(static_cast<uint32_t>(number)) {
    thread_ = std::thread([this] { Run(); });
  }
  ~AutoWorker() { thread_.join(); }

 private:
  struct Sequence {
    uint32_t next_index = 0;
    bool running = false;
    bool prefill_only = false;
  };
  using Key = std::pair<uint64_t, uint32_t>;

  void Run() {
    for (uint64_t life = 0; !*stop_; ++life) Live(number_ * 1000 + life);
  }

  void Live(uint64_t instance) {
    session_ = std::make_shared<FakeSession>();
    sequences_.clear();
    id_ = core_->OpenSession(absl::StrCat("w", number_), session_);
    core_->PostFrame(id_, HelloFrame(role_, instance, {TestModel()}, 3));
    const TimePoint death = Clock::Real()->Now() + milliseconds(20 + rng_() % 80);
    while (!*stop_ && !session_->closed()) {
      if (*mortal_ && Clock::Real()->Now() >= death) break;
      for (auto& frame : session_->Take()) Answer(frame);
      Step();
      std::this_thread::sleep_for(microseconds(200));
    }
    core_->PostSessionClosed(id_, absl::UnavailableError("died"));
  }

  void Answer(const worker::v1::SessionRequest& frame) {
    if (frame.has_fetch_artifact()) {
      core_->PostFrame(id_, ArtifactFrame(frame.fetch_artifact()));
    } else if (frame.has_heartbeat()) {
      core_->PostFrame(id_, HeartbeatFrame());
    } else if (frame.has_start()) {
      Start(frame.start());
    } else if (frame.has_cancel()) {
      const Key key(frame.cancel().request_id(), frame.cancel().attempt());
      sequences_.erase(key);
      core_->PostFrame(
          id_, EndFrame(RequestId(key.first), worker::v1::END_REASON_CANCELLED, key.second));
    }
  }

  void Start(const worker::v1::StartSequence& start) {
    const RequestId request(start.request_id());
    if (rng_() % 10 == 0) {
      core_->PostFrame(id_, ErrorFrame(request, absl::StatusCode::kResourceExhausted, "full", true,
                                       start.attempt()));
      return;
    }
    Sequence sequence;
    sequence.running = start.mode() != worker::v1::START_MODE_RESERVE;
    sequence.next_index = sequence.running ? 0 : 1;
    sequence.prefill_only = start.mode() == worker::v1::START_MODE_PREFILL ||
                            start.mode() == worker::v1::START_MODE_PREFILL_ONLY;
    sequences_[{start.request_id(), start.attempt()}] = sequence;
    if (!sequence.running) core_->PostFrame(id_, ReservedFrame(request, start.attempt()));
  }

  void Step() {
    for (auto it = sequences_.begin(); it != sequences_.end();) {
      auto& [key, sequence] = *it;
      const RequestId request(key.first);
      if (!sequence.running) sequence.running = handovers_->Take(request, key.second);
      if (!sequence.running) {
        ++it;
        continue;
      }
      const uint32_t index = sequence.next_index++;
      auto frame = TokensFrame(request, {{index, 'a' + static_cast<int32_t>(index)}}, key.second);
      // Sometimes the same token twice.
      if (rng_() % 4 == 0) core_->PostFrame(id_, frame);
      if (sequence.prefill_only) {
        core_->PostFrame(id_,
                         WithEnd(frame, request, worker::v1::END_REASON_HANDED_OVER, key.second));
        handovers_->Add(request, key.second);
        it = sequences_.erase(it);
      } else if (sequence.next_index == kMaxTokens) {
        core_->PostFrame(id_, WithEnd(frame, request, worker::v1::END_REASON_LENGTH, key.second));
        it = sequences_.erase(it);
      } else {
        core_->PostFrame(id_, frame);
        ++it;
      }
    }
  }

  RouterCore* const core_;
  Handovers* const handovers_;
  const worker::v1::WorkerRole role_;
  const uint64_t number_;
  const std::atomic<bool>* const mortal_;
  const std::atomic<bool>* const stop_;
  std::mt19937 rng_;
  std::shared_ptr<FakeSession> session_;
  SessionId id_;
  std::map<Key, Sequence> sequences_;
  std::thread thread_;
};

TEST(CoreThreads, EveryRequestEndsOnceWhateverWorkersAndClientsDo) {
  SetLogLevel(LogLevel::kOff);
  ModelCatalog catalog;
  TextPool pool({});
  RouterCore::Options options;
  options.policy = std::make_unique<LeastLoadedPolicy>();
  options.codec_factory = [](const TokenizerArtifacts&) {
    return absl::StatusOr<std::shared_ptr<const TextCodec>>(std::make_shared<TableCodec>());
  };
  options.pool = &pool;
  options.catalog = &catalog;
  options.limits.heartbeat_limit = seconds(20);
  options.limits.queue_max = 64;
  RouterCore core(std::move(options));
  core.Start();
  std::atomic<bool> mortal = false;
  std::atomic<bool> stop = false;
  Handovers handovers;
  std::vector<std::unique_ptr<AutoWorker>> workers;
  uint64_t number = 0;
  for (const auto role : {worker::v1::WORKER_ROLE_PREFILL, worker::v1::WORKER_ROLE_PREFILL,
                          worker::v1::WORKER_ROLE_DECODE, worker::v1::WORKER_ROLE_DECODE,
                          worker::v1::WORKER_ROLE_COMBINED}) {
    workers.push_back(
        std::make_unique<AutoWorker>(&core, &handovers, role, ++number, &mortal, &stop));
  }
  std::shared_ptr<const ServedModel> model;
  for (int i = 0; i < 4000 && (model == nullptr || !model->ready); ++i) {
    std::this_thread::sleep_for(milliseconds(5));
    if (catalog.Find("m").ok()) model = *catalog.Find("m");
  }
  ASSERT_TRUE(model != nullptr && model->ready);
  mortal = true;

  constexpr int kClients = 3;
  constexpr int kRequests = 150;
  std::vector<std::vector<std::shared_ptr<RecordingSink>>> sinks(kClients);
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      std::mt19937 rng(static_cast<uint32_t>(c + 100));
      for (int i = 0; i < kRequests; ++i) {
        AdmittedRequest request;
        request.id = RequestId((static_cast<uint64_t>(c + 1) << 32) | static_cast<uint64_t>(i));
        request.validated.model = model;
        request.validated.prompt = {1, 2, 3};
        request.validated.stop.max_tokens = kMaxTokens;
        request.arrival = Clock::Real()->Now();
        if (rng() % 8 == 0) request.deadline = request.arrival + milliseconds(rng() % 20);
        auto sink = std::make_shared<RecordingSink>();
        sinks[c].push_back(sink);
        const RequestId id = request.id;
        core.Submit(std::move(request), sink);
        if (rng() % 6 == 0) {
          std::this_thread::sleep_for(microseconds(rng() % 3000));
          core.Cancel(id, absl::CancelledError("client"));
          core.Cancel(id, absl::CancelledError("again"));
        }
        core.NotifyDrained(id);
        std::this_thread::sleep_for(microseconds(rng() % 2000));
      }
    });
  }
  for (std::thread& client : clients) client.join();
  mortal = false;
  const auto idle = [&] {
    const RouterCore::Stats stats = core.stats();
    return stats.queued_requests == 0 && stats.running_requests == 0 &&
           stats.worker_sequences == 0 && stats.prefill_credits_in_use == 0;
  };
  for (int i = 0; i < 4000 && !idle(); ++i) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_TRUE(idle());
  int finished = 0;
  for (const auto& client : sinks) {
    for (const auto& sink : client) {
      const RecordingSink::Record record = sink->record();
      ASSERT_EQ(record.ends, 1);
      if (record.finish.has_value()) {
        EXPECT_EQ(record.text, "abcdef");
        ++finished;
      } else {
        EXPECT_TRUE(absl::string_view("abcdef").substr(0, record.text.size()) == record.text);
      }
    }
  }
  EXPECT_GT(finished, kRequests) << "most requests should survive";
  stop = true;
  workers.clear();
  core.Stop();
  pool.Stop();
}

}  // namespace
}  // namespace baton::router
