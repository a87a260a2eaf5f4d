#include "kvtransfer/sender_core.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "kvtransfer/range_copy.h"

namespace baton::kvtransfer {

SenderCore::SenderCore(const TransferSetup& setup, ControlDialer* dialer,
                       std::shared_ptr<WorkThread> core, WorkThread* events,
                       ActiveTransfers* active)
    : setup_(setup),
      dialer_(dialer),
      core_(std::move(core)),
      events_(events),
      active_(active),
      staging_(setup.options.staging_slots, setup.options.staging_slot_bytes,
               setup.options.poison_free_staging,
               AllocateStaging(setup.device, setup.wire->staging_place(),
                               setup.options.staging_slots * setup.options.staging_slot_bytes)),
      leases_({.since_renewal = setup.options.lease_limit,
               .total = setup.options.lease_total_limit,
               .count = setup.options.leases_max}) {
  PublishLevels();
}

SenderCore::Transfer* SenderCore::Find(TransferId id) {
  auto it = transfers_.find(id);
  return it == transfers_.end() ? nullptr : it->second.get();
}

void SenderCore::Begin(TransferId id, const PeerAddress& peer, TimePoint deadline,
                       TransferSenderObserver* observer) {
  auto owned = std::make_unique<Transfer>();
  Transfer* transfer = owned.get();
  transfer->serial = next_serial_++;
  transfer->id = id;
  transfer->peer = peer;
  transfer->deadline = deadline;
  transfer->observer = observer;
  transfers_[id] = std::move(owned);
  if (shutting_down_) {
    FailTransfer(transfer, absl::CancelledError("the KV transfer is shut down"), false);
    return;
  }
  Attach(transfer);
  PublishLevels();
}

void SenderCore::Attach(Transfer* transfer) {
  absl::StatusOr<Pair*> pair = OpenPair(transfer->peer);
  if (!pair.ok()) {
    FailTransfer(transfer, pair.status(), false);
    return;
  }
  transfer->pair_serial = (*pair)->serial;
  (*pair)->transfers.insert(transfer->id);
  // Last, because a refused dial fails the pair and with it the transfer.
  if ((*pair)->state == PairState::kBackoff && (*pair)->dial_at <= setup_.clock->Now()) Dial(*pair);
}

void SenderCore::Push(TransferId id, std::vector<SourceRange> ranges) {
  Transfer* transfer = Find(id);
  if (transfer == nullptr || transfer->leased) return;
  if (transfer->finished) {
    FailTransfer(transfer, absl::FailedPreconditionError("pushed after Finish"), true);
    return;
  }
  for (SourceRange& range : ranges) {
    if (range.bytes.empty()) {
      active_->Gathered(id, 1);
    } else {
      transfer->pending.push_back(range);
    }
  }
  if (Pair* pair = FindPair(transfer->pair_serial)) QueueTurn(transfer, pair);
  Pump();
}

void SenderCore::Finish(TransferId id, std::string payload) {
  Transfer* transfer = Find(id);
  if (transfer == nullptr || transfer->leased) return;
  if (transfer->finished) {
    FailTransfer(transfer, absl::FailedPreconditionError("finished twice"), true);
    return;
  }
  if (payload.size() > kTransferPayloadBytesMax) {
    FailTransfer(transfer,
                 absl::InvalidArgumentError(absl::StrCat(
                     "payload of ", payload.size(), " bytes, at most ", kTransferPayloadBytesMax)),
                 true);
    return;
  }
  transfer->finished = true;
  transfer->payload = std::move(payload);
  if (Pair* pair = FindPair(transfer->pair_serial)) QueueTurn(transfer, pair);
  Pump();
}

void SenderCore::Cancel(TransferId id) {
  Transfer* transfer = Find(id);
  if (transfer == nullptr) return;
  if (setup_.counters != nullptr) ++setup_.counters->cancelled;
  End(transfer, "cancelled by the prefill worker", nullptr);
  Pump();
}

void SenderCore::Fail(TransferId id, const absl::Status& status) {
  if (Transfer* transfer = Find(id)) FailTransfer(transfer, status, true);
}

void SenderCore::QueueTurn(Transfer* transfer, Pair* pair) {
  if (transfer->queued) return;
  transfer->queued = true;
  pair->turns.push_back(transfer->id);
}

void SenderCore::CheckDelivered(Transfer* transfer) {
  // Called when D confirms reception, which it does after the last DONE.
  if (transfer->leased || !transfer->final_sent ||
      transfer->done.chunks != transfer->chunks_announced) {
    return;
  }
  transfer->leased = true;
  transfer->deadline = kNever;  // The lease's own limits hold from here.
  if (setup_.counters != nullptr) ++setup_.counters->delivered;
  events_->Post([observer = transfer->observer, id = transfer->id, stats = transfer->done] {
    observer->OnDelivered(id, stats);
  });
  if (auto evicted = leases_.Add(transfer->id, setup_.clock->Now())) {
    FailTransfer(Find(*evicted),
                 absl::ResourceExhaustedError(
                     absl::StrCat("leases_max (", setup_.options.leases_max, ") reached")),
                 false);
  }
}

void SenderCore::End(Transfer* transfer, const std::string& tell_peer,
                     std::function<void(TransferSenderObserver*)> last_event) {
  const TransferId id = transfer->id;
  if (Pair* pair = FindPair(transfer->pair_serial)) {
    const TimePoint now = setup_.clock->Now();
    for (auto& [sequence_number, chunk] : pair->chunks) {
      if (chunk.transfer_serial != transfer->serial || chunk.orphaned) continue;
      chunk.orphaned = true;
      if (chunk.state == ChunkState::kReady) chunk.since = now;
    }
    std::erase_if(pair->chunks, [&](const auto& entry) {
      return entry.second.orphaned && entry.second.state == ChunkState::kSent;
    });
    std::erase(pair->turns, id);
    pair->transfers.erase(id);
    if (pair->transfers.empty()) pair->idle_since = now;
    if (!tell_peer.empty()) TellAbort(pair, {id, tell_peer});
  }
  leases_.Remove(id);
  events_->Post(
      [observer = transfer->observer, id, active = active_, last_event = std::move(last_event)] {
        if (last_event) last_event(observer);
        active->Remove(id);
        observer->OnQuiescent(id);
      });
  transfers_.erase(id);
  PublishLevels();
}

void SenderCore::TellAbort(Pair* pair, TransferAbort message) {
  if (pair->state == PairState::kOpen || pair->state == PairState::kConnecting) {
    pair->link->Send(std::move(message));
  } else if (pair->state != PairState::kClosing &&
             pair->owed_aborts.size() < setup_.options.transfers_max) {
    pair->owed_aborts.push_back(std::move(message));
  }
}

void SenderCore::FailTransfer(Transfer* transfer, const absl::Status& status, bool tell_peer) {
  if (setup_.counters != nullptr) ++setup_.counters->failed;
  const std::string reason = absl::StrCat("failed at the prefill worker: ", status.message());
  End(transfer, tell_peer ? reason : "",
      [id = transfer->id, status](TransferSenderObserver* observer) {
        observer->OnFailed(id, status);
      });
}

void SenderCore::SweepTransfers(TimePoint now) {
  for (TransferId id : leases_.Sweep(now)) {
    FailTransfer(Find(id), absl::DeadlineExceededError("the lease has expired"), true);
  }
  std::vector<TransferId> expired;
  for (const auto& [id, transfer] : transfers_) {
    if (transfer->deadline <= now) expired.push_back(id);
  }
  for (TransferId id : expired) {
    FailTransfer(Find(id), absl::DeadlineExceededError("the transfer's deadline has passed"), true);
  }
}

void SenderCore::Tick() {
  const TimePoint now = setup_.clock->Now();
  SweepTransfers(now);
  std::vector<uint64_t> serials;
  for (const auto& [serial, pair] : pairs_) serials.push_back(serial);
  for (uint64_t serial : serials) {
    if (Pair* pair = FindPair(serial)) TickPair(pair, now);
  }
  std::erase_if(backoffs_, [&](const auto& entry) {
    return entry.second.not_before + std::chrono::seconds(10) < now;
  });
  Pump();
  PublishLevels();
}

void SenderCore::Shutdown(std::function<void()> drained) {
  shutting_down_ = true;
  drained_ = std::move(drained);
  std::vector<TransferId> ids;
  for (const auto& [id, transfer] : transfers_) ids.push_back(id);
  for (TransferId id : ids) {
    FailTransfer(Find(id), absl::CancelledError("the KV transfer shuts down"), true);
  }
  std::vector<uint64_t> serials;
  for (const auto& [serial, pair] : pairs_) serials.push_back(serial);
  for (uint64_t serial : serials) {
    if (Pair* pair = FindPair(serial)) ClosePair(pair, absl::CancelledError("shutting down"));
  }
  if (pairs_.empty() && drained_) std::exchange(drained_, nullptr)();
}

void SenderCore::PublishLevels() {
  TransferCounters* counters = setup_.counters.get();
  if (counters == nullptr) return;
  counters->leases = leases_.size();
  counters->pairs = pairs_.size();
  counters->staging_slots_free = staging_.num_free();
  counters->staging_slots_quarantined = staging_.num_quarantined();
}

}  // namespace baton::kvtransfer
