#include "kvtransfer/transfer_sender.h"

#include <atomic>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "kvtransfer/active_transfers.h"
#include "kvtransfer/deadline_thread.h"
#include "kvtransfer/sender_core.h"
#include "kvtransfer/work_thread.h"

namespace baton::kvtransfer {
namespace {

class TransferSenderImpl : public TransferSender {
 public:
  TransferSenderImpl(TransferSetup setup, ControlDialer* dialer)
      : setup_(std::move(setup)),
        active_(setup_.options.transfers_max,
                setup_.counters == nullptr ? nullptr : &setup_.counters->transfers),
        core_thread_(std::make_shared<WorkThread>()),
        core_(setup_, dialer, core_thread_, &events_, &active_),
        ticks_(setup_.options.poll_interval, [this] { PostTick(); }) {}

  ~TransferSenderImpl() override { Shutdown(); }

  absl::Status Begin(TransferId id, const std::string& model, const PeerAddress& peer,
                     TimePoint deadline, TransferSenderObserver* observer) override {
    CHECK(observer != nullptr);
    if (!setup_.kv_layouts.contains(model)) {
      return absl::InvalidArgumentError(
          absl::StrCat("model '", model, "' has no KV layout in this worker"));
    }
    if (absl::Status s = active_.Add(id); !s.ok()) return s;
    const bool posted =
        Post([this, id, peer, deadline, observer] { core_.Begin(id, peer, deadline, observer); });
    if (!posted) {
      active_.Remove(id);
      return absl::UnavailableError("the KV transfer is shut down");
    }
    return absl::OkStatus();
  }

  void Push(TransferId id, std::vector<SourceRange> ranges) override {
    switch (active_.Push(id, ranges.size())) {
      case ActiveTransfers::PushResult::kAccepted:
        Post([this, id, ranges = std::move(ranges)]() mutable {
          core_.Push(id, std::move(ranges));
        });
        return;
      case ActiveTransfers::PushResult::kOverflow:
        Post([this, id] {
          core_.Fail(id, absl::ResourceExhaustedError(
                             absl::StrCat("more than ", kPushedRangesMax, " ranges wait")));
        });
        return;
      case ActiveTransfers::PushResult::kUnknown:
        return;
    }
  }

  void Finish(TransferId id, std::string payload) override {
    Post([this, id, payload = std::move(payload)]() mutable {
      core_.Finish(id, std::move(payload));
    });
  }

  void Cancel(TransferId id) override {
    Post([this, id] { core_.Cancel(id); });
  }

  void Shutdown() override {
    if (!active_.ShutDown()) return;
    auto drained = std::make_shared<Drained>();
    core_thread_->Post([this, drained] {
      core_.Shutdown([drained] {
        {
          MutexLock lock(drained->mutex);
          drained->done = true;
        }
        drained->changed.SignalAll();
      });
    });
    ticks_.SetActive(true);
    {
      // Bounded: the core's quiescence_limit ends the process otherwise.
      MutexLock lock(drained->mutex);
      while (!drained->done) drained->changed.WaitFor(drained->mutex, std::chrono::seconds(1));
    }
    ticks_.Stop();
    core_thread_->Stop();
    events_.Stop();
  }

 private:
  struct Drained {
    Mutex mutex;
    CondVar changed;
    bool done GUARDED_BY(mutex) = false;
  };

  bool Post(std::function<void()> work) {
    return core_thread_->Post([this, work = std::move(work)] {
      work();
      ticks_.SetActive(core_.active());
    });
  }

  void PostTick() {
    if (tick_pending_.exchange(true)) return;
    core_thread_->Post([this] {
      tick_pending_ = false;
      core_.Tick();
      ticks_.SetActive(core_.active());
    });
  }

  const TransferSetup setup_;
  ActiveTransfers active_;
  WorkThread events_;
  const std::shared_ptr<WorkThread> core_thread_;
  SenderCore core_;
  std::atomic<bool> tick_pending_{false};
  DeadlineThread ticks_;
};

}  // namespace

std::unique_ptr<TransferSender> MakeTransferSender(TransferSetup setup, ControlDialer* dialer) {
  return std::make_unique<TransferSenderImpl>(CompleteSetup(std::move(setup)), dialer);
}

}  // namespace baton::kvtransfer
