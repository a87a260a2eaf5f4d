#include "router/service/stream_call.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/rpc/status_conversion.h"
#include "router/service/raw_message.h"
#include "router/service/response_convert.h"

namespace baton::router {
grpc::ServerWriteReactor<grpc::ByteBuffer>* StreamCall::Start(const ServiceContext* service,
                                                              grpc::CallbackServerContext* context,
                                                              const grpc::ByteBuffer& request) {
  auto call = std::shared_ptr<StreamCall>(
      new StreamCall(service, context));  // NOLINT(banned-new): private constructor
  call->self_ = call;
  call->Begin(request, call);
  return call.get();
}

void StreamCall::Deliver(OutputDelta delta, const UsageCounts& usage) {
  MutexLock lock(mutex_);
  if (end_.has_value() || cancelled_) return;
  if (!has_pending_) pending_.set_model(model());
  has_pending_ = true;
  AppendDelta(delta, pending_.mutable_delta());
  FillUsage(usage, pending_.mutable_usage());
  Continue();
}

void StreamCall::Finish(const RequestFinish& finish) {
  MutexLock lock(mutex_);
  if (end_.has_value() || cancelled_) return;
  finish_.emplace();
  finish_->set_model(model());
  FillUsage(finish.usage, finish_->mutable_usage());
  FillFinish(finish, finish_->mutable_finish());
  end_ = absl::OkStatus();
  EndWith(absl::StatusCode::kOk);
  Continue();
}

void StreamCall::Fail(const absl::Status& status) {
  MutexLock lock(mutex_);
  if (end_.has_value() || cancelled_) return;
  has_pending_ = false;
  end_ = status;
  EndWith(status.code());
  Continue();
}

void StreamCall::Abort() {
  MutexLock lock(mutex_);
  // Under the lock: OnDone, after which the context is gone, takes it.
  if (!done_) context_->TryCancel();
}

ResponseSink::State StreamCall::state() const {
  MutexLock lock(mutex_);
  State state;
  state.closed = cancelled_ || done_;
  if (!state.closed && (writing_ || finishing_)) state.stalled_since = operation_started_;
  return state;
}

void StreamCall::Continue() {
  if (writing_ || finishing_) return;
  if (cancelled_) {
    finishing_ = true;
    grpc::ServerWriteReactor<grpc::ByteBuffer>::Finish(grpc::Status::CANCELLED);
  } else if (has_pending_) {
    has_pending_ = false;
    writing_ = true;
    tokens_in_flight_ = static_cast<uint64_t>(pending_.delta().token_ids_size());
    Serialize(pending_);
    pending_.Clear();
    // No buffer hint: on a stream's first write it never completes, and joining deltas makes up for
    // it on the others.
    StartWrite(&in_flight_);
  } else if (finish_.has_value()) {
    finishing_ = true;
    Serialize(*finish_);
    StartWriteAndFinish(&in_flight_, grpc::WriteOptions(), grpc::Status::OK);
  } else if (end_.has_value()) {
    finishing_ = true;
    grpc::ServerWriteReactor<grpc::ByteBuffer>::Finish(rpc::ToGrpcStatus(*end_));
  } else {
    return;
  }
  operation_started_ = service().clock->Now();
}

void StreamCall::Serialize(const v1::StreamGenerateResponse& message) {
  in_flight_.Clear();
  // Fails only beyond 2 GiB; credits keep messages small.
  const absl::Status status = SerializeResponse(message, &in_flight_);
  CHECK(status.ok()) << status;
}

void StreamCall::EndWith(absl::StatusCode code) { CountEnd(code); }

void StreamCall::OnWriteDone(bool ok) {
  bool notify = false;
  {
    MutexLock lock(mutex_);
    writing_ = false;
    if (finishing_) return;  // StartWriteAndFinish: OnDone follows.
    if (ok) {
      drained_tokens_ += tokens_in_flight_;
    } else if (!cancelled_) {
      // The stream is broken; OnCancel comes as well, but perhaps later.
      cancelled_ = true;
      if (!end_.has_value()) EndWith(CancelCode());
      notify = true;
    }
    Continue();
    const uint64_t step = std::max<uint64_t>(1, service().limits.initial_credits / 4);
    if (ok && drained_tokens_ - notified_tokens_ >= step) {
      notified_tokens_ = drained_tokens_;
      notify = true;
    }
  }
  if (!notify) return;
  if (ok) {
    service().core->NotifyDrained(id());
  } else {
    service().core->Cancel(id(), absl::CancelledError("the client has gone"));
  }
}

void StreamCall::OnCancel() {
  {
    MutexLock lock(mutex_);
    if (cancelled_) return;
    cancelled_ = true;
    if (!end_.has_value()) EndWith(CancelCode());
    Continue();
  }
  service().core->Cancel(id(), absl::CancelledError("the client has gone"));
}

void StreamCall::OnDone() {
  {
    MutexLock lock(mutex_);
    done_ = true;
  }
  Leave();
  self_.reset();
}

}  // namespace baton::router
