// Any bytes as a safetensors file: refused or read, never a crash, and what is read covers the data
// section exactly.
#include <cstdint>

#include "common/base/check.h"
#include "engine/weights/checked_math.h"
#include "engine/weights/safetensors.h"
#include "engine/weights/safetensors_header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  // As a bare header too: the fuzzer need not find a length that fits.
  (void)baton::ParseSafetensorsHeader(absl::string_view(reinterpret_cast<const char*>(data), size));
  const auto file = baton::SafetensorsFile::Parse(bytes, "fuzz");
  if (!file.ok()) {
    CHECK(!file.status().message().empty());
    return 0;
  }
  uint64_t covered = 8 + (*file)->header().size();
  unsigned sum = 0;
  for (const baton::TensorInfo& tensor : (*file)->tensors()) {
    CHECK((*file)->Find(tensor.name) == &tensor);
    CHECK_EQ(*baton::CheckedElements(tensor.shape) * baton::DTypeBytes(tensor.dtype),
             tensor.data.size());
    covered += tensor.data.size();
    for (const std::byte b : tensor.data) sum += static_cast<unsigned>(b);
  }
  CHECK_EQ(covered, size) << sum;
  return 0;
}
