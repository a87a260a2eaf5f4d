// One StreamGenerate call. At most one write is in flight; what the core delivers meanwhile is
// joined into the next message, so a slow client costs fewer, larger messages and never more than
// its sequence's credits. The finish comes in a message of its own, after all text.
#ifndef BATON_ROUTER_SERVICE_STREAM_CALL_H_
#define BATON_ROUTER_SERVICE_STREAM_CALL_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <optional>

#include "baton/v1/generation.pb.h"
#include "common/base/mutex.h"
#include "router/service/generate_call.h"

namespace baton::router {

// Thread-safe: the core's loop, gRPC threads and the text pool call it concurrently. gRPC
// operations are started under the lock; their reactions run on other stacks.
class StreamCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                         public GenerateCall,
                         public std::enable_shared_from_this<StreamCall> {
 public:
  // The reactor that the service method returns. It owns itself until gRPC is done with it.
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(const ServiceContext* service,
                                                           grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer& request);

  // ResponseSink:
  void Deliver(OutputDelta delta, const UsageCounts& usage) override EXCLUDES(mutex_);
  void Finish(const RequestFinish& finish) override EXCLUDES(mutex_);
  void Fail(const absl::Status& status) override EXCLUDES(mutex_);
  void Abort() override EXCLUDES(mutex_);
  State state() const override EXCLUDES(mutex_);
  uint64_t drained_tokens() const override { return drained_tokens_; }

 private:
  StreamCall(const ServiceContext* service, grpc::CallbackServerContext* context)
      : GenerateCall(service, context), context_(context) {}

  void OnWriteDone(bool ok) override EXCLUDES(mutex_);
  void OnCancel() override EXCLUDES(mutex_);
  void OnDone() override EXCLUDES(mutex_);

  // Starts the next operation if none is outstanding.
  void Continue() REQUIRES(mutex_);
  void Serialize(const v1::StreamGenerateResponse& message) REQUIRES(mutex_);
  void EndWith(absl::StatusCode code) REQUIRES(mutex_);

  grpc::CallbackServerContext* const context_;
  // Keeps the call alive until OnDone.
  std::shared_ptr<StreamCall> self_;
  std::atomic<uint64_t> drained_tokens_ = 0;

  mutable Mutex mutex_;
  v1::StreamGenerateResponse pending_ GUARDED_BY(mutex_);
  bool has_pending_ GUARDED_BY(mutex_) = false;
  std::optional<v1::StreamGenerateResponse> finish_ GUARDED_BY(mutex_);
  // How the call ends, once that is decided.
  std::optional<absl::Status> end_ GUARDED_BY(mutex_);
  grpc::ByteBuffer in_flight_;  // gRPC's while writing_.
  uint64_t tokens_in_flight_ GUARDED_BY(mutex_) = 0;
  uint64_t notified_tokens_ GUARDED_BY(mutex_) = 0;
  bool writing_ GUARDED_BY(mutex_) = false;
  bool finishing_ GUARDED_BY(mutex_) = false;  // Finish has been called.
  bool cancelled_ GUARDED_BY(mutex_) = false;
  bool done_ GUARDED_BY(mutex_) = false;
  TimePoint operation_started_ GUARDED_BY(mutex_){};
};

}  // namespace baton::router

#endif  // BATON_ROUTER_SERVICE_STREAM_CALL_H_
