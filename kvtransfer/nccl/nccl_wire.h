// The wire over NCCL: one communicator of two ranks per pair, between the GPUs of the two
// processes, made on first contact and destroyed with the pair. Staging slots lie in memory of the
// GPU.
//
// A pair begins as a TCP connection with the one-time token that the control link carried
// (tcp_wire.h), over which the two ends agree: NCCL, or plain TCP frames through page-locked memory
// (a warning says why: the peer cannot, both use one GPU, as many communicators as there may be, or
// one could not be made). D mints NCCL's id once P has shown the token, because minting starts a
// thread of NCCL that waits for both ranks. The connection stays beside the communicator: it
// carries what is compared before anything is launched (nccl_end.h), and its end tells of the
// peer's.
//
// A process has one thread per pair, which opens it and then posts; and one more while a
// communicator is aborted. Thread-safe.
#ifndef BATON_KVTRANSFER_NCCL_NCCL_WIRE_H_
#define BATON_KVTRANSFER_NCCL_NCCL_WIRE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "device/device.h"
#include "kvtransfer/nccl/pair_communicator.h"
#include "kvtransfer/tcp/tcp_wire.h"

namespace baton::kvtransfer {

struct NcclWireOptions {
  // Where to listen; not used by a process that only connects.
  TcpWireOptions tcp = {};
  bool listens = true;
  // Pairs that cannot use NCCL go on over TCP and the name is "auto"; else they fail, and the name
  // is "nccl".
  bool fall_back = true;
  // Thread blocks that move bytes. Its memory: PairCommunicatorBytes, times communicators_max, is
  // taken from the device's budget when the wire is made.
  int num_ctas = 16;
  int communicators_max = 4;
  // D: from the accepted connection to the open pair. P's is the limit of Connect.
  Duration opening_limit = std::chrono::seconds(4);
};

// `communicators` is of the GPU of `device`, which must outlive the wire; null (tests): slots lie
// in memory of the host. ERRORS: of MakeTcpWire; InvalidArgument: an option; ResourceExhausted: the
// communicators do not fit the device's memory.
absl::StatusOr<std::unique_ptr<TcpWire>> MakeNcclWire(
    const NcclWireOptions& options, std::unique_ptr<PairCommunicators> communicators,
    Device* device);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_NCCL_NCCL_WIRE_H_
