#include "worker/loop/inbox.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace baton::worker {

absl::Status Inbox::Push(Command command) {
  {
    MutexLock lock(mutex_);
    if (refused_) return absl::UnavailableError(refusal_);
    if (auto* start = std::get_if<StartSequence>(&command)) {
      if (contents_.starts.size() >= starts_max_) {
        return absl::ResourceExhaustedError(
            absl::StrCat("command queue: ", starts_max_, " starts wait already"));
      }
      contents_.starts.push_back(std::move(*start));
    } else if (auto* credits = std::get_if<GrantCredits>(&command)) {
      contents_.credits[credits->key] += credits->credits;
    } else if (auto* cancel = std::get_if<CancelSequence>(&command)) {
      contents_.cancels.insert(cancel->key);
    } else if (auto* ended = std::get_if<SessionEnded>(&command)) {
      contents_.ended_sessions.insert(ended->session);
    } else {
      contents_.drain = true;
    }
  }
  ready_.Signal();
  return absl::OkStatus();
}

void Inbox::Push(TransferEvent event) {
  {
    MutexLock lock(mutex_);
    contents_.transfer_events.push_back(std::move(event));
  }
  ready_.Signal();
}

InboxContents Inbox::TakeAll(Duration timeout) {
  MutexLock lock(mutex_);
  if (contents_.empty() && !woken_ && timeout > Duration::zero()) {
    ready_.WaitFor(mutex_, timeout);
  }
  woken_ = false;
  if (!contents_.empty()) loop_idle_ = false;
  return std::exchange(contents_, InboxContents());
}

void Inbox::Wake() {
  {
    MutexLock lock(mutex_);
    woken_ = true;
  }
  ready_.SignalAll();
}

void Inbox::RefuseCommands(const std::string& reason) {
  MutexLock lock(mutex_);
  if (refused_) return;
  refused_ = true;
  refusal_ = reason;
}

void Inbox::SetLoopIdle(bool idle) {
  MutexLock lock(mutex_);
  loop_idle_ = idle;
}

bool Inbox::idle() const {
  MutexLock lock(mutex_);
  return loop_idle_ && contents_.empty();
}

uint32_t Inbox::num_starts() const {
  MutexLock lock(mutex_);
  return static_cast<uint32_t>(contents_.starts.size());
}

}  // namespace baton::worker
