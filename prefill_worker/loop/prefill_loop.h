// The engine loop of a prefill worker. prefill_loop_factory.h says what it does; this header is for
// the factory and for tests that drive the loop turn by turn.
//
// A transfer of P, and its blocks:
//   begun      with the start; blocks that are complete are pushed and carry the wire flag, large
//              ones layer by layer while the step that fills them runs
//   finished   token 0 is drawn: the rest is pushed, the sequence leaves the engine, its blocks are
//              held for it until the KV is delivered
//   delivered  the blocks are leased
//   failed or cancelled   what was pushed is quarantined, the rest is free
//   quiescent  flags and lease are dropped: the blocks are free
#ifndef BATON_PREFILL_WORKER_LOOP_PREFILL_LOOP_H_
#define BATON_PREFILL_WORKER_LOOP_PREFILL_LOOP_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kvtransfer/transfer.h"
#include "prefill_worker/loop/prefill_loop_factory.h"
#include "worker/loop/engine_loop_base.h"

namespace baton::prefill_worker {

class PrefillLoop : public worker::EngineLoopBase, private kvtransfer::TransferSenderObserver {
 public:
  explicit PrefillLoop(const PrefillLoopOptions& options);
  ~PrefillLoop() override;

 private:
  struct Transfer {
    // The sequence, until it has ended.
    std::optional<worker::SequenceKey> key;
    // Pushed to D in order of logical block; they carry the wire flag until delivered or quiescent.
    std::vector<BlockId> pushed;
    // The last of them are filled by a step that runs: of those behind the first num_whole only
    // layers [0, num_layers) are pushed.
    size_t num_whole = 0;
    int32_t num_layers = 0;
    // Held for the sequence once it has left the engine, then for the lease.
    std::vector<BlockId> held;
    bool delivered = false;
    bool quarantined = false;  // Of `pushed`.
  };

  // EngineLoopBase.
  void OnStart(worker::StartSequence start) override;
  void OnComputed(Active& active, int32_t num_computed) override;
  void OnLayersReady(Active& active, int32_t num_computed, bool samples,
                     int32_t num_layers) override;
  bool WantsLayers(const Active& active, int32_t num_computed, bool samples) const override;
  void OnSampled(Active& active, const Sampled& sampled) override;
  void OnTransferEvent(const worker::TransferEvent& event) override;
  void OnEnding(Active& active) override;
  bool transfers_left() const override { return !transfers_.empty(); }

  // TransferSenderObserver; called on the transfer's threads.
  void OnDelivered(TransferId id, const kvtransfer::TransferStats& stats) override;
  void OnReleased(TransferId id) override;
  void OnFailed(TransferId id, const absl::Status& status) override;
  void OnQuiescent(TransferId id) override;
  void OnPairFailed(const kvtransfer::PeerAddress& peer, const absl::Status& status) override;

  // Pushes what was not pushed yet of the blocks up to logical block `end`: all of them, or layers
  // [0, num_layers) of those that a step is filling.
  void PushBlocks(const Active& active, int32_t end);
  void PushLayers(const Active& active, int32_t end, int32_t num_layers);
  // Logical blocks whose KV is complete at `num_computed` tokens; with the last of the prompt
  // (`samples`) also one that is not full.
  int32_t CompleteBlocks(int32_t num_computed, bool samples) const;
  void HandOver(Active& active, int32_t token_id);
  // Why token 0 ends the sequence, if it does.
  std::optional<worker::EndReason> EndOf(const Active& active, const Sampled& sampled) const;
  void OnDeliveredEvent(TransferId id, Transfer& transfer, uint64_t kv_bytes);
  void Quarantine(TransferId id, Transfer& transfer);
  void DropHeld(TransferId id, Transfer& transfer);

  kvtransfer::TransferSender* const sender_;
  std::map<TransferId, Transfer> transfers_;  // Until quiescent.
};

}  // namespace baton::prefill_worker

#endif  // BATON_PREFILL_WORKER_LOOP_PREFILL_LOOP_H_
