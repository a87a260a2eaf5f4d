// Pairs of P: dialling, hello, connecting the wire, liveness, failure and quarantine.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "kvtransfer/hello.h"
#include "kvtransfer/sender_core.h"

namespace baton::kvtransfer {

SenderCore::Pair* SenderCore::FindPair(uint64_t serial) {
  auto it = pairs_.find(serial);
  return it == pairs_.end() ? nullptr : it->second.get();
}

SenderCore::Pair* SenderCore::LivePair(const PeerAddress& peer) {
  for (const auto& [serial, pair] : pairs_) {
    if (pair->state != PairState::kClosing && pair->peer.instance_id == peer.instance_id &&
        pair->peer.control_address == peer.control_address) {
      return pair.get();
    }
  }
  return nullptr;
}

absl::StatusOr<SenderCore::Pair*> SenderCore::OpenPair(const PeerAddress& peer) {
  if (Pair* pair = LivePair(peer)) return pair;
  if (pairs_.size() >= setup_.options.pairs_max) {
    Pair* idle = nullptr;
    for (const auto& [serial, pair] : pairs_) {
      const bool usable = pair->state != PairState::kClosing && pair->transfers.empty();
      if (usable && (idle == nullptr || pair->idle_since < idle->idle_since)) idle = pair.get();
    }
    if (idle != nullptr) ClosePair(idle, absl::CancelledError("idle, and another pair is needed"));
    if (pairs_.size() >= setup_.options.pairs_max) {
      return absl::ResourceExhaustedError(
          absl::StrCat("pairs_max (", setup_.options.pairs_max, ") pairs are in use"));
    }
  }
  auto owned = std::make_unique<Pair>();
  Pair* pair = owned.get();
  pair->serial = next_serial_++;
  pair->peer = peer;
  auto backoff = backoffs_.find({peer.control_address, peer.instance_id});
  pair->dial_at = backoff == backoffs_.end() ? setup_.clock->Now() : backoff->second.not_before;
  pairs_[pair->serial] = std::move(owned);
  return pair;
}

void SenderCore::Dial(Pair* pair) {
  const TimePoint now = setup_.clock->Now();
  std::shared_ptr<ControlLink> link = dialer_->Dial(pair->peer.control_address);
  if (link == nullptr) {
    FailPair(pair, absl::UnavailableError("the control link could not be dialled"));
    return;
  }
  const uint64_t serial = pair->serial;
  pair->link = std::make_unique<PairLink>(
      std::move(link), core_, setup_.clock,
      PairLink::Callbacks{
          .on_message = [this, serial](ControlMessage m) { OnMessage(serial, std::move(m)); },
          .on_lost = [this, serial](const absl::Status& s) { OnLinkLost(serial, s); }});
  pair->state = PairState::kDialling;
  pair->state_deadline = SaturatingAdd(now, setup_.options.connect_limit);
  pair->link->Start();
  pair->link->Send(SenderHello{.sender_instance_id = setup_.instance_id,
                               .receiver_instance_id = pair->peer.instance_id,
                               .kv_layouts = EncodeKvLayouts(setup_.kv_layouts),
                               .wire = std::string(setup_.wire->name())});
}

void SenderCore::OnHello(Pair* pair, const ReceiverHello& hello) {
  if (pair->state != PairState::kDialling) {
    FailPair(pair, absl::InternalError("the decode worker said hello twice"));
    return;
  }
  if (absl::Status s = CheckReceiverHello(hello, pair->peer.instance_id); !s.ok()) {
    FailPair(pair, s);
    return;
  }
  pair->chunk_bytes_max = std::min(hello.staging_slot_bytes, setup_.options.staging_slot_bytes);
  pair->state = PairState::kConnecting;
  for (TransferAbort& abort : pair->owed_aborts) pair->link->Send(std::move(abort));
  pair->owed_aborts.clear();
  const Duration limit = setup_.options.connect_limit;
  pair->state_deadline = SaturatingAdd(setup_.clock->Now(), 2 * limit);
  // Connecting blocks, so it has a thread of its own: an unreachable peer delays no other pair.
  pair->connecting = std::thread([this, core = core_, wire = setup_.wire, serial = pair->serial,
                                  limit, offer = WireOffer{hello.wire_address, hello.wire_token}] {
    auto end =
        std::make_shared<absl::StatusOr<std::unique_ptr<WireEnd>>>(wire->Connect(offer, limit));
    core->Post([this, serial, end] { OnConnected(serial, std::move(*end)); });
  });
}

void SenderCore::OnConnected(uint64_t pair_serial, absl::StatusOr<std::unique_ptr<WireEnd>> end) {
  Pair* pair = FindPair(pair_serial);
  CHECK(pair != nullptr) << "a pair is kept until its connecting thread has reported";
  pair->connecting.join();
  if (end.ok()) pair->end = *std::move(end);
  if (pair->state == PairState::kClosing) {
    if (pair->end != nullptr) pair->end->Abort(absl::CancelledError("the pair failed meanwhile"));
    RetireIfQuiescent(pair);
    return;
  }
  if (!end.ok()) {
    FailPair(pair, Annotate(end.status(), "connecting the wire"));
    return;
  }
  const TimePoint now = setup_.clock->Now();
  pair->chunk_bytes_max = std::min(pair->chunk_bytes_max, pair->end->piece_bytes_max());
  pair->state = PairState::kOpen;
  pair->state_deadline = kNever;
  pair->last_progress = now;
  pair->idle_since = now;
  backoffs_.erase({pair->peer.control_address, pair->peer.instance_id});
  if (setup_.counters != nullptr) ++setup_.counters->pairs_opened;
  Pump();
}

void SenderCore::OnLinkLost(uint64_t pair_serial, const absl::Status& status) {
  Pair* pair = FindPair(pair_serial);
  if (pair == nullptr || pair->state == PairState::kClosing) return;
  FailPair(pair, absl::UnavailableError(absl::StrCat(
                     "the control link to the decode worker was lost: ", status.message())));
}

void SenderCore::FailPair(Pair* pair, const absl::Status& status) {
  if (pair->state == PairState::kClosing) return;
  const TimePoint now = setup_.clock->Now();
  LogWarning("KV pair failed", {{"peer", pair->peer.control_address},
                                {"instance", pair->peer.instance_id},
                                {"status", status.ToString()}});
  if (setup_.counters != nullptr) ++setup_.counters->pairs_failed;
  Backoff& backoff = backoffs_[{pair->peer.control_address, pair->peer.instance_id}];
  const Duration wait = std::chrono::milliseconds(50) * (1u << std::min(backoff.failures, 10u));
  backoff.not_before = SaturatingAdd(now, std::min(wait, setup_.options.redial_limit));
  ++backoff.failures;

  std::set<TransferSenderObserver*> observers;
  for (TransferId id : pair->transfers) observers.insert(Find(id)->observer);
  for (TransferSenderObserver* observer : observers) {
    events_->Post([observer, peer = pair->peer, status] { observer->OnPairFailed(peer, status); });
  }
  // Closed first: nothing more is said to the peer about transfers that end below.
  const std::set<TransferId> attached = pair->transfers;
  ClosePair(pair, status);  // `pair` may be gone after this.
  for (TransferId id : attached) {
    Transfer* transfer = Find(id);
    // What was delivered stays leased, for another decode worker to fetch; it can expire only.
    if (transfer != nullptr && !transfer->leased) FailTransfer(transfer, status, false);
  }
  Pump();
}

void SenderCore::ClosePair(Pair* pair, const absl::Status& status) {
  if (pair->state == PairState::kClosing) return;
  pair->state = PairState::kClosing;
  pair->state_deadline = SaturatingAdd(setup_.clock->Now(), setup_.options.quiescence_limit);
  if (pair->link != nullptr) pair->link->Close(status);
  if (pair->end != nullptr) pair->end->Abort(status);
  for (TransferId id : pair->transfers) Find(id)->pair_serial = 0;
  pair->transfers.clear();
  pair->turns.clear();
  for (auto it = pair->chunks.begin(); it != pair->chunks.end();) {
    Chunk& chunk = it->second;
    if (chunk.state == ChunkState::kPosted) {
      chunk.orphaned = true;
      staging_.Quarantine(chunk.slot);
      ++it;
    } else {
      if (chunk.state == ChunkState::kReady) ReleaseSlot(pair, &chunk);
      it = pair->chunks.erase(it);
    }
  }
  RetireIfQuiescent(pair);
}

bool SenderCore::RetireIfQuiescent(Pair* pair) {
  if (pair->state != PairState::kClosing || pair->connecting.joinable()) return false;
  if (pair->end != nullptr && !pair->end->Quiescent()) return false;
  for (auto& [sequence_number, chunk] : pair->chunks) ReleaseSlot(pair, &chunk);
  CHECK_EQ(pair->slots_held, 0u);
  pairs_.erase(pair->serial);
  PublishLevels();
  if (pairs_.empty() && drained_) std::exchange(drained_, nullptr)();
  return true;
}

absl::Status SenderCore::CheckChunkLimits(const Pair& pair, TimePoint now) const {
  const Duration limit = setup_.options.chunk_limit;
  for (const auto& [sequence_number, chunk] : pair.chunks) {
    const bool waits_for_engine = chunk.state == ChunkState::kReady && !chunk.orphaned;
    // A live READY waits for a slot of D: the transfer's deadline bounds it.
    if (waits_for_engine || SaturatingAdd(std::max(chunk.since, pair.last_progress), limit) > now) {
      continue;
    }
    const char* waiting_for = chunk.state == ChunkState::kReady    ? "GO or DROP"
                              : chunk.state == ChunkState::kPosted ? "the end of its send"
                                                                   : "DONE";
    return absl::UnavailableError(
        absl::StrCat("chunk ", sequence_number, " has waited chunk_limit for ", waiting_for));
  }
  return absl::OkStatus();
}

void SenderCore::TickPair(Pair* pair, TimePoint now) {
  const TransferOptions& options = setup_.options;
  if (pair->state == PairState::kClosing) {
    if (RetireIfQuiescent(pair)) return;
    if (now >= pair->state_deadline && !pair->unquiescent_reported) {
      pair->unquiescent_reported = true;
      setup_.on_unquiescent(absl::StrCat("the wire to ", pair->peer.control_address,
                                         " is not quiescent within quiescence_limit"));
    }
    return;
  }
  if (pair->state == PairState::kBackoff) {
    if (pair->transfers.empty() && pair->owed_aborts.empty()) {
      ClosePair(pair, absl::CancelledError("nothing to send any more"));
    } else if (pair->dial_at <= now) {
      Dial(pair);
    }
    return;
  }
  if (now >= pair->state_deadline) {
    FailPair(pair, absl::UnavailableError(pair->state == PairState::kDialling
                                              ? "no hello of the decode worker in connect_limit"
                                              : "the wire was not connected in connect_limit"));
    return;
  }
  if (pair->state == PairState::kDialling) return;
  if (now - pair->link->last_received() > options.heartbeat_limit) {
    FailPair(pair, absl::UnavailableError("the decode worker is silent for heartbeat_limit"));
    return;
  }
  if (absl::Status s = CheckChunkLimits(*pair, now); !s.ok()) {
    FailPair(pair, s);
    return;
  }
  const bool idle = pair->transfers.empty() && pair->chunks.empty();
  if (idle && SaturatingAdd(pair->idle_since, options.pair_idle_limit) <= now) {
    ClosePair(pair, absl::CancelledError("idle for pair_idle_limit"));
    return;
  }
  pair->link->HeartbeatIfDue(now, options.heartbeat_interval);
}

}  // namespace baton::kvtransfer
