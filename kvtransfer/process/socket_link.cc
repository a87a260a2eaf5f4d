#include "kvtransfer/process/socket_link.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "kvtransfer/process/message_codec.h"

namespace baton::kvtransfer {
namespace {

constexpr size_t kMessageBytesMax = 1 << 20;

// The state of a link, kept alive by its thread until the link has ended.
class SocketLinkState {
 public:
  explicit SocketLinkState(WakeEvent wake) : wake_(std::move(wake)) {}

  bool Send(const ControlMessage& message) {
    const std::string body = EncodeControlMessage(message);
    {
      MutexLock lock(mutex_);
      if (closing_) return false;
      if (outgoing_.size() + body.size() > kSocketLinkQueueBytesMax) {
        closing_ = true;
        reason_ = absl::ResourceExhaustedError("the link's queue is full");
      } else {
        for (int i = 0; i < 4; ++i) outgoing_.push_back(static_cast<char>(body.size() >> (8 * i)));
        outgoing_ += body;
      }
    }
    wake_.Signal();
    MutexLock lock(mutex_);
    return !closing_;
  }
  void Close(const absl::Status& reason) {
    {
      MutexLock lock(mutex_);
      if (closing_) return;
      closing_ = true;
      reason_ = reason;
    }
    wake_.Signal();
  }

  // The link's thread: connects if there is an address, then moves bytes until the end.
  void Run(UniqueFd socket, const std::string& address, const ControlLink::Handler& handler) {
    if (!address.empty()) {
      auto peer = ParseHostPort(address, false);
      auto connected = peer.ok() ? ConnectTcp(*peer, Clock::Real()->Now() + std::chrono::seconds(2))
                                 : absl::StatusOr<UniqueFd>(peer.status());
      if (!connected.ok()) {
        handler.on_closed(connected.status());
        return;
      }
      socket = *std::move(connected);
    }
    while (Step(socket.get(), handler)) {
    }
    absl::Status reason;
    {
      MutexLock lock(mutex_);
      closing_ = true;
      reason = reason_;
    }
    handler.on_closed(reason);
  }

 private:
  // False when the link has ended.
  bool Step(int fd, const ControlLink::Handler& handler) {
    bool sending = false;
    {
      MutexLock lock(mutex_);
      while (!outgoing_.empty()) {
        const ssize_t n = send(fd, outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n <= 0) break;
        outgoing_.erase(0, static_cast<size_t>(n));
      }
      if (closing_) return false;
      sending = !outgoing_.empty();
    }
    pollfd fds[2] = {{wake_.fd(), POLLIN, 0},
                     {fd, static_cast<short>(POLLIN | (sending ? POLLOUT : 0)), 0}};
    if (poll(fds, 2, 1000) <= 0) return true;
    if (fds[0].revents != 0) wake_.Drain();
    if ((fds[1].revents & (POLLIN | POLLERR | POLLHUP)) == 0) return true;
    char buffer[65536];
    const ssize_t n = recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (n <= 0) return End(absl::UnavailableError("the peer closed the link"));
    incoming_.append(buffer, static_cast<size_t>(n));
    return Deliver(handler);
  }
  bool Deliver(const ControlLink::Handler& handler) {
    size_t at = 0;
    while (incoming_.size() - at >= 4) {
      size_t size = 0;
      for (size_t i = 0; i < 4; ++i) {
        size |= static_cast<size_t>(static_cast<uint8_t>(incoming_[at + i])) << (8 * i);
      }
      if (size > kMessageBytesMax) return End(absl::InternalError("message too long"));
      if (incoming_.size() - at - 4 < size) break;
      auto message = DecodeControlMessage(absl::string_view(incoming_).substr(at + 4, size));
      if (!message.has_value()) return End(absl::InternalError("malformed message"));
      at += 4 + size;
      handler.on_message(*std::move(message));
    }
    incoming_.erase(0, at);
    return true;
  }
  bool End(const absl::Status& reason) {
    MutexLock lock(mutex_);
    if (!closing_) reason_ = reason;
    return false;
  }

  const WakeEvent wake_;
  std::string incoming_;  // Used by the link's thread only.
  Mutex mutex_;
  bool closing_ GUARDED_BY(mutex_) = false;
  absl::Status reason_ GUARDED_BY(mutex_);
  std::string outgoing_ GUARDED_BY(mutex_);
};

class SocketLink : public ControlLink {
 public:
  SocketLink(WakeEvent wake, UniqueFd socket, std::string address)
      : state_(std::make_shared<SocketLinkState>(std::move(wake))),
        socket_(std::move(socket)),
        address_(std::move(address)) {}
  ~SocketLink() override {
    state_->Close(absl::CancelledError("link destroyed"));
    if (!thread_.joinable()) return;
    // The last reference may go in a callback on the link's own thread.
    if (thread_.get_id() == std::this_thread::get_id()) {
      thread_.detach();
    } else {
      thread_.join();
    }
  }

  void Start(Handler handler) override {
    thread_ = std::thread([state = state_, address = address_, handler = std::move(handler),
                           socket = std::make_shared<UniqueFd>(std::move(socket_))] {
      state->Run(std::move(*socket), address, handler);
    });
  }
  bool Send(ControlMessage message) override { return state_->Send(message); }
  void Close(const absl::Status& reason) override { state_->Close(reason); }

 private:
  const std::shared_ptr<SocketLinkState> state_;
  UniqueFd socket_;
  const std::string address_;
  std::thread thread_;
};

}  // namespace

std::shared_ptr<ControlLink> SocketDialer::Dial(const std::string& control_address) {
  auto wake = WakeEvent::Create();
  if (!wake.ok()) return nullptr;
  return std::make_shared<SocketLink>(*std::move(wake), UniqueFd(), control_address);
}

absl::StatusOr<std::unique_ptr<SocketListener>> SocketListener::Create(Accept accept) {
  ASSIGN_OR_RETURN(ListeningSocket socket, ListenTcp({"127.0.0.1", 0}));
  ASSIGN_OR_RETURN(WakeEvent wake, WakeEvent::Create());
  return std::make_unique<SocketListener>(std::move(socket), std::move(wake), std::move(accept));
}

SocketListener::SocketListener(ListeningSocket socket, WakeEvent wake, Accept accept)
    : socket_(std::move(socket)),
      wake_(std::move(wake)),
      accept_(std::move(accept)),
      thread_([this] { Run(); }) {}

SocketListener::~SocketListener() {
  shutdown(socket_.fd.get(), SHUT_RDWR);  // Makes accept4 fail.
  wake_.Signal();
  thread_.join();
}

void SocketListener::Run() {
  for (;;) {
    pollfd fds[2] = {{wake_.fd(), POLLIN, 0}, {socket_.fd.get(), POLLIN, 0}};
    if (poll(fds, 2, 1000) <= 0) continue;
    if (fds[0].revents != 0) return;
    UniqueFd socket(accept4(socket_.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    auto wake = WakeEvent::Create();
    if (!socket.valid() || !wake.ok()) continue;
    SetTcpOptions(socket.get());
    accept_(std::make_shared<SocketLink>(*std::move(wake), std::move(socket), ""));
  }
}

}  // namespace baton::kvtransfer
