#include "common/metrics/metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/check.h"

namespace baton {
namespace {

bool IsUtf8(absl::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t length = lead < 0x80             ? 1
                          : (lead & 0xe0) == 0xc0 ? 2
                          : (lead & 0xf0) == 0xe0 ? 3
                          : (lead & 0xf8) == 0xf0 ? 4
                                                  : 0;
    if (length == 0 || i + length > text.size()) return false;
    uint32_t code_point = length == 1 ? lead : lead & (0x7fu >> length);
    for (size_t j = 1; j < length; ++j) {
      const auto next = static_cast<unsigned char>(text[i + j]);
      if ((next & 0xc0) != 0x80) return false;
      code_point = code_point << 6 | (next & 0x3f);
    }
    constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
    if (code_point < kSmallest[length] || code_point > 0x10ffff ||
        (code_point >= 0xd800 && code_point <= 0xdfff)) {
      return false;
    }
    i += length;
  }
  return true;
}

// prometheus-cpp escapes label values but writes help text as it is.
std::string EscapeHelp(absl::string_view help) {
  return absl::StrReplaceAll(help, {{"\\", "\\\\"}, {"\n", "\\n"}, {"\r", " "}});
}

void AddTo(std::atomic<double>& value, double by) {
  double old = value.load(std::memory_order_relaxed);
  while (!value.compare_exchange_weak(old, old + by, std::memory_order_relaxed)) {
  }
}

void Export(const Counter& counter, const std::vector<double>&, prometheus::ClientMetric& out) {
  out.counter.value = counter.value();
}

void Export(const Gauge& gauge, const std::vector<double>&, prometheus::ClientMetric& out) {
  out.gauge.value = gauge.value();
}

void Export(const Histogram& histogram, const std::vector<double>& bounds,
            prometheus::ClientMetric& out) {
  const Histogram::Snapshot snapshot = histogram.snapshot();
  uint64_t cumulative = 0;
  for (size_t i = 0; i < snapshot.counts.size(); ++i) {
    cumulative += snapshot.counts[i];
    const double bound = i < bounds.size() ? bounds[i] : INFINITY;
    out.histogram.bucket.push_back({cumulative, bound});
  }
  out.histogram.sample_count = snapshot.count;
  out.histogram.sample_sum = snapshot.sum;
}

template <typename T>
std::shared_ptr<T> MakeSeries(const std::vector<double>& bounds) {
  if constexpr (std::is_same_v<T, Histogram>) {
    return std::make_shared<Histogram>(bounds);
  } else {
    return std::make_shared<T>();
  }
}

prometheus::MetricType ToPrometheus(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return prometheus::MetricType::Counter;
    case MetricType::kGauge:
      return prometheus::MetricType::Gauge;
    case MetricType::kHistogram:
      return prometheus::MetricType::Histogram;
  }
  return prometheus::MetricType::Untyped;
}

}  // namespace

void Counter::Increment(double by) {
  DCHECK(by >= 0);
  AddTo(value_, by);
}

void Counter::RaiseTo(double total) {
  double old = value_.load(std::memory_order_relaxed);
  while (old < total && !value_.compare_exchange_weak(old, total, std::memory_order_relaxed)) {
  }
}

void Gauge::Add(double by) { AddTo(value_, by); }

Histogram::Histogram(absl::Span<const double> bounds) : bounds_(bounds.begin(), bounds.end()) {
  data_.counts.resize(bounds_.size() + 1);
}

void Histogram::ObserveLocked(double value) {
  if (!std::isfinite(value)) return;
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  ++data_.counts[static_cast<size_t>(bucket)];
  ++data_.count;
  data_.sum += value;
}

void Histogram::Observe(double value) {
  MutexLock lock(mutex_);
  ObserveLocked(value);
}

void Histogram::Observe(absl::Span<const double> values) {
  if (values.empty()) return;
  MutexLock lock(mutex_);
  for (const double value : values) ObserveLocked(value);
}

Histogram::Snapshot Histogram::snapshot() const {
  MutexLock lock(mutex_);
  return data_;
}

namespace metrics_internal {

// What the registry needs of a family, whatever its type.
class AnyFamily {
 public:
  explicit AnyFamily(const MetricDefinition& definition)
      : type_(definition.type),
        name_(definition.name),
        help_(definition.help),
        labels_(definition.labels.begin(), definition.labels.end()),
        bounds_(definition.buckets.begin(), definition.buckets.end()),
        series_max_(definition.series_max) {}
  virtual ~AnyFamily() = default;

