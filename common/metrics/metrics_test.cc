// The registry without a server: bounds, escaping, histograms, removal, callbacks, definitions.
#include "common/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/metrics/canonical.h"
#include "common/metrics/process_metrics.h"

namespace baton {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::string_view kName[] = {"name"};
constexpr absl::string_view kNameState[] = {"name", "state"};
constexpr double kBounds[] = {1, 2, 5};

constexpr MetricDefinition kCounterDefinition{.type = MetricType::kCounter,
                                              .name = "baton_test_events_total",
                                              .help = "Events of the test.",
                                              .labels = kName,
                                              .series_max = 10};
constexpr MetricDefinition kHistogramDefinition{.type = MetricType::kHistogram,
                                                .name = "baton_test_duration_seconds",
                                                .help = "Durations of the test.",
                                                .buckets = kBounds};

size_t CountLines(const std::string& page, absl::string_view prefix) {
  size_t count = 0;
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    if (line.substr(0, prefix.size()) == prefix) ++count;
  }
  return count;
}

TEST(Metrics, CountersAndGaugesAppearWithTheirLabels) {
  MetricsRegistry registry;
  registry.AddCounter(kCounterDefinition).With({"a"})->Increment(2.5);
  registry.AddCounter(kCounterDefinition).With({"a"})->Increment();
  registry.AddGauge({.type = MetricType::kGauge, .name = "baton_test_level", .help = "A level."})
      .With({})
      ->Set(-3);
  const std::string page = registry.Scrape();
  EXPECT_THAT(page, HasSubstr("# TYPE baton_test_events_total counter\n"
                              "baton_test_events_total{name=\"a\"} 3.5\n"));
  EXPECT_THAT(page, HasSubstr("# HELP baton_test_level A level.\n"
                              "# TYPE baton_test_level gauge\nbaton_test_level -3\n"));
}

TEST(Metrics, RaiseToNeverLowersACounter) {
  Counter counter;
  counter.RaiseTo(7);
  counter.RaiseTo(5);
  EXPECT_EQ(counter.value(), 7);
}

TEST(Metrics, AFamilyCannotGrowBeyondItsLimit) {
  MetricsRegistry registry;
  CounterFamily& family = registry.AddCounter(kCounterDefinition);
  for (int i = 0; i < 10000; ++i) family.With({absl::StrCat("model-", i)})->Increment();
  EXPECT_EQ(family.series(), 10u);
  const std::string page = registry.Scrape();
  EXPECT_EQ(CountLines(page, "baton_test_events_total{"), 10u);
  EXPECT_THAT(page, HasSubstr("baton_test_events_total{name=\"other\"} 9991\n"));
  // A series that is there keeps its place, and removal makes room again.
  EXPECT_EQ(family.With({"model-3"})->value(), 1);
  EXPECT_TRUE(family.Remove({"model-3"}));
  EXPECT_FALSE(family.Remove({"model-3"}));
  family.With({"model-20000"})->Increment();
  EXPECT_THAT(registry.Scrape(), HasSubstr("{name=\"model-20000\"} 1\n"));
}

TEST(Metrics, ValuesThatAreTooLongOrNotUtf8AreCountedAsOther) {
  MetricsRegistry registry;
  CounterFamily& family = registry.AddCounter(kCounterDefinition);
  const std::string longest(kLabelValueBytesMax, 'x');
  family.With({longest})->Increment();
  EXPECT_EQ(family.With({"other"})->value(), 0);
  double expected = 0;
  for (const std::string& value :
       {std::string(kLabelValueBytesMax + 1, 'x'), std::string(1 << 20, 'x'), std::string("\xff"),
        std::string("\xc3"), std::string("a\xc0\x80"), std::string("\xed\xa0\x80"),
        std::string("\xf4\x90\x80\x80"), std::string("\xe2\x82")}) {
    family.With({value})->Increment();
    EXPECT_EQ(family.With({"other"})->value(), ++expected);
  }
  family.With({"\u00e9\u20ac\U0001F600"})->Increment();
  EXPECT_EQ(family.With({"other"})->value(), expected);
}

TEST(Metrics, HelpAndLabelValuesAreEscaped) {
  MetricsRegistry registry;
  registry
      .AddCounter({.type = MetricType::kCounter,
                   .name = "baton_test_events_total",
                   .help = "Back\\slash and\nnewline.",
                   .labels = kName})
      .With({"q\"b\\n\nl"})
      ->Increment();
  const std::string page = registry.Scrape();
  EXPECT_THAT(page, HasSubstr("# HELP baton_test_events_total Back\\\\slash and\\nnewline.\n"));
  EXPECT_THAT(page, HasSubstr("{name=\"q\\\"b\\\\n\\nl\"} 1\n"));
}

