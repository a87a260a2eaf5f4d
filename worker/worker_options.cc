#include "worker/worker_options.h"

#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace baton::worker {
namespace {

constexpr size_t kNameBytesMax = 128;

bool IsNameCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == ':' ||
         c == '/' || c == '-';
}

}  // namespace

absl::StatusOr<ModelSpec> ParseModelSpec(absl::string_view text) {
  const size_t equals = text.find('=');
  ModelSpec spec;
  if (equals == absl::string_view::npos) {
    spec.path = std::string(text);
    absl::string_view path = text;
    while (path.size() > 1 && absl::EndsWith(path, "/")) path.remove_suffix(1);
    const size_t slash = path.rfind('/');
    spec.name = std::string(slash == absl::string_view::npos ? path : path.substr(slash + 1));
  } else {
    spec.name = std::string(text.substr(0, equals));
    spec.path = std::string(text.substr(equals + 1));
  }
  if (spec.path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("model '", absl::CHexEscape(text), "': no path, expected [NAME=]PATH"));
  }
  bool valid = !spec.name.empty() && spec.name.size() <= kNameBytesMax;
  for (const char c : spec.name) valid = valid && IsNameCharacter(c);
  if (!valid) {
    return absl::InvalidArgumentError(
        absl::StrCat("model '", absl::CHexEscape(text), "': the name must be 1 to ", kNameBytesMax,
                     " of the characters A-Z a-z 0-9 . _ : / - (give one as NAME=PATH)"));
  }
  return spec;
}

uint64_t MintInstanceId() {
  std::random_device device;
  const uint64_t id = uint64_t{device()} << 32 | device();
  return id == 0 ? 1 : id;
}

}  // namespace baton::worker
