// In-memory doubles round the core: a session whose frames a test reads and answers, and a sink
// that records. Both thread-safe.
#ifndef BATON_ROUTER_TESTING_FAKE_SESSION_H_
#define BATON_ROUTER_TESTING_FAKE_SESSION_H_

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "router/core/response_sink.h"
#include "router/registry/worker_session.h"

namespace baton::router {

class FakeSession final : public WorkerSession {
 public:
  bool Send(worker::v1::SessionRequest frame) override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (closed_ || !accepting_) return false;
    frames_.push_back(std::move(frame));
    return true;
  }
  void Close(const absl::Status& reason) override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!closed_) reason_ = reason;
    closed_ = true;
  }

  // What the core has sent since the last call.
  std::vector<worker::v1::SessionRequest> Take() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return std::exchange(frames_, {});
  }
  // As if the peer did not read.
  void set_accepting(bool accepting) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    accepting_ = accepting;
  }
  bool closed() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return closed_;
  }
  absl::Status reason() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return reason_;
  }

 private:
  mutable Mutex mutex_;
  std::vector<worker::v1::SessionRequest> frames_ GUARDED_BY(mutex_);
  bool accepting_ GUARDED_BY(mutex_) = true;
  bool closed_ GUARDED_BY(mutex_) = false;
  absl::Status reason_ GUARDED_BY(mutex_);
};

class RecordingSink final : public ResponseSink {
 public:
  struct Record {
    std::string text;
    std::vector<int32_t> token_ids;
    size_t logprobs = 0;
    int deliveries = 0;
    std::optional<RequestFinish> finish;
    std::optional<absl::Status> error;
    // Finish or Fail calls; more than one is a bug of the core.
    int ends = 0;
    bool aborted = false;
  };

  // With `reads` the client takes everything at once.
  explicit RecordingSink(bool reads = true) : reads_(reads) {}

  void Deliver(OutputDelta delta, const UsageCounts& usage) override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    record_.text += delta.text;
    record_.token_ids.insert(record_.token_ids.end(), delta.token_ids.begin(),
                             delta.token_ids.end());
    record_.logprobs += delta.logprobs.size();
    ++record_.deliveries;
    if (reads_) drained_ = record_.token_ids.size();
  }
  void Finish(const RequestFinish& finish) override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ++record_.ends;
    record_.finish = finish;
    closed_ = stalled_since_ == kNever;
  }
  void Fail(const absl::Status& status) override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ++record_.ends;
    record_.error = status;
    closed_ = stalled_since_ == kNever;
  }
  void Abort() override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    record_.aborted = true;
    closed_ = true;
  }
  State state() const override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return {.closed = closed_, .stalled_since = stalled_since_};
  }
  uint64_t drained_tokens() const override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return drained_;
  }

  Record record() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return record_;
  }
  void set_drained(uint64_t tokens) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    drained_ = tokens;
  }
  void set_stalled_since(TimePoint since) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    stalled_since_ = since;
  }
  void set_closed() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    closed_ = true;
  }

 private:
  const bool reads_;
  mutable Mutex mutex_;
  Record record_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;
  TimePoint stalled_since_ GUARDED_BY(mutex_) = kNever;
  uint64_t drained_ GUARDED_BY(mutex_) = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_TESTING_FAKE_SESSION_H_
