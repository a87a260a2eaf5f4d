// A TextCodec for tests: a table of pieces. Ids 0 to 255 are single bytes, further ids are the
// given pieces; text is encoded byte by byte. Encoding can be made slow or failing.
#ifndef BATON_ROUTER_TESTING_TABLE_CODEC_H_
#define BATON_ROUTER_TESTING_TABLE_CODEC_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "router/text/text_codec.h"

namespace baton::router {

class TableCodec final : public TextCodec {
 public:
  explicit TableCodec(std::vector<std::string> pieces = {}) : pieces_(std::move(pieces)) {
    for (const std::string& piece : pieces_) longest_ = std::max(longest_, piece.size());
  }

  // Runs at the start of every Encode, on the calling thread.
  void set_on_encode(std::function<absl::Status(absl::string_view)> hook) {
    on_encode_ = std::move(hook);
  }

  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view utf8,
                                              const TextEncodeOptions& options) const override {
    if (on_encode_) {
      const absl::Status status = on_encode_(utf8);
      if (!status.ok()) return status;
    }
    std::vector<int32_t> ids;
    if (options.add_special_tokens.value_or(false)) ids.push_back(1);
    for (char c : utf8) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }

  std::string Decode(absl::Span<const int32_t> ids, bool skip_special) const override {
    Decoder decoder(shared_from_this(), this);
    std::string text;
    for (int32_t id : ids) {
      if (!skip_special || id != 1) text += decoder.Push(id);
    }
    return text + decoder.Finish();
  }

  std::string TokenBytes(int32_t id) const override {
    if (id < 256) return std::string(1, static_cast<char>(id));
    const size_t index = static_cast<size_t>(id) - 256;
    return index < pieces_.size() ? pieces_[index] : std::string();
  }
  size_t longest_token_bytes() const override { return longest_; }
  size_t special_tokens_max() const override { return 1; }
  std::unique_ptr<TextDecoder> NewDecoder() const override {
    return std::make_unique<Decoder>(shared_from_this(), this);
  }

 private:
  // Complete characters pass, an incomplete one waits, an invalid byte becomes U+FFFD.
  class Decoder final : public TextDecoder {
   public:
    Decoder(std::shared_ptr<const TextCodec> owner, const TableCodec* codec)
        : owner_(std::move(owner)), codec_(codec) {}

    std::string Push(int32_t id) override {
      pending_ += codec_->TokenBytes(id);
      std::string out;
      while (!pending_.empty()) {
        const size_t wanted = Length(static_cast<unsigned char>(pending_[0]));
        size_t good = 1;
        while (good < wanted && good < pending_.size() && (pending_[good] & 0xC0) == 0x80) ++good;
        if (wanted != 0 && good == pending_.size() && good < wanted) break;
        if (wanted == 0 || good < wanted) {
          out += "\xEF\xBF\xBD";
          pending_.erase(0, good);
        } else {
          out.append(pending_, 0, wanted);
          pending_.erase(0, wanted);
        }
      }
      return out;
    }
    std::string Finish() override {
      const std::string out = pending_.empty() ? "" : "\xEF\xBF\xBD";
      pending_.clear();
      return out;
    }

   private:
    static size_t Length(unsigned char lead) {
      if (lead < 0x80) return 1;
      if (lead >= 0xC2 && lead < 0xE0) return 2;
      if (lead >= 0xE0 && lead < 0xF0) return 3;
      return lead >= 0xF0 && lead < 0xF5 ? 4 : 0;
    }
    const std::shared_ptr<const TextCodec> owner_;
    const TableCodec* const codec_;
    std::string pending_;
  };

  const std::vector<std::string> pieces_;
  size_t longest_ = 1;
  std::function<absl::Status(absl::string_view)> on_encode_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_TESTING_TABLE_CODEC_H_
