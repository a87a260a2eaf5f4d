// One prefill worker and one decode worker in this process, joined by a wire and a memory network,
// with observers that record every event and check the contract of transfer.h on the way. For
// tests.
#ifndef BATON_KVTRANSFER_TRANSFER_HARNESS_H_
#define BATON_KVTRANSFER_TRANSFER_HARNESS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "gtest/gtest.h"
#include "kvtransfer/memory_link.h"
#include "kvtransfer/test_support.h"
#include "kvtransfer/transfer.h"
#include "kvtransfer/transfer_receiver.h"
#include "kvtransfer/transfer_sender.h"

namespace baton::kvtransfer {

// The events of one transfer at one side.
struct TransferEvents {
  int delivered = 0;  // OnDelivered or OnReceived.
  int released = 0;
  int failed = 0;
  int quiescent = 0;
  absl::Status status;
  std::string payload;
  TransferStats stats;
};

// Records and checks: nothing comes after OnQuiescent, and terminal events come at most once.
class RecordingObserver : public TransferSenderObserver, public TransferReceiverObserver {
 public:
  void OnDelivered(TransferId id, const TransferStats& stats) override {
    MutexLock lock(mutex_);
    TransferEvents& e = Touch(id);
    EXPECT_EQ(e.delivered + e.failed + e.released, 0) << id;
    ++e.delivered;
    e.stats = stats;
  }
  void OnReleased(TransferId id) override {
    MutexLock lock(mutex_);
    TransferEvents& e = Touch(id);
    EXPECT_EQ(e.failed + e.released, 0) << id;
    ++e.released;
  }
  void OnReceived(TransferId id, const std::string& payload, const TransferStats& stats) override {
    MutexLock lock(mutex_);
    TransferEvents& e = Touch(id);
    EXPECT_EQ(e.delivered + e.failed, 0) << id;
    ++e.delivered;
    e.payload = payload;
    e.stats = stats;
  }
  void OnFailed(TransferId id, const absl::Status& status) override {
    MutexLock lock(mutex_);
    TransferEvents& e = Touch(id);
    EXPECT_EQ(e.failed + e.released, 0) << id;
    ++e.failed;
    e.status = status;
  }
  void OnQuiescent(TransferId id) override {
    MutexLock lock(mutex_);
    ++Touch(id).quiescent;
  }
  void OnPairFailed(const PeerAddress& peer, const absl::Status& status) override {
    MutexLock lock(mutex_);
    for (const auto& [id, e] : events_) failed_before_pair_ += e.quiescent == 0 ? e.failed : 0;
    pair_failures_.push_back(status);
  }

  TransferEvents events(TransferId id) const {
    MutexLock lock(mutex_);
    auto it = events_.find(id);
    return it == events_.end() ? TransferEvents{} : it->second;
  }
  std::vector<absl::Status> pair_failures() const {
    MutexLock lock(mutex_);
    return pair_failures_;
  }
  // Transfers that had failed but were not quiescent when OnPairFailed came, summed over its calls.
  int failed_before_pair() const {
    MutexLock lock(mutex_);
    return failed_before_pair_;
  }
  bool AwaitQuiescent(TransferId id) const {
    return Eventually([&] { return events(id).quiescent == 1; });
  }
  bool AwaitDelivered(TransferId id) const {
    return Eventually([&] { return events(id).delivered == 1; });
  }

 private:
  TransferEvents& Touch(TransferId id) REQUIRES(mutex_) {
    TransferEvents& e = events_[id];
    EXPECT_EQ(e.quiescent, 0) << "an event of transfer " << id << " after its OnQuiescent";
    return e;
  }

  mutable Mutex mutex_;
  std::map<TransferId, TransferEvents> events_ GUARDED_BY(mutex_);
  std::vector<absl::Status> pair_failures_ GUARDED_BY(mutex_);
  int failed_before_pair_ GUARDED_BY(mutex_) = 0;
};

// KV blocks with a pattern on P, and empty ones of the same sizes on D, each between guard bytes.
class TestBlocks {
 public:
  static constexpr std::byte kGuard{0xC3};
  static constexpr size_t kGuardBytes = 64;

