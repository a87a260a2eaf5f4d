// `baton serve`: all roles in one process. The router and its workers talk as in a cluster, over
// in-process channels; with --split KV goes from P to D over the local wire.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/daemon.h"
#include "cli/exit_codes.h"
#include "cli/router_flags.h"
#include "cli/worker_flags.h"
#include "common/base/status_macros.h"
#include "common/rpc/in_process_server.h"
#include "common/rpc/ready_line.h"
#include "decode_worker/decode_worker.h"
#include "kvtransfer/local/local_wire.h"
#include "prefill_worker/prefill_worker.h"
#include "worker/model_host.h"
#include "worker/transfer_link.h"

namespace baton::cli {
namespace {

struct ServeFlags {
  DaemonFlags daemon;
  RouterFlags router;
  WorkerFlags worker;
  bool split = false;
};

constexpr Duration kServerGrace = std::chrono::seconds(1);
// Labels of workers that have no address.
constexpr char kCombined[] = "in-process/combined";
constexpr char kPrefill[] = "in-process/prefill";
constexpr char kDecode[] = "in-process/decode";

// A worker and the server without a socket that its router session goes through.
template <typename Worker>
class InProcessWorker {
 public:
  InProcessWorker(std::unique_ptr<Worker> worker, std::vector<grpc::Service*> services,
                  const char* label)
      : worker_(std::move(worker)) {
    worker_->process().session_service().set_addresses(label, label);
    server_ = std::make_unique<rpc::InProcessServer>(services);
  }
  ~InProcessWorker() {
    worker_->process().CloseSessions();
    server_->Shutdown(kServerGrace);
  }
  std::shared_ptr<grpc::Channel> Channel() { return server_->Channel(); }

 private:
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<rpc::InProcessServer> server_;
};

absl::Status ServeRouter(const ServeFlags& flags, StopSignal& stop, ProcessMetricsPage& metrics,
                         std::vector<router::WorkerEndpoint> workers) {
  ASSIGN_OR_RETURN(auto front, RouterFront::Start(flags.router, std::move(workers),
                                                  flags.daemon.listen, metrics.registry()));
  rpc::PrintReadyLine("serve", {{"listen", front->address()}, {"metrics", metrics.address()}});
  const absl::Status failure = stop.Wait();
  front->Drain(Grace(flags.daemon));
  return failure;
}

absl::Status ServeCombined(const ServeFlags& flags, worker::WorkerOptions options, StopSignal& stop,
                           ProcessMetricsPage& metrics) {
  ASSIGN_OR_RETURN(auto device, MakeWorkerDevice(flags.worker, options));
  ASSIGN_OR_RETURN(auto host, worker::ModelHost::Load(options, *device));
  auto made =
      std::make_unique<decode_worker::DecodeWorker>(*host, options, nullptr, metrics.registry());
  grpc::Service* service = &made->process().session_service();
  InProcessWorker<decode_worker::DecodeWorker> worker(std::move(made), {service}, kCombined);
  return ServeRouter(flags, stop, metrics, {{kCombined, worker.Channel()}});
}

absl::Status ServeSplit(const ServeFlags& flags, worker::WorkerOptions options, StopSignal& stop,
                        ProcessMetricsPage& metrics) {
  // One device for both: the same cores, one step at a time.
  ASSIGN_OR_RETURN(auto device, MakeWorkerDevice(flags.worker, options));
  ASSIGN_OR_RETURN(auto prefill_host, worker::ModelHost::Load(options, *device, 1));
  ASSIGN_OR_RETURN(auto decode_host, worker::ModelHost::Load(options, *device));
  auto wire = kvtransfer::MakeLocalWire();
  worker::GrpcControlDialer dialer;
  absl::Status status;
  {
    auto decode = std::make_unique<decode_worker::DecodeWorker>(*decode_host, options, wire.get(),
                                                                metrics.registry());
    auto prefill = std::make_unique<prefill_worker::PrefillWorker>(
        *prefill_host, options, wire.get(), &dialer, metrics.registry());
    std::vector<grpc::Service*> decode_services = {&decode->process().session_service(),
                                                   decode->transfer_service()};
    std::vector<grpc::Service*> prefill_services = {&prefill->process().session_service()};
    InProcessWorker<decode_worker::DecodeWorker> d(std::move(decode), decode_services, kDecode);
    InProcessWorker<prefill_worker::PrefillWorker> p(std::move(prefill), prefill_services,
                                                     kPrefill);
    dialer.AddInProcess(kDecode, d.Channel());
    status = ServeRouter(flags, stop, metrics, {{kPrefill, p.Channel()}, {kDecode, d.Channel()}});
  }
  wire->Shutdown();
  return status;
}

absl::Status RunServe(const ServeFlags& flags) {
  RETURN_IF_ERROR(ApplyLogLevel(flags.daemon));
  StopSignal stop;
  ASSIGN_OR_RETURN(worker::WorkerOptions options, MakeWorkerOptions(flags.worker));
  options.on_broken = [&stop](const absl::Status& status) { stop.Fail(status); };
  ASSIGN_OR_RETURN(auto metrics, ProcessMetricsPage::Start(flags.daemon.metrics));
  return flags.split ? ServeSplit(flags, options, stop, *metrics)
                     : ServeCombined(flags, options, stop, *metrics);
}

}  // namespace

void AddServeCommand(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* command = app.add_subcommand("serve", "Serve models from one process: the usual way");
  AddDaemonFlags(*command, flags->daemon, "127.0.0.1:8500", "127.0.0.1:9500");
  command->add_flag("--split", flags->split,
                    "Prefill and decode workers side by side instead of one combined worker");
  AddRouterFlags(*command, flags->router);
  AddWorkerFlags(*command, flags->worker);
  command->callback([flags, exit_code] {
    const absl::Status status = RunServe(*flags);
    *exit_code = status.ok() ? kExitOk : StartFailed("serve", status);
  });
}

}  // namespace baton::cli
