// Every limit of the router in one place. Plain data, constant after construction.
#ifndef BATON_ROUTER_LIMITS_H_
#define BATON_ROUTER_LIMITS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "common/base/clock.h"

namespace baton::router {

struct RouterLimits {
  // Admission. Calls of all kinds that are open at a time, and the bytes of their requests. Beyond
  // either a call ends at once with RESOURCE_EXHAUSTED.
  size_t calls_max = 8192;
  size_t request_bytes_max = size_t{256} << 20;
  // Requests that wait for a worker, per model.
  size_t queue_max = 1024;
  // A request that has found no worker for so long ends with RESOURCE_EXHAUSTED.
  Duration queue_time_max = std::chrono::seconds(300);
  // How long queued requests outlive the last worker set of their model.
  Duration unready_grace = std::chrono::milliseconds(500);
  // The delay that RESOURCE_EXHAUSTED suggests (google.rpc.RetryInfo).
  Duration retry_delay = std::chrono::seconds(1);

  // Tokenising. A prompt above `small_prompt_bytes` never keeps a thread that short ones need.
  size_t tokenizer_threads = 2;
  size_t tokenizer_queue_max = 1024;
  size_t small_prompt_bytes = 16 << 10;
  // For Tokenize and Detokenize, which know no context limit.
  size_t tokenize_bytes_max = 1 << 20;
  size_t detokenize_ids_max = 1 << 18;

  // Placement. A worker that refuses for lack of room is asked again after a delay that doubles.
  Duration refusal_backoff_min = std::chrono::milliseconds(10);
  Duration refusal_backoff_max = std::chrono::milliseconds(320);
  // A refused request lets later ones pass for so long; then the queue waits for it.
  Duration overtaking_max = std::chrono::seconds(1);
  // How long a pair of workers that could not move KV is not chosen.
  Duration pair_backoff = std::chrono::seconds(5);
  size_t sequences_per_worker_max = 4096;

  // Streams. Tokens that a worker may send ahead of what the client has read.
  uint32_t initial_credits = 256;
  // A client that takes nothing for so long is ended with RESOURCE_EXHAUSTED.
  Duration stall_limit = std::chrono::seconds(60);

  // Sessions with workers.
  Duration heartbeat_interval = std::chrono::milliseconds(500);
  Duration heartbeat_limit = std::chrono::seconds(2);
  Duration reconnect_backoff_min = std::chrono::milliseconds(100);
  Duration reconnect_backoff_max = std::chrono::seconds(1);
  // Frames from workers that the core has not handled yet; frames that a worker has not
  // taken yet. A session that exceeds either is ended.
  size_t frames_in_max = 65536;
  size_t frames_out_max = 65536;
  // Tokenizer files of one model.
  size_t artifact_bytes_max = size_t{64} << 20;
  size_t models_per_worker_max = 64;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_LIMITS_H_