  virtual prometheus::MetricFamily Collect() const = 0;
  virtual size_t RemoveWhere(size_t label_index, absl::string_view value) = 0;

  const std::string& name() const { return name_; }
  const std::vector<std::string>& labels() const { return labels_; }
  bool Matches(const MetricDefinition& d) const {
    return type_ == d.type && help_ == d.help && series_max_ == d.series_max &&
           std::equal(labels_.begin(), labels_.end(), d.labels.begin(), d.labels.end()) &&
           std::equal(bounds_.begin(), bounds_.end(), d.buckets.begin(), d.buckets.end());
  }

 protected:
  const MetricType type_;
  const std::string name_;
  const std::string help_;
  const std::vector<std::string> labels_;
  const std::vector<double> bounds_;
  const size_t series_max_;
};

template <typename T>
class FamilyState : public AnyFamily {
 public:
  using AnyFamily::AnyFamily;

  std::shared_ptr<T> With(absl::Span<const absl::string_view> values) EXCLUDES(mutex_) {
    CHECK_EQ(values.size(), labels_.size()) << "label values for " << name_;
    std::vector<std::string> key(values.begin(), values.end());
    bool printable = true;
    for (const std::string& value : key) {
      printable = printable && value.size() <= kLabelValueBytesMax && IsUtf8(value);
    }
    MutexLock lock(mutex_);
    if (const auto found = series_.find(key); found != series_.end()) return found->second;
    const std::vector<std::string> other(labels_.size(), std::string(kOtherLabelValue));
    const size_t own_series = series_.size() - series_.count(other);
    // One place is kept for the "other" series.
    if (!printable || (!labels_.empty() && own_series + 1 >= series_max_)) key = other;
    std::shared_ptr<T>& made = series_[std::move(key)];
    if (made == nullptr) made = MakeSeries<T>(bounds_);
    return made;
  }

  bool Remove(absl::Span<const absl::string_view> values) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return series_.erase(std::vector<std::string>(values.begin(), values.end())) > 0;
  }

  size_t RemoveWhere(size_t label_index, absl::string_view value) override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    size_t removed = 0;
    for (auto it = series_.begin(); it != series_.end();) {
      if (it->first[label_index] == value) {
        it = series_.erase(it);
        ++removed;
      } else {
        ++it;
      }
    }
    return removed;
  }

  size_t series() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return series_.size();
  }

  prometheus::MetricFamily Collect() const override EXCLUDES(mutex_) {
    prometheus::MetricFamily family{name_, EscapeHelp(help_), ToPrometheus(type_), {}};
    MutexLock lock(mutex_);
    family.metric.reserve(series_.size());
    for (const auto& [values, series] : series_) {
      prometheus::ClientMetric& metric = family.metric.emplace_back();
      for (size_t i = 0; i < values.size(); ++i) metric.label.push_back({labels_[i], values[i]});
      Export(*series, bounds_, metric);
    }
    return family;
  }

 private:
  mutable Mutex mutex_;
  // Ordered, so that pages can be compared.
  std::map<std::vector<std::string>, std::shared_ptr<T>> series_ GUARDED_BY(mutex_);
};

// Locks are taken in the order scrape_mutex_, mutex_, a family's mutex.
class RegistryState : public prometheus::Collectable {
 public:
  template <typename T>
  MetricFamily<T>& Add(const MetricDefinition& definition, MetricType type) EXCLUDES(mutex_) {
    const absl::Status valid = ValidateMetric(definition);
    CHECK(valid.ok()) << valid.message();
    CHECK(definition.type == type) << definition.name << " was defined with another type";
    MutexLock lock(mutex_);
    Entry& entry = entries_[std::string(definition.name)];
    if (entry.family == nullptr) {
      auto state = std::make_shared<FamilyState<T>>(definition);
      entry.family = state;
      entry.handle = std::shared_ptr<MetricFamily<T>>(
          new MetricFamily<T>(std::move(state)));  // NOLINT(banned-new): private constructor
    }
    CHECK(entry.family->Matches(definition))
        << definition.name << " was defined differently before";
    return *static_cast<MetricFamily<T>*>(entry.handle.get());
  }

  uint64_t AddCallback(std::function<void()> callback) EXCLUDES(scrape_mutex_) {
    MutexLock lock(scrape_mutex_);
    callbacks_[++last_callback_id_] = std::move(callback);
    return last_callback_id_;
  }

  void RemoveCallback(uint64_t id) EXCLUDES(scrape_mutex_) {
    MutexLock lock(scrape_mutex_);
    callbacks_.erase(id);
  }

