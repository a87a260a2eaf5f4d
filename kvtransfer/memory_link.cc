#include "kvtransfer/memory_link.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace baton::kvtransfer {

struct MemoryNetwork::Channel {
  struct Item {
    TimePoint due{};
    ControlMessage message;
  };
  // What is on its way to one end.
  struct Inbox {
    std::deque<Item> items;
    ControlLink::Handler handler;
    bool started = false;
    bool closing = false;  // on_closed comes after `items`.
    bool closed = false;   // on_closed was called.
    absl::Status reason;
  };
  Inbox inboxes[2];

  Inbox& inbox(LinkDirection to) { return inboxes[static_cast<size_t>(to)]; }
};

// One end. `to_self_` is the direction of what it receives.
class MemoryLink : public ControlLink {
 public:
  MemoryLink(MemoryNetwork* network, std::shared_ptr<MemoryNetwork::Channel> channel,
             LinkDirection to_self)
      : network_(network), channel_(std::move(channel)), to_self_(to_self) {}

  void Start(Handler handler) override {
    network_->Start(channel_.get(), to_self_, std::move(handler));
  }
  bool Send(ControlMessage message) override {
    const LinkDirection to_peer = to_self_ == LinkDirection::kToReceiver
                                      ? LinkDirection::kToSender
                                      : LinkDirection::kToReceiver;
    return network_->Send(channel_.get(), to_peer, std::move(message));
  }
  void Close(const absl::Status& reason) override {
    network_->Close(channel_.get(), to_self_, reason);
  }

 private:
  MemoryNetwork* const network_;
  const std::shared_ptr<MemoryNetwork::Channel> channel_;
  const LinkDirection to_self_;
};

MemoryNetwork::MemoryNetwork() : thread_([this] { Run(); }) {}

MemoryNetwork::~MemoryNetwork() {
  CutAll(absl::CancelledError("the network is destroyed"));
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.Signal();
  thread_.join();
}

std::shared_ptr<ControlLink> MemoryNetwork::Dial(const std::string& control_address) {
  auto channel = std::make_shared<Channel>();
  auto local = std::make_shared<MemoryLink>(this, channel, LinkDirection::kToSender);
  MutexLock lock(mutex_);
  channels_.push_back(channel);
  auto listener = listeners_.find(control_address);
  if (listener == listeners_.end()) {
    for (Channel::Inbox& inbox : channel->inboxes) {
      inbox.closing = true;
      inbox.reason =
          absl::UnavailableError(absl::StrCat("nobody listens on '", control_address, "'"));
    }
    channel->inbox(LinkDirection::kToReceiver).closed = true;
  } else {
    auto remote = std::make_shared<MemoryLink>(this, channel, LinkDirection::kToReceiver);
    accepts_.push_back([accept = listener->second, remote] { accept(remote); });
  }
  changed_.Signal();
  return local;
}

void MemoryNetwork::Listen(const std::string& address, Accept accept) {
  MutexLock lock(mutex_);
  listeners_[address] = std::move(accept);
}

void MemoryNetwork::StopListening(const std::string& address) {
  MutexLock lock(mutex_);
  listeners_.erase(address);
}

void MemoryNetwork::SetHook(Hook hook) {
  MutexLock lock(mutex_);
  hook_ = std::move(hook);
}

void MemoryNetwork::Stall(LinkDirection direction, bool stalled) {
  {
    MutexLock lock(mutex_);
    stalled_[static_cast<size_t>(direction)] = stalled;
  }
  changed_.Signal();
}

void MemoryNetwork::CutAll(const absl::Status& reason) {
  {
    MutexLock lock(mutex_);
    for (const std::shared_ptr<Channel>& channel : channels_) {
      for (Channel::Inbox& inbox : channel->inboxes) {
        if (inbox.closing) continue;
        inbox.closing = true;
        inbox.reason = absl::Status(reason.code(), reason.message());  // As in Close.
        inbox.items.clear();
      }
    }
  }
  changed_.Signal();
}

