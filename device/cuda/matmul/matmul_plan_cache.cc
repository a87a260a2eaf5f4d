#include "device/cuda/matmul/matmul_plan_cache.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace baton::cuda {
namespace {

constexpr char kChecksumField[] = ", \"checksum\": \"";

// FNV-1a: damage is what it must find, not malice.
uint64_t Checksum(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

std::string Line(const MatmulKey& key, const MatmulChoice& choice) {
  std::string algorithm;
  for (const uint64_t word : choice.algorithm) absl::StrAppendFormat(&algorithm, "%016x", word);
  const std::string body = absl::StrFormat(
      R"({"timing": 2, "rows": %d, "n": %d, "k": %d, "bf16": %d, "out_f32": %d, "bias": %d, )"
      R"("deterministic": %d, "num_sms": %d, "cublaslt": %d, "us": %.3f, "workspace_bytes": %d, )"
      R"("algorithm": "%s")",
      key.rows, key.n, key.k, static_cast<int>(key.bf16), static_cast<int>(key.out_f32),
      static_cast<int>(key.bias), static_cast<int>(key.deterministic), key.num_sms,
      key.library_version, choice.us, choice.workspace_bytes, algorithm);
  return absl::StrFormat("%s%s%016x\"}", body, kChecksumField, Checksum(body));
}

// Only what Line writes: the checksum first, then the fields in their order.
std::optional<std::pair<MatmulKey, MatmulChoice>> ParseLine(const std::string& line) {
  const size_t split = line.rfind(kChecksumField);
  if (split == std::string::npos) return std::nullopt;
  const std::string body = line.substr(0, split);
  if (line.substr(split) != absl::StrFormat("%s%016x\"}", kChecksumField, Checksum(body))) {
    return std::nullopt;
  }
  MatmulKey key;
  MatmulChoice choice;
  int bf16 = 0;
  int out_f32 = 0;
  int bias = 0;
  int deterministic = 0;
  long long version = 0;          // NOLINT(google-runtime-int): sscanf has no int64_t.
  long long workspace_bytes = 0;  // NOLINT(google-runtime-int)
  char algorithm[129] = {};
  int read = 0;
  const int fields = std::sscanf(
      body.c_str(),
      R"({"timing": 2, "rows": %d, "n": %d, "k": %d, "bf16": %d, "out_f32": %d, "bias": %d, )"
      R"("deterministic": %d, "num_sms": %d, "cublaslt": %lld, "us": %lf, "workspace_bytes": %lld, )"
      R"("algorithm": "%128[0-9a-f]"%n)",
      &key.rows, &key.n, &key.k, &bf16, &out_f32, &bias, &deterministic, &key.num_sms, &version,
      &choice.us, &workspace_bytes, algorithm, &read);
  if (fields != 12 || static_cast<size_t>(read) != body.size()) return std::nullopt;
  if (std::strlen(algorithm) != 128 || !(choice.us > 0) || workspace_bytes < 0) return std::nullopt;
  key.bf16 = bf16 != 0;
  key.out_f32 = out_f32 != 0;
  key.bias = bias != 0;
  key.deterministic = deterministic != 0;
  key.library_version = version;
  choice.workspace_bytes = workspace_bytes;
  for (size_t i = 0; i < choice.algorithm.size(); ++i) {
    choice.algorithm[i] = std::stoull(std::string(algorithm + 16 * i, 16), nullptr, 16);
  }
  return std::make_pair(key, choice);
}

}  // namespace

const MatmulChoice* MatmulPlanCache::Find(const MatmulKey& key) const {
  const auto it = choices_.find(key);
  return it == choices_.end() ? nullptr : &it->second;
}

int MatmulPlanCache::Parse(absl::string_view text) {
  int skipped = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipWhitespace())) {
    const auto parsed = ParseLine(std::string(line));
    if (parsed.has_value()) {
      Put(parsed->first, parsed->second);
    } else {
      ++skipped;
    }
  }
  return skipped;
}

std::string MatmulPlanCache::Serialise() const {
  std::vector<std::string> lines;
  for (const auto& [key, choice] : choices_) {
    if (choice.us > 0) lines.push_back(Line(key, choice));
  }
  std::sort(lines.begin(), lines.end());
  std::string text = absl::StrJoin(lines, "\n");
  if (!text.empty()) text += '\n';
  return text;
}

absl::StatusOr<int> MatmulPlanCache::ReadFile(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return absl::NotFoundError(path);
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (!in.is_open() || !(text << in.rdbuf())) {
    // Inserting nothing fails too; an empty file is a valid cache.
    if (in.is_open() && std::filesystem::file_size(path, error) == 0) return 0;
    return absl::UnavailableError(absl::StrCat("cannot read ", path));
  }
  return Parse(text.str());
}

absl::Status MatmulPlanCache::WriteFile(const std::string& path) const {
  // Another process may do the same: each writes a file of its own, the last rename stays.
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    out << Serialise();
    out.close();
    if (!out) return absl::UnavailableError(absl::StrCat("cannot write ", temporary));
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) {
    const absl::Status status =
        absl::UnavailableError(absl::StrCat("cannot rename to ", path, ": ", error.message()));
    std::filesystem::remove(temporary, error);
    return status;
  }
  return absl::OkStatus();
}

}  // namespace baton::cuda
