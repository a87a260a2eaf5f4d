// Least loaded: the prefill worker with the fewest prompt tokens to compute that has a credit left,
// and the decode worker with room for the prompt and the fewest sequences. A combined worker
// competes by the same measures; it is preferred at equal load, since it needs no hand-over.
// Workers without room come last, not never: the worker decides (its cache may give way).
#ifndef BATON_ROUTER_POLICY_LEAST_LOADED_POLICY_H_
#define BATON_ROUTER_POLICY_LEAST_LOADED_POLICY_H_

#include "router/policy/placement_policy.h"

namespace baton::router {

class LeastLoadedPolicy final : public PlacementPolicy {
 public:
  std::optional<Placement> Choose(const PlacementQuery& query,
                                  absl::Span<const WorkerView> workers) const override;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_POLICY_LEAST_LOADED_POLICY_H_
