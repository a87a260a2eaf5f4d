#include "device/cpu/cpu_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

constexpr int64_t kHugePageBytes = 2 << 20;

std::string MiB(int64_t bytes) { return absl::StrCat((bytes + (1 << 20) - 1) >> 20, " MiB"); }

}  // namespace

absl::StatusOr<std::shared_ptr<std::byte>> CpuMemory::Allocate(int64_t bytes,
                                                               absl::string_view what) {
  if (bytes == 0) return std::shared_ptr<std::byte>();
  const auto refused = [&](int64_t used) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, ": ", MiB(bytes), " do not fit: ", MiB(used), " of the CPU device's ",
                     MiB(bytes_max_), " are in use"));
  };
  if (bytes < 0 || bytes > bytes_max_) return refused(bytes_used());
  const int64_t before = bytes_used_.fetch_add(bytes);
  if (before > bytes_max_ - bytes) {
    bytes_used_ -= bytes;
    return refused(before);
  }
  const auto size = static_cast<size_t>(bytes);
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    bytes_used_ -= bytes;
    return absl::ResourceExhaustedError(
        absl::StrCat(what, ": the system refused ", MiB(bytes), " of memory"));
  }
  // Large ranges are walked with long strides: fewer pages to translate. A hint only.
  if (bytes >= kHugePageBytes) (void)madvise(memory, size, MADV_HUGEPAGE);
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(memory),
                                    [account = shared_from_this(), size](std::byte* p) {
                                      munmap(p, size);
                                      account->bytes_used_ -= static_cast<int64_t>(size);
                                    });
}

int64_t HostMemoryBytes() {
  int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  // Version 2 of control groups; the file holds a number or "max".
  std::ifstream limit("/sys/fs/cgroup/memory.max");
  if (int64_t group = 0; limit >> group && group > 0) bytes = std::min(bytes, group);
  return bytes;
}

}  // namespace baton
