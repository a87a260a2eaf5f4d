#include "common/rpc/ready_line.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton::rpc {
namespace {

absl::string_view Word(absl::string_view text) {
  CHECK(!text.empty());
  for (const char c : text) CHECK(c > ' ' && c < 0x7f && c != '"') << "in the ready line: " << text;
  return text;
}

}  // namespace

std::string FormatReadyLine(absl::string_view role, const ReadyFields& fields) {
  std::string line = absl::StrCat("ready role=", Word(role));
  for (const auto& [name, value] : fields) {
    absl::StrAppend(&line, " ", Word(name), "=", Word(value));
  }
  return line;
}

void PrintReadyLine(absl::string_view role, const ReadyFields& fields) {
  std::printf("%s\n", FormatReadyLine(role, fields).c_str());
  std::fflush(stdout);
}

}  // namespace baton::rpc
