#include "router/output/output_assembler.h"

#include <algorithm>

#include "common/base/check.h"

namespace baton::router {
namespace {

bool Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

OutputAssembler::OutputAssembler(StopConditions stop, bool logprobs,
                                 std::unique_ptr<TextDecoder> decoder)
    : stop_(std::move(stop)),
      logprobs_(logprobs),
      decoder_(std::move(decoder)),
      matcher_(stop_.strings, stop_.include_string) {
  CHECK_GE(stop_.max_tokens, 1);
}

std::optional<OutputFinish> OutputAssembler::Push(GeneratedToken token, OutputDelta* delta) {
  CHECK(!finished_) << "token after the end";
  ++completion_tokens_;
  last_token_ = token.id;
  const int32_t id = token.id;
  delta->token_ids.push_back(id);
  if (logprobs_) delta->logprobs.push_back(std::move(token));
  // A stop token that is an end token too counts as what the client asked for.
  if (Contains(stop_.token_ids, id)) return End(FinishKind::kStopToken, delta);
  if (Contains(stop_.eos_token_ids, id)) return End(FinishKind::kEos, delta);
  if (AppendText(decoder_->Push(id), delta)) return StopStringFinish();
  if (completion_tokens_ >= stop_.max_tokens) return End(FinishKind::kLength, delta);
  return std::nullopt;
}

OutputFinish OutputAssembler::End(FinishKind kind, OutputDelta* delta) {
  CHECK(!finished_) << "second end";
  if (AppendText(decoder_->Finish(), delta)) return StopStringFinish();
  matcher_.Flush(&delta->text);
  finished_ = true;
  return OutputFinish{.kind = kind, .token_id = last_token_, .stop_string = {}};
}

bool OutputAssembler::AppendText(const std::string& text, OutputDelta* delta) {
  return matcher_.Push(text, &delta->text);
}

OutputFinish OutputAssembler::StopStringFinish() {
  finished_ = true;
  return OutputFinish{.kind = FinishKind::kStopString,
                      .token_id = last_token_,
                      .stop_string = stop_.strings[matcher_.match_index()]};
}

}  // namespace baton::router
