// Monotonic time, injected. Every time-out, lease and latency in the project is measured on this
// clock; the wall clock is never used for them, so stepping it changes nothing.
#ifndef BATON_COMMON_BASE_CLOCK_H_
#define BATON_COMMON_BASE_CLOCK_H_

#include <atomic>
#include <chrono>
#include <cstdint>

namespace baton {

using Duration = std::chrono::nanoseconds;
// Steady time since an arbitrary start of this machine. Not comparable between machines; between
// processes only remaining durations travel.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

inline constexpr TimePoint kNever = TimePoint::max();

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
  // The process-wide steady clock; never destroyed.
  static const Clock* Real();
};

// A clock that moves only when told to. Thread-safe.
class FakeClock : public Clock {
 public:
  TimePoint Now() const override { return TimePoint(Duration(now_ns_.load())); }
  void Advance(Duration by) { now_ns_ += by.count(); }

 private:
  std::atomic<int64_t> now_ns_{1'000'000'000};
};

inline double ToSeconds(Duration d) { return std::chrono::duration<double>(d).count(); }

// now + d without overflow: a huge d gives kNever.
inline TimePoint SaturatingAdd(TimePoint now, Duration d) {
  if (d.count() > 0 && now.time_since_epoch().count() > INT64_MAX - d.count()) return kNever;
  return now + d;
}

}  // namespace baton

#endif  // BATON_COMMON_BASE_CLOCK_H_
