// Makes the engine loop of a prefill worker (P) for one model replica: it takes kPrefill and
// kPrefillOnly, computes prompts in chunks (several sequences a step), pushes KV to D as it
// completes, block by block and, of large steps, layer by layer, samples token 0 and sends it to
// the router and, with the last piece of KV, to D.
#ifndef BATON_PREFILL_WORKER_LOOP_PREFILL_LOOP_FACTORY_H_
#define BATON_PREFILL_WORKER_LOOP_PREFILL_LOOP_FACTORY_H_

#include <memory>

#include "kvtransfer/transfer.h"
#include "worker/loop/loop_options.h"
#include "worker/messages.h"

namespace baton::prefill_worker {

struct PrefillLoopOptions {
  worker::LoopOptions loop;
  // Outlives the loop. Null: only kPrefillOnly is served.
  kvtransfer::TransferSender* sender = nullptr;
};

// Starts the loop's thread. The loop is the observer of its transfers: it must be destroyed only
// when idle() is true or after sender->Shutdown(). REQUIRES: executor, sink and KV memory are set;
// num_blocks > 0; block_tokens > 0.
std::unique_ptr<worker::EngineLoop> MakePrefillLoop(const PrefillLoopOptions& options);

}  // namespace baton::prefill_worker

#endif  // BATON_PREFILL_WORKER_LOOP_PREFILL_LOOP_FACTORY_H_
