// An end over one whose operations must lie elsewhere: each goes through a buffer in the right
// place. For pairs of an NCCL wire that cannot use NCCL: a TCP end with page-locked buffers of the
// host, below slots in memory of the device.
//
// One thread copies. A send is copied, then posted below; a receive is posted below when it is
// posted here, and copied once it has arrived. Order and the contract of completions are kept.
// Buffers are kept for later operations; there are at most as many as operations were ever open at
// a time, which staging slots bound. Thread-safe.
#ifndef BATON_KVTRANSFER_NCCL_STAGED_END_H_
#define BATON_KVTRANSFER_NCCL_STAGED_END_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "device/device.h"
#include "kvtransfer/transfer.h"
#include "kvtransfer/wire.h"

namespace baton::kvtransfer {

class StagedEnd : public WireEnd {
 public:
  // `place`: of the buffers. `device` must outlive this; null: all is memory of the host (tests).
  StagedEnd(std::unique_ptr<WireEnd> inner, StagingPlace place, Device* device);
  ~StagedEnd() override;

  void PostSend(uint64_t sequence_number, absl::Span<const std::byte> bytes,
                Completion done) override;
  void PostReceive(uint64_t sequence_number, absl::Span<std::byte> bytes, Completion done) override;
  void Abort(const absl::Status& reason) override EXCLUDES(mutex_);
  bool Quiescent() const override EXCLUDES(mutex_);
  // Through the host small pieces are copied, sent and received at the same time.
  uint64_t piece_bytes_max() const override {
    return place_ == StagingPlace::kHost ? kHostPieceBytes : inner_->piece_bytes_max();
  }

 private:
  struct Buffer {
    std::shared_ptr<std::byte> memory;
    size_t size = 0;
  };
  struct Operation {
    bool sends = false;
    uint64_t sequence_number = 0;
    absl::Span<std::byte> bytes;  // Read only when sending.
    Completion done;
    Buffer buffer;
    // Told by the end below.
    bool ended = false;
    absl::Status status;
  };

  void Post(std::shared_ptr<Operation> operation) EXCLUDES(mutex_);
  void Run() EXCLUDES(mutex_);
  // Gives an operation to the end below, after copying when it sends.
  void Forward(const std::shared_ptr<Operation>& operation) EXCLUDES(mutex_);
  void Finish(const std::shared_ptr<Operation>& operation) EXCLUDES(mutex_);
  void EndedBelow(const std::shared_ptr<Operation>& operation, const absl::Status& status)
      EXCLUDES(mutex_);
  absl::Status TakeBuffer(size_t size, Buffer* buffer) EXCLUDES(mutex_);
  absl::Status Copy(absl::Span<const std::byte> from, std::byte* to);

  const std::unique_ptr<WireEnd> inner_;
  const StagingPlace place_;
  Device* const device_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<Operation>> posted_ GUARDED_BY(mutex_);     // Not forwarded yet.
  std::deque<std::shared_ptr<Operation>> forwarded_ GUARDED_BY(mutex_);  // In order.
  std::vector<Buffer> free_ GUARDED_BY(mutex_);
  size_t open_ GUARDED_BY(mutex_) = 0;
  absl::Status broken_ GUARDED_BY(mutex_);  // By a copy that failed.
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_NCCL_STAGED_END_H_
