// What waits for one engine loop: commands of router sessions and events of transfers. The loop
// takes everything at once, by kind, and handles starts before credits, cancels and ended sessions.
// That order is the order of arrival as far as it matters: a router never speaks of a sequence
// before its start.
//
// Limits: starts are counted and refused above a limit. Everything else is never refused for lack
// of room, and bounded all the same: credits and cancels are merged by sequence, ended sessions are
// a set, and transfers have few events each.
//
// Thread-safe; one thread takes.
#ifndef BATON_WORKER_LOOP_INBOX_H_
#define BATON_WORKER_LOOP_INBOX_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "kvtransfer/transfer.h"
#include "worker/messages.h"

namespace baton::worker {

// A call of an observer of kvtransfer/transfer.h, as data.
struct TransferEvent {
  enum class Kind { kDelivered, kReleased, kReceived, kFailed, kQuiescent, kPairFailed };
  Kind kind = Kind::kQuiescent;
  TransferId id;
  kvtransfer::TransferStats stats;
  std::string payload;
  absl::Status status;
  kvtransfer::PeerAddress peer;
};

struct InboxContents {
  std::vector<StartSequence> starts;
  std::map<SequenceKey, uint64_t> credits;
  std::set<SequenceKey> cancels;
  std::set<RouterSessionId> ended_sessions;
  std::vector<TransferEvent> transfer_events;
  bool drain = false;

  bool empty() const {
    return starts.empty() && credits.empty() && cancels.empty() && ended_sessions.empty() &&
           transfer_events.empty() && !drain;
  }
};

class Inbox {
 public:
  explicit Inbox(uint32_t starts_max) : starts_max_(starts_max) {}

  // ERRORS: ResourceExhausted: a start, and starts_max wait already; Unavailable: refused by
  // RefuseCommands.
  absl::Status Push(Command command) EXCLUDES(mutex_);
  void Push(TransferEvent event) EXCLUDES(mutex_);

  // Waits up to `timeout` for something to be there.
  InboxContents TakeAll(Duration timeout) EXCLUDES(mutex_);
  // Makes the current or next TakeAll return at once.
  void Wake() EXCLUDES(mutex_);
  // From now on commands are refused with Unavailable and `reason`. The first reason stays.
  void RefuseCommands(const std::string& reason) EXCLUDES(mutex_);

  // The loop says after each turn whether it has anything left to do. idle() is that, and nothing
  // was pushed since.
  void SetLoopIdle(bool idle) EXCLUDES(mutex_);
  bool idle() const EXCLUDES(mutex_);
  uint32_t num_starts() const EXCLUDES(mutex_);

 private:
  const uint32_t starts_max_;
  mutable Mutex mutex_;
  CondVar ready_;
  InboxContents contents_ GUARDED_BY(mutex_);
  bool woken_ GUARDED_BY(mutex_) = false;
  bool loop_idle_ GUARDED_BY(mutex_) = true;
  bool refused_ GUARDED_BY(mutex_) = false;
  std::string refusal_ GUARDED_BY(mutex_);
};

}  // namespace baton::worker

#endif  // BATON_WORKER_LOOP_INBOX_H_
