// Llama (and what shares its architecture) as a list of operations:
//
//   x = embedding[tokens]
//   per layer: q,k,v = W_qkv norm(x);  x += W_o attention(rope(q), kv);
//              x += W_down (silu(W_gate norm(x)) * W_up norm(x))
//   logits = W_head norm(x), for the rows that are sampled from
//
// Projections of the same input are concatenated by rows, so a layer is four products. The residual
// is added by the normalisation that follows. Reference: Touvron et al., LLaMA, 2023, and the
// LlamaForCausalLM of Hugging Face transformers, whose tensor names are read.
#ifndef BATON_ENGINE_MODEL_LLAMA_H_
#define BATON_ENGINE_MODEL_LLAMA_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "device/device.h"
#include "device/kv_layout.h"
#include "device/ops.h"
#include "engine/model/weight_source.h"
#include "engine/weights/model_config.h"

namespace baton {

KvLayout LlamaKvLayout(const ModelConfig& config, int32_t block_tokens, DType dtype);

struct RecordedModel {
  OpList ops;
  // Device memory of all weights; a head that is the embedding counts once.
  int64_t weight_bytes = 0;
};

// Prepares every weight on `device` and records the list. Tokens from `sampled_vocab` on are never
// drawn (rows of the head without a token). The source is not needed afterwards;
// of a checkpoint, the tensors have passed ValidateTensors.
// ERRORS: FailedPrecondition naming the tensor or key that is missing or not supported;
// ResourceExhausted naming the tensor whose weights did not fit.
// REQUIRES: 0 < sampled_vocab <= config.vocab_size; `compute` is the device's ComputeType.
absl::StatusOr<RecordedModel> RecordLlama(const ModelConfig& config, const WeightSource& source,
                                          int32_t sampled_vocab, DType compute, Device& device);

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_LLAMA_H_
