#include "cli/kv_wire.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/host_port.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "kvtransfer/nccl/nccl_plugin.h"
#include "kvtransfer/nccl/nccl_wire.h"
#include "kvtransfer/tcp/tcp_wire.h"

namespace baton::cli {
namespace {

kvtransfer::TcpWireOptions TcpOptions(const KvWireFlags& flags, const std::string& advertise) {
  kvtransfer::TcpWireOptions options;
  options.listen_address = flags.listen;
  if (!advertise.empty()) options.advertise_address = HostPort{advertise, 0}.ToString();
  return options;
}

absl::StatusOr<KvWire> MakeTcp(const KvWireFlags& flags, const std::string& advertise,
                               bool listens) {
  if (!listens) return KvWire{kvtransfer::MakeTcpConnector(), ""};
  auto wire = kvtransfer::MakeTcpWire(TcpOptions(flags, advertise));
  if (!wire.ok()) return Annotate(wire.status(), "--kv-listen");
  std::string address = (*wire)->address();
  return KvWire{*std::move(wire), std::move(address)};
}

absl::StatusOr<KvWire> MakeNccl(const KvWireFlags& flags, const std::string& advertise,
                                bool listens, Device& device) {
  absl::string_view number = device.name();
  int ordinal = 0;
  if (!absl::ConsumePrefix(&number, "cuda:") || !absl::SimpleAtoi(number, &ordinal)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the device is ", device.name(), ", and NCCL needs a GPU"));
  }
  ASSIGN_OR_RETURN(const kvtransfer::NcclPlugin* plugin, kvtransfer::LoadNcclPlugin());
  ASSIGN_OR_RETURN(auto communicators,
                   plugin->create({.ordinal = ordinal, .log_level = CurrentLogLevel()}));
  kvtransfer::NcclWireOptions options;
  options.tcp = TcpOptions(flags, advertise);
  options.listens = listens;
  options.fall_back = flags.wire == "auto";
  options.num_ctas = flags.nccl_ctas;
  options.communicators_max = flags.nccl_pairs;
  ASSIGN_OR_RETURN(auto wire, kvtransfer::MakeNcclWire(options, std::move(communicators), &device));
  std::string address = wire->address();
  return KvWire{std::move(wire), std::move(address)};
}

}  // namespace

void AddKvWireFlags(CLI::App& command, KvWireFlags& flags) {
  command.add_option(
      "--kv-wire", flags.wire,
      "auto, tcp or nccl; auto: NCCL between two GPUs when both sides can, else TCP");
  command.add_option("--kv-listen", flags.listen,
                     "Address where KV arrives, HOST:PORT; a prefill worker only connects");
  command
      .add_option(
          "--kv-nccl-ctas", flags.nccl_ctas,
          "Thread blocks that move KV for one peer over NCCL: more are faster and take more "
          "memory (16: 276 MiB a peer)")
      ->check(CLI::Range(1, 64));
  command
      .add_option("--kv-nccl-pairs", flags.nccl_pairs,
                  "Peers over NCCL at a time, whose memory is set aside; more go over TCP")
      ->check(CLI::Range(1, 128));
}

absl::StatusOr<KvWire> MakeKvWire(const KvWireFlags& flags, const std::string& advertise,
                                  bool listens, Device& device) {
  if (flags.wire == "tcp") return MakeTcp(flags, advertise, listens);
  if (flags.wire != "auto" && flags.wire != "nccl") {
    return absl::InvalidArgumentError(
        absl::StrCat("--kv-wire: '", absl::CHexEscape(flags.wire), "' is none of auto, tcp, nccl"));
  }
  absl::StatusOr<KvWire> wire = MakeNccl(flags, advertise, listens, device);
  if (wire.ok()) return wire;
  if (flags.wire == "nccl" || absl::IsInvalidArgument(wire.status())) {
    return Annotate(wire.status(), absl::StrCat("--kv-wire ", flags.wire));
  }
  // Without a GPU there is nothing to miss.
  if (device.name() != "cpu") {
    LogWarning("KV goes over TCP, not NCCL", {{"why", wire.status().ToString()}});
  }
  return MakeTcp(flags, advertise, listens);
}

}  // namespace baton::cli
