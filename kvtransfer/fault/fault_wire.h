// Decorates any wire with faults, so that every failure of the hand-over can be tested without
// hardware that fails. With the default policy it changes nothing and passes the suite of all
// wires.
//
//   auto faults = std::make_shared<FaultController>(seed);
//   auto wire = MakeFaultWire(MakeLocalWire(), faults);
//   { ScopedFault cut(faults, {.cut_after_bytes = 1000}); ... }   // As before when it leaves.
//
// Invariants: operations keep their order; completions come exactly once; after any injected
// failure the end is broken like after a real one. Thread rule: thread-safe.
#ifndef BATON_KVTRANSFER_FAULT_FAULT_WIRE_H_
#define BATON_KVTRANSFER_FAULT_FAULT_WIRE_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "kvtransfer/wire.h"

namespace baton::kvtransfer {

struct FaultPolicy {
  // Real time between posting an operation and handing it to the wire below.
  Duration delay{};
  // The connection breaks at the operation that takes an end's bytes beyond this.
  std::optional<uint64_t> cut_after_bytes = std::nullopt;
  // One bit of the byte at this position of a receiving end's stream is flipped, after the wire's
  // own checks: a wire that says OK and lies. Which bit: the seed.
  std::optional<uint64_t> corrupt_after_bytes = std::nullopt;
  bool refuse_connect = false;
  bool refuse_offer = false;
  // Every k-th operation of the wire fails with Unavailable; 0: none.
  uint64_t fail_every = 0;
  // Operations are taken and never move, until the end is aborted or the stall is lifted.
  bool stall = false;
  // Ends say that they are not quiescent, whatever they are: a wire that cannot prove it.
  bool hide_quiescence = false;
};

// What applies now, shared by a wire and its test. Thread-safe.
class FaultController {
 public:
  explicit FaultController(uint64_t seed) : random_state_(seed) {}

  FaultPolicy policy() const EXCLUDES(mutex_);
  void Set(const FaultPolicy& policy) EXCLUDES(mutex_);
  // Counts an operation; true when it is one that must fail.
  bool FailThisOperation() EXCLUDES(mutex_);
  uint64_t Random() EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  FaultPolicy policy_ GUARDED_BY(mutex_);
  uint64_t num_operations_ GUARDED_BY(mutex_) = 0;
  uint64_t random_state_ GUARDED_BY(mutex_);
};

class ScopedFault {
 public:
  ScopedFault(std::shared_ptr<FaultController> controller, const FaultPolicy& policy);
  ~ScopedFault();
  ScopedFault(const ScopedFault&) = delete;
  ScopedFault& operator=(const ScopedFault&) = delete;

 private:
  const std::shared_ptr<FaultController> controller_;
  const FaultPolicy before_;
};

// name() is that of the wire below, so that both sides of a pair agree whether decorated or not.
std::unique_ptr<Wire> MakeFaultWire(std::unique_ptr<Wire> inner,
                                    std::shared_ptr<FaultController> controller);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_FAULT_FAULT_WIRE_H_
