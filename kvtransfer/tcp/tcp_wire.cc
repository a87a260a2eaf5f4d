#include "kvtransfer/tcp/tcp_wire.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "kvtransfer/tcp/tcp_end.h"
#include "kvtransfer/tcp/tcp_frame.h"
#include "kvtransfer/tcp/tcp_socket.h"
#include "kvtransfer/wire_token.h"

namespace baton::kvtransfer {
namespace {

bool IsWildcard(const HostPort& address) {
  return address.host == "0.0.0.0" || address.host == "::";
}

absl::StatusOr<std::unique_ptr<WireEnd>> ConnectToOffer(const WireOffer& offer, Duration limit) {
  const TimePoint deadline = SaturatingAdd(Clock::Real()->Now(), limit);
  ASSIGN_OR_RETURN(TcpConnection connection, ConnectTcpWire(offer, false, deadline));
  return TcpEnd::Create(WireDirection::kSend, std::move(connection.socket));
}

class TcpWireImpl : public TcpWire {
 public:
  TcpWireImpl(UniqueFd listener, WakeEvent wake, std::string address, Duration handshake_limit,
              TcpUpgrade* upgrade)
      : listener_(std::move(listener)),
        wake_(std::move(wake)),
        address_(std::move(address)),
        handshake_limit_(handshake_limit),
        upgrade_(upgrade),
        thread_([this] { Run(); }) {}
  ~TcpWireImpl() override { Shutdown(); }

  absl::string_view name() const override { return "tcp"; }
  const std::string& address() const override { return address_; }

  absl::StatusOr<WireOffer> Offer(Duration limit, Accepted accepted) override {
    ASSIGN_OR_RETURN(std::string token, MintWireToken());
    {
      MutexLock lock(mutex_);
      if (stopping_) return absl::UnavailableError("tcp wire: shut down");
      if (offers_.size() >= kWireOffersMax) {
        return absl::ResourceExhaustedError(
            absl::StrCat("tcp wire: ", kWireOffersMax, " offers are open"));
      }
      offers_.push_back({token, SaturatingAdd(Clock::Real()->Now(), limit), std::move(accepted)});
    }
    wake_.Signal();
    return WireOffer{address_, token};
  }

  void Withdraw(const WireOffer& offer) override {
    Accepted accepted = TakeOffer(offer.token);
    if (accepted) accepted(absl::CancelledError("tcp wire: offer withdrawn"));
  }

  absl::StatusOr<std::unique_ptr<WireEnd>> Connect(const WireOffer& offer,
                                                   Duration limit) override {
    return ConnectToOffer(offer, limit);
  }

  void Shutdown() override {
    std::vector<OpenOffer> offers;
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      stopping_ = true;
      offers.swap(offers_);
    }
    wake_.Signal();
    thread_.join();
    for (OpenOffer& offer : offers) offer.accepted(absl::CancelledError("tcp wire: shut down"));
    handshakes_.clear();
    listener_ = UniqueFd();
  }

 private:
  struct OpenOffer {
    std::string token;
    TimePoint expires;
    Accepted accepted;
  };
  // A connection that has not shown its token yet.
  struct Handshake {
    UniqueFd socket;
    TimePoint deadline;
    TcpHello hello{};
    size_t received = 0;
  };

  // nullptr when no open offer has this token. The time taken does not tell how much of it was
  // right.
  Accepted TakeOffer(absl::string_view token) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    auto found = offers_.end();
    for (auto it = offers_.begin(); it != offers_.end(); ++it) {
      if (WireTokensEqual(it->token, token)) found = it;
    }
    if (found == offers_.end() || found->expires <= Clock::Real()->Now()) return nullptr;
    Accepted accepted = std::move(found->accepted);
    offers_.erase(found);
    return accepted;
  }

