// Control links over TCP, for tests between real processes: what the daemon does over gRPC. Each
// link has one thread. Thread-safe.
#ifndef BATON_KVTRANSFER_PROCESS_SOCKET_LINK_H_
#define BATON_KVTRANSFER_PROCESS_SOCKET_LINK_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "kvtransfer/control.h"
#include "kvtransfer/tcp/tcp_socket.h"

namespace baton::kvtransfer {

// Bytes that wait to be sent on one link; more closes it.
inline constexpr size_t kSocketLinkQueueBytesMax = 16 << 20;

class SocketDialer : public ControlDialer {
 public:
  // `control_address` is HOST:PORT of a SocketListener.
  std::shared_ptr<ControlLink> Dial(const std::string& control_address) override;
};

class SocketListener {
 public:
  using Accept = std::function<void(std::shared_ptr<ControlLink>)>;
  // On a free port of 127.0.0.1.
  static absl::StatusOr<std::unique_ptr<SocketListener>> Create(Accept accept);
  SocketListener(ListeningSocket socket, WakeEvent wake, Accept accept);
  ~SocketListener();
  std::string address() const { return socket_.address.ToString(); }

 private:
  void Run();

  const ListeningSocket socket_;
  const WakeEvent wake_;
  const Accept accept_;
  std::thread thread_;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_PROCESS_SOCKET_LINK_H_
