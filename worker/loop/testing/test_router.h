// The router's side of the loops, without a router: asks D for a reservation, P for the prompt,
// joins both token streams by index, and checks on the way what a router relies on (exactly one end
// an accepted start, nothing after it, each index once). Works with loops that have threads and
// with loops driven turn by turn.
//
// Thread rule: thread-safe. Loops call its sinks; it calls Enqueue from there.
#ifndef BATON_WORKER_LOOP_TESTING_TEST_ROUTER_H_
#define BATON_WORKER_LOOP_TESTING_TEST_ROUTER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "worker/messages.h"

namespace baton::worker {

inline constexpr char kTestLoopModel[] = "m";
inline constexpr RouterSessionId kTestSession{1};

class TestRouter {
 public:
  struct Request {
    std::vector<int32_t> prompt;
    uint32_t max_tokens = 1;
    std::vector<int32_t> eos;
    std::vector<int32_t> stop;
    TimePoint deadline = kNever;
    uint32_t credits = 1 << 20;
    bool logprobs = false;
    // Of token_ids, when they hold tokens of an earlier attempt; 0: all of the prompt.
    uint32_t num_prompt_tokens = 0;
    bool disaggregated = true;
  };
  struct State {
    Request request;
    std::map<uint32_t, SampledToken> tokens;
    bool reserved = false;
    bool prefill_started = false;
    std::optional<SequenceEnd> prefill_end;
    std::optional<SequenceEnd> decode_end;
    // What the client gets; set when it is known.
    std::optional<EndReason> reason;
    absl::Status status;
    uint64_t kv_bytes = 0;
    bool cancel_sent = false;
    uint32_t reservations = 0;

    // Both workers have said their last word.
    bool over() const {
      return reason.has_value() && decode_end.has_value() &&
             (!prefill_started || prefill_end.has_value());
    }
    // In order of index, from `first`; empty and not complete when there is a gap.
    std::vector<int32_t> TokenIds(uint32_t first = 0) const;
  };

  TestRouter() = default;

  EventSink* prefill_sink() { return &prefill_sink_; }
  EventSink* decode_sink() { return &decode_sink_; }
  // Once, before the first request. `prefill` may be null.
  void Connect(EngineLoop* prefill, EngineLoop* decode) EXCLUDES(mutex_);

  // Sends the request; a reservation that D has no room for is asked again by Retry().
  RequestId Submit(const Request& request) EXCLUDES(mutex_);
  void Retry() EXCLUDES(mutex_);
  void Cancel(RequestId id) EXCLUDES(mutex_);
  void Grant(RequestId id, uint32_t credits) EXCLUDES(mutex_);
  // The session breaks: nothing is expected from the workers any more.
  void EndSession() EXCLUDES(mutex_);

  State state(RequestId id) const EXCLUDES(mutex_);
  bool AllOver() const EXCLUDES(mutex_);
  // Waits for it, asking for reservations again meanwhile. False after `limit`.
  bool AwaitAllOver(Duration limit) EXCLUDES(mutex_);
  bool Await(RequestId id, Duration limit, bool (*condition)(const State&)) EXCLUDES(mutex_);
  // What should not have happened, each a line.
  std::vector<std::string> violations() const EXCLUDES(mutex_);
  std::vector<PairFailed> pair_failures() const EXCLUDES(mutex_);
  uint64_t outputs() const EXCLUDES(mutex_);

 private:
  enum class Side { kPrefill, kDecode };
  class Sink : public EventSink {
   public:
    Sink(TestRouter* router, Side side) : router_(router), side_(side) {}
    void OnStepOutput(StepOutput output) override { router_->OnOutput(side_, output); }
    void OnPairFailed(const PairFailed& failure) override { router_->OnPair(failure); }

   private:
    TestRouter* const router_;
    const Side side_;
  };

  void OnOutput(Side side, const StepOutput& output) EXCLUDES(mutex_);
  void OnPair(const PairFailed& failure) EXCLUDES(mutex_);
  void OnToken(Side side, const TokenOutput& token) REQUIRES(mutex_);
  void OnEnd(Side side, const SequenceEnd& end) REQUIRES(mutex_);
  void Violate(const SequenceKey& key, const std::string& what) REQUIRES(mutex_);
  State* Find(const SequenceKey& key) REQUIRES(mutex_);
  void SendStart(RequestId id, State& state, StartMode mode) REQUIRES(mutex_);
  void SendCancel(RequestId id, State& state) REQUIRES(mutex_);
  void Conclude(State& state, EndReason reason, const absl::Status& status) REQUIRES(mutex_);
  static SequenceKey Key(RequestId id) { return {kTestSession, id, 0}; }

  Sink prefill_sink_{this, Side::kPrefill};
  Sink decode_sink_{this, Side::kDecode};
  mutable Mutex mutex_;
  CondVar changed_;
  EngineLoop* prefill_ GUARDED_BY(mutex_) = nullptr;
  EngineLoop* decode_ GUARDED_BY(mutex_) = nullptr;
  std::map<RequestId, State> states_ GUARDED_BY(mutex_);
  std::vector<RequestId> to_retry_ GUARDED_BY(mutex_);
  std::vector<std::string> violations_ GUARDED_BY(mutex_);
  std::vector<PairFailed> pair_failures_ GUARDED_BY(mutex_);
  uint64_t next_id_ GUARDED_BY(mutex_) = 1;
  uint64_t outputs_ GUARDED_BY(mutex_) = 0;
  bool session_ended_ GUARDED_BY(mutex_) = false;
};

}  // namespace baton::worker

#endif  // BATON_WORKER_LOOP_TESTING_TEST_ROUTER_H_
