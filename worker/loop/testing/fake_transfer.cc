#include "worker/loop/testing/fake_transfer.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace baton::worker {
namespace {

constexpr std::byte kGarbage{0xab};

}  // namespace

FakeTransfer::FakeTransfer(uint32_t seed) : random_(seed) {}

bool FakeTransfer::Pump() {
  std::vector<TransferId> ids;
  ids.reserve(transfers_.size());
  for (const auto& [id, transfer] : transfers_) ids.push_back(id);
  std::shuffle(ids.begin(), ids.end(), random_);
  for (TransferId id : ids) {
    const auto it = transfers_.find(id);
    if (it != transfers_.end() && Act(id, it->second)) return true;
  }
  return false;
}

void FakeTransfer::PumpDry() {
  while (Pump()) {
  }
}

bool FakeTransfer::Act(TransferId id, Transfer& transfer) {
  if (transfer.broken) return Linger(id, transfer);
  if (transfer.delivered && transfer.released) {
    kvtransfer::TransferSenderObserver* sender = std::exchange(transfer.sender, nullptr);
    if (sender != nullptr) {
      CheckSources(transfer);
      sender->OnReleased(id);
      sender->OnQuiescent(id);
    }
    EraseIfOver(id);
    return true;
  }
  if (transfer.delivered) return false;
  if (failure_permille_ > 0 && Draw(1000) < failure_permille_) {
    Fail(id, absl::UnavailableError("the wire broke"));
    return true;
  }
  if (hold_copies_) return false;
  return CopyOne(transfer) || Deliver(id, transfer);
}

bool FakeTransfer::Linger(TransferId id, Transfer& transfer) {
  if (transfer.receiver != nullptr) {
    for (auto& [logical, bytes] : transfer.destinations) {
      std::fill(bytes.begin(), bytes.end(), kGarbage);
    }
  }
  if (transfer.lingering-- > 0) return true;
  CheckSources(transfer);
  if (auto* sender = std::exchange(transfer.sender, nullptr)) sender->OnQuiescent(id);
  if (auto* receiver = std::exchange(transfer.receiver, nullptr)) receiver->OnQuiescent(id);
  transfers_.erase(id);
  return true;
}

bool FakeTransfer::CopyOne(Transfer& transfer) {
  if (transfer.copied >= transfer.pushed.size() || transfer.receiver == nullptr) return false;
  const Pushed& pushed = transfer.pushed[transfer.copied++];
  if (!std::equal(pushed.bytes.begin(), pushed.bytes.end(), pushed.range.bytes.begin())) {
    ++violations_;
  }
  const auto destination = transfer.destinations.find(pushed.range.logical_block);
  CHECK(destination != transfer.destinations.end())
      << "D expects no logical block " << pushed.range.logical_block;
  CHECK_LE(pushed.range.offset + pushed.range.bytes.size(), destination->second.size());
  std::copy(pushed.range.bytes.begin(), pushed.range.bytes.end(),
            destination->second.begin() + static_cast<int64_t>(pushed.range.offset));
  transfer.bytes += pushed.range.bytes.size();
  CHECK(transfer.coverage
            ->Claim({{.logical_block = pushed.range.logical_block,
                      .offset = pushed.range.offset,
                      .length = pushed.range.bytes.size()}},
                    pushed.range.bytes.size())
            .ok())
      << "logical block " << pushed.range.logical_block << " twice";
  ++ranges_copied_;
  if (pushed.range.bytes.size() < destination->second.size()) ++parts_copied_;
  return true;
}

bool FakeTransfer::Deliver(TransferId id, Transfer& transfer) {
  if (!transfer.payload.has_value() || transfer.receiver == nullptr) return false;
  const absl::Status complete = transfer.coverage->CheckComplete();
  CHECK(complete.ok()) << complete;
  transfer.received = transfer.delivered = true;
  const kvtransfer::TransferStats stats = {.bytes = transfer.bytes,
                                           .chunks = transfer.pushed.size()};
  kvtransfer::TransferReceiverObserver* receiver = std::exchange(transfer.receiver, nullptr);
  receiver->OnReceived(id, payload_.value_or(*transfer.payload), stats);
  receiver->OnQuiescent(id);
  transfer.sender->OnDelivered(id, stats);
  return true;
}

void FakeTransfer::CheckSources(const Transfer& transfer) {
  if (transfer.sender == nullptr || transfer.delivered) return;
  for (const Pushed& pushed : transfer.pushed) {
    if (!std::equal(pushed.bytes.begin(), pushed.bytes.end(), pushed.range.bytes.begin())) {
      ++violations_;
    }
  }
}

void FakeTransfer::EraseIfOver(TransferId id) {
  const auto it = transfers_.find(id);
  if (it->second.sender == nullptr && it->second.receiver == nullptr) transfers_.erase(it);
}

void FakeTransfer::Break(TransferId id, Transfer& transfer, const absl::Status& status,
                         bool tell_sender, bool tell_receiver) {
  if (transfer.broken) return;
  transfer.broken = true;
  transfer.lingering = static_cast<int>(Draw(4));
  if (tell_sender && transfer.sender != nullptr) transfer.sender->OnFailed(id, status);
  if (tell_receiver && transfer.receiver != nullptr) transfer.receiver->OnFailed(id, status);
}

