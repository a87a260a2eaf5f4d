// What every device checks before it compiles a list. Pure.
#ifndef BATON_DEVICE_PROGRAM_CHECKS_H_
#define BATON_DEVICE_PROGRAM_CHECKS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "device/device.h"

namespace baton {

// ERRORS: InvalidArgument naming the operation: CheckOps, heads that do not fit the pool; no or
// descending buckets; limits below one.
absl::Status CheckProgram(const OpList& list, absl::Span<const int32_t> buckets,
                          const ProgramLimits& limits, const KvLayout& layout);

}  // namespace baton

#endif  // BATON_DEVICE_PROGRAM_CHECKS_H_
