// Every rule of generation.proto's comments, from both sides of its border.
#include "router/validation/validation.h"

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/testing/table_codec.h"

namespace baton::router {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::shared_ptr<const ServedModel> Model(ModelSamplingDefaults defaults = {}) {
  ServedModel model;
  model.name = "m";
  model.context_tokens_max = 256;
  model.vocabulary_size = 1000;
  model.eos_token_ids = {5, 7};
  model.defaults = defaults;
  model.codec = std::make_shared<TableCodec>();
  model.ready = true;
  return std::make_shared<const ServedModel>(std::move(model));
}

v1::GenerateRequest Base() {
  v1::GenerateRequest request;
  request.mutable_token_ids()->add_ids(3);
  return request;
}

absl::Status StatusOf(const v1::GenerateRequest& request) {
  auto validated = ValidateGenerate(request, Model());
  if (!validated.ok()) return validated.status();
  return ResolveLengths(&*validated);
}

ValidatedRequest Valid(const v1::GenerateRequest& request, ModelSamplingDefaults defaults = {}) {
  auto validated = ValidateGenerate(request, Model(defaults));
  EXPECT_TRUE(validated.ok()) << validated.status();
  EXPECT_TRUE(ResolveLengths(&*validated).ok());
  return *std::move(validated);
}

struct BadCase {
  const char* field;
  std::function<void(v1::GenerateRequest*)> spoil;
};

class BadRequest : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadRequest, IsInvalidArgumentNamingTheField) {
  v1::GenerateRequest request = Base();
  GetParam().spoil(&request);
  const absl::Status status = StatusOf(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), StartsWith(absl::StrCat(GetParam().field, ":")));
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
using R = v1::GenerateRequest;

INSTANTIATE_TEST_SUITE_P(
    Sampling, BadRequest,
    ::testing::Values(
        BadCase{"sampling.temperature", [](R* r) { r->mutable_sampling()->set_temperature(-0.1); }},
        BadCase{"sampling.temperature", [](R* r) { r->mutable_sampling()->set_temperature(kNan); }},
        BadCase{"sampling.temperature", [](R* r) { r->mutable_sampling()->set_temperature(kInf); }},
        BadCase{"sampling.temperature",
                [](R* r) { r->mutable_sampling()->set_temperature(1e300); }},
        BadCase{"sampling.top_k", [](R* r) { r->mutable_sampling()->set_top_k(-2); }},
        BadCase{"sampling.top_k", [](R* r) { r->mutable_sampling()->set_top_k(INT64_MIN); }},
        BadCase{"sampling.top_p", [](R* r) { r->mutable_sampling()->set_top_p(1.01); }},
        BadCase{"sampling.top_p", [](R* r) { r->mutable_sampling()->set_top_p(-1e-9); }},
        BadCase{"sampling.top_p", [](R* r) { r->mutable_sampling()->set_top_p(kNan); }},
        BadCase{"sampling.min_p", [](R* r) { r->mutable_sampling()->set_min_p(kInf); }},
        BadCase{"sampling.min_p", [](R* r) { r->mutable_sampling()->set_min_p(-1); }},
        BadCase{"sampling.repetition_penalty",
                [](R* r) { r->mutable_sampling()->set_repetition_penalty(1.1); }},
        BadCase{"sampling.repetition_penalty",
                [](R* r) { r->mutable_sampling()->set_repetition_penalty(kNan); }},
        BadCase{"sampling.presence_penalty",
                [](R* r) { r->mutable_sampling()->set_presence_penalty(0.5); }},
        BadCase{"sampling.frequency_penalty",
                [](R* r) { r->mutable_sampling()->set_frequency_penalty(-0.5); }},
        BadCase{"sampling.n", [](R* r) { r->mutable_sampling()->set_n(2); }},
        BadCase{"sampling.n", [](R* r) { r->mutable_sampling()->set_n(0); }},
        BadCase{"logprobs.top", [](R* r) { r->mutable_logprobs()->set_top(21); }},
        BadCase{"logprobs.top", [](R* r) { r->mutable_logprobs()->set_top(-1); }}));

