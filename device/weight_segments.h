// Checks and element conversion of the weight segments that devices prepare. Pure, thread-safe.
#ifndef BATON_DEVICE_WEIGHT_SEGMENTS_H_
#define BATON_DEVICE_WEIGHT_SEGMENTS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "device/device.h"

namespace baton {

// ERRORS: InvalidArgument: types, shapes or sizes that do not fit the role.
absl::Status CheckWeightSegments(absl::Span<const WeightSegment> segments, WeightRole role);

// Writes row `row` of a segment as `to` (F32, F16 or BF16; to nearest even) at `out`, any
// alignment. REQUIRES: the segment passed CheckWeightSegments.
void ConvertWeightRow(const WeightSegment& segment, int64_t row, DType to, std::byte* out);

}  // namespace baton

#endif  // BATON_DEVICE_WEIGHT_SEGMENTS_H_
