// The control link of one pair, seen from the core thread that owns the pair: messages and the end
// of the link are posted to that thread, silence is measured, heartbeats are sent.
//
// Limit: kQueuedMessagesMax messages of the peer wait for the core thread; a peer that sends more
// is cut off. The link's callbacks hold only shared state, so a link may outlive its pair. Thread
// rule: owned by the core thread; the callbacks run there.
#ifndef BATON_KVTRANSFER_PAIR_LINK_H_
#define BATON_KVTRANSFER_PAIR_LINK_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "kvtransfer/control.h"
#include "kvtransfer/work_thread.h"

namespace baton::kvtransfer {

inline constexpr uint32_t kQueuedMessagesMax = 8192;

class PairLink {
 public:
  struct Callbacks {
    std::function<void(ControlMessage)> on_message;
    // At least once after the link has ended or when the peer was cut off.
    std::function<void(const absl::Status&)> on_lost;
  };

  // `callbacks` run on `core` and must stay callable until it is stopped.
  PairLink(std::shared_ptr<ControlLink> link, std::shared_ptr<WorkThread> core, const Clock* clock,
           Callbacks callbacks);
  ~PairLink();  // Closes.

  void Start();
  // A failure arrives as on_lost.
  void Send(ControlMessage message);
  void Close(const absl::Status& reason);
  // When the peer was last heard of (Start counts).
  TimePoint last_received() const;
  void HeartbeatIfDue(TimePoint now, Duration interval);

 private:
  struct Shared {
    std::atomic<int64_t> last_received_ns{0};
    std::atomic<uint32_t> queued{0};
    std::atomic<bool> flooded{false};
    Callbacks callbacks;
  };

  const std::shared_ptr<ControlLink> link_;
  const std::shared_ptr<WorkThread> core_;
  const Clock* const clock_;
  const std::shared_ptr<Shared> shared_;
  uint64_t next_heartbeat_ = 0;
  TimePoint last_heartbeat_{};
  bool closed_ = false;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_PAIR_LINK_H_
