#include "decode_worker/decode_worker.h"

#include <utility>

#include "decode_worker/loop/decode_loop_factory.h"

namespace baton::decode_worker {
namespace {

std::unique_ptr<kvtransfer::LinkedTransferReceiver> MakeReceiver(
    const worker::ModelHost& host, const worker::WorkerOptions& options, uint64_t instance_id,
    kvtransfer::Wire* wire) {
  if (wire == nullptr) return nullptr;
  kvtransfer::TransferSetup setup;
  setup.options = options.transfer;
  setup.instance_id = instance_id;
  setup.kv_layouts = host.kv_layouts();
  setup.wire = wire;
  setup.device = &host.device();
  setup.clock = options.clock;
  return kvtransfer::MakeTransferReceiver(std::move(setup));
}

}  // namespace

DecodeWorker::DecodeWorker(const worker::ModelHost& host, const worker::WorkerOptions& options,
                           kvtransfer::Wire* wire, MetricsRegistry& registry)
    : instance_id_(worker::MintInstanceId()),
      transfer_metrics_(registry),
      receiver_(MakeReceiver(host, options, instance_id_, wire)),
      metered_(receiver_.get(), &transfer_metrics_, options.clock) {
  const bool combined = receiver_ == nullptr;
  const auto make_loop = [&](const worker::HostedModel& model, worker::EventSink* sink) {
    DecodeLoopOptions loop;
    loop.loop = worker::MakeLoopOptions(model, options, sink);
    loop.receiver = combined ? nullptr : &metered_;
    return MakeDecodeLoop(loop);
  };
  process_ = std::make_unique<worker::WorkerProcess>(
      host, options, combined ? worker::v1::WORKER_ROLE_COMBINED : worker::v1::WORKER_ROLE_DECODE,
      instance_id_, make_loop, registry);
  if (!combined) {
    transfer_service_ = std::make_unique<worker::TransferService>(
        [this](std::shared_ptr<kvtransfer::ControlLink> link) {
          receiver_->AcceptLink(std::move(link));
        });
  }
}

DecodeWorker::~DecodeWorker() { Stop(); }

void DecodeWorker::Stop() {
  process_->CloseSessions();
  if (receiver_ != nullptr) receiver_->Shutdown();
  process_->StopLoops();
}

}  // namespace baton::decode_worker
