// One Generate call: collects what the core delivers and answers once.
#ifndef BATON_ROUTER_SERVICE_UNARY_CALL_H_
#define BATON_ROUTER_SERVICE_UNARY_CALL_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>

#include "baton/v1/generation.pb.h"
#include "common/base/mutex.h"
#include "router/service/generate_call.h"

namespace baton::router {

// Thread-safe, as StreamCall.
class UnaryCall final : public grpc::ServerUnaryReactor,
                        public GenerateCall,
                        public std::enable_shared_from_this<UnaryCall> {
 public:
  // `response` is gRPC's and lives until the call is done.
  static grpc::ServerUnaryReactor* Start(const ServiceContext* service,
                                         grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer& request,
                                         grpc::ByteBuffer* response);

  // ResponseSink:
  void Deliver(OutputDelta delta, const UsageCounts& usage) override EXCLUDES(mutex_);
  void Finish(const RequestFinish& finish) override EXCLUDES(mutex_);
  void Fail(const absl::Status& status) override EXCLUDES(mutex_);
  void Abort() override EXCLUDES(mutex_);
  State state() const override EXCLUDES(mutex_);
  // The answer is bounded by the context: everything is taken at once.
  uint64_t drained_tokens() const override { return drained_tokens_; }

 private:
  UnaryCall(const ServiceContext* service, grpc::CallbackServerContext* context,
            grpc::ByteBuffer* response)
      : GenerateCall(service, context), context_(context), response_(response) {}

  void OnCancel() override EXCLUDES(mutex_);
  void OnDone() override EXCLUDES(mutex_);
  void End(const absl::Status& status) REQUIRES(mutex_);

  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const response_;
  std::shared_ptr<UnaryCall> self_;
  std::atomic<uint64_t> drained_tokens_ = 0;

  mutable Mutex mutex_;
  v1::GenerateResponse message_ GUARDED_BY(mutex_);
  bool finishing_ GUARDED_BY(mutex_) = false;  // Finish has been called.
  bool cancelled_ GUARDED_BY(mutex_) = false;
  bool done_ GUARDED_BY(mutex_) = false;
  TimePoint finish_started_ GUARDED_BY(mutex_){};
};

}  // namespace baton::router

#endif  // BATON_ROUTER_SERVICE_UNARY_CALL_H_
