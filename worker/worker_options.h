// How a worker process is set up. Filled from flags by cli/.
#ifndef BATON_WORKER_WORKER_OPTIONS_H_
#define BATON_WORKER_WORKER_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "kvtransfer/transfer.h"

namespace baton::worker {

// One model to serve.
struct ModelSpec {
  std::string name;
  std::string path;  // A directory in Hugging Face layout, or "synthetic:SHAPE".
};

// "[NAME=]PATH"; without a name the last part of the path is taken. ERRORS: InvalidArgument: empty
// name or path, or a name with characters outside [A-Za-z0-9._:/-] or longer than 128 bytes.
absl::StatusOr<ModelSpec> ParseModelSpec(absl::string_view text);

struct WorkerOptions {
  std::vector<ModelSpec> models;
  // Memory for KV of all models together; split evenly between them for now. 0: what the device has
  // left beside the weights.
  uint64_t kv_memory_bytes = uint64_t{1} << 30;
  // Of the device, that staging slots will take: left free by a KV pool that takes what is left.
  int64_t device_staging_bytes = 0;
  // Blocks per model instead of a share of the memory; 0: by memory.
  int32_t kv_blocks = 0;
  int32_t block_tokens = 64;
  // 0: the model's own context limit.
  int32_t context_tokens = 0;
  // Threads of the compute device; 0: all cores.
  int32_t threads = 0;
  int32_t tokens_per_step_max = 512;
  int32_t sequences_max = 64;
  // Prompts that one router may have on a prefill worker at a time.
  uint32_t prefill_credits = 64;
  // Measures everything but the model: no weights are loaded and every token is the same.
  bool null_engine = false;
  // What is advertised; see SessionServiceOptions. Filled in once the server listens.
  std::string advertise;
  kvtransfer::TransferOptions transfer;
  const Clock* clock = Clock::Real();
  // Called when a model's device has failed for good: the process cannot recover, but a new one
  // can. Any thread.
  std::function<void(const absl::Status&)> on_broken;
};

// A random number that names this process start.
uint64_t MintInstanceId();

}  // namespace baton::worker

#endif  // BATON_WORKER_WORKER_OPTIONS_H_
