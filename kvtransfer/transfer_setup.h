// What a sender or a receiver is made from.
#ifndef BATON_KVTRANSFER_TRANSFER_SETUP_H_
#define BATON_KVTRANSFER_TRANSFER_SETUP_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "device/device.h"
#include "kvtransfer/transfer.h"
#include "kvtransfer/wire.h"

namespace baton::kvtransfer {

// Running totals and levels for metrics. Written by the sender or receiver, read by anybody.
struct TransferCounters {
  std::atomic<uint64_t> bytes{0};  // Of chunks that were DONE.
  std::atomic<uint64_t> chunks{0};
  std::atomic<uint64_t> delivered{0};  // P: OnDelivered; D: OnReceived.
  std::atomic<uint64_t> failed{0};     // OnFailed.
  std::atomic<uint64_t> cancelled{0};
  std::atomic<uint64_t> pairs_opened{0};
  std::atomic<uint64_t> pairs_failed{0};
  // Levels.
  std::atomic<uint64_t> transfers{0};  // Begun or expected and not quiescent yet.
  std::atomic<uint64_t> leases{0};     // P only.
  std::atomic<uint64_t> pairs{0};      // Those in quarantine included.
  std::atomic<uint64_t> staging_slots_free{0};
  std::atomic<uint64_t> staging_slots_quarantined{0};
};

struct TransferSetup {
  TransferOptions options;
  // Of this process; minted at start, so that a restarted worker is not taken for the old one.
  uint64_t instance_id = 0;
  // Model name -> layout fingerprint of its KV pool. Fixed: a worker that loads another model makes
  // a new sender. Names must not contain '='.
  std::map<std::string, std::string> kv_layouts;
  // Must outlive the sender or receiver; its Shutdown comes after theirs.
  Wire* wire = nullptr;
  // Whose memory the ranges of Push and Expect lie in; must outlive the sender or receiver. Null:
  // the host's.
  Device* device = nullptr;
  const Clock* clock = Clock::Real();
  // Called when a wire end is not quiescent quiescence_limit after its abort; gets the reason. The
  // default logs and ends the process with kUnquiescentExitCode: memory that somebody may still
  // write is never used again. May return in tests only.
  std::function<void(const std::string& reason)> on_unquiescent;
  // Optional.
  std::shared_ptr<TransferCounters> counters;
};

inline constexpr int kUnquiescentExitCode = 71;

// Checks what is a programmer's duty and fills in the default handler.
TransferSetup CompleteSetup(TransferSetup setup);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_TRANSFER_SETUP_H_
