// Chunks of P: gathering and announcing them, and what D says about them.
#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "kvtransfer/range_copy.h"
#include "kvtransfer/sender_core.h"

namespace baton::kvtransfer {

void SenderCore::OnMessage(uint64_t pair_serial, ControlMessage message) {
  Pair* pair = FindPair(pair_serial);
  if (pair == nullptr || pair->state == PairState::kClosing) return;
  if (auto* hello = std::get_if<ReceiverHello>(&message)) {
    OnHello(pair, *hello);
  } else if (pair->state != PairState::kOpen && pair->state != PairState::kConnecting) {
    FailPair(pair, absl::InternalError("the decode worker spoke before its hello"));
  } else if (auto* go = std::get_if<ChunkGo>(&message)) {
    OnGo(pair, go->sequence_number);
  } else if (auto* done = std::get_if<ChunkDone>(&message)) {
    OnDone(pair, *done);
  } else if (auto* drop = std::get_if<ChunkDrop>(&message)) {
    OnDrop(pair, drop->sequence_number);
  } else if (auto* failed = std::get_if<TransferFailed>(&message)) {
    OnPeerFailed(pair, *failed);
  } else if (auto* renew = std::get_if<LeaseRenew>(&message)) {
    OnRenew(pair, *renew);
  } else if (auto* release = std::get_if<LeaseRelease>(&message)) {
    OnRelease(pair, *release);
  } else {
    FailPair(pair, absl::InternalError("the decode worker sent a message of the wrong direction"));
  }
}

bool SenderCore::MayTakeSlot(const Pair& pair) const {
  // Pairs share the pool by dynamic thresholds (Choudhury and Hahne, 1998): a pair may hold at most
  // twice what is free. Alone it gets two thirds, and a peer whose chunks stay cannot take the
  // rest.
  const uint32_t free = staging_.num_free();
  return free > 0 && (pair.slots_held == 0 || pair.slots_held < 2 * free);
}

void SenderCore::Pump() {
  // Pairs take turns, starting behind the one that was served last.
  bool progress = true;
  while (progress) {
    progress = false;
    std::vector<uint64_t> order;
    for (auto it = pairs_.upper_bound(last_pumped_pair_); it != pairs_.end(); ++it) {
      order.push_back(it->first);
    }
    for (auto it = pairs_.begin(); it != pairs_.upper_bound(last_pumped_pair_); ++it) {
      order.push_back(it->first);
    }
    for (uint64_t serial : order) {
      Pair* pair = FindPair(serial);
      if (pair == nullptr || pair->state != PairState::kOpen || pair->turns.empty()) continue;
      const TransferId next = pair->turns.front();
      const bool needs_slot = !Find(next)->pending.empty();
      if (needs_slot && !MayTakeSlot(*pair)) continue;
      AnnounceNext(pair);
      progress = true;
      if (needs_slot) last_pumped_pair_ = serial;
    }
  }
}

void SenderCore::AnnounceNext(Pair* pair) {
  Transfer* transfer = Find(pair->turns.front());
  pair->turns.pop_front();
  transfer->queued = false;
  if (!transfer->pending.empty() && !AnnounceChunk(pair, transfer)) return;
  SendFinalIfDue(pair, transfer);
  if (!transfer->pending.empty()) QueueTurn(transfer, pair);
}

bool SenderCore::AnnounceChunk(Pair* pair, Transfer* transfer) {
  const std::optional<StagingSlotId> slot = staging_.Acquire();
  CHECK(slot.has_value());
  ChunkReady ready;
  ready.transfer_id = transfer->id;
  ready.sequence_number = pair->next_sequence_number++;
  std::vector<absl::Span<const std::byte>> sources;
  size_t num_consumed = 0;
  while (!transfer->pending.empty() && ready.total_bytes < pair->chunk_bytes_max &&
         sources.size() < kChunkRangesMax) {
    SourceRange& range = transfer->pending.front();
    const uint64_t take =
        std::min<uint64_t>(range.bytes.size(), pair->chunk_bytes_max - ready.total_bytes);
    ready.ranges.push_back({range.logical_block, range.offset, take});
    sources.push_back(range.bytes.subspan(0, take));
    ready.total_bytes += take;
    if (take == range.bytes.size()) {
      transfer->pending.pop_front();
      ++num_consumed;
    } else {
      range.offset += take;
      range.bytes.remove_prefix(take);
    }
  }
  const absl::StatusOr<uint64_t> checksum =
      GatherRanges(setup_.device, sources, staging_.bytes(*slot));
  if (!checksum.ok()) {
    staging_.Release(*slot);
    FailPair(pair, Annotate(checksum.status(), "gathering KV"));
    return false;
  }
  ready.checksum = *checksum;
  active_->Gathered(transfer->id, num_consumed);
  pair->chunks[ready.sequence_number] = Chunk{.transfer_serial = transfer->serial,
                                              .transfer_id = transfer->id,
                                              .slot = *slot,
                                              .bytes = ready.total_bytes,
                                              .checksum = ready.checksum,
                                              .since = setup_.clock->Now()};
  LogDebug("KV chunk gathered", {{"transfer", transfer->id.value},
                                 {"chunk", ready.sequence_number},
                                 {"bytes", ready.total_bytes}});
  ++pair->slots_held;
  ++transfer->chunks_announced;
  pair->link->Send(std::move(ready));
  return true;
}

void SenderCore::SendFinalIfDue(Pair* pair, Transfer* transfer) {
  if (!transfer->finished || transfer->final_sent || !transfer->pending.empty()) return;
  transfer->final_sent = true;
  pair->link->Send(
      TransferFinal{transfer->id, transfer->chunks_announced, std::move(transfer->payload)});
}

void SenderCore::OnGo(Pair* pair, uint64_t sequence_number) {
  auto it = pair->chunks.find(sequence_number);
  if (it == pair->chunks.end() || it->second.state != ChunkState::kReady) {
    FailPair(pair, absl::InternalError(absl::StrCat("GO for chunk ", sequence_number,
                                                    ", which was not announced")));
    return;
  }
  // Even if the transfer has ended: READY promised the send, and D's receive is posted.
  Chunk& chunk = it->second;
  const TimePoint now = setup_.clock->Now();
  LogDebug("KV chunk granted", {{"chunk", sequence_number}});
  chunk.state = ChunkState::kPosted;
  chunk.since = now;
  pair->last_progress = now;
  pair->end->PostSend(
      sequence_number, staging_.bytes(chunk.slot).subspan(0, chunk.bytes),
      [this, core = core_, serial = pair->serial, sequence_number](const absl::Status& status) {
        core->Post([this, serial, sequence_number, own = OwnCopy(status)] {
          OnSent(serial, sequence_number, own);
        });
      });
}

void SenderCore::OnSent(uint64_t pair_serial, uint64_t sequence_number,
                        const absl::Status& status) {
  Pair* pair = FindPair(pair_serial);
  if (pair == nullptr) return;
  if (pair->state == PairState::kClosing) {
    if (RetireIfQuiescent(pair)) Pump();
    return;
  }
  if (!status.ok()) {
    FailPair(pair, Annotate(status, absl::StrCat("sending chunk ", sequence_number)));
    return;
  }
  auto it = pair->chunks.find(sequence_number);
  CHECK(it != pair->chunks.end()) << "chunk " << sequence_number << " was sent twice";
  Chunk& chunk = it->second;
  const TimePoint now = setup_.clock->Now();
  LogDebug("KV chunk sent", {{"chunk", sequence_number}});
  ReleaseSlot(pair, &chunk);
  chunk.state = ChunkState::kSent;
  chunk.since = now;
  pair->last_progress = now;
  if (chunk.done_received || chunk.orphaned) pair->chunks.erase(it);
  Pump();
}

void SenderCore::OnDone(Pair* pair, const ChunkDone& message) {
  auto it = pair->chunks.find(message.sequence_number);
  if (it == pair->chunks.end()) {
    // Of a transfer that ended between D's DONE and now; otherwise it was never announced.
    if (message.sequence_number < pair->next_sequence_number) return;
    FailPair(pair, absl::InternalError(absl::StrCat("DONE for chunk ", message.sequence_number,
                                                    ", which was not announced")));
    return;
  }
  Chunk& chunk = it->second;
  if (chunk.state == ChunkState::kReady || chunk.done_received) {
    FailPair(pair, absl::InternalError(absl::StrCat("DONE for chunk ", message.sequence_number,
                                                    " twice or without GO")));
    return;
  }
  const bool matches = message.checksum == chunk.checksum;
  const uint64_t bytes = chunk.bytes;
  const TransferId id = chunk.transfer_id;
  const bool orphaned = chunk.orphaned;
  pair->last_progress = setup_.clock->Now();
  chunk.done_received = true;
  if (chunk.state == ChunkState::kSent) pair->chunks.erase(it);
  if (orphaned) return;
  Transfer* transfer = Find(id);
  if (!matches) {
    FailTransfer(transfer,
                 absl::DataLossError(absl::StrCat(
                     "the checksum of what the decode worker scattered differs from that of what "
                     "was gathered, chunk ",
                     message.sequence_number)),
                 true);
    return;
  }
  ++transfer->done.chunks;
  transfer->done.bytes += bytes;
  if (setup_.counters != nullptr) {
    ++setup_.counters->chunks;
    setup_.counters->bytes += bytes;
  }
}

void SenderCore::OnDrop(Pair* pair, uint64_t sequence_number) {
  auto it = pair->chunks.find(sequence_number);
  if (it == pair->chunks.end() || it->second.state != ChunkState::kReady) {
    FailPair(pair, absl::InternalError(absl::StrCat("DROP for chunk ", sequence_number,
                                                    ", which does not wait for GO")));
    return;
  }
  const bool orphaned = it->second.orphaned;
  const TransferId id = it->second.transfer_id;
  ReleaseSlot(pair, &it->second);
  pair->chunks.erase(it);
  pair->last_progress = setup_.clock->Now();
  // D says why before it says DROP; this is for a D that does not.
  if (!orphaned) {
    FailTransfer(Find(id), absl::AbortedError("the decode worker dropped a chunk"), true);
  }
  Pump();
}

void SenderCore::OnPeerFailed(Pair* pair, const TransferFailed& message) {
  if (!pair->transfers.contains(message.transfer_id)) return;
  FailTransfer(Find(message.transfer_id),
               absl::AbortedError(absl::StrCat("at the decode worker: ", message.reason)), false);
  Pump();
}

void SenderCore::OnRenew(Pair* pair, const LeaseRenew& message) {
  for (TransferId id : message.transfer_ids) {
    Transfer* transfer = Find(id);
    if (transfer == nullptr || transfer->peer.instance_id != pair->peer.instance_id) continue;
    if (transfer->leased) {
      leases_.Renew(id, setup_.clock->Now());
    } else if (transfer->pair_serial == pair->serial) {
      CheckDelivered(transfer);
    }
  }
  PublishLevels();
}

void SenderCore::OnRelease(Pair* pair, const LeaseRelease& message) {
  Transfer* transfer = Find(message.transfer_id);
  if (transfer == nullptr || transfer->peer.instance_id != pair->peer.instance_id) return;
  End(transfer, "",
      [id = transfer->id](TransferSenderObserver* observer) { observer->OnReleased(id); });
  Pump();
}

void SenderCore::ReleaseSlot(Pair* pair, Chunk* chunk) {
  staging_.Release(chunk->slot);
  CHECK_GT(pair->slots_held, 0u);
  --pair->slots_held;
}

}  // namespace baton::kvtransfer
