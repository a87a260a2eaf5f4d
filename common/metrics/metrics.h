// Metrics of one process: families of counters, gauges and histograms, scraped by Prometheus.
// prometheus-cpp writes the text format and serves it (metrics_server.h); it appears in .cc files
// of this folder only.
//
//   MetricsRegistry registry;
//   CounterFamily& requests = registry.AddCounter(metrics::kRequests);      // canonical.h
//   std::shared_ptr<Counter> ok = requests.With({"llama", "OK"});           // keep the handle
//   ok->Increment();
//   ScrapeCallback gauges = registry.AddScrapeCallback([&] { blocks->Set(pool.free()); });
//
// Invariants:
//  - A family has at most `series_max` series, whatever the label values. What comes later, is
//  longer
//    than kLabelValueBytesMax or is not UTF-8 shares one series whose label values are all "other",
//    so text from a request can never grow the page (it still should not be a label at all).
//  - A handle outlives its series: after Remove the series is gone from the page, and updates
//  through
//    an old handle go nowhere. With() after Remove starts a new series at zero.
//  - A scrape sees what one run of the scrape callbacks has set: scrapes are serialised.
//  - Families stay for the registry's lifetime; references to them are stable.
//
// Thread rule: everything is thread-safe. Counters and gauges are one atomic; a histogram takes a
// lock per call, so observe once per engine step (the Span form), not per token.
#ifndef BATON_COMMON_METRICS_METRICS_H_
#define BATON_COMMON_METRICS_METRICS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"

namespace prometheus {
class Collectable;
}  // namespace prometheus

namespace baton {

inline constexpr size_t kLabelValueBytesMax = 256;
inline constexpr absl::string_view kOtherLabelValue = "other";

enum class MetricType { kCounter, kGauge, kHistogram };

// What a metric is. The canonical ones are constants in canonical.h, listed in docs/metrics.md.
struct MetricDefinition {
  MetricType type = MetricType::kCounter;
  // "baton_" (or "process_", the names common to all Prometheus clients), base units, "_total" for
  // counters and for nothing else.
  absl::string_view name = {};
  // One sentence. Any text; it is escaped.
  absl::string_view help = {};
  // Label names; With() takes the values in this order.
  absl::Span<const absl::string_view> labels = {};
  // Histograms only: upper bounds, ascending and finite; +Inf is added (buckets.h).
  absl::Span<const double> buckets = {};
  // Includes the "other" series.
  size_t series_max = 256;
};

// ERRORS: InvalidArgument naming the metric and what is wrong: prefix, characters (':' is for
// recording rules), unit or type in the name, suffix, labels, buckets, series_max, missing help.
absl::Status ValidateMetric(const MetricDefinition& definition);

class Counter {
 public:
  // REQUIRES: by >= 0.
  void Increment(double by = 1);
  // For totals that are counted elsewhere: raises the value to `total`; a lower one changes
  // nothing.
  void RaiseTo(double total);
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

class Gauge {
 public:
  void Set(double value) { value_.store(value, std::memory_order_relaxed); }
  void Add(double by);
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

class Histogram {
 public:
  struct Snapshot {
    // Observations per bucket, not cumulative; the last one is above all bounds.
    std::vector<uint64_t> counts;
    double sum = 0;
    uint64_t count = 0;
  };

  explicit Histogram(absl::Span<const double> bounds);

  // A value equal to a bound belongs to that bound's bucket. NaN and infinities are dropped: one of
  // them would spoil the sum for ever.
  void Observe(double value) EXCLUDES(mutex_);
  // All of one step under one lock.
  void Observe(absl::Span<const double> values) EXCLUDES(mutex_);
  Snapshot snapshot() const EXCLUDES(mutex_);

 private:
  void ObserveLocked(double value) REQUIRES(mutex_);

  const std::vector<double> bounds_;
  mutable Mutex mutex_;
  Snapshot data_ GUARDED_BY(mutex_);
};

namespace metrics_internal {
template <typename T>
class FamilyState;
class RegistryState;
}  // namespace metrics_internal

template <typename T>
class MetricFamily {
 public:
  // The series with these label values, made at zero when it is new; the "other" series when the
  // family is full. REQUIRES: as many values as the definition has labels.
  std::shared_ptr<T> With(std::initializer_list<absl::string_view> values);
  std::shared_ptr<T> With(absl::Span<const absl::string_view> values);
  // False when there was no such series.
  bool Remove(std::initializer_list<absl::string_view> values);
  size_t series() const;

 private:
  friend class metrics_internal::RegistryState;
  explicit MetricFamily(std::shared_ptr<metrics_internal::FamilyState<T>> state);
  std::shared_ptr<metrics_internal::FamilyState<T>> state_;
};

using CounterFamily = MetricFamily<Counter>;
using GaugeFamily = MetricFamily<Gauge>;
using HistogramFamily = MetricFamily<Histogram>;

// Keeps a scrape callback registered; the destructor returns once no run of it is in progress.
// Movable. May outlive the registry. REQUIRES: not destroyed from inside a callback.
class ScrapeCallback {
 public:
  ScrapeCallback() = default;
  ScrapeCallback(ScrapeCallback&& other) noexcept;
  ScrapeCallback& operator=(ScrapeCallback&& other) noexcept;
  ScrapeCallback(const ScrapeCallback&) = delete;
  ScrapeCallback& operator=(const ScrapeCallback&) = delete;
  ~ScrapeCallback();

 private:
  friend class MetricsRegistry;
  ScrapeCallback(std::weak_ptr<metrics_internal::RegistryState> registry, uint64_t id);
  void Release();

  std::weak_ptr<metrics_internal::RegistryState> registry_;
  uint64_t id_ = 0;
};

class MetricsRegistry {
 public:
  MetricsRegistry();
  ~MetricsRegistry();
  MetricsRegistry(const MetricsRegistry&) = delete;
  MetricsRegistry& operator=(const MetricsRegistry&) = delete;

  // A definition that is already there gives the same family, so that two roles of one process can
  // share it. REQUIRES: ValidateMetric(definition).ok(), the type of the method, and no other
  // definition under that name.
  CounterFamily& AddCounter(const MetricDefinition& definition);
  GaugeFamily& AddGauge(const MetricDefinition& definition);
  HistogramFamily& AddHistogram(const MetricDefinition& definition);

  // `callback` runs at the start of every scrape, on the scraping thread, before any value is read;
  // it must not block, scrape or register callbacks. It may create, set and remove series.
  [[nodiscard]] ScrapeCallback AddScrapeCallback(std::function<void()> callback);

  // Removes the series of every family that has `label` with `value`: a model that was unloaded.
  // Returns how many.
  size_t RemoveSeries(absl::string_view label, absl::string_view value);

  // The page in Prometheus' text format: what a scrape gets.
  std::string Scrape();

  // For the HTTP server.
  std::shared_ptr<prometheus::Collectable> collectable();

 private:
  std::shared_ptr<metrics_internal::RegistryState> state_;
};

}  // namespace baton

#endif  // BATON_COMMON_METRICS_METRICS_H_
