#include "router/testing/worker_frames.h"

#include <openssl/sha.h>

#include "absl/strings/str_cat.h"

namespace baton::router {

const std::string& TokenizerFile() {
  static const std::string file = [] {
    std::string bytes(600'000, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 + i / 1000);
    return bytes;
  }();
  return file;
}

std::string Sha256ForTest(absl::string_view bytes) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest);
  return std::string(reinterpret_cast<const char*>(digest), sizeof(digest));
}

worker::v1::ModelDescription TestModel(const std::string& name) {
  worker::v1::ModelDescription model;
  model.set_name(name);
  model.set_revision("r1");
  auto* artifact = model.add_artifacts();
  artifact->set_kind(worker::v1::ARTIFACT_KIND_TOKENIZER_JSON);
  artifact->set_digest(Sha256ForTest(TokenizerFile()));
  artifact->set_size_bytes(static_cast<int64_t>(TokenizerFile().size()));
  model.set_context_tokens_max(1000);
  model.set_vocabulary_size(1000);
  model.set_sampled_vocabulary_size(1000);
  model.add_eos_token_ids(5);
  model.set_block_tokens(16);
  model.set_num_blocks(64);
  model.set_kv_layout("f32 test");
  return model;
}

worker::v1::SessionResponse HelloFrame(worker::v1::WorkerRole role, uint64_t instance,
                                       const std::vector<worker::v1::ModelDescription>& models,
                                       uint32_t prefill_credits) {
  worker::v1::SessionResponse frame;
  auto* hello = frame.mutable_hello();
  hello->set_protocol_version(1);
  hello->set_worker_id(absl::StrCat("w", instance));
  hello->set_instance_id(instance);
  hello->set_role(role);
  for (const auto& model : models) *hello->add_models() = model;
  if (role == worker::v1::WORKER_ROLE_DECODE) hello->set_transfer_address("kv:1");
  if (role != worker::v1::WORKER_ROLE_DECODE) hello->set_prefill_credits(prefill_credits);
  return frame;
}

worker::v1::SessionResponse ArtifactFrame(const worker::v1::FetchArtifact& fetch) {
  constexpr size_t kChunk = 256 << 10;
  worker::v1::SessionResponse frame;
  frame.mutable_artifact()->set_digest(fetch.digest());
  frame.mutable_artifact()->set_offset(fetch.offset());
  frame.mutable_artifact()->set_data(
      TokenizerFile().substr(static_cast<size_t>(fetch.offset()), kChunk));
  return frame;
}

worker::v1::SessionResponse HeartbeatFrame() {
  worker::v1::SessionResponse frame;
  frame.mutable_heartbeat();
  return frame;
}

worker::v1::SessionResponse ReservedFrame(RequestId id, uint32_t attempt) {
  worker::v1::SessionResponse frame;
  frame.mutable_reserved()->set_request_id(id.value);
  frame.mutable_reserved()->set_attempt(attempt);
  return frame;
}

worker::v1::SessionResponse TokensFrame(RequestId id, const std::vector<TokenSpec>& tokens,
                                        uint32_t attempt) {
  worker::v1::SessionResponse frame;
  frame.mutable_step()->set_model("m");
  for (const TokenSpec& token : tokens) {
    auto* out = frame.mutable_step()->add_tokens();
    out->set_request_id(id.value);
    out->set_attempt(attempt);
    out->set_index(token.index);
    out->set_token_id(token.id);
    out->set_logprob(-1);
  }
  return frame;
}

worker::v1::SessionResponse WithEnd(worker::v1::SessionResponse step, RequestId id,
                                    worker::v1::EndReason reason, uint32_t attempt) {
  auto* end = step.mutable_step()->add_ends();
  end->set_request_id(id.value);
  end->set_attempt(attempt);
  end->set_reason(reason);
  return step;
}

worker::v1::SessionResponse EndFrame(RequestId id, worker::v1::EndReason reason, uint32_t attempt) {
  return WithEnd({}, id, reason, attempt);
}

worker::v1::SessionResponse ErrorFrame(RequestId id, absl::StatusCode code,
                                       const std::string& message, bool retryable,
                                       uint32_t attempt) {
  worker::v1::SessionResponse frame = EndFrame(id, worker::v1::END_REASON_ERROR, attempt);
  auto* end = frame.mutable_step()->mutable_ends(0);
  end->set_status_code(static_cast<int>(code));
  end->set_message(message);
  end->set_retryable(retryable);
  return frame;
}

}  // namespace baton::router