  // Reports offers that nobody took and returns when the next one is due.
  TimePoint ExpireOffers(TimePoint now) EXCLUDES(mutex_) {
    std::vector<Accepted> expired;
    TimePoint next = kNever;
    {
      MutexLock lock(mutex_);
      for (auto it = offers_.begin(); it != offers_.end();) {
        if (it->expires <= now) {
          expired.push_back(std::move(it->accepted));
          it = offers_.erase(it);
        } else {
          next = std::min(next, it->expires);
          ++it;
        }
      }
    }
    for (Accepted& accepted : expired) {
      accepted(absl::DeadlineExceededError("tcp wire: nobody connected within the limit"));
    }
    return next;
  }

  void Run() {
    TimePoint accept_after{};  // Later when there was no descriptor for a connection.
    for (;;) {
      const TimePoint now = Clock::Real()->Now();
      TimePoint next = std::min(ExpireOffers(now), now + std::chrono::seconds(1));
      handshakes_.remove_if([&](const Handshake& h) { return h.deadline <= now; });
      std::vector<pollfd> fds = {{wake_.fd(), POLLIN, 0},
                                 {accept_after <= now ? listener_.get() : -1, POLLIN, 0}};
      if (accept_after > now) next = std::min(next, accept_after);
      for (const Handshake& h : handshakes_) {
        fds.push_back({h.socket.get(), POLLIN, 0});
        next = std::min(next, h.deadline);
      }
      const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next - now);
      const int n =
          poll(fds.data(), fds.size(), static_cast<int>(std::max<int64_t>(wait.count(), 0)));
      {
        MutexLock lock(mutex_);
        if (stopping_) return;
      }
      if (n <= 0) continue;
      if (fds[0].revents != 0) wake_.Drain();
      size_t i = 2;
      for (auto it = handshakes_.begin(); it != handshakes_.end(); ++i) {
        const bool done = fds[i].revents != 0 && Advance(&*it);
        it = done ? handshakes_.erase(it) : std::next(it);
      }
      if (fds[1].revents != 0 && !AcceptAll()) {
        accept_after = now + std::chrono::milliseconds(100);
      }
    }
  }

  // False when the process is out of descriptors.
  bool AcceptAll() {
    for (;;) {
      UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket.valid()) {
        return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
      }
      SetTcpOptions(socket.get());
      if (handshakes_.size() >= kTcpHandshakesMax) handshakes_.pop_front();
      handshakes_.push_back({.socket = std::move(socket),
                             .deadline = SaturatingAdd(Clock::Real()->Now(), handshake_limit_)});
    }
  }

  // True when the handshake has ended, one way or the other.
  bool Advance(Handshake* h) {
    const ssize_t n = recv(h->socket.get(), h->hello.data() + h->received,
                           h->hello.size() - h->received, MSG_DONTWAIT);
    if (n < 0) return errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK;
    if (n == 0) return true;
    h->received += static_cast<size_t>(n);
    if (!PlausibleTcpHello(absl::MakeConstSpan(h->hello).subspan(0, h->received))) return true;
    if (h->received < h->hello.size()) return false;
    Accepted accepted = TakeOffer(TokenOfTcpHello(h->hello));
    if (!accepted) return true;
    const bool agreed = upgrade_ != nullptr && TcpHelloAsksForUpgrade(h->hello);
    if (absl::Status s = Welcome(h->socket, agreed); !s.ok()) {
      accepted(s);
    } else if (upgrade_ != nullptr) {
      upgrade_->Accept(std::move(h->socket), agreed, std::move(accepted));
    } else {
      accepted(TcpEnd::Create(WireDirection::kReceive, std::move(h->socket)));
    }
    return true;
  }

  static absl::Status Welcome(const UniqueFd& socket, bool agreed) {
    const TcpWelcome welcome = EncodeTcpWelcome(agreed);
    // The first bytes on a connection: they fit its buffer, so this does not block.
    if (send(socket.get(), welcome.data(), welcome.size(), MSG_NOSIGNAL | MSG_DONTWAIT) !=
        static_cast<ssize_t>(welcome.size())) {
      return absl::UnavailableError("tcp wire: the peer left during the handshake");
    }
    return absl::OkStatus();
  }

  UniqueFd listener_;
  const WakeEvent wake_;
  const std::string address_;
  const Duration handshake_limit_;
  TcpUpgrade* const upgrade_;
  std::list<Handshake> handshakes_;  // Used by thread_ only; oldest first.
  Mutex mutex_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<OpenOffer> offers_ GUARDED_BY(mutex_);
  std::thread thread_;
};

