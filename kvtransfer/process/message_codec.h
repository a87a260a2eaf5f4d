// Control messages as bytes, for tests between processes that start no gRPC. Little-endian; one
// byte for the kind, then the fields in order; strings and lists with a u32 count. Pure functions.
#ifndef BATON_KVTRANSFER_PROCESS_MESSAGE_CODEC_H_
#define BATON_KVTRANSFER_PROCESS_MESSAGE_CODEC_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "kvtransfer/control.h"

namespace baton::kvtransfer {

std::string EncodeControlMessage(const ControlMessage& message);
// nullopt: not a message.
std::optional<ControlMessage> DecodeControlMessage(absl::string_view bytes);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_PROCESS_MESSAGE_CODEC_H_
