// NCCL and its GPUs, played by threads that copy memory of the host. Does what was measured of the
// real thing: an operation without its other half spins until it is aborted, a send to a peer that
// has aborted completes without an error, a peer that has died is never reported, aborting takes
// long. For tests.
//
// It also judges its user, and ends the process when a rule of pair_communicator.h is broken: a
// Post without Ready, halves of different sizes, a receive that is posted before its send, a
// communicator that goes before it is quiet. Thread-safe.
#ifndef BATON_KVTRANSFER_NCCL_FAKE_COMMUNICATOR_H_
#define BATON_KVTRANSFER_NCCL_FAKE_COMMUNICATOR_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "kvtransfer/nccl/nccl_wire.h"
#include "kvtransfer/nccl/pair_communicator.h"

namespace baton::kvtransfer {

struct FakeNcclBehaviour {
  Duration make_time{};
  bool make_fails = false;  // Of every half that is begun from now on.
  bool never_made = false;  // Until it is aborted.
  Duration launch_time{};   // From Post until Ready.
  Duration operation_time{};
  bool operations_spin = false;  // They never end, until they are aborted.
  // The communicator fails once it has completed so many operations; negative: never.
  int64_t fails_after = -1;
  Duration abort_time{};
  // After an abort has returned, the kernel writes into the receive buffer for so long.
  Duration linger_time{};
  bool gpu_lost = false;  // Quiet cannot be answered.
  bool accepts_shared_device = false;
};

struct FakeNcclCounts {
  int made = 0;
  int aborted = 0;
  int destroyed = 0;
  int live = 0;
  int live_max = 0;
};

class FakeChannel;

// The machine: what all fake GPUs and processes of a test share.
class FakeNccl {
 public:
  void Set(const FakeNcclBehaviour& behaviour) EXCLUDES(mutex_);
  FakeNcclBehaviour behaviour() const EXCLUDES(mutex_);
  FakeNcclCounts counts() const EXCLUDES(mutex_);
  // The channel of an id, made by whoever comes first.
  std::shared_ptr<FakeChannel> Channel(const PairId& id) EXCLUDES(mutex_);
  PairId MintId() EXCLUDES(mutex_);

  void CountMade() EXCLUDES(mutex_);
  void CountEnd(bool orderly) EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  FakeNcclBehaviour behaviour_ GUARDED_BY(mutex_);
  FakeNcclCounts counts_ GUARDED_BY(mutex_);
  uint64_t next_id_ GUARDED_BY(mutex_) = 1;
  std::map<PairId, std::weak_ptr<FakeChannel>> channels_ GUARDED_BY(mutex_);
};

// One process with GPU number `gpu`.
std::unique_ptr<PairCommunicators> MakeFakeCommunicators(std::shared_ptr<FakeNccl> nccl,
                                                         uint8_t gpu, uint32_t library_version = 1);

// Two wires as one: P has GPU `gpu_p`, D GPU 2.
std::unique_ptr<Wire> MakeFakeNcclWire(const std::shared_ptr<FakeNccl>& nccl,
                                       NcclWireOptions options, uint8_t gpu_p = 1);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_NCCL_FAKE_COMMUNICATOR_H_
