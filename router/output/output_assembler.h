// Turns the tokens of one request, in order, into what its client gets: text, token ids,
// log-probabilities and the finish. Rules:
//  - Every token that is pushed is counted and its id delivered (with its log-probability when
//  asked
//    for), so the ids of all deltas are as many as completion_tokens.
//  - The text of an end token or stop token is not delivered. Text is held back while it may be
//  part
//    of a stop string or of a character, never otherwise.
//  - The token that ends the request is the last one that is counted; nothing may be pushed after
//  it.
//
// Thread-compatible: owned by the core's loop, one per request.
#ifndef BATON_ROUTER_OUTPUT_OUTPUT_ASSEMBLER_H_
#define BATON_ROUTER_OUTPUT_OUTPUT_ASSEMBLER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "router/output/stop_string_matcher.h"
#include "router/text/text_codec.h"

namespace baton::router {

struct GeneratedToken {
  int32_t id = 0;
  float logprob = 0;
  // Best first; (token, log-probability).
  std::vector<std::pair<int32_t, float>> top{};
};

struct StopConditions {
  std::vector<std::string> strings{};
  bool include_string = false;
  std::vector<int32_t> token_ids{};
  // Empty with ignore_eos.
  std::vector<int32_t> eos_token_ids{};
  // At least 1.
  int64_t max_tokens = 1;
};

enum class FinishKind { kStopString, kStopToken, kEos, kLength };

struct OutputFinish {
  FinishKind kind = FinishKind::kLength;
  // kStopToken, kEos.
  int32_t token_id = 0;
  // kStopString.
  std::string stop_string{};
};

struct OutputDelta {
  std::string text{};
  std::vector<int32_t> token_ids{};
  // As many as token_ids with log-probabilities, else empty.
  std::vector<GeneratedToken> logprobs{};

  bool empty() const { return text.empty() && token_ids.empty(); }
};

class OutputAssembler {
 public:
  OutputAssembler(StopConditions stop, bool logprobs, std::unique_ptr<TextDecoder> decoder);

  // Appends what the token adds to `delta`. The finish when the token has ended the request.
  // REQUIRES: !finished().
  std::optional<OutputFinish> Push(GeneratedToken token, OutputDelta* delta);

  // The request ends here for a reason that the tokens do not show (a worker said so): appends the
  // text that was held back. The finish is `kind`, unless the last text completed a stop string.
  // REQUIRES: !finished().
  OutputFinish End(FinishKind kind, OutputDelta* delta);

  bool finished() const { return finished_; }
  int64_t completion_tokens() const { return completion_tokens_; }

 private:
  // True when `text` completes a stop string.
  bool AppendText(const std::string& text, OutputDelta* delta);
  OutputFinish StopStringFinish();

  const StopConditions stop_;
  const bool logprobs_;
  const std::unique_ptr<TextDecoder> decoder_;
  StopStringMatcher matcher_;
  int64_t completion_tokens_ = 0;
  int32_t last_token_ = 0;
  bool finished_ = false;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_OUTPUT_OUTPUT_ASSEMBLER_H_