  TestBlocks(size_t num_blocks, size_t block_bytes, uint64_t seed) : block_bytes_(block_bytes) {
    for (size_t i = 0; i < num_blocks; ++i) {
      source_.push_back(PatternBytes(block_bytes, seed * 1000 + i));
      destination_.emplace_back(block_bytes + 2 * kGuardBytes, kGuard);
    }
  }

  std::vector<SourceRange> Ranges(size_t first_block, size_t num_blocks) const {
    std::vector<SourceRange> ranges;
    for (size_t i = first_block; i < first_block + num_blocks; ++i) {
      ranges.push_back({Logical(i), 0, source_[i]});
    }
    return ranges;
  }
  std::vector<SourceRange> AllRanges() const { return Ranges(0, source_.size()); }
  // The piece [offset, offset + length) of one block.
  SourceRange Piece(size_t block, size_t offset, size_t length) const {
    return {Logical(block), offset, absl::MakeConstSpan(source_[block]).subspan(offset, length)};
  }
  std::vector<DestinationBlock> Destinations() {
    std::vector<DestinationBlock> blocks;
    for (size_t i = 0; i < destination_.size(); ++i) {
      blocks.push_back(
          {Logical(i), absl::MakeSpan(destination_[i]).subspan(kGuardBytes, block_bytes_)});
    }
    return blocks;
  }
  bool Equal() const {
    for (size_t i = 0; i < source_.size(); ++i) {
      if (!std::equal(source_[i].begin(), source_[i].end(),
                      destination_[i].begin() + kGuardBytes)) {
        return false;
      }
    }
    return true;
  }
  // Also true when part of the blocks was written, but nothing beside them.
  bool GuardsIntact() const {
    for (const std::vector<std::byte>& block : destination_) {
      for (size_t i = 0; i < kGuardBytes; ++i) {
        if (block[i] != kGuard || block[block.size() - 1 - i] != kGuard) return false;
      }
    }
    return true;
  }
  // All bytes of the destination, to compare at two times.
  std::vector<std::vector<std::byte>> Snapshot() const { return destination_; }
  // Fills source and destination as their next owner would.
  void Poison(std::byte value) {
    for (auto& block : source_) std::fill(block.begin(), block.end(), value);
    for (auto& block : destination_) std::fill(block.begin(), block.end(), value);
  }
  uint64_t total_bytes() const { return source_.size() * block_bytes_; }

 private:
  // Not the identity, so that a mixed-up index shows.
  static uint32_t Logical(size_t i) { return static_cast<uint32_t>(3 * i + 7); }

  const size_t block_bytes_;
  std::vector<std::vector<std::byte>> source_;
  std::vector<std::vector<std::byte>> destination_;
};

inline constexpr uint64_t kTestSenderInstance = 0x5001;
inline constexpr uint64_t kTestReceiverInstance = 0x7001;
inline constexpr char kTestModel[] = "m";
inline constexpr char kTestAddress[] = "d:1";

inline TransferOptions TestOptions() {
  TransferOptions options;
  options.staging_slot_bytes = 4096;
  options.staging_slots = 4;
  options.poll_interval = std::chrono::milliseconds(2);
  options.poison_free_staging = true;
  return options;
}

// `sender` and `receiver` may be replaced one at a time, as a restarted process would be.
class TransferHarness {
 public:
  explicit TransferHarness(std::unique_ptr<Wire> wire, TransferOptions options = TestOptions(),
                           const Clock* clock = Clock::Real())
      : options_(options), clock_(clock), wire_(std::move(wire)) {
    StartReceiver(kTestReceiverInstance, {{kTestModel, "layout-1"}});
    StartSender({{kTestModel, "layout-1"}});
  }
  ~TransferHarness() {
    network_.StopListening(kTestAddress);
    if (sender_ != nullptr) sender_->Shutdown();
    if (receiver_ != nullptr) receiver_->Shutdown();
    // The pools check on destruction that every slot has come back.
    sender_.reset();
    receiver_.reset();
    wire_->Shutdown();
  }

