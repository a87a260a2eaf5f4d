// One pair of an NCCL wire from its connection to the end of its thread, which opens the pair, is
// the posting thread of its end, and sees its communicator off. Thread-safe.
#ifndef BATON_KVTRANSFER_NCCL_NCCL_PAIR_H_
#define BATON_KVTRANSFER_NCCL_NCCL_PAIR_H_

#include <atomic>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "device/device.h"
#include "kvtransfer/nccl/pair_opening.h"
#include "kvtransfer/tcp/tcp_socket.h"
#include "kvtransfer/wire.h"

namespace baton::kvtransfer {

struct NcclPairSetup {
  PairOpeningSetup opening;
  bool fall_back = true;
  Device* device = nullptr;
};

class NcclPair {
 public:
  // `agreed`: both ends speak the opening; without, the pair is a TCP pair from the start. `opened`
  // is called exactly once, on the pair's thread, and may destroy the end that it is given.
  NcclPair(const NcclPairSetup& setup, PairRole role, UniqueFd socket, bool agreed,
           TimePoint deadline, Wire::Accepted opened);
  // Waits for the thread. REQUIRES, to be soon: finished(), or the end is destroyed and Stop.
  ~NcclPair();

  // Gives up opening; nothing when it has been opened.
  void Stop() EXCLUDES(mutex_);
  // The thread does nothing any more.
  bool finished() const { return finished_.load(); }

 private:
  void Run() EXCLUDES(mutex_);
  // What the connection becomes without NCCL.
  absl::StatusOr<std::unique_ptr<WireEnd>> MakeTcpEnd(const std::string& why) EXCLUDES(mutex_);
  UniqueFd TakeSocket() EXCLUDES(mutex_);

  const NcclPairSetup setup_;
  const PairRole role_;
  const bool agreed_;
  const TimePoint deadline_;
  Wire::Accepted opened_;
  std::atomic<bool> finished_{false};
  Mutex mutex_;
  UniqueFd socket_ GUARDED_BY(mutex_);  // Until the pair is open.
  std::thread thread_;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_NCCL_NCCL_PAIR_H_
