// For tests of CUDA kernels: device memory between guard bytes, poisoned before use, and 16-bit
// conversions on the host. Tests call SKIP_WITHOUT_GPU() first.
#ifndef BATON_KERNELS_LAUNCH_CUDA_TESTING_H_
#define BATON_KERNELS_LAUNCH_CUDA_TESTING_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "kernels/launch/launch.h"

namespace baton::kernels::testing {

// A GPU of compute capability 9.0 with a driver that works.
bool GpuIsUsable();
#define SKIP_WITHOUT_GPU()                       \
  if (!baton::kernels::testing::GpuIsUsable()) { \
    GTEST_SKIP() << "no GPU";                    \
  }

// `bytes` of device memory, every byte 0xFF (NaN in all float types), between guards. The
// destructor checks the guards. Aborts the test program when the runtime fails.
class DeviceBytes {
 public:
  explicit DeviceBytes(size_t bytes);
  ~DeviceBytes();
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  void* data() const { return data_; }
  size_t size() const { return bytes_; }
  void Poison();
  void CopyFrom(const void* host);
  void CopyTo(void* host) const;
  // True when nothing wrote outside.
  bool GuardsIntact() const;

 private:
  size_t bytes_;
  std::byte* allocation_ = nullptr;
  std::byte* data_ = nullptr;
};

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count), bytes_(count * sizeof(T)) {}
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.size()) {
    bytes_.CopyFrom(host.data());
  }
  T* data() const { return static_cast<T*>(bytes_.data()); }
  size_t size() const { return count_; }
  void Poison() { bytes_.Poison(); }
  void CopyFrom(const std::vector<T>& host) { bytes_.CopyFrom(host.data()); }
  std::vector<T> ToHost() const {
    std::vector<T> host(count_);
    bytes_.CopyTo(host.data());
    return host;
  }
  bool GuardsIntact() const { return bytes_.GuardsIntact(); }

 private:
  size_t count_;
  DeviceBytes bytes_;
};

// A stream of its own; Synchronize fails the test on any error and says which.
class TestStream {
 public:
  TestStream();
  ~TestStream();
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  CudaStream get() const { return stream_; }
  void Synchronize() const;

 private:
  CudaStream stream_ = nullptr;
};

// Bits of 16-bit floats, rounded to nearest even.
uint16_t HalfFromFloat(HalfType type, float x);
float FloatFromHalf(HalfType type, uint16_t bits);
std::vector<uint16_t> HalvesFromFloats(HalfType type, absl::Span<const float> values);
std::vector<float> FloatsFromHalves(HalfType type, absl::Span<const uint16_t> bits);

// Standard normal values times `scale`, already rounded to `type`.
std::vector<float> RandomHalves(HalfType type, size_t count, float scale, uint64_t seed);

// ||out - reference|| / ||reference||; infinite when `out` holds a NaN or an infinity.
double RelativeError(absl::Span<const float> reference, absl::Span<const float> out);

// Largest RelativeError that rounding of one 16-bit result explains, with a margin.
constexpr double HalfTolerance(HalfType type) { return type == HalfType::kBF16 ? 6e-3 : 1.5e-3; }

}  // namespace baton::kernels::testing

#endif  // BATON_KERNELS_LAUNCH_CUDA_TESTING_H_