void MemoryNetwork::Start(Channel* channel, LinkDirection to_self, ControlLink::Handler handler) {
  {
    MutexLock lock(mutex_);
    Channel::Inbox& inbox = channel->inbox(to_self);
    CHECK(!inbox.started) << "a link is started once";
    inbox.started = true;
    inbox.handler = std::move(handler);
  }
  changed_.Signal();
}

bool MemoryNetwork::Send(Channel* channel, LinkDirection direction, ControlMessage message) {
  Hook hook;
  {
    MutexLock lock(mutex_);
    hook = hook_;
  }
  Verdict verdict;
  if (hook) verdict = hook(direction, message);
  bool overflow = false;
  {
    MutexLock lock(mutex_);
    Channel::Inbox& inbox = channel->inbox(direction);
    if (inbox.closing) return false;
    if (!verdict.deliver) return true;
    overflow = inbox.items.size() >= kMemoryLinkMessagesMax;
    if (!overflow) {
      inbox.items.push_back({Clock::Real()->Now() + verdict.delay, std::move(message)});
    }
  }
  changed_.Signal();
  if (overflow) {
    Close(channel, direction, absl::ResourceExhaustedError("the link's queue is full"));
  }
  return !overflow;
}

void MemoryNetwork::Close(Channel* channel, LinkDirection to_self, const absl::Status& reason) {
  {
    MutexLock lock(mutex_);
    for (LinkDirection direction : {LinkDirection::kToReceiver, LinkDirection::kToSender}) {
      Channel::Inbox& inbox = channel->inbox(direction);
      if (inbox.closing) continue;
      inbox.closing = true;
      inbox.reason = OwnCopy(reason);  // The two ends' threads drop it at any time.
      // The peer still gets what was sent before.
      if (direction == to_self) inbox.items.clear();
    }
  }
  changed_.Signal();
}

std::function<void()> MemoryNetwork::NextDelivery(Duration* wait) {
  *wait = std::chrono::seconds(1);
  if (!accepts_.empty()) {
    std::function<void()> accept = std::move(accepts_.front());
    accepts_.erase(accepts_.begin());
    return accept;
  }
  const TimePoint now = Clock::Real()->Now();
  for (const std::shared_ptr<Channel>& channel : channels_) {
    for (LinkDirection direction : {LinkDirection::kToReceiver, LinkDirection::kToSender}) {
      Channel::Inbox& inbox = channel->inbox(direction);
      if (!inbox.started || inbox.closed) continue;
      if (!inbox.items.empty()) {
        if (stalled_[static_cast<size_t>(direction)] && !inbox.closing) continue;
        if (inbox.items.front().due > now) {
          *wait = std::min<Duration>(*wait, inbox.items.front().due - now);
          continue;
        }
        auto message = std::make_shared<ControlMessage>(std::move(inbox.items.front().message));
        inbox.items.pop_front();
        return
            [on_message = inbox.handler.on_message, message] { on_message(std::move(*message)); };
      }
      if (inbox.closing) {
        inbox.closed = true;
        return [handler = std::move(inbox.handler), reason = inbox.reason] {
          handler.on_closed(reason);
        };
      }
    }
  }
  return nullptr;
}

void MemoryNetwork::Run() {
  for (;;) {
    std::function<void()> deliver;
    {
      MutexLock lock(mutex_);
      std::erase_if(channels_, [](const std::shared_ptr<Channel>& channel) {
        return std::all_of(std::begin(channel->inboxes), std::end(channel->inboxes),
                           [](const Channel::Inbox& inbox) { return inbox.closed; });
      });
      Duration wait;
      deliver = NextDelivery(&wait);
      if (!deliver) {
        if (stopping_) return;
        changed_.WaitFor(mutex_, wait);
        continue;
      }
    }
    deliver();
  }
}

}  // namespace baton::kvtransfer