INSTANTIATE_TEST_SUITE_P(
    StopAndInput, BadRequest,
    ::testing::Values(
        BadCase{"stop.max_tokens", [](R* r) { r->mutable_stop()->set_max_tokens(0); }},
        BadCase{"stop.max_tokens", [](R* r) { r->mutable_stop()->set_max_tokens(-5); }},
        BadCase{"stop.max_tokens", [](R* r) { r->mutable_stop()->set_max_tokens(256); }},
        BadCase{"stop.max_tokens", [](R* r) { r->mutable_stop()->set_max_tokens(INT64_MAX); }},
        BadCase{"stop.min_tokens", [](R* r) { r->mutable_stop()->set_min_tokens(1); }},
        BadCase{"stop.stop_strings",
                [](R* r) { r->mutable_stop()->add_stop_strings(std::string()); }},
        BadCase{"stop.stop_strings",
                [](R* r) {
                  r->mutable_stop()->add_stop_strings(std::string(1, 'x'));
                  r->mutable_stop()->add_stop_strings(std::string());
                }},
        BadCase{"stop.stop_strings",
                [](R* r) { r->mutable_stop()->add_stop_strings(std::string(1025, 'x')); }},
        BadCase{"stop.stop_strings",
                [](R* r) { r->mutable_stop()->add_stop_strings(std::string(1 << 20, 'x')); }},
        BadCase{"stop.stop_strings",
                [](R* r) {
                  for (int i = 0; i < 10000; ++i)
                    r->mutable_stop()->add_stop_strings(std::string(1, 's'));
                }},
        BadCase{"stop.stop_token_ids", [](R* r) { r->mutable_stop()->add_stop_token_ids(1000); }},
        BadCase{"stop.stop_token_ids", [](R* r) { r->mutable_stop()->add_stop_token_ids(-1); }},
        BadCase{"stop.stop_token_ids",
                [](R* r) {
                  for (int i = 0; i < 65; ++i) r->mutable_stop()->add_stop_token_ids(1);
                }},
        BadCase{"token_ids", [](R* r) { r->mutable_token_ids()->add_ids(1000); }},
        BadCase{"token_ids", [](R* r) { r->mutable_token_ids()->add_ids(-1); }},
        // 2^32 + 3 would be a valid id after truncation to 32 bits.
        BadCase{"token_ids", [](R* r) { r->mutable_token_ids()->add_ids((int64_t{1} << 32) + 3); }},
        BadCase{"token_ids", [](R* r) { r->mutable_token_ids()->clear_ids(); }},
        BadCase{"token_ids",
                [](R* r) {
                  for (int i = 0; i < 255; ++i) r->mutable_token_ids()->add_ids(1);
                }},
        BadCase{"input", [](R* r) { r->clear_input(); }},
        BadCase{"parse_special", [](R* r) { r->set_parse_special(false); }},
        BadCase{"add_special_tokens", [](R* r) { r->set_add_special_tokens(true); }},
        BadCase{"text", [](R* r) { r->set_text(std::string(257, 'x')); }},
        BadCase{"client_request_id",
                [](R* r) { r->set_client_request_id(std::string(257, 'x')); }}));

TEST(Validation, UnknownFieldsAreRefusedWhereverTheyAre) {
  // Field 1999, varint 1.
  const std::string unknown = "\xF8\x7C\x01";
  v1::GenerateRequest request = Base();
  ASSERT_TRUE(request.MergeFromString(unknown));
  EXPECT_THAT(std::string(StatusOf(request).message()), HasSubstr("field number 1999"));
  request = Base();
  ASSERT_TRUE(request.mutable_sampling()->MergeFromString(unknown));
  EXPECT_THAT(std::string(StatusOf(request).message()), StartsWith("sampling: field number 1999"));
  request = Base();
  ASSERT_TRUE(request.mutable_stop()->MergeFromString(unknown));
  EXPECT_THAT(std::string(StatusOf(request).message()), StartsWith("stop: field number 1999"));
}

