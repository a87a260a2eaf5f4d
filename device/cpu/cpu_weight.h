// Weights as the CPU kernels want them: matrices in panels (kernels/linear/linear.h), vectors as
// float32.
#ifndef BATON_DEVICE_CPU_CPU_WEIGHT_H_
#define BATON_DEVICE_CPU_CPU_WEIGHT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "device/cpu/cpu_memory.h"
#include "device/device.h"
#include "kernels/linear/linear.h"

namespace baton {

class CpuWeight : public Weight {
 public:
  CpuWeight(WeightRole role, DType dtype, int64_t rows, int64_t cols, int64_t bytes,
            std::shared_ptr<std::byte> memory)
      : Weight(role, dtype, rows, cols), bytes_(bytes), memory_(std::move(memory)) {}

  int64_t bytes() const override { return bytes_; }
  const void* packed() const { return memory_.get(); }
  // Of a vector or bias.
  const float* floats() const { return reinterpret_cast<const float*>(memory_.get()); }
  kernels::WeightType type() const;

 private:
  const int64_t bytes_;
  const std::shared_ptr<std::byte> memory_;
};

// As Device::Prepare. Segments of one stored type keep it; a mixture becomes float32.
absl::StatusOr<WeightPtr> PrepareCpuWeight(absl::Span<const WeightSegment> segments,
                                           WeightRole role, CpuMemory& memory);

}  // namespace baton

#endif  // BATON_DEVICE_CPU_CPU_WEIGHT_H_
