// The core's output as messages of the public API. Pure functions.
#ifndef BATON_ROUTER_SERVICE_RESPONSE_CONVERT_H_
#define BATON_ROUTER_SERVICE_RESPONSE_CONVERT_H_

#include "baton/v1/generation.pb.h"
#include "router/core/response_sink.h"

namespace baton::router {

// Appends: several deltas in one message read as one.
void AppendDelta(const OutputDelta& in, v1::Delta* out);
void FillUsage(const UsageCounts& in, v1::Usage* out);
void FillFinish(const RequestFinish& in, v1::Finish* out);

}  // namespace baton::router

#endif  // BATON_ROUTER_SERVICE_RESPONSE_CONVERT_H_
