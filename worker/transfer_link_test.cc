// Goal: control messages of the hand-over arrive unchanged and in order over gRPC, and a link that
// breaks says so at both ends.
#include "worker/transfer_link.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/rpc/in_process_server.h"

namespace baton::worker {
namespace {

namespace kvt = kvtransfer;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Collects what a link delivers.
class Collector {
 public:
  kvt::ControlLink::Handler Handler() {
    return {.on_message =
                [this](kvt::ControlMessage message) {
                  MutexLock lock(mutex_);
                  messages_.push_back(std::move(message));
                  changed_.SignalAll();
                },
            .on_closed =
                [this](const absl::Status& status) {
                  MutexLock lock(mutex_);
                  ++closed_;
                  status_ = status;
                  changed_.SignalAll();
                }};
  }
  std::vector<kvt::ControlMessage> Wait(size_t n) {
    MutexLock lock(mutex_);
    for (int i = 0; i < 500 && messages_.size() < n; ++i)
      changed_.WaitFor(mutex_, milliseconds(10));
    return messages_;
  }
  int WaitClosed() {
    MutexLock lock(mutex_);
    for (int i = 0; i < 500 && closed_ == 0; ++i) changed_.WaitFor(mutex_, milliseconds(10));
    return closed_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<kvt::ControlMessage> messages_ GUARDED_BY(mutex_);
  int closed_ GUARDED_BY(mutex_) = 0;
  absl::Status status_ GUARDED_BY(mutex_);
};

class TransferLinkTest : public testing::Test {
 protected:
  TransferLinkTest()
      : service_([this](std::shared_ptr<kvt::ControlLink> link) {
          link->Start(at_d_.Handler());
          MutexLock lock(mutex_);
          d_link_ = std::move(link);
          changed_.SignalAll();
        }),
        server_({&service_}) {
    dialer_.AddInProcess("d", server_.Channel());
  }

  std::shared_ptr<kvt::ControlLink> Dial() {
    auto link = dialer_.Dial("d");
    link->Start(at_p_.Handler());
    return link;
  }
  std::shared_ptr<kvt::ControlLink> DLink() {
    MutexLock lock(mutex_);
    for (int i = 0; i < 500 && d_link_ == nullptr; ++i) {
      changed_.WaitFor(mutex_, milliseconds(10));
    }
    return d_link_;
  }
  void TearDown() override {
    {
      MutexLock lock(mutex_);
      d_link_.reset();
    }
    server_.Shutdown(seconds(2));
  }

