#include "router/service/unary_call.h"

#include "common/rpc/status_conversion.h"
#include "router/service/raw_message.h"
#include "router/service/response_convert.h"

namespace baton::router {

grpc::ServerUnaryReactor* UnaryCall::Start(const ServiceContext* service,
                                           grpc::CallbackServerContext* context,
                                           const grpc::ByteBuffer& request,
                                           grpc::ByteBuffer* response) {
  auto call = std::shared_ptr<UnaryCall>(
      new UnaryCall(service, context, response));  // NOLINT(banned-new): private constructor
  call->self_ = call;
  call->Begin(request, call);
  return call.get();
}

void UnaryCall::Deliver(OutputDelta delta, const UsageCounts& usage) {
  MutexLock lock(mutex_);
  if (finishing_) return;
  AppendDelta(delta, message_.mutable_output());
  FillUsage(usage, message_.mutable_usage());
  drained_tokens_ += delta.token_ids.size();
}

void UnaryCall::Finish(const RequestFinish& finish) {
  MutexLock lock(mutex_);
  if (finishing_) return;
  message_.set_model(model());
  message_.mutable_output();
  FillUsage(finish.usage, message_.mutable_usage());
  FillFinish(finish, message_.mutable_finish());
  End(SerializeResponse(message_, response_));
}

void UnaryCall::Fail(const absl::Status& status) {
  MutexLock lock(mutex_);
  if (!finishing_) End(status);
}

void UnaryCall::End(const absl::Status& status) {
  finishing_ = true;
  message_.Clear();
  CountEnd(status.code());
  finish_started_ = service().clock->Now();
  grpc::ServerUnaryReactor::Finish(rpc::ToGrpcStatus(status));
}

void UnaryCall::Abort() {
  MutexLock lock(mutex_);
  // Under the lock: OnDone, after which the context is gone, takes it.
  if (!done_) context_->TryCancel();
}

ResponseSink::State UnaryCall::state() const {
  MutexLock lock(mutex_);
  State state;
  state.closed = cancelled_ || done_;
  if (!state.closed && finishing_) state.stalled_since = finish_started_;
  return state;
}

void UnaryCall::OnCancel() {
  {
    MutexLock lock(mutex_);
    cancelled_ = true;
    if (!finishing_) End(absl::Status(CancelCode(), "the client has gone"));
  }
  service().core->Cancel(id(), absl::CancelledError("the client has gone"));
}

void UnaryCall::OnDone() {
  {
    MutexLock lock(mutex_);
    done_ = true;
  }
  Leave();
  self_.reset();
}

}  // namespace baton::router
