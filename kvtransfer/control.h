// Control messages of a pair as plain structs, and the link that carries them. The daemon carries
// them over gRPC (worker/), tests over memory. proto/baton/worker/v1/transfer.proto mirrors them
// one to one and says who sends what when.
#ifndef BATON_KVTRANSFER_CONTROL_H_
#define BATON_KVTRANSFER_CONTROL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/base/strong_id.h"

namespace baton::kvtransfer {

inline constexpr uint32_t kTransferProtocolVersion = 1;
// Limits of one chunk and of one pair; a peer that exceeds them is cut off.
inline constexpr size_t kChunkRangesMax = 4096;
inline constexpr size_t kChunksAnnouncedMax = 4096;

struct BlockRange {
  uint32_t logical_block = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
};

// P to D.
struct SenderHello {
  uint32_t protocol_version = kTransferProtocolVersion;
  uint64_t sender_instance_id = 0;
  uint64_t receiver_instance_id = 0;
  std::vector<std::string> kv_layouts;  // "name=layout", sorted.
  std::string wire;
};
struct ChunkReady {
  TransferId transfer_id;
  uint64_t sequence_number = 0;
  std::vector<BlockRange> ranges;
  uint64_t total_bytes = 0;
  uint64_t checksum = 0;
};
struct TransferFinal {
  TransferId transfer_id;
  uint64_t num_chunks = 0;
  std::string payload;
};
struct TransferAbort {
  TransferId transfer_id;
  std::string reason;
};

// D to P.
struct ReceiverHello {
  uint32_t protocol_version = kTransferProtocolVersion;
  uint64_t receiver_instance_id = 0;
  std::string refusal;
  std::string wire_address;
  std::string wire_token;
  uint64_t staging_slot_bytes = 0;
};
struct ChunkGo {
  uint64_t sequence_number = 0;
};
struct ChunkDone {
  uint64_t sequence_number = 0;
  uint64_t checksum = 0;
};
struct ChunkDrop {
  uint64_t sequence_number = 0;
};
struct TransferFailed {
  TransferId transfer_id;
  std::string reason;
};
struct LeaseRenew {
  std::vector<TransferId> transfer_ids;
};
struct LeaseRelease {
  TransferId transfer_id;
};

// Both.
struct LinkHeartbeat {
  uint64_t sequence_number = 0;
};

using ControlMessage =
    std::variant<SenderHello, ChunkReady, TransferFinal, TransferAbort, ReceiverHello, ChunkGo,
                 ChunkDone, ChunkDrop, TransferFailed, LeaseRenew, LeaseRelease, LinkHeartbeat>;

// One end of an ordered, reliable message stream. Thread-safe.
class ControlLink {
 public:
  // Called on a thread of the link, one at a time; must not block. OnClosed is the last call.
  struct Handler {
    std::function<void(ControlMessage)> on_message;
    std::function<void(const absl::Status&)> on_closed;
  };

  virtual ~ControlLink() = default;
  // Delivers what has arrived and arrives from now on. Called once, before Send.
  virtual void Start(Handler handler) = 0;
  // Queues; false when closed or when the bounded queue is full (then the link closes itself).
  virtual bool Send(ControlMessage message) = 0;
  // Idempotent; on_closed follows if it has not come yet.
  virtual void Close(const absl::Status& reason) = 0;
};

// Opens links to D's transfer service. Thread-safe; Dial returns at once, connecting goes on behind
// it and a failure arrives as on_closed.
class ControlDialer {
 public:
  virtual ~ControlDialer() = default;
  virtual std::shared_ptr<ControlLink> Dial(const std::string& control_address) = 0;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_CONTROL_H_