  Collector at_p_;
  Collector at_d_;
  Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<kvt::ControlLink> d_link_ GUARDED_BY(mutex_);
  TransferService service_;
  rpc::InProcessServer server_;
  GrpcControlDialer dialer_;
};

TEST_F(TransferLinkTest, EveryMessageArrivesAsItWasSent) {
  auto p = Dial();
  kvt::SenderHello hello;
  hello.sender_instance_id = 1;
  hello.receiver_instance_id = 2;
  hello.kv_layouts = {"m=layout"};
  hello.wire = "tcp";
  ASSERT_TRUE(p->Send(hello));
  ASSERT_TRUE(p->Send(kvt::ChunkReady{TransferId(3), 4, {{5, 6, 7}, {8, 9, 10}}, 17, 99}));
  ASSERT_TRUE(p->Send(kvt::TransferFinal{TransferId(3), 1, std::string("a\0b", 3)}));
  ASSERT_TRUE(p->Send(kvt::TransferAbort{TransferId(3), "why"}));
  ASSERT_TRUE(p->Send(kvt::LinkHeartbeat{12}));
  const auto at_d = at_d_.Wait(5);
  ASSERT_EQ(at_d.size(), 5u);
  const auto& got = std::get<kvt::SenderHello>(at_d[0]);
  EXPECT_EQ(got.protocol_version, kvt::kTransferProtocolVersion);
  EXPECT_EQ(got.receiver_instance_id, 2u);
  EXPECT_EQ(got.kv_layouts, hello.kv_layouts);
  EXPECT_EQ(got.wire, "tcp");
  const auto& ready = std::get<kvt::ChunkReady>(at_d[1]);
  EXPECT_EQ(ready.transfer_id, TransferId(3));
  EXPECT_EQ(ready.sequence_number, 4u);
  ASSERT_EQ(ready.ranges.size(), 2u);
  EXPECT_EQ(ready.ranges[1].logical_block, 8u);
  EXPECT_EQ(ready.ranges[1].offset, 9u);
  EXPECT_EQ(ready.ranges[1].length, 10u);
  EXPECT_EQ(ready.checksum, 99u);
  EXPECT_EQ(std::get<kvt::TransferFinal>(at_d[2]).payload, std::string("a\0b", 3));
  EXPECT_EQ(std::get<kvt::TransferAbort>(at_d[3]).reason, "why");
  EXPECT_EQ(std::get<kvt::LinkHeartbeat>(at_d[4]).sequence_number, 12u);

  auto d = DLink();
  ASSERT_TRUE(d->Send(kvt::ReceiverHello{1, 2, "no", "addr", std::string("\xff\x00", 2), 64}));
  ASSERT_TRUE(d->Send(kvt::ChunkGo{4}));
  ASSERT_TRUE(d->Send(kvt::ChunkDone{4, 99}));
  ASSERT_TRUE(d->Send(kvt::ChunkDrop{5}));
  ASSERT_TRUE(d->Send(kvt::TransferFailed{TransferId(3), "bad"}));
  ASSERT_TRUE(d->Send(kvt::LeaseRenew{{TransferId(3), TransferId(4)}}));
  ASSERT_TRUE(d->Send(kvt::LeaseRelease{TransferId(3)}));
  const auto at_p = at_p_.Wait(7);
  ASSERT_EQ(at_p.size(), 7u);
  EXPECT_EQ(std::get<kvt::ReceiverHello>(at_p[0]).wire_token, std::string("\xff\x00", 2));
  EXPECT_EQ(std::get<kvt::ReceiverHello>(at_p[0]).refusal, "no");
  EXPECT_EQ(std::get<kvt::ChunkGo>(at_p[1]).sequence_number, 4u);
  EXPECT_EQ(std::get<kvt::ChunkDone>(at_p[2]).checksum, 99u);
  EXPECT_EQ(std::get<kvt::ChunkDrop>(at_p[3]).sequence_number, 5u);
  EXPECT_EQ(std::get<kvt::TransferFailed>(at_p[4]).reason, "bad");
  EXPECT_EQ(std::get<kvt::LeaseRenew>(at_p[5]).transfer_ids.size(), 2u);
  EXPECT_EQ(std::get<kvt::LeaseRelease>(at_p[6]).transfer_id, TransferId(3));
  p->Close(absl::OkStatus());
  EXPECT_EQ(at_p_.WaitClosed(), 1);
  EXPECT_EQ(at_d_.WaitClosed(), 1);
}

TEST_F(TransferLinkTest, ClosingDEndsPAndSendsFail) {
  auto p = Dial();
  ASSERT_TRUE(p->Send(kvt::LinkHeartbeat{1}));
  auto d = DLink();
  at_d_.Wait(1);
  d->Close(absl::UnavailableError("going away"));
  EXPECT_EQ(at_p_.WaitClosed(), 1);
  EXPECT_EQ(at_d_.WaitClosed(), 1);
  EXPECT_FALSE(p->Send(kvt::LinkHeartbeat{2}));
  EXPECT_FALSE(d->Send(kvt::LinkHeartbeat{2}));
}

TEST_F(TransferLinkTest, AMessageOfTheWrongDirectionClosesTheLink) {
  auto p = Dial();
  ASSERT_TRUE(p->Send(kvt::ChunkGo{1}));  // Only D says GO: arrives as an empty frame.
  EXPECT_EQ(at_d_.WaitClosed(), 1);
  EXPECT_EQ(at_p_.WaitClosed(), 1);
}

TEST_F(TransferLinkTest, AnAddressWhereNobodyListensClosesTheLink) {
  auto link = dialer_.Dial("127.0.0.1:1");
  Collector nobody;
  link->Start(nobody.Handler());
  EXPECT_EQ(nobody.WaitClosed(), 1);
}

}  // namespace
}  // namespace baton::worker
