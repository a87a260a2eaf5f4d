// Goal: frames survive the translation, and a router of another version cannot hand a loop
// nonsense.
#include "worker/convert.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace baton::worker {
namespace {

using std::chrono::milliseconds;

v1::StartSequence ValidStart() {
  v1::StartSequence proto;
  proto.set_request_id(7);
  proto.set_attempt(2);
  proto.set_mode(v1::START_MODE_PREFILL);
  proto.set_model("m");
  for (const int id : {1, 2, 3, 4}) proto.add_token_ids(id);
  proto.set_num_prompt_tokens(3);
  proto.set_max_tokens(9);
  proto.set_transfer_id(11);
  proto.set_transfer_address("host:1");
  proto.set_decode_instance_id(5);
  proto.set_remaining_ms(1500);
  auto& sampling = *proto.mutable_sampling();
  sampling.set_temperature(0.5);
  sampling.set_top_k(40);
  sampling.set_top_p(0.9);
  sampling.set_seed(77);
  sampling.set_top_logprobs(3);
  return proto;
}

const TimePoint kNow{std::chrono::seconds(100)};

TEST(Convert, KeepsEveryFieldOfAStart) {
  const auto start = FromProto(ValidStart(), RouterSessionId(3), kNow);
  ASSERT_TRUE(start.ok()) << start.status();
  EXPECT_EQ(start->key, (SequenceKey{RouterSessionId(3), RequestId(7), 2}));
  EXPECT_EQ(start->mode, StartMode::kPrefill);
  EXPECT_EQ(start->token_ids, (std::vector<int32_t>{1, 2, 3, 4}));
  EXPECT_EQ(start->num_prompt_tokens, 3u);
  EXPECT_EQ(start->max_tokens, 9u);
  EXPECT_EQ(start->transfer_id, TransferId(11));
  EXPECT_EQ(start->transfer_address, "host:1");
  EXPECT_EQ(start->decode_instance_id, 5u);
  EXPECT_EQ(start->deadline, kNow + milliseconds(1500));
  EXPECT_FLOAT_EQ(start->sampling.temperature, 0.5f);
  EXPECT_EQ(start->sampling.top_k, 40);
  EXPECT_EQ(start->sampling.seed, 77u);
  EXPECT_TRUE(start->sampling.logprobs) << "alternatives imply log-probabilities";
}

TEST(Convert, WithoutRemainingTimeThereIsNoDeadline) {
  v1::StartSequence proto = ValidStart();
  proto.set_remaining_ms(0);
  EXPECT_EQ(FromProto(proto, RouterSessionId(1), kNow)->deadline, kNever);
  proto.set_remaining_ms(std::numeric_limits<uint64_t>::max());
  EXPECT_GT(FromProto(proto, RouterSessionId(1), kNow)->deadline, kNow);
}

// Each line breaks one field of a valid frame; the error must name it.
TEST(Convert, RefusesWhatNoRouterCouldMean) {
  const std::vector<std::pair<std::string, std::function<void(v1::StartSequence&)>>> cases = {
      {"mode", [](auto& p) { p.set_mode(v1::START_MODE_UNSPECIFIED); }},
      {"mode", [](auto& p) { p.set_mode(static_cast<v1::StartMode>(99)); }},
      {"token_ids", [](auto& p) { p.clear_token_ids(); }},
      {"num_prompt_tokens", [](auto& p) { p.set_num_prompt_tokens(0); }},
      {"num_prompt_tokens", [](auto& p) { p.set_num_prompt_tokens(5); }},
      {"max_tokens", [](auto& p) { p.set_max_tokens(0); }},
      {"transfer_id", [](auto& p) { p.set_transfer_id(0); }},
      {"transfer_address", [](auto& p) { p.clear_transfer_address(); }},
      {"temperature", [](auto& p) { p.mutable_sampling()->set_temperature(-1); }},
      {"temperature",
       [](auto& p) {
         p.mutable_sampling()->set_temperature(std::numeric_limits<double>::quiet_NaN());
       }},
      {"top_p", [](auto& p) { p.mutable_sampling()->set_top_p(1.5); }},
      {"min_p",
       [](auto& p) { p.mutable_sampling()->set_min_p(std::numeric_limits<double>::infinity()); }},
      {"top_k", [](auto& p) { p.mutable_sampling()->set_top_k(-3); }},
      {"top_logprobs", [](auto& p) { p.mutable_sampling()->set_top_logprobs(21); }},
  };
  for (const auto& [field, spoil] : cases) {
    v1::StartSequence proto = ValidStart();
    spoil(proto);
    const auto start = FromProto(proto, RouterSessionId(1), kNow);
    EXPECT_EQ(start.status().code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_NE(start.status().message().find(field), absl::string_view::npos)
        << field << ": " << start.status();
  }
}

TEST(Convert, OutputsCarryTokensAlternativesAndEnds) {
  StepOutput output;
  output.model = "m";
  TokenOutput token;
  token.key = {RouterSessionId(1), RequestId(4), 1};
  token.index = 6;
  token.token = {
      .token_id = 42, .logprob = -0.5f, .finite = true, .top_logprobs = {{42, -0.5f}, {7, -2.f}}};
  output.tokens.push_back(token);
  SequenceEnd end;
  end.key = token.key;
  end.reason = EndReason::kError;
  end.status = absl::ResourceExhaustedError("no blocks");
  end.retryable = true;
  end.kv_bytes = 123;
  output.ends.push_back(end);
  const v1::StepOutput proto = ToProto(output);
  ASSERT_EQ(proto.tokens_size(), 1);
  EXPECT_EQ(proto.tokens(0).request_id(), 4u);
  EXPECT_EQ(proto.tokens(0).index(), 6u);
  EXPECT_EQ(proto.tokens(0).token_id(), 42);
  EXPECT_EQ(proto.tokens(0).top_token_ids(1), 7);
  ASSERT_EQ(proto.ends_size(), 1);
  EXPECT_EQ(proto.ends(0).reason(), v1::END_REASON_ERROR);
  EXPECT_EQ(proto.ends(0).status_code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(proto.ends(0).message(), "no blocks");
  EXPECT_TRUE(proto.ends(0).retryable());
  EXPECT_EQ(proto.ends(0).kv_bytes(), 123u);
}

TEST(Convert, EveryEndReasonHasAWireValue) {
  SequenceEnd end;
  std::set<int> seen;
  for (const EndReason reason :
       {EndReason::kEos, EndReason::kStopToken, EndReason::kLength, EndReason::kHandedOver,
        EndReason::kCancelled, EndReason::kError}) {
    end.reason = reason;
    seen.insert(ToProto(end).reason());
  }
  EXPECT_EQ(seen.size(), 6u);
  EXPECT_FALSE(seen.contains(v1::END_REASON_UNSPECIFIED));
}

}  // namespace
}  // namespace baton::worker