TEST(Validation, NeutralValuesOfUnsupportedFieldsAreAccepted) {
  v1::GenerateRequest request = Base();
  request.mutable_sampling()->set_repetition_penalty(1);
  request.mutable_sampling()->set_presence_penalty(0);
  request.mutable_sampling()->set_frequency_penalty(-0.0);
  request.mutable_sampling()->set_n(1);
  request.mutable_stop()->set_min_tokens(0);
  EXPECT_TRUE(StatusOf(request).ok());
}

TEST(Validation, BorderValuesAreAccepted) {
  v1::GenerateRequest request = Base();
  request.mutable_sampling()->set_temperature(kTemperatureMax);
  request.mutable_sampling()->set_top_k(INT64_MAX);
  request.mutable_sampling()->set_top_p(1);
  request.mutable_sampling()->set_min_p(0);
  request.mutable_stop()->set_max_tokens(255);
  for (int i = 0; i < 16; ++i) request.mutable_stop()->add_stop_strings(std::string(1024, 'x'));
  for (int i = 0; i < 64; ++i) request.mutable_stop()->add_stop_token_ids(999);
  request.mutable_logprobs()->set_top(20);
  request.set_client_request_id(std::string(256, 'x'));
  const ValidatedRequest out = Valid(request);
  EXPECT_EQ(out.sampling.top_k, 0);
  EXPECT_EQ(out.stop.max_tokens, 255);
  EXPECT_TRUE(out.sampling.logprobs);
  EXPECT_EQ(out.sampling.top_logprobs, 20u);
}

TEST(Validation, EverySpellingOfGreedyIsTemperatureZeroWithoutFilters) {
  using Spell = std::function<void(v1::SamplingParameters*)>;
  for (const Spell& spell : std::vector<Spell>{
           [](auto* s) { s->set_temperature(0); }, [](auto* s) { s->set_temperature(0.0009); },
           [](auto* s) { s->set_top_k(1); }, [](auto* s) { s->set_top_p(0); },
           [](auto* s) { s->set_min_p(1); }}) {
    v1::GenerateRequest request = Base();
    spell(request.mutable_sampling());
    const SamplingChoice sampling = Valid(request).sampling;
    EXPECT_EQ(sampling.temperature, 0);
    EXPECT_EQ(sampling.top_k, 0);
    EXPECT_EQ(sampling.top_p, 1);
    EXPECT_EQ(sampling.min_p, 0);
  }
}

TEST(Validation, RequestWinsOverModelDefaultsAndThoseOverNeutralValues) {
  const ModelSamplingDefaults defaults{.temperature = 0.6, .top_k = 40, .top_p = 0.9, .min_p = {}};
  v1::GenerateRequest request = Base();
  request.mutable_sampling()->set_top_p(0.5);
  const SamplingChoice sampling = Valid(request, defaults).sampling;
  EXPECT_EQ(sampling.temperature, 0.6);
  EXPECT_EQ(sampling.top_k, 40);
  EXPECT_EQ(sampling.top_p, 0.5);
  EXPECT_EQ(sampling.min_p, 0);
  const SamplingChoice neutral = Valid(Base()).sampling;
  EXPECT_EQ(neutral.temperature, 1);
  EXPECT_EQ(neutral.top_k, 0);
  EXPECT_EQ(neutral.top_p, 1);
  // The model's default can be switched off.
  request.mutable_sampling()->set_top_k(-1);
  EXPECT_EQ(Valid(request, defaults).sampling.top_k, 0);
}

TEST(Validation, PromptOfContextLessOneLeavesOneToken) {
  v1::GenerateRequest request;
  for (int i = 0; i < 255; ++i) request.mutable_token_ids()->add_ids(1);
  EXPECT_EQ(Valid(request).stop.max_tokens, 1);
  request.mutable_token_ids()->add_ids(1);
  const absl::Status status = StatusOf(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()),
            "token_ids: prompt of 256 tokens does not leave room in the context of 256 tokens");
}

