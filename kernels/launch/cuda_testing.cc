#include "kernels/launch/cuda_testing.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>

namespace baton::kernels::testing {
namespace {

constexpr size_t kGuardBytes = 1024;
constexpr int kGuardByte = 0xA5;

void Require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::abort();
}

uint32_t BitsOfFloat(float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
float FloatOfBits(uint32_t bits) {
  float x = 0;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

uint16_t F16FromFloat(float x) {
  const auto half = static_cast<_Float16>(x);
  uint16_t bits = 0;
  std::memcpy(&bits, &half, sizeof(bits));
  return bits;
}

uint16_t BF16FromFloat(float x) {
  const uint32_t bits = BitsOfFloat(x);
  if (std::isnan(x)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

}  // namespace

bool GpuIsUsable() {
  static const bool usable = [] {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return false;
    cudaDeviceProp properties;
    return cudaGetDeviceProperties(&properties, 0) == cudaSuccess && properties.major == 9;
  }();
  return usable;
}

DeviceBytes::DeviceBytes(size_t bytes) : bytes_(bytes) {
  void* allocation = nullptr;
  Require(cudaMalloc(&allocation, bytes + 2 * kGuardBytes), "cudaMalloc");
  allocation_ = static_cast<std::byte*>(allocation);
  data_ = allocation_ + kGuardBytes;
  Require(cudaMemset(allocation_, kGuardByte, kGuardBytes), "cudaMemset");
  Require(cudaMemset(data_ + bytes, kGuardByte, kGuardBytes), "cudaMemset");
  Poison();
}

DeviceBytes::~DeviceBytes() {
  EXPECT_TRUE(GuardsIntact()) << "a kernel wrote outside of its output";
  cudaFree(allocation_);
}

// Waits: cudaMemset may return before the memory is set, and kernels of the tests run in streams
// that do not wait for it.
void DeviceBytes::Poison() {
  Require(cudaMemset(data_, 0xFF, bytes_), "cudaMemset");
  Require(cudaStreamSynchronize(nullptr), "cudaMemset");
}

void DeviceBytes::CopyFrom(const void* host) {
  if (bytes_ == 0) return;
  Require(cudaMemcpy(data_, host, bytes_, cudaMemcpyHostToDevice), "cudaMemcpy");
}

void DeviceBytes::CopyTo(void* host) const {
  if (bytes_ == 0) return;
  Require(cudaMemcpy(host, data_, bytes_, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

bool DeviceBytes::GuardsIntact() const {
  std::vector<uint8_t> guards(2 * kGuardBytes);
  Require(cudaMemcpy(guards.data(), allocation_, kGuardBytes, cudaMemcpyDeviceToHost), "guard");
  Require(
      cudaMemcpy(guards.data() + kGuardBytes, data_ + bytes_, kGuardBytes, cudaMemcpyDeviceToHost),
      "guard");
  return std::all_of(guards.begin(), guards.end(), [](uint8_t b) { return b == kGuardByte; });
}

TestStream::TestStream() {
  Require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
}
TestStream::~TestStream() { cudaStreamDestroy(stream_); }

void TestStream::Synchronize() const {
  const cudaError_t error = cudaStreamSynchronize(stream_);
  ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
}

uint16_t HalfFromFloat(HalfType type, float x) {
  return type == HalfType::kBF16 ? BF16FromFloat(x) : F16FromFloat(x);
}

float FloatFromHalf(HalfType type, uint16_t bits) {
  if (type == HalfType::kBF16) return FloatOfBits(uint32_t{bits} << 16);
  _Float16 half = 0;
  std::memcpy(&half, &bits, sizeof(half));
  return static_cast<float>(half);
}

std::vector<uint16_t> HalvesFromFloats(HalfType type, absl::Span<const float> values) {
  std::vector<uint16_t> halves(values.size());
  for (size_t i = 0; i < values.size(); ++i) halves[i] = HalfFromFloat(type, values[i]);
  return halves;
}

std::vector<float> FloatsFromHalves(HalfType type, absl::Span<const uint16_t> bits) {
  std::vector<float> values(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) values[i] = FloatFromHalf(type, bits[i]);
  return values;
}

std::vector<float> RandomHalves(HalfType type, size_t count, float scale, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  for (float& value : values) value = FloatFromHalf(type, HalfFromFloat(type, normal(random)));
  return values;
}

double RelativeError(absl::Span<const float> reference, absl::Span<const float> out) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    if (!std::isfinite(out[i])) return std::numeric_limits<double>::infinity();
    const double d = static_cast<double>(out[i]) - reference[i];
    difference += d * d;
    norm += static_cast<double>(reference[i]) * reference[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

}  // namespace baton::kernels::testing
