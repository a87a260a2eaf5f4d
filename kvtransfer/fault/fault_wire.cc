#include "kvtransfer/fault/fault_wire.h"

#include <utility>

#include "kvtransfer/fault/fault_end.h"

namespace baton::kvtransfer {
namespace {

class FaultWire : public Wire {
 public:
  FaultWire(std::unique_ptr<Wire> inner, std::shared_ptr<FaultController> controller)
      : inner_(std::move(inner)), controller_(std::move(controller)) {}

  absl::string_view name() const override { return inner_->name(); }
  StagingPlace staging_place() const override { return inner_->staging_place(); }

  absl::StatusOr<WireOffer> Offer(Duration limit, Accepted accepted) override {
    if (controller_->policy().refuse_offer) {
      return absl::UnavailableError("fault wire: no offers");
    }
    return inner_->Offer(limit, [controller = controller_, accepted = std::move(accepted)](
                                    absl::StatusOr<std::unique_ptr<WireEnd>> end) {
      if (!end.ok()) {
        accepted(end.status());
      } else {
        accepted(std::make_unique<FaultEnd>(*std::move(end), controller));
      }
    });
  }
  void Withdraw(const WireOffer& offer) override { inner_->Withdraw(offer); }
  absl::StatusOr<std::unique_ptr<WireEnd>> Connect(const WireOffer& offer,
                                                   Duration limit) override {
    if (controller_->policy().refuse_connect) {
      return absl::UnavailableError("fault wire: connection refused");
    }
    absl::StatusOr<std::unique_ptr<WireEnd>> end = inner_->Connect(offer, limit);
    if (!end.ok()) return end.status();
    return std::unique_ptr<WireEnd>(std::make_unique<FaultEnd>(*std::move(end), controller_));
  }
  void Shutdown() override { inner_->Shutdown(); }

 private:
  const std::unique_ptr<Wire> inner_;
  const std::shared_ptr<FaultController> controller_;
};

}  // namespace

FaultPolicy FaultController::policy() const {
  MutexLock lock(mutex_);
  return policy_;
}

void FaultController::Set(const FaultPolicy& policy) {
  MutexLock lock(mutex_);
  policy_ = policy;
}

bool FaultController::FailThisOperation() {
  MutexLock lock(mutex_);
  ++num_operations_;
  return policy_.fail_every != 0 && num_operations_ % policy_.fail_every == 0;
}

uint64_t FaultController::Random() {
  MutexLock lock(mutex_);
  // The linear congruential generator of Knuth's MMIX; its high bits are the good ones.
  random_state_ = random_state_ * 6364136223846793005u + 1442695040888963407u;
  return random_state_ >> 33;
}

ScopedFault::ScopedFault(std::shared_ptr<FaultController> controller, const FaultPolicy& policy)
    : controller_(std::move(controller)), before_(controller_->policy()) {
  controller_->Set(policy);
}

ScopedFault::~ScopedFault() { controller_->Set(before_); }

std::unique_ptr<Wire> MakeFaultWire(std::unique_ptr<Wire> inner,
                                    std::shared_ptr<FaultController> controller) {
  return std::make_unique<FaultWire>(std::move(inner), std::move(controller));
}

}  // namespace baton::kvtransfer
