// Fuzzes the reader of tokenizer.json, and what it makes of a text when the file is accepted: no
// input may crash, hang or take memory out of proportion; accepted tokenizers give valid UTF-8.
// Seeds: fuzz_corpus/tokenizer_json.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  baton::TokenizerFiles files;
  files.tokenizer_json.assign(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = baton::Tokenizer::Create(files);
  if (!tokenizer.ok()) return 0;
  for (const bool parse_special : {false, true}) {
    const auto ids = (*tokenizer)
                         ->Encode("ab <s> a\xCC\x81 12.\n\xE3\x81\x82  ▁x",
                                  {.parse_special = parse_special, .tokens_max = 1000});
    if (!ids.ok()) continue;
    for (const int32_t id : *ids) CHECK((*tokenizer)->HasToken(id)) << id;
    const std::string text = (*tokenizer)->Decode(*ids, {.skip_special = parse_special});
    CHECK_EQ(baton::unicode::FindInvalidUtf8(text), absl::string_view::npos);
  }
  return 0;
}
