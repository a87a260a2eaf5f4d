// A hand-over without threads, for deterministic tests: nothing moves but in Pump(), and what moves
// next is drawn from a seed. It is as unkind as the contract of kvtransfer/transfer.h allows: it
// reads P's blocks as late as it may and checks that they still hold what was pushed; after a
// failure or a cancel it goes on writing garbage into D's blocks until OnQuiescent.
//
// Thread rule: one thread.
#ifndef BATON_WORKER_LOOP_TESTING_FAKE_TRANSFER_H_
#define BATON_WORKER_LOOP_TESTING_FAKE_TRANSFER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kvtransfer/coverage.h"
#include "kvtransfer/transfer.h"

namespace baton::worker {

class FakeTransfer {
 public:
  explicit FakeTransfer(uint32_t seed);

  kvtransfer::TransferSender* sender() { return &sender_; }
  kvtransfer::TransferReceiver* receiver() { return &receiver_; }

  // One random action. False when there is nothing to do.
  bool Pump();
  void PumpDry();

  // What the next Begin or Expect answers, once.
  void RefuseBegin(absl::Status status) { refuse_begin_ = std::move(status); }
  void RefuseExpect(absl::Status status) { refuse_expect_ = std::move(status); }
  // While held, nothing is copied or delivered; failures and quiescence go on.
  void HoldCopies(bool hold) { hold_copies_ = hold; }
  // Breaks a transfer at both ends; quiescence follows after a few pumps.
  void Fail(TransferId id, const absl::Status& status);
  // P's lease runs out.
  void ExpireLease(TransferId id);
  void FailPair(TransferId id, const absl::Status& status);
  // Chance in a thousand that a pump breaks a transfer instead.
  void set_failure_permille(uint32_t permille) { failure_permille_ = permille; }
  // Replaces the payload that D gets.
  void ReplacePayload(std::string payload) { payload_ = std::move(payload); }

  size_t transfers() const { return transfers_.size(); }
  uint64_t ranges_copied() const { return ranges_copied_; }
  // Of these, such that were a part of a block.
  uint64_t parts_copied() const { return parts_copied_; }
  int confirmed(TransferId id) const;
  bool cancelled_by_sender(TransferId id) const { return sender_cancels_.contains(id.value); }
  bool cancelled_by_receiver(TransferId id) const { return receiver_cancels_.contains(id.value); }
  // Source bytes that changed between Push and the copy or the end of the transfer.
  int violations() const { return violations_; }

 private:
  struct Pushed {
    kvtransfer::SourceRange range;
    std::vector<std::byte> bytes;  // At the time of Push.
  };
  // One transfer, from the first of Begin and Expect to OnQuiescent at both ends.
  struct Transfer {
    kvtransfer::TransferSenderObserver* sender = nullptr;  // Until quiescent there.
    kvtransfer::PeerAddress peer;
    std::vector<Pushed> pushed;
    size_t copied = 0;
    std::optional<std::string> payload;
    kvtransfer::TransferReceiverObserver* receiver = nullptr;  // Until quiescent there.
    std::map<uint32_t, absl::Span<std::byte>> destinations;
    std::optional<kvtransfer::Coverage> coverage;  // Of `destinations`, by what was copied.
    bool expected = false;
    bool received = false;
    bool delivered = false;
    bool released = false;
    bool broken = false;
    int lingering = 0;  // Pumps until quiescence once broken.
    uint64_t bytes = 0;
  };

  class Sender : public kvtransfer::TransferSender {
   public:
    explicit Sender(FakeTransfer* owner) : owner_(owner) {}
    absl::Status Begin(TransferId id, const std::string& model, const kvtransfer::PeerAddress& peer,
                       TimePoint deadline, kvtransfer::TransferSenderObserver* observer) override;
    void Push(TransferId id, std::vector<kvtransfer::SourceRange> ranges) override;
    void Finish(TransferId id, std::string payload) override;
    void Cancel(TransferId id) override;
    void Shutdown() override;

   private:
    FakeTransfer* const owner_;
  };
  class Receiver : public kvtransfer::TransferReceiver {
   public:
    explicit Receiver(FakeTransfer* owner) : owner_(owner) {}
    absl::Status Expect(TransferId id, const std::string& model,
                        std::vector<kvtransfer::DestinationBlock> blocks, TimePoint deadline,
                        kvtransfer::TransferReceiverObserver* observer) override;
    void Cancel(TransferId id) override;
    void ConfirmProgress(TransferId id) override;
    void Shutdown() override;

   private:
    FakeTransfer* const owner_;
  };

  // Each returns whether it did something.
  bool Act(TransferId id, Transfer& transfer);
  bool Linger(TransferId id, Transfer& transfer);
  bool CopyOne(Transfer& transfer);
  bool Deliver(TransferId id, Transfer& transfer);
  void Break(TransferId id, Transfer& transfer, const absl::Status& status, bool tell_sender,
             bool tell_receiver);
  void CheckSources(const Transfer& transfer);
  void EraseIfOver(TransferId id);
  uint32_t Draw(uint32_t below) { return below == 0 ? 0 : random_() % below; }

  Sender sender_{this};
  Receiver receiver_{this};
  std::mt19937 random_;
  std::map<TransferId, Transfer> transfers_;
  std::map<uint64_t, int> confirmed_;
  std::map<uint64_t, int> sender_cancels_;
  std::map<uint64_t, int> receiver_cancels_;
  std::optional<absl::Status> refuse_begin_;
  std::optional<absl::Status> refuse_expect_;
  std::optional<std::string> payload_;
  bool hold_copies_ = false;
  uint32_t failure_permille_ = 0;
  uint64_t ranges_copied_ = 0;
  uint64_t parts_copied_ = 0;
  int violations_ = 0;
};

}  // namespace baton::worker

#endif  // BATON_WORKER_LOOP_TESTING_FAKE_TRANSFER_H_
