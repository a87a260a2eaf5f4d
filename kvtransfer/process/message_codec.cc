#include "kvtransfer/process/message_codec.h"

#include <cstdint>
#include <cstring>
#include <utility>

namespace baton::kvtransfer {
namespace {

constexpr uint32_t kCountMax = 1 << 20;

// Both archives visit the same fields; one writes them, one reads them.
class Writer {
 public:
  template <typename T>
    requires std::is_integral_v<T>
  void Field(const T& value) {
    for (size_t i = 0; i < sizeof(T); ++i) out_.push_back(static_cast<char>(value >> (8 * i)));
  }
  void Field(const TransferId& id) { Field(id.value); }
  void Field(const std::string& text) {
    Field(static_cast<uint32_t>(text.size()));
    out_ += text;
  }
  void Field(const BlockRange& range) {
    Field(range.logical_block);
    Field(range.offset);
    Field(range.length);
  }
  template <typename T>
  void Field(const std::vector<T>& items) {
    Field(static_cast<uint32_t>(items.size()));
    for (const T& item : items) Field(item);
  }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

class Reader {
 public:
  explicit Reader(absl::string_view in) : in_(in) {}

  template <typename T>
    requires std::is_integral_v<T>
  void Field(T& value) {
    if (in_.size() < sizeof(T)) {
      ok_ = false;
      return;
    }
    value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      value = static_cast<T>(value | static_cast<T>(static_cast<uint8_t>(in_[i])) << (8 * i));
    }
    in_.remove_prefix(sizeof(T));
  }
  void Field(TransferId& id) { Field(id.value); }
  void Field(std::string& text) {
    uint32_t size = 0;
    Field(size);
    if (size > in_.size()) ok_ = false;
    if (!ok_) return;
    text = std::string(in_.substr(0, size));
    in_.remove_prefix(size);
  }
  void Field(BlockRange& range) {
    Field(range.logical_block);
    Field(range.offset);
    Field(range.length);
  }
  template <typename T>
  void Field(std::vector<T>& items) {
    uint32_t count = 0;
    Field(count);
    if (count > kCountMax) ok_ = false;
    for (uint32_t i = 0; i < count && ok_; ++i) {
      items.emplace_back();
      Field(items.back());
    }
  }
  bool Complete() const { return ok_ && in_.empty(); }

 private:
  absl::string_view in_;
  bool ok_ = true;
};

template <typename Archive, typename... Fields>
void All(Archive& archive, Fields&... fields) {
  (archive.Field(fields), ...);
}

// One overload a message. `M` is const when writing.
template <typename A>
struct Visit {
  A& a;
  void operator()(auto& m) const {
    using T = std::remove_cvref_t<decltype(m)>;
    if constexpr (std::is_same_v<T, SenderHello>) {
      All(a, m.protocol_version, m.sender_instance_id, m.receiver_instance_id, m.kv_layouts,
          m.wire);
    } else if constexpr (std::is_same_v<T, ChunkReady>) {
      All(a, m.transfer_id, m.sequence_number, m.ranges, m.total_bytes, m.checksum);
    } else if constexpr (std::is_same_v<T, TransferFinal>) {
      All(a, m.transfer_id, m.num_chunks, m.payload);
    } else if constexpr (std::is_same_v<T, ReceiverHello>) {
      All(a, m.protocol_version, m.receiver_instance_id, m.refusal, m.wire_address, m.wire_token,
          m.staging_slot_bytes);
    } else if constexpr (std::is_same_v<T, ChunkDone>) {
      All(a, m.sequence_number, m.checksum);
    } else if constexpr (std::is_same_v<T, TransferAbort> || std::is_same_v<T, TransferFailed>) {
      All(a, m.transfer_id, m.reason);
    } else if constexpr (std::is_same_v<T, LeaseRenew>) {
      All(a, m.transfer_ids);
    } else if constexpr (std::is_same_v<T, LeaseRelease>) {
      All(a, m.transfer_id);
    } else {  // ChunkGo, ChunkDrop, LinkHeartbeat.
      All(a, m.sequence_number);
    }
  }
};

template <size_t I = 0>
ControlMessage MakeKind(size_t kind) {
  if constexpr (I < std::variant_size_v<ControlMessage>) {
    if (kind == I) return ControlMessage(std::in_place_index<I>);
    return MakeKind<I + 1>(kind);
  } else {
    return LinkHeartbeat{};
  }
}

}  // namespace

std::string EncodeControlMessage(const ControlMessage& message) {
  Writer writer;
  writer.Field(static_cast<uint8_t>(message.index()));
  std::visit(Visit<Writer>{writer}, message);
  return writer.Take();
}

std::optional<ControlMessage> DecodeControlMessage(absl::string_view bytes) {
  if (bytes.empty()) return std::nullopt;
  const size_t kind = static_cast<uint8_t>(bytes[0]);
  if (kind >= std::variant_size_v<ControlMessage>) return std::nullopt;
  ControlMessage message = MakeKind(kind);
  Reader reader(bytes.substr(1));
  std::visit(Visit<Reader>{reader}, message);
  if (!reader.Complete()) return std::nullopt;
  return message;
}

}  // namespace baton::kvtransfer
