// What the policy chooses for small worker sets.
#include "router/policy/least_loaded_policy.h"

#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace baton::router {
namespace {

WorkerView View(uint64_t id, WorkerRole role) {
  WorkerView view;
  view.session_id = SessionId(id);
  view.instance_id = 100 + id;
  view.role = role;
  view.credits_free = role == WorkerRole::kDecode ? 0 : 4;
  view.block_tokens = 16;
  view.total_blocks = 64;
  view.free_blocks = 64;
  return view;
}

PlacementQuery Query(uint64_t prompt_tokens = 10) {
  PlacementQuery query;
  query.prompt_tokens = prompt_tokens;
  query.pair_allowed = [](uint64_t, uint64_t) { return true; };
  return query;
}

TEST(LeastLoadedPolicy, NothingWithoutACompleteWorkerSet) {
  const LeastLoadedPolicy policy;
  EXPECT_FALSE(policy.Choose(Query(), {}).has_value());
  EXPECT_FALSE(policy.Choose(Query(), {View(1, WorkerRole::kPrefill)}).has_value());
  EXPECT_FALSE(policy.Choose(Query(), {View(1, WorkerRole::kDecode)}).has_value());
}

TEST(LeastLoadedPolicy, PairsTheLeastLoadedOfEachRole) {
  std::vector<WorkerView> workers = {View(1, WorkerRole::kPrefill), View(2, WorkerRole::kPrefill),
                                     View(3, WorkerRole::kDecode), View(4, WorkerRole::kDecode)};
  workers[0].queued_prompt_tokens = 1000;
  workers[2].sequences = 5;
  const auto placement = LeastLoadedPolicy().Choose(Query(), workers);
  ASSERT_TRUE(placement.has_value());
  EXPECT_EQ(placement->path, PlacementPath::kHandover);
  EXPECT_EQ(placement->prefill, SessionId(2));
  EXPECT_EQ(placement->decode, SessionId(4));
}

TEST(LeastLoadedPolicy, APrefillWorkerWithoutCreditsIsNotAsked) {
  std::vector<WorkerView> workers = {View(1, WorkerRole::kPrefill), View(2, WorkerRole::kDecode)};
  workers[0].credits_free = 0;
  EXPECT_FALSE(LeastLoadedPolicy().Choose(Query(), workers).has_value());
}

TEST(LeastLoadedPolicy, ADecodeWorkerWithoutRoomComesLastButNotNever) {
  std::vector<WorkerView> workers = {View(1, WorkerRole::kPrefill), View(2, WorkerRole::kDecode),
                                     View(3, WorkerRole::kDecode)};
  workers[1].free_blocks = 2;  // 32 tokens.
  workers[2].sequences = 9;
  EXPECT_EQ(LeastLoadedPolicy().Choose(Query(31), workers)->decode, SessionId(2));
  EXPECT_EQ(LeastLoadedPolicy().Choose(Query(32), workers)->decode, SessionId(3));
  workers.pop_back();
  EXPECT_EQ(LeastLoadedPolicy().Choose(Query(32), workers)->decode, SessionId(2));
}

TEST(LeastLoadedPolicy, TheWorkerThatRefusedIsAskedLast) {
  std::vector<WorkerView> workers = {View(1, WorkerRole::kPrefill), View(2, WorkerRole::kDecode),
                                     View(3, WorkerRole::kDecode)};
  workers[2].sequences = 9;
  PlacementQuery query = Query();
  query.refused_by = SessionId(2);
  EXPECT_EQ(LeastLoadedPolicy().Choose(query, workers)->decode, SessionId(3));
}

TEST(LeastLoadedPolicy, AFailedPairIsAvoidedAlthoughBothAreHealthy) {
  std::vector<WorkerView> workers = {View(1, WorkerRole::kPrefill), View(2, WorkerRole::kPrefill),
                                     View(3, WorkerRole::kDecode)};
  workers[1].queued_prompt_tokens = 100;
  PlacementQuery query = Query();
  query.pair_allowed = [](uint64_t p, uint64_t d) { return !(p == 101 && d == 103); };
  EXPECT_EQ(LeastLoadedPolicy().Choose(query, workers)->prefill, SessionId(2));
}

TEST(LeastLoadedPolicy, ASingleTokenNeedsNoDecodeWorker) {
  PlacementQuery query = Query();
  query.single_token = true;
  const auto placement = LeastLoadedPolicy().Choose(query, {View(1, WorkerRole::kPrefill)});
  ASSERT_TRUE(placement.has_value());
  EXPECT_EQ(placement->path, PlacementPath::kPrefillOnly);
  EXPECT_EQ(LeastLoadedPolicy().Choose(query, {View(1, WorkerRole::kCombined)})->path,
            PlacementPath::kColocated);
}

TEST(LeastLoadedPolicy, ACombinedWorkerIsPreferredAtEqualLoad) {
  std::vector<WorkerView> workers = {View(1, WorkerRole::kPrefill), View(2, WorkerRole::kDecode),
                                     View(3, WorkerRole::kCombined)};
  EXPECT_EQ(LeastLoadedPolicy().Choose(Query(), workers)->path, PlacementPath::kColocated);
  workers[2].sequences = 1;
  EXPECT_EQ(LeastLoadedPolicy().Choose(Query(), workers)->path, PlacementPath::kHandover);
}

TEST(LeastLoadedPolicy, IdleWorkersTakeTurns) {
  const std::vector<WorkerView> workers = {View(1, WorkerRole::kCombined),
                                           View(2, WorkerRole::kCombined),
                                           View(3, WorkerRole::kCombined)};
  std::set<SessionId> chosen;
  for (uint64_t i = 0; i < 3; ++i) {
    PlacementQuery query = Query();
    query.tie_breaker = i;
    chosen.insert(LeastLoadedPolicy().Choose(query, workers)->decode);
  }
  EXPECT_EQ(chosen.size(), 3u);
}

}  // namespace
}  // namespace baton::router
