#include "worker/transfer_link.h"

#include <utility>
#include <variant>

#include "common/rpc/message_stream.h"

namespace baton::worker {
namespace {

namespace kvt = kvtransfer;

constexpr size_t kChannelsMax = 256;

using ServerStream = rpc::ServerMessageStream<v1::ControlRequest, v1::ControlResponse>;
using ClientStream = rpc::ClientMessageStream<v1::ControlRequest, v1::ControlResponse>;

template <typename... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <typename... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

// A message that peers could not have meant closes the link: the pair is rebuilt.
template <typename Stream, typename Proto>
rpc::MessageHandler<Proto> MakeHandler(kvt::ControlLink::Handler handler,
                                       std::weak_ptr<Stream> stream) {
  return {.on_message =
              [on_message = std::move(handler.on_message), stream](Proto proto) {
                absl::StatusOr<kvt::ControlMessage> message = FromProto(std::move(proto));
                if (message.ok()) return on_message(*std::move(message));
                if (auto alive = stream.lock()) alive->Close(message.status());
              },
          .on_closed = std::move(handler.on_closed)};
}

class ServerLink final : public kvt::ControlLink {
 public:
  explicit ServerLink(std::shared_ptr<ServerStream> stream) : stream_(std::move(stream)) {}
  ~ServerLink() override { stream_->Close(absl::CancelledError("link dropped")); }
  void Start(Handler handler) override {
    stream_->Start(MakeHandler<ServerStream, v1::ControlRequest>(std::move(handler), stream_));
  }
  bool Send(kvt::ControlMessage message) override {
    return stream_->Send(ToControlResponse(message));
  }
  void Close(const absl::Status& reason) override {
    // An OK close would wait for a peer that may not read.
    stream_->Close(reason.ok() ? absl::CancelledError("link closed") : reason);
  }

 private:
  const std::shared_ptr<ServerStream> stream_;
};

class ClientLink final : public kvt::ControlLink {
 public:
  explicit ClientLink(std::shared_ptr<grpc::Channel> channel)
      : stub_(v1::TransferService::NewStub(channel)),
        stream_(ClientStream::Create(kControlFramesMax)) {}
  ~ClientLink() override { stream_->Close(absl::CancelledError("link dropped")); }
  void Start(Handler handler) override {
    stream_->Start(
        [this](grpc::ClientContext* context,
               grpc::ClientBidiReactor<v1::ControlRequest, v1::ControlResponse>* reactor) {
          stub_->async()->Control(context, reactor);
        },
        MakeHandler<ClientStream, v1::ControlResponse>(std::move(handler), stream_));
  }
  bool Send(kvt::ControlMessage message) override {
    return stream_->Send(ToControlRequest(message));
  }
  void Close(const absl::Status& reason) override {
    stream_->Close(reason.ok() ? absl::CancelledError("link closed") : reason);
  }

