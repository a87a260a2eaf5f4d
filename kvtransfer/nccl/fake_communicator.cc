#include "kvtransfer/nccl/fake_communicator.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>

#include "common/base/check.h"
#include "kvtransfer/nccl/two_process_wire.h"
#include "kvtransfer/test_support.h"

namespace baton::kvtransfer {
namespace {

constexpr size_t kPieceBytes = 64 << 10;
constexpr Duration kNap = std::chrono::milliseconds(1);

}  // namespace

// Two ranks and the thread that plays the kernels of both.
class FakeChannel {
 public:
  explicit FakeChannel(FakeNccl* nccl) : nccl_(nccl), thread_([this] { Run(); }) {}
  ~FakeChannel() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.SignalAll();
    }
    thread_.join();
  }

  void Attach(PairRole role) {
    MutexLock lock(mutex_);
    CHECK(!side(role).attached) << "two halves of one role";
    side(role).attached = true;
    side(role).made_at = Clock::Real()->Now() + nccl_->behaviour().make_time;
  }

  absl::StatusOr<bool> Ready(PairRole role) {
    const TimePoint now = Clock::Real()->Now();
    MutexLock lock(mutex_);
    Side& own = side(role);
    CHECK(!own.ending);
    if (own.failed) return absl::UnavailableError("the fake communicator has failed");
    if (nccl_->behaviour().never_made) return false;
    const Side& other = side(Other(role));
    own.ready = own.attached && other.attached && own.made_at <= now && other.made_at <= now &&
                own.launched_at <= now;
    return own.ready;
  }

  absl::Status Post(PairRole role, absl::Span<std::byte> bytes) {
    const FakeNcclBehaviour behaviour = nccl_->behaviour();
    MutexLock lock(mutex_);
    Side& own = side(role);
    CHECK(own.ready) << "Post without Ready";
    CHECK(!bytes.empty());
    CHECK(!own.ending);
    own.ready = false;
    own.launched_at = Clock::Real()->Now() + behaviour.launch_time;
    ++own.posted;
    if (role == PairRole::kReceiver) {
      CHECK_LE(own.posted, side(PairRole::kSender).posted) << "a receive before its send";
    }
    own.operations.push_back(bytes);
    changed_.SignalAll();
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> Completed(PairRole role) {
    const int64_t fails_after = nccl_->behaviour().fails_after;
    MutexLock lock(mutex_);
    Side& own = side(role);
    CHECK(!own.ending);
    if (fails_after >= 0 && own.completed >= static_cast<uint64_t>(fails_after)) own.failed = true;
    if (own.failed) return absl::UnavailableError("the fake communicator has failed");
    return own.completed;
  }

  void End(PairRole role, bool orderly) {
    const FakeNcclBehaviour behaviour = nccl_->behaviour();
    {
      MutexLock lock(mutex_);
      side(role).ending = true;
    }
    Pause(behaviour.abort_time);
    MutexLock lock(mutex_);
    Side& own = side(role);
    CHECK(!orderly || own.operations.empty()) << "destroyed while something runs";
    own.quiet_at = Clock::Real()->Now() + behaviour.linger_time;
    own.ended = true;
    changed_.SignalAll();
  }

  bool Quiet(PairRole role) {
    MutexLock lock(mutex_);
    const Side& own = side(role);
    CHECK(own.ended) << "Quiet before the end";
    return own.operations.empty();
  }

 private:
  struct Side {
    bool attached = false;
    TimePoint made_at{};
    TimePoint launched_at{};
    bool ready = false;
    bool failed = false;
    uint64_t posted = 0;
    uint64_t completed = 0;
    std::deque<absl::Span<std::byte>> operations;  // Launched and not off the GPU.
    bool ending = false;                           // Abort or Destroy was called,
    bool ended = false;                            // and has returned.
    TimePoint quiet_at{};
  };

  static PairRole Other(PairRole role) {
    return role == PairRole::kSender ? PairRole::kReceiver : PairRole::kSender;
  }
  Side& side(PairRole role) REQUIRES(mutex_) { return sides_[role == PairRole::kSender ? 0 : 1]; }

  void Run() {
    MutexLock lock(mutex_);
    while (!stopping_) {
      Side& sender = sides_[0];
      Side& receiver = sides_[1];
      Leave(sender, nullptr);
      Leave(receiver, &receiver);
      const bool both = !sender.operations.empty() && !receiver.operations.empty();
      if (both && !sender.ended && !receiver.ended && !nccl_->behaviour().operations_spin) {
        Copy(sender, receiver);
      } else if (!sender.operations.empty() && !sender.ended && receiver.ended) {
        // Measured: such a send completes, and nobody has received it.
        sender.operations.pop_front();
        ++sender.completed;
      } else {
        changed_.WaitFor(mutex_, kNap);
      }
    }
  }

  // The kernels of an aborted side leave the GPU when their time has come; until then the one that
  // receives writes.
  void Leave(Side& own, Side* writes) REQUIRES(mutex_) {
    if (!own.ended || own.operations.empty()) return;
    if (writes != nullptr) {
      const absl::Span<std::byte> bytes = own.operations.front();
      std::fill(bytes.begin(), bytes.end(), std::byte{0xBD});
    }
    if (Clock::Real()->Now() >= own.quiet_at) own.operations.clear();
  }

  void Copy(Side& sender, Side& receiver) REQUIRES(mutex_) {
    const absl::Span<std::byte> from = sender.operations.front();
    const absl::Span<std::byte> to = receiver.operations.front();
    CHECK_EQ(from.size(), to.size()) << "halves of different sizes";
    const TimePoint end = Clock::Real()->Now() + nccl_->behaviour().operation_time;
    for (size_t offset = 0; offset < from.size() || Clock::Real()->Now() < end;) {
      if (sender.ended || receiver.ended || stopping_) return;  // An abort in mid-copy.
      const size_t size = std::min(kPieceBytes, from.size() - offset);
      if (size > 0) std::memcpy(to.data() + offset, from.data() + offset, size);
      offset += size;
      // The lock is let go, so that others see it half done.
      changed_.WaitFor(mutex_, size > 0 ? Duration{1} : kNap);
    }
    for (Side* side : {&sender, &receiver}) {
      side->operations.pop_front();
      ++side->completed;
    }
  }

  FakeNccl* const nccl_;
  Mutex mutex_;
  CondVar changed_;
  std::array<Side, 2> sides_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

namespace {

class FakeCommunicator : public PairCommunicator {
 public:
  FakeCommunicator(std::shared_ptr<FakeNccl> nccl, PairRole role,
                   std::shared_ptr<FakeChannel> channel)
      : nccl_(std::move(nccl)), role_(role), channel_(std::move(channel)) {
    channel_->Attach(role_);
    nccl_->CountMade();
  }
  ~FakeCommunicator() override {
    CHECK(nccl_->behaviour().gpu_lost || channel_->Quiet(role_)) << "gone before it is quiet";
  }

  absl::StatusOr<bool> Ready() override { return channel_->Ready(role_); }
  absl::Status Post(absl::Span<std::byte> bytes) override { return channel_->Post(role_, bytes); }
  absl::StatusOr<uint64_t> Completed() override { return channel_->Completed(role_); }
  void Abort() override { End(false); }
  void Destroy() override { End(true); }
  absl::StatusOr<bool> Quiet() override {
    if (nccl_->behaviour().gpu_lost) return absl::UnavailableError("the fake GPU is lost");
    return channel_->Quiet(role_);
  }

 private:
  void End(bool orderly) {
    channel_->End(role_, orderly);
    nccl_->CountEnd(orderly);
  }

  const std::shared_ptr<FakeNccl> nccl_;
  const PairRole role_;
  const std::shared_ptr<FakeChannel> channel_;
};

class FakeCommunicators : public PairCommunicators {
 public:
  FakeCommunicators(std::shared_ptr<FakeNccl> nccl, uint8_t gpu, uint32_t library_version)
      : nccl_(std::move(nccl)), library_version_(library_version) {
    uuid_[0] = static_cast<std::byte>(gpu);
  }
  DeviceUuid device_uuid() const override { return uuid_; }
  bool accepts_shared_device() const override { return nccl_->behaviour().accepts_shared_device; }
  uint32_t library_version() const override { return library_version_; }
  absl::StatusOr<PairId> MintId() override { return nccl_->MintId(); }
  absl::StatusOr<std::unique_ptr<PairCommunicator>> Make(PairRole role, const PairId& id,
                                                         int num_ctas) override {
    CHECK_GE(num_ctas, 1);
    if (nccl_->behaviour().make_fails) return absl::UnavailableError("the fake cannot make it");
    return std::make_unique<FakeCommunicator>(nccl_, role, nccl_->Channel(id));
  }

 private:
  const std::shared_ptr<FakeNccl> nccl_;
  const uint32_t library_version_;
  DeviceUuid uuid_{};
};

}  // namespace

void FakeNccl::Set(const FakeNcclBehaviour& behaviour) {
  MutexLock lock(mutex_);
  behaviour_ = behaviour;
}

FakeNcclBehaviour FakeNccl::behaviour() const {
  MutexLock lock(mutex_);
  return behaviour_;
}

FakeNcclCounts FakeNccl::counts() const {
  MutexLock lock(mutex_);
  return counts_;
}

std::shared_ptr<FakeChannel> FakeNccl::Channel(const PairId& id) {
  MutexLock lock(mutex_);
  std::shared_ptr<FakeChannel> channel = channels_[id].lock();
  if (channel == nullptr) {
    channel = std::make_shared<FakeChannel>(this);
    channels_[id] = channel;
  }
  return channel;
}

PairId FakeNccl::MintId() {
  MutexLock lock(mutex_);
  PairId id{};
  std::memcpy(id.data(), &next_id_, sizeof(next_id_));
  ++next_id_;
  return id;
}

void FakeNccl::CountMade() {
  MutexLock lock(mutex_);
  ++counts_.made;
  ++counts_.live;
  counts_.live_max = std::max(counts_.live_max, counts_.live);
}

void FakeNccl::CountEnd(bool orderly) {
  MutexLock lock(mutex_);
  ++(orderly ? counts_.destroyed : counts_.aborted);
  --counts_.live;
}

std::unique_ptr<PairCommunicators> MakeFakeCommunicators(std::shared_ptr<FakeNccl> nccl,
                                                         uint8_t gpu, uint32_t library_version) {
  return std::make_unique<FakeCommunicators>(std::move(nccl), gpu, library_version);
}

std::unique_ptr<Wire> MakeFakeNcclWire(const std::shared_ptr<FakeNccl>& nccl,
                                       NcclWireOptions options, uint8_t gpu_p) {
  auto offers = MakeNcclWire(options, MakeFakeCommunicators(nccl, 2), nullptr);
  CHECK(offers.ok()) << offers.status();
  options.listens = false;
  auto connects = MakeNcclWire(options, MakeFakeCommunicators(nccl, gpu_p), nullptr);
  CHECK(connects.ok()) << connects.status();
  return std::make_unique<TwoProcessWire>(*std::move(offers), *std::move(connects));
}

}  // namespace baton::kvtransfer
