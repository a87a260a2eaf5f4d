// A communicator with what its end takes: aborting it on a thread of its own (it takes most of a
// second), apart from graph captures, and the proof that nothing of it runs any more. And how many
// communicators a process may have, because each takes memory of the GPU.
#ifndef BATON_KVTRANSFER_NCCL_OWNED_COMMUNICATOR_H_
#define BATON_KVTRANSFER_NCCL_OWNED_COMMUNICATOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "device/capture_gate.h"
#include "kvtransfer/nccl/pair_communicator.h"

namespace baton::kvtransfer {

// Thread-safe. Must outlive its slots.
class CommunicatorBudget {
 public:
  explicit CommunicatorBudget(int communicators_max) : free_(communicators_max) {}
  // One communicator, until the last reference goes. Waits up to `limit` for one that is being
  // aborted; null: none became free.
  std::shared_ptr<void> Acquire(Duration limit) EXCLUDES(mutex_);

 private:
  void Release() EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar freed_;
  int free_ GUARDED_BY(mutex_);
};

// Thread rule: owned by the pair's thread.
class OwnedCommunicator {
 public:
  // `gate` may be null; else it must outlive this.
  OwnedCommunicator(std::unique_ptr<PairCommunicator> communicator, CaptureGate* gate,
                    std::shared_ptr<void> slot);
  // Waits for the thread of BeginEnd. REQUIRES: Quiet() or lost().
  ~OwnedCommunicator();

  PairCommunicator* operator->() { return communicator_.get(); }
  // Starts Abort, or Destroy when `orderly`, and calls `ended` when that has returned. Once.
  void BeginEnd(bool orderly, std::function<void()> ended);
  bool ending() const { return thread_.joinable(); }
  // After BeginEnd: it has returned, and everything that was posted has left the GPU.
  bool Quiet();
  // The last Quiet() could not be answered: the GPU is lost, and nothing is proved.
  bool lost() const { return lost_; }

 private:
  const std::unique_ptr<PairCommunicator> communicator_;
  CaptureGate* const gate_;
  const std::shared_ptr<void> slot_;
  std::atomic<bool> ended_{false};
  bool quiet_ = false;
  bool lost_ = false;
  std::thread thread_;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_NCCL_OWNED_COMMUNICATOR_H_
