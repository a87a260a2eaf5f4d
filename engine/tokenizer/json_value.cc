#include "engine/tokenizer/json_value.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace baton {
namespace {

// Builds the tree from nlohmann's events. Every method returns false to stop the parser.
class TreeBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  TreeBuilder(const JsonLimits& limits, absl::string_view what) : limits_(limits), what_(what) {}

  bool null() override { return Add(JsonValue()); }
  bool boolean(bool v) override { return Add(JsonValue(v)); }
  bool number_integer(number_integer_t v) override { return Add(JsonValue(int64_t{v})); }
  bool number_unsigned(number_unsigned_t v) override {
    if (v > static_cast<number_unsigned_t>(std::numeric_limits<int64_t>::max())) {
      return Fail("an integer beyond 2^63 - 1");
    }
    return Add(JsonValue(static_cast<int64_t>(v)));
  }
  bool number_float(number_float_t v, const string_t&) override {
    return Add(JsonValue(double{v}));
  }
  bool string(string_t& v) override { return Add(JsonValue(std::move(v))); }
  bool binary(binary_t&) override { return Fail("binary data"); }
  bool start_array(size_t) override { return Push(JsonValue(JsonValue::Array())); }
  bool end_array() override { return Pop(); }
  bool start_object(size_t) override { return Push(JsonValue(JsonValue::Object())); }
  bool key(string_t& name) override {
    std::get<JsonValue::Object>(stack_.back()->value).push_back({std::move(name), JsonValue()});
    return true;
  }
  bool end_object() override {
    if (!CheckKeysAreUnique()) return false;
    return Pop();
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    // The library's message quotes the input; the position is enough.
    status_ =
        absl::InvalidArgumentError(absl::StrCat(what_, ": not valid JSON near byte ", position));
    return false;
  }

  const absl::Status& status() const { return status_; }
  JsonValue TakeRoot() { return std::move(root_); }

 private:
  bool Fail(absl::string_view reason) {
    status_ = absl::InvalidArgumentError(absl::StrCat(what_, ": ", reason));
    return false;
  }

  // Where the next value goes. Pointers into the tree stay valid because only the innermost
  // container grows.
  JsonValue* Place(JsonValue value) {
    if (stack_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (auto* array = std::get_if<JsonValue::Array>(&stack_.back()->value)) {
      array->push_back(std::move(value));
      return &array->back();
    }
    JsonValue& slot = std::get<JsonValue::Object>(stack_.back()->value).back().value;
    slot = std::move(value);
    return &slot;
  }

  bool Add(JsonValue value) {
    if (++values_ > limits_.values_max) {
      return Fail(absl::StrCat("more than ", limits_.values_max, " values"));
    }
    Place(std::move(value));
    return true;
  }

  bool Push(JsonValue container) {
    if (stack_.size() >= limits_.depth_max) {
      return Fail(absl::StrCat("nested deeper than ", limits_.depth_max));
    }
    if (++values_ > limits_.values_max) {
      return Fail(absl::StrCat("more than ", limits_.values_max, " values"));
    }
    stack_.push_back(Place(std::move(container)));
    return true;
  }

  bool Pop() {
    stack_.pop_back();
    return true;
  }

  bool CheckKeysAreUnique() {
    const auto& object = std::get<JsonValue::Object>(stack_.back()->value);
    absl::flat_hash_set<absl::string_view> seen;
    seen.reserve(object.size());
    for (const auto& member : object) {
      if (!seen.insert(member.key).second) return Fail("an object has the same key twice");
    }
    return true;
  }

  const JsonLimits limits_;
  const absl::string_view what_;
  absl::Status status_;
  JsonValue root_;
  std::vector<JsonValue*> stack_;
  size_t values_ = 0;
};

}  // namespace

JsonValue::JsonValue() = default;
JsonValue::JsonValue(Variant v) : value(std::move(v)) {}
JsonValue::JsonValue(JsonValue&&) noexcept = default;
JsonValue& JsonValue::operator=(JsonValue&&) noexcept = default;
JsonValue::~JsonValue() = default;

