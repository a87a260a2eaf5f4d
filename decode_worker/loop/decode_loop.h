// The engine loop of a decode or combined worker. decode_loop_factory.h says what it does; this
// header is for the factory and for tests that drive the loop turn by turn.
//
// A transfer of D, and its blocks:
//   expected   with the start: blocks for prompt and first output are reserved; those that KV
//   arrives
//              in carry the wire flag
//   received   the sequence runs behind P's token; until its first step is done P keeps its lease
//   confirmed  that step is done (or nobody reads the tokens, and no step is near): P is told
//   failed or cancelled   the blocks are quarantined until quiescent
//   quiescent  the flags are dropped
#ifndef BATON_DECODE_WORKER_LOOP_DECODE_LOOP_H_
#define BATON_DECODE_WORKER_LOOP_DECODE_LOOP_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "decode_worker/loop/decode_loop_factory.h"
#include "kvtransfer/transfer.h"
#include "worker/loop/engine_loop_base.h"

namespace baton::decode_worker {

class DecodeLoop : public worker::EngineLoopBase, private kvtransfer::TransferReceiverObserver {
 public:
  explicit DecodeLoop(const DecodeLoopOptions& options);
  ~DecodeLoop() override;

 private:
  struct Transfer {
    // The sequence, until it has ended or its progress was confirmed.
    std::optional<worker::SequenceKey> key;
    SequenceId sequence;
    std::vector<BlockId> wired;  // Until quiescent.
    bool received = false;
    bool quarantined = false;
    bool quiescent = false;
  };

  // EngineLoopBase.
  void OnStart(worker::StartSequence start) override;
  void OnComputed(Active& active, int32_t num_computed) override;
  void OnSampled(Active& active, const Sampled& sampled) override;
  void OnTransferEvent(const worker::TransferEvent& event) override;
  void OnEnding(Active& active) override;
  bool transfers_left() const override { return !transfers_.empty(); }

  // TransferReceiverObserver; called on the transfer's threads.
  void OnReceived(TransferId id, const std::string& payload,
                  const kvtransfer::TransferStats& stats) override;
  void OnFailed(TransferId id, const absl::Status& status) override;
  void OnQuiescent(TransferId id) override;

  void StartGenerate(worker::StartSequence start);
  void StartReserve(worker::StartSequence start);
  absl::Status Expect(const worker::StartSequence& start, SequenceId id);
  void Join(Active& active, Transfer& transfer, const std::string& payload);
  void Confirm(Active& active);
  // Forgets a transfer that nothing is left to say about.
  void EraseIfOver(TransferId id);
  void OnQuiescentEvent(TransferId id, Transfer& transfer);

  kvtransfer::TransferReceiver* const receiver_;
  // Until quiescent, and confirmed or cancelled.
  std::map<TransferId, Transfer> transfers_;
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_LOOP_DECODE_LOOP_H_
