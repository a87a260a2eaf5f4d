// The part of an engine loop that both kinds of worker share: the thread, the commands, deadlines,
// credits, cancels, draining and stopping, the steps, and the gathering of events into one
// StepOutput per session and turn. What a start means and what happens to KV is the subclass's.
//
// One turn: take what waits in the inbox and handle it; end what is past its deadline; plan and
// launch a step if there is room for one; read the oldest step when two are in flight or nothing
// more could be launched; send what there is to say.
//
// Invariants:
//  - Every accepted start gets exactly one SequenceEnd, unless its session has ended; nothing about
//  it
//    follows. A cancel of an unknown sequence is answered as well.
//  - After an error of the executor everything ends as Unavailable and commands are refused.
//
// Thread rule: the public calls of EngineLoop are thread-safe; everything protected belongs to the
// loop's thread. Subclasses call Stop() in their destructor.
#ifndef BATON_WORKER_LOOP_ENGINE_LOOP_BASE_H_
#define BATON_WORKER_LOOP_ENGINE_LOOP_BASE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "engine/scheduler/sequence_engine.h"
#include "worker/loop/inbox.h"
#include "worker/loop/loop_options.h"
#include "worker/messages.h"

namespace baton::worker {

class EngineLoopBase : public EngineLoop {
 public:
  ~EngineLoopBase() override;

  absl::Status Enqueue(Command command) override;
  LoopLoad load() const override EXCLUDES(load_mutex_);
  bool idle() const override;
  void Stop() override;

  // Starts the thread. Without it a test may drive the loop itself, from one thread, by Turn().
  void StartThread();
  // One turn; waits up to `wait_max` for something to do.
  void Turn(Duration wait_max);
  // Recounts the blocks; a drift ends the process. REQUIRES: called where Turn() may be called.
  BlockCounts Audit() const { return engine_.pool().Audit(); }

 protected:
  // A sequence from its start to its end.
  struct Active {
    SequenceKey key;
    SequenceId id;
    // False once the engine does not know it any more (P: its KV is being delivered).
    bool in_engine = true;
    TimePoint deadline = kNever;
    uint32_t max_tokens = 0;
    StartMode mode = StartMode::kGenerate;
    std::optional<TransferId> transfer;
    // D: bytes of KV that were handed over for it; its end says so.
    uint64_t kv_bytes = 0;
    // Nothing is computed or held for it any more, and this is what it ends with at `failure_at`,
    // unless a cancel comes first.
    std::optional<absl::Status> failure;
    TimePoint failure_at = kNever;
  };

  // `report_kv_layers_tokens_min`: OnLayersReady is called, for steps of so many tokens of a
  // sequence; 0: for none.
  explicit EngineLoopBase(const LoopOptions& options, int32_t report_kv_layers_tokens_min = 0);

  // --- What a subclass does.
  // A start that is not stale, not a duplicate and meant for this model. Ends in AddActive or
  // Refuse.
  virtual void OnStart(StartSequence start) = 0;
  // The KV of positions [0, num_computed) lies in the blocks. May end the sequence.
  virtual void OnComputed(Active& active, int32_t num_computed) = 0;
  // The same of layers [0, num_layers) only, of a step that still runs and computes up to there;
  // `samples`: it draws a token after them. More layers each time, then OnComputed. Not called
  // unless WantsLayers said so.
  virtual void OnLayersReady(Active& active, int32_t num_computed, bool samples,
                             int32_t num_layers) {}
  virtual bool WantsLayers(const Active& active, int32_t num_computed, bool samples) const {
    return false;
  }
  // A token with finite logits. Must end the sequence, or take it out of the engine, when
  // sampled.finish is set.
  virtual void OnSampled(Active& active, const Sampled& sampled) = 0;
  virtual void OnTransferEvent(const TransferEvent& event) = 0;
  // The sequence is about to be forgotten: gives up its transfer.
  virtual void OnEnding(Active& active) = 0;
  // Whether blocks are still held or flagged for a transfer.
  virtual bool transfers_left() const = 0;