bool JsonValue::is_null() const { return std::holds_alternative<std::monostate>(value); }
const bool* JsonValue::as_bool() const { return std::get_if<bool>(&value); }
const int64_t* JsonValue::as_int() const { return std::get_if<int64_t>(&value); }
const double* JsonValue::as_double() const { return std::get_if<double>(&value); }
const std::string* JsonValue::as_string() const { return std::get_if<std::string>(&value); }
const JsonValue::Array* JsonValue::as_array() const { return std::get_if<Array>(&value); }
const JsonValue::Object* JsonValue::as_object() const { return std::get_if<Object>(&value); }

absl::StatusOr<JsonValue> ParseJson(absl::string_view text, absl::string_view what,
                                    const JsonLimits& limits) {
  if (text.size() > limits.bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": ", text.size(), " bytes, at most ", limits.bytes_max));
  }
  TreeBuilder builder(limits, what);
  const bool ok = nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  RETURN_IF_ERROR(builder.status());
  if (!ok) return absl::InvalidArgumentError(absl::StrCat(what, ": not valid JSON"));
  return builder.TakeRoot();
}

absl::StatusOr<JsonObjectReader> JsonObjectReader::Open(const JsonValue& value, std::string path) {
  const JsonValue::Object* object = value.as_object();
  if (object == nullptr) return absl::InvalidArgumentError(absl::StrCat(path, ": not an object"));
  return JsonObjectReader(object, std::move(path));
}

absl::Status JsonObjectReader::TypeError(absl::string_view key, absl::string_view wanted) const {
  return absl::InvalidArgumentError(absl::StrCat(path_, ".", key, ": not ", wanted));
}

const JsonValue* JsonObjectReader::Find(absl::string_view key) {
  known_.insert(std::string(key));
  for (const auto& member : *object_) {
    if (member.key == key) return member.value.is_null() ? nullptr : &member.value;
  }
  return nullptr;
}

absl::StatusOr<std::optional<bool>> JsonObjectReader::OptionalBool(absl::string_view key) {
  const JsonValue* value = Find(key);
  if (value == nullptr) return std::optional<bool>();
  if (value->as_bool() == nullptr) return TypeError(key, "true or false");
  return std::optional<bool>(*value->as_bool());
}

absl::StatusOr<bool> JsonObjectReader::Bool(absl::string_view key, bool fallback) {
  ASSIGN_OR_RETURN(const std::optional<bool> value, OptionalBool(key));
  return value.value_or(fallback);
}

absl::StatusOr<int64_t> JsonObjectReader::Int(absl::string_view key) {
  const JsonValue* value = Find(key);
  if (value == nullptr || value->as_int() == nullptr) return TypeError(key, "an integer");
  return *value->as_int();
}

absl::StatusOr<std::optional<std::string>> JsonObjectReader::OptionalString(absl::string_view key) {
  const JsonValue* value = Find(key);
  if (value == nullptr) return std::optional<std::string>();
  if (value->as_string() == nullptr) return TypeError(key, "a string");
  return std::optional<std::string>(*value->as_string());
}

absl::StatusOr<std::string> JsonObjectReader::String(absl::string_view key) {
  ASSIGN_OR_RETURN(std::optional<std::string> value, OptionalString(key));
  if (!value.has_value()) return TypeError(key, "a string");
  return *std::move(value);
}

absl::StatusOr<const JsonValue::Array*> JsonObjectReader::Array(absl::string_view key) {
  static const JsonValue::Array kEmpty;
  const JsonValue* value = Find(key);
  if (value == nullptr) return &kEmpty;
  if (value->as_array() == nullptr) return TypeError(key, "an array");
  return value->as_array();
}

absl::Status JsonObjectReader::Done() const {
  for (const auto& member : *object_) {
    if (member.value.is_null() || known_.contains(member.key)) continue;
    // A key is text of the file: quoted with care, and not at any length.
    return absl::FailedPreconditionError(absl::StrCat(
        path_, ": member '", absl::CHexEscape(absl::string_view(member.key).substr(0, 64)),
        "' is not supported"));
  }
  return absl::OkStatus();
}

}  // namespace baton
