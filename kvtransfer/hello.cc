#include "kvtransfer/hello.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace baton::kvtransfer {

std::vector<std::string> EncodeKvLayouts(const KvLayouts& layouts) {
  std::vector<std::string> encoded;
  encoded.reserve(layouts.size());
  for (const auto& [name, layout] : layouts) encoded.push_back(absl::StrCat(name, "=", layout));
  return encoded;
}

absl::StatusOr<KvLayouts> DecodeKvLayouts(const std::vector<std::string>& encoded) {
  if (encoded.size() > kHelloModelsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_layouts: ", encoded.size(), " entries, at most ", kHelloModelsMax));
  }
  KvLayouts layouts;
  for (const std::string& entry : encoded) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos || entry.size() > kHelloLayoutBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          "kv_layouts: an entry is not 'name=layout' of at most ", kHelloLayoutBytesMax, " bytes"));
    }
    if (!layouts.try_emplace(entry.substr(0, equals), entry.substr(equals + 1)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("kv_layouts: model '", entry.substr(0, equals), "' is named twice"));
    }
  }
  return layouts;
}

bool WiresFit(absl::string_view a, absl::string_view b) {
  const auto flexible = [](absl::string_view name) {
    return name == "auto" || name == "tcp" || name == "nccl";
  };
  return a == b || (a == "auto" && flexible(b)) || (b == "auto" && flexible(a));
}

absl::Status CheckSenderHello(const SenderHello& hello, uint64_t own_instance_id,
                              absl::string_view own_wire, const KvLayouts& own_layouts) {
  if (hello.protocol_version != kTransferProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "transfer protocol version ", hello.protocol_version, " of the prefill worker, ",
        kTransferProtocolVersion, " of the decode worker"));
  }
  if (hello.receiver_instance_id != own_instance_id) {
    return absl::FailedPreconditionError(
        absl::StrCat("instance ", hello.receiver_instance_id, " is meant, but this is instance ",
                     own_instance_id, " (the decode worker was restarted)"));
  }
  if (!WiresFit(hello.wire, own_wire)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "wire '", hello.wire, "' of the prefill worker, '", own_wire, "' of the decode worker"));
  }
  ASSIGN_OR_RETURN(const KvLayouts layouts, DecodeKvLayouts(hello.kv_layouts));
  bool common = false;
  for (const auto& [name, layout] : layouts) {
    auto own = own_layouts.find(name);
    if (own == own_layouts.end()) continue;
    common = true;
    if (own->second != layout) {
      return absl::FailedPreconditionError(absl::StrCat("model '", name, "': KV layout '", layout,
                                                        "' of the prefill worker, '", own->second,
                                                        "' of the decode worker"));
    }
  }
  if (!common) {
    return absl::FailedPreconditionError(
        "the prefill worker and the decode worker have no model in common");
  }
  return absl::OkStatus();
}

absl::Status CheckReceiverHello(const ReceiverHello& hello, uint64_t expected_instance_id) {
  if (!hello.refusal.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("refused by the decode worker: ", hello.refusal));
  }
  if (hello.protocol_version != kTransferProtocolVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("transfer protocol version ", kTransferProtocolVersion,
                     " of the prefill worker, ", hello.protocol_version, " of the decode worker"));
  }
  if (hello.receiver_instance_id != expected_instance_id) {
    return absl::FailedPreconditionError(absl::StrCat("instance ", expected_instance_id,
                                                      " is meant, but instance ",
                                                      hello.receiver_instance_id, " answered"));
  }
  if (hello.staging_slot_bytes == 0) {
    return absl::InvalidArgumentError("the decode worker offers staging slots of 0 bytes");
  }
  return absl::OkStatus();
}

}  // namespace baton::kvtransfer
