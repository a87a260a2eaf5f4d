#include "kvtransfer/pair_link.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace baton::kvtransfer {

PairLink::PairLink(std::shared_ptr<ControlLink> link, std::shared_ptr<WorkThread> core,
                   const Clock* clock, Callbacks callbacks)
    : link_(std::move(link)),
      core_(std::move(core)),
      clock_(clock),
      shared_(std::make_shared<Shared>()) {
  shared_->callbacks = std::move(callbacks);
}

PairLink::~PairLink() { Close(absl::CancelledError("pair ended")); }

void PairLink::Start() {
  shared_->last_received_ns = clock_->Now().time_since_epoch().count();
  ControlLink::Handler handler;
  handler.on_message = [shared = shared_, core = core_, clock = clock_](ControlMessage message) {
    // Stamped on arrival: a busy core thread must not make the peer look silent.
    shared->last_received_ns = clock->Now().time_since_epoch().count();
    if (std::holds_alternative<LinkHeartbeat>(message)) return;
    if (shared->queued.fetch_add(1) >= kQueuedMessagesMax) {
      shared->queued.fetch_sub(1);
      if (shared->flooded.exchange(true)) return;
      core->Post([shared] {
        shared->callbacks.on_lost(absl::ResourceExhaustedError(
            absl::StrCat("the peer sent more than ", kQueuedMessagesMax,
                         " control messages faster than they could be handled")));
      });
      return;
    }
    core->Post([shared, message = std::move(message)]() mutable {
      shared->queued.fetch_sub(1);
      shared->callbacks.on_message(std::move(message));
    });
  };
  handler.on_closed = [shared = shared_, core = core_](const absl::Status& status) {
    core->Post([shared, own = OwnCopy(status)] { shared->callbacks.on_lost(own); });
  };
  link_->Start(std::move(handler));
}

void PairLink::Send(ControlMessage message) {
  // False means that the link has closed, and on_closed brings the reason.
  if (!closed_) (void)link_->Send(std::move(message));
}

void PairLink::Close(const absl::Status& reason) {
  if (closed_) return;
  closed_ = true;
  link_->Close(reason);
}

TimePoint PairLink::last_received() const {
  return TimePoint(Duration(shared_->last_received_ns.load()));
}

void PairLink::HeartbeatIfDue(TimePoint now, Duration interval) {
  if (now - last_heartbeat_ < interval) return;
  last_heartbeat_ = now;
  Send(LinkHeartbeat{next_heartbeat_++});
}

}  // namespace baton::kvtransfer
