// Statuses keep code, message and details on the way to gRPC and back; hostile ones do no harm.
#include "common/rpc/status_conversion.h"

#include <chrono>
#include <string>

#include "common/rpc/error_details.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"

namespace baton::rpc {
namespace {

using std::chrono::milliseconds;

TEST(StatusConversion, OkStaysOk) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
}

TEST(StatusConversion, EveryCodeSurvivesTheRoundTrip) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status in(static_cast<absl::StatusCode>(code), "why");
    EXPECT_EQ(static_cast<int>(ToGrpcStatus(in).error_code()), code);
    EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(in)), in);
  }
}

TEST(StatusConversion, RetryDelayTravelsAsGoogleRpcStatus) {
  const absl::Status in = ResourceExhaustedError("queue full", milliseconds(1500));
  const grpc::Status wire = ToGrpcStatus(in);
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(wire.error_details()));
  EXPECT_EQ(details.code(), 8);
  EXPECT_EQ(details.message(), "queue full");
  ASSERT_EQ(details.details_size(), 1);
  google::rpc::RetryInfo info;
  ASSERT_TRUE(details.details(0).UnpackTo(&info));
  EXPECT_EQ(info.retry_delay().seconds(), 1);
  EXPECT_EQ(info.retry_delay().nanos(), 500'000'000);
  EXPECT_EQ(RetryDelay(FromGrpcStatus(wire)), milliseconds(1500));
}

TEST(StatusConversion, InvalidFieldIsNamedInMessageAndDetails) {
  const absl::Status in = InvalidFieldError("sampling.top_p", "must be in [0, 1]");
  EXPECT_EQ(in.message(), "sampling.top_p: must be in [0, 1]");
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(ToGrpcStatus(in).error_details()));
  google::rpc::BadRequest bad;
  ASSERT_EQ(details.details_size(), 1);
  ASSERT_TRUE(details.details(0).UnpackTo(&bad));
  ASSERT_EQ(bad.field_violations_size(), 1);
  EXPECT_EQ(bad.field_violations(0).field(), "sampling.top_p");
}

TEST(StatusConversion, HostileInputGivesAReadableStatus) {
  const grpc::Status odd(static_cast<grpc::StatusCode>(31), "m", "\xff\xfe not a message");
  const absl::Status status = FromGrpcStatus(odd);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
  EXPECT_EQ(RetryDelay(status), std::nullopt);
  const absl::Status huge = absl::InternalError(std::string(1 << 20, 'x'));
  EXPECT_EQ(ToGrpcStatus(huge).error_message().size(), 4096u);
}

TEST(QuoteForError, EscapesBytesAndCutsLongText) {
  EXPECT_EQ(QuoteForError("a\"b\n"), R"("a\"b\n")");
  EXPECT_EQ(QuoteForError(absl::string_view("\xff\xfe\0\xc3", 4)), R"("\xff\xfe\x00\xc3")");
  EXPECT_EQ(QuoteForError("abcdef", 3), "\"abc\"...");
}

}  // namespace
}  // namespace baton::rpc
