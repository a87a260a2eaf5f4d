#include "common/rpc/signal_watcher.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "common/base/check.h"

namespace baton::rpc {
namespace {

// A signal handler can only use what is here: lock-free atomics and a pipe to the thread. The pipe
// is made once and stays open, so that a handler that runs late never writes to somebody else's
// file.
std::atomic<bool> in_use{false};
std::atomic<int> signals_seen{0};
std::atomic<int> pipe_write_end{-1};
static_assert(std::atomic<int>::is_always_lock_free);

int PipeReadEnd() {
  static const int read_end = [] {
    int ends[2];
    CHECK(pipe2(ends, O_CLOEXEC) == 0) << "pipe2 failed, errno " << errno;
    pipe_write_end = ends[1];
    return ends[0];
  }();
  return read_end;
}

void Post(char byte) {
  // The pipe cannot be full: at most a few bytes are ever in it.
  while (write(pipe_write_end.load(), &byte, 1) < 0 && errno == EINTR) {
  }
}

extern "C" void OnSignal(int signal) {
  const int saved_errno = errno;
  if (signals_seen.fetch_add(1) > 0) _exit(128 + signal);
  Post(static_cast<char>(signal));
  errno = saved_errno;
}

void Install(int signal, void (*handler)(int), struct sigaction* old) {
  struct sigaction action{};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  CHECK(sigaction(signal, &action, old) == 0) << "sigaction failed, errno " << errno;
}

}  // namespace

SignalWatcher::SignalWatcher(std::function<void(int signal)> on_signal) {
  CHECK(!in_use.exchange(true)) << "only one SignalWatcher at a time";
  const int read_end = PipeReadEnd();
  signals_seen = 0;
  Install(SIGPIPE, SIG_IGN, &old_pipe_);
  thread_ = std::thread([read_end, on_signal = std::move(on_signal)] {
    for (;;) {
      char byte = 0;
      // No deadline: waiting for a signal is all this thread does; the destructor posts 0.
      const ssize_t got = read(read_end, &byte, 1);
      if (got < 0 && errno == EINTR) continue;
      if (got != 1 || byte == 0) return;
      on_signal(byte);
    }
  });
  Install(SIGTERM, OnSignal, &old_term_);
  Install(SIGINT, OnSignal, &old_int_);
}

SignalWatcher::~SignalWatcher() {
  sigaction(SIGTERM, &old_term_, nullptr);
  sigaction(SIGINT, &old_int_, nullptr);
  sigaction(SIGPIPE, &old_pipe_, nullptr);
  Post(0);
  thread_.join();
  in_use = false;
}

}  // namespace baton::rpc