TEST(Metrics, HistogramBucketsAreCumulativeAndBoundsInclusive) {
  MetricsRegistry registry;
  auto histogram = registry.AddHistogram(kHistogramDefinition).With({});
  histogram->Observe(1);
  histogram->Observe(std::vector<double>{0.5, 1.5, 5, 6, 100});
  for (const double dropped : {std::numeric_limits<double>::quiet_NaN(), double{INFINITY}}) {
    histogram->Observe(dropped);
  }
  EXPECT_THAT(registry.Scrape(), HasSubstr("baton_test_duration_seconds_count 6\n"
                                           "baton_test_duration_seconds_sum 114\n"
                                           "baton_test_duration_seconds_bucket{le=\"1\"} 2\n"
                                           "baton_test_duration_seconds_bucket{le=\"2\"} 3\n"
                                           "baton_test_duration_seconds_bucket{le=\"5\"} 4\n"
                                           "baton_test_duration_seconds_bucket{le=\"+Inf\"} 6\n"));
}

// As PromQL's histogram_quantile: linear within the bucket.
double Quantile(double q, absl::Span<const double> bounds, const Histogram::Snapshot& snapshot) {
  const double rank = q * static_cast<double>(snapshot.count);
  double below = 0;
  for (size_t i = 0; i < bounds.size(); ++i) {
    const auto here = static_cast<double>(snapshot.counts[i]);
    if (below + here >= rank && here > 0) {
      const double low = i == 0 ? 0 : bounds[i - 1];
      return low + (bounds[i] - low) * (rank - below) / here;
    }
    below += here;
  }
  return bounds.back();
}

TEST(Metrics, QuantilesFromTheBucketsAreWithinAFactorOfTwo) {
  struct Case {
    absl::Span<const double> bounds;
    double fast;
    double slow;
  };
  const std::vector<Case> cases = {{metrics::kFirstTokenSecondsBuckets, .020, 130},
                                   {metrics::kRequestSecondsBuckets, .020, 130},
                                   {metrics::kRequestSecondsBuckets, .2, 700},
                                   {metrics::kInterTokenSecondsBuckets, .003, .3}};
  for (const Case& c : cases) {
    Histogram histogram(c.bounds);
    for (int i = 0; i < 95; ++i) histogram.Observe(c.fast);
    for (int i = 0; i < 5; ++i) histogram.Observe(c.slow);
    const double p50 = Quantile(.5, c.bounds, histogram.snapshot());
    const double p99 = Quantile(.99, c.bounds, histogram.snapshot());
    EXPECT_GT(p50, c.fast / 2);
    EXPECT_LT(p50, c.fast * 2);
    EXPECT_GT(p99, c.slow / 2);
    EXPECT_LT(p99, c.slow * 2);
  }
}

TEST(Metrics, BucketsReachFromMillisecondsToTheLongestRequests) {
  EXPECT_LE(metrics::kFirstTokenSecondsBuckets[0], .005);
  EXPECT_LE(metrics::kInterTokenSecondsBuckets[0], .005);
  EXPECT_GE(*std::rbegin(metrics::kRequestSecondsBuckets), 600);
  EXPECT_GE(*std::rbegin(metrics::kTokenCountBuckets), 131072);
}