  void StartSender(std::map<std::string, std::string> layouts) {
    sender_.reset();
    sender_ = MakeTransferSender(Setup(kTestSenderInstance, std::move(layouts), sender_counters_),
                                 &network_);
  }
  void StartReceiver(uint64_t instance_id, std::map<std::string, std::string> layouts) {
    network_.StopListening(kTestAddress);
    if (receiver_ != nullptr) receiver_->Shutdown();
    receiver_ = MakeTransferReceiver(Setup(instance_id, std::move(layouts), receiver_counters_));
    Listen();
  }
  // Again, after network().StopListening().
  void Listen() {
    // Shared, because the network may hand over a link to the old receiver while a new one starts.
    network_.Listen(kTestAddress, [receiver = receiver_](std::shared_ptr<ControlLink> link) {
      receiver->AcceptLink(std::move(link));
    });
  }

  absl::Status Begin(TransferId id, TimePoint deadline = kNever) {
    return sender_->Begin(id, kTestModel, peer_, deadline, &at_sender_);
  }
  absl::Status Expect(TransferId id, TestBlocks* blocks, TimePoint deadline = kNever) {
    return receiver_->Expect(id, kTestModel, blocks->Destinations(), deadline, &at_receiver_);
  }
  bool StagingFull() const {
    return Eventually([&] {
      return sender_counters_->staging_slots_free == options_.staging_slots &&
             receiver_counters_->staging_slots_free == options_.staging_slots;
    });
  }

  TransferSender& sender() { return *sender_; }
  LinkedTransferReceiver& receiver() { return *receiver_; }
  RecordingObserver& at_sender() { return at_sender_; }
  RecordingObserver& at_receiver() { return at_receiver_; }
  MemoryNetwork& network() { return network_; }
  Wire& wire() { return *wire_; }
  TransferCounters& sender_counters() { return *sender_counters_; }
  TransferCounters& receiver_counters() { return *receiver_counters_; }
  PeerAddress& peer() { return peer_; }
  std::vector<std::string> unquiescent() const {
    MutexLock lock(mutex_);
    return unquiescent_;
  }

  // For further senders and receivers over the same wire and network.
  TransferSetup Setup(uint64_t instance_id, std::map<std::string, std::string> layouts,
                      std::shared_ptr<TransferCounters> counters) {
    TransferSetup setup;
    setup.options = options_;
    setup.instance_id = instance_id;
    setup.kv_layouts = std::move(layouts);
    setup.wire = wire_.get();
    setup.clock = clock_;
    setup.on_unquiescent = [this](const std::string& reason) {
      MutexLock lock(mutex_);
      unquiescent_.push_back(reason);
    };
    setup.counters = std::move(counters);
    return setup;
  }

 private:
  const TransferOptions options_;
  const Clock* const clock_;
  mutable Mutex mutex_;
  std::vector<std::string> unquiescent_ GUARDED_BY(mutex_);
  RecordingObserver at_sender_;
  RecordingObserver at_receiver_;
  std::shared_ptr<TransferCounters> sender_counters_ = std::make_shared<TransferCounters>();
  std::shared_ptr<TransferCounters> receiver_counters_ = std::make_shared<TransferCounters>();
  std::unique_ptr<Wire> wire_;
  MemoryNetwork network_;
  PeerAddress peer_{kTestAddress, kTestReceiverInstance};
  std::unique_ptr<TransferSender> sender_;
  std::shared_ptr<LinkedTransferReceiver> receiver_;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_TRANSFER_HARNESS_H_
