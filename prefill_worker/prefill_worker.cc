#include "prefill_worker/prefill_worker.h"

#include <utility>

#include "kvtransfer/transfer_sender.h"
#include "prefill_worker/loop/prefill_loop_factory.h"

namespace baton::prefill_worker {
namespace {

std::unique_ptr<kvtransfer::TransferSender> MakeSender(const worker::ModelHost& host,
                                                       const worker::WorkerOptions& options,
                                                       uint64_t instance_id, kvtransfer::Wire* wire,
                                                       kvtransfer::ControlDialer* dialer) {
  kvtransfer::TransferSetup setup;
  setup.options = options.transfer;
  setup.instance_id = instance_id;
  setup.kv_layouts = host.kv_layouts();
  setup.wire = wire;
  setup.device = &host.device();
  setup.clock = options.clock;
  return kvtransfer::MakeTransferSender(std::move(setup), dialer);
}

}  // namespace

PrefillWorker::PrefillWorker(const worker::ModelHost& host, const worker::WorkerOptions& options,
                             kvtransfer::Wire* wire, kvtransfer::ControlDialer* dialer,
                             MetricsRegistry& registry)
    : instance_id_(worker::MintInstanceId()),
      transfer_metrics_(registry),
      sender_(MakeSender(host, options, instance_id_, wire, dialer)),
      metered_(sender_.get(), &transfer_metrics_, options.clock) {
  const auto make_loop = [&](const worker::HostedModel& model, worker::EventSink* sink) {
    PrefillLoopOptions loop;
    loop.loop = worker::MakeLoopOptions(model, options, sink);
    loop.sender = &metered_;
    return MakePrefillLoop(loop);
  };
  process_ = std::make_unique<worker::WorkerProcess>(host, options, worker::v1::WORKER_ROLE_PREFILL,
                                                     instance_id_, make_loop, registry);
}

PrefillWorker::~PrefillWorker() { Stop(); }

void PrefillWorker::Stop() {
  process_->CloseSessions();
  sender_->Shutdown();
  process_->StopLoops();
}

}  // namespace baton::prefill_worker
