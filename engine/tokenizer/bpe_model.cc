#include "engine/tokenizer/bpe_model.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "engine/tokenizer/byte_level.h"
#include "engine/tokenizer/space_mark.h"
#include "engine/tokenizer/unicode.h"

namespace baton {
namespace {

// Longer words are rare: their merges are not worked out ahead.
constexpr size_t kDirectWordBytesMax = 64;

template <typename Map>
int32_t IdOr(const Map& map, absl::string_view key, int32_t fallback) {
  const auto it = map.find(key);
  return it == map.end() ? fallback : it->second;
}

}  // namespace

absl::StatusOr<BpeModel> BpeModel::Build(const Spec& spec) {
  BpeModel model;
  model.fuse_unk_ = spec.fuse_unk;
  model.byte_fallback_ = spec.byte_fallback;
  model.special_ids_ = spec.special_ids;
  model.AddAlphabet(spec);
  if (!spec.unk_token.empty()) {
    model.unk_id_ = IdOr(spec.vocab, spec.unk_token, -1);
    if (model.unk_id_ < 0 && !model.takes_raw_bytes_) {
      return absl::InvalidArgumentError("model.unk_token is not in model.vocab");
    }
  }
  RETURN_IF_ERROR(model.AddMerges(spec));
  model.FindCuts(spec);
  model.AddWords(spec);
  return model;
}

void BpeModel::AddAlphabet(const Spec& spec) {
  id_of_ascii_.fill(-1);
  for (const auto& [token, id] : spec.vocab) {
    if (token.empty()) continue;
    const unicode::DecodedChar c = unicode::DecodeFront(token);
    if (c.bytes != token.size()) continue;
    if (c.code_point < id_of_ascii_.size()) {
      id_of_ascii_[c.code_point] = id;
    } else {
      id_of_char_[c.code_point] = id;
    }
  }
  if (spec.byte_level) {
    for (int byte = 0; byte < 256; ++byte) {
      id_of_byte_[byte] = IdOr(spec.vocab, byte_level::CharOfByte(static_cast<uint8_t>(byte)), -1);
    }
    takes_raw_bytes_ = std::count(id_of_byte_.begin(), id_of_byte_.end(), -1) == 0;
    if (takes_raw_bytes_) return;
  }
  for (int byte = 0; byte < 256; ++byte) {
    id_of_byte_[byte] = IdOr(spec.vocab, absl::StrFormat("<0x%02X>", byte), -1);
  }
}

absl::Status BpeModel::AddMerges(const Spec& spec) {
  merges_.Reserve(spec.merges.size());
  std::string joined;
  for (size_t i = 0; i < spec.merges.size(); ++i) {
    const auto& [left, right] = spec.merges[i];
    if (left.empty() || right.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("model.merges[", i, "]: a part is empty"));
    }
    joined.assign(left).append(right);
    const int32_t left_id = IdOr(spec.vocab, left, -1);
    const int32_t right_id = IdOr(spec.vocab, right, -1);
    const int32_t result = IdOr(spec.vocab, joined, -1);
    if (left_id < 0 || right_id < 0 || result < 0) {
      return absl::InvalidArgumentError(absl::StrCat("model.merges[", i, "]: ",
                                                     left_id < 0    ? "the left part"
                                                     : right_id < 0 ? "the right part"
                                                                    : "the result",
                                                     " is not in model.vocab"));
    }
    merges_.Add(left_id, right_id, static_cast<uint32_t>(i), result);
    if (special_ids_.contains(result)) parts_of_special_.try_emplace(result, left_id, right_id);
  }
  return absl::OkStatus();
}

void BpeModel::AddWords(const Spec& spec) {
  words_.reserve(spec.vocab.size());
  BpeScratch scratch;
  for (const auto& [token, id] : spec.vocab) {
    if (token.empty()) continue;
    std::string word = token;
    if (takes_raw_bytes_) {
      std::optional<std::string> bytes = byte_level::Decode(token);
      if (!bytes.has_value()) continue;  // no word in the alphabet can be equal to it
      word = *std::move(bytes);
    }
    longest_word_bytes_ = std::max(longest_word_bytes_, word.size());
    bool direct = spec.ignore_merges;
    if (!direct && word.size() <= kDirectWordBytesMax) {
      AddSymbols(word, &scratch.symbols);
      merges_.Merge(&scratch.symbols, &scratch.merge);
      direct = scratch.symbols.size() == 1 && scratch.symbols[0].id == id;
    }
    if (direct) words_.insert({std::move(word), id});
  }
}

