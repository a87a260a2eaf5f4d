// Host memory of the CPU device, counted against a limit. Thread-safe.
#ifndef BATON_DEVICE_CPU_CPU_MEMORY_H_
#define BATON_DEVICE_CPU_CPU_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton {

class CpuMemory : public std::enable_shared_from_this<CpuMemory> {
 public:
  explicit CpuMemory(int64_t bytes_max) : bytes_max_(bytes_max) {}

  // Zeroed pages, aligned to 4096 bytes; given back when the last reference goes. Null for 0 bytes.
  // ERRORS: ResourceExhausted: "what: ... do not fit", with the sizes.
  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(int64_t bytes, absl::string_view what);

  int64_t bytes_used() const { return bytes_used_.load(); }
  int64_t bytes_max() const { return bytes_max_; }

 private:
  const int64_t bytes_max_;
  std::atomic<int64_t> bytes_used_{0};
};

// What this process may use: the machine's memory, or the limit of its control group if that is
// less.
int64_t HostMemoryBytes();

}  // namespace baton

#endif  // BATON_DEVICE_CPU_CPU_MEMORY_H_
