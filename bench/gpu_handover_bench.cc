// The NCCL wire between two GPUs of this machine: slots of 32 MiB, posted ahead as the hand-over
// does, beside the bare communicator in the same run. Needs two GPUs.
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
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

double Seconds(TimePoint since) { return ToSeconds(Clock::Real()->Now() - since); }

// Bytes a second of the communicator alone, one operation after the other.
double BareRate(Process& p, Process& d, int num_ctas) {
  const auto id = d.communicators->MintId();
  CHECK(id.ok()) << id.status();
  auto sender = p.communicators->Make(PairRole::kSender, *id, num_ctas);
  auto receiver = d.communicators->Make(PairRole::kReceiver, *id, num_ctas);
  CHECK(sender.ok() && receiver.ok()) << sender.status() << receiver.status();
  int sent = 0, posted = 0;
  TimePoint start{};
  for (uint64_t completed = 0; completed < kChunks;) {
    const auto sends = (*sender)->Ready();
    const auto receives = (*receiver)->Ready();
    CHECK(sends.ok() && receives.ok()) << sends.status() << receives.status();
    if (sent == 0 && *sends && *receives) start = Clock::Real()->Now();
    if (*sends && start != TimePoint{} && sent < kChunks &&
        sent < static_cast<int>(completed) + kSlots) {
      CHECK((*sender)->Post(p.slot(sent)).ok());
      ++sent;
    }
    if (*receives && posted < sent) {
      CHECK((*receiver)->Post(d.slot(posted)).ok());
      ++posted;
    }
    completed = *(*receiver)->Completed();
    CHECK((*sender)->Completed().ok());
  }
  const double seconds = Seconds(start);
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
      while (received + kSlots <= i) changed.WaitFor(mutex, std::chrono::seconds(1));
    }
    receiver->PostReceive(static_cast<uint64_t>(i), d.slot(i), done);
    (*sender)->PostSend(static_cast<uint64_t>(i), p.slot(i), [](const absl::Status&) {});
  }
  CHECK(Eventually([&] {
    MutexLock lock(mutex);
    return received == kChunks;
  }));
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
  for (const int num_ctas : {4, 8, 16}) {
    Process p(0), d(1);
    const double bare = BareRate(p, d, num_ctas);
    const WireRate wire = RateOfWire(p, d, num_ctas);
    bench.Report({.name = "kv_handover_32mib_" + std::to_string(num_ctas) + "_ctas",
                  .value = wire.bytes_per_second / 1e9,
                  .unit = "GB/s",
                  .anchor = "NCCL alone",
                  .anchor_value = bare / 1e9,
                  .ratio = wire.bytes_per_second / bare});
    std::printf("# opening took %.3f s\n", wire.open_seconds);
  }
}

}  // namespace
}  // namespace baton::kvtransfer