void FakeTransfer::Fail(TransferId id, const absl::Status& status) {
  Break(id, transfers_.at(id), status, /*tell_sender=*/true, /*tell_receiver=*/true);
}

void FakeTransfer::ExpireLease(TransferId id) {
  Transfer& transfer = transfers_.at(id);
  CHECK(transfer.delivered);
  Break(id, transfer, absl::DeadlineExceededError("lease"), /*tell_sender=*/true,
        /*tell_receiver=*/false);
}

void FakeTransfer::FailPair(TransferId id, const absl::Status& status) {
  Transfer& transfer = transfers_.at(id);
  transfer.sender->OnPairFailed(transfer.peer, status);
  Fail(id, status);
}

int FakeTransfer::confirmed(TransferId id) const {
  const auto it = confirmed_.find(id.value);
  return it == confirmed_.end() ? 0 : it->second;
}

absl::Status FakeTransfer::Sender::Begin(TransferId id, const std::string& model,
                                         const kvtransfer::PeerAddress& peer, TimePoint deadline,
                                         kvtransfer::TransferSenderObserver* observer) {
  if (owner_->refuse_begin_.has_value()) {
    const absl::Status status = *owner_->refuse_begin_;
    owner_->refuse_begin_.reset();
    return status;
  }
  Transfer& transfer = owner_->transfers_[id];
  if (transfer.sender != nullptr) return absl::AlreadyExistsError("transfer in use");
  transfer.sender = observer;
  transfer.peer = peer;
  // D does not expect it (any more): it says so.
  if (transfer.broken) {
    observer->OnFailed(id, absl::AbortedError("not expected any more"));
  } else if (transfer.receiver == nullptr) {
    owner_->Break(id, transfer, absl::AbortedError("not expected"), /*tell_sender=*/true,
                  /*tell_receiver=*/false);
  }
  return absl::OkStatus();
}

void FakeTransfer::Sender::Push(TransferId id, std::vector<kvtransfer::SourceRange> ranges) {
  const auto it = owner_->transfers_.find(id);
  if (it == owner_->transfers_.end() || it->second.broken) return;
  CHECK(!it->second.payload.has_value()) << "push after finish";
  for (const kvtransfer::SourceRange& range : ranges) {
    it->second.pushed.push_back({range, {range.bytes.begin(), range.bytes.end()}});
  }
}

void FakeTransfer::Sender::Finish(TransferId id, std::string payload) {
  const auto it = owner_->transfers_.find(id);
  if (it == owner_->transfers_.end() || it->second.broken) return;
  it->second.payload = std::move(payload);
}

void FakeTransfer::Sender::Cancel(TransferId id) {
  const auto it = owner_->transfers_.find(id);
  if (it == owner_->transfers_.end() || it->second.broken) return;
  ++owner_->sender_cancels_[id.value];
  owner_->Break(id, it->second, absl::AbortedError("P gave up"), /*tell_sender=*/false,
                /*tell_receiver=*/true);
}

void FakeTransfer::Sender::Shutdown() {
  for (auto& [id, transfer] : owner_->transfers_) {
    owner_->Break(id, transfer, absl::CancelledError("shut down"), true, true);
  }
  owner_->PumpDry();
}

absl::Status FakeTransfer::Receiver::Expect(TransferId id, const std::string& model,
                                            std::vector<kvtransfer::DestinationBlock> blocks,
                                            TimePoint deadline,
                                            kvtransfer::TransferReceiverObserver* observer) {
  if (owner_->refuse_expect_.has_value()) {
    const absl::Status status = *owner_->refuse_expect_;
    owner_->refuse_expect_.reset();
    return status;
  }
  Transfer& transfer = owner_->transfers_[id];
  if (transfer.expected) return absl::AlreadyExistsError("transfer in use");
  transfer.expected = true;
  transfer.receiver = observer;
  absl::StatusOr<kvtransfer::Coverage> coverage = kvtransfer::Coverage::Create(blocks);
  CHECK(coverage.ok()) << coverage.status();
  transfer.coverage = *std::move(coverage);
  for (const kvtransfer::DestinationBlock& block : blocks) {
    transfer.destinations.emplace(block.logical_block, block.bytes);
  }
  return absl::OkStatus();
}

void FakeTransfer::Receiver::Cancel(TransferId id) {
  const auto it = owner_->transfers_.find(id);
  if (it == owner_->transfers_.end() || it->second.broken) return;
  ++owner_->receiver_cancels_[id.value];
  if (it->second.received) {
    it->second.released = true;
    return;
  }
  owner_->Break(id, it->second, absl::AbortedError("D gave up"), /*tell_sender=*/true,
                /*tell_receiver=*/false);
}

void FakeTransfer::Receiver::ConfirmProgress(TransferId id) {
  ++owner_->confirmed_[id.value];
  const auto it = owner_->transfers_.find(id);
  if (it == owner_->transfers_.end() || it->second.broken) return;
  CHECK(it->second.received) << "progress confirmed before OnReceived";
  it->second.released = true;
}

void FakeTransfer::Receiver::Shutdown() { owner_->sender_.Shutdown(); }

}  // namespace baton::worker
