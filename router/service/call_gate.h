// Counts the open calls and the bytes of their requests, and refuses beyond a limit before anything
// is parsed or copied. Thread-safe.
#ifndef BATON_ROUTER_SERVICE_CALL_GATE_H_
#define BATON_ROUTER_SERVICE_CALL_GATE_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/base/mutex.h"

namespace baton::router {

class CallGate {
 public:
  // Given back when destroyed. Movable.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept
        : gate_(std::exchange(other.gate_, nullptr)), bytes_(other.bytes_) {}
    Ticket& operator=(Ticket&& other) noexcept {
      std::swap(gate_, other.gate_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Ticket() {
      if (gate_ != nullptr) gate_->Leave(bytes_);
    }
    bool valid() const { return gate_ != nullptr; }

   private:
    friend class CallGate;
    Ticket(CallGate* gate, size_t bytes) : gate_(gate), bytes_(bytes) {}
    CallGate* gate_ = nullptr;
    size_t bytes_ = 0;
  };

  CallGate(size_t calls_max, size_t bytes_max) : calls_max_(calls_max), bytes_max_(bytes_max) {}

  // Not valid when there are too many calls or bytes.
  Ticket Enter(size_t bytes) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (calls_ >= calls_max_ || bytes > bytes_max_ - bytes_) return Ticket();
    ++calls_;
    bytes_ += bytes;
    return Ticket(this, bytes);
  }

  int64_t calls() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return static_cast<int64_t>(calls_);
  }
  int64_t bytes() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return static_cast<int64_t>(bytes_);
  }

 private:
  void Leave(size_t bytes) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    --calls_;
    bytes_ -= bytes;
  }

  const size_t calls_max_;
  const size_t bytes_max_;
  mutable Mutex mutex_;
  size_t calls_ GUARDED_BY(mutex_) = 0;
  size_t bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_SERVICE_CALL_GATE_H_
