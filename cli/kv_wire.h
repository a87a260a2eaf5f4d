// The wire that a worker of a cluster hands KV over, as the flags say.
#ifndef BATON_CLI_KV_WIRE_H_
#define BATON_CLI_KV_WIRE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "device/device.h"
#include "kvtransfer/wire.h"

namespace CLI {
class App;
}  // namespace CLI

namespace baton::cli {

struct KvWireFlags {
  std::string wire = "auto";
  std::string listen = "127.0.0.1:0";
  int nccl_ctas = 16;
  int nccl_pairs = 4;
};

void AddKvWireFlags(CLI::App& command, KvWireFlags& flags);

struct KvWire {
  std::unique_ptr<kvtransfer::Wire> wire;
  std::string address;  // Where KV arrives; empty for a worker that only connects.
};

// `listens`: a decode worker. "auto" takes NCCL when the device is a GPU and the plug-in can use
// it, and TCP otherwise (a warning says why, if it is a GPU). Call it before the models are loaded:
// they take what memory is left. `device` must outlive the wire. ERRORS: InvalidArgument naming the
// flag or what is wrong with it; FailedPrecondition, NotFound, ResourceExhausted: nccl was asked
// for and cannot be had, and why.
absl::StatusOr<KvWire> MakeKvWire(const KvWireFlags& flags, const std::string& advertise,
                                  bool listens, Device& device);

}  // namespace baton::cli

#endif  // BATON_CLI_KV_WIRE_H_
