#include "decode_worker/loop/decode_loop.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "engine/kvcache/block_table.h"
#include "engine/kvcache/handoff_payload.h"

namespace baton::decode_worker {

using worker::StartMode;
using worker::TransferEvent;

DecodeLoop::DecodeLoop(const DecodeLoopOptions& options)
    : EngineLoopBase(options.loop), receiver_(options.receiver) {}

DecodeLoop::~DecodeLoop() { Stop(); }

void DecodeLoop::OnStart(worker::StartSequence start) {
  if (start.mode == StartMode::kGenerate) {
    StartGenerate(std::move(start));
  } else if (start.mode == StartMode::kReserve && receiver_ != nullptr) {
    StartReserve(std::move(start));
  } else {
    Refuse(start.key, absl::InvalidArgumentError("mode: not one of this worker"));
  }
}

void DecodeLoop::StartGenerate(worker::StartSequence start) {
  if (RefusedAsFull(start)) return;
  SequenceSpec spec = MakeSpec(start, start.initial_credits);
  const absl::Status valid = engine().Validate(spec);
  if (!valid.ok()) {
    Refuse(start.key, valid);
    return;
  }
  AddActive(start, engine().Add(std::move(spec)));
}

void DecodeLoop::StartReserve(worker::StartSequence start) {
  SequenceSpec spec = MakeSpec(start, start.initial_credits);
  const absl::Status valid = engine().Validate(spec);
  if (!valid.ok()) {
    Refuse(start.key, valid);
    return;
  }
  if (transfers_.contains(start.transfer_id)) {
    Refuse(start.key, absl::AlreadyExistsError(absl::StrCat("transfer ", start.transfer_id.value)));
    return;
  }
  const int32_t output_tokens = options().limits.reserved_output_tokens > 0
                                    ? options().limits.reserved_output_tokens
                                    : options().kv.block_tokens;
  const absl::StatusOr<SequenceId> id = engine().Reserve(std::move(spec), output_tokens);
  if (!id.ok()) {
    Refuse(start.key, id.status());
    return;
  }
  const absl::Status expected = Expect(start, *id);
  if (!expected.ok()) {
    engine().Remove(*id);
    Refuse(start.key, expected);
    return;
  }
  Active& active = AddActive(start, *id);
  active.transfer = start.transfer_id;
  Say(worker::Reserved{start.key});
}

absl::Status DecodeLoop::Expect(const worker::StartSequence& start, SequenceId id) {
  const Sequence* sequence = engine().Find(id);
  const int32_t num_blocks =
      BlocksForTokens(static_cast<int64_t>(sequence->tokens.size()), options().kv.block_tokens);
  Transfer transfer;
  transfer.key = start.key;
  transfer.sequence = id;
  transfer.wired.assign(sequence->block_table.begin(), sequence->block_table.begin() + num_blocks);
  std::vector<kvtransfer::DestinationBlock> destinations;
  destinations.reserve(num_blocks);
  for (int32_t i = 0; i < num_blocks; ++i) {
    destinations.push_back({.logical_block = static_cast<uint32_t>(i),
                            .bytes = options().kv.Block(transfer.wired[i])});
  }
  const TimePoint deadline =
      std::min(start.deadline, SaturatingAdd(Now(), options().limits.transfer_limit));
  absl::Status status =
      receiver_->Expect(start.transfer_id, start.model, std::move(destinations), deadline, this);
  if (!status.ok()) return status;
  pool().AddWire(transfer.wired, start.transfer_id.value);
  engine().SetWired(id, true);
  transfers_[start.transfer_id] = std::move(transfer);
  return absl::OkStatus();
}

void DecodeLoop::Join(Active& active, Transfer& transfer, const std::string& payload) {
  transfer.received = true;
  const absl::StatusOr<HandoffPayload> handoff = DecodeHandoffPayload(payload);
  if (!handoff.ok()) {
    EndWithError(active, absl::InternalError(handoff.status().message()));
    return;
  }
  const Sequence* sequence = engine().Find(active.id);
  if (handoff->num_tokens != sequence->tokens.size()) {
    EndWithError(active, absl::InternalError(absl::StrCat("hand-over: KV of ", handoff->num_tokens,
                                                          " tokens for a sequence of ",
                                                          sequence->tokens.size())));
    return;
  }
  if (!handoff->finite) {
    EndWithError(active, absl::InternalError("hand-over: the first token's logits hold a NaN"));
    return;
  }
  const std::optional<FinishReason> finish = engine().Join(active.id, handoff->first_token_id);
  if (finish.has_value()) {
    End(active, ToEndReason(*finish));
    return;
  }
  // Paused from the start: its first step may be far away, and P's lease would wait for a reader.
  if (!engine().Find(active.id)->has_credit()) Confirm(active);
}

void DecodeLoop::Confirm(Active& active) {
  const TransferId id = *active.transfer;
  active.transfer.reset();
  transfers_.at(id).key.reset();
  receiver_->ConfirmProgress(id);
  EraseIfOver(id);
}

void DecodeLoop::OnComputed(Active& active, int32_t num_computed) {
  if (active.transfer.has_value()) Confirm(active);
}

void DecodeLoop::OnSampled(Active& active, const Sampled& sampled) {
  Say(worker::TokenOutput{
      .key = active.key, .index = static_cast<uint32_t>(sampled.index), .token = sampled.token});
  if (sampled.finish.has_value()) End(active, ToEndReason(*sampled.finish));
}

void DecodeLoop::OnEnding(Active& active) {
  if (!active.transfer.has_value()) return;
  const TransferId id = *active.transfer;
  active.transfer.reset();
  Transfer& transfer = transfers_.at(id);
  transfer.key.reset();
  // Also when it has failed already: then the id is unknown and nothing happens. After OnReceived
  // it gives up P's lease.
  receiver_->Cancel(id);
  if (!transfer.received && !transfer.quiescent) {
    transfer.quarantined = true;
    pool().AddQuarantine(transfer.wired, id.value);
  }
  EraseIfOver(id);
}

void DecodeLoop::EraseIfOver(TransferId id) {
  const auto it = transfers_.find(id);
  if (it->second.quiescent && !it->second.key.has_value()) transfers_.erase(it);
}

void DecodeLoop::OnQuiescentEvent(TransferId id, Transfer& transfer) {
  transfer.quiescent = true;
  if (transfer.key.has_value() && !transfer.received) {
    // OnFailed should have come first; the sequence must not wait for ever.
    pool().DropWire(transfer.wired, id.value);
    transfer.wired.clear();
    EndAfterTransferFailure(*FindActive(*transfer.key), absl::UnavailableError("ended without KV"));
    return;
  }
  if (transfer.quarantined) pool().DropQuarantine(transfer.wired, id.value);
  pool().DropWire(transfer.wired, id.value);
  transfer.wired.clear();
  engine().SetWired(transfer.sequence, false);
  EraseIfOver(id);
}

void DecodeLoop::OnTransferEvent(const TransferEvent& event) {
  const auto it = transfers_.find(event.id);
  if (it == transfers_.end()) {
    LogWarning("event of an unknown transfer", {{"transfer", event.id.value}});
    return;
  }
  Transfer& transfer = it->second;
  switch (event.kind) {
    case TransferEvent::Kind::kReceived:
      // Without a key it was cancelled while the event was on its way.
      if (transfer.key.has_value()) {
        Active& active = *FindActive(*transfer.key);
        active.kv_bytes = event.stats.bytes;
        LogDebug("KV complete, the sequence joins", {{"transfer", event.id.value}});
        Join(active, transfer, event.payload);
      }
      break;
    case TransferEvent::Kind::kFailed:
      if (transfer.key.has_value()) {
        EndAfterTransferFailure(*FindActive(*transfer.key), event.status);
      }
      break;
    case TransferEvent::Kind::kQuiescent:
      OnQuiescentEvent(event.id, transfer);
      break;
    case TransferEvent::Kind::kDelivered:
    case TransferEvent::Kind::kReleased:
    case TransferEvent::Kind::kPairFailed:
      // Not events of a receiver.
      break;
  }
}

void DecodeLoop::OnReceived(TransferId id, const std::string& payload,
                            const kvtransfer::TransferStats& stats) {
  TransferEvent event;
  event.kind = TransferEvent::Kind::kReceived;
  event.id = id;
  event.payload = payload;
  event.stats = stats;
  inbox().Push(std::move(event));
}

void DecodeLoop::OnFailed(TransferId id, const absl::Status& status) {
  TransferEvent event;
  event.kind = TransferEvent::Kind::kFailed;
  event.id = id;
  event.status = OwnCopy(status);
  inbox().Push(std::move(event));
}

void DecodeLoop::OnQuiescent(TransferId id) {
  TransferEvent event;
  event.kind = TransferEvent::Kind::kQuiescent;
  event.id = id;
  inbox().Push(std::move(event));
}

std::unique_ptr<worker::EngineLoop> MakeDecodeLoop(const DecodeLoopOptions& options) {
  auto loop = std::make_unique<DecodeLoop>(options);
  loop->StartThread();
  return loop;
}

}  // namespace baton::decode_worker
