// Typed, range-checked access to the keys of one JSON object; every error names file and key.
// A key that is null counts as absent, as in transformers. Included by .cc files only.
//
// Thread-compatible; the object must outlive the reader.
#ifndef BATON_ENGINE_WEIGHTS_JSON_FIELDS_H_
#define BATON_ENGINE_WEIGHTS_JSON_FIELDS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace baton {

class JsonFields {
 public:
  // `where` precedes the key in errors: "config.json: rope_scaling.".
  JsonFields(const nlohmann::json& object, std::string where)
      : object_(object), where_(std::move(where)) {}

  const nlohmann::json& object() const { return object_; }

  // Null when absent.
  const nlohmann::json* Find(const char* key) const;

  // ERRORS of all getters: InvalidArgument: wrong type, or outside [min, max].
  absl::StatusOr<std::optional<int32_t>> Int(const char* key, int32_t min, int32_t max) const;
  // Finite numbers; integers are accepted.
  absl::StatusOr<std::optional<double>> Number(const char* key, double min, double max) const;
  absl::StatusOr<std::optional<bool>> Bool(const char* key) const;
  absl::StatusOr<std::optional<std::string>> String(const char* key) const;
  // ERRORS: FailedPrecondition when absent.
  absl::StatusOr<int32_t> RequiredInt(const char* key, int32_t min, int32_t max) const;

  absl::Status Invalid(absl::string_view key, absl::string_view what) const;
  absl::Status Unsupported(absl::string_view key, absl::string_view what) const;

 private:
  const nlohmann::json& object_;
  const std::string where_;
};

}  // namespace baton

#endif  // BATON_ENGINE_WEIGHTS_JSON_FIELDS_H_
