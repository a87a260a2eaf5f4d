// A bidirectional gRPC stream as an ordered message queue, for both ends: Send() from any thread,
// messages and the end of the stream as callbacks. It takes care of gRPC's rules: one write in
// flight, no Finish with a write outstanding, operations from outside reactions under a hold,
// nothing touched after OnDone.
//
// Thread rule: thread-safe. Handlers run on gRPC threads, one message at a time; on_closed is the
// last call and comes exactly once. They must not block, and may call Send and Close.
#ifndef BATON_COMMON_RPC_MESSAGE_STREAM_H_
#define BATON_COMMON_RPC_MESSAGE_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/rpc/status_conversion.h"

namespace baton::rpc {

template <typename In>
struct MessageHandler {
  std::function<void(In)> on_message;
  std::function<void(const absl::Status&)> on_closed;
};

// The server's end. Create() returns it already owned by the call: return get() from the service
// method. The object lives until gRPC is done with it and nobody else holds it.
template <typename In, typename Out>
class ServerMessageStream final
    : public grpc::ServerBidiReactor<In, Out>,
      public std::enable_shared_from_this<ServerMessageStream<In, Out>> {
 public:
  static std::shared_ptr<ServerMessageStream> Create(grpc::CallbackServerContext* context,
                                                     size_t queue_max) {
    auto stream = std::shared_ptr<ServerMessageStream>(
        new ServerMessageStream(context, queue_max));  // NOLINT(banned-new): private constructor
    stream->self_ = stream;
    return stream;
  }

  void Start(MessageHandler<In> handler) {
    handler_ = std::move(handler);
    this->StartRead(&incoming_);
  }

  // False when the stream is closing or its queue is full; a full queue closes it.
  bool Send(Out message) EXCLUDES(mutex_) {
    bool start = false;
    bool overflow = false;
    {
      MutexLock lock(mutex_);
      if (closing_) return false;
      if (queue_.size() >= queue_max_) {
        overflow = true;
      } else {
        queue_.push_back(std::move(message));
        start = BeginWrite();
      }
    }
    if (overflow) {
      Close(absl::ResourceExhaustedError("the peer does not read: message queue is full"));
      return false;
    }
    if (start) this->StartWrite(&outgoing_);
    return true;
  }

  // Ends the call with `status`: OK once what is queued has been written, an error at once. A write
  // that the peer does not take (it may be stopped) is cut off. Idempotent.
  void Close(const absl::Status& status) EXCLUDES(mutex_) {
    bool cut = false;
    {
      MutexLock lock(mutex_);
      if (closing_) return;
      closing_ = true;
      close_status_ = status;
      if (!status.ok()) queue_.clear();
      if (finished_) return;
      cut = writing_ && !status.ok();
      if (!writing_) finished_ = true;
      // TryCancel under the lock: OnDone, after which the context is gone, needs a Finish that
      // OnWriteDone can only call once this lock is free.
      if (cut) context_->TryCancel();
      if (writing_) return;
    }
    this->Finish(ToGrpcStatus(status));
  }

 private:
  ServerMessageStream(grpc::CallbackServerContext* context, size_t queue_max)
      : context_(context), queue_max_(queue_max) {}

  void OnReadDone(bool ok) override {
    if (!ok) {
      Close(absl::OkStatus());
      return;
    }
    handler_.on_message(std::move(incoming_));
    incoming_ = In();
    this->StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override EXCLUDES(mutex_) {
    bool start = false;
    {
      MutexLock lock(mutex_);
      writing_ = false;
      if (!ok && !closing_) {
        closing_ = true;
        close_status_ = absl::UnavailableError("the peer is gone");
      }
      if (!ok) queue_.clear();
      start = BeginWrite();
      if (!start) {
        if (!closing_ || finished_) return;
        finished_ = true;
      }
    }
    if (start) {
      this->StartWrite(&outgoing_);
    } else {
      this->Finish(ToGrpcStatus(close_status_));
    }
  }

  void OnCancel() override { Close(absl::CancelledError("the peer is gone")); }

  void OnDone() override {
    if (handler_.on_closed) {
      absl::Status status;
      {
        MutexLock lock(mutex_);
        status = close_status_;
      }
      handler_.on_closed(status);
    }
    handler_ = {};
    self_.reset();
  }

  // True when the caller must StartWrite(&outgoing_), outside the lock.
  bool BeginWrite() REQUIRES(mutex_) {
    if (writing_ || finished_ || queue_.empty()) return false;
    outgoing_ = std::move(queue_.front());
    queue_.pop_front();
    writing_ = true;
    return true;
  }

  grpc::CallbackServerContext* const context_;
  const size_t queue_max_;
  std::shared_ptr<ServerMessageStream> self_;
  MessageHandler<In> handler_;
  In incoming_;
  Out outgoing_;  // Owned by gRPC while writing_.
  Mutex mutex_;
  std::deque<Out> queue_ GUARDED_BY(mutex_);
  bool writing_ GUARDED_BY(mutex_) = false;
  bool closing_ GUARDED_BY(mutex_) = false;
  bool finished_ GUARDED_BY(mutex_) = false;
  // Written once, before finished_.
  absl::Status close_status_;
};

// The client's end. `start` calls the stub's async method with the context and this reactor.
template <typename Out, typename In>
class ClientMessageStream final
    : public grpc::ClientBidiReactor<Out, In>,
      public std::enable_shared_from_this<ClientMessageStream<Out, In>> {
 public:
  using StartCallFn = std::function<void(grpc::ClientContext*, grpc::ClientBidiReactor<Out, In>*)>;

  static std::shared_ptr<ClientMessageStream> Create(size_t queue_max) {
    return std::shared_ptr<ClientMessageStream>(
        new ClientMessageStream(queue_max));  // NOLINT(banned-new): private constructor
  }

  // With `wait_for_ready` the call waits for the channel to connect; else it fails at once.
  void Start(const StartCallFn& start, MessageHandler<In> handler, bool wait_for_ready = false) {
    handler_ = std::move(handler);
    self_ = this->shared_from_this();
    context_.set_wait_for_ready(wait_for_ready);
    start(&context_, this);
    this->AddHold();  // Sends come from outside reactions.
    this->StartRead(&incoming_);
    this->StartCall();
  }

  bool Send(Out message) EXCLUDES(mutex_) {
    bool start = false;
    bool overflow = false;
    {
      MutexLock lock(mutex_);
      if (closing_) return false;
      if (queue_.size() >= queue_max_) {
        overflow = true;
      } else {
        queue_.push_back(std::move(message));
        start = BeginWrite();
      }
    }
    if (overflow) {
      Close(absl::ResourceExhaustedError("the peer does not read: message queue is full"));
      return false;
    }
    if (start) this->StartWrite(&outgoing_);
    return true;
  }

  // Cancels the call; on_closed reports `reason` unless the call ended before. Idempotent.
  void Close(const absl::Status& reason) EXCLUDES(mutex_) {
    bool release = false;
    {
      MutexLock lock(mutex_);
      if (closing_) return;
      closing_ = true;
      close_reason_ = reason;
      queue_.clear();
      release = !writing_;
    }
    context_.TryCancel();
    if (release) this->RemoveHold();
  }

 private:
  explicit ClientMessageStream(size_t queue_max) : queue_max_(queue_max) {}

  void OnReadDone(bool ok) override {
    if (!ok) {
      // The server's status arrives with OnDone; cancelling now could hide it.
      EndSends();
      return;
    }
    handler_.on_message(std::move(incoming_));
    incoming_ = In();
    this->StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override EXCLUDES(mutex_) {
    bool start = false;
    bool release = false;
    {
      MutexLock lock(mutex_);
      writing_ = false;
      if (!ok) {
        closing_ = true;  // OnReadDone(false) and OnDone follow.
        queue_.clear();
      }
      release = closing_;
      if (!closing_) start = BeginWrite();
    }
    if (start) this->StartWrite(&outgoing_);
    if (release) this->RemoveHold();
  }

  void EndSends() EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      if (closing_) return;
      closing_ = true;
      queue_.clear();
      if (writing_) return;  // OnWriteDone releases the hold.
    }
    this->RemoveHold();
  }

  void OnDone(const grpc::Status& status) override {
    absl::Status reason;
    {
      MutexLock lock(mutex_);
      reason = close_reason_;
    }
    if (reason.ok()) reason = FromGrpcStatus(status);
    if (handler_.on_closed) handler_.on_closed(reason);
    handler_ = {};
    self_.reset();
  }

  bool BeginWrite() REQUIRES(mutex_) {
    if (writing_ || closing_ || queue_.empty()) return false;
    outgoing_ = std::move(queue_.front());
    queue_.pop_front();
    writing_ = true;
    return true;
  }

  const size_t queue_max_;
  grpc::ClientContext context_;
  std::shared_ptr<ClientMessageStream> self_;
  MessageHandler<In> handler_;
  In incoming_;
  Out outgoing_;  // Owned by gRPC while writing_.
  Mutex mutex_;
  std::deque<Out> queue_ GUARDED_BY(mutex_);
  bool writing_ GUARDED_BY(mutex_) = false;
  bool closing_ GUARDED_BY(mutex_) = false;
  absl::Status close_reason_ GUARDED_BY(mutex_);
};

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_MESSAGE_STREAM_H_
