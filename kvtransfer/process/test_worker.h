// What the test process and its child agree on: options, and bytes that both can compute.
#ifndef BATON_KVTRANSFER_PROCESS_TEST_WORKER_H_
#define BATON_KVTRANSFER_PROCESS_TEST_WORKER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "kvtransfer/nccl/gpu_wire_testing.h"
#include "kvtransfer/tcp/tcp_wire.h"
#include "kvtransfer/test_support.h"
#include "kvtransfer/transfer.h"
#include "kvtransfer/transfer_setup.h"

namespace baton::kvtransfer {

inline constexpr size_t kWorkerBlocks = 16;
inline constexpr size_t kWorkerBlockBytes = 20000;
inline constexpr char kWorkerModel[] = "m";

inline TransferOptions WorkerOptions() {
  TransferOptions options;
  options.staging_slot_bytes = 8192;
  options.staging_slots = 4;
  options.heartbeat_interval = std::chrono::milliseconds(50);
  options.heartbeat_limit = std::chrono::milliseconds(500);
  options.chunk_limit = std::chrono::milliseconds(500);
  options.connect_limit = std::chrono::seconds(2);
  options.lease_limit = std::chrono::seconds(2);
  options.lease_renew_interval = std::chrono::milliseconds(200);
  options.poll_interval = std::chrono::milliseconds(5);
  options.poison_free_staging = true;
  return options;
}

inline TransferSetup WorkerSetup(uint64_t instance_id, Wire* wire) {
  TransferSetup setup;
  setup.options = WorkerOptions();
  setup.instance_id = instance_id;
  setup.kv_layouts = {{kWorkerModel, "layout"}};
  setup.wire = wire;
  setup.counters = std::make_shared<TransferCounters>();
  return setup;
}

// "tcp" or "nccl" (real; on GPU number `ordinal`).
inline std::unique_ptr<Wire> MakeWorkerWire(const std::string& kind, int ordinal) {
  if (kind == "nccl") {
    auto wire = MakeHostStagedNcclWire(ordinal, /*listens=*/true);
    CHECK(wire.ok()) << wire.status();
    return *std::move(wire);
  }
  auto wire = MakeTcpWire({});
  CHECK(wire.ok()) << wire.status();
  return *std::move(wire);
}

// The KV of one transfer, from its id alone.
class WorkerBlocks {
 public:
  explicit WorkerBlocks(TransferId id) {
    for (size_t i = 0; i < kWorkerBlocks; ++i) {
      source_.push_back(PatternBytes(kWorkerBlockBytes, id.value * 100 + i));
      destination_.emplace_back(kWorkerBlockBytes);
    }
  }
  std::vector<SourceRange> Sources() const {
    std::vector<SourceRange> ranges;
    for (uint32_t i = 0; i < kWorkerBlocks; ++i) ranges.push_back({i, 0, source_[i]});
    return ranges;
  }
  std::vector<DestinationBlock> Destinations() {
    std::vector<DestinationBlock> blocks;
    for (uint32_t i = 0; i < kWorkerBlocks; ++i) {
      blocks.push_back({i, absl::MakeSpan(destination_[i])});
    }
    return blocks;
  }
  bool Equal() const { return source_ == destination_; }
  // As the next owner of the blocks would.
  void Poison() {
    for (auto& block : destination_) std::fill(block.begin(), block.end(), std::byte{0x5E});
  }
  bool Poisoned() const {
    for (const auto& block : destination_) {
      for (std::byte b : block) {
        if (b != std::byte{0x5E}) return false;
      }
    }
    return true;
  }

 private:
  std::vector<std::vector<std::byte>> source_;
  std::vector<std::vector<std::byte>> destination_;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_PROCESS_TEST_WORKER_H_
