// Pairs of D: hello, offering the wire, liveness, failure and quarantine.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "kvtransfer/receiver_core.h"

namespace baton::kvtransfer {

ReceiverCore::Pair* ReceiverCore::FindPair(uint64_t serial) {
  auto it = pairs_.find(serial);
  return it == pairs_.end() ? nullptr : it->second.get();
}

void ReceiverCore::AcceptLink(std::shared_ptr<ControlLink> link) {
  if (shutting_down_ || pairs_.size() >= setup_.options.pairs_max) {
    link->Start({[](ControlMessage) {}, [](const absl::Status&) {}});
    link->Close(shutting_down_ ? absl::UnavailableError("the decode worker shuts down")
                               : absl::ResourceExhaustedError(absl::StrCat(
                                     "pairs_max (", setup_.options.pairs_max, ") are in use")));
    return;
  }
  auto owned = std::make_unique<Pair>();
  Pair* pair = owned.get();
  pair->serial = next_serial_++;
  pair->state_deadline = SaturatingAdd(setup_.clock->Now(), setup_.options.connect_limit);
  const uint64_t serial = pair->serial;
  pair->link = std::make_unique<PairLink>(
      std::move(link), core_, setup_.clock,
      PairLink::Callbacks{
          .on_message = [this, serial](ControlMessage m) { OnMessage(serial, std::move(m)); },
          .on_lost = [this, serial](const absl::Status& s) { OnLinkLost(serial, s); }});
  pairs_[serial] = std::move(owned);
  pair->link->Start();
  PublishLevels();
}

void ReceiverCore::OnHello(Pair* pair, const SenderHello& hello) {
  if (pair->state != PairState::kHello) {
    FailPair(pair, absl::InternalError("the prefill worker said hello twice"));
    return;
  }
  pair->sender_instance_id = hello.sender_instance_id;
  absl::Status status =
      CheckSenderHello(hello, setup_.instance_id, setup_.wire->name(), setup_.kv_layouts);
  if (status.ok()) {
    pair->layouts = *DecodeKvLayouts(hello.kv_layouts);
    // One pair per sender: if it dials anew, it has given the old pair up.
    std::vector<uint64_t> old;
    for (const auto& [serial, other] : pairs_) {
      const bool live = other->state == PairState::kAccepting || other->state == PairState::kOpen;
      if (live && other->sender_instance_id == hello.sender_instance_id) old.push_back(serial);
    }
    for (uint64_t serial : old) {
      FailPair(FindPair(serial), absl::UnavailableError("the prefill worker has dialled anew"));
    }
    status = OfferWire(pair);
  }
  if (!status.ok()) {
    Refuse(pair, status);
    return;
  }
  const TimePoint now = setup_.clock->Now();
  pair->state = PairState::kAccepting;
  pair->renewed_at = now;
  pair->state_deadline = SaturatingAdd(now, 2 * setup_.options.connect_limit);
  pair->link->Send(ReceiverHello{.receiver_instance_id = setup_.instance_id,
                                 .refusal = "",
                                 .wire_address = pair->offer.address,
                                 .wire_token = pair->offer.token,
                                 .staging_slot_bytes = setup_.options.staging_slot_bytes});
}

absl::Status ReceiverCore::OfferWire(Pair* pair) {
  auto accepted = [this, core = core_,
                   serial = pair->serial](absl::StatusOr<std::unique_ptr<WireEnd>> end) {
    auto shared = std::make_shared<absl::StatusOr<std::unique_ptr<WireEnd>>>(std::move(end));
    core->Post([this, serial, shared] { OnAccepted(serial, std::move(*shared)); });
  };
  ASSIGN_OR_RETURN(pair->offer,
                   setup_.wire->Offer(setup_.options.connect_limit, std::move(accepted)));
  pair->offer_open = true;
  return absl::OkStatus();
}

void ReceiverCore::Refuse(Pair* pair, const absl::Status& status) {
  LogWarning("KV pair refused",
             {{"sender_instance", pair->sender_instance_id}, {"reason", status.ToString()}});
  if (setup_.counters != nullptr) ++setup_.counters->pairs_failed;
  pair->state = PairState::kRefused;
  pair->state_deadline = SaturatingAdd(setup_.clock->Now(), setup_.options.connect_limit);
  pair->link->Send(ReceiverHello{.receiver_instance_id = setup_.instance_id,
                                 .refusal = std::string(status.message()),
                                 .wire_address = "",
                                 .wire_token = ""});
}

void ReceiverCore::OnAccepted(uint64_t pair_serial, absl::StatusOr<std::unique_ptr<WireEnd>> end) {
  Pair* pair = FindPair(pair_serial);
  CHECK(pair != nullptr) << "a pair is kept until its offer has ended";
  pair->offer_open = false;
  if (end.ok()) pair->end = *std::move(end);
  if (pair->state == PairState::kClosing) {
    if (pair->end != nullptr) pair->end->Abort(absl::CancelledError("the pair failed meanwhile"));
    RetireIfQuiescent(pair);
    return;
  }
  if (!end.ok()) {
    FailPair(pair, Annotate(end.status(), "accepting the wire"));
    return;
  }
  pair->state = PairState::kOpen;
  pair->state_deadline = kNever;
  pair->last_progress = setup_.clock->Now();
  if (setup_.counters != nullptr) ++setup_.counters->pairs_opened;
  Grant();
}

void ReceiverCore::OnLinkLost(uint64_t pair_serial, const absl::Status& status) {
  Pair* pair = FindPair(pair_serial);
  if (pair == nullptr || pair->state == PairState::kClosing) return;
  FailPair(pair, absl::UnavailableError(absl::StrCat(
                     "the control link to the prefill worker was lost: ", status.message())));
}

void ReceiverCore::FailPair(Pair* pair, const absl::Status& status) {
  if (pair->state == PairState::kClosing) return;
  // A pair that nothing uses may simply have been closed by P.
  if (!pair->transfers.empty() || !pair->chunks.empty()) {
    LogWarning("KV pair failed",
               {{"sender_instance", pair->sender_instance_id}, {"status", status.ToString()}});
    if (setup_.counters != nullptr) ++setup_.counters->pairs_failed;
  }
  const std::set<TransferId> bound = pair->transfers;
  ClosePair(pair, status);  // `pair` may be gone after this.
  for (TransferId id : bound) FailTransfer(Find(id), status, TellPeer::kNothing);
  Grant();
}

void ReceiverCore::ClosePair(Pair* pair, const absl::Status& status) {
  if (pair->state == PairState::kClosing) return;
  pair->state = PairState::kClosing;
  pair->state_deadline = SaturatingAdd(setup_.clock->Now(), setup_.options.quiescence_limit);
  pair->link->Close(status);
  if (pair->offer_open) setup_.wire->Withdraw(pair->offer);
  if (pair->end != nullptr) pair->end->Abort(status);
  for (TransferId id : pair->transfers) Find(id)->pair_serial = 0;
  pair->transfers.clear();
  std::erase_if(held_, [&](const auto& e) { return e.second.pair_serial == pair->serial; });
  pair->waiting.clear();
  for (auto it = pair->chunks.begin(); it != pair->chunks.end();) {
    if (it->second.posted) {
      it->second.orphaned = true;
      staging_.Quarantine(it->second.slot);
      ++it;
    } else {
      it = pair->chunks.erase(it);
    }
  }
  RetireIfQuiescent(pair);
}

bool ReceiverCore::RetireIfQuiescent(Pair* pair) {
  if (pair->state != PairState::kClosing || pair->offer_open) return false;
  if (pair->end != nullptr && !pair->end->Quiescent()) return false;
  for (auto& [sequence_number, chunk] : pair->chunks) ReleaseSlot(pair, &chunk);
  CHECK_EQ(pair->slots_held, 0u);
  pairs_.erase(pair->serial);
  PublishLevels();
  if (pairs_.empty() && drained_) std::exchange(drained_, nullptr)();
  return true;
}

absl::Status ReceiverCore::CheckChunkLimit(const Pair& pair, TimePoint now) const {
  for (const auto& [sequence_number, chunk] : pair.chunks) {
    if (!chunk.posted) continue;
    // Chunks arrive one after the other, so each arrival gives the next its time.
    const TimePoint since = std::max(chunk.since, pair.last_progress);
    if (SaturatingAdd(since, setup_.options.chunk_limit) > now) continue;
    return absl::UnavailableError(
        absl::StrCat("chunk ", sequence_number, " has not arrived chunk_limit after its GO"));
  }
  return absl::OkStatus();
}

void ReceiverCore::TickPair(Pair* pair, TimePoint now) {
  if (pair->state == PairState::kClosing) {
    if (RetireIfQuiescent(pair)) return;
    if (now >= pair->state_deadline && !pair->unquiescent_reported) {
      pair->unquiescent_reported = true;
      setup_.on_unquiescent(absl::StrCat("the wire from prefill worker instance ",
                                         pair->sender_instance_id,
                                         " is not quiescent within quiescence_limit"));
    }
    return;
  }
  if (now >= pair->state_deadline) {
    FailPair(pair, absl::UnavailableError(
                       pair->state == PairState::kHello
                           ? "no hello of the prefill worker in connect_limit"
                           : "the prefill worker did not connect the wire in connect_limit"));
    return;
  }
  if (pair->state != PairState::kAccepting && pair->state != PairState::kOpen) return;
  if (now - pair->link->last_received() > setup_.options.heartbeat_limit) {
    FailPair(pair, absl::UnavailableError("the prefill worker is silent for heartbeat_limit"));
    return;
  }
  if (absl::Status s = CheckChunkLimit(*pair, now); !s.ok()) {
    FailPair(pair, s);
    return;
  }
  pair->link->HeartbeatIfDue(now, setup_.options.heartbeat_interval);
  RenewHeld(pair, now);
}

}  // namespace baton::kvtransfer
