// Goal: the payload survives the trip, its bytes are as documented, and bytes of a peer that are
// not such a payload are refused.
#include "engine/kvcache/handoff_payload.h"

#include <gtest/gtest.h>

#include <string>

namespace baton {
namespace {

TEST(HandoffPayload, SurvivesEncodingAndDecoding) {
  for (int32_t token : {0, 1, 255, 256, 128255, INT32_MAX}) {
    for (bool finite : {false, true}) {
      const HandoffPayload in = {.num_tokens = 70000, .first_token_id = token, .finite = finite};
      const auto out = DecodeHandoffPayload(EncodeHandoffPayload(in));
      ASSERT_TRUE(out.ok()) << out.status();
      EXPECT_EQ(out->num_tokens, 70000u);
      EXPECT_EQ(out->first_token_id, token);
      EXPECT_EQ(out->finite, finite);
    }
  }
}

TEST(HandoffPayload, BytesAreAsDocumented) {
  EXPECT_EQ(EncodeHandoffPayload({.num_tokens = 0x04030201, .first_token_id = 0x08070605}),
            std::string("\x01\x01\x00\x00\x01\x02\x03\x04\x05\x06\x07\x08", 12));
}

TEST(HandoffPayload, RefusesAnyOtherLength) {
  const std::string good = EncodeHandoffPayload({});
  for (size_t n = 0; n < good.size(); ++n) {
    EXPECT_FALSE(DecodeHandoffPayload(good.substr(0, n)).ok()) << n;
  }
  EXPECT_FALSE(DecodeHandoffPayload(good + "x").ok());
}

TEST(HandoffPayload, RefusesAnUnknownVersionUnknownFlagsAndNegativeTokens) {
  const std::string good = EncodeHandoffPayload({.num_tokens = 3, .first_token_id = 4});
  for (size_t at : {0, 1, 2, 3, 11}) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] | 0x82);
    EXPECT_FALSE(DecodeHandoffPayload(bad).ok()) << "byte " << at;
  }
}

}  // namespace
}  // namespace baton
