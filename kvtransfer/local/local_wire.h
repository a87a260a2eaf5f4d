// The wire inside one process: a mover thread copies from the posted send to the posted receive.
// Both sides use the same LocalWire object.
//
// Invariants: one mover thread per wire, which alone copies and alone calls completions and
// `accepted` (Withdraw and Shutdown call it themselves). An abort waits for nothing: a copy that is
// running finishes and completes OK, everything behind it is cancelled.
// Thread rule: thread-safe.
#ifndef BATON_KVTRANSFER_LOCAL_LOCAL_WIRE_H_
#define BATON_KVTRANSFER_LOCAL_LOCAL_WIRE_H_

#include <memory>

#include "kvtransfer/wire.h"

namespace baton::kvtransfer {

// name() is "local". The wire and all its ends live in this process; ends must be destroyed first.
std::unique_ptr<Wire> MakeLocalWire();

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_LOCAL_LOCAL_WIRE_H_
