// A library to preload (LD_PRELOAD) into a process that uses a GPU: on SIGUSR1 a kernel of it
// writes to an address that is not mapped, which ruins the process's CUDA context for good, as a
// fault of the hardware or of a kernel would. For device_faults_check.py.
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

namespace {

__global__ void WriteNowhere() { *reinterpret_cast<volatile int*>(16) = 1; }

void BreakWhenAsked(sigset_t asked) {
  int number = 0;
  if (sigwait(&asked, &number) != 0) return;
  // The runtime's context of a GPU is one for the whole process.
  WriteNowhere<<<1, 1>>>();
  const cudaError_t error = cudaDeviceSynchronize();  // NOLINT(banned-device-synchronize): it ends
  std::fprintf(stderr, "break_context: %s\n", cudaGetErrorString(error));
}

// Before main, so that every thread of the program is born with the signal blocked.
const bool started = [] {
  unsetenv("LD_PRELOAD");  // Not into what the process starts.
  sigset_t asked;
  sigemptyset(&asked);
  sigaddset(&asked, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &asked, nullptr);
  std::thread(BreakWhenAsked, asked).detach();
  return true;
}();

}  // namespace
