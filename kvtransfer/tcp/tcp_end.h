// One end of a TCP pair: a connected socket and one thread, which alone reads and writes it, alone
// touches posted memory and alone calls completions. That makes an abort bounded: the socket is
// shut down, the thread finishes the one non-blocking call it is in, and nothing moves any more.
// Thread-safe.
#ifndef BATON_KVTRANSFER_TCP_TCP_END_H_
#define BATON_KVTRANSFER_TCP_TCP_END_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "kvtransfer/tcp/tcp_frame.h"
#include "kvtransfer/tcp/tcp_socket.h"
#include "kvtransfer/wire.h"

namespace baton::kvtransfer {

class TcpEnd : public WireEnd {
 public:
  enum class Direction { kSend, kReceive };

  // `socket` is connected and past the handshake. ERRORS: ResourceExhausted: no file descriptor.
  static absl::StatusOr<std::unique_ptr<WireEnd>> Create(Direction direction, UniqueFd socket);
  // For Create.
  TcpEnd(Direction direction, UniqueFd socket, WakeEvent wake);
  ~TcpEnd() override;

  void PostSend(uint64_t sequence_number, absl::Span<const std::byte> bytes,
                Completion done) override;
  void PostReceive(uint64_t sequence_number, absl::Span<std::byte> bytes, Completion done) override;
  void Abort(const absl::Status& reason) override EXCLUDES(mutex_);
  bool Quiescent() const override EXCLUDES(mutex_);

 private:
  struct Operation {
    uint64_t sequence_number = 0;
    std::byte* data = nullptr;  // Read only when sending.
    size_t size = 0;
    Completion done;
    absl::Status refusal;
  };
  // What a step on the socket came to.
  enum class Progress { kBlocked, kCompleted, kBroken };

  void Post(Direction direction, Operation operation) EXCLUDES(mutex_);
  void Run() EXCLUDES(mutex_);
  // Completes what has failed; the front operation if it may move, else nullptr. `*stop`: exit.
  Operation* Next(bool* stop) EXCLUDES(mutex_);
  void CompleteFront(const absl::Status& status) EXCLUDES(mutex_);
  void Break(const absl::Status& status) EXCLUDES(mutex_);
  bool broken() const EXCLUDES(mutex_);

  // On the end's thread: move the front operation as far as the socket allows.
  Progress Send(Operation* operation);
  Progress Receive(Operation* operation);
  Progress ReceiveSome(std::byte* to, size_t size, size_t* received);
  absl::Status CheckHeader(const Operation& operation);
  void AwaitWork(bool blocked, bool idle);

  const Direction direction_;
  const UniqueFd socket_;
  const WakeEvent wake_;

  // Used by the end's thread only.
  TcpFrameHeaderBytes header_{};
  TcpFrameHeader decoded_;
  size_t header_moved_ = 0;
  size_t payload_moved_ = 0;
  bool peer_closed_ = false;

  mutable Mutex mutex_;
  std::deque<Operation> operations_ GUARDED_BY(mutex_);
  size_t open_ GUARDED_BY(mutex_) = 0;
  absl::Status broken_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_TCP_TCP_END_H_
