#include "worker/metered_transfer.h"

#include <utility>

#include "common/metrics/canonical.h"

namespace baton::worker {

using kvtransfer::TransferStats;

TransferMetrics::TransferMetrics(MetricsRegistry& registry)
    : bytes_(registry.AddCounter(metrics::kKvHandoverBytes)),
      seconds_(registry.AddHistogram(metrics::kKvHandoverDurationSeconds)),
      failures_(registry.AddCounter(metrics::kKvHandoverFailures)) {}

void TransferMetrics::Completed(const std::string& model, absl::string_view direction,
                                uint64_t bytes, Duration took) {
  bytes_.With({model, direction})->Increment(static_cast<double>(bytes));
  seconds_.With({model, direction})->Observe(ToSeconds(took));
}

void TransferMetrics::Failed(const std::string& model, absl::string_view direction,
                             const absl::Status& status) {
  failures_.With({model, direction, absl::StatusCodeToString(status.code())})->Increment();
}

absl::Status MeteredTransferSender::Begin(TransferId id, const std::string& model,
                                          const kvtransfer::PeerAddress& peer, TimePoint deadline,
                                          kvtransfer::TransferSenderObserver* observer) {
  {
    MutexLock lock(mutex_);
    // A second Begin of an id fails below and must not replace the first one's entry.
    if (!entries_.try_emplace(id, Entry{model, observer}).second) {
      return absl::AlreadyExistsError("transfer id is in use");
    }
  }
  const absl::Status status = sender_->Begin(id, model, peer, deadline, this);
  if (!status.ok()) {
    metrics_->Failed(model, "sent", status);
    MutexLock lock(mutex_);
    entries_.erase(id);
  }
  return status;
}

void MeteredTransferSender::Push(TransferId id, std::vector<kvtransfer::SourceRange> ranges) {
  {
    MutexLock lock(mutex_);
    const auto it = entries_.find(id);
    if (it != entries_.end() && it->second.first_push == kNever) {
      it->second.first_push = clock_->Now();
    }
  }
  sender_->Push(id, std::move(ranges));
}

void MeteredTransferSender::Finish(TransferId id, std::string payload) {
  sender_->Finish(id, std::move(payload));
}

void MeteredTransferSender::Cancel(TransferId id) { sender_->Cancel(id); }

kvtransfer::TransferSenderObserver* MeteredTransferSender::Find(TransferId id, Entry* copy) {
  MutexLock lock(mutex_);
  const auto it = entries_.find(id);
  if (it == entries_.end()) return nullptr;
  if (copy != nullptr) *copy = it->second;
  return it->second.observer;
}

void MeteredTransferSender::OnDelivered(TransferId id, const TransferStats& stats) {
  Entry entry;
  auto* observer = Find(id, &entry);
  if (observer == nullptr) return;
  {
    MutexLock lock(mutex_);
    entries_[id].delivered = true;
  }
  const TimePoint now = clock_->Now();
  metrics_->Completed(entry.model, "sent", stats.bytes,
                      entry.first_push == kNever ? Duration::zero() : now - entry.first_push);
  observer->OnDelivered(id, stats);
}

void MeteredTransferSender::OnReleased(TransferId id) {
  if (auto* observer = Find(id)) observer->OnReleased(id);
}

void MeteredTransferSender::OnFailed(TransferId id, const absl::Status& status) {
  Entry entry;
  auto* observer = Find(id, &entry);
  if (observer == nullptr) return;
  // What has been delivered and then lost its lease is not a failed hand-over.
  if (!entry.delivered) metrics_->Failed(entry.model, "sent", status);
  observer->OnFailed(id, status);
}

void MeteredTransferSender::OnQuiescent(TransferId id) {
  auto* observer = Find(id);
  {
    MutexLock lock(mutex_);
    entries_.erase(id);
  }
  if (observer != nullptr) observer->OnQuiescent(id);
}

void MeteredTransferSender::OnPairFailed(const kvtransfer::PeerAddress& peer,
                                         const absl::Status& status) {
  // The sender calls once per observer, and all loops share this one: each distinct loop hears it.
  std::vector<kvtransfer::TransferSenderObserver*> observers;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, entry] : entries_) {
      bool seen = false;
      for (auto* other : observers) seen = seen || other == entry.observer;
      if (!seen) observers.push_back(entry.observer);
    }
  }
  for (auto* observer : observers) observer->OnPairFailed(peer, status);
}

absl::Status MeteredTransferReceiver::Expect(TransferId id, const std::string& model,
                                             std::vector<kvtransfer::DestinationBlock> blocks,
                                             TimePoint deadline,
                                             kvtransfer::TransferReceiverObserver* observer) {
  {
    MutexLock lock(mutex_);
    if (!entries_.try_emplace(id, Entry{model, observer, clock_->Now()}).second) {
      return absl::AlreadyExistsError("transfer id is in use");
    }
  }
  const absl::Status status = receiver_->Expect(id, model, std::move(blocks), deadline, this);
  if (!status.ok()) {
    metrics_->Failed(model, "received", status);
    MutexLock lock(mutex_);
    entries_.erase(id);
  }
  return status;
}

MeteredTransferReceiver::Entry MeteredTransferReceiver::Find(TransferId id) {
  MutexLock lock(mutex_);
  const auto it = entries_.find(id);
  return it == entries_.end() ? Entry{} : it->second;
}

void MeteredTransferReceiver::OnReceived(TransferId id, const std::string& payload,
                                         const TransferStats& stats) {
  const Entry entry = Find(id);
  if (entry.observer == nullptr) return;
  metrics_->Completed(entry.model, "received", stats.bytes, clock_->Now() - entry.expected_at);
  entry.observer->OnReceived(id, payload, stats);
}

void MeteredTransferReceiver::OnFailed(TransferId id, const absl::Status& status) {
  const Entry entry = Find(id);
  if (entry.observer == nullptr) return;
  metrics_->Failed(entry.model, "received", status);
  entry.observer->OnFailed(id, status);
}

void MeteredTransferReceiver::OnQuiescent(TransferId id) {
  const Entry entry = Find(id);
  {
    MutexLock lock(mutex_);
    entries_.erase(id);
  }
  if (entry.observer != nullptr) entry.observer->OnQuiescent(id);
}

}  // namespace baton::worker