void BpeModel::FindCuts(const Spec& spec) {
  // ignore_merges looks at the whole word, so the whole word it must be.
  cuts_at_spaces_ = !takes_raw_bytes_ && !spec.ignore_merges && IdOfChar(0x2581) >= 0 &&
                    std::none_of(spec.vocab.begin(), spec.vocab.end(),
                                 [](const auto& entry) { return CrossesSpaceMark(entry.first); });
}

void BpeModel::CutAtSpaces(absl::string_view text, std::vector<absl::string_view>* words) const {
  if (cuts_at_spaces_) {
    CutBeforeSpaceMarks(text, words);
  } else {
    words->assign(1, text);
  }
}

int32_t BpeModel::IdOfChar(char32_t c) const {
  if (c < id_of_ascii_.size()) return id_of_ascii_[c];
  const auto it = id_of_char_.find(c);
  return it == id_of_char_.end() ? -1 : it->second;
}

bool BpeModel::AddByteTokens(absl::string_view character, std::vector<BpeSymbol>* symbols) const {
  for (const char c : character) {
    if (id_of_byte_[static_cast<unsigned char>(c)] < 0) return false;
  }
  for (const char c : character) {
    symbols->push_back({id_of_byte_[static_cast<unsigned char>(c)], 1});
  }
  return true;
}

void BpeModel::AddSymbols(absl::string_view word, std::vector<BpeSymbol>* symbols) const {
  symbols->clear();
  if (takes_raw_bytes_) {
    symbols->resize(word.size());
    for (size_t i = 0; i < word.size(); ++i) {
      (*symbols)[i] = {id_of_byte_[static_cast<unsigned char>(word[i])], 1};
    }
    return;
  }
  BpeSymbol unknown{unk_id_, 0};  // pending while bytes > 0
  const auto flush_unknown = [&] {
    if (unknown.bytes > 0) symbols->push_back(unknown);
    unknown.bytes = 0;
  };
  while (!word.empty()) {
    const unicode::DecodedChar c = unicode::DecodeFront(word);
    const absl::string_view character = word.substr(0, c.bytes);
    word.remove_prefix(c.bytes);
    const int32_t id = IdOfChar(c.code_point);
    if (id >= 0) {
      flush_unknown();
      symbols->push_back({id, static_cast<uint32_t>(c.bytes)});
      continue;
    }
    // The reference does not flush here either: byte tokens overtake a pending unknown.
    if (byte_fallback_ && AddByteTokens(character, symbols)) continue;
    if (unk_id_ < 0) continue;
    if (!fuse_unk_) flush_unknown();
    unknown.bytes += static_cast<uint32_t>(c.bytes);
  }
  flush_unknown();
}

void BpeModel::AppendId(int32_t id, bool allow_special, std::vector<int32_t>* out) const {
  if (allow_special || parts_of_special_.empty()) {
    out->push_back(id);
    return;
  }
  // A result's text is longer than its parts' and ids are unique, so this ends, with a stack no
  // deeper than a token is long.
  std::vector<int32_t> stack = {id};
  while (!stack.empty()) {
    const int32_t top = stack.back();
    stack.pop_back();
    const auto parts = parts_of_special_.find(top);
    if (parts == parts_of_special_.end()) {
      out->push_back(top);
    } else {
      stack.push_back(parts->second.second);
      stack.push_back(parts->second.first);
    }
  }
}

void BpeModel::Encode(absl::string_view word, bool allow_special, BpeScratch* scratch,
                      std::vector<int32_t>* out) const {
  if (word.empty()) return;
  const auto it = words_.find(word);
  if (it != words_.end() && (allow_special || !special_ids_.contains(it->second))) {
    out->push_back(it->second);
    return;
  }
  AddSymbols(word, &scratch->symbols);
  merges_.Merge(&scratch->symbols, &scratch->merge);
  for (const BpeSymbol& symbol : scratch->symbols) AppendId(symbol.id, allow_special, out);
}

}  // namespace baton
