// First contact of a pair: who means whom, and whether both sides lay out KV alike. Pure functions.
#ifndef BATON_KVTRANSFER_HELLO_H_
#define BATON_KVTRANSFER_HELLO_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kvtransfer/control.h"

namespace baton::kvtransfer {

using KvLayouts = std::map<std::string, std::string>;  // Model name -> layout fingerprint.

// Models that one hello may name, and bytes of one "name=layout".
inline constexpr size_t kHelloModelsMax = 1024;
inline constexpr size_t kHelloLayoutBytesMax = 4096;

// "name=layout", sorted.
std::vector<std::string> EncodeKvLayouts(const KvLayouts& layouts);
// ERRORS: InvalidArgument: no '=', a name twice, more or longer entries than the limits.
absl::StatusOr<KvLayouts> DecodeKvLayouts(const std::vector<std::string>& encoded);

// Whether two ends of wires of these names can meet: equal names, or "auto" with "tcp" or "nccl",
// which agree when they connect on what both can do.
bool WiresFit(absl::string_view a, absl::string_view b);

// D judges P. ERRORS: FailedPrecondition naming both sides' values: protocol version, instance id,
// wire, the layout of a model that both have, or no model in common; InvalidArgument: malformed.
absl::Status CheckSenderHello(const SenderHello& hello, uint64_t own_instance_id,
                              absl::string_view own_wire, const KvLayouts& own_layouts);
// P judges D's answer. ERRORS: FailedPrecondition: a refusal, another protocol version or instance;
// InvalidArgument: no staging.
absl::Status CheckReceiverHello(const ReceiverHello& hello, uint64_t expected_instance_id);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_HELLO_H_
