// EmbedCuda and GatherRowsCuda move the right rows, bit for bit, and turn bad indices into NaN.
#include "kernels/embedding/embedding_cuda.h"

#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/launch/cuda_testing.h"

namespace baton::kernels {
namespace {

using testing::DeviceArray;
using testing::HalvesFromFloats;
using testing::RandomHalves;
using testing::TestStream;

void CheckEmbed(int64_t rows, int64_t n, int64_t k, HalfType type, int64_t shift) {
  SCOPED_TRACE(::testing::Message() << rows << " rows of " << k << " from " << n);
  std::vector<float> table = RandomHalves(type, static_cast<size_t>(n * k + shift), 1, 1);
  const std::vector<int32_t> last_samples = {static_cast<int32_t>(n) - 1, 0, -1,
                                             static_cast<int32_t>(n)};
  std::vector<int32_t> sources = {
      0,        static_cast<int32_t>(n) - 1, static_cast<int32_t>(n), -1, -2, -3, -4, -5, INT32_MAX,
      INT32_MIN};
  std::mt19937 rng(3);
  while (static_cast<int64_t>(sources.size()) < rows) {
    sources.push_back(static_cast<int32_t>(rng() % static_cast<uint32_t>(n)));
  }
  sources.resize(static_cast<size_t>(rows));
  const TestStream stream;
  const DeviceArray<int32_t> device_sources(sources);
  const DeviceArray<int32_t> device_samples(last_samples);
  const DeviceArray<uint16_t> device_table(HalvesFromFloats(type, table));
  const DeviceArray<float> out(static_cast<size_t>(rows * k));
  ASSERT_EQ(EmbedCuda({.token_source = device_sources.data(),
                       .last_samples = device_samples.data(),
                       .table = device_table.data() + shift,
                       .out = out.data(),
                       .rows = rows,
                       .n = n,
                       .k = k,
                       .num_last_samples = static_cast<int32_t>(last_samples.size()),
                       .type = type},
                      stream.get(), LaunchOrder::kOverlapped),
            KernelStatus::kOk);
  stream.Synchronize();
  const std::vector<float> actual = out.ToHost();
  for (int64_t r = 0; r < rows; ++r) {
    int64_t id = sources[static_cast<size_t>(r)];
    if (id < 0) {
      const auto sample = static_cast<size_t>(-1 - id);
      id = sample < last_samples.size() ? last_samples[sample] : -1;
    }
    for (int64_t i = 0; i < k; ++i) {
      const float value = actual[static_cast<size_t>(r * k + i)];
      if (id < 0 || id >= n) {
        ASSERT_TRUE(std::isnan(value)) << "row " << r;
      } else {
        ASSERT_EQ(value, table[static_cast<size_t>(shift + id * k + i)]) << "row " << r;
      }
    }
  }
}

TEST(EmbedCuda, ReadsTheRightRowsInSmallShapes) {
  SKIP_WITHOUT_GPU();
  for (const HalfType type : {HalfType::kBF16, HalfType::kF16}) {
    for (const int64_t k : {1, 5, 8, 64, 136}) CheckEmbed(17, 11, k, type, 0);
    CheckEmbed(17, 11, 64, type, 1);
    CheckEmbed(0, 11, 64, type, 0);
  }
}

TEST(EmbedCuda, ReadsTheRightRows) {
  SKIP_WITHOUT_GPU();
  for (const int64_t k : {1024, 4096, 4100, 16384}) CheckEmbed(130, 500, k, HalfType::kBF16, 0);
}

template <typename T>
void CheckGather(int64_t in_rows, int64_t cols, int64_t num_rows) {
  SCOPED_TRACE(::testing::Message() << num_rows << " of " << in_rows << " x " << cols);
  std::mt19937 rng(9);
  std::vector<T> in(static_cast<size_t>(in_rows * cols));
  for (T& v : in) v = static_cast<T>(rng() % 30000);
  std::vector<int32_t> rows = {static_cast<int32_t>(in_rows), -1,
                               static_cast<int32_t>(in_rows) - 1};
  while (static_cast<int64_t>(rows.size()) < num_rows) {
    rows.push_back(static_cast<int32_t>(rng() % static_cast<uint32_t>(in_rows)));
  }
  rows.resize(static_cast<size_t>(num_rows));
  const TestStream stream;
  const DeviceArray<T> device_in(in);
  const DeviceArray<int32_t> device_rows(rows);
  const DeviceArray<T> out(static_cast<size_t>(num_rows * cols));
  ASSERT_EQ(GatherRowsCuda({.in = device_in.data(),
                            .rows = device_rows.data(),
                            .out = out.data(),
                            .in_rows = in_rows,
                            .num_rows = num_rows,
                            .row_bytes = cols * static_cast<int64_t>(sizeof(T))},
                           stream.get(), LaunchOrder::kOverlapped),
            KernelStatus::kOk);
  stream.Synchronize();
  const std::vector<T> actual = out.ToHost();
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t from = rows[static_cast<size_t>(r)];
    for (int64_t c = 0; c < cols; ++c) {
      const T value = actual[static_cast<size_t>(r * cols + c)];
      if (from < 0 || from >= in_rows) {
        uint16_t bits = 0;
        std::memcpy(&bits, &value, sizeof(bits));
        ASSERT_EQ(bits, 0xFFFF);
      } else {
        ASSERT_EQ(value, in[static_cast<size_t>(from * cols + c)]) << "row " << r;
      }
    }
  }
}

TEST(GatherRowsCuda, CopiesTheNamedRowsInSmallShapes) {
  SKIP_WITHOUT_GPU();
  for (const int64_t cols : {1, 3, 8, 130}) {
    CheckGather<uint16_t>(5, cols, 9);
    CheckGather<float>(5, cols, 9);
  }
  CheckGather<float>(5, 8, 0);
}

TEST(GatherRowsCuda, CopiesTheNamedRows) {
  SKIP_WITHOUT_GPU();
  CheckGather<uint16_t>(700, 4096, 64);
  CheckGather<float>(700, 4096, 300);
}

}  // namespace
}  // namespace baton::kernels
