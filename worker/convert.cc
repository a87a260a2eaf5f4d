#include "worker/convert.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace baton::worker {
namespace {

// A prompt cannot be longer than this whatever the model: bounds memory before anything is looked
// at.
constexpr int kTokensMax = 1 << 24;

absl::StatusOr<StartMode> ModeFromProto(v1::StartMode mode) {
  switch (mode) {
    case v1::START_MODE_RESERVE:
      return StartMode::kReserve;
    case v1::START_MODE_PREFILL:
      return StartMode::kPrefill;
    case v1::START_MODE_PREFILL_ONLY:
      return StartMode::kPrefillOnly;
    case v1::START_MODE_GENERATE:
      return StartMode::kGenerate;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("StartSequence.mode: unknown value ", static_cast<int>(mode)));
  }
}

absl::StatusOr<SamplingParams> SamplingFromProto(const v1::Sampling& proto) {
  const auto bad = [](absl::string_view field, const auto& value) {
    return absl::InvalidArgumentError(absl::StrCat("StartSequence.sampling.", field, ": ", value));
  };
  if (!std::isfinite(proto.temperature()) || proto.temperature() < 0) {
    return bad("temperature", proto.temperature());
  }
  if (!(proto.top_p() >= 0 && proto.top_p() <= 1)) return bad("top_p", proto.top_p());
  if (!(proto.min_p() >= 0 && proto.min_p() <= 1)) return bad("min_p", proto.min_p());
  if (proto.top_k() < 0) return bad("top_k", proto.top_k());
  if (proto.top_logprobs() > kTopLogprobsMax) return bad("top_logprobs", proto.top_logprobs());
  SamplingParams params;
  params.temperature =
      static_cast<float>(std::min<double>(proto.temperature(), std::numeric_limits<float>::max()));
  params.top_k = proto.top_k();
  params.top_p = static_cast<float>(proto.top_p());
  params.min_p = static_cast<float>(proto.min_p());
  params.seed = proto.seed();
  params.sample_index = proto.sample_index();
  params.num_top_logprobs = static_cast<int32_t>(proto.top_logprobs());
  params.logprobs = proto.logprobs() || params.num_top_logprobs > 0;
  return params;
}

v1::EndReason ReasonToProto(EndReason reason) {
  switch (reason) {
    case EndReason::kEos:
      return v1::END_REASON_EOS;
    case EndReason::kStopToken:
      return v1::END_REASON_STOP_TOKEN;
    case EndReason::kLength:
      return v1::END_REASON_LENGTH;
    case EndReason::kHandedOver:
      return v1::END_REASON_HANDED_OVER;
    case EndReason::kCancelled:
      return v1::END_REASON_CANCELLED;
    case EndReason::kError:
      break;
  }
  return v1::END_REASON_ERROR;
}

void FillToken(const TokenOutput& output, v1::TokenOutput& proto) {
  proto.set_request_id(output.key.request_id.value);
  proto.set_attempt(output.key.attempt);
  proto.set_index(output.index);
  proto.set_token_id(output.token.token_id);
  proto.set_logprob(output.token.logprob);
  for (const TopLogprob& top : output.token.top_logprobs) {
    proto.add_top_token_ids(top.token_id);
    proto.add_top_logprobs(top.logprob);
  }
}

}  // namespace

absl::StatusOr<StartSequence> FromProto(const v1::StartSequence& proto, RouterSessionId session,
                                        TimePoint now) {
  StartSequence start;
  start.key = {session, RequestId(proto.request_id()), proto.attempt()};
  ASSIGN_OR_RETURN(start.mode, ModeFromProto(proto.mode()));
  if (proto.token_ids().empty() || proto.token_ids_size() > kTokensMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("StartSequence.token_ids: ", proto.token_ids_size(), " tokens"));
  }
  if (proto.num_prompt_tokens() == 0 ||
      proto.num_prompt_tokens() > static_cast<uint32_t>(proto.token_ids_size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("StartSequence.num_prompt_tokens: ", proto.num_prompt_tokens(), " of ",
                     proto.token_ids_size()));
  }
  if (proto.max_tokens() == 0) {
    return absl::InvalidArgumentError("StartSequence.max_tokens: must be at least 1");
  }
  const bool transfers = start.mode == StartMode::kReserve || start.mode == StartMode::kPrefill;
  if (transfers && proto.transfer_id() == 0) {
    return absl::InvalidArgumentError("StartSequence.transfer_id: missing");
  }
  if (start.mode == StartMode::kPrefill && proto.transfer_address().empty()) {
    return absl::InvalidArgumentError("StartSequence.transfer_address: missing");
  }
  ASSIGN_OR_RETURN(start.sampling, SamplingFromProto(proto.sampling()));
  start.model = proto.model();
  start.token_ids.assign(proto.token_ids().begin(), proto.token_ids().end());
  start.num_prompt_tokens = proto.num_prompt_tokens();
  start.max_tokens = proto.max_tokens();
  start.stop_token_ids.assign(proto.stop_token_ids().begin(), proto.stop_token_ids().end());
  start.eos_token_ids.assign(proto.eos_token_ids().begin(), proto.eos_token_ids().end());
  if (proto.remaining_ms() > 0) {
    constexpr uint64_t kMsMax = uint64_t{1} << 40;  // 34 years; keeps the product in range.
    start.deadline =
        SaturatingAdd(now, std::chrono::milliseconds(std::min(proto.remaining_ms(), kMsMax)));
  }
  start.transfer_id = TransferId(proto.transfer_id());
  start.transfer_address = proto.transfer_address();
  start.decode_instance_id = proto.decode_instance_id();
  start.initial_credits = proto.initial_credits();
  return start;
}

v1::SequenceEnd ToProto(const SequenceEnd& end) {
  v1::SequenceEnd proto;
  proto.set_request_id(end.key.request_id.value);
  proto.set_attempt(end.key.attempt);
  proto.set_reason(ReasonToProto(end.reason));
  if (end.reason == EndReason::kError) {
    proto.set_status_code(static_cast<int>(end.status.code()));
    proto.set_message(std::string(end.status.message()));
  }
  proto.set_retryable(end.retryable);
  proto.set_cached_tokens(end.cached_tokens);
  proto.set_kv_bytes(end.kv_bytes);
  return proto;
}

v1::StepOutput ToProto(const StepOutput& output) {
  v1::StepOutput proto;
  proto.set_model(output.model);
  proto.mutable_tokens()->Reserve(static_cast<int>(output.tokens.size()));
  for (const TokenOutput& token : output.tokens) FillToken(token, *proto.add_tokens());
  for (const SequenceEnd& end : output.ends) *proto.add_ends() = ToProto(end);
  return proto;
}

v1::PairFailed ToProto(const PairFailed& failure) {
  v1::PairFailed proto;
  proto.set_peer_instance_id(failure.peer_instance_id);
  proto.set_peer_address(failure.peer_address);
  proto.set_reason(failure.reason);
  return proto;
}

v1::ModelLoad ToProto(const LoopLoad& load) {
  v1::ModelLoad proto;
  proto.set_model(load.model);
  proto.set_waiting_sequences(load.waiting_sequences);
  proto.set_running_sequences(load.running_sequences);
  proto.set_free_blocks(load.free_blocks);
  proto.set_total_blocks(load.total_blocks);
  proto.set_queued_prompt_tokens(load.queued_prompt_tokens);
  return proto;
}

}  // namespace baton::worker
