#include "engine/weights/safetensors.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/weights/checked_math.h"
#include "engine/weights/safetensors_header.h"
#include "engine/weights/strict_json.h"

namespace baton {
namespace {

constexpr size_t kLengthBytes = 8;

uint64_t ReadLittleEndian64(const std::byte* bytes) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | static_cast<uint64_t>(bytes[i]);
  return value;
}

std::string ShapeText(absl::Span<const int64_t> shape) {
  std::string text = "[";
  for (const int64_t d : shape) absl::StrAppend(&text, text.size() > 1 ? ", " : "", d);
  return text + "]";
}

absl::Status TensorError(const SafetensorsEntry& entry, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("tensor ", QuoteForError(entry.name), ": ", what));
}

// One entry against itself and the size of the data section.
absl::Status CheckEntry(const SafetensorsEntry& entry, uint64_t data_bytes) {
  if (entry.begin > entry.end) {
    return TensorError(
        entry, absl::StrCat("data_offsets begin at ", entry.begin, " after their end ", entry.end));
  }
  const std::optional<uint64_t> elements = CheckedElements(entry.shape);
  const std::optional<uint64_t> size =
      elements.has_value()
          ? CheckedMultiply(*elements, static_cast<uint64_t>(DTypeBytes(entry.dtype)))
          : std::nullopt;
  if (!size.has_value()) {
    return TensorError(entry, absl::StrCat("shape ", ShapeText(entry.shape),
                                           " has more bytes than can be addressed"));
  }
  if (*size != entry.end - entry.begin) {
    return TensorError(entry, absl::StrCat("shape ", ShapeText(entry.shape), " of ",
                                           DTypeName(entry.dtype), " takes ", *size,
                                           " bytes, data_offsets give ", entry.end - entry.begin));
  }
  if (entry.end > data_bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("tensor ", QuoteForError(entry.name), ": ends at byte ", entry.end,
                     " of the data section, which has ", data_bytes, ": the file is truncated"));
  }
  return absl::OkStatus();
}

absl::Status CheckNames(absl::Span<const SafetensorsEntry> entries) {
  absl::flat_hash_set<absl::string_view> names;
  names.reserve(entries.size());
  for (const SafetensorsEntry& entry : entries) {
    if (!names.insert(entry.name).second) return TensorError(entry, "occurs twice");
  }
  return absl::OkStatus();
}

// The tensors must cover [0, data_bytes) exactly.
absl::Status CheckCoverage(absl::Span<const SafetensorsEntry> sorted, uint64_t data_bytes) {
  uint64_t covered = 0;
  for (const SafetensorsEntry& entry : sorted) {
    if (entry.begin > covered) {
      return TensorError(entry, absl::StrCat("hole of ", entry.begin - covered,
                                             " bytes before its data at ", entry.begin));
    }
    if (entry.begin < covered) {
      return TensorError(entry, absl::StrCat("data at ", entry.begin,
                                             " overlaps a tensor that ends at ", covered));
    }
    covered = entry.end;
  }
  if (covered == data_bytes) return absl::OkStatus();
  if (sorted.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(data_bytes, " bytes of data but no tensor"));
  }
  return TensorError(sorted.back(),
                     absl::StrCat(data_bytes - covered, " bytes follow it, the last tensor"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(MappedFile mapping, MappedFile::Open(path));
  auto file = std::make_unique<SafetensorsFile>(Private());
  file->name_ = path;
  file->bytes_ = mapping.bytes();
  file->mapping_.emplace(std::move(mapping));
  RETURN_IF_ERROR(Annotate(file->Read(), path));
  return file;
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Parse(
    absl::Span<const std::byte> bytes, std::string name) {
  auto file = std::make_unique<SafetensorsFile>(Private());
  file->name_ = std::move(name);
  file->bytes_ = bytes;
  RETURN_IF_ERROR(Annotate(file->Read(), file->name_));
  return file;
}

absl::Status SafetensorsFile::Read() {
  if (bytes_.size() < kLengthBytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("the file has ", bytes_.size(), " bytes: too short for safetensors"));
  }
  const uint64_t header_bytes = ReadLittleEndian64(bytes_.data());
  if (header_bytes > kSafetensorsHeaderBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "header of ", header_bytes, " bytes, more than the limit of ", kSafetensorsHeaderBytesMax));
  }
  const uint64_t after_length = bytes_.size() - kLengthBytes;
  if (header_bytes > after_length) {
    return absl::FailedPreconditionError(absl::StrCat("header of ", header_bytes,
                                                      " bytes but only ", after_length,
                                                      " follow: the file is truncated"));
  }
  header_ =
      absl::string_view(reinterpret_cast<const char*>(bytes_.data()) + kLengthBytes, header_bytes);
  const absl::Span<const std::byte> data = bytes_.subspan(kLengthBytes + header_bytes);

  ASSIGN_OR_RETURN(std::vector<SafetensorsEntry> entries, ParseSafetensorsHeader(header_));
  RETURN_IF_ERROR(CheckNames(entries));
  for (const SafetensorsEntry& entry : entries) {
    RETURN_IF_ERROR(CheckEntry(entry, data.size()));
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  RETURN_IF_ERROR(CheckCoverage(entries, data.size()));

  tensors_.reserve(entries.size());
  for (SafetensorsEntry& entry : entries) {
    tensors_.push_back({std::move(entry.name), entry.dtype, std::move(entry.shape),
                        data.subspan(entry.begin, entry.end - entry.begin)});
  }
  for (size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
  return absl::OkStatus();
}

const TensorInfo* SafetensorsFile::Find(absl::string_view tensor) const {
  const auto it = index_.find(tensor);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

}  // namespace baton
