// A small JSON tree, read strictly: bounded depth and number of values, no duplicate keys, valid
// UTF-8. nlohmann-json stays behind the .cc file (it is slow to compile and accepts duplicate
// keys). Immutable once read, and then thread-safe.
#ifndef BATON_ENGINE_TOKENIZER_JSON_VALUE_H_
#define BATON_ENGINE_TOKENIZER_JSON_VALUE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton {

struct JsonMember;

struct JsonValue {
  using Array = std::vector<JsonValue>;
  using Object = std::vector<JsonMember>;  // in the file's order
  using Variant = std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object>;

  JsonValue();
  explicit JsonValue(Variant v);
  JsonValue(JsonValue&&) noexcept;
  JsonValue& operator=(JsonValue&&) noexcept;
  ~JsonValue();

  bool is_null() const;
  // The value of that type, or nullptr.
  const bool* as_bool() const;
  const int64_t* as_int() const;
  const double* as_double() const;
  const std::string* as_string() const;
  const Array* as_array() const;
  const Object* as_object() const;

  Variant value;
};

struct JsonMember {
  std::string key;
  JsonValue value;
};

struct JsonLimits {
  size_t bytes_max = size_t{64} << 20;
  size_t depth_max = 64;
  size_t values_max = 6'000'000;
};

// `what` names the file in errors. ERRORS: InvalidArgument for anything that is not one JSON value
// within the limits, with the byte position; integers beyond int64 count as malformed.
absl::StatusOr<JsonValue> ParseJson(absl::string_view text, absl::string_view what,
                                    const JsonLimits& limits = {});

// Reads the members of one object and remembers which were asked for, so that a member nobody knows
// is an error and not ignored. Absent and null are the same. Errors are InvalidArgument and name
// the path, such as "pre_tokenizer.pretokenizers[0].behavior". The object must outlive the reader.
class JsonObjectReader {
 public:
  // ERRORS: InvalidArgument when `value` is not an object.
  static absl::StatusOr<JsonObjectReader> Open(const JsonValue& value, std::string path);

  const std::string& path() const { return path_; }
  // nullptr when absent or null.
  const JsonValue* Find(absl::string_view key);
  absl::StatusOr<bool> Bool(absl::string_view key, bool fallback);
  absl::StatusOr<std::optional<bool>> OptionalBool(absl::string_view key);
  absl::StatusOr<int64_t> Int(absl::string_view key);
  // ERRORS also: InvalidArgument when absent.
  absl::StatusOr<std::string> String(absl::string_view key);
  absl::StatusOr<std::optional<std::string>> OptionalString(absl::string_view key);
  // Empty when absent.
  absl::StatusOr<const JsonValue::Array*> Array(absl::string_view key);
  // Marks members as known without reading them.
  void Ignore(absl::string_view key) { known_.insert(std::string(key)); }
  // ERRORS: FailedPrecondition naming a member that was not asked for.
  absl::Status Done() const;

 private:
  JsonObjectReader(const JsonValue::Object* object, std::string path)
      : object_(object), path_(std::move(path)) {}
  absl::Status TypeError(absl::string_view key, absl::string_view wanted) const;

  const JsonValue::Object* object_;
  std::string path_;
  std::set<std::string> known_;
};

}  // namespace baton

#endif  // BATON_ENGINE_TOKENIZER_JSON_VALUE_H_
