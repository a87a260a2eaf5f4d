#include "engine/weights/strict_json.h"

#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

using Json = nlohmann::json;

// Builds the document. Returning false from a callback ends the parse; `error_` says why.
class DocumentBuilder : public nlohmann::json_sax<Json> {
 public:
  explicit DocumentBuilder(const JsonLimits& limits) : limits_(limits) {}

  Json TakeRoot() { return std::move(root_); }
  const std::string& error() const { return error_; }

  bool null() override { return Add(Json()) != nullptr; }
  bool boolean(bool value) override { return Add(Json(value)) != nullptr; }
  bool number_integer(number_integer_t value) override { return Add(Json(value)) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return Add(Json(value)) != nullptr; }
  bool number_float(number_float_t value, const string_t& /*text*/) override {
    return Add(Json(value)) != nullptr;
  }
  bool string(string_t& value) override { return Add(Json(std::move(value))) != nullptr; }
  bool binary(binary_t& /*value*/) override { return Fail("binary value"); }

  bool start_object(size_t /*elements*/) override { return Open(Json::object()); }
  bool start_array(size_t /*elements*/) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    auto [it, inserted] = open_.back()->get_ref<Json::object_t&>().emplace(name, Json());
    if (!inserted) return Fail(absl::StrCat("duplicate key ", QuoteForError(name)));
    slot_ = &it->second;
    return true;
  }

  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    // The library's own message repeats bytes of the file, so it is not passed on.
    return Fail(absl::StrCat("not valid JSON at byte ", position));
  }

 private:
  bool Fail(std::string error) {
    if (error_.empty()) error_ = std::move(error);
    return false;
  }

  // Stores `value` where the document stands; null when a limit is reached.
  Json* Add(Json value) {
    if (open_.empty() && !value.is_object()) {
      Fail("the root is not an object");
      return nullptr;
    }
    if (++values_ > limits_.values_max) {
      Fail(absl::StrCat("more than ", limits_.values_max, " values"));
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      auto& array = open_.back()->get_ref<Json::array_t&>();
      array.push_back(std::move(value));
      return &array.back();
    }
    *slot_ = std::move(value);
    return slot_;
  }

  // A pointer to an open container stays valid: its parent gets no element until it is closed.
  bool Open(Json container) {
    if (static_cast<int>(open_.size()) >= limits_.depth_max) {
      return Fail(absl::StrCat("nested deeper than ", limits_.depth_max));
    }
    Json* stored = Add(std::move(container));
    if (stored == nullptr) return false;
    open_.push_back(stored);
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  const JsonLimits limits_;
  Json root_;
  std::vector<Json*> open_;
  Json* slot_ = nullptr;  // where the value of the current key goes
  size_t values_ = 0;
  std::string error_;
};

}  // namespace

absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, absl::string_view file,
                                               const JsonLimits& limits) {
  RETURN_IF_ERROR(Annotate(CheckJsonTokens(text, limits.token_bytes_max), file));
  DocumentBuilder builder(limits);
  try {
    if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
      return absl::InvalidArgumentError(absl::StrCat(file, ": ", builder.error()));
    }
  } catch (const std::exception& error) {  // the library's, and std::bad_alloc
    return absl::InvalidArgumentError(absl::StrCat(file, ": cannot parse: ", error.what()));
  }
  return builder.TakeRoot();
}

absl::Status CheckJsonTokens(absl::string_view json, size_t token_bytes_max) {
  constexpr absl::string_view kStructural = "{}[],:";
  if (absl::StrContains(json, '\0'))
    return absl::InvalidArgumentError("not valid JSON: a NUL byte");
  bool in_string = false;
  size_t length = 0;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (c == '"') {
      in_string = !in_string;
      length = 0;
    } else if (!in_string && absl::StrContains(kStructural, c)) {
      length = 0;
    } else {
      if (in_string && c == '\\') ++i;  // an escaped quote ends nothing
      if (++length > token_bytes_max) {
        return absl::InvalidArgumentError(
            absl::StrCat("a token of more than ", token_bytes_max, " bytes"));
      }
    }
  }
  return absl::OkStatus();
}

std::string QuoteForError(absl::string_view text) {
  constexpr size_t kShownMax = 128;
  const bool is_cut = text.size() > kShownMax;
  return absl::StrCat("'", absl::CHexEscape(text.substr(0, kShownMax)), is_cut ? "...'" : "'");
}

}  // namespace baton
