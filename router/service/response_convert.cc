#include "router/service/response_convert.h"

namespace baton::router {

void AppendDelta(const OutputDelta& in, v1::Delta* out) {
  out->mutable_text()->append(in.text);
  out->mutable_token_ids()->Add(in.token_ids.begin(), in.token_ids.end());
  for (const GeneratedToken& token : in.logprobs) {
    v1::TokenLogprob* logprob = out->add_logprobs();
    logprob->set_token_id(token.id);
    logprob->set_logprob(token.logprob);
    for (const auto& [id, value] : token.top) {
      v1::TopLogprob* top = logprob->add_top();
      top->set_token_id(id);
      top->set_logprob(value);
    }
  }
}

void FillUsage(const UsageCounts& in, v1::Usage* out) {
  out->set_prompt_tokens(in.prompt_tokens);
  out->set_completion_tokens(in.completion_tokens);
  out->set_cached_tokens(in.cached_tokens);
}

void FillFinish(const RequestFinish& in, v1::Finish* out) {
  switch (in.finish.kind) {
    case FinishKind::kStopString:
      out->set_reason(v1::FINISH_REASON_STOP);
      out->set_stop_string(in.finish.stop_string);
      break;
    case FinishKind::kStopToken:
      out->set_reason(v1::FINISH_REASON_STOP);
      out->set_stop_token_id(in.finish.token_id);
      break;
    case FinishKind::kEos:
      out->set_reason(v1::FINISH_REASON_STOP);
      out->set_eos_token_id(in.finish.token_id);
      break;
    case FinishKind::kLength:
      out->set_reason(v1::FINISH_REASON_LENGTH);
      break;
  }
  out->set_seed(in.seed);
  v1::Timings* timings = out->mutable_timings();
  timings->set_queue_seconds(in.queue_seconds);
  timings->set_time_to_first_token_seconds(in.time_to_first_token_seconds);
  timings->set_total_seconds(in.total_seconds);
  timings->set_kv_handover_bytes(in.kv_handover_bytes);
}

}  // namespace baton::router