TEST(Validation, AHugeListOfIdsIsRefusedByItsLength) {
  v1::GenerateRequest request;
  for (int i = 0; i < 1'000'000; ++i) request.mutable_token_ids()->add_ids(-1);
  EXPECT_THAT(std::string(StatusOf(request).message()), HasSubstr("1000000 tokens"));
}

TEST(Validation, APromptBeyondEveryKvPoolIsRefusedWithBothNumbers) {
  ServedModel model = *Model();
  model.context_tokens_max = 2048;
  model.kv_tokens_max = 640;
  v1::GenerateRequest request;
  for (int i = 0; i < 700; ++i) request.mutable_token_ids()->add_ids(1);
  auto validated = ValidateGenerate(request, std::make_shared<const ServedModel>(model));
  ASSERT_TRUE(validated.ok());
  const absl::Status status = ResolveLengths(&*validated);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("700"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("640"));
}

TEST(Validation, MaxTokensBeyondTheContextStatesTheNumbers) {
  v1::GenerateRequest request = Base();
  request.mutable_stop()->set_max_tokens(300);
  EXPECT_EQ(std::string(StatusOf(request).message()),
            "stop.max_tokens: is 300, but a prompt of 1 tokens leaves 255 of the context of 256 "
            "tokens");
}

TEST(Validation, AnEncodedTextWithoutTokensIsRefused) {
  v1::GenerateRequest request;
  request.set_text("");
  auto validated = ValidateGenerate(request, Model());
  ASSERT_TRUE(validated.ok()) << "a model may add BOS";
  EXPECT_EQ(ResolveLengths(&*validated).code(), absl::StatusCode::kInvalidArgument);
  validated->prompt = {1};
  EXPECT_TRUE(ResolveLengths(&*validated).ok());
}

TEST(Validation, IgnoreEosLeavesNoEndTokens) {
  EXPECT_EQ(Valid(Base()).stop.eos_token_ids, (std::vector<int32_t>{5, 7}));
  v1::GenerateRequest request = Base();
  request.mutable_stop()->set_ignore_eos(true);
  EXPECT_TRUE(Valid(request).stop.eos_token_ids.empty());
}

TEST(Validation, TokenizeAndDetokenizeAreBounded) {
  v1::TokenizeRequest tokenize;
  tokenize.set_text(std::string(11, 'x'));
  EXPECT_TRUE(ValidateTokenize(tokenize, 11).ok());
  EXPECT_EQ(ValidateTokenize(tokenize, 10).code(), absl::StatusCode::kInvalidArgument);
  v1::DetokenizeRequest detokenize;
  for (int i = 0; i < 3; ++i) detokenize.mutable_token_ids()->add_ids(999);
  EXPECT_EQ(ValidateDetokenize(detokenize, *Model(), 3)->size(), 3u);
  EXPECT_FALSE(ValidateDetokenize(detokenize, *Model(), 2).ok());
  detokenize.mutable_token_ids()->set_ids(1, 1000);
  EXPECT_THAT(std::string(ValidateDetokenize(detokenize, *Model(), 3).status().message()),
              HasSubstr("at index 1"));
}

TEST(ModelCatalog, TheEmptyNameMeansTheOnlyModel) {
  ModelCatalog catalog;
  EXPECT_EQ(catalog.Find("").status().code(), absl::StatusCode::kUnavailable);
  ServedModel model;
  model.name = "a";
  catalog.Publish(model);
  EXPECT_EQ((*catalog.Find(""))->name, "a");
  model.name = "b";
  catalog.Publish(model);
  EXPECT_EQ(catalog.Find("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*catalog.Find("b"))->name, "b");
}

TEST(ModelCatalog, AnUnknownNameListsWhatIsServedAndEchoesNoRawBytes) {
  ModelCatalog catalog;
  ServedModel model;
  model.name = "llama";
  catalog.Publish(model);
  const absl::Status status =
      catalog.Find(absl::StrCat("\xff\xfe\n", std::string(1 << 20, 'x'))).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("served: \"llama\""));
  EXPECT_LT(status.message().size(), 300u);
  for (char c : status.message()) EXPECT_TRUE(c >= 0x20 && c < 0x7F);
}

}  // namespace
}  // namespace baton::router
