// A prefill worker (P): prompt loops, and the sending half of the KV hand-over.
//
// Thread rule: thread-safe once made.
#ifndef BATON_PREFILL_WORKER_PREFILL_WORKER_H_
#define BATON_PREFILL_WORKER_PREFILL_WORKER_H_

#include <memory>

#include "common/metrics/metrics.h"
#include "kvtransfer/control.h"
#include "kvtransfer/transfer.h"
#include "kvtransfer/wire.h"
#include "worker/metered_transfer.h"
#include "worker/model_host.h"
#include "worker/worker_options.h"
#include "worker/worker_process.h"

namespace baton::prefill_worker {

class PrefillWorker {
 public:
  // All arguments by pointer or reference outlive the worker; `wire` is the same kind as D's.
  PrefillWorker(const worker::ModelHost& host, const worker::WorkerOptions& options,
                kvtransfer::Wire* wire, kvtransfer::ControlDialer* dialer,
                MetricsRegistry& registry);
  // REQUIRES: the server that serves process().session_service() has been shut down.
  ~PrefillWorker();

  worker::WorkerProcess& process() { return *process_; }
  // Fails running transfers, then stops the loops. After the sessions are closed.
  void Stop();

 private:
  const uint64_t instance_id_;
  worker::TransferMetrics transfer_metrics_;
  std::unique_ptr<kvtransfer::TransferSender> sender_;
  worker::MeteredTransferSender metered_;
  std::unique_ptr<worker::WorkerProcess> process_;
};

}  // namespace baton::prefill_worker

#endif  // BATON_PREFILL_WORKER_PREFILL_WORKER_H_
