// Checks of public requests, before anything is queued. Every error is INVALID_ARGUMENT, names the
// field by its path, and holds no bytes of the request. A field that is set but not supported is
// refused, also one that this version of the API does not know.
//
// Pure functions; cheap enough for gRPC threads (time is bounded by the model's context, not by the
// size of the request).
#ifndef BATON_ROUTER_VALIDATION_VALIDATION_H_
#define BATON_ROUTER_VALIDATION_VALIDATION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "baton/v1/generation.pb.h"
#include "router/output/output_assembler.h"
#include "router/registry/model_catalog.h"

namespace baton::router {

inline constexpr int kStopStringsMax = 16;
inline constexpr size_t kStopStringBytesMax = 1024;
inline constexpr int kStopTokenIdsMax = 64;
inline constexpr int64_t kTopLogprobsMax = 20;
inline constexpr size_t kClientRequestIdBytesMax = 256;
// Far beyond any use; keeps the quotient of logits finite in float.
inline constexpr double kTemperatureMax = 1e6;
// At or below, sampling is greedy.
inline constexpr double kGreedyTemperature = 1e-3;

// Request over model defaults over neutral values; greedy is always temperature 0 with no filter.
struct SamplingChoice {
  double temperature = 1;
  int32_t top_k = 0;  // 0: off.
  double top_p = 1;
  double min_p = 0;
  std::optional<uint64_t> seed;
  bool logprobs = false;
  uint32_t top_logprobs = 0;
};

struct ValidatedRequest {
  std::shared_ptr<const ServedModel> model;
  // The input: `text` until it is encoded, then and otherwise `prompt`.
  bool has_text = false;
  std::string text;
  TextEncodeOptions encode;
  std::vector<int32_t> prompt;
  SamplingChoice sampling;
  // max_tokens is set by ResolveLengths.
  StopConditions stop;
  std::optional<int64_t> max_tokens;
  std::string client_request_id;
};

// REQUIRES: `model` is the one the request names, and its codec is loaded.
absl::StatusOr<ValidatedRequest> ValidateGenerate(const v1::GenerateRequest& request,
                                                  std::shared_ptr<const ServedModel> model);

// The checks that need the number of prompt tokens: at least one, less than the context, small
// enough for the KV pool, and max_tokens within what is left (the default is all of it).
absl::Status ResolveLengths(ValidatedRequest* request);

// ERRORS: InvalidArgument: longer than `bytes_max`.
absl::Status ValidateTokenize(const v1::TokenizeRequest& request, size_t bytes_max);

// The ids, each in the vocabulary. ERRORS: InvalidArgument: more than `ids_max`, or out of range.
absl::StatusOr<std::vector<int32_t>> ValidateDetokenize(const v1::DetokenizeRequest& request,
                                                        const ServedModel& model, size_t ids_max);

}  // namespace baton::router

#endif  // BATON_ROUTER_VALIDATION_VALIDATION_H_
