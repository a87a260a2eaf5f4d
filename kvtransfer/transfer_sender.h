// P's half of the hand-over: gathers pushed ranges into staging slots and sends them to any number
// of decode workers, one pair (control link and wire end) each. docs/kv_handoff.md draws the
// states.
#ifndef BATON_KVTRANSFER_TRANSFER_SENDER_H_
#define BATON_KVTRANSFER_TRANSFER_SENDER_H_

#include <memory>

#include "kvtransfer/control.h"
#include "kvtransfer/transfer.h"
#include "kvtransfer/transfer_setup.h"

namespace baton::kvtransfer {

// `dialer` must outlive the sender. Wire as in TransferSetup.
std::unique_ptr<TransferSender> MakeTransferSender(TransferSetup setup, ControlDialer* dialer);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_TRANSFER_SENDER_H_