  // --- What it builds on.
  SequenceSpec MakeSpec(StartSequence& start, int64_t credits) const;
  Active& AddActive(const StartSequence& start, SequenceId id);
  Active* FindActive(const SequenceKey& key);
  // The engine forgets the sequence; its blocks and their holders are the caller's.
  std::vector<BlockId> DetachFromEngine(Active& active);
  // True, and the start is refused, when too many sequences wait.
  bool RefusedAsFull(const StartSequence& start);
  // Answers a start that does not become a sequence. ResourceExhausted is marked as retryable.
  void Refuse(const SequenceKey& key, const absl::Status& status);
  void Say(Reserved reserved);
  void Say(TokenOutput token);
  void SayPairFailed(const TransferEvent& event);
  // Ends a sequence, says so and forgets it (OnEnding). `active` is gone afterwards.
  void End(Active& active, EndReason reason, const absl::Status& status = absl::OkStatus(),
           uint64_t kv_bytes = 0);
  void EndWithError(Active& active, const absl::Status& status) {
    End(active, EndReason::kError, status);
  }
  // A transfer failed: DeadlineExceeded when the caller's own deadline has passed, else
  // Unavailable. Aborted means that the peer gave up on purpose (P: token 0 ended the request;
  // either: cancelled, or out of time). It tells the router why, over another stream than ours:
  // everything that is held is given back now, but the word is left to it for peer_word_limit.
  void EndAfterTransferFailure(Active& active, const absl::Status& status);
  static EndReason ToEndReason(FinishReason reason);

  SequenceEngine& engine() { return engine_; }
  const SequenceEngine& engine() const { return engine_; }
  BlockPool& pool() { return engine_.pool(); }
  Inbox& inbox() { return inbox_; }
  const LoopOptions& options() const { return options_; }
  TimePoint Now() const { return options_.clock->Now(); }

 private:
  void Run();
  void HandleStart(StartSequence start);
  void HandleContents(InboxContents contents);
  void EndSession(RouterSessionId session);
  void ExpireDeadlines();
  void Step(Duration wait_max);
  // Waits for the oldest step and meanwhile tells of its layers.
  absl::StatusOr<std::optional<StepOutcome>> Collect(Duration wait_max);
  // Calls `visit(active, entry)` for the sequences of the oldest step that are still there.
  template <typename Visit>
  void ForEachOfOldestStep(Visit visit);
  bool WatchesLayers();
  void TellLayers();
  // How long to wait for a step before its layers are asked for again.
  Duration LayerSlice() const;
  void ApplyOutcome(const StepOutcome& outcome);
  void Break(const absl::Status& status);
  void EndAll(const absl::Status& status);
  void Forget(Active& active);
  // Gives back what is held for a sequence.
  void LetGo(Active& active);
  void FinishWork();
  void Flush();
  // Refreshes what load() shows. `progressed`: a step was completed since the last call.
  void Publish(bool progressed) EXCLUDES(load_mutex_);
  bool LoopIdle() const;
  Duration WaitLimit(Duration wait_max) const;
  void SayEnd(const SequenceKey& key, EndReason reason, const absl::Status& status,
              uint64_t kv_bytes);
  StepOutput& OutputOf(RouterSessionId session);

  const LoopOptions options_;
  const bool reports_kv_layers_;
  Inbox inbox_;
  SequenceEngine engine_;
  std::thread thread_;
  Mutex stop_mutex_;
  bool stopped_ GUARDED_BY(stop_mutex_) = false;
  std::atomic<bool> stopping_{false};

  // Of the loop's thread.
  std::map<SequenceKey, Active> actives_;
  std::map<SequenceId, SequenceKey> keys_;  // Of those in the engine.
  std::map<RouterSessionId, StepOutput> outputs_;
  bool draining_ = false;
  bool broken_ = false;
  int32_t layers_told_ = 0;               // Of the oldest step, which runs since
  TimePoint oldest_step_since_ = kNever;  // then, in real time; kNever: not waited for yet.
  bool busy_ = false;                     // The last turn launched or read a step: do not wait.
  uint64_t tokens_generated_ = 0;
  uint64_t nonfinite_logits_ = 0;

  mutable Mutex load_mutex_;
  LoopLoad load_ GUARDED_BY(load_mutex_);
  // Since when there is work and no step was completed; kNever without work.
  TimePoint stalled_since_ GUARDED_BY(load_mutex_) = kNever;
};

}  // namespace baton::worker

#endif  // BATON_WORKER_LOOP_ENGINE_LOOP_BASE_H_
