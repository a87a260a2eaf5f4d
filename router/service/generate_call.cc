#include "router/service/generate_call.h"

#include <grpc/support/time.h>

#include <chrono>
#include <utility>

#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/rpc/error_details.h"
#include "router/service/raw_message.h"
#include "router/validation/validation.h"

namespace baton::router {
namespace {

// gRPC's deadline (wall clock) as a time of ours, by way of what is left of it.
TimePoint DeadlineOf(const grpc::CallbackServerContext& context, TimePoint now) {
  const gpr_timespec raw = context.raw_deadline();
  if (gpr_time_cmp(raw, gpr_inf_future(raw.clock_type)) == 0) return kNever;
  const gpr_timespec left = gpr_time_sub(raw, gpr_now(raw.clock_type));
  return SaturatingAdd(now,
                       std::chrono::seconds(left.tv_sec) + std::chrono::nanoseconds(left.tv_nsec));
}

}  // namespace

absl::Status TooManyCalls(const RouterLimits& limits) {
  return rpc::ResourceExhaustedError("too many calls or too many bytes of requests are open",
                                     limits.retry_delay);
}

GenerateCall::GenerateCall(const ServiceContext* service,
                           const grpc::CallbackServerContext* context)
    : service_(service),
      id_(service->ids->NextRequestId()),
      arrival_(service->clock->Now()),
      deadline_(DeadlineOf(*context, arrival_)),
      metrics_model_(kUnknownModel) {}

// A request on its way through the text pool. Dropped by a pool that stops, it still gets its end.
struct GenerateCall::PendingText {
  PendingText(AdmittedRequest r, std::shared_ptr<GenerateCall> c)
      : request(std::move(r)), call(std::move(c)) {}
  ~PendingText() {
    if (!taken) call->Fail(absl::UnavailableError("the router is shutting down"));
  }
  AdmittedRequest request;
  const std::shared_ptr<GenerateCall> call;
  bool taken = false;
};

void GenerateCall::Begin(const grpc::ByteBuffer& request,
                         const std::shared_ptr<GenerateCall>& self) {
  const absl::Status status = Start(request, self);
  if (!status.ok()) self->Fail(status);
}

absl::Status GenerateCall::Start(const grpc::ByteBuffer& bytes,
                                 const std::shared_ptr<GenerateCall>& self) {
  ticket_ = service_->gate->Enter(bytes.Length());
  if (!ticket_.valid()) return TooManyCalls(service_->limits);
  v1::GenerateRequest message;
  RETURN_IF_ERROR(ParseRequest(bytes, &message));
  ASSIGN_OR_RETURN(std::shared_ptr<const ServedModel> model,
                   service_->catalog->Find(message.model()));
  model_ = model->name;
  metrics_model_ = model->name;
  RETURN_IF_ERROR(CheckReady(*model));
  if (service_->core->draining()) return absl::UnavailableError("the router is draining");
  AdmittedRequest request;
  ASSIGN_OR_RETURN(request.validated, ValidateGenerate(message, std::move(model)));
  if (request.validated.sampling.seed.has_value()) {
    request.seed = *request.validated.sampling.seed;
  } else {
    ASSIGN_OR_RETURN(request.seed, RandomUint64());
  }
  request.id = id_;
  request.arrival = arrival_;
  request.deadline = deadline_;
  if (!request.validated.has_text) return EncodeAndSubmit(std::move(request), self);
  const size_t text_bytes = request.validated.text.size();
  auto text = std::make_shared<PendingText>(std::move(request), self);
  const bool queued = service_->pool->Submit(text_bytes, [text] {
    text->taken = true;
    const absl::Status status = EncodeAndSubmit(std::move(text->request), text->call);
    if (!status.ok()) text->call->Fail(status);
  });
  if (queued) return absl::OkStatus();
  text->taken = true;
  return rpc::ResourceExhaustedError("too many texts wait to be tokenised",
                                     service_->limits.retry_delay);
}

absl::Status GenerateCall::EncodeAndSubmit(AdmittedRequest request,
                                           const std::shared_ptr<GenerateCall>& self) {
  ValidatedRequest& validated = request.validated;
  // The client may have gone, or its time be over, while the text waited.
  if (self->state().closed) return absl::CancelledError("the client has gone");
  const ServiceContext& service = *self->service_;
  if (request.deadline <= service.clock->Now()) {
    return absl::DeadlineExceededError("deadline exceeded before the request was queued");
  }
  if (validated.has_text) {
    auto ids = validated.model->codec->Encode(validated.text, validated.encode);
    if (!ids.ok()) return rpc::InvalidFieldError("text", ids.status().message());
    validated.prompt = *std::move(ids);
    validated.text = std::string();
  }
  RETURN_IF_ERROR(ResolveLengths(&validated));
  service.core->Submit(std::move(request), self);
  return absl::OkStatus();
}

absl::StatusCode GenerateCall::CancelCode() const {
  return service_->clock->Now() >= deadline_ ? absl::StatusCode::kDeadlineExceeded
                                             : absl::StatusCode::kCancelled;
}

void GenerateCall::CountEnd(absl::StatusCode code) const {
  const double seconds = ToSeconds(service_->clock->Now() - arrival_);
  service_->metrics->RequestEnded(metrics_model_, absl::StatusCodeToString(code), seconds);
}

}  // namespace baton::router
