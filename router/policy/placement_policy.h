// Which workers a request goes to. One policy a file; a policy is a pure function of what it is
// shown.
#ifndef BATON_ROUTER_POLICY_PLACEMENT_POLICY_H_
#define BATON_ROUTER_POLICY_PLACEMENT_POLICY_H_

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/types/span.h"
#include "router/registry/worker_registry.h"
#include "router/registry/worker_session.h"

namespace baton::router {

// A worker that takes new work for the model in question.
struct WorkerView {
  SessionId session_id;
  WorkerRole role = WorkerRole::kCombined;
  uint64_t instance_id = 0;
  // 0: no room for another prompt.
  uint32_t credits_free = 0;
  // Sequences it has, of this router or as its heartbeat says, whichever is more.
  uint32_t sequences = 0;
  // Prompt tokens not yet computed, likewise.
  uint64_t queued_prompt_tokens = 0;
  uint32_t free_blocks = 0;
  // 0: it does not say.
  uint32_t block_tokens = 0;
  uint32_t total_blocks = 0;
};

struct PlacementQuery {
  uint64_t prompt_tokens = 0;
  // Nothing follows token 0: a prefill worker can do it alone.
  bool single_token = false;
  // A decode or combined worker that has just refused the request for lack of room.
  SessionId refused_by;
  // Breaks ties, so that idle workers take turns.
  uint64_t tie_breaker = 0;
  // False for a prefill and a decode worker that could not move KV a moment ago.
  std::function<bool(uint64_t prefill_instance, uint64_t decode_instance)> pair_allowed;
};

enum class PlacementPath { kHandover, kPrefillOnly, kColocated };

struct Placement {
  PlacementPath path = PlacementPath::kColocated;
  // kHandover, kPrefillOnly.
  SessionId prefill;
  // kHandover; the combined worker of kColocated.
  SessionId decode;
};

// Thread-safe.
class PlacementPolicy {
 public:
  virtual ~PlacementPolicy() = default;
  // Nothing when no worker (pair) can take the request now.
  virtual std::optional<Placement> Choose(const PlacementQuery& query,
                                          absl::Span<const WorkerView> workers) const = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_POLICY_PLACEMENT_POLICY_H_
