#include "router/policy/least_loaded_policy.h"

#include <algorithm>
#include <tuple>

namespace baton::router {
namespace {

// Smaller is better.
struct DecodeRank {
  bool refused = false;
  bool full = false;
  uint32_t sequences = 0;
  bool handover = false;
  uint64_t turn = 0;
  friend auto operator<=>(const DecodeRank&, const DecodeRank&) = default;
};

// Rotates the order of workers with the tie breaker.
uint64_t Turn(size_t index, size_t count, uint64_t tie_breaker) {
  return (index + count - tie_breaker % count) % count;
}

bool IsFull(const WorkerView& worker, uint64_t prompt_tokens) {
  if (worker.block_tokens == 0 || worker.total_blocks == 0) return false;
  // The prompt and the first generated token.
  const uint64_t blocks = (prompt_tokens + worker.block_tokens) / worker.block_tokens;
  return blocks > worker.free_blocks;
}

// The prefill worker with the fewest tokens to compute that may send to `decode` (null: to nobody).
const WorkerView* ChoosePrefill(const PlacementQuery& query, absl::Span<const WorkerView> workers,
                                const WorkerView* decode) {
  const WorkerView* best = nullptr;
  std::tuple<uint64_t, uint32_t, uint64_t> best_rank;
  for (size_t i = 0; i < workers.size(); ++i) {
    const WorkerView& worker = workers[i];
    if (worker.role != WorkerRole::kPrefill || worker.credits_free == 0) continue;
    if (decode != nullptr && !query.pair_allowed(worker.instance_id, decode->instance_id)) continue;
    const std::tuple<uint64_t, uint32_t, uint64_t> rank(
        worker.queued_prompt_tokens, worker.sequences, Turn(i, workers.size(), query.tie_breaker));
    if (best == nullptr || rank < best_rank) {
      best = &worker;
      best_rank = rank;
    }
  }
  return best;
}

}  // namespace

std::optional<Placement> LeastLoadedPolicy::Choose(const PlacementQuery& query,
                                                   absl::Span<const WorkerView> workers) const {
  if (query.single_token) {
    if (const WorkerView* prefill = ChoosePrefill(query, workers, nullptr)) {
      return Placement{.path = PlacementPath::kPrefillOnly,
                       .prefill = prefill->session_id,
                       .decode = SessionId()};
    }
  }
  std::optional<Placement> best;
  DecodeRank best_rank;
  for (size_t i = 0; i < workers.size(); ++i) {
    const WorkerView& worker = workers[i];
    const bool combined = worker.role == WorkerRole::kCombined;
    if (worker.role == WorkerRole::kPrefill || (combined && worker.credits_free == 0)) continue;
    const DecodeRank rank{.refused = worker.session_id == query.refused_by,
                          .full = IsFull(worker, query.prompt_tokens),
                          .sequences = worker.sequences,
                          .handover = !combined,
                          .turn = Turn(i, workers.size(), query.tie_breaker)};
    if (best.has_value() && !(rank < best_rank)) continue;
    Placement placement{
        .path = PlacementPath::kColocated, .prefill = SessionId(), .decode = worker.session_id};
    if (!combined) {
      const WorkerView* prefill = ChoosePrefill(query, workers, &worker);
      if (prefill == nullptr) continue;
      placement.path = PlacementPath::kHandover;
      placement.prefill = prefill->session_id;
    }
    best = placement;
    best_rank = rank;
  }
  return best;
}

}  // namespace baton::router
