// Frames that a worker sends, made short for tests. The tokenizer file is 600,000 bytes of a
// pattern, three pieces.
#ifndef BATON_ROUTER_TESTING_WORKER_FRAMES_H_
#define BATON_ROUTER_TESTING_WORKER_FRAMES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "baton/worker/v1/session.pb.h"
#include "common/base/strong_id.h"

namespace baton::router {

const std::string& TokenizerFile();
std::string Sha256ForTest(absl::string_view bytes);

// Context 1000, vocabulary 1000, end token 5, blocks of 16, 64 blocks.
worker::v1::ModelDescription TestModel(const std::string& name = "m");

worker::v1::SessionResponse HelloFrame(
    worker::v1::WorkerRole role, uint64_t instance,
    const std::vector<worker::v1::ModelDescription>& models = {TestModel()},
    uint32_t prefill_credits = 4);
worker::v1::SessionResponse ArtifactFrame(const worker::v1::FetchArtifact& fetch);
worker::v1::SessionResponse HeartbeatFrame();
worker::v1::SessionResponse ReservedFrame(RequestId id, uint32_t attempt = 1);

struct TokenSpec {
  uint32_t index = 0;
  int32_t id = 0;
};
worker::v1::SessionResponse TokensFrame(RequestId id, const std::vector<TokenSpec>& tokens,
                                        uint32_t attempt = 1);
// Adds an end to a step (or makes one).
worker::v1::SessionResponse WithEnd(worker::v1::SessionResponse step, RequestId id,
                                    worker::v1::EndReason reason, uint32_t attempt = 1);
worker::v1::SessionResponse EndFrame(RequestId id, worker::v1::EndReason reason,
                                     uint32_t attempt = 1);
worker::v1::SessionResponse ErrorFrame(RequestId id, absl::StatusCode code,
                                       const std::string& message, bool retryable = false,
                                       uint32_t attempt = 1);

}  // namespace baton::router

#endif  // BATON_ROUTER_TESTING_WORKER_FRAMES_H_
