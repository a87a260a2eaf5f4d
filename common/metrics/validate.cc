#include <cmath>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/metrics/metrics.h"

namespace baton {
namespace {

// What `promtool check metrics` refuses, and units that are not base units (seconds, bytes,
// tokens).
constexpr absl::string_view kBadNameParts[] = {"ms",
                                               "us",
                                               "ns",
                                               "msec",
                                               "usec",
                                               "millis",
                                               "milliseconds",
                                               "microseconds",
                                               "nanoseconds",
                                               "minutes",
                                               "hours",
                                               "sec",
                                               "s",
                                               "m",
                                               "h",
                                               "d",
                                               "b",
                                               "kb",
                                               "mb",
                                               "gb",
                                               "kib",
                                               "mib",
                                               "gib",
                                               "kilobytes",
                                               "megabytes",
                                               "gigabytes",
                                               "percent",
                                               "counter",
                                               "gauge",
                                               "histogram",
                                               "summary"};
constexpr absl::string_view kReservedSuffixes[] = {"_count", "_sum", "_bucket"};
constexpr size_t kSeriesMaxLimit = 10000;
constexpr size_t kNameBytesMax = 100;

bool IsLowerSnake(absl::string_view name) {
  if (name.empty() || name[0] < 'a' || name[0] > 'z') return false;
  for (const char c : name) {
    if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') && c != '_') return false;
  }
  return true;
}

absl::Status Bad(const MetricDefinition& definition, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("metric '", definition.name, "': ", what));
}

absl::Status ValidateName(const MetricDefinition& definition) {
  const absl::string_view name = definition.name;
  if (!absl::StartsWith(name, "baton_") && !absl::StartsWith(name, "process_")) {
    return Bad(definition, "the name must begin with 'baton_' or 'process_'");
  }
  if (!IsLowerSnake(name) || name.size() > kNameBytesMax) {
    return Bad(definition, "the name must be lower snake case (no ':') of at most 100 bytes");
  }
  for (const absl::string_view part : absl::StrSplit(name, '_')) {
    if (part.empty()) return Bad(definition, "the name has an empty part");
    for (const absl::string_view bad : kBadNameParts) {
      if (part == bad) {
        return Bad(definition, absl::StrCat("'", bad, "' is not a base unit, or names the type"));
      }
    }
  }
  for (const absl::string_view suffix : kReservedSuffixes) {
    if (absl::EndsWith(name, suffix)) {
      return Bad(definition, absl::StrCat("the suffix '", suffix, "' belongs to histograms"));
    }
  }
  if ((definition.type == MetricType::kCounter) != absl::EndsWith(name, "_total")) {
    return Bad(definition, "'_total' is the suffix of counters, all of them and nothing else");
  }
  return absl::OkStatus();
}

absl::Status ValidateBuckets(const MetricDefinition& definition) {
  if (definition.type != MetricType::kHistogram) {
    return definition.buckets.empty() ? absl::OkStatus()
                                      : Bad(definition, "only histograms have buckets");
  }
  if (definition.buckets.empty()) return Bad(definition, "a histogram needs buckets");
  for (size_t i = 0; i < definition.buckets.size(); ++i) {
    if (!std::isfinite(definition.buckets[i])) {
      return Bad(definition, "bucket bounds must be finite; +Inf is added");
    }
    if (i > 0 && definition.buckets[i] <= definition.buckets[i - 1]) {
      return Bad(definition, "bucket bounds must ascend");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateMetric(const MetricDefinition& definition) {
  if (absl::Status status = ValidateName(definition); !status.ok()) return status;
  if (definition.help.empty()) return Bad(definition, "it has no help text");
  for (size_t i = 0; i < definition.labels.size(); ++i) {
    const absl::string_view label = definition.labels[i];
    if (!IsLowerSnake(label)) {
      return Bad(definition, absl::StrCat("label '", label, "' is not lower snake case"));
    }
    if (label == "le" || label == "quantile" || label == "job" || label == "instance") {
      return Bad(definition, absl::StrCat("label '", label, "' belongs to Prometheus"));
    }
    for (size_t j = 0; j < i; ++j) {
      if (definition.labels[j] == label) {
        return Bad(definition, absl::StrCat("label '", label, "' appears twice"));
      }
    }
  }
  if (definition.series_max < 1 || definition.series_max > kSeriesMaxLimit) {
    return Bad(definition, absl::StrCat("series_max must be in [1, ", kSeriesMaxLimit, "]"));
  }
  return ValidateBuckets(definition);
}

}  // namespace baton
