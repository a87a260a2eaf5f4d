// `baton prefill-worker` and `baton decode-worker`: one role of a cluster.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/daemon.h"
#include "cli/exit_codes.h"
#include "cli/kv_wire.h"
#include "cli/worker_flags.h"
#include "common/base/host_port.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/rpc/ready_line.h"
#include "common/rpc/server.h"
#include "decode_worker/decode_worker.h"
#include "prefill_worker/prefill_worker.h"
#include "worker/model_host.h"
#include "worker/transfer_link.h"

namespace baton::cli {
namespace {

struct WorkerCommandFlags {
  DaemonFlags daemon;
  WorkerFlags worker;
  KvWireFlags kv;
  std::string advertise;
};

// After the loops are idle, sessions have been closed; what is left needs only a moment.
constexpr Duration kServerGrace = std::chrono::seconds(1);

// The address under which others reach what listens at `listening`.
std::string Advertised(const WorkerCommandFlags& flags, const HostPort& listening) {
  HostPort out = listening;
  if (!flags.advertise.empty()) out.host = flags.advertise;
  return out.ToString();
}

// From a loaded worker to its exit: serve until a signal, drain, stop.
absl::Status Serve(const WorkerCommandFlags& flags, const char* role, StopSignal& stop,
                   worker::WorkerProcess& process, std::vector<grpc::Service*> services,
                   std::vector<std::string> names, rpc::ReadyFields fields) {
  ASSIGN_OR_RETURN(const HostPort wanted, ParseHostPort(flags.daemon.listen, true));
  // Before the first session may come; with port 0 nobody can know the address before it is
  // printed.
  process.session_service().set_addresses(Advertised(flags, wanted), Advertised(flags, wanted));
  rpc::RpcServerOptions options;
  options.listen = flags.daemon.listen;
  ASSIGN_OR_RETURN(std::unique_ptr<rpc::RpcServer> server,
                   rpc::RpcServer::Start(options, services, names));
  const std::string address = Advertised(flags, server->address());
  process.session_service().set_addresses(address, address);
  server->SetReady(true);
  fields.insert(fields.begin(), {"listen", server->address().ToString()});
  rpc::PrintReadyLine(role, fields);
  // A worker whose device is lost cannot recover; whoever started it starts a fresh one.
  const absl::Status failure = stop.Wait();
  server->SetReady(false);
  process.BeginDrain();
  if (!process.WaitIdle(Grace(flags.daemon))) {
    LogWarning("grace is over, what still runs is ended",
               {{"seconds", flags.daemon.grace_seconds}});
  }
  process.CloseSessions();
  server->Shutdown(kServerGrace);
  return failure;
}

absl::Status RunPrefillWorker(const WorkerCommandFlags& flags) {
  RETURN_IF_ERROR(ApplyLogLevel(flags.daemon));
  StopSignal stop;
  ASSIGN_OR_RETURN(worker::WorkerOptions options, MakeWorkerOptions(flags.worker));
  options.on_broken = [&stop](const absl::Status& status) { stop.Fail(status); };
  ASSIGN_OR_RETURN(auto metrics, ProcessMetricsPage::Start(flags.daemon.metrics));
  ASSIGN_OR_RETURN(auto device, MakeWorkerDevice(flags.worker, options));
  ASSIGN_OR_RETURN(const KvWire kv,
                   MakeKvWire(flags.kv, flags.advertise, /*listens=*/false, *device));
  ResolvePromptStep(flags.worker, *device, options);
  ResolveStagingSlot(flags.worker, *kv.wire, options);
  ASSIGN_OR_RETURN(auto host, worker::ModelHost::Load(options, *device));
  worker::GrpcControlDialer dialer;
  absl::Status status;
  {
    prefill_worker::PrefillWorker worker(*host, options, kv.wire.get(), &dialer,
                                         metrics->registry());
    status = Serve(flags, "prefill", stop, worker.process(), {&worker.process().session_service()},
                   {"baton.worker.v1.WorkerService"}, {{"metrics", metrics->address()}});
  }
  kv.wire->Shutdown();
  return status;
}

absl::Status RunDecodeWorker(const WorkerCommandFlags& flags) {
  RETURN_IF_ERROR(ApplyLogLevel(flags.daemon));
  StopSignal stop;
  ASSIGN_OR_RETURN(worker::WorkerOptions options, MakeWorkerOptions(flags.worker));
  options.on_broken = [&stop](const absl::Status& status) { stop.Fail(status); };
  ASSIGN_OR_RETURN(auto metrics, ProcessMetricsPage::Start(flags.daemon.metrics));
  ASSIGN_OR_RETURN(auto device, MakeWorkerDevice(flags.worker, options));
  ASSIGN_OR_RETURN(const KvWire kv,
                   MakeKvWire(flags.kv, flags.advertise, /*listens=*/true, *device));
  ResolveStagingSlot(flags.worker, *kv.wire, options);
  ASSIGN_OR_RETURN(auto host, worker::ModelHost::Load(options, *device));
  absl::Status status;
  {
    decode_worker::DecodeWorker worker(*host, options, kv.wire.get(), metrics->registry());
    status = Serve(flags, "decode", stop, worker.process(),
                   {&worker.process().session_service(), worker.transfer_service()},
                   {"baton.worker.v1.WorkerService", "baton.worker.v1.TransferService"},
                   {{"metrics", metrics->address()}, {"kv", kv.address}});
  }
  kv.wire->Shutdown();
  return status;
}

void AddWorkerCommand(CLI::App& app, int* exit_code, const char* name, const char* description,
                      const char* listen, const char* metrics,
                      absl::Status (*run)(const WorkerCommandFlags&)) {
  auto flags = std::make_shared<WorkerCommandFlags>();
  CLI::App* command = app.add_subcommand(name, description);
  AddDaemonFlags(*command, flags->daemon, listen, metrics);
  AddKvWireFlags(*command, flags->kv);
  command->add_option("--advertise", flags->advertise,
                      "Host under which other machines reach this one; empty: the one listened on");
  AddWorkerFlags(*command, flags->worker);
  command->callback([flags, exit_code, name, run] {
    const absl::Status status = run(*flags);
    *exit_code = status.ok() ? kExitOk : StartFailed(name, status);
  });
}

}  // namespace

void AddPrefillWorkerCommand(CLI::App& app, int* exit_code) {
  AddWorkerCommand(app, exit_code, "prefill-worker", "Compute prompts and hand their KV over",
                   "127.0.0.1:8501", "127.0.0.1:9501", RunPrefillWorker);
}

void AddDecodeWorkerCommand(CLI::App& app, int* exit_code) {
  AddWorkerCommand(app, exit_code, "decode-worker",
                   "Generate from KV that prefill workers hand over", "127.0.0.1:8502",
                   "127.0.0.1:9502", RunDecodeWorker);
}

}  // namespace baton::cli
