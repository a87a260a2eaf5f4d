#include "kvtransfer/transfer_setup.h"

#include <cstdlib>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"

namespace baton::kvtransfer {

TransferSetup CompleteSetup(TransferSetup setup) {
  CHECK(setup.wire != nullptr && setup.clock != nullptr);
  CHECK(setup.options.staging_slot_bytes > 0 &&
        setup.options.staging_slot_bytes <= kWireOperationBytesMax)
      << setup.options.staging_slot_bytes;
  CHECK(setup.options.staging_slots > 0 && setup.options.staging_slots <= kWireOperationsMax)
      << setup.options.staging_slots;
  // The pattern is written and checked by the processor.
  CHECK(!setup.options.poison_free_staging || setup.device == nullptr ||
        setup.wire->staging_place() == StagingPlace::kHost);
  if (setup.on_unquiescent == nullptr) {
    setup.on_unquiescent = [](const std::string& reason) {
      LogError("KV memory may still be written by a peer; the process ends rather than reuse it",
               {{"reason", reason}});
      std::_Exit(kUnquiescentExitCode);
    };
  }
  return setup;
}

}  // namespace baton::kvtransfer
