#include "engine/weights/json_fields.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace baton {

const nlohmann::json* JsonFields::Find(const char* key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

absl::StatusOr<std::optional<int32_t>> JsonFields::Int(const char* key, int32_t min,
                                                       int32_t max) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return std::optional<int32_t>();
  if (!value->is_number_integer()) return Invalid(key, "is not an integer");
  // Unsigned values above INT64_MAX would turn negative.
  const bool fits = !value->is_number_unsigned() || value->get<uint64_t>() <= INT32_MAX;
  const int64_t number = fits ? value->get<int64_t>() : INT64_MAX;
  if (number < min || number > max) {
    return Invalid(key, absl::StrCat("is outside ", min, "..", max));
  }
  return std::optional<int32_t>(static_cast<int32_t>(number));
}

absl::StatusOr<int32_t> JsonFields::RequiredInt(const char* key, int32_t min, int32_t max) const {
  ASSIGN_OR_RETURN(const std::optional<int32_t> value, Int(key, min, max));
  if (!value.has_value()) return Unsupported(key, "is missing");
  return *value;
}

absl::StatusOr<std::optional<double>> JsonFields::Number(const char* key, double min,
                                                         double max) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return std::optional<double>();
  if (!value->is_number()) return Invalid(key, "is not a number");
  const double number = value->get<double>();
  if (!std::isfinite(number) || number < min || number > max) {
    return Invalid(key, absl::StrCat("is outside ", min, "..", max));
  }
  return std::optional<double>(number);
}

absl::StatusOr<std::optional<bool>> JsonFields::Bool(const char* key) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return std::optional<bool>();
  if (!value->is_boolean()) return Invalid(key, "is not true or false");
  return std::optional<bool>(value->get<bool>());
}

absl::StatusOr<std::optional<std::string>> JsonFields::String(const char* key) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return std::optional<std::string>();
  if (!value->is_string()) return Invalid(key, "is not a string");
  return std::optional<std::string>(value->get<std::string>());
}

absl::Status JsonFields::Invalid(absl::string_view key, absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(where_, key, " ", what));
}

absl::Status JsonFields::Unsupported(absl::string_view key, absl::string_view what) const {
  return absl::FailedPreconditionError(absl::StrCat(where_, key, " ", what));
}

}  // namespace baton
