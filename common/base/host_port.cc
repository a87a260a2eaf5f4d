#include "common/base/host_port.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace baton {
namespace {

constexpr size_t kHostBytesMax = 255;

absl::Status Bad(absl::string_view text, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("address '", absl::Utf8SafeCEscape(text.substr(0, kHostBytesMax)), "': ", what));
}

struct AddrInfoDeleter {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using AddrInfoList = std::unique_ptr<addrinfo, AddrInfoDeleter>;

absl::StatusOr<AddrInfoList> Resolve(const HostPort& address, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV | flags;
  addrinfo* list = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &list);
  if (error != 0) return Bad(address.ToString(), gai_strerror(error));
  return AddrInfoList(list);
}

}  // namespace

std::string HostPort::ToString() const {
  if (absl::StrContains(host, ':')) return absl::StrCat("[", host, "]:", port);
  return absl::StrCat(host, ":", port);
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text, bool allow_port_zero) {
  if (absl::StartsWith(text, "unix:")) return Bad(text, "Unix sockets are not supported");
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return Bad(text, "must be HOST:PORT");
  absl::string_view host = text.substr(0, colon);
  const absl::string_view port = text.substr(colon + 1);
  const bool bracketed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty()) return Bad(text, "the host is missing (0.0.0.0 means every interface)");
  if (host.size() > kHostBytesMax) return Bad(text, "the host is too long");
  if (bracketed) {
    in6_addr ignored;
    if (inet_pton(AF_INET6, std::string(host).c_str(), &ignored) != 1) {
      return Bad(text, "only an IPv6 address goes in brackets");
    }
  } else {
    for (const char c : host) {
      if (c == ':') return Bad(text, "an IPv6 address goes in brackets: [::1]:80");
      if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '-' && c != '_') {
        return Bad(text, "the host has a character that host names cannot have");
      }
    }
  }
  uint32_t number = 0;
  const bool digits = !port.empty() && std::all_of(port.begin(), port.end(), [](unsigned char c) {
    return absl::ascii_isdigit(c);
  });
  if (!digits || port.size() > 5 || !absl::SimpleAtoi(port, &number) || number > 65535) {
    return Bad(text, "the port must be a number up to 65535");
  }
  if (number == 0 && !allow_port_zero) return Bad(text, "the port must not be 0");
  return HostPort{std::string(host), static_cast<uint16_t>(number)};
}

absl::StatusOr<HostPort> ResolveForListening(const HostPort& address) {
  absl::StatusOr<AddrInfoList> list = Resolve(address, 0);
  if (!list.ok()) return list.status();
  // IPv4 first: "localhost" is 127.0.0.1, as most clients expect.
  const addrinfo* chosen = list->get();
  for (const addrinfo* entry = list->get(); entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family == AF_INET) {
      chosen = entry;
      break;
    }
  }
  char host[NI_MAXHOST];
  const int error = getnameinfo(chosen->ai_addr, chosen->ai_addrlen, host, sizeof(host), nullptr, 0,
                                NI_NUMERICHOST);
  if (error != 0) return Bad(address.ToString(), gai_strerror(error));
  return HostPort{host, address.port};
}

bool IsLoopback(const HostPort& address) {
  in_addr v4;
  if (inet_pton(AF_INET, address.host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  return address.host == "::1";
}

absl::Status TryListen(const HostPort& address) {
  absl::StatusOr<AddrInfoList> list = Resolve(address, AI_NUMERICHOST);
  if (!list.ok()) return list.status();
  const addrinfo* entry = list->get();
  const auto failed = [&address] {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot listen on ", address.ToString(), ": ", std::strerror(errno)));
  };
  const int fd = socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return failed();
  // As servers do: a port in TIME_WAIT is free, one that somebody listens on is not.
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  absl::Status status;
  if (bind(fd, entry->ai_addr, entry->ai_addrlen) != 0 || listen(fd, 1) != 0) status = failed();
  close(fd);
  return status;
}

}  // namespace baton
