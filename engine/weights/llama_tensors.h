// The tensors that a Llama checkpoint in Hugging Face layout consists of, and the comparison of a
// checkpoint with its config.
//
// Thread-safe: pure functions.
#ifndef BATON_ENGINE_WEIGHTS_LLAMA_TENSORS_H_
#define BATON_ENGINE_WEIGHTS_LLAMA_TENSORS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/model_config.h"

namespace baton {

struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> shape;  // matrices are [out, in], row-major: y = x * transpose(W)
};

// In the order of execution: embedding, layers, final norm, head (absent when tied).
std::vector<ExpectedTensor> LlamaTensors(const ModelConfig& config);

// The tensor that serves as the output head: "lm_head.weight", or the embedding when the config
// ties them. As in transformers, a tied config uses the embedding even if the file has a head of
// its own.
const char* HeadTensorName(const ModelConfig& config);

// Every tensor of LlamaTensors(config) is there with its shape and a type in F32, F16 or BF16, and
// no tensor is there that the computation would ignore (but rotary_emb.inv_freq, which old
// checkpoints store, and the head of a tied config). ERRORS: FailedPrecondition naming the tensor,
// and the key of config.json that asks for it.
absl::Status ValidateTensors(const ModelConfig& config, const Checkpoint& checkpoint);

}  // namespace baton

#endif  // BATON_ENGINE_WEIGHTS_LLAMA_TENSORS_H_
