// The page over HTTP: what Prometheus' own linter says about every canonical metric, ports, scrapes
// in parallel with change, and memory.
#include "common/metrics/metrics_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/metrics/canonical.h"
#include "common/metrics/process_metrics.h"

namespace baton {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// The whole HTTP response to GET `path`; "" when the connection fails.
std::string HttpGet(const HostPort& address, const std::string& path) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  timeval timeout{.tv_sec = 10, .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(address.port);
  inet_pton(AF_INET, address.host.c_str(), &to.sin_addr);
  std::string response;
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0) {
    const std::string request =
        absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: baton\r\nConnection: close\r\n\r\n");
    EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
    char buffer[16384];
    ssize_t got = 0;
    while ((got = read(fd, buffer, sizeof(buffer))) > 0) response.append(buffer, got);
  }
  close(fd);
  return response;
}

std::string Body(const std::string& response) {
  const size_t end = response.find("\r\n\r\n");
  return end == std::string::npos ? "" : response.substr(end + 4);
}

// The path of promtool, or "" when it is not installed.
std::string FindPromtool() {
  if (const char* given = std::getenv("PROMTOOL")) return given;
  for (const char* candidate : {"build/tools/promtool", "/usr/bin/promtool"}) {
    if (access(candidate, X_OK) == 0) return candidate;
  }
  return "";
}

// Registers every canonical metric with a series, hostile label values among them.
void AddCanonicalMetrics(MetricsRegistry& registry) {
  namespace m = metrics;
  const std::string hostile = "quote\" back\\slash new\nline \u00e9";
  const auto add = [&](const MetricDefinition& definition) {
    const std::vector<absl::string_view> values(definition.labels.size(), hostile);
    switch (definition.type) {
      case MetricType::kCounter:
        registry.AddCounter(definition).With(values)->Increment();
        break;
      case MetricType::kGauge:
        registry.AddGauge(definition).With(values)->Set(1);
        break;
      case MetricType::kHistogram:
        registry.AddHistogram(definition).With(values)->Observe(0.02);
        break;
    }
  };
  for (const MetricDefinition* definition : {&m::kRequests,
                                             &m::kFinishedRequests,
                                             &m::kPromptTokens,
                                             &m::kGeneratedTokens,
                                             &m::kTimeToFirstTokenSeconds,
                                             &m::kInterTokenLatencySeconds,
                                             &m::kRequestDurationSeconds,
                                             &m::kQueueDurationSeconds,
                                             &m::kRequestPromptTokens,
                                             &m::kRequestGeneratedTokens,
                                             &m::kQueuedRequests,
                                             &m::kRunningRequests,
                                             &m::kPlacements,
                                             &m::kWorkerUp,
                                             &m::kWorkerSessionFailures,
                                             &m::kPairFailures,
                                             &m::kRunningSequences,
                                             &m::kWaitingSequences,
                                             &m::kQueuedPromptTokens,
                                             &m::kKvBlocks,
                                             &m::kEngineSteps,
                                             &m::kComputedPromptTokens,
                                             &m::kSampledTokens,
                                             &m::kPreemptions,
                                             &m::kNonfiniteLogits,
                                             &m::kEngineStalledSeconds,
                                             &m::kKvHandoverBytes,
                                             &m::kKvHandoverDurationSeconds,
                                             &m::kKvHandoverFailures,
                                             &m::kRouterSessions}) {
    add(*definition);
  }
}

TEST(MetricsServer, ServesTheRegistryAtItsPathOnly) {
  MetricsRegistry registry;
  registry.AddCounter(metrics::kRequests).With({"m", "OK"})->Increment();
  auto server = MetricsServer::Start("127.0.0.1:0", registry);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_NE((*server)->address().port, 0);
  const std::string response = HttpGet((*server)->address(), "/metrics");
  EXPECT_THAT(response, AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("text/plain"),
                              HasSubstr("baton_requests_total{model=\"m\",code=\"OK\"} 1\n")));
  EXPECT_THAT(HttpGet((*server)->address(), "/"), StartsWith("HTTP/1.1 404"));
}

