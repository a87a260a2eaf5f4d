// One end of a TCP pair: a connected socket and one thread, which alone reads and writes it, alone
// touches posted memory and alone calls completions. That makes an abort bounded: the socket is
// shut down, the thread finishes the one non-blocking call it is in, and nothing moves any more.
// Thread-safe.
#ifndef BATON_KVTRANSFER_TCP_TCP_END_H_
#define BATON_KVTRANSFER_TCP_TCP_END_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvtransfer/tcp/tcp_frame.h"
#include "kvtransfer/tcp/tcp_socket.h"
#include "kvtransfer/wire.h"
#include "kvtransfer/wire_operations.h"

namespace baton::kvtransfer {

class TcpEnd : public WireEnd {
 public:
  // `socket` is connected and past the handshake. ERRORS: ResourceExhausted: no file descriptor.
  static absl::StatusOr<std::unique_ptr<WireEnd>> Create(WireDirection direction, UniqueFd socket);
  // For Create.
  TcpEnd(WireDirection direction, UniqueFd socket, WakeEvent wake);
  ~TcpEnd() override;

  void PostSend(uint64_t sequence_number, absl::Span<const std::byte> bytes,
                Completion done) override;
  void PostReceive(uint64_t sequence_number, absl::Span<std::byte> bytes, Completion done) override;
  void Abort(const absl::Status& reason) override;
  bool Quiescent() const override { return operations_.Quiescent(); }

 private:
  // What a step on the socket came to.
  enum class Progress { kBlocked, kCompleted, kBroken };

  void Run();
  // Completes what has failed; the front operation if it may move, else nullptr.
  WireOperation* Next();
  void CompleteFront(const absl::Status& status);
  void Break(const absl::Status& status);
  bool broken() const { return !operations_.broken().ok(); }

  // On the end's thread: move the front operation as far as the socket allows.
  Progress Send(WireOperation* operation);
  Progress Receive(WireOperation* operation);
  Progress ReceiveSome(std::byte* to, size_t size, size_t* received);
  absl::Status CheckHeader(const WireOperation& operation);
  void AwaitWork(bool blocked, bool idle);

  const WireDirection direction_;
  const UniqueFd socket_;
  const WakeEvent wake_;

  // Used by the end's thread only.
  TcpFrameHeaderBytes header_{};
  TcpFrameHeader decoded_;
  size_t header_moved_ = 0;
  size_t payload_moved_ = 0;
  bool peer_closed_ = false;

  WireOperations operations_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_TCP_TCP_END_H_
