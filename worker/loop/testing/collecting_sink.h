// Keeps what a loop says. Thread-safe.
#ifndef BATON_WORKER_LOOP_TESTING_COLLECTING_SINK_H_
#define BATON_WORKER_LOOP_TESTING_COLLECTING_SINK_H_

#include <optional>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "worker/messages.h"

namespace baton::worker {

class CollectingSink : public EventSink {
 public:
  void OnStepOutput(StepOutput output) override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    outputs_.push_back(std::move(output));
  }
  void OnPairFailed(const PairFailed& failure) override {}

  std::vector<StepOutput> outputs() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return outputs_;
  }
  // The first end of a sequence.
  std::optional<SequenceEnd> EndOf(const SequenceKey& key) const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    for (const StepOutput& output : outputs_) {
      for (const SequenceEnd& end : output.ends) {
        if (end.key == key) return end;
      }
    }
    return std::nullopt;
  }
  int EndsOf(const SequenceKey& key) const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    int count = 0;
    for (const StepOutput& output : outputs_) {
      for (const SequenceEnd& end : output.ends) count += end.key == key ? 1 : 0;
    }
    return count;
  }
  std::vector<int32_t> TokensOf(const SequenceKey& key) const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    std::vector<int32_t> tokens;
    for (const StepOutput& output : outputs_) {
      for (const TokenOutput& token : output.tokens) {
        if (token.key == key) tokens.push_back(token.token.token_id);
      }
    }
    return tokens;
  }
  bool ReservedFor(const SequenceKey& key) const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    for (const StepOutput& output : outputs_) {
      for (const Reserved& reserved : output.reserved) {
        if (reserved.key == key) return true;
      }
    }
    return false;
  }

 private:
  mutable Mutex mutex_;
  std::vector<StepOutput> outputs_ GUARDED_BY(mutex_);
};

}  // namespace baton::worker

#endif  // BATON_WORKER_LOOP_TESTING_COLLECTING_SINK_H_
