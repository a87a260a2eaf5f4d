// A decode worker (D): generation loops, and the receiving half of the KV hand-over; or a combined
// worker: the same loops with prefill in their own steps and no hand-over.
//
// Thread rule: thread-safe once made.
#ifndef BATON_DECODE_WORKER_DECODE_WORKER_H_
#define BATON_DECODE_WORKER_DECODE_WORKER_H_

#include <memory>

#include "common/metrics/metrics.h"
#include "kvtransfer/transfer_receiver.h"
#include "kvtransfer/wire.h"
#include "worker/metered_transfer.h"
#include "worker/model_host.h"
#include "worker/transfer_link.h"
#include "worker/worker_options.h"
#include "worker/worker_process.h"

namespace baton::decode_worker {

class DecodeWorker {
 public:
  // All arguments by pointer or reference outlive the worker. `wire` is where P's KV arrives; null
  // makes a combined worker.
  DecodeWorker(const worker::ModelHost& host, const worker::WorkerOptions& options,
               kvtransfer::Wire* wire, MetricsRegistry& registry);
  // REQUIRES: the server that serves its services has been shut down.
  ~DecodeWorker();

  worker::WorkerProcess& process() { return *process_; }
  // Null for a combined worker.
  worker::TransferService* transfer_service() { return transfer_service_.get(); }
  // Fails running transfers, then stops the loops. After the sessions are closed.
  void Stop();

 private:
  const uint64_t instance_id_;
  worker::TransferMetrics transfer_metrics_;
  std::unique_ptr<kvtransfer::LinkedTransferReceiver> receiver_;
  worker::MeteredTransferReceiver metered_;
  std::unique_ptr<worker::TransferService> transfer_service_;
  std::unique_ptr<worker::WorkerProcess> process_;
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_DECODE_WORKER_H_
