// The hand-over end to end over the local wire: what both engines see when all goes well.
#include "gtest/gtest.h"
#include "kvtransfer/local/local_wire.h"
#include "kvtransfer/transfer_harness.h"

namespace baton::kvtransfer {
namespace {

TEST(Transfer, DeliversPushedBlocksAndThePayload) {
  TestBlocks blocks(5, 10000, 1);
  TransferHarness h(MakeLocalWire());
  const TransferId id(42);
  ASSERT_TRUE(h.Expect(id, &blocks).ok());
  ASSERT_TRUE(h.Begin(id).ok());
  h.sender().Push(id, blocks.Ranges(0, 2));
  h.sender().Push(id, blocks.Ranges(2, 3));
  h.sender().Finish(id, "first token");
  ASSERT_TRUE(h.at_receiver().AwaitQuiescent(id));
  EXPECT_EQ(h.at_receiver().events(id).delivered, 1) << h.at_receiver().events(id).status;
  EXPECT_EQ(h.at_receiver().events(id).payload, "first token");
  EXPECT_EQ(h.at_receiver().events(id).stats.bytes, blocks.total_bytes());
  EXPECT_TRUE(blocks.Equal());
  EXPECT_TRUE(blocks.GuardsIntact());
  ASSERT_TRUE(h.at_sender().AwaitDelivered(id)) << h.at_sender().events(id).status;
  EXPECT_EQ(h.at_sender().events(id).stats.bytes, blocks.total_bytes());
  EXPECT_GE(h.at_sender().events(id).stats.chunks, 13u) << "at most 4096 bytes a chunk";
  EXPECT_EQ(h.at_sender().events(id).quiescent, 0) << "leased until D confirms progress";
  h.receiver().ConfirmProgress(id);
  ASSERT_TRUE(h.at_sender().AwaitQuiescent(id));
  EXPECT_EQ(h.at_sender().events(id).released, 1);
  EXPECT_TRUE(h.StagingFull());
}

}  // namespace
}  // namespace baton::kvtransfer
