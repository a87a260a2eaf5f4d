#include "engine/tokenizer/incremental_detokenizer.h"

#include "common/base/check.h"

namespace baton {
namespace {

constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace

void Utf8Assembler::Replace(size_t bytes, std::string* out) const {
  const size_t count = policy_ == InvalidUtf8::kReplaceEachByte ? bytes : 1;
  for (size_t i = 0; i < count; ++i) out->append(kReplacement.data(), kReplacement.size());
}

void Utf8Assembler::Append(absl::string_view bytes, std::string* out) {
  size_t i = 0;
  while (i < bytes.size()) {
    if (pending_size_ == 0) {
      size_t end = i;
      while (end < bytes.size() && static_cast<unsigned char>(bytes[end]) < 0x80) ++end;
      out->append(bytes.data() + i, end - i);
      i = end;
      if (i == bytes.size()) return;
    }
    AppendByte(static_cast<unsigned char>(bytes[i]), out);
    ++i;
  }
}

void Utf8Assembler::AppendByte(unsigned char byte, std::string* out) {
  if (pending_size_ > 0) {
    if (byte >= next_min_ && byte <= next_max_) {
      pending_[pending_size_++] = static_cast<char>(byte);
      next_min_ = 0x80;
      next_max_ = 0xBF;
      if (pending_size_ == wanted_) {
        out->append(pending_, pending_size_);
        pending_size_ = 0;
      }
      return;
    }
    Replace(pending_size_, out);
    pending_size_ = 0;
  }
  if (byte < 0x80) {
    out->push_back(static_cast<char>(byte));
    return;
  }
  next_min_ = 0x80;
  next_max_ = 0xBF;
  if (byte >= 0xC2 && byte <= 0xDF) {
    wanted_ = 2;
  } else if (byte >= 0xE0 && byte <= 0xEF) {
    wanted_ = 3;
    if (byte == 0xE0) next_min_ = 0xA0;
    if (byte == 0xED) next_max_ = 0x9F;
  } else if (byte >= 0xF0 && byte <= 0xF4) {
    wanted_ = 4;
    if (byte == 0xF0) next_min_ = 0x90;
    if (byte == 0xF4) next_max_ = 0x8F;
  } else {
    Replace(1, out);
    return;
  }
  pending_[0] = static_cast<char>(byte);
  pending_size_ = 1;
}

void Utf8Assembler::Finish(std::string* out) {
  if (pending_size_ > 0) Replace(pending_size_, out);
  pending_size_ = 0;
}

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer* tokenizer,
                                               const DecodeOptions& options)
    : tokenizer_(tokenizer), options_(options), assembler_(tokenizer->invalid_utf8()) {
  Reset();
}

void IncrementalDetokenizer::Reset() {
  at_first_token_ = !options_.follows_prompt;
  const LeadingSpaceRule& rule = tokenizer_->leading_space();
  strip_spaces_left_ =
      rule.kind == LeadingSpaceRule::Kind::kStripSpaces && at_first_token_ ? rule.spaces_max : 0;
}

std::string IncrementalDetokenizer::Push(int32_t id) {
  std::string out;
  if (!tokenizer_->HasToken(id)) return out;
  if (options_.skip_special && tokenizer_->IsSpecial(id)) return out;
  absl::string_view bytes = tokenizer_->TokenBytesView(id);
  if (at_first_token_) {
    at_first_token_ = false;
    if (tokenizer_->leading_space().kind == LeadingSpaceRule::Kind::kStripFirstToken) {
      for (const char c : bytes) {
        if (c != ' ') assembler_.Append(absl::string_view(&c, 1), &out);
      }
      return out;
    }
  }
  while (strip_spaces_left_ > 0 && !bytes.empty()) {
    if (bytes.front() != ' ') {
      strip_spaces_left_ = 0;
      break;
    }
    bytes.remove_prefix(1);
    --strip_spaces_left_;
  }
  assembler_.Append(bytes, &out);
  DCHECK(assembler_.pending_bytes() <= 3) << "a half character has at most 3 bytes";
  return out;
}

std::string IncrementalDetokenizer::Finish() {
  std::string out;
  assembler_.Finish(&out);
  Reset();
  return out;
}

}  // namespace baton
