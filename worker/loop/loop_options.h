// What every engine loop is made from, and the limits it keeps.
#ifndef BATON_WORKER_LOOP_LOOP_OPTIONS_H_
#define BATON_WORKER_LOOP_LOOP_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "engine/kvcache/kv_memory.h"
#include "engine/runner/step_executor.h"
#include "worker/messages.h"

namespace baton::worker {

// A value of 0 takes the default that is stated.
struct LoopLimits {
  // Starts that may wait in the command queue; above it Enqueue returns ResourceExhausted.
  uint32_t starts_queued_max = 4096;
  // Sequences that wait in the loop for room (combined and prefill workers); above it a start ends
  // as ResourceExhausted, retryable.
  uint32_t waiting_sequences_max = 1024;
  // Sequences that hold blocks: prefilling, generating, paused, and reservations. 0: as many as a
  // step of the executor takes, which is also the upper bound.
  int32_t running_sequences_max = 0;
  // Tokens of one step. 0: the executor's limit, which is also the upper bound.
  int32_t tokens_per_step_max = 0;
  // Free blocks that admission leaves to the growth of what runs. 0: 1/64 of the pool, at least 1.
  int32_t growth_watermark_blocks = 0;
  // Blocks that reservations awaiting KV may hold together (one reservation alone may always exceed
  // it). 0: half of the pool.
  int32_t reserved_blocks_max = 0;
  // Decode worker: tokens of output that a reservation has room for. 0: one block.
  int32_t reserved_output_tokens = 0;
  // Sequences that may be admitted past one that does not fit; then nobody passes it any more.
  int32_t passes_max = 64;
  // A sequence without credits keeps its blocks at least this long when others need them.
  Duration paused_hold = std::chrono::seconds(2);
  // Prefill worker: layers of KV that are complete go to the decode worker while later layers are
  // computed, but not fewer bytes of a sequence at a time, the last of a step excepted.
  uint64_t layer_push_bytes_min = uint64_t{8} << 20;
  // A transfer is given up after this, also when the caller has no deadline.
  Duration transfer_limit = std::chrono::seconds(120);
  // When the peer of a transfer has given it up on purpose, its own word to the router comes first:
  // this side answers a cancel, and speaks up only after this.
  Duration peer_word_limit = std::chrono::seconds(2);
  // Stop() waits so long for steps and transfers that are under way.
  Duration stop_limit = std::chrono::seconds(30);
};

struct LoopOptions {
  std::string model;
  // The pool's memory; it outlives the loop and every transfer.
  KvMemory kv;
  // Used by the loop's thread only, from the first step on. Outlives the loop.
  StepExecutor* executor = nullptr;
  EventSink* sink = nullptr;  // Outlives the loop.
  const Clock* clock = Clock::Real();
  // Called once, by the loop's thread, when the executor has failed and all sequences were told.
  std::function<void(const absl::Status&)> on_broken = nullptr;
  LoopLimits limits;
};

}  // namespace baton::worker

#endif  // BATON_WORKER_LOOP_LOOP_OPTIONS_H_
