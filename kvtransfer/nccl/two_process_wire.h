// For tests of wires whose two ends need two processes, or memory elsewhere than the tests have.
#ifndef BATON_KVTRANSFER_NCCL_TWO_PROCESS_WIRE_H_
#define BATON_KVTRANSFER_NCCL_TWO_PROCESS_WIRE_H_

#include <functional>
#include <memory>
#include <utility>

#include "kvtransfer/wire.h"

namespace baton::kvtransfer {

// Two wires as one: offers are made by the first, connections by the second, as in two processes.
class TwoProcessWire : public Wire {
 public:
  TwoProcessWire(std::unique_ptr<Wire> offers, std::unique_ptr<Wire> connects)
      : offers_(std::move(offers)), connects_(std::move(connects)) {}

  absl::string_view name() const override { return offers_->name(); }
  absl::StatusOr<WireOffer> Offer(Duration limit, Accepted accepted) override {
    return offers_->Offer(limit, std::move(accepted));
  }
  void Withdraw(const WireOffer& offer) override { offers_->Withdraw(offer); }
  absl::StatusOr<std::unique_ptr<WireEnd>> Connect(const WireOffer& offer,
                                                   Duration limit) override {
    return connects_->Connect(offer, limit);
  }
  void Shutdown() override {
    connects_->Shutdown();
    offers_->Shutdown();
  }

 private:
  const std::unique_ptr<Wire> offers_;
  const std::unique_ptr<Wire> connects_;
};

// A wire all of whose ends are wrapped. Its staging slots lie in memory of the host.
class DecoratedWire : public Wire {
 public:
  using Decorate = std::function<std::unique_ptr<WireEnd>(std::unique_ptr<WireEnd>)>;

  DecoratedWire(std::unique_ptr<Wire> inner, Decorate decorate)
      : decorate_(std::move(decorate)), inner_(std::move(inner)) {}

  absl::string_view name() const override { return inner_->name(); }
  absl::StatusOr<WireOffer> Offer(Duration limit, Accepted accepted) override {
    return inner_->Offer(limit, [accepted = std::move(accepted), decorate = decorate_](
                                    absl::StatusOr<std::unique_ptr<WireEnd>> end) {
      if (end.ok()) end = decorate(*std::move(end));
      accepted(std::move(end));
    });
  }
  void Withdraw(const WireOffer& offer) override { inner_->Withdraw(offer); }
  absl::StatusOr<std::unique_ptr<WireEnd>> Connect(const WireOffer& offer,
                                                   Duration limit) override {
    absl::StatusOr<std::unique_ptr<WireEnd>> end = inner_->Connect(offer, limit);
    if (end.ok()) end = decorate_(*std::move(end));
    return end;
  }
  void Shutdown() override { inner_->Shutdown(); }

 private:
  const Decorate decorate_;  // May own what the wire below needs.
  const std::unique_ptr<Wire> inner_;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_NCCL_TWO_PROCESS_WIRE_H_
