#include "engine/weights/safetensors_header.h"

#include <exception>
#include <limits>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/weights/safetensors.h"
#include "engine/weights/strict_json.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

constexpr absl::string_view kMetadataKey = "__metadata__";
constexpr size_t kMetadataEntriesMax = size_t{1} << 16;
// Metadata may hold a small image or a chat template.
constexpr size_t kTokenBytesMax = size_t{4} << 20;

std::optional<DType> DTypeByName(absl::string_view name) {
  for (const DType dtype : kAllDTypes) {
    if (DTypeName(dtype) == name) return dtype;
  }
  return std::nullopt;
}

// States: where the next token is expected. The parser below never recurses, so nesting costs it
// nothing, and any nesting that the format does not have ends the parse at once.
enum class State { kRoot, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };
enum class Field { kNone, kDType, kShape, kOffsets };

class HeaderHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<SafetensorsEntry> TakeEntries() { return std::move(entries_); }
  const std::string& error() const { return error_; }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool /*value*/) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t /*value*/) override {
    return Unexpected("a negative number");
  }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override {
    return Unexpected("a fractional or too large number");
  }
  bool binary(binary_t& /*value*/) override { return Unexpected("binary"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::kShape) return AddDimension(value);
    if (state_ == State::kOffsets) return AddOffset(value);
    return Unexpected("a number");
  }

  bool string(string_t& value) override {
    if (state_ == State::kMetadata) return true;
    if (state_ != State::kTensor || field_ != Field::kDType) return Unexpected("a string");
    const std::optional<DType> dtype = DTypeByName(value);
    if (!dtype.has_value()) {
      return Fail(absl::StrCat("unknown dtype ", QuoteForError(value)));
    }
    entry_.dtype = *dtype;
    field_ = Field::kNone;
    return true;
  }

  bool start_object(size_t /*elements*/) override {
    if (state_ == State::kRoot) {
      state_ = State::kTop;
      return true;
    }
    if (state_ != State::kTop) return Unexpected("an object");
    state_ = is_metadata_ ? State::kMetadata : State::kTensor;
    return true;
  }

  bool key(string_t& name) override {
    switch (state_) {
      case State::kTop:
        return StartEntry(name);
      case State::kMetadata:
        if (metadata_keys_.size() >= kMetadataEntriesMax) return Fail("too many entries");
        if (metadata_keys_.insert(name).second) return true;
        return Fail(absl::StrCat("duplicate key ", QuoteForError(name)));
      default:
        return StartField(name);
    }
  }

  bool end_object() override {
    switch (state_) {
      case State::kMetadata:
        state_ = State::kTop;
        is_metadata_ = false;
        return true;
      case State::kTensor:
        return EndTensor();
      default:
        state_ = State::kEnd;
        return true;
    }
  }

  bool start_array(size_t /*elements*/) override {
    if (state_ == State::kTensor && field_ == Field::kShape) {
      state_ = State::kShape;
      return true;
    }
    if (state_ == State::kTensor && field_ == Field::kOffsets) {
      state_ = State::kOffsets;
      num_offsets_ = 0;
      return true;
    }
    return Unexpected("an array");
  }

  bool end_array() override {
    if (state_ == State::kOffsets && num_offsets_ != 2) {
      return Fail("data_offsets is not a pair");
    }
    state_ = State::kTensor;
    field_ = Field::kNone;
    return true;
  }

  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return Fail(absl::StrCat("header is not valid JSON at byte ", position));
  }

 private:
  // Every error names the tensor (or __metadata__) it was found in.
  bool Fail(absl::string_view what) {
    if (!error_.empty()) return false;
    error_ = std::string(what);
    if (is_metadata_) {
      error_ = absl::StrCat("__metadata__: ", what);
    } else if (!entry_.name.empty()) {
      error_ = absl::StrCat("tensor ", QuoteForError(entry_.name), ": ", what);
    }
    return false;
  }

  bool Unexpected(absl::string_view found) {
    switch (state_) {
      case State::kRoot:
        return Fail(absl::StrCat("header is ", found, ", not an object"));
      case State::kTop:
        return Fail(absl::StrCat("is ", found, ", not an object"));
      case State::kMetadata:
        return Fail(absl::StrCat("holds ", found, ", not a string"));
      case State::kShape:
        return Fail(absl::StrCat("shape holds ", found));
      case State::kOffsets:
        return Fail(absl::StrCat("data_offsets holds ", found));
      default:
        return Fail(absl::StrCat(FieldName(field_), " is ", found));
    }
  }

  static absl::string_view FieldName(Field field) {
    switch (field) {
      case Field::kDType:
        return "dtype";
      case Field::kShape:
        return "shape";
      case Field::kOffsets:
        return "data_offsets";
      case Field::kNone:
        break;
    }
    return "entry";
  }

  bool StartEntry(string_t& name) {
    entry_ = {};
    has_dtype_ = has_shape_ = has_offsets_ = false;
    is_metadata_ = name == kMetadataKey;
    if (is_metadata_) {
      if (std::exchange(has_metadata_, true)) return Fail("occurs twice");
      return true;
    }
    if (name.empty()) return Fail("a tensor's name is empty");
    if (entries_.size() >= kSafetensorsTensorsMax) {
      return Fail(absl::StrCat("more than ", kSafetensorsTensorsMax, " tensors"));
    }
    entry_.name = std::move(name);
    if (entry_.name.size() > kTensorNameBytesMax) return Fail("the name is too long");
    return true;
  }

  bool StartField(const string_t& name) {
    bool* seen = nullptr;
    if (name == "dtype") {
      field_ = Field::kDType;
      seen = &has_dtype_;
    } else if (name == "shape") {
      field_ = Field::kShape;
      seen = &has_shape_;
    } else if (name == "data_offsets") {
      field_ = Field::kOffsets;
      seen = &has_offsets_;
    } else {
      return Fail(absl::StrCat("unknown field ", QuoteForError(name)));
    }
    if (std::exchange(*seen, true)) return Fail(absl::StrCat(name, " occurs twice"));
    return true;
  }

  bool AddDimension(number_unsigned_t value) {
    if (entry_.shape.size() >= kTensorRankMax) {
      return Fail(absl::StrCat("more than ", kTensorRankMax, " dimensions"));
    }
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Fail(absl::StrCat("dimension ", value, " is too large"));
    }
    entry_.shape.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool AddOffset(number_unsigned_t value) {
    if (num_offsets_ >= 2) return Fail("data_offsets is not a pair");
    (num_offsets_ == 0 ? entry_.begin : entry_.end) = value;
    ++num_offsets_;
    return true;
  }

  bool EndTensor() {
    if (!has_dtype_) return Fail("dtype is missing");
    if (!has_shape_) return Fail("shape is missing");
    if (!has_offsets_) return Fail("data_offsets is missing");
    entries_.push_back(std::move(entry_));
    entry_ = {};
    state_ = State::kTop;
    return true;
  }

  State state_ = State::kRoot;
  Field field_ = Field::kNone;
  SafetensorsEntry entry_;  // being read
  bool is_metadata_ = false;
  bool has_metadata_ = false;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  int num_offsets_ = 0;
  absl::flat_hash_set<std::string> metadata_keys_;
  std::vector<SafetensorsEntry> entries_;
  std::string error_;
};

}  // namespace

absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(absl::string_view header) {
  if (header.empty() || header.front() != '{') {
    return absl::InvalidArgumentError("header does not begin with '{'");
  }
  // Padding after the document is legal and can be long.
  header = absl::StripTrailingAsciiWhitespace(header);
  RETURN_IF_ERROR(Annotate(CheckJsonTokens(header, kTokenBytesMax), "header"));
  HeaderHandler handler;
  try {
    if (!nlohmann::json::sax_parse(header.begin(), header.end(), &handler)) {
      return absl::InvalidArgumentError(handler.error());
    }
  } catch (const std::exception& error) {  // the library's, and std::bad_alloc
    return absl::InvalidArgumentError(absl::StrCat("cannot parse header: ", error.what()));
  }
  return handler.TakeEntries();
}

}  // namespace baton
