#include "kvtransfer/transfer_receiver.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "kvtransfer/active_transfers.h"
#include "kvtransfer/coverage.h"
#include "kvtransfer/deadline_thread.h"
#include "kvtransfer/receiver_core.h"
#include "kvtransfer/work_thread.h"

namespace baton::kvtransfer {
namespace {

class TransferReceiverImpl : public LinkedTransferReceiver {
 public:
  explicit TransferReceiverImpl(TransferSetup setup)
      : setup_(std::move(setup)),
        active_(setup_.options.transfers_max,
                setup_.counters == nullptr ? nullptr : &setup_.counters->transfers),
        core_thread_(std::make_shared<WorkThread>()),
        core_(setup_, core_thread_, &events_, &active_),
        ticks_(setup_.options.poll_interval, [this] { PostTick(); }) {}

  ~TransferReceiverImpl() override { Shutdown(); }

  void AcceptLink(std::shared_ptr<ControlLink> link) override {
    if (!Post([this, link] { core_.AcceptLink(link); })) {
      link->Start({[](ControlMessage) {}, [](const absl::Status&) {}});
      link->Close(absl::UnavailableError("the decode worker is shut down"));
    }
  }

  absl::Status Expect(TransferId id, const std::string& model, std::vector<DestinationBlock> blocks,
                      TimePoint deadline, TransferReceiverObserver* observer) override {
    CHECK(observer != nullptr);
    if (!setup_.kv_layouts.contains(model)) {
      return absl::InvalidArgumentError(
          absl::StrCat("model '", model, "' has no KV layout in this worker"));
    }
    ASSIGN_OR_RETURN(Coverage coverage, Coverage::Create(blocks));
    if (absl::Status s = active_.Add(id); !s.ok()) return s;
    auto shared = std::make_shared<Coverage>(std::move(coverage));
    const bool posted = Post([this, id, model, shared, deadline, observer] {
      core_.Expect(id, model, std::move(*shared), deadline, observer);
    });
    if (!posted) {
      active_.Remove(id);
      return absl::UnavailableError("the KV transfer is shut down");
    }
    return absl::OkStatus();
  }

  void Cancel(TransferId id) override {
    Post([this, id] { core_.Cancel(id); });
  }

  void ConfirmProgress(TransferId id) override {
    Post([this, id] { core_.ConfirmProgress(id); });
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
  ReceiverCore core_;
  std::atomic<bool> tick_pending_{false};
  DeadlineThread ticks_;
};

}  // namespace

std::unique_ptr<LinkedTransferReceiver> MakeTransferReceiver(TransferSetup setup) {
  return std::make_unique<TransferReceiverImpl>(CompleteSetup(std::move(setup)));
}

}  // namespace baton::kvtransfer
