#include "kvtransfer/nccl/nccl_pair.h"

#include <sys/socket.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "kvtransfer/nccl/nccl_end.h"
#include "kvtransfer/nccl/staged_end.h"
#include "kvtransfer/tcp/tcp_end.h"

namespace baton::kvtransfer {
namespace {

constexpr Duration kEndingNap = std::chrono::milliseconds(1);

}  // namespace

NcclPair::NcclPair(const NcclPairSetup& setup, PairRole role, UniqueFd socket, bool agreed,
                   TimePoint deadline, Wire::Accepted opened)
    : setup_(setup),
      role_(role),
      agreed_(agreed),
      deadline_(deadline),
      opened_(std::move(opened)),
      socket_(std::move(socket)) {
  thread_ = std::thread([this] {
    Run();
    finished_ = true;
  });
}

NcclPair::~NcclPair() { thread_.join(); }

void NcclPair::Stop() {
  MutexLock lock(mutex_);
  if (socket_.valid()) shutdown(socket_.get(), SHUT_RDWR);
}

UniqueFd NcclPair::TakeSocket() {
  MutexLock lock(mutex_);
  return std::move(socket_);
}

absl::StatusOr<std::unique_ptr<WireEnd>> NcclPair::MakeTcpEnd(const std::string& why) {
  const bool sends = role_ == PairRole::kSender;
  if (!setup_.fall_back) {
    return absl::FailedPreconditionError(absl::StrCat("nccl wire: ", why));
  }
  LogWarning("KV goes over TCP, not NCCL", {{"role", sends ? "sender" : "receiver"}, {"why", why}});
  ASSIGN_OR_RETURN(
      std::unique_ptr<WireEnd> end,
      TcpEnd::Create(sends ? WireDirection::kSend : WireDirection::kReceive, TakeSocket()));
  return std::make_unique<StagedEnd>(std::move(end), StagingPlace::kHost, setup_.device);
}

void NcclPair::Run() {
  std::unique_ptr<OwnedCommunicator> failed;
  std::shared_ptr<NcclEndCore> core;
  absl::StatusOr<std::unique_ptr<WireEnd>> end = absl::InternalError("not opened");
  int fd = -1;
  {
    MutexLock lock(mutex_);
    fd = socket_.get();
  }
  if (!agreed_) {
    end = MakeTcpEnd("the peer cannot use NCCL");
  } else {
    absl::StatusOr<OpenedPair> opened = OpenPair(setup_.opening, role_, fd, deadline_, &failed);
    absl::StatusOr<WakeEvent> wake = WakeEvent::Create();
    if (!opened.ok()) {
      end = opened.status();
    } else if (opened->communicator == nullptr) {
      end = MakeTcpEnd(opened->why_tcp);
    } else if (!wake.ok()) {
      opened->communicator->BeginEnd(/*orderly=*/false, [] {});
      failed = std::move(opened->communicator);
      end = wake.status();
    } else {
      core = std::make_shared<NcclEndCore>(role_, TakeSocket(), *std::move(wake),
                                           std::move(opened->communicator));
      end = std::make_unique<NcclEnd>(core);
    }
  }
  if (!end.ok()) (void)TakeSocket();  // Closed, so that the peer does not wait.
  opened_(std::move(end));
  opened_ = nullptr;
  if (core != nullptr) core->Run();
  Mutex mutex;
  CondVar never;
  // Nothing was posted to it, so a lost GPU ends the wait too.
  while (failed != nullptr && !failed->Quiet() && !failed->lost()) {
    MutexLock lock(mutex);
    never.WaitFor(mutex, kEndingNap);
  }
}

}  // namespace baton::kvtransfer
