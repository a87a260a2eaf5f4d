// How fast staging slots move, against the floor of the same run: one memcpy of the same bytes.
//
//   Memcpy          the floor
//   Wire/…          PostSend to completion of the receive, one slot at a time (latency) or eight
//   HandOver/…      gather, READY, GO, wire, scatter, DONE: Push to OnReceived
#include <benchmark/benchmark.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "common/base/check.h"
#include "common/base/mutex.h"
#include "kvtransfer/local/local_wire.h"
#include "kvtransfer/memory_link.h"
#include "kvtransfer/tcp/tcp_wire.h"
#include "kvtransfer/transfer_receiver.h"
#include "kvtransfer/transfer_sender.h"

namespace baton::kvtransfer {
namespace {

enum WireKind { kLocal, kTcp };

std::unique_ptr<Wire> MakeWire(int64_t kind) {
  if (kind == kLocal) return MakeLocalWire();
  auto wire = MakeTcpWire({});
  CHECK(wire.ok()) << wire.status();
  return *std::move(wire);
}

// Counts up; another thread waits for a value.
class Progress {
 public:
  void Add() {
    MutexLock lock(mutex_);
    ++count_;
    changed_.Signal();
  }
  void Await(uint64_t count) {
    MutexLock lock(mutex_);
    while (count_ < count) changed_.WaitFor(mutex_, std::chrono::seconds(1));
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  uint64_t count_ GUARDED_BY(mutex_) = 0;
};

void Memcpy(benchmark::State& state) {
  const size_t bytes = static_cast<size_t>(state.range(0));
  const std::vector<std::byte> source(bytes, std::byte{1});
  std::vector<std::byte> sink(bytes);
  for (auto _ : state) {
    std::memcpy(sink.data(), source.data(), bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(Memcpy)->Arg(64 << 10)->Arg(1 << 20)->Arg(4 << 20)->UseRealTime();

void WireThroughput(benchmark::State& state) {
  const size_t bytes = static_cast<size_t>(state.range(1));
  const size_t in_flight = static_cast<size_t>(state.range(2));
  auto wire = MakeWire(state.range(0));
  Progress accepted, received;
  std::unique_ptr<WireEnd> receiver;
  auto offer =
      wire->Offer(std::chrono::seconds(10), [&](absl::StatusOr<std::unique_ptr<WireEnd>> end) {
        CHECK(end.ok()) << end.status();
        receiver = *std::move(end);
        accepted.Add();
      });
  CHECK(offer.ok()) << offer.status();
  auto sender = wire->Connect(*offer, std::chrono::seconds(10));
  CHECK(sender.ok()) << sender.status();
  accepted.Await(1);
  const std::vector<std::byte> source(bytes, std::byte{1});
  std::vector<std::vector<std::byte>> sinks(in_flight, std::vector<std::byte>(bytes));
  uint64_t sequence_number = 0;
  for (auto _ : state) {
    for (size_t i = 0; i < in_flight; ++i, ++sequence_number) {
      receiver->PostReceive(sequence_number, absl::MakeSpan(sinks[i]), [&](const absl::Status& s) {
        CHECK(s.ok()) << s;
        received.Add();
      });
      (*sender)->PostSend(sequence_number, source, [](const absl::Status&) {});
    }
    received.Await(sequence_number);
  }
  state.SetBytesProcessed(static_cast<int64_t>(sequence_number * bytes));
  state.counters["time_per_chunk"] =
      benchmark::Counter(static_cast<double>(sequence_number),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  sender->reset();
  receiver.reset();
  wire->Shutdown();
}
BENCHMARK(WireThroughput)
    ->ArgNames({"tcp", "bytes", "in_flight"})
    ->ArgsProduct({{kLocal, kTcp}, {64 << 10, 1 << 20, 4 << 20}, {1, 8}})
    ->UseRealTime();

class BenchObserver : public TransferSenderObserver, public TransferReceiverObserver {
 public:
  void OnDelivered(TransferId, const TransferStats&) override {}
  void OnReleased(TransferId) override {}
  void OnReceived(TransferId, const std::string&, const TransferStats&) override { received.Add(); }
  void OnFailed(TransferId, const absl::Status& status) override {
    // A lease that was not released yet when the benchmark shuts down is no failure.
    CHECK(absl::IsCancelled(status)) << status;
  }
  void OnQuiescent(TransferId) override {}
  void OnPairFailed(const PeerAddress&, const absl::Status& status) override {
    CHECK(false) << status;
  }

  Progress received;
};

// 64 blocks of 1 MiB a transfer: the KV of some thousand tokens of a small model.
void HandOver(benchmark::State& state) {
  constexpr size_t kBlocks = 64, kBlockBytes = 1 << 20;
  auto wire = MakeWire(state.range(0));
  MemoryNetwork network;
  BenchObserver observer;
  TransferSetup setup;
  setup.options.staging_slot_bytes = static_cast<uint64_t>(state.range(1));
  setup.instance_id = 1;
  setup.kv_layouts = {{"m", "layout"}};
  setup.wire = wire.get();
  auto sender = MakeTransferSender(setup, &network);
  auto receiver = MakeTransferReceiver(setup);
  network.Listen("d", [&](std::shared_ptr<ControlLink> link) { receiver->AcceptLink(link); });
  std::vector<std::byte> source(kBlocks * kBlockBytes, std::byte{1}), sink(source.size());
  std::vector<SourceRange> ranges;
  std::vector<DestinationBlock> blocks;
  for (uint32_t i = 0; i < kBlocks; ++i) {
    ranges.push_back({i, 0, absl::MakeConstSpan(source).subspan(i * kBlockBytes, kBlockBytes)});
    blocks.push_back({i, absl::MakeSpan(sink).subspan(i * kBlockBytes, kBlockBytes)});
  }
  uint64_t id = 0;
  for (auto _ : state) {
    ++id;
    CHECK(receiver->Expect(TransferId(id), "m", blocks, kNever, &observer).ok());
    CHECK(sender->Begin(TransferId(id), "m", {"d", 1}, kNever, &observer).ok());
    sender->Push(TransferId(id), ranges);
    sender->Finish(TransferId(id), "");
    observer.received.Await(id);
    receiver->ConfirmProgress(TransferId(id));
  }
  state.SetBytesProcessed(static_cast<int64_t>(id * source.size()));
  network.StopListening("d");
  sender.reset();
  receiver.reset();
  wire->Shutdown();
}
BENCHMARK(HandOver)
    ->ArgNames({"tcp", "slot_bytes"})
    ->ArgsProduct({{kLocal, kTcp}, {1 << 20, 4 << 20}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace baton::kvtransfer

BENCHMARK_MAIN();
