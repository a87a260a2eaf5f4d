#include "router/service/text_call.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "baton/v1/generation.pb.h"
#include "common/base/status_macros.h"
#include "common/rpc/error_details.h"
#include "common/rpc/status_conversion.h"
#include "router/service/generate_call.h"
#include "router/service/raw_message.h"
#include "router/validation/validation.h"

namespace baton::router {
namespace {

// A call whose answer comes from the pool, or at once. Thread-safe.
class TextCall final : public grpc::ServerUnaryReactor {
 public:
  // Its self-reference keeps it until gRPC and the pool are done with it.
  static std::shared_ptr<TextCall> Create(const ServiceContext* service,
                                          grpc::ByteBuffer* response) {
    auto call = std::make_shared<TextCall>(service, response);
    call->self_ = call;
    return call;
  }
  TextCall(const ServiceContext* service, grpc::ByteBuffer* response)
      : service_(service), response_(response) {}

  bool Enter(size_t bytes) {
    ticket_ = service_->gate->Enter(bytes);
    return ticket_.valid();
  }
  bool gone() const { return cancelled_; }

  // Once.
  void End(const absl::Status& status, const google::protobuf::Message* message = nullptr) {
    Finish(rpc::ToGrpcStatus(status.ok() ? SerializeResponse(*message, response_) : status));
  }

 private:
  // The pool's task ends the call; it looks here first.
  void OnCancel() override { cancelled_ = true; }
  void OnDone() override {
    ticket_ = CallGate::Ticket();
    self_.reset();
  }

  const ServiceContext* const service_;
  grpc::ByteBuffer* const response_;
  CallGate::Ticket ticket_;
  std::atomic<bool> cancelled_ = false;
  std::shared_ptr<TextCall> self_;
};

// Ends the call when it is dropped without having run: the pool has stopped.
class PoolTask {
 public:
  PoolTask(std::shared_ptr<TextCall> call, std::function<void(TextCall*)> work)
      : call_(std::move(call)), work_(std::move(work)) {}
  ~PoolTask() {
    if (call_ != nullptr) call_->End(absl::UnavailableError("the router is shutting down"));
  }
  void Run() {
    const std::shared_ptr<TextCall> call = std::move(call_);
    if (call->gone()) {
      call->End(absl::CancelledError("the client has gone"));
    } else {
      work_(call.get());
    }
  }
  // The caller ends the call.
  void Disarm() { call_ = nullptr; }

 private:
  std::shared_ptr<TextCall> call_;
  const std::function<void(TextCall*)> work_;
};

absl::Status RunOnPool(const ServiceContext& service, size_t bytes, std::shared_ptr<TextCall> call,
                       std::function<void(TextCall*)> work) {
  auto task = std::make_shared<PoolTask>(std::move(call), std::move(work));
  if (service.pool->Submit(bytes, [task] { task->Run(); })) return absl::OkStatus();
  task->Disarm();
  return rpc::ResourceExhaustedError("too many texts wait to be tokenised",
                                     service.limits.retry_delay);
}

// The model, if its tokenizer is loaded; whether workers serve it does not matter here.
absl::StatusOr<std::shared_ptr<const ServedModel>> FindWithCodec(const ServiceContext& service,
                                                                 const std::string& name) {
  ASSIGN_OR_RETURN(std::shared_ptr<const ServedModel> model, service.catalog->Find(name));
  if (model->codec == nullptr) RETURN_IF_ERROR(CheckReady(*model));
  return model;
}

void Tokenize(const ServedModel& model, const v1::TokenizeRequest& request, TextCall* call) {
  TextEncodeOptions options;
  options.parse_special = request.parse_special();
  if (request.has_add_special_tokens()) options.add_special_tokens = request.add_special_tokens();
  const auto ids = model.codec->Encode(request.text(), options);
  if (!ids.ok()) return call->End(rpc::InvalidFieldError("text", ids.status().message()));
  v1::TokenizeResponse response;
  response.set_model(model.name);
  response.mutable_token_ids()->Add(ids->begin(), ids->end());
  for (const int32_t id : *ids) response.add_tokens(model.codec->TokenBytes(id));
  call->End(absl::OkStatus(), &response);
}

absl::Status BeginTokenize(const ServiceContext& service, const grpc::ByteBuffer& bytes,
                           const std::shared_ptr<TextCall>& call) {
  if (!call->Enter(bytes.Length())) return TooManyCalls(service.limits);
  auto request = std::make_shared<v1::TokenizeRequest>();
  RETURN_IF_ERROR(ParseRequest(bytes, request.get()));
  RETURN_IF_ERROR(ValidateTokenize(*request, service.limits.tokenize_bytes_max));
  ASSIGN_OR_RETURN(std::shared_ptr<const ServedModel> model,
                   FindWithCodec(service, request->model()));
  return RunOnPool(service, request->text().size(), call,
                   [model, request](TextCall* self) { Tokenize(*model, *request, self); });
}

absl::Status BeginDetokenize(const ServiceContext& service, const grpc::ByteBuffer& bytes,
                             const std::shared_ptr<TextCall>& call) {
  if (!call->Enter(bytes.Length())) return TooManyCalls(service.limits);
  v1::DetokenizeRequest request;
  RETURN_IF_ERROR(ParseRequest(bytes, &request));
  ASSIGN_OR_RETURN(std::shared_ptr<const ServedModel> model,
                   FindWithCodec(service, request.model()));
  ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                   ValidateDetokenize(request, *model, service.limits.detokenize_ids_max));
  const size_t size = ids.size() * sizeof(int32_t);
  return RunOnPool(service, size, call,
                   [model, ids = std::move(ids), skip = request.skip_special()](TextCall* self) {
                     v1::DetokenizeResponse response;
                     response.set_model(model->name);
                     response.set_text(model->codec->Decode(ids, skip));
                     self->End(absl::OkStatus(), &response);
                   });
}

}  // namespace

grpc::ServerUnaryReactor* StartTokenize(const ServiceContext* service,
                                        const grpc::ByteBuffer& request,
                                        grpc::ByteBuffer* response) {
  const std::shared_ptr<TextCall> call = TextCall::Create(service, response);
  const absl::Status status = BeginTokenize(*service, request, call);
  if (!status.ok()) call->End(status);
  return call.get();
}

grpc::ServerUnaryReactor* StartDetokenize(const ServiceContext* service,
                                          const grpc::ByteBuffer& request,
                                          grpc::ByteBuffer* response) {
  const std::shared_ptr<TextCall> call = TextCall::Create(service, response);
  const absl::Status status = BeginDetokenize(*service, request, call);
  if (!status.ok()) call->End(status);
  return call.get();
}

grpc::ServerUnaryReactor* StartListModels(const ServiceContext* service,
                                          grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer& request,
                                          grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  v1::ListModelsRequest parsed;
  absl::Status status = ParseRequest(request, &parsed);
  if (status.ok()) {
    v1::ListModelsResponse models;
    for (const auto& model : service->catalog->List()) {
      v1::Model* out = models.add_models();
      out->set_name(model->name);
      out->set_revision(model->revision);
      out->set_context_tokens_max(model->context_tokens_max);
      out->set_vocabulary_size(model->vocabulary_size);
      out->set_ready(model->ready);
    }
    status = SerializeResponse(models, response);
  }
  reactor->Finish(rpc::ToGrpcStatus(status));
  return reactor;
}

}  // namespace baton::router
