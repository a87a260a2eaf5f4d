// What several tests of this folder use: bounded waiting, pattern bytes, counting threads and
// files.
#ifndef BATON_KVTRANSFER_TEST_SUPPORT_H_
#define BATON_KVTRANSFER_TEST_SUPPORT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <system_error>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace baton::kvtransfer {

// How long a test waits for what must happen.
inline constexpr Duration kBound = std::chrono::seconds(20);
// Lets about `duration` pass.
inline void Pause(Duration duration) {
  Mutex mutex;
  CondVar never;
  MutexLock lock(mutex);
  never.WaitFor(mutex, duration);
}

// True as soon as `condition` is; false after `bound`.
inline bool Eventually(const std::function<bool()>& condition, Duration bound = kBound) {
  const TimePoint end = SaturatingAdd(Clock::Real()->Now(), bound);
  while (!condition()) {
    if (Clock::Real()->Now() > end) return false;
    Pause(std::chrono::milliseconds(1));
  }
  return true;
}

inline std::vector<std::byte> PatternBytes(size_t size, uint64_t seed) {
  std::vector<std::byte> bytes(size);
  uint64_t x = seed * 0x9E3779B97F4A7C15u + 1;
  for (std::byte& b : bytes) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    b = static_cast<std::byte>(x >> 56);
  }
  return bytes;
}

inline size_t CountDirectory(const char* path) {
  size_t count = 0;
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator(path, error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    ++count;
  }
  return count;
}

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_TEST_SUPPORT_H_
