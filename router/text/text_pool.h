// A few threads for work on text (tokenising, building tokenizers), so that it never runs on gRPC
// threads or the core's loop. Short texts never wait for long ones: one thread takes short ones
// only, the others take long ones first. Thread-safe.
#ifndef BATON_ROUTER_TEXT_TEXT_POOL_H_
#define BATON_ROUTER_TEXT_TEXT_POOL_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "common/base/mutex.h"

namespace baton::router {

class TextPool {
 public:
  struct Options {
    // At least 2: one of them is for short texts.
    size_t threads = 2;
    // Tasks that wait, of either kind.
    size_t queue_max = 1024;
    // Texts up to this are short.
    size_t small_bytes = 16 << 10;
  };

  explicit TextPool(const Options& options);
  ~TextPool();
  TextPool(const TextPool&) = delete;
  TextPool& operator=(const TextPool&) = delete;

  // `bytes` is the length of the text. False when the queue is full or the pool has stopped; the
  // task is then dropped.
  [[nodiscard]] bool Submit(size_t bytes, std::function<void()> task) EXCLUDES(mutex_);

  // For long tasks that are few by their nature: never refused for lack of room.
  void SubmitAlways(std::function<void()> task) EXCLUDES(mutex_);

  // Drops what waits, finishes what runs, joins. Idempotent.
  void Stop() EXCLUDES(mutex_);

  size_t queued() const EXCLUDES(mutex_);

 private:
  void Run(bool small_only);
  // Null when the pool has stopped.
  std::function<void()> Next(bool small_only) EXCLUDES(mutex_);

  const Options options_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> small_ GUARDED_BY(mutex_);
  std::deque<std::function<void()>> large_ GUARDED_BY(mutex_);
  bool stopped_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_TEXT_TEXT_POOL_H_
