// What everything of one GPU shares: its properties, the stream that steps run in, its memory, its
// scratch, and whether it is lost.
//
// Thread rule: constant after Create, but `failure`, which is thread-safe. Scratch belongs to the
// kernels of `stream`, in order.
#ifndef BATON_DEVICE_CUDA_CUDA_CONTEXT_H_
#define BATON_DEVICE_CUDA_CUDA_CONTEXT_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "device/capture_gate.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/matmul/matmul_plan.h"
#include "device/cuda/weight_uploader.h"
#include "device/device_plugin.h"
#include "kernels/launch/launch.h"

namespace baton {

class CudaContext {
  struct Private {};

 public:
  // ERRORS: of DevicePlugin::create.
  static absl::StatusOr<std::unique_ptr<CudaContext>> Create(const PluginDeviceOptions& options);
  explicit CudaContext(Private) {}
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  int ordinal() const { return ordinal_; }
  const std::string& name() const { return name_; }  // "NVIDIA H200"
  int num_sms() const { return num_sms_; }
  bool deterministic() const { return deterministic_; }
  cudaStream_t stream() const { return stream_; }
  CudaMemory& memory() const { return *memory_; }
  WeightUploader& uploader() const { return *uploader_; }
  CaptureGate& capture_gate() { return capture_gate_; }
  // Held by whoever puts work into the stream: while one thread captures it, what another launched
  // would become part of the graph, and a synchronisation would end the capture.
  Mutex& stream_mutex() { return stream_mutex_; }
  cuda::MatmulPlans& matmul() const { return *matmul_; }

  // Makes the GPU current for the calling thread.
  absl::Status Enter() const;

  // OK, or why the GPU is lost. Check turns an error into a status and remembers it when it is one
  // that the context does not survive; every later step fails with it.
  absl::Status failure() const;
  absl::Status Check(cudaError_t error, absl::string_view what);
  // The same for what a launcher returned.
  absl::Status Check(kernels::KernelStatus status, absl::string_view what);

 private:
  int ordinal_ = 0;
  std::string name_;
  int num_sms_ = 0;
  bool deterministic_ = false;
  cudaStream_t stream_ = nullptr;
  std::shared_ptr<CudaMemory> memory_;
  std::unique_ptr<WeightUploader> uploader_;
  std::shared_ptr<std::byte> matmul_workspace_;
  std::unique_ptr<cuda::MatmulPlans> matmul_;

  CaptureGate capture_gate_;
  Mutex stream_mutex_;
  mutable Mutex mutex_;
  absl::Status failure_ GUARDED_BY(mutex_);
};

}  // namespace baton

#endif  // BATON_DEVICE_CUDA_CUDA_CONTEXT_H_
