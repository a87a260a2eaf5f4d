// D's half of the hand-over: accepts control links of prefill workers, grants their chunks staging
// slots, and scatters what arrives into the blocks that Expect named. docs/kv_handoff.md draws the
// states.
#ifndef BATON_KVTRANSFER_TRANSFER_RECEIVER_H_
#define BATON_KVTRANSFER_TRANSFER_RECEIVER_H_

#include <memory>

#include "kvtransfer/control.h"
#include "kvtransfer/transfer.h"
#include "kvtransfer/transfer_setup.h"

namespace baton::kvtransfer {

// A TransferReceiver to which the daemon hands the control links that prefill workers have opened.
class LinkedTransferReceiver : public TransferReceiver {
 public:
  // Takes a link that is not started yet; the receiver starts it. After Shutdown, or with too many
  // pairs, it is closed at once.
  virtual void AcceptLink(std::shared_ptr<ControlLink> link) = 0;
};

std::unique_ptr<LinkedTransferReceiver> MakeTransferReceiver(TransferSetup setup);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_TRANSFER_RECEIVER_H_
