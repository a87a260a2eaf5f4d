#include "kvtransfer/local/local_wire.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "kvtransfer/local/local_channel.h"
#include "kvtransfer/wire_token.h"

namespace baton::kvtransfer {
namespace {

// Work for the mover thread. Outlives the wire as long as an end does. Bounded by the operations,
// aborts and offers of its callers.
class MoverQueue {
 public:
  // Either a channel to serve, or an accepted end to hand out.
  struct Item {
    std::shared_ptr<LocalChannel> channel = nullptr;
    Wire::Accepted accepted = nullptr;
    std::unique_ptr<WireEnd> end = nullptr;
  };

  void Push(Item item) EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      items_.push_back(std::move(item));
    }
    ready_.Signal();
  }
  // Makes a waiting Pop return.
  void Wake() { ready_.Signal(); }
  // False when nothing came within `timeout`, or on Wake.
  bool Pop(Duration timeout, Item* item) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (items_.empty()) ready_.WaitFor(mutex_, timeout);
    if (items_.empty()) return false;
    *item = std::move(items_.front());
    items_.pop_front();
    return true;
  }

 private:
  Mutex mutex_;
  CondVar ready_;
  std::deque<Item> items_ GUARDED_BY(mutex_);
};

class LocalEnd : public WireEnd {
 public:
  LocalEnd(LocalSide side, std::shared_ptr<LocalChannel> channel, std::shared_ptr<MoverQueue> mover)
      : side_(side), channel_(std::move(channel)), mover_(std::move(mover)) {}

  ~LocalEnd() override {
    Abort(absl::CancelledError("wire end destroyed"));
    channel_->AwaitQuiescence(side_);
  }

  void PostSend(uint64_t sequence_number, absl::Span<const std::byte> bytes,
                Completion done) override {
    // The channel never writes through the span of a send.
    absl::Span<std::byte> span(const_cast<std::byte*>(bytes.data()), bytes.size());
    Post(LocalSide::kSender, sequence_number, span, std::move(done));
  }
  void PostReceive(uint64_t sequence_number, absl::Span<std::byte> bytes,
                   Completion done) override {
    Post(LocalSide::kReceiver, sequence_number, bytes, std::move(done));
  }
  void Abort(const absl::Status& reason) override {
    channel_->Abort(side_, reason);
    mover_->Push({.channel = channel_});
  }
  bool Quiescent() const override { return channel_->Quiescent(side_); }

 private:
  void Post(LocalSide direction, uint64_t sequence_number, absl::Span<std::byte> bytes,
            Completion done) {
    CHECK_LE(bytes.size(), kWireOperationBytesMax);
    absl::Status refusal;
    if (direction != side_) {
      refusal = absl::FailedPreconditionError(side_ == LocalSide::kSender
                                                  ? "the connecting end of a wire only sends"
                                                  : "the accepting end of a wire only receives");
    }
    channel_->Post(side_, {sequence_number, bytes, std::move(done), refusal});
    mover_->Push({.channel = channel_});
  }

  const LocalSide side_;
  const std::shared_ptr<LocalChannel> channel_;
  const std::shared_ptr<MoverQueue> mover_;
};

class LocalWire : public Wire {
 public:
  LocalWire() : mover_(std::make_shared<MoverQueue>()) {
    static std::atomic<uint64_t> instances{0};
    address_ = absl::StrCat("local:", instances.fetch_add(1));
    thread_ = std::thread([this] { Run(); });
  }
  ~LocalWire() override { Shutdown(); }

  absl::string_view name() const override { return "local"; }

  absl::StatusOr<WireOffer> Offer(Duration limit, Accepted accepted) override {
    ASSIGN_OR_RETURN(std::string token, MintWireToken());
    {
      MutexLock lock(mutex_);
      if (stopped_) return absl::UnavailableError("local wire: shut down");
      if (offers_.size() >= kWireOffersMax) {
        return absl::ResourceExhaustedError(
            absl::StrCat("local wire: ", kWireOffersMax, " offers are open"));
      }
      offers_[token] = {SaturatingAdd(Clock::Real()->Now(), limit), std::move(accepted)};
    }
    mover_->Wake();
    return WireOffer{address_, token};
  }

  void Withdraw(const WireOffer& offer) override {
    Accepted accepted = TakeOffer(offer);
    if (accepted) accepted(absl::CancelledError("local wire: offer withdrawn"));
  }

  absl::StatusOr<std::unique_ptr<WireEnd>> Connect(const WireOffer& offer,
                                                   Duration limit) override {
    if (offer.address != address_) {
      return absl::InvalidArgumentError(
          absl::StrCat("local wire: '", offer.address, "' is not in this process"));
    }
    Accepted accepted = TakeOffer(offer);
    if (!accepted) {
      return absl::UnavailableError("local wire: unknown, expired, used or withdrawn offer");
    }
    auto channel = std::make_shared<LocalChannel>();
    auto sender = std::make_unique<LocalEnd>(LocalSide::kSender, channel, mover_);
    mover_->Push({.accepted = std::move(accepted),
                  .end = std::make_unique<LocalEnd>(LocalSide::kReceiver, channel, mover_)});
    return sender;
  }

  void Shutdown() override {
    std::map<std::string, OpenOffer> offers;
    {
      MutexLock lock(mutex_);
      if (stopped_) return;
      stopped_ = true;
      offers.swap(offers_);
    }
    for (auto& [token, offer] : offers) {
      offer.accepted(absl::CancelledError("local wire: shut down"));
    }
    mover_->Push({});
    thread_.join();
  }

 private:
  struct OpenOffer {
    TimePoint expires;
    Accepted accepted;
  };

  Accepted TakeOffer(const WireOffer& offer) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    auto it = offers_.find(offer.token);
    if (it == offers_.end()) return nullptr;
    if (it->second.expires <= Clock::Real()->Now()) return nullptr;  // The mover reports it.
    Accepted accepted = std::move(it->second.accepted);
    offers_.erase(it);
    return accepted;
  }

  // True while offers are open.
  bool ExpireOffers() EXCLUDES(mutex_) {
    std::vector<Accepted> expired;
    bool open = false;
    {
      MutexLock lock(mutex_);
      const TimePoint now = Clock::Real()->Now();
      for (auto it = offers_.begin(); it != offers_.end();) {
        if (it->second.expires <= now) {
          expired.push_back(std::move(it->second.accepted));
          it = offers_.erase(it);
        } else {
          ++it;
        }
      }
      open = !offers_.empty();
    }
    for (Accepted& accepted : expired) {
      accepted(absl::DeadlineExceededError("local wire: nobody connected within the limit"));
    }
    return open;
  }

  void Run() {
    for (;;) {
      MoverQueue::Item item;
      const Duration wait = std::chrono::milliseconds(ExpireOffers() ? 20 : 1000);
      if (!mover_->Pop(wait, &item)) continue;
      if (item.channel != nullptr) {
        item.channel->Move();
      } else if (item.accepted) {
        item.accepted(std::move(item.end));
      } else {
        return;  // Shutdown's mark, behind everything that was queued.
      }
    }
  }

  const std::shared_ptr<MoverQueue> mover_;
  std::string address_;  // Constant after construction.
  std::thread thread_;
  Mutex mutex_;
  bool stopped_ GUARDED_BY(mutex_) = false;
  std::map<std::string, OpenOffer> offers_ GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Wire> MakeLocalWire() { return std::make_unique<LocalWire>(); }

}  // namespace baton::kvtransfer
