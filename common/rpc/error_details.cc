#include "common/rpc/error_details.h"

#include <chrono>

#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"

namespace baton::rpc {
namespace {

using std::chrono::nanoseconds;
using std::chrono::seconds;

}  // namespace

absl::Status ResourceExhaustedError(absl::string_view message, Duration retry_delay) {
  google::rpc::RetryInfo info;
  const auto whole = std::chrono::duration_cast<seconds>(retry_delay);
  info.mutable_retry_delay()->set_seconds(whole.count());
  info.mutable_retry_delay()->set_nanos(static_cast<int32_t>((retry_delay - whole).count()));
  absl::Status status = absl::ResourceExhaustedError(message);
  status.SetPayload(kRetryInfoUrl, absl::Cord(info.SerializeAsString()));
  return status;
}

absl::Status InvalidFieldError(absl::string_view field, absl::string_view description) {
  google::rpc::BadRequest bad;
  auto* violation = bad.add_field_violations();
  violation->set_field(std::string(field));
  violation->set_description(std::string(description));
  absl::Status status = absl::InvalidArgumentError(absl::StrCat(field, ": ", description));
  status.SetPayload(kBadRequestUrl, absl::Cord(bad.SerializeAsString()));
  return status;
}

std::string QuoteForError(absl::string_view text, size_t bytes_max) {
  const bool cut = text.size() > bytes_max;
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, bytes_max)), cut ? "\"..." : "\"");
}

std::optional<Duration> RetryDelay(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kRetryInfoUrl);
  google::rpc::RetryInfo info;
  if (!payload.has_value() || !info.ParseFromString(std::string(*payload))) return std::nullopt;
  const int64_t whole = info.retry_delay().seconds();
  // What a Duration can hold is 292 years; a peer may write anything.
  constexpr int64_t kSecondsMax = 9'000'000'000;
  if (whole < 0 || whole > kSecondsMax) return std::nullopt;
  return seconds(whole) + nanoseconds(info.retry_delay().nanos());
}

}  // namespace baton::rpc
