// Encoding in MB/s and detokenising in tokens/s, with the repository's own tokenizer, and with
// others when $BATON_SHARED_DATA has them. Run in the repository's root.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "engine/tokenizer/incremental_detokenizer.h"
#include "engine/tokenizer/tokenizer.h"

namespace baton {
namespace {

std::string ReadFileOrEmpty(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string SharedPath(absl::string_view relative) {
  const char* root = std::getenv("BATON_SHARED_DATA");
  return absl::StrCat(root != nullptr ? root : "../shared/data", "/", relative);
}

std::unique_ptr<const Tokenizer> Load(const std::string& path) {
  TokenizerFiles files;
  (absl::EndsWith(path, ".json") ? files.tokenizer_json : files.tokenizer_model) =
      ReadFileOrEmpty(path);
  auto tokenizer = Tokenizer::Create(files);
  if (!tokenizer.ok()) return nullptr;
  return *std::move(tokenizer);
}

// About a megabyte of English, or of what stands in for it.
std::string Prose() {
  std::string text = ReadFileOrEmpty(SharedPath("corpora/gutenberg/tinyshakespeare_input.txt"));
  while (text.size() < 1'000'000) {
    text +=
        "Once upon a time, in 1837, there was a little brutalist house; nobody's aunt lived "
        "there, naïvely happy.\n\n";
  }
  return text;
}

void Encode(benchmark::State& state, const std::string& path, const std::string& text) {
  const auto tokenizer = Load(path);
  if (tokenizer == nullptr) {
    state.SkipWithError("no such tokenizer file");
    return;
  }
  size_t tokens = 0;
  for (auto _ : state) {
    const auto ids = tokenizer->Encode(text, {});
    CHECK(ids.ok()) << ids.status();
    tokens += ids->size();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(tokens), benchmark::Counter::kIsRate);
}

void Detokenize(benchmark::State& state, const std::string& path, const std::string& text) {
  const auto tokenizer = Load(path);
  if (tokenizer == nullptr) {
    state.SkipWithError("no such tokenizer file");
    return;
  }
  const std::vector<int32_t> ids = *tokenizer->Encode(text, {});
  for (auto _ : state) {
    IncrementalDetokenizer detokenizer(tokenizer.get());
    size_t bytes = 0;
    for (const int32_t id : ids) bytes += detokenizer.Push(id).size();
    benchmark::DoNotOptimize(bytes);
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * ids.size()));
}

void CreateTokenizer(benchmark::State& state, const std::string& path) {
  for (auto _ : state) {
    if (Load(path) == nullptr) {
      state.SkipWithError("no such tokenizer file");
      return;
    }
  }
}

int Run(int argc, char** argv) {
  const std::string text = Prose();
  std::string kana;
  while (kana.size() < 1'000'000) kana += "\u3042";
  const std::pair<std::string, std::string> tokenizers[] = {
      {"prose", "models/prose-1m-draft/tokenizer.json"},
      {"gpt2", SharedPath("tokenizers/hf-json/gpt2_tokenizer.json")},
      {"falcon", SharedPath("tokenizers/hf-json/falcon_tokenizer.json")},
      {"llama_json", SharedPath("tokenizers/hf-json/llama_tokenizer.json")},
      {"llama_model", SharedPath("tokenizers/llama2-spm/tokenizer.model")}};
  for (const auto& [name, path] : tokenizers) {
    const auto add = [&, path = path](absl::string_view what, const std::string& input) {
      benchmark::RegisterBenchmark(
          absl::StrCat("Encode/", name, "/", what).c_str(),
          [path, input](benchmark::State& state) { Encode(state, path, input); })
          ->Unit(benchmark::kMillisecond);
    };
    add("prose", text);
    add("million_dots", std::string(1'000'000, '.'));
    add("half_million_a", std::string(500'000, 'a'));
    add("megabyte_of_kana", kana);
    benchmark::RegisterBenchmark(
        absl::StrCat("Detokenize/", name).c_str(),
        [path = path, text](benchmark::State& state) { Detokenize(state, path, text); })
        ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(
        absl::StrCat("Create/", name).c_str(),
        [path = path](benchmark::State& state) { CreateTokenizer(state, path); })
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Run(argc, argv); }
