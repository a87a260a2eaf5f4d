#include "prefill_worker/loop/prefill_loop.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "engine/kvcache/block_table.h"
#include "engine/kvcache/handoff_payload.h"

namespace baton::prefill_worker {

using worker::EndReason;
using worker::StartMode;
using worker::TransferEvent;

namespace {

// Tokens of a sequence from which a step can have more KV of it than is pushed at a time; 0: never.
int32_t LayeredStepTokensMin(const PrefillLoopOptions& options) {
  const KvMemory& kv = options.loop.kv;
  if (options.sender == nullptr || kv.num_layers < 2 || kv.block_bytes == 0) return 0;
  const uint64_t blocks = options.loop.limits.layer_push_bytes_min / kv.block_bytes;
  // A block that is completed may have been begun by the step before.
  const uint64_t tokens = blocks * static_cast<uint64_t>(kv.block_tokens) + 1;
  return static_cast<int32_t>(std::min<uint64_t>(tokens, std::numeric_limits<int32_t>::max()));
}

}  // namespace

PrefillLoop::PrefillLoop(const PrefillLoopOptions& options)
    : EngineLoopBase(options.loop, LayeredStepTokensMin(options)), sender_(options.sender) {}

PrefillLoop::~PrefillLoop() { Stop(); }

void PrefillLoop::OnStart(worker::StartSequence start) {
  const bool hand_over = start.mode == StartMode::kPrefill;
  if ((!hand_over && start.mode != StartMode::kPrefillOnly) || (hand_over && sender_ == nullptr)) {
    Refuse(start.key, absl::InvalidArgumentError("mode: not one of a prefill worker"));
    return;
  }
  if (RefusedAsFull(start)) return;
  SequenceSpec spec = MakeSpec(start, kUnlimitedCredits);
  const absl::Status valid = engine().Validate(spec);
  if (!valid.ok()) {
    Refuse(start.key, valid);
    return;
  }
  // One token is drawn here; EndOf() knows the request's own limits.
  spec.max_tokens = static_cast<int32_t>(spec.token_ids.size()) - spec.num_prompt_tokens + 1;
  if (!hand_over) {
    AddActive(start, engine().Add(std::move(spec)));
    return;
  }
  absl::Status begun;
  if (transfers_.contains(start.transfer_id)) {
    begun = absl::AlreadyExistsError(absl::StrCat("transfer ", start.transfer_id.value));
  } else {
    begun = sender_->Begin(
        start.transfer_id, start.model,
        {.control_address = start.transfer_address, .instance_id = start.decode_instance_id},
        std::min(start.deadline, SaturatingAdd(Now(), options().limits.transfer_limit)), this);
  }
  if (!begun.ok()) {
    Refuse(start.key, begun);
    return;
  }
  Active& active = AddActive(start, engine().Add(std::move(spec)));
  active.transfer = start.transfer_id;
  transfers_[start.transfer_id].key = start.key;
}

void PrefillLoop::PushLayers(const Active& active, int32_t end, int32_t num_layers) {
  const KvMemory& kv = options().kv;
  Transfer& transfer = transfers_.at(*active.transfer);
  const size_t flagged = transfer.pushed.size();
  const std::vector<BlockId>& table = engine().Find(active.id)->block_table;
  CHECK_LE(end, static_cast<int32_t>(table.size()));
  if (static_cast<size_t>(end) > flagged) {
    transfer.pushed.assign(table.begin(), table.begin() + end);
    pool().AddWire(absl::MakeConstSpan(transfer.pushed).subspan(flagged), active.transfer->value);
  }
  std::vector<kvtransfer::SourceRange> ranges;
  for (size_t i = transfer.num_whole; i < transfer.pushed.size(); ++i) {
    const int32_t first = i < flagged ? transfer.num_layers : 0;
    CHECK_LE(first, num_layers);
    if (first == num_layers) continue;
    const uint64_t offset = static_cast<uint64_t>(first) * kv.layer_bytes();
    const uint64_t bytes = static_cast<uint64_t>(num_layers - first) * kv.layer_bytes();
    ranges.push_back({.logical_block = static_cast<uint32_t>(i),
                      .offset = offset,
                      .bytes = kv.Block(transfer.pushed[i]).subspan(offset, bytes)});
  }
  const bool whole = num_layers == kv.num_layers;
  transfer.num_layers = whole ? 0 : num_layers;
  if (whole) transfer.num_whole = transfer.pushed.size();
  if (!ranges.empty()) sender_->Push(*active.transfer, std::move(ranges));
}

void PrefillLoop::PushBlocks(const Active& active, int32_t end) {
  PushLayers(active, end, options().kv.num_layers);
}

int32_t PrefillLoop::CompleteBlocks(int32_t num_computed, bool samples) const {
  const int32_t block_tokens = options().kv.block_tokens;
  return samples ? BlocksForTokens(num_computed, block_tokens)
                 : FullBlocks(num_computed, block_tokens);
}

void PrefillLoop::OnComputed(Active& active, int32_t num_computed) {
  if (active.transfer.has_value()) PushBlocks(active, CompleteBlocks(num_computed, false));
}

bool PrefillLoop::WantsLayers(const Active& active, int32_t num_computed, bool samples) const {
  if (!active.transfer.has_value()) return false;
  const auto blocks = static_cast<uint64_t>(CompleteBlocks(num_computed, samples));
  const uint64_t whole = transfers_.at(*active.transfer).num_whole;
  // Else all goes at once when the step has ended.
  return blocks > whole &&
         (blocks - whole) * options().kv.block_bytes > options().limits.layer_push_bytes_min;
}

void PrefillLoop::OnLayersReady(Active& active, int32_t num_computed, bool samples,
                                int32_t num_layers) {
  const KvMemory& kv = options().kv;
  const Transfer& transfer = transfers_.at(*active.transfer);
  const int32_t end = CompleteBlocks(num_computed, samples);
  const uint64_t bytes = (static_cast<uint64_t>(end) - transfer.num_whole) *
                         static_cast<uint64_t>(num_layers - transfer.num_layers) * kv.layer_bytes();
  if (bytes < options().limits.layer_push_bytes_min && num_layers < kv.num_layers) return;
  PushLayers(active, end, num_layers);
}

std::optional<EndReason> PrefillLoop::EndOf(const Active& active, const Sampled& sampled) const {
  // The engine always ends here: it was asked for one token.
  CHECK(sampled.finish.has_value());
  if (*sampled.finish != FinishReason::kLength) return ToEndReason(*sampled.finish);
  const Sequence* sequence = engine().Find(active.id);
  if (active.mode == StartMode::kPrefillOnly ||
      static_cast<uint32_t>(sampled.index) + 1 >= active.max_tokens ||
      static_cast<int32_t>(sequence->tokens.size()) >= engine().context_tokens_max()) {
    return EndReason::kLength;
  }
  return std::nullopt;
}

void PrefillLoop::OnSampled(Active& active, const Sampled& sampled) {
  Say(worker::TokenOutput{
      .key = active.key, .index = static_cast<uint32_t>(sampled.index), .token = sampled.token});
  if (const std::optional<EndReason> reason = EndOf(active, sampled)) {
    End(active, *reason);
    return;
  }
  HandOver(active, sampled.token.token_id);
}

void PrefillLoop::HandOver(Active& active, int32_t token_id) {
  // The drawn token is the last of `tokens`; it has no KV.
  const int32_t num_tokens = static_cast<int32_t>(engine().Find(active.id)->tokens.size()) - 1;
  LogDebug("prompt computed", {{"transfer", active.transfer->value}, {"tokens", num_tokens}});
  PushBlocks(active, BlocksForTokens(num_tokens, options().kv.block_tokens));
  sender_->Finish(*active.transfer,
                  EncodeHandoffPayload({.num_tokens = static_cast<uint32_t>(num_tokens),
                                        .first_token_id = token_id,
                                        .finite = true}));
  transfers_.at(*active.transfer).held = DetachFromEngine(active);
}

void PrefillLoop::OnEnding(Active& active) {
  if (!active.transfer.has_value()) return;
  const TransferId id = *active.transfer;
  active.transfer.reset();
  Transfer& transfer = transfers_.at(id);
  transfer.key.reset();
  if (transfer.delivered) return;
  // Also when it has failed already: then the id is unknown and nothing happens.
  sender_->Cancel(id);
  Quarantine(id, transfer);
  DropHeld(id, transfer);
}

void PrefillLoop::Quarantine(TransferId id, Transfer& transfer) {
  if (transfer.quarantined) return;
  transfer.quarantined = true;
  pool().AddQuarantine(transfer.pushed, id.value);
}

void PrefillLoop::DropHeld(TransferId id, Transfer& transfer) {
  pool().DropHolder(transfer.held,
                    transfer.delivered ? BlockHolder::kLease : BlockHolder::kSequence, id.value);
  transfer.held.clear();
}

void PrefillLoop::OnDeliveredEvent(TransferId id, Transfer& transfer, uint64_t kv_bytes) {
  // Cancelled while the event was on its way: the quarantine ends with OnQuiescent.
  if (!transfer.key.has_value()) return;
  pool().AddHolder(transfer.held, BlockHolder::kLease, id.value);
  pool().DropHolder(transfer.held, BlockHolder::kSequence, id.value);
  // Every chunk was read and its delivery confirmed: only the lease is left.
  pool().DropWire(transfer.pushed, id.value);
  transfer.pushed.clear();
  transfer.delivered = true;
  End(*FindActive(*transfer.key), EndReason::kHandedOver, absl::OkStatus(), kv_bytes);
}

void PrefillLoop::OnTransferEvent(const TransferEvent& event) {
  if (event.kind == TransferEvent::Kind::kPairFailed) {
    SayPairFailed(event);
    return;
  }
  const auto it = transfers_.find(event.id);
  if (it == transfers_.end()) {
    LogWarning("event of an unknown transfer", {{"transfer", event.id.value}});
    return;
  }
  Transfer& transfer = it->second;
  switch (event.kind) {
    case TransferEvent::Kind::kDelivered:
      OnDeliveredEvent(event.id, transfer, event.stats.bytes);
      break;
    case TransferEvent::Kind::kFailed:
      if (transfer.key.has_value()) {
        EndAfterTransferFailure(*FindActive(*transfer.key), event.status);
      }
      break;
    case TransferEvent::Kind::kQuiescent:
      if (transfer.key.has_value()) {
        EndAfterTransferFailure(*FindActive(*transfer.key),
                                absl::UnavailableError("ended without delivery"));
      }
      if (transfer.quarantined) pool().DropQuarantine(transfer.pushed, event.id.value);
      pool().DropWire(transfer.pushed, event.id.value);
      DropHeld(event.id, transfer);
      transfers_.erase(it);
      break;
    case TransferEvent::Kind::kReleased:
    case TransferEvent::Kind::kReceived:
    case TransferEvent::Kind::kPairFailed:
      // A released lease ends with OnQuiescent, which follows at once.
      break;
  }
}

void PrefillLoop::OnDelivered(TransferId id, const kvtransfer::TransferStats& stats) {
  TransferEvent event;
  event.kind = TransferEvent::Kind::kDelivered;
  event.id = id;
  event.stats = stats;
  inbox().Push(std::move(event));
}

void PrefillLoop::OnReleased(TransferId id) {
  TransferEvent event;
  event.kind = TransferEvent::Kind::kReleased;
  event.id = id;
  inbox().Push(std::move(event));
}

void PrefillLoop::OnFailed(TransferId id, const absl::Status& status) {
  TransferEvent event;
  event.kind = TransferEvent::Kind::kFailed;
  event.id = id;
  event.status = OwnCopy(status);
  inbox().Push(std::move(event));
}

void PrefillLoop::OnQuiescent(TransferId id) {
  TransferEvent event;
  event.kind = TransferEvent::Kind::kQuiescent;
  event.id = id;
  inbox().Push(std::move(event));
}

void PrefillLoop::OnPairFailed(const kvtransfer::PeerAddress& peer, const absl::Status& status) {
  TransferEvent event;
  event.kind = TransferEvent::Kind::kPairFailed;
  event.peer = peer;
  event.status = OwnCopy(status);
  inbox().Push(std::move(event));
}

std::unique_ptr<worker::EngineLoop> MakePrefillLoop(const PrefillLoopOptions& options) {
  auto loop = std::make_unique<PrefillLoop>(options);
  loop->StartThread();
  return loop;
}

}  // namespace baton::prefill_worker
