// Addresses: what is accepted, what is refused and how the refusal reads; and why listening fails.
#include "common/base/host_port.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

TEST(HostPort, ParsesNamesAndBothKindsOfAddresses) {
  EXPECT_EQ(*ParseHostPort("127.0.0.1:80", false), (HostPort{"127.0.0.1", 80}));
  EXPECT_EQ(*ParseHostPort("worker-3.prefill.svc:65535", false),
            (HostPort{"worker-3.prefill.svc", 65535}));
  EXPECT_EQ(*ParseHostPort("[::1]:9000", false), (HostPort{"::1", 9000}));
  EXPECT_EQ(ParseHostPort("[::1]:9000", false)->ToString(), "[::1]:9000");
  EXPECT_EQ(ParseHostPort("localhost:0", true)->ToString(), "localhost:0");
}

TEST(HostPort, RefusesWhatIsNotAnAddressAndNamesIt) {
  for (const char* text : {"",
                           "8000",
                           "host",
                           "host:",
                           ":80",
                           "host:x",
                           "host:-1",
                           "host:+1",
                           "host: 1",
                           "host:65536",
                           "host:4294967376",
                           "host:000080",
                           "::1:80",
                           "[::1]",
                           "[host]:80",
                           "[]:80",
                           "ho st:80",
                           "http://host:80",
                           "host:80/",
                           "unix:/tmp/socket",
                           "a\nb:80"}) {
    const auto parsed = ParseHostPort(text, true);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("address '"));
    EXPECT_EQ(parsed.status().message().find('\n'), absl::string_view::npos);
  }
  EXPECT_FALSE(ParseHostPort(absl::StrCat(std::string(300, 'a'), ":80"), false).ok());
}

TEST(HostPort, RefusesPortZeroWhereOneHasToDial) {
  EXPECT_TRUE(ParseHostPort("127.0.0.1:0", true).ok());
  EXPECT_THAT(std::string(ParseHostPort("127.0.0.1:0", false).status().message()),
              HasSubstr("must not be 0"));
}

TEST(HostPort, KnowsLoopback) {
  EXPECT_TRUE(IsLoopback({"127.0.0.1", 1}));
  EXPECT_TRUE(IsLoopback({"127.8.9.10", 1}));
  EXPECT_TRUE(IsLoopback({"::1", 1}));
  EXPECT_FALSE(IsLoopback({"0.0.0.0", 1}));
  EXPECT_FALSE(IsLoopback({"::", 1}));
  EXPECT_FALSE(IsLoopback({"128.0.0.1", 1}));
}

TEST(HostPort, ResolvesLocalhostToIpv4Loopback) {
  const auto resolved = ResolveForListening({"localhost", 7});
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_TRUE(IsLoopback(*resolved)) << resolved->ToString();
  EXPECT_EQ(resolved->port, 7);
  EXPECT_EQ(ResolveForListening({"no-such-host.invalid", 7}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(HostPort, TryListenSaysThatThePortIsTaken) {
  EXPECT_TRUE(TryListen({"127.0.0.1", 0}).ok());
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_GE(fd, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const HostPort taken{"127.0.0.1", ntohs(address.sin_port)};
  const absl::Status status = TryListen(taken);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr(taken.ToString()), HasSubstr("in use")));
  close(fd);
  EXPECT_TRUE(TryListen(taken).ok());
}

TEST(HostPort, TryListenSaysThatTheAddressIsNotOfThisMachine) {
  // 192.0.2.0/24 is reserved for documentation.
  const absl::Status status = TryListen({"192.0.2.1", 0});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("192.0.2.1"));
}

}  // namespace
}  // namespace baton
