// The control side of the KV hand-over over gRPC: kvtransfer's ControlLink and ControlDialer on top
// of TransferService (proto/baton/worker/v1/transfer.proto).
//
// Thread rule: thread-safe.
#ifndef BATON_WORKER_TRANSFER_LINK_H_
#define BATON_WORKER_TRANSFER_LINK_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "baton/worker/v1/transfer.grpc.pb.h"
#include "common/base/mutex.h"
#include "kvtransfer/control.h"

namespace baton::worker {

// Frames queued towards a peer before the link counts as stuck and closes.
inline constexpr size_t kControlFramesMax = 4096;

// Message by message. ERRORS of the two readers: InvalidArgument for an unknown frame.
v1::ControlRequest ToControlRequest(const kvtransfer::ControlMessage& message);
v1::ControlResponse ToControlResponse(const kvtransfer::ControlMessage& message);
absl::StatusOr<kvtransfer::ControlMessage> FromProto(v1::ControlRequest request);
absl::StatusOr<kvtransfer::ControlMessage> FromProto(v1::ControlResponse response);

// D's side: hands every incoming link to `accept` (TransferReceiver).
class TransferService final : public v1::TransferService::CallbackService {
 public:
  using AcceptFn = std::function<void(std::shared_ptr<kvtransfer::ControlLink>)>;
  explicit TransferService(AcceptFn accept) : accept_(std::move(accept)) {}

  grpc::ServerBidiReactor<v1::ControlRequest, v1::ControlResponse>* Control(
      grpc::CallbackServerContext* context) override;

 private:
  const AcceptFn accept_;
};

// P's side. Channels are kept per address. `in_process` maps addresses of workers in this process
// to channels that need no network (`serve --split`).
class GrpcControlDialer final : public kvtransfer::ControlDialer {
 public:
  std::shared_ptr<kvtransfer::ControlLink> Dial(const std::string& control_address) override;
  void AddInProcess(const std::string& address, std::shared_ptr<grpc::Channel> channel);

 private:
  std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address);

  Mutex mutex_;
  // Bounded by kChannelsMax: addresses come from routers.
  absl::flat_hash_map<std::string, std::shared_ptr<grpc::Channel>> channels_ GUARDED_BY(mutex_);
};

}  // namespace baton::worker

#endif  // BATON_WORKER_TRANSFER_LINK_H_