  size_t RemoveSeries(absl::string_view label, absl::string_view value) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    size_t removed = 0;
    for (auto& [name, entry] : entries_) {
      const std::vector<std::string>& labels = entry.family->labels();
      const auto found = std::find(labels.begin(), labels.end(), label);
      if (found == labels.end()) continue;
      removed += entry.family->RemoveWhere(static_cast<size_t>(found - labels.begin()), value);
    }
    return removed;
  }

  std::vector<prometheus::MetricFamily> Collect() const override EXCLUDES(scrape_mutex_, mutex_) {
    MutexLock scrape_lock(scrape_mutex_);
    for (const auto& [id, callback] : callbacks_) callback();
    std::vector<prometheus::MetricFamily> families;
    MutexLock lock(mutex_);
    for (const auto& [name, entry] : entries_) {
      prometheus::MetricFamily family = entry.family->Collect();
      if (!family.metric.empty()) families.push_back(std::move(family));
    }
    return families;
  }

 private:
  struct Entry {
    std::shared_ptr<AnyFamily> family;
    std::shared_ptr<void> handle;  // MetricFamily<T>
  };

  mutable Mutex scrape_mutex_;
  std::map<uint64_t, std::function<void()>> callbacks_ GUARDED_BY(scrape_mutex_);
  uint64_t last_callback_id_ GUARDED_BY(scrape_mutex_) = 0;
  mutable Mutex mutex_;
  std::map<std::string, Entry> entries_ GUARDED_BY(mutex_);
};

}  // namespace metrics_internal

template <typename T>
MetricFamily<T>::MetricFamily(std::shared_ptr<metrics_internal::FamilyState<T>> state)
    : state_(std::move(state)) {}

template <typename T>
std::shared_ptr<T> MetricFamily<T>::With(std::initializer_list<absl::string_view> values) {
  return state_->With(absl::MakeConstSpan(values.begin(), values.size()));
}

template <typename T>
std::shared_ptr<T> MetricFamily<T>::With(absl::Span<const absl::string_view> values) {
  return state_->With(values);
}

template <typename T>
bool MetricFamily<T>::Remove(std::initializer_list<absl::string_view> values) {
  return state_->Remove(absl::MakeConstSpan(values.begin(), values.size()));
}

template <typename T>
size_t MetricFamily<T>::series() const {
  return state_->series();
}

template class MetricFamily<Counter>;
template class MetricFamily<Gauge>;
template class MetricFamily<Histogram>;

ScrapeCallback::ScrapeCallback(std::weak_ptr<metrics_internal::RegistryState> registry, uint64_t id)
    : registry_(std::move(registry)), id_(id) {}

ScrapeCallback::ScrapeCallback(ScrapeCallback&& other) noexcept
    : registry_(std::exchange(other.registry_, {})), id_(other.id_) {}

ScrapeCallback& ScrapeCallback::operator=(ScrapeCallback&& other) noexcept {
  if (this != &other) {
    Release();
    registry_ = std::exchange(other.registry_, {});
    id_ = other.id_;
  }
  return *this;
}

ScrapeCallback::~ScrapeCallback() { Release(); }

void ScrapeCallback::Release() {
  if (const auto registry = registry_.lock()) registry->RemoveCallback(id_);
  registry_.reset();
}

MetricsRegistry::MetricsRegistry() : state_(std::make_shared<metrics_internal::RegistryState>()) {}
MetricsRegistry::~MetricsRegistry() = default;

CounterFamily& MetricsRegistry::AddCounter(const MetricDefinition& definition) {
  return state_->Add<Counter>(definition, MetricType::kCounter);
}

GaugeFamily& MetricsRegistry::AddGauge(const MetricDefinition& definition) {
  return state_->Add<Gauge>(definition, MetricType::kGauge);
}

HistogramFamily& MetricsRegistry::AddHistogram(const MetricDefinition& definition) {
  return state_->Add<Histogram>(definition, MetricType::kHistogram);
}

ScrapeCallback MetricsRegistry::AddScrapeCallback(std::function<void()> callback) {
  return ScrapeCallback(state_, state_->AddCallback(std::move(callback)));
}

size_t MetricsRegistry::RemoveSeries(absl::string_view label, absl::string_view value) {
  return state_->RemoveSeries(label, value);
}

std::string MetricsRegistry::Scrape() {
  return prometheus::TextSerializer().Serialize(state_->Collect());
}

std::shared_ptr<prometheus::Collectable> MetricsRegistry::collectable() { return state_; }

}  // namespace baton
