#include "kvtransfer/nccl/owned_communicator.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"

namespace baton::kvtransfer {
namespace {

// A capture takes milliseconds. If one is open for so long, the abort goes on all the same: memory
// that is never given back is worse than a capture that fails.
constexpr Duration kCaptureLimit = std::chrono::seconds(5);

}  // namespace

std::shared_ptr<void> CommunicatorBudget::Acquire(Duration limit) {
  const TimePoint deadline = SaturatingAdd(Clock::Real()->Now(), limit);
  MutexLock lock(mutex_);
  while (free_ == 0) {
    const TimePoint now = Clock::Real()->Now();
    if (now >= deadline) return nullptr;
    freed_.WaitFor(mutex_, deadline - now);
  }
  --free_;
  // The pointer carries the deleter and is never followed.
  return std::shared_ptr<void>(this, [this](void*) { Release(); });
}

void CommunicatorBudget::Release() {
  MutexLock lock(mutex_);
  ++free_;
  freed_.Signal();
}

OwnedCommunicator::OwnedCommunicator(std::unique_ptr<PairCommunicator> communicator,
                                     CaptureGate* gate, std::shared_ptr<void> slot)
    : communicator_(std::move(communicator)), gate_(gate), slot_(std::move(slot)) {}

OwnedCommunicator::~OwnedCommunicator() {
  CHECK(quiet_ || lost_);
  thread_.join();
}

void OwnedCommunicator::BeginEnd(bool orderly, std::function<void()> ended) {
  CHECK(!thread_.joinable());
  thread_ = std::thread([this, orderly, ended = std::move(ended)] {
    if (gate_ != nullptr && !gate_->BeginCommunicatorChange(kCaptureLimit)) {
      LogError("a communicator is aborted although a graph is being captured");
    }
    if (orderly) {
      communicator_->Destroy();
    } else {
      communicator_->Abort();
    }
    if (gate_ != nullptr) gate_->EndCommunicatorChange();
    ended_ = true;
    ended();
  });
}

bool OwnedCommunicator::Quiet() {
  if (quiet_ || !ended_) return quiet_;
  const absl::StatusOr<bool> quiet = communicator_->Quiet();
  if (!quiet.ok() && !lost_) {
    LogError("nothing proves that an aborted communicator is quiet",
             {{"status", quiet.status().ToString()}});
  }
  lost_ = !quiet.ok();
  quiet_ = quiet.ok() && *quiet;
  return quiet_;
}

}  // namespace baton::kvtransfer
