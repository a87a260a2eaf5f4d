#include "kvtransfer/nccl/nccl_wire.h"

#include <algorithm>
#include <list>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "kvtransfer/nccl/nccl_pair.h"
#include "kvtransfer/nccl/owned_communicator.h"

namespace baton::kvtransfer {
namespace {

constexpr int kCtasMax = 64;
// Of all communicators: the multiprocessors of a GPU, about.
constexpr int kCtasOfAllMax = 128;
constexpr Duration kOpeningGrace = std::chrono::seconds(1);

// Where Connect waits for its pair.
struct Connecting {
  Mutex mutex;
  CondVar done;
  std::optional<absl::StatusOr<std::unique_ptr<WireEnd>>> result GUARDED_BY(mutex);
  bool given_up GUARDED_BY(mutex) = false;  // Whatever comes is not wanted.
};

class NcclWire : public TcpWire, public TcpUpgrade {
 public:
  NcclWire(const NcclWireOptions& options, std::unique_ptr<PairCommunicators> communicators,
           Device* device, std::shared_ptr<void> memory)
      : options_(options),
        communicators_(std::move(communicators)),
        device_(device),
        memory_(std::move(memory)),
        budget_(options.communicators_max) {}
  ~NcclWire() override { Shutdown(); }

  absl::Status Listen() {
    ASSIGN_OR_RETURN(tcp_, MakeTcpWire(options_.tcp, this));
    address_ = tcp_->address();
    return absl::OkStatus();
  }

  absl::string_view name() const override { return options_.fall_back ? "auto" : "nccl"; }
  StagingPlace staging_place() const override { return StagingPlace::kDevice; }
  const std::string& address() const override { return address_; }

  absl::StatusOr<WireOffer> Offer(Duration limit, Accepted accepted) override {
    if (tcp_ == nullptr) {
      return absl::FailedPreconditionError("nccl wire: this process only connects");
    }
    return tcp_->Offer(limit, std::move(accepted));
  }
  void Withdraw(const WireOffer& offer) override {
    if (tcp_ != nullptr) tcp_->Withdraw(offer);
  }

  absl::StatusOr<std::unique_ptr<WireEnd>> Connect(const WireOffer& offer,
                                                   Duration limit) override {
    const TimePoint deadline = SaturatingAdd(Clock::Real()->Now(), limit);
    ASSIGN_OR_RETURN(TcpConnection connection, ConnectTcpWire(offer, true, deadline));
    auto connecting = std::make_shared<Connecting>();
    const bool started =
        Start(PairRole::kSender, std::move(connection.socket), connection.upgraded, deadline,
              [connecting](absl::StatusOr<std::unique_ptr<WireEnd>> end) {
                MutexLock lock(connecting->mutex);
                if (connecting->given_up) return;  // The end is destroyed.
                connecting->result = std::move(end);
                connecting->done.SignalAll();
              });
    if (!started) return absl::UnavailableError("nccl wire: shut down");
    // The opening ends at the deadline by itself, but for a library that does not return.
    const TimePoint give_up = SaturatingAdd(deadline, kOpeningGrace);
    MutexLock lock(connecting->mutex);
    while (!connecting->result.has_value()) {
      const TimePoint now = Clock::Real()->Now();
      if (now >= give_up) {
        connecting->given_up = true;
        return absl::DeadlineExceededError("nccl wire: the pair could not be opened in time");
      }
      connecting->done.WaitFor(connecting->mutex, give_up - now);
    }
    return *std::move(connecting->result);
  }

  void Accept(UniqueFd socket, bool agreed, Wire::Accepted accepted) override {
    // Kept apart, so that it is called exactly once whatever happens.
    auto shared = std::make_shared<Wire::Accepted>(std::move(accepted));
    const auto opened = [shared](absl::StatusOr<std::unique_ptr<WireEnd>> end) {
      (*shared)(std::move(end));
    };
    const TimePoint deadline = SaturatingAdd(Clock::Real()->Now(), options_.opening_limit);
    if (!Start(PairRole::kReceiver, std::move(socket), agreed, deadline, opened)) {
      (*shared)(absl::CancelledError("nccl wire: shut down"));
    }
  }

  void Shutdown() override {
    std::list<std::unique_ptr<NcclPair>> pairs;
    {
      MutexLock lock(mutex_);
      if (stopped_) return;
      stopped_ = true;
      pairs.swap(pairs_);
    }
    if (tcp_ != nullptr) tcp_->Shutdown();
    for (const auto& pair : pairs) pair->Stop();
    pairs.clear();
  }

 private:
  // False after Shutdown.
  bool Start(PairRole role, UniqueFd socket, bool agreed, TimePoint deadline, Wire::Accepted opened)
      EXCLUDES(mutex_) {
    NcclPairSetup setup;
    setup.opening = {.communicators = communicators_.get(),
                     .budget = &budget_,
                     .gate = device_ != nullptr ? device_->capture_gate() : nullptr,
                     .num_ctas = options_.num_ctas};
    setup.fall_back = options_.fall_back;
    setup.device = device_;
    std::list<std::unique_ptr<NcclPair>> finished;
    MutexLock lock(mutex_);
    if (stopped_) return false;
    for (auto it = pairs_.begin(); it != pairs_.end();) {
      const auto next = std::next(it);
      if ((*it)->finished()) finished.splice(finished.end(), pairs_, it);
      it = next;
    }
    pairs_.push_back(std::make_unique<NcclPair>(setup, role, std::move(socket), agreed, deadline,
                                                std::move(opened)));
    return true;
  }

  const NcclWireOptions options_;
  const std::unique_ptr<PairCommunicators> communicators_;
  Device* const device_;
  const std::shared_ptr<void> memory_;
  CommunicatorBudget budget_;
  std::unique_ptr<TcpWire> tcp_;  // Constant after Listen.
  std::string address_;
  Mutex mutex_;
  bool stopped_ GUARDED_BY(mutex_) = false;
  // Those whose thread has finished go when the next begins. Bounded by the pairs of the owner.
  std::list<std::unique_ptr<NcclPair>> pairs_ GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<TcpWire>> MakeNcclWire(
    const NcclWireOptions& options, std::unique_ptr<PairCommunicators> communicators,
    Device* device) {
  if (options.num_ctas < 1 || options.num_ctas > kCtasMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.num_ctas, " thread blocks for NCCL, not 1 to ", kCtasMax));
  }
  if (options.communicators_max < 1 ||
      options.communicators_max > kCtasOfAllMax / options.num_ctas) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.communicators_max, " NCCL communicators of ", options.num_ctas,
                     " thread blocks, not 1 to ", kCtasOfAllMax / options.num_ctas,
                     ": all must run at a time, or pairs could wait for each other in a circle"));
  }
  const int64_t bytes = PairCommunicatorBytes(options.num_ctas) * options.communicators_max;
  std::shared_ptr<void> memory;
  if (device != nullptr) {
    ASSIGN_OR_RETURN(memory, device->ReserveMemory(bytes, "NCCL communicators"));
  }
  auto wire =
      std::make_unique<NcclWire>(options, std::move(communicators), device, std::move(memory));
  if (options.listens) RETURN_IF_ERROR(wire->Listen());
  LogInfo("KV goes over NCCL where both sides can",
          {{"thread_blocks", options.num_ctas},
           {"communicators_max", options.communicators_max},
           {"memory_bytes", bytes}});
  return wire;
}

}  // namespace baton::kvtransfer