TEST(Metrics, RemovedSeriesVanishAndOldHandlesDoNoHarm) {
  MetricsRegistry registry;
  CounterFamily& events = registry.AddCounter(kCounterDefinition);
  GaugeFamily& levels = registry.AddGauge({.type = MetricType::kGauge,
                                           .name = "baton_test_level",
                                           .help = "A level.",
                                           .labels = kNameState});
  auto old = events.With({"gone"});
  old->Increment();
  events.With({"stays"})->Increment();
  levels.With({"gone", "x"})->Set(1);
  levels.With({"gone", "y"})->Set(1);
  levels.With({"stays", "gone"})->Set(1);
  EXPECT_EQ(registry.RemoveSeries("name", "gone"), 3u);
  old->Increment();
  const std::string page = registry.Scrape();
  EXPECT_THAT(page, Not(HasSubstr("name=\"gone\"")));
  EXPECT_THAT(page, HasSubstr("baton_test_events_total{name=\"stays\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("{name=\"stays\",state=\"gone\"} 1\n"));
  EXPECT_EQ(events.With({"gone"})->value(), 0);
}

TEST(Metrics, HandlesAndCallbacksOutliveTheRegistry) {
  std::shared_ptr<Counter> counter;
  ScrapeCallback callback;
  {
    MetricsRegistry registry;
    counter = registry.AddCounter(kCounterDefinition).With({"a"});
    callback = registry.AddScrapeCallback([] {});
  }
  counter->Increment();
  EXPECT_EQ(counter->value(), 1);
}

TEST(Metrics, ScrapeCallbacksSetWhatTheScrapeShows) {
  MetricsRegistry registry;
  auto gauge =
      registry
          .AddGauge({.type = MetricType::kGauge, .name = "baton_test_level", .help = "A level."})
          .With({});
  int runs = 0;
  {
    ScrapeCallback callback = registry.AddScrapeCallback([&] { gauge->Set(++runs); });
    ScrapeCallback moved = std::move(callback);
    EXPECT_THAT(registry.Scrape(), HasSubstr("baton_test_level 1\n"));
    EXPECT_THAT(registry.Scrape(), HasSubstr("baton_test_level 2\n"));
  }
  EXPECT_THAT(registry.Scrape(), HasSubstr("baton_test_level 2\n"));
  EXPECT_EQ(runs, 2);
}

// Blocks move between states all the time; each page must still show one moment.
TEST(Metrics, EachScrapeIsOneSnapshotOfItsCallbacks) {
  MetricsRegistry registry;
  GaugeFamily& blocks = registry.AddGauge({.type = MetricType::kGauge,
                                           .name = "baton_test_blocks",
                                           .help = "Blocks.",
                                           .labels = kName});
  auto used = blocks.With({"used"});
  auto free = blocks.With({"free"});
  int next = 0;
  ScrapeCallback callback = registry.AddScrapeCallback([&] {
    next = (next + 7) % 100;
    used->Set(next);
    std::this_thread::yield();
    free->Set(100 - next);
  });
  std::atomic<int> wrong{0};
  const auto scrape = [&] {
    for (int i = 0; i < 200; ++i) {
      double sum = 0;
      for (const absl::string_view line : absl::StrSplit(registry.Scrape(), '\n')) {
        const std::vector<absl::string_view> parts = absl::StrSplit(line, ' ');
        double value = 0;
        if (parts.size() == 2 && absl::SimpleAtod(parts[1], &value)) sum += value;
      }
      if (sum != 100) ++wrong;
    }
  };
  std::thread a(scrape);
  std::thread b(scrape);
  a.join();
  b.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Metrics, SeriesCanComeAndGoWhileThreadsUpdateAndScrape) {
  MetricsRegistry registry;
  CounterFamily& events = registry.AddCounter(kCounterDefinition);
  HistogramFamily& durations = registry.AddHistogram(kHistogramDefinition);
  durations.With({});
  std::atomic<bool> stop{false};
  std::thread scraper([&] {
    while (!stop) EXPECT_FALSE(registry.Scrape().empty());
  });
  std::thread writer([&] {
    auto duration = durations.With({});
    auto held = events.With({"m"});
    while (!stop) {
      held->Increment();
      events.With({"m"})->Increment();
      duration->Observe(std::vector<double>{1, 2, 3});
    }
  });
  for (int cycle = 0; cycle < 1000; ++cycle) {
    events.With({"m"})->Increment();
    registry.RemoveSeries("name", "m");
    ScrapeCallback callback = registry.AddScrapeCallback([&] { events.With({"k"})->Increment(); });
  }
  stop = true;
  scraper.join();
  writer.join();
  registry.RemoveSeries("name", "m");
  EXPECT_THAT(registry.Scrape(), Not(HasSubstr("name=\"m\"")));
}

TEST(Metrics, TheSameDefinitionIsTheSameFamily) {
  MetricsRegistry registry;
  EXPECT_EQ(&registry.AddCounter(kCounterDefinition), &registry.AddCounter(kCounterDefinition));
}

TEST(MetricsDeathTest, RefusesAnotherDefinitionUnderATakenName) {
  MetricsRegistry registry;
  registry.AddCounter(kCounterDefinition);
  MetricDefinition other = kCounterDefinition;
  other.labels = kNameState;
  EXPECT_DEATH(registry.AddCounter(other), "defined differently");
  EXPECT_DEATH(registry.AddGauge(kCounterDefinition), "another type");
  EXPECT_DEATH(registry.AddCounter(kCounterDefinition).With({"a", "b"}), "label values");
}

TEST(ValidateMetric, AcceptsGoodDefinitions) {
  EXPECT_TRUE(ValidateMetric(kCounterDefinition).ok());
  EXPECT_TRUE(ValidateMetric(kHistogramDefinition).ok());
}

TEST(ValidateMetric, RefusesBadNamesSuffixesLabelsAndBuckets) {
  struct Case {
    MetricDefinition definition;
    const char* reason;
  };
  static constexpr absl::string_view kLe[] = {"le"};
  static constexpr absl::string_view kTwice[] = {"a", "a"};
  static constexpr absl::string_view kUpper[] = {"Name"};
  static constexpr double kDescending[] = {2, 1};
  static constexpr double kInfinite[] = {1, INFINITY};
  const auto counter = [](absl::string_view name) {
    return MetricDefinition{.type = MetricType::kCounter, .name = name, .help = "H."};
  };
  const auto gauge = [](absl::string_view name) {
    return MetricDefinition{.type = MetricType::kGauge, .name = name, .help = "H."};
  };
  std::vector<Case> cases = {
      {counter("requests_total"), "must begin with"},
      {counter("vllm:requests_total"), "must begin with"},
      {counter("baton_a:b_total"), "snake case"},
      {counter("baton_Requests_total"), "snake case"},
      {counter("baton_requests"), "'_total'"},
      {gauge("baton_requests_total"), "'_total'"},
      {gauge("baton_latency_ms"), "'ms'"},
      {gauge("baton_latency_milliseconds"), "'milliseconds'"},
      {gauge("baton_pool_mb"), "'mb'"},
      {gauge("baton_queue_gauge"), "'gauge'"},
      {gauge("baton_used_percent"), "'percent'"},
      {gauge("baton_queue_count"), "'_count'"},
      {gauge("baton__queue"), "empty part"},
      {{.type = MetricType::kGauge, .name = "baton_queue"}, "no help"},
      {{.type = MetricType::kGauge, .name = "baton_queue", .help = "H.", .labels = kLe}, "'le'"},
      {{.type = MetricType::kGauge, .name = "baton_queue", .help = "H.", .labels = kTwice},
       "twice"},
      {{.type = MetricType::kGauge, .name = "baton_queue", .help = "H.", .labels = kUpper},
       "'Name'"},
      {{.type = MetricType::kGauge, .name = "baton_queue", .help = "H.", .series_max = 0},
       "series_max"},
      {{.type = MetricType::kGauge, .name = "baton_queue", .help = "H.", .buckets = kBounds},
       "only histograms"},
      {{.type = MetricType::kHistogram, .name = "baton_queue", .help = "H."}, "needs buckets"},
      {{.type = MetricType::kHistogram,
        .name = "baton_queue",
        .help = "H.",
        .buckets = kDescending},
       "ascend"},
      {{.type = MetricType::kHistogram, .name = "baton_queue", .help = "H.", .buckets = kInfinite},
       "finite"}};
  for (const Case& c : cases) {
    const absl::Status status = ValidateMetric(c.definition);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.definition.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.reason));
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(c.definition.name)));
  }
}

TEST(ProcessMetrics, ShowThisProcess) {
  MetricsRegistry registry;
  const ScrapeCallback callback = AddProcessMetrics(registry, "1.2.3");
  const std::string page = registry.Scrape();
  EXPECT_THAT(page, HasSubstr("baton_build_info{version=\"1.2.3\",compiler=\""));
  const auto value = [&](absl::string_view name) {
    for (const absl::string_view line : absl::StrSplit(page, '\n')) {
      const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(line, ' ');
      double number = 0;
      if (parts.first == name && absl::SimpleAtod(parts.second, &number)) return number;
    }
    return -1.0;
  };
  EXPECT_GE(value("process_cpu_seconds_total"), 0);
  EXPECT_GT(value("process_resident_memory_bytes"), 1 << 20);
  EXPECT_GT(value("process_virtual_memory_bytes"), value("process_resident_memory_bytes"));
  EXPECT_GE(value("process_open_fds"), 3);
  EXPECT_GE(value("process_max_fds"), value("process_open_fds"));
  EXPECT_GE(value("process_threads"), 1);
}

}  // namespace
}  // namespace baton
