// Makes the engine loop of a decode worker (D) for one model replica. kReserve: blocks are
// reserved, the KV of the prompt arrives from P, and generation goes on behind P's first token.
// kGenerate: the same loop computes the prompt itself, in chunks beside its decode steps (combined
// worker, or a prompt too short to be worth a hand-over).
#ifndef BATON_DECODE_WORKER_LOOP_DECODE_LOOP_FACTORY_H_
#define BATON_DECODE_WORKER_LOOP_DECODE_LOOP_FACTORY_H_

#include <memory>

#include "kvtransfer/transfer.h"
#include "worker/loop/loop_options.h"
#include "worker/messages.h"

namespace baton::decode_worker {

struct DecodeLoopOptions {
  worker::LoopOptions loop;
  // Outlives the loop. Null (combined worker): only kGenerate is served.
  kvtransfer::TransferReceiver* receiver = nullptr;
};

// Starts the loop's thread. The loop is the observer of its transfers: it must be destroyed only
// when idle() is true or after receiver->Shutdown(). REQUIRES: executor, sink and KV memory are
// set; num_blocks > 0; block_tokens > 0.
std::unique_ptr<worker::EngineLoop> MakeDecodeLoop(const DecodeLoopOptions& options);

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_LOOP_DECODE_LOOP_FACTORY_H_
