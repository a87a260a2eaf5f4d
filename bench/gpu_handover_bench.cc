// The NCCL wire between two GPUs of this machine: slots of 32 MiB, posted ahead as the hand-over
// does. The anchor is PyTorch's NCCL of the same run (BATON_ANCHORS of gpu_anchors.py); without it,
// and as a comment, the bare communicator, driven as a pair drives it. Needs two GPUs.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/mutex.h"
#include "kernels/launch/gpu_bench_harness.h"
#include "kvtransfer/nccl/gpu_wire_testing.h"
#include "kvtransfer/nccl/nccl_wire.h"
#include "kvtransfer/nccl/owned_communicator.h"
#include "kvtransfer/wire_logs.h"
#include "tests/gpu/gpu_testing.h"

namespace baton::kvtransfer {
namespace {

using kernels::testing::GpuBench;

constexpr size_t kSlotBytes = 32 << 20;
constexpr int kSlots = 4;
constexpr int kChunks = 200;
constexpr int kDefaultCtas = 16;  // Of --kv-nccl-ctas.
// Measuring takes a fraction of a second.
constexpr Duration kMeasureLimit = std::chrono::seconds(10);

struct Process {
  explicit Process(int ordinal) {
    PluginDeviceOptions options;
    options.ordinal = ordinal;
    device = MakeCudaDevice(options);
    const auto plugin = NcclPluginForTests();
    CHECK(plugin.ok()) << plugin.status();
    auto made = (*plugin)->create({.ordinal = ordinal});
    CHECK(made.ok()) << made.status();
    communicators = *std::move(made);
    auto memory = device->AllocateStaging(kSlots * kSlotBytes, StagingPlace::kDevice);
    CHECK(memory.ok()) << memory.status();
    slots = *std::move(memory);
  }
  absl::Span<std::byte> slot(int i) {
    return {slots.get() + (i % kSlots) * kSlotBytes, kSlotBytes};
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<PairCommunicators> communicators;
  std::shared_ptr<std::byte> slots;
};

int64_t ToNanoseconds(TimePoint t) { return t.time_since_epoch().count(); }
double Seconds(TimePoint since) { return ToSeconds(Clock::Real()->Now() - since); }

// What the two ends of a bare communicator tell each other.
struct BareProgress {
  std::atomic<int> ready{0};
  std::atomic<int> sent{0};
  std::atomic<int> received{0};
  std::atomic<int64_t> start_ns{0};
};

// One end, on a thread of its own as in a pair: posts when the other end has, or has room.
void DriveBare(PairCommunicator& end, PairRole role, Process& process, BareProgress& progress,
               TimePoint deadline) {
  bool counted = false;
  for (int posted = 0, completed = 0; completed < kChunks;) {
    CHECK(Clock::Real()->Now() < deadline)
        << (role == PairRole::kSender ? "sender: " : "receiver: ") << posted << " posted, "
        << completed << " completed";
    const absl::StatusOr<bool> ready = end.Ready();
    CHECK(ready.ok()) << ready.status();
    if (*ready && !counted) {
      counted = true;
      if (++progress.ready == 2) progress.start_ns = ToNanoseconds(Clock::Real()->Now());
    }
    const int may = role == PairRole::kReceiver ? progress.sent.load()
                                                : std::min(kChunks, progress.received + kSlots);
    if (*ready && progress.ready == 2 && posted < may) {
      const absl::Status status = end.Post(process.slot(posted));
      CHECK(status.ok()) << status;
      ++posted;
      if (role == PairRole::kSender) progress.sent = posted;
    }
    if (!counted) continue;
    const absl::StatusOr<uint64_t> count = end.Completed();
    CHECK(count.ok()) << count.status();
    completed = static_cast<int>(*count);
    if (role == PairRole::kReceiver) progress.received = completed;
  }
}

// Bytes a second of the communicator alone, driven like a pair.
double BareRate(Process& p, Process& d, int num_ctas) {
  const auto id = d.communicators->MintId();
  CHECK(id.ok()) << id.status();
  auto sender = p.communicators->Make(PairRole::kSender, *id, num_ctas);
  auto receiver = d.communicators->Make(PairRole::kReceiver, *id, num_ctas);
  CHECK(sender.ok() && receiver.ok()) << sender.status() << receiver.status();
  BareProgress progress;
  const TimePoint deadline = Clock::Real()->Now() + kMeasureLimit;
  std::thread other([&] { DriveBare(**receiver, PairRole::kReceiver, d, progress, deadline); });
  DriveBare(**sender, PairRole::kSender, p, progress, deadline);
  other.join();
  const double seconds =
      static_cast<double>(ToNanoseconds(Clock::Real()->Now()) - progress.start_ns) * 1e-9;
  OwnedCommunicator first(*std::move(sender), nullptr, nullptr);
  OwnedCommunicator second(*std::move(receiver), nullptr, nullptr);
  first.BeginEnd(/*orderly=*/true, [] {});
  second.BeginEnd(/*orderly=*/true, [] {});
  CHECK(Eventually([&] { return first.Quiet() && second.Quiet(); }));
  return static_cast<double>(kChunks) * kSlotBytes / seconds;
}

struct WireRate {
  double bytes_per_second = 0;
  double open_seconds = 0;
};

WireRate RateOfWire(Process& p, Process& d, int num_ctas) {
  NcclWireOptions options{.fall_back = false, .num_ctas = num_ctas, .communicators_max = 1};
  auto offers = MakeNcclWire(options, std::move(d.communicators), d.device.get());
  options.listens = false;
  auto connects = MakeNcclWire(options, std::move(p.communicators), p.device.get());
  CHECK(offers.ok() && connects.ok()) << offers.status() << connects.status();
  AcceptLog accepted;
  auto offer = (*offers)->Offer(kBound, accepted.Callback());
  CHECK(offer.ok()) << offer.status();
  WireRate rate;
  TimePoint start = Clock::Real()->Now();
  auto sender = (*connects)->Connect(*offer, kBound);
  CHECK(sender.ok() && accepted.Await()) << sender.status();
  rate.open_seconds = Seconds(start);
  auto receiver = accepted.Take();
  CHECK(receiver != nullptr) << accepted.status();
  Mutex mutex;
  CondVar changed;
  int received = 0;
  const auto done = [&](const absl::Status& s) {
    CHECK(s.ok()) << s;
    MutexLock lock(mutex);
    ++received;
    changed.Signal();
  };
  start = Clock::Real()->Now();
  for (int i = 0; i < kChunks; ++i) {
    {
      MutexLock lock(mutex);
      while (received + kSlots <= i) {
        CHECK(Clock::Real()->Now() - start < kMeasureLimit)
            << received << " of " << i << " arrived";
        changed.WaitFor(mutex, std::chrono::seconds(1));
      }
    }
    receiver->PostReceive(static_cast<uint64_t>(i), d.slot(i), done);
    (*sender)->PostSend(static_cast<uint64_t>(i), p.slot(i), [](const absl::Status&) {});
  }
  {
    MutexLock lock(mutex);
    while (received < kChunks) {
      CHECK(Clock::Real()->Now() - start < kMeasureLimit) << received << " arrived";
      changed.WaitFor(mutex, std::chrono::seconds(1));
    }
  }
  rate.bytes_per_second = static_cast<double>(kChunks) * kSlotBytes / Seconds(start);
  sender->reset();
  receiver.reset();
  (*connects)->Shutdown();
  (*offers)->Shutdown();
  return rate;
}

BATON_GPU_BENCH(kv_handover_32mib) {
  const std::string why_not = WhyNotTwoGpus();
  if (!why_not.empty()) {
    std::printf("# kv_handover_32mib skipped: %s\n", why_not.c_str());
    return;
  }
  const double anchor = kernels::testing::Anchor("kv_handover_32mib");
  for (const int num_ctas : {4, 8, kDefaultCtas}) {
    Process p(0), d(1);
    const double bare = BareRate(p, d, num_ctas);
    const WireRate wire = RateOfWire(p, d, num_ctas);
    const double rate = wire.bytes_per_second / 1e9;
    bench.Report({.name = num_ctas == kDefaultCtas
                              ? "kv_handover_32mib"
                              : "kv_handover_32mib_" + std::to_string(num_ctas) + "_ctas",
                  .value = rate,
                  .unit = "GB/s",
                  .anchor = anchor > 0 ? "NCCL by PyTorch" : "none",
                  .anchor_value = anchor,
                  .ratio = anchor > 0 ? rate / anchor : 0});
    std::printf("# the bare communicator: %.1f GB/s; opening a pair took %.3f s\n", bare / 1e9,
                wire.open_seconds);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace baton::kvtransfer
