// Control links inside one process, for tests: what the daemon does over gRPC, with hooks to drop,
// delay and stall messages and to cut links. One thread delivers everything, each link in order.
//
//   MemoryNetwork network;
//   network.Listen("d:1", [&](std::shared_ptr<ControlLink> link) { receiver->AcceptLink(link); });
//   auto sender = MakeTransferSender(setup, &network);
//
// Thread-safe. Must outlive the senders and receivers that use it.
#ifndef BATON_KVTRANSFER_MEMORY_LINK_H_
#define BATON_KVTRANSFER_MEMORY_LINK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "kvtransfer/control.h"

namespace baton::kvtransfer {

// Messages that one direction of one link holds; more closes the link.
inline constexpr size_t kMemoryLinkMessagesMax = 1 << 16;

enum class LinkDirection { kToReceiver, kToSender };

class MemoryNetwork : public ControlDialer {
 public:
  struct Verdict {
    bool deliver = true;
    Duration delay{};  // Real time; what comes behind waits too.
  };
  using Hook = std::function<Verdict(LinkDirection, const ControlMessage&)>;
  using Accept = std::function<void(std::shared_ptr<ControlLink>)>;

  MemoryNetwork();
  ~MemoryNetwork() override;  // Closes all links and joins.

  // An address that nobody listens on gives a link that closes at once with Unavailable.
  std::shared_ptr<ControlLink> Dial(const std::string& control_address) override;
  void Listen(const std::string& address, Accept accept) EXCLUDES(mutex_);
  void StopListening(const std::string& address) EXCLUDES(mutex_);

  // Sees every message as it is sent; nullptr: all are delivered.
  void SetHook(Hook hook) EXCLUDES(mutex_);
  // While stalled, messages of that direction wait, as if the sending process were stopped.
  void Stall(LinkDirection direction, bool stalled) EXCLUDES(mutex_);
  // Closes every link; both ends see `reason`.
  void CutAll(const absl::Status& reason) EXCLUDES(mutex_);

  struct Channel;  // Implementation: the two directions of one link.

 private:
  friend class MemoryLink;

  bool Send(Channel* channel, LinkDirection direction, ControlMessage message) EXCLUDES(mutex_);
  void Close(Channel* channel, LinkDirection to_self, const absl::Status& reason) EXCLUDES(mutex_);
  void Start(Channel* channel, LinkDirection to_self, ControlLink::Handler handler)
      EXCLUDES(mutex_);
  // One thing to do, or nullptr and how long nothing will be due.
  std::function<void()> NextDelivery(Duration* wait) REQUIRES(mutex_);
  void Run() EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  Hook hook_ GUARDED_BY(mutex_);
  bool stalled_[2] GUARDED_BY(mutex_) = {false, false};
  std::map<std::string, Accept> listeners_ GUARDED_BY(mutex_);
  std::vector<std::function<void()>> accepts_ GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Channel>> channels_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_MEMORY_LINK_H_
