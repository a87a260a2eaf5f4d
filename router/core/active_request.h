// State of one request inside the core, from admission to its end. Owned by the core's loop.
#ifndef BATON_ROUTER_CORE_ACTIVE_REQUEST_H_
#define BATON_ROUTER_CORE_ACTIVE_REQUEST_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "common/base/clock.h"
#include "common/base/strong_id.h"
#include "router/core/response_sink.h"
#include "router/output/output_assembler.h"
#include "router/policy/placement_policy.h"
#include "router/validation/validation.h"

namespace baton::router {

// What the service hands to the core: validated, encoded, lengths resolved.
struct AdmittedRequest {
  RequestId id;
  ValidatedRequest validated;
  uint64_t seed = 0;
  TimePoint arrival;
  // kNever: none.
  TimePoint deadline = kNever;
};

// kQueued -> kReserving (hand-over only: RESERVE sent to D) -> kRunning (P or a combined worker has
// been started). Back to kQueued only while no token has been delivered.
enum class RequestPhase { kQueued, kReserving, kRunning };

struct ActiveRequest {
  AdmittedRequest admitted;
  std::shared_ptr<ResponseSink> sink;
  std::unique_ptr<OutputAssembler> output;
  // Position in the queue; kept when it goes back.
  uint64_t admission_number = 0;
  RequestPhase phase = RequestPhase::kQueued;

  // The current attempt; frames of others are stale. 0 before the first.
  uint32_t attempt = 0;
  PlacementPath path = PlacementPath::kColocated;
  SessionId prefill;
  SessionId decode;
  // kHandover.
  TransferId transfer_id;
  // The worker has been started for this attempt and has not reported the end.
  bool prefill_open = false;
  bool decode_open = false;
  // kReserving: a credit of `prefill` that no sequence holds yet.
  bool credit_taken = false;
  // A token of D has arrived, so D has the KV and P is of no more importance.
  bool decode_started = false;
  // D (or a combined worker) has ended the sequence; tokens before that may still be missing.
  std::optional<FinishKind> pending_end;

  // Tokens below are delivered; those above wait in `early` for the ones between.
  uint32_t next_index = 0;
  std::map<uint32_t, GeneratedToken> early;
  // What this frame has added, delivered with the frame's end.
  OutputDelta delta;

  // Refused for lack of room: not tried before `not_before`.
  TimePoint not_before{};
  TimePoint first_refused = kNever;
  Duration backoff{0};
  SessionId refused_by;

  uint64_t granted_tokens = 0;
  uint32_t cached_tokens = 0;
  uint64_t kv_bytes = 0;
  TimePoint placed_at = kNever;
  TimePoint first_token_at = kNever;
  TimePoint last_token_at = kNever;

  RequestId id() const { return admitted.id; }
  const ServedModel& model() const { return *admitted.validated.model; }
  AttemptKey key() const { return {admitted.id, attempt}; }
  // Anything that a later attempt could contradict.
  bool has_tokens() const { return next_index > 0 || !early.empty(); }
};

}  // namespace baton::router

#endif  // BATON_ROUTER_CORE_ACTIVE_REQUEST_H_
