// Decorates TransferSender and TransferReceiver with the hand-over metrics (canonical.h): bytes,
// duration and failures by model and direction. Everything else passes through unchanged.
//
// Thread rule: thread-safe, as what they decorate. They are the observers of every transfer begun
// through them and must live until the decorated object has been shut down.
#ifndef BATON_WORKER_METERED_TRANSFER_H_
#define BATON_WORKER_METERED_TRANSFER_H_

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/metrics/metrics.h"
#include "kvtransfer/transfer.h"

namespace baton::worker {

// The hand-over families of one registry.
class TransferMetrics {
 public:
  explicit TransferMetrics(MetricsRegistry& registry);
  // `direction` is "sent" or "received".
  void Completed(const std::string& model, absl::string_view direction, uint64_t bytes,
                 Duration took);
  void Failed(const std::string& model, absl::string_view direction, const absl::Status& status);

 private:
  CounterFamily& bytes_;
  HistogramFamily& seconds_;
  CounterFamily& failures_;
};

class MeteredTransferSender final : public kvtransfer::TransferSender,
                                    public kvtransfer::TransferSenderObserver {
 public:
  MeteredTransferSender(kvtransfer::TransferSender* sender, TransferMetrics* metrics,
                        const Clock* clock)
      : sender_(sender), metrics_(metrics), clock_(clock) {}

  absl::Status Begin(TransferId id, const std::string& model, const kvtransfer::PeerAddress& peer,
                     TimePoint deadline, kvtransfer::TransferSenderObserver* observer) override;
  void Push(TransferId id, std::vector<kvtransfer::SourceRange> ranges) override;
  void Finish(TransferId id, std::string payload) override;
  void Cancel(TransferId id) override;
  void Shutdown() override { sender_->Shutdown(); }

  void OnDelivered(TransferId id, const kvtransfer::TransferStats& stats) override;
  void OnReleased(TransferId id) override;
  void OnFailed(TransferId id, const absl::Status& status) override;
  void OnQuiescent(TransferId id) override;
  void OnPairFailed(const kvtransfer::PeerAddress& peer, const absl::Status& status) override;

 private:
  struct Entry {
    std::string model;
    kvtransfer::TransferSenderObserver* observer = nullptr;
    TimePoint first_push = kNever;
    bool delivered = false;
  };
  kvtransfer::TransferSenderObserver* Find(TransferId id, Entry* copy = nullptr) EXCLUDES(mutex_);

  kvtransfer::TransferSender* const sender_;
  TransferMetrics* const metrics_;
  const Clock* const clock_;
  Mutex mutex_;
  // Bounded by the sender's own limit of transfers.
  absl::flat_hash_map<TransferId, Entry> entries_ GUARDED_BY(mutex_);
};

class MeteredTransferReceiver final : public kvtransfer::TransferReceiver,
                                      public kvtransfer::TransferReceiverObserver {
 public:
  MeteredTransferReceiver(kvtransfer::TransferReceiver* receiver, TransferMetrics* metrics,
                          const Clock* clock)
      : receiver_(receiver), metrics_(metrics), clock_(clock) {}

  absl::Status Expect(TransferId id, const std::string& model,
                      std::vector<kvtransfer::DestinationBlock> blocks, TimePoint deadline,
                      kvtransfer::TransferReceiverObserver* observer) override;
  void Cancel(TransferId id) override { receiver_->Cancel(id); }
  void ConfirmProgress(TransferId id) override { receiver_->ConfirmProgress(id); }
  void Shutdown() override { receiver_->Shutdown(); }

  void OnReceived(TransferId id, const std::string& payload,
                  const kvtransfer::TransferStats& stats) override;
  void OnFailed(TransferId id, const absl::Status& status) override;
  void OnQuiescent(TransferId id) override;

 private:
  struct Entry {
    std::string model;
    kvtransfer::TransferReceiverObserver* observer = nullptr;
    TimePoint expected_at;
  };
  Entry Find(TransferId id) EXCLUDES(mutex_);

  kvtransfer::TransferReceiver* const receiver_;
  TransferMetrics* const metrics_;
  const Clock* const clock_;
  Mutex mutex_;
  absl::flat_hash_map<TransferId, Entry> entries_ GUARDED_BY(mutex_);
};

}  // namespace baton::worker

#endif  // BATON_WORKER_METERED_TRANSFER_H_
