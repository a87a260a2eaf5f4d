// A prefill or decode worker that says what the test wants, to probe how the real other side judges
// it. For tests.
#ifndef BATON_KVTRANSFER_SCRIPTED_PEER_H_
#define BATON_KVTRANSFER_SCRIPTED_PEER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "gtest/gtest.h"
#include "kvtransfer/control.h"
#include "kvtransfer/test_support.h"
#include "kvtransfer/transfer_harness.h"
#include "kvtransfer/wire.h"

namespace baton::kvtransfer {

class ScriptedPeer {
 public:
  // Takes a link that is not started. Thread-safe.
  void Attach(std::shared_ptr<ControlLink> link) {
    ControlLink::Handler handler;
    handler.on_message = [state = state_](ControlMessage message) {
      if (std::holds_alternative<LinkHeartbeat>(message)) return;
      MutexLock lock(state->mutex);
      state->messages.push_back(std::move(message));
    };
    handler.on_closed = [state = state_](const absl::Status& status) {
      MutexLock lock(state->mutex);
      state->closed = status;
    };
    {
      MutexLock lock(state_->mutex);
      state_->link = link;
    }
    link->Start(std::move(handler));
  }
  void Say(ControlMessage message) {
    std::shared_ptr<ControlLink> link;
    {
      MutexLock lock(state_->mutex);
      link = state_->link;
    }
    ASSERT_NE(link, nullptr);
    link->Send(std::move(message));
  }
  // The next message of type T that was not returned yet; others are passed over.
  template <typename T>
  std::optional<T> Next() {
    std::optional<T> found;
    Eventually([&] {
      MutexLock lock(state_->mutex);
      while (!found.has_value() && state_->next < state_->messages.size()) {
        if (const T* m = std::get_if<T>(&state_->messages[state_->next++])) found = *m;
      }
      return found.has_value() || state_->closed.has_value();
    });
    EXPECT_TRUE(found.has_value()) << "the message did not come";
    return found;
  }
  template <typename T>
  size_t Count() const {
    MutexLock lock(state_->mutex);
    size_t count = 0;
    for (const ControlMessage& m : state_->messages) count += std::holds_alternative<T>(m);
    return count;
  }
  bool attached() const {
    MutexLock lock(state_->mutex);
    return state_->link != nullptr;
  }
  bool AwaitClosed() const {
    return Eventually([&] {
      MutexLock lock(state_->mutex);
      return state_->closed.has_value();
    });
  }
  bool closed() const {
    MutexLock lock(state_->mutex);
    return state_->closed.has_value();
  }

 private:
  struct State {
    Mutex mutex;
    std::shared_ptr<ControlLink> link GUARDED_BY(mutex);
    std::vector<ControlMessage> messages GUARDED_BY(mutex);
    size_t next GUARDED_BY(mutex) = 0;
    std::optional<absl::Status> closed GUARDED_BY(mutex);
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

inline SenderHello GoodSenderHello() {
  SenderHello hello;
  hello.sender_instance_id = 0x9001;
  hello.receiver_instance_id = kTestReceiverInstance;
  hello.kv_layouts = {std::string(kTestModel) + "=layout-1"};
  hello.wire = "local";
  return hello;
}

// Plays P towards the harness's receiver, wire included.
class ScriptedSender : public ScriptedPeer {
 public:
  explicit ScriptedSender(TransferHarness* h) : h_(h) { Attach(h->network().Dial(kTestAddress)); }
  // The hello and the wire; false when D refuses.
  bool Open(const SenderHello& hello = GoodSenderHello()) {
    Say(hello);
    const auto answer = Next<ReceiverHello>();
    if (!answer.has_value() || !answer->refusal.empty()) return false;
    auto end = h_->wire().Connect({answer->wire_address, answer->wire_token}, kBound);
    EXPECT_TRUE(end.ok()) << end.status();
    if (end.ok()) end_ = *std::move(end);
    return end.ok();
  }
  WireEnd& end() { return *end_; }

 private:
  TransferHarness* const h_;
  std::unique_ptr<WireEnd> end_;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_SCRIPTED_PEER_H_
