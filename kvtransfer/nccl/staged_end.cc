#include "kvtransfer/nccl/staged_end.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"

namespace baton::kvtransfer {
namespace {

constexpr Duration kNap = std::chrono::seconds(1);
// Buffers have sizes of powers of two from here on, so that they fit what comes next and are seldom
// freed: that waits for everything which runs on the GPU.
constexpr size_t kBufferBytesMin = size_t{64} << 10;

}  // namespace

StagedEnd::StagedEnd(std::unique_ptr<WireEnd> inner, StagingPlace place, Device* device)
    : inner_(std::move(inner)), place_(place), device_(device), thread_([this] { Run(); }) {}

StagedEnd::~StagedEnd() {
  Abort(absl::CancelledError("wire end destroyed"));
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void StagedEnd::PostSend(uint64_t sequence_number, absl::Span<const std::byte> bytes,
                         Completion done) {
  auto operation = std::make_shared<Operation>();
  operation->sends = true;
  operation->sequence_number = sequence_number;
  // Never written through when sending.
  operation->bytes = absl::MakeSpan(const_cast<std::byte*>(bytes.data()), bytes.size());
  operation->done = std::move(done);
  Post(std::move(operation));
}

void StagedEnd::PostReceive(uint64_t sequence_number, absl::Span<std::byte> bytes,
                            Completion done) {
  auto operation = std::make_shared<Operation>();
  operation->sequence_number = sequence_number;
  operation->bytes = bytes;
  operation->done = std::move(done);
  Post(std::move(operation));
}

void StagedEnd::Post(std::shared_ptr<Operation> operation) {
  MutexLock lock(mutex_);
  CHECK_LT(open_, kWireOperationsMax);
  ++open_;
  posted_.push_back(std::move(operation));
  changed_.SignalAll();
}

void StagedEnd::Abort(const absl::Status& reason) { inner_->Abort(reason); }

bool StagedEnd::Quiescent() const {
  MutexLock lock(mutex_);
  return open_ == 0;
}

absl::Status StagedEnd::Copy(absl::Span<const std::byte> from, std::byte* to) {
  if (from.empty()) return absl::OkStatus();
  if (device_ != nullptr) return device_->CopyStaging(from, to);
  std::memcpy(to, from.data(), from.size());
  return absl::OkStatus();
}

absl::Status StagedEnd::TakeBuffer(size_t size, Buffer* buffer) {
  if (size == 0) return absl::OkStatus();
  size = std::bit_ceil(std::max(size, kBufferBytesMin));
  {
    MutexLock lock(mutex_);
    for (Buffer& free : free_) {
      if (free.size < size) continue;
      *buffer = std::move(free);
      free = std::move(free_.back());
      free_.pop_back();
      return absl::OkStatus();
    }
    // One that is too small goes for one that is not.
    if (!free_.empty()) free_.pop_back();
  }
  buffer->size = size;
  if (device_ != nullptr) {
    ASSIGN_OR_RETURN(buffer->memory, device_->AllocateStaging(static_cast<int64_t>(size), place_));
  } else {
    std::shared_ptr<std::byte[]> array = std::make_shared_for_overwrite<std::byte[]>(size);
    buffer->memory = {array, array.get()};
  }
  return absl::OkStatus();
}

void StagedEnd::Forward(const std::shared_ptr<Operation>& operation) {
  absl::Status status;
  {
    MutexLock lock(mutex_);
    status = broken_;
  }
  const size_t size = operation->bytes.size();
  if (status.ok()) status = TakeBuffer(size, &operation->buffer);
  if (status.ok() && operation->sends)
    status = Copy(operation->bytes, operation->buffer.memory.get());
  const auto ended = [this, operation](const absl::Status& s) { EndedBelow(operation, s); };
  {
    MutexLock lock(mutex_);
    forwarded_.push_back(operation);
    if (!status.ok() && broken_.ok()) broken_ = status;
  }
  if (!status.ok()) {
    inner_->Abort(status);
    ended(status);
  } else if (operation->sends) {
    inner_->PostSend(operation->sequence_number, {operation->buffer.memory.get(), size}, ended);
  } else {
    inner_->PostReceive(operation->sequence_number, {operation->buffer.memory.get(), size}, ended);
  }
}

void StagedEnd::EndedBelow(const std::shared_ptr<Operation>& operation,
                           const absl::Status& status) {
  MutexLock lock(mutex_);
  operation->ended = true;
  operation->status = OwnCopy(status);
  changed_.SignalAll();
}

void StagedEnd::Finish(const std::shared_ptr<Operation>& operation) {
  absl::Status status = operation->status;
  {
    MutexLock lock(mutex_);
    if (!broken_.ok()) status = broken_;
  }
  if (status.ok() && !operation->sends) {
    status =
        Copy({operation->buffer.memory.get(), operation->bytes.size()}, operation->bytes.data());
    if (!status.ok()) {
      inner_->Abort(status);
      MutexLock lock(mutex_);
      broken_ = status;
    }
  }
  operation->done(OwnCopy(status));
  operation->done = nullptr;  // Its captures go before quiescence is reported.
  MutexLock lock(mutex_);
  if (operation->buffer.memory != nullptr) free_.push_back(std::move(operation->buffer));
  --open_;
}

void StagedEnd::Run() {
  for (;;) {
    std::shared_ptr<Operation> forward, finish;
    {
      MutexLock lock(mutex_);
      if (!forwarded_.empty() && forwarded_.front()->ended) {
        finish = std::move(forwarded_.front());
        forwarded_.pop_front();
      } else if (!posted_.empty()) {
        forward = std::move(posted_.front());
        posted_.pop_front();
      } else if (stopping_ && forwarded_.empty()) {
        return;
      } else {
        changed_.WaitFor(mutex_, kNap);
      }
    }
    if (finish != nullptr) Finish(finish);
    if (forward != nullptr) Forward(forward);
  }
}

}  // namespace baton::kvtransfer
