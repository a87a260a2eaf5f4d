// What Generate and StreamGenerate calls have in common: admission, parsing, validation,
// tokenising, submission to the core, and the account of how the call ended.
#ifndef BATON_ROUTER_SERVICE_GENERATE_CALL_H_
#define BATON_ROUTER_SERVICE_GENERATE_CALL_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "baton/v1/generation.pb.h"
#include "common/base/clock.h"
#include "router/core/response_sink.h"
#include "router/service/call_gate.h"
#include "router/service/service_context.h"

namespace baton::router {

// RESOURCE_EXHAUSTED: too many calls or bytes are open.
absl::Status TooManyCalls(const RouterLimits& limits);

// The sink of a call. Created by a service method on a gRPC thread, then shared with the core.
class GenerateCall : public ResponseSink {
 public:
  GenerateCall(const ServiceContext* service, const grpc::CallbackServerContext* context);
  ~GenerateCall() override = default;

  RequestId id() const { return id_; }
  // The model's name for responses. Set before the first Deliver.
  const std::string& model() const { return model_; }

 protected:
  // Takes the request as far as the core, or fails `self` (which is this).
  void Begin(const grpc::ByteBuffer& request, const std::shared_ptr<GenerateCall>& self);
  // Counts the call's end. Once; the caller's lock decides which end it is.
  void CountEnd(absl::StatusCode code) const;
  // OnCancel: the client has gone, or its deadline has passed.
  absl::StatusCode CancelCode() const;
  // Frees the place in the gate: the call is over.
  void Leave() { ticket_ = CallGate::Ticket(); }

  const ServiceContext& service() const { return *service_; }

 private:
  struct PendingText;

  absl::Status Start(const grpc::ByteBuffer& bytes, const std::shared_ptr<GenerateCall>& self);
  static absl::Status EncodeAndSubmit(AdmittedRequest request,
                                      const std::shared_ptr<GenerateCall>& self);

  const ServiceContext* const service_;
  const RequestId id_;
  const TimePoint arrival_;
  // kNever: none.
  const TimePoint deadline_;
  CallGate::Ticket ticket_;
  // Constant after Begin.
  std::string model_;
  std::string metrics_model_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_SERVICE_GENERATE_CALL_H_
