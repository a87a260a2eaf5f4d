// Chunks of D: judging what P announces, granting slots, scattering what arrives.
#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "kvtransfer/range_copy.h"
#include "kvtransfer/receiver_core.h"

namespace baton::kvtransfer {

void ReceiverCore::OnMessage(uint64_t pair_serial, ControlMessage message) {
  Pair* pair = FindPair(pair_serial);
  if (pair == nullptr || pair->state == PairState::kClosing || pair->state == PairState::kRefused) {
    return;
  }
  if (auto* hello = std::get_if<SenderHello>(&message)) {
    OnHello(pair, *hello);
  } else if (pair->state == PairState::kHello) {
    FailPair(pair, absl::InternalError("the prefill worker spoke before its hello"));
  } else if (auto* ready = std::get_if<ChunkReady>(&message)) {
    OnReady(pair, *ready);
  } else if (auto* final = std::get_if<TransferFinal>(&message)) {
    OnFinal(pair, *final);
  } else if (auto* abort = std::get_if<TransferAbort>(&message)) {
    OnAbort(pair, *abort);
  } else {
    FailPair(pair, absl::InternalError("the prefill worker sent a message of the wrong direction"));
  }
}

absl::StatusOr<ReceiverCore::Transfer*> ReceiverCore::Bind(Pair* pair, TransferId id) {
  Transfer* transfer = Find(id);
  if (transfer == nullptr) {
    return absl::NotFoundError("transfer is not expected (cancelled, failed or never granted)");
  }
  if (transfer->pair_serial == pair->serial) return transfer;
  if (transfer->pair_serial != 0) {
    return absl::FailedPreconditionError("transfer belongs to another prefill worker");
  }
  if (!pair->layouts.contains(transfer->model)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the prefill worker has no KV layout of model '", transfer->model, "'"));
  }
  transfer->pair_serial = pair->serial;
  pair->transfers.insert(id);
  return transfer;
}

void ReceiverCore::OnReady(Pair* pair, const ChunkReady& message) {
  const uint64_t sequence_number = message.sequence_number;
  if (sequence_number != pair->next_sequence_number) {
    FailPair(pair, absl::InternalError(absl::StrCat("READY of chunk ", sequence_number, ", chunk ",
                                                    pair->next_sequence_number, " is next")));
    return;
  }
  if (pair->chunks.size() >= kChunksAnnouncedMax || message.ranges.size() > kChunkRangesMax) {
    FailPair(pair, absl::ResourceExhaustedError(absl::StrCat(
                       "chunk ", sequence_number, " has ", message.ranges.size(), " ranges and ",
                       pair->chunks.size(), " chunks are announced; the limits are ",
                       kChunkRangesMax, " and ", kChunksAnnouncedMax)));
    return;
  }
  ++pair->next_sequence_number;
  LogDebug("KV chunk announced", {{"chunk", sequence_number}});
  absl::StatusOr<Transfer*> bound = Bind(pair, message.transfer_id);
  if (!bound.ok()) {
    pair->link->Send(TransferFailed{message.transfer_id, std::string(bound.status().message())});
    pair->link->Send(ChunkDrop{sequence_number});
    return;
  }
  Transfer* transfer = *bound;
  absl::Status status;
  absl::StatusOr<std::vector<absl::Span<std::byte>>> destinations;
  if (transfer->final_received) {
    status = absl::InvalidArgumentError("a chunk was announced after the final message");
  } else if (message.total_bytes == 0 || message.total_bytes > staging_.slot_bytes()) {
    status = absl::InvalidArgumentError(absl::StrCat(
        "a chunk of ", message.total_bytes, " bytes; staging slots have ", staging_.slot_bytes()));
  } else {
    destinations = transfer->coverage.Claim(message.ranges, message.total_bytes);
    status = destinations.status();
  }
  if (!status.ok()) {
    FailTransfer(transfer, Annotate(status, absl::StrCat("chunk ", sequence_number)),
                 TellPeer::kFailed);
    pair->link->Send(ChunkDrop{sequence_number});
    Grant();
    return;
  }
  ++transfer->chunks_announced;
  pair->chunks[sequence_number] = Chunk{.transfer_serial = transfer->serial,
                                        .transfer_id = transfer->id,
                                        .destinations = *std::move(destinations),
                                        .bytes = message.total_bytes,
                                        .checksum = message.checksum,
                                        .slot = StagingSlotId()};
  pair->waiting.push_back(sequence_number);
  Grant();
}

void ReceiverCore::DropChunk(Pair* pair, uint64_t sequence_number) {
  pair->chunks.erase(sequence_number);
  std::erase(pair->waiting, sequence_number);
  pair->link->Send(ChunkDrop{sequence_number});
}

void ReceiverCore::OnFinal(Pair* pair, const TransferFinal& message) {
  absl::StatusOr<Transfer*> bound = Bind(pair, message.transfer_id);
  if (!bound.ok()) {
    pair->link->Send(TransferFailed{message.transfer_id, std::string(bound.status().message())});
    return;
  }
  Transfer* transfer = *bound;
  absl::Status status;
  if (transfer->final_received) {
    status = absl::InvalidArgumentError("final message twice");
  } else if (message.num_chunks != transfer->chunks_announced) {
    status = absl::InvalidArgumentError(
        absl::StrCat("the final message counts ", message.num_chunks, " chunks, ",
                     transfer->chunks_announced, " were announced"));
  } else if (message.payload.size() > kTransferPayloadBytesMax) {
    status = absl::InvalidArgumentError(absl::StrCat("payload of ", message.payload.size(),
                                                     " bytes, at most ", kTransferPayloadBytesMax));
  } else {
    // All ranges are known now: a hole can be reported without waiting for bytes.
    status = transfer->coverage.CheckComplete();
  }
  if (!status.ok()) {
    FailTransfer(transfer, status, TellPeer::kFailed);
    Grant();
    return;
  }
  transfer->final_received = true;
  transfer->payload = message.payload;
  CheckReceived(transfer);
}

void ReceiverCore::OnAbort(Pair* pair, const TransferAbort& message) {
  auto held = held_.find(message.transfer_id);
  if (held != held_.end() && held->second.pair_serial == pair->serial) held_.erase(held);
  absl::StatusOr<Transfer*> bound = Bind(pair, message.transfer_id);
  if (!bound.ok()) return;
  FailTransfer(*bound, absl::AbortedError(absl::StrCat("by the prefill worker: ", message.reason)),
               TellPeer::kNothing);
  Grant();
}

bool ReceiverCore::MayTakeSlot(const Pair& pair) const {
  // Pairs share the pool by dynamic thresholds (Choudhury and Hahne, 1998): a pair may hold at most
  // twice what is free. Alone it gets two thirds, and a peer whose chunks stay cannot take the
  // rest.
  const uint32_t free = staging_.num_free();
  return free > 0 && (pair.slots_held == 0 || pair.slots_held < 2 * free);
}

void ReceiverCore::Grant() {
  // As on the other side, pairs take turns.
  bool progress = true;
  while (progress) {
    progress = false;
    std::vector<uint64_t> order;
    for (auto it = pairs_.upper_bound(last_granted_pair_); it != pairs_.end(); ++it) {
      order.push_back(it->first);
    }
    for (auto it = pairs_.begin(); it != pairs_.upper_bound(last_granted_pair_); ++it) {
      order.push_back(it->first);
    }
    for (uint64_t serial : order) {
      Pair* pair = FindPair(serial);
      if (pair->state != PairState::kOpen || pair->waiting.empty()) continue;
      if (!MayTakeSlot(*pair)) continue;
      const std::optional<StagingSlotId> slot = staging_.Acquire();
      CHECK(slot.has_value());
      const uint64_t sequence_number = pair->waiting.front();
      pair->waiting.pop_front();
      last_granted_pair_ = serial;
      progress = true;
      Post(pair, sequence_number, *slot);
    }
  }
}

void ReceiverCore::Post(Pair* pair, uint64_t sequence_number, StagingSlotId slot) {
  Chunk& chunk = pair->chunks.at(sequence_number);
  chunk.posted = true;
  chunk.slot = slot;
  chunk.since = setup_.clock->Now();
  ++pair->slots_held;
  pair->end->PostReceive(
      sequence_number, staging_.bytes(slot).subspan(0, chunk.bytes),
      [this, core = core_, serial = pair->serial, sequence_number](const absl::Status& status) {
        core->Post([this, serial, sequence_number, own = OwnCopy(status)] {
          OnReceived(serial, sequence_number, own);
        });
      });
  pair->link->Send(ChunkGo{sequence_number});
}

void ReceiverCore::OnReceived(uint64_t pair_serial, uint64_t sequence_number,
                              const absl::Status& status) {
  Pair* pair = FindPair(pair_serial);
  if (pair == nullptr) return;
  if (pair->state == PairState::kClosing) {
    if (RetireIfQuiescent(pair)) Grant();
    return;
  }
  if (!status.ok()) {
    FailPair(pair, Annotate(status, absl::StrCat("receiving chunk ", sequence_number)));
    return;
  }
  pair->last_progress = setup_.clock->Now();
  auto it = pair->chunks.find(sequence_number);
  CHECK(it != pair->chunks.end()) << "chunk " << sequence_number << " was received twice";
  Chunk chunk = std::move(it->second);
  pair->chunks.erase(it);
  if (chunk.orphaned) {
    ReleaseSlot(pair, &chunk);
    Grant();
    return;
  }
  LogDebug("KV chunk arrived", {{"chunk", sequence_number}});
  Scatter(pair, sequence_number, &chunk);
}

void ReceiverCore::Scatter(Pair* pair, uint64_t sequence_number, Chunk* chunk) {
  const absl::StatusOr<uint64_t> checksum = ScatterRanges(
      setup_.device, staging_.bytes(chunk->slot).subspan(0, chunk->bytes), chunk->destinations);
  ReleaseSlot(pair, chunk);
  if (!checksum.ok()) {
    FailPair(pair, Annotate(checksum.status(), "scattering KV"));
    return;
  }
  if (*checksum != chunk->checksum) {
    // The wire said OK: nothing that it brings can be trusted.
    FailPair(pair, absl::DataLossError(absl::StrCat(
                       "chunk ", sequence_number,
                       " arrived with another checksum than the prefill worker announced")));
    return;
  }
  LogDebug("KV chunk scattered", {{"chunk", sequence_number}});
  pair->link->Send(ChunkDone{sequence_number, *checksum});
  Transfer* transfer = Find(chunk->transfer_id);
  ++transfer->received.chunks;
  transfer->received.bytes += chunk->bytes;
  if (setup_.counters != nullptr) {
    ++setup_.counters->chunks;
    setup_.counters->bytes += chunk->bytes;
  }
  CheckReceived(transfer);
  Grant();
}

void ReceiverCore::ReleaseSlot(Pair* pair, Chunk* chunk) {
  staging_.Release(chunk->slot);
  CHECK_GT(pair->slots_held, 0u);
  --pair->slots_held;
}

}  // namespace baton::kvtransfer