TEST(MetricsServer, PromtoolAcceptsEveryCanonicalMetric) {
  const std::string promtool = FindPromtool();
  if (promtool.empty()) {
    GTEST_SKIP() << "promtool not found (./dev setup unpacks it): the page is not linted";
  }
  MetricsRegistry registry;
  AddCanonicalMetrics(registry);
  const ScrapeCallback process = AddProcessMetrics(registry, "1.0");
  auto server = MetricsServer::Start("127.0.0.1:0", registry);
  ASSERT_TRUE(server.ok()) << server.status();
  HttpGet((*server)->address(), "/metrics");  // The second page has the server's own metrics too.
  const std::string page = Body(HttpGet((*server)->address(), "/metrics"));
  ASSERT_THAT(page, HasSubstr("baton_kv_blocks"));
  const std::string file = absl::StrCat(testing::TempDir(), "/baton_metrics_", getpid(), ".txt");
  std::ofstream(file) << page;
  FILE* pipe = popen(absl::StrCat(promtool, " check metrics < ", file, " 2>&1").c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  char buffer[4096];
  while (const size_t got = fread(buffer, 1, sizeof(buffer), pipe)) output.append(buffer, got);
  const int status = pclose(pipe);
  std::remove(file.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 0) << output;
  EXPECT_EQ(output, "");
}

TEST(MetricsServer, SaysThatThePortIsTakenAndStartsOnceItIsFree) {
  MetricsRegistry registry;
  auto first = MetricsServer::Start("127.0.0.1:0", registry);
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string address = (*first)->address().ToString();
  auto second = MetricsServer::Start(address, registry);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()),
              AllOf(HasSubstr(address), HasSubstr("in use")));
  first->reset();
  second = MetricsServer::Start(address, registry);
  EXPECT_TRUE(second.ok()) << second.status();
}

TEST(MetricsServer, RefusesAnAddressThatIsNone) {
  MetricsRegistry registry;
  for (const char* address : {"", "9090", "host:port", "127.0.0.1:70000"}) {
    EXPECT_EQ(MetricsServer::Start(address, registry).status().code(),
              absl::StatusCode::kInvalidArgument)
        << address;
  }
}

TEST(MetricsServer, OutlivesItsRegistry) {
  auto registry = std::make_unique<MetricsRegistry>();
  registry->AddCounter(metrics::kRequests).With({"m", "OK"})->Increment();
  auto server = MetricsServer::Start("127.0.0.1:0", *registry);
  ASSERT_TRUE(server.ok()) << server.status();
  registry.reset();
  EXPECT_THAT(HttpGet((*server)->address(), "/metrics"),
              AllOf(StartsWith("HTTP/1.1 200"), Not(HasSubstr("baton_requests_total"))));
}

size_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  size_t pages = 0;
  statm >> pages >> pages;
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// A model is loaded and unloaded again and again while somebody scrapes.
TEST(MetricsServer, ModelsComeAndGoWhileItIsScraped) {
  MetricsRegistry registry;
  auto server = MetricsServer::Start("127.0.0.1:0", registry);
  ASSERT_TRUE(server.ok()) << server.status();
  std::atomic<bool> stop{false};
  std::atomic<int> scrapes{0};
  std::thread scraper([&] {
    while (!stop) {
      EXPECT_THAT(HttpGet((*server)->address(), "/metrics"), StartsWith("HTTP/1.1 200"));
      ++scrapes;
    }
  });
  for (int cycle = 0; cycle < 1000 || scrapes < 50; ++cycle) {
    registry.AddCounter(metrics::kRequests).With({"m", "OK"})->Increment();
    registry.AddHistogram(metrics::kTimeToFirstTokenSeconds).With({"m"})->Observe(1);
    auto blocks = registry.AddGauge(metrics::kKvBlocks).With({"m", "decode", "free"});
    ScrapeCallback callback = registry.AddScrapeCallback([&] { blocks->Set(cycle); });
    registry.RemoveSeries("model", "m");
  }
  stop = true;
  scraper.join();
  EXPECT_THAT(HttpGet((*server)->address(), "/metrics"), Not(HasSubstr("model=\"m\"")));
}

TEST(MetricsServer, ScrapingDoesNotGrowTheProcess) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "resident memory means nothing under a sanitizer";
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  GTEST_SKIP() << "resident memory means nothing under a sanitizer";
#endif
#endif
  MetricsRegistry registry;
  AddCanonicalMetrics(registry);
  auto server = MetricsServer::Start("127.0.0.1:0", registry);
  ASSERT_TRUE(server.ok()) << server.status();
  const auto scrape = [&](int times) {
    for (int i = 0; i < times; ++i) {
      ASSERT_THAT(HttpGet((*server)->address(), "/metrics"), StartsWith("HTTP/1.1 200"));
    }
  };
  scrape(300);
  const size_t before = ResidentBytes();
  scrape(1500);
  EXPECT_LT(ResidentBytes(), before + before / 20);
}

}  // namespace
}  // namespace baton