 private:
  const std::unique_ptr<v1::TransferService::Stub> stub_;
  const std::shared_ptr<ClientStream> stream_;
};

}  // namespace

v1::ControlRequest ToControlRequest(const kvt::ControlMessage& message) {
  v1::ControlRequest request;
  std::visit(Overloaded{
                 [&](const kvt::SenderHello& m) {
                   auto& p = *request.mutable_hello();
                   p.set_protocol_version(m.protocol_version);
                   p.set_sender_instance_id(m.sender_instance_id);
                   p.set_receiver_instance_id(m.receiver_instance_id);
                   for (const std::string& layout : m.kv_layouts) p.add_kv_layouts(layout);
                   p.set_wire(m.wire);
                 },
                 [&](const kvt::ChunkReady& m) {
                   auto& p = *request.mutable_ready();
                   p.set_transfer_id(m.transfer_id.value);
                   p.set_sequence_number(m.sequence_number);
                   for (const kvt::BlockRange& range : m.ranges) {
                     auto& r = *p.add_ranges();
                     r.set_logical_block(range.logical_block);
                     r.set_offset(range.offset);
                     r.set_length(range.length);
                   }
                   p.set_total_bytes(m.total_bytes);
                   p.set_checksum(m.checksum);
                 },
                 [&](const kvt::TransferFinal& m) {
                   auto& p = *request.mutable_final();
                   p.set_transfer_id(m.transfer_id.value);
                   p.set_num_chunks(m.num_chunks);
                   p.set_payload(m.payload);
                 },
                 [&](const kvt::TransferAbort& m) {
                   request.mutable_abort()->set_transfer_id(m.transfer_id.value);
                   request.mutable_abort()->set_reason(m.reason);
                 },
                 [&](const kvt::LinkHeartbeat& m) {
                   request.mutable_heartbeat()->set_sequence_number(m.sequence_number);
                 },
                 // D's messages: P never sends them; an empty frame makes the peer close the link.
                 [](const auto&) {},
             },
             message);
  return request;
}

v1::ControlResponse ToControlResponse(const kvt::ControlMessage& message) {
  v1::ControlResponse response;
  std::visit(Overloaded{
                 [&](const kvt::ReceiverHello& m) {
                   auto& p = *response.mutable_hello();
                   p.set_protocol_version(m.protocol_version);
                   p.set_receiver_instance_id(m.receiver_instance_id);
                   p.set_refusal(m.refusal);
                   p.set_wire_address(m.wire_address);
                   p.set_wire_token(m.wire_token);
                   p.set_staging_slot_bytes(m.staging_slot_bytes);
                 },
                 [&](const kvt::ChunkGo& m) {
                   response.mutable_go()->set_sequence_number(m.sequence_number);
                 },
                 [&](const kvt::ChunkDone& m) {
                   response.mutable_done()->set_sequence_number(m.sequence_number);
                   response.mutable_done()->set_checksum(m.checksum);
                 },
                 [&](const kvt::ChunkDrop& m) {
                   response.mutable_drop()->set_sequence_number(m.sequence_number);
                 },
                 [&](const kvt::TransferFailed& m) {
                   response.mutable_failed()->set_transfer_id(m.transfer_id.value);
                   response.mutable_failed()->set_reason(m.reason);
                 },
                 [&](const kvt::LeaseRenew& m) {
                   for (const TransferId id : m.transfer_ids) {
                     response.mutable_renew()->add_transfer_ids(id.value);
                   }
                 },
                 [&](const kvt::LeaseRelease& m) {
                   response.mutable_release()->set_transfer_id(m.transfer_id.value);
                 },
                 [&](const kvt::LinkHeartbeat& m) {
                   response.mutable_heartbeat()->set_sequence_number(m.sequence_number);
                 },
                 [](const auto&) {},
             },
             message);
  return response;
}

absl::StatusOr<kvt::ControlMessage> FromProto(v1::ControlRequest request) {
  switch (request.frame_case()) {
    case v1::ControlRequest::kHello: {
      auto& p = *request.mutable_hello();
      return kvt::SenderHello{p.protocol_version(),
                              p.sender_instance_id(),
                              p.receiver_instance_id(),
                              {p.kv_layouts().begin(), p.kv_layouts().end()},
                              std::move(*p.mutable_wire())};
    }
    case v1::ControlRequest::kReady: {
      const auto& p = request.ready();
      kvt::ChunkReady ready{
          TransferId(p.transfer_id()), p.sequence_number(), {}, p.total_bytes(), p.checksum()};
      ready.ranges.reserve(p.ranges_size());
      for (const auto& r : p.ranges()) {
        ready.ranges.push_back({r.logical_block(), r.offset(), r.length()});
      }
      return ready;
    }
    case v1::ControlRequest::kFinal: {
      auto& p = *request.mutable_final();
      return kvt::TransferFinal{TransferId(p.transfer_id()), p.num_chunks(),
                                std::move(*p.mutable_payload())};
    }
    case v1::ControlRequest::kAbort:
      return kvt::TransferAbort{TransferId(request.abort().transfer_id()),
                                request.abort().reason()};
    case v1::ControlRequest::kHeartbeat:
      return kvt::LinkHeartbeat{request.heartbeat().sequence_number()};
    case v1::ControlRequest::FRAME_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("transfer control: frame of an unknown kind");
}

absl::StatusOr<kvt::ControlMessage> FromProto(v1::ControlResponse response) {
  switch (response.frame_case()) {
    case v1::ControlResponse::kHello: {
      auto& p = *response.mutable_hello();
      return kvt::ReceiverHello{p.protocol_version(),
                                p.receiver_instance_id(),
                                std::move(*p.mutable_refusal()),
                                std::move(*p.mutable_wire_address()),
                                std::move(*p.mutable_wire_token()),
                                p.staging_slot_bytes()};
    }
    case v1::ControlResponse::kGo:
      return kvt::ChunkGo{response.go().sequence_number()};
    case v1::ControlResponse::kDone:
      return kvt::ChunkDone{response.done().sequence_number(), response.done().checksum()};
    case v1::ControlResponse::kDrop:
      return kvt::ChunkDrop{response.drop().sequence_number()};
    case v1::ControlResponse::kFailed:
      return kvt::TransferFailed{TransferId(response.failed().transfer_id()),
                                 response.failed().reason()};
    case v1::ControlResponse::kRenew: {
      kvt::LeaseRenew renew;
      for (const uint64_t id : response.renew().transfer_ids()) {
        renew.transfer_ids.emplace_back(id);
      }
      return renew;
    }
    case v1::ControlResponse::kRelease:
      return kvt::LeaseRelease{TransferId(response.release().transfer_id())};
    case v1::ControlResponse::kHeartbeat:
      return kvt::LinkHeartbeat{response.heartbeat().sequence_number()};
    case v1::ControlResponse::FRAME_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("transfer control: frame of an unknown kind");
}

grpc::ServerBidiReactor<v1::ControlRequest, v1::ControlResponse>* TransferService::Control(
    grpc::CallbackServerContext* context) {
  auto stream = ServerStream::Create(context, kControlFramesMax);
  accept_(std::make_shared<ServerLink>(stream));
  return stream.get();
}

std::shared_ptr<kvt::ControlLink> GrpcControlDialer::Dial(const std::string& control_address) {
  return std::make_shared<ClientLink>(ChannelTo(control_address));
}

void GrpcControlDialer::AddInProcess(const std::string& address,
                                     std::shared_ptr<grpc::Channel> channel) {
  MutexLock lock(mutex_);
  channels_[address] = std::move(channel);
}

std::shared_ptr<grpc::Channel> GrpcControlDialer::ChannelTo(const std::string& address) {
  MutexLock lock(mutex_);
  const auto it = channels_.find(address);
  if (it != channels_.end()) return it->second;
  grpc::ChannelArguments arguments;
  // Our own retry policy dials again at most a second later; gRPC's back-off would wait two
  // minutes.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  auto channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  if (channels_.size() < kChannelsMax) channels_.emplace(address, channel);
  return channel;
}

}  // namespace baton::worker
