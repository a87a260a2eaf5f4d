// Where the output of one request goes: a gRPC call (service/) or a test. A sink has its own lock
// and buffers at most what the sequence's credits allow.
#ifndef BATON_ROUTER_CORE_RESPONSE_SINK_H_
#define BATON_ROUTER_CORE_RESPONSE_SINK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "router/output/output_assembler.h"

namespace baton::router {

// Cumulative.
struct UsageCounts {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
};

struct RequestFinish {
  OutputFinish finish;
  UsageCounts usage;
  uint64_t seed = 0;
  double queue_seconds = 0;
  double time_to_first_token_seconds = 0;
  double total_seconds = 0;
  int64_t kv_handover_bytes = 0;
};

// Thread-safe. The core's loop calls Deliver any number of times, then Finish or Fail once.
class ResponseSink {
 public:
  struct State {
    // The client has gone or has had its status: nothing more will be read.
    bool closed = false;
    // Since when the client has taken nothing although there is something; kNever when it reads.
    TimePoint stalled_since = kNever;
  };

  virtual ~ResponseSink() = default;
  virtual void Deliver(OutputDelta delta, const UsageCounts& usage) = 0;
  virtual void Finish(const RequestFinish& finish) = 0;
  // Drops what is buffered.
  virtual void Fail(const absl::Status& status) = 0;
  // Cuts the call: the client has not even taken the status.
  virtual void Abort() = 0;
  virtual State state() const = 0;
  // Tokens that the client has taken so far. Cheap.
  virtual uint64_t drained_tokens() const = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_CORE_RESPONSE_SINK_H_
