// The child of transfer_process_test: a prefill or decode worker without a model, which the test
// kills or stops. Prints one line, its control address or "ready", and works until it is killed or
// its parent has gone.
//
//   kvtransfer_test_worker WIRE sender CONTROL_ADDRESS RECEIVER_INSTANCE FIRST_ID
//   kvtransfer_test_worker WIRE receiver INSTANCE FIRST_ID
//
// WIRE: tcp or nccl (on the machine's second GPU; the parent has the first).
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/check.h"
#include "common/base/log.h"
#include "kvtransfer/process/socket_link.h"
#include "kvtransfer/process/test_worker.h"
#include "kvtransfer/transfer_receiver.h"
#include "kvtransfer/transfer_sender.h"

namespace baton::kvtransfer {
namespace {

constexpr uint64_t kTransfersAhead = 8;

// Counts endings and keeps nothing else.
class CountingObserver : public TransferSenderObserver, public TransferReceiverObserver {
 public:
  void OnDelivered(TransferId, const TransferStats&) override {}
  void OnReleased(TransferId) override {}
  void OnReceived(TransferId id, const std::string&, const TransferStats&) override {
    if (TransferReceiver* r = receiver) r->ConfirmProgress(id);
  }
  void OnFailed(TransferId, const absl::Status&) override {}
  void OnPairFailed(const PeerAddress&, const absl::Status&) override {}
  void OnQuiescent(TransferId) override { ++ended; }

  std::atomic<uint64_t> ended{0};
  std::atomic<TransferReceiver*> receiver{nullptr};
};

void Announce(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// Calls `start` with the next id whenever fewer than kTransfersAhead transfers are open, for ever.
void KeepBusy(uint64_t first_id, const CountingObserver& observer,
              const std::function<void(TransferId)>& start) {
  for (uint64_t started = 0;;) {
    if (started - observer.ended < kTransfersAhead) {
      start(TransferId(first_id + started++));
    } else {
      Pause(std::chrono::microseconds(200));
    }
  }
}

void RunSender(Wire* wire, const std::string& control_address, uint64_t receiver, uint64_t first) {
  SocketDialer dialer;
  auto sender = MakeTransferSender(WorkerSetup(static_cast<uint64_t>(getpid()), wire), &dialer);
  CountingObserver observer;
  std::map<uint64_t, std::unique_ptr<WorkerBlocks>> blocks;  // Kept: the sender reads them.
  Announce("ready");
  KeepBusy(first, observer, [&](TransferId id) {
    auto& b = blocks[id.value] = std::make_unique<WorkerBlocks>(id);
    const absl::Status s =
        sender->Begin(id, kWorkerModel, {control_address, receiver}, kNever, &observer);
    CHECK(s.ok()) << s;
    sender->Push(id, b->Sources());
    sender->Finish(id, "payload");
  });
}

void RunReceiver(Wire* wire, uint64_t instance, uint64_t first) {
  auto receiver = MakeTransferReceiver(WorkerSetup(instance, wire));
  CountingObserver observer;
  observer.receiver = receiver.get();
  std::map<uint64_t, std::unique_ptr<WorkerBlocks>> blocks;
  const auto expect = [&](TransferId id) {
    auto& b = blocks[id.value] = std::make_unique<WorkerBlocks>(id);
    const absl::Status s = receiver->Expect(id, kWorkerModel, b->Destinations(), kNever, &observer);
    CHECK(s.ok()) << s;
  };
  for (uint64_t i = 0; i < 64; ++i) expect(TransferId(first + i));
  auto listener = SocketListener::Create(
      [&](std::shared_ptr<ControlLink> link) { receiver->AcceptLink(std::move(link)); });
  CHECK(listener.ok()) << listener.status();
  Announce((*listener)->address());
  KeepBusy(first + 64, observer, [&](TransferId id) { expect(id); });
}

void Main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  SetLogLevel(LogLevel::kError);
  CHECK_GE(argc, 5);
  auto wire = MakeWorkerWire(argv[1], NcclPeerOrdinal());
  if (std::string(argv[2]) == "sender") {
    CHECK_EQ(argc, 6);
    RunSender(wire.get(), argv[3], std::strtoull(argv[4], nullptr, 10),
              std::strtoull(argv[5], nullptr, 10));
  } else {
    RunReceiver(wire.get(), std::strtoull(argv[3], nullptr, 10),
                std::strtoull(argv[4], nullptr, 10));
  }
}

}  // namespace
}  // namespace baton::kvtransfer

int main(int argc, char** argv) { baton::kvtransfer::Main(argc, argv); }
