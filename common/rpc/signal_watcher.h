// SIGTERM and SIGINT, delivered on a normal thread, where a callback may lock, log and allocate.
//
// The first signal calls the callback once; a second one ends the process at once with 128 +
// signal, even when the callback or the whole process is stuck. SIGPIPE is ignored.
//
// One per process at a time. Handlers and SIGPIPE are put back by the destructor.
#ifndef BATON_COMMON_RPC_SIGNAL_WATCHER_H_
#define BATON_COMMON_RPC_SIGNAL_WATCHER_H_

#include <signal.h>

#include <functional>
#include <thread>

namespace baton::rpc {

class SignalWatcher {
 public:
  // `on_signal` runs on the watcher's thread with the signal's number. It must not destroy the
  // watcher.
  explicit SignalWatcher(std::function<void(int signal)> on_signal);
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

 private:
  struct sigaction old_term_;
  struct sigaction old_int_;
  struct sigaction old_pipe_;
  std::thread thread_;
};

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_SIGNAL_WATCHER_H_
