// Collects what wires call back, for their tests.
#ifndef BATON_KVTRANSFER_WIRE_LOGS_H_
#define BATON_KVTRANSFER_WIRE_LOGS_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "kvtransfer/test_support.h"
#include "kvtransfer/wire.h"

namespace baton::kvtransfer {

// Collects the statuses of completions, in the order they came. Thread-safe.
class CompletionLog {
 public:
  WireEnd::Completion Next() {
    MutexLock lock(state_->mutex);
    const size_t index = state_->issued++;
    return [state = state_, index](const absl::Status& status) {
      MutexLock lock(state->mutex);
      state->indexes.push_back(index);
      state->statuses.push_back(status);
    };
  }
  size_t size() const {
    MutexLock lock(state_->mutex);
    return state_->statuses.size();
  }
  bool Await(size_t count) const {
    return Eventually([&] { return size() >= count; });
  }
  std::vector<absl::Status> statuses() const {
    MutexLock lock(state_->mutex);
    return state_->statuses;
  }
  bool InOrder() const {
    MutexLock lock(state_->mutex);
    return std::is_sorted(state_->indexes.begin(), state_->indexes.end());
  }

 private:
  struct State {
    Mutex mutex;
    size_t issued GUARDED_BY(mutex) = 0;
    std::vector<size_t> indexes GUARDED_BY(mutex);
    std::vector<absl::Status> statuses GUARDED_BY(mutex);
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// What an offer brought: at most one call, and its result.
class AcceptLog {
 public:
  Wire::Accepted Callback() {
    return [state = state_](absl::StatusOr<std::unique_ptr<WireEnd>> end) {
      MutexLock lock(state->mutex);
      ++state->calls;
      state->result = std::move(end);
    };
  }
  bool Await() const {
    return Eventually([&] { return calls() > 0; });
  }
  int calls() const {
    MutexLock lock(state_->mutex);
    return state_->calls;
  }
  absl::Status status() const {
    MutexLock lock(state_->mutex);
    return state_->result.status();
  }
  std::unique_ptr<WireEnd> Take() {
    MutexLock lock(state_->mutex);
    if (!state_->result.ok()) return nullptr;
    return *std::move(state_->result);
  }

 private:
  struct State {
    Mutex mutex;
    int calls GUARDED_BY(mutex) = 0;
    absl::StatusOr<std::unique_ptr<WireEnd>> result GUARDED_BY(mutex) =
        absl::UnknownError("not called");
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_WIRE_LOGS_H_