// For a process that only sends: it listens nowhere.
class TcpConnector final : public Wire {
 public:
  absl::string_view name() const override { return "tcp"; }
  absl::StatusOr<WireOffer> Offer(Duration limit, Accepted accepted) override {
    return absl::FailedPreconditionError("tcp wire: this process only connects");
  }
  void Withdraw(const WireOffer& offer) override {}
  absl::StatusOr<std::unique_ptr<WireEnd>> Connect(const WireOffer& offer,
                                                   Duration limit) override {
    return ConnectToOffer(offer, limit);
  }
  void Shutdown() override {}
};

}  // namespace

std::unique_ptr<Wire> MakeTcpConnector() { return std::make_unique<TcpConnector>(); }

absl::StatusOr<TcpConnection> ConnectTcpWire(const WireOffer& offer, bool ask_for_upgrade,
                                             TimePoint deadline) {
  ASSIGN_OR_RETURN(HostPort peer, ParseHostPort(offer.address, /*allow_port_zero=*/false));
  if (offer.token.size() != kWireTokenBytes) {
    return absl::InvalidArgumentError("tcp wire: the offer's token is not one of this wire");
  }
  ASSIGN_OR_RETURN(UniqueFd socket, ConnectTcp(peer, deadline));
  RETURN_IF_ERROR(WriteAll(socket.get(), EncodeTcpHello(offer.token, ask_for_upgrade), deadline));
  TcpWelcome welcome;
  RETURN_IF_ERROR(
      Annotate(ReadAll(socket.get(), absl::MakeSpan(welcome), deadline), "waiting for welcome"));
  const bool upgraded = ask_for_upgrade && IsTcpWelcome(welcome, true);
  if (!upgraded && !IsTcpWelcome(welcome)) {
    return absl::UnavailableError(
        absl::StrCat("tcp wire: ", offer.address, " is not a KV wire of version 1"));
  }
  return TcpConnection{std::move(socket), upgraded};
}

absl::StatusOr<std::unique_ptr<TcpWire>> MakeTcpWire(const TcpWireOptions& options,
                                                     TcpUpgrade* upgrade) {
  ASSIGN_OR_RETURN(HostPort parsed, ParseHostPort(options.listen_address, true));
  ASSIGN_OR_RETURN(HostPort listen_address, ResolveForListening(parsed));
  ASSIGN_OR_RETURN(ListeningSocket listener, ListenTcp(listen_address));
  HostPort advertised = listener.address;
  if (!options.advertise_address.empty()) {
    ASSIGN_OR_RETURN(HostPort given, ParseHostPort(options.advertise_address, true));
    ASSIGN_OR_RETURN(advertised, ResolveForListening(given));
    if (advertised.port == 0) advertised.port = listener.address.port;
  }
  if (IsWildcard(advertised)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "KV listens on ", listener.address.ToString(),
        ": a wildcard cannot be connected to, so an address to advertise must be given"));
  }
  ASSIGN_OR_RETURN(WakeEvent wake, WakeEvent::Create());
  return std::unique_ptr<TcpWire>(
      std::make_unique<TcpWireImpl>(std::move(listener.fd), std::move(wake), advertised.ToString(),
                                    options.handshake_limit, upgrade));
}

}  // namespace baton::kvtransfer
