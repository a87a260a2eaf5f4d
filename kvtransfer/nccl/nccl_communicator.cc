// The only file that knows nccl.h. Everything is non-blocking (ncclConfig blocking = 0): a call
// returns ncclInProgress, and ncclCommGetAsyncError says when the next may follow. So a launch
// takes two looks: once the library has enqueued the kernel, an event is recorded behind it.
//
// Why local quiescence is enough for staging slots: between processes NCCL moves bytes through
// buffers of its own; only our kernels touch our slots. That would not hold for slots that are
// registered with NCCL, nor, between two GPUs of one process, for its direct access to user
// buffers: nothing is registered here, and the direct access is switched off.
#include "kvtransfer/nccl/nccl_communicator.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "device/cuda/cuda_error.h"

namespace baton::kvtransfer {
namespace {

static_assert(sizeof(ncclUniqueId) == sizeof(PairId));

// Bytes of the first exchange, with which both ends prove that the path works and get over with
// what NCCL sets up on first use.
constexpr size_t kProbeBytes = 4096;
// Until an idle communicator has ended in good order; then it is aborted.
constexpr Duration kFinalizeLimit = std::chrono::seconds(2);
constexpr Duration kFinalizeNap = std::chrono::milliseconds(1);
// The first that can put two ranks on one GPU, when it is asked to.
constexpr int kSharedDeviceVersion = 23000;
constexpr char kSharedDeviceVariable[] = "NCCL_MULTI_RANK_GPU_ENABLE";

absl::Status NcclStatus(ncclResult_t result, absl::string_view what) {
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(what, ": NCCL: ", ncclGetErrorString(result), ": ", ncclGetLastError(nullptr)));
}

class NcclCommunicator : public PairCommunicator {
 public:
  NcclCommunicator(int ordinal, PairRole role) : ordinal_(ordinal), role_(role) {}
  ~NcclCommunicator() override;

  absl::Status Begin(const PairId& id, int num_ctas);
  absl::StatusOr<bool> Ready() override;
  absl::Status Post(absl::Span<std::byte> bytes) override;
  absl::StatusOr<uint64_t> Completed() override;
  void Abort() override;
  void Destroy() override;
  absl::StatusOr<bool> Quiet() override;

 private:
  enum class State { kMaking, kProbing, kReady, kLaunching };

  absl::Status Enter() const { return CudaStatus(cudaSetDevice(ordinal_), "cudaSetDevice"); }
  // Whether the library has finished what it was last asked for.
  absl::StatusOr<bool> LibraryIdle();
  absl::Status Move(void* memory, size_t bytes);
  // An event behind what was launched last.
  absl::Status RecordEvent();
  // Pops the events that have fired.
  absl::Status PollEvents();

  const int ordinal_;
  const PairRole role_;
  ncclComm_t communicator_ = nullptr;
  cudaStream_t stream_ = nullptr;
  void* probe_ = nullptr;
  cudaEvent_t last_ = nullptr;  // Behind everything, after the end.
  bool last_recorded_ = false;
  State state_ = State::kMaking;
  std::deque<cudaEvent_t> running_;  // One per operation on the stream, the probe's included.
  std::vector<cudaEvent_t> free_events_;
  uint64_t fired_ = 0;
};

NcclCommunicator::~NcclCommunicator() {
  cudaSetDevice(ordinal_);
  for (cudaEvent_t event : running_) cudaEventDestroy(event);
  for (cudaEvent_t event : free_events_) cudaEventDestroy(event);
  if (last_ != nullptr) cudaEventDestroy(last_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
  if (probe_ != nullptr) cudaFree(probe_);
}

absl::Status NcclCommunicator::Begin(const PairId& id, int num_ctas) {
  RETURN_IF_ERROR(Enter());
  // The thread blocks of a hand-over are few and the peer waits for them: before those of compute.
  int least = 0;
  int greatest = 0;
  RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetStreamPriorityRange(&least, &greatest), "stream priorities"));
  RETURN_IF_ERROR(CudaStatus(
      cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "a stream"));
  RETURN_IF_ERROR(CudaStatus(cudaEventCreateWithFlags(&last_, cudaEventDisableTiming), "an event"));
  RETURN_IF_ERROR(CudaStatus(cudaMalloc(&probe_, kProbeBytes), "memory for a probe"));
  ncclUniqueId unique_id;
  std::memcpy(&unique_id, id.data(), id.size());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.minCTAs = num_ctas;
  config.maxCTAs = num_ctas;
  const int rank = role_ == PairRole::kSender ? 0 : 1;
  return NcclStatus(ncclCommInitRankConfig(&communicator_, 2, unique_id, rank, &config),
                    "making a communicator");
}

absl::StatusOr<bool> NcclCommunicator::LibraryIdle() {
  ncclResult_t state = ncclSuccess;
  RETURN_IF_ERROR(NcclStatus(ncclCommGetAsyncError(communicator_, &state), "asking for errors"));
  RETURN_IF_ERROR(NcclStatus(state, "a communicator has failed"));
  return state == ncclSuccess;
}

absl::Status NcclCommunicator::Move(void* memory, size_t bytes) {
  const ncclResult_t result = role_ == PairRole::kSender
                                  ? ncclSend(memory, bytes, ncclUint8, 1, communicator_, stream_)
                                  : ncclRecv(memory, bytes, ncclUint8, 0, communicator_, stream_);
  return NcclStatus(result, role_ == PairRole::kSender ? "sending" : "receiving");
}

absl::Status NcclCommunicator::RecordEvent() {
  cudaEvent_t event = nullptr;
  if (!free_events_.empty()) {
    event = free_events_.back();
    free_events_.pop_back();
  } else {
    RETURN_IF_ERROR(
        CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event"));
  }
  running_.push_back(event);
  return CudaStatus(cudaEventRecord(event, stream_), "recording an event");
}

absl::Status NcclCommunicator::PollEvents() {
  while (!running_.empty()) {
    const cudaError_t error = cudaEventQuery(running_.front());
    if (error == cudaErrorNotReady) return absl::OkStatus();
    RETURN_IF_ERROR(CudaStatus(error, "moving KV"));
    free_events_.push_back(running_.front());
    running_.pop_front();
    ++fired_;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> NcclCommunicator::Ready() {
  if (state_ == State::kReady) return true;
  RETURN_IF_ERROR(Enter());
  if (state_ == State::kProbing && !running_.empty()) {
    RETURN_IF_ERROR(PollEvents());
    if (!running_.empty()) return false;
    state_ = State::kReady;
    fired_ = 0;
    return true;
  }
  ASSIGN_OR_RETURN(const bool idle, LibraryIdle());
  if (!idle) return false;
  switch (state_) {
    case State::kMaking:
      RETURN_IF_ERROR(Move(probe_, kProbeBytes));
      state_ = State::kProbing;
      return false;
    case State::kProbing:
      RETURN_IF_ERROR(RecordEvent());
      return false;
    case State::kLaunching:
      RETURN_IF_ERROR(RecordEvent());
      state_ = State::kReady;
      return true;
    case State::kReady:
      return true;
  }
  return false;
}

absl::Status NcclCommunicator::Post(absl::Span<std::byte> bytes) {
  RETURN_IF_ERROR(Enter());
  // A kernel that touches memory which the GPU cannot reach would cost the whole context.
  cudaPointerAttributes attributes;
  RETURN_IF_ERROR(CudaStatus(cudaPointerGetAttributes(&attributes, bytes.data()), "staging slot"));
  if (attributes.type == cudaMemoryTypeUnregistered) {
    return absl::InvalidArgumentError("nccl wire: a staging slot in ordinary memory of the host");
  }
  RETURN_IF_ERROR(Move(bytes.data(), bytes.size()));
  state_ = State::kLaunching;
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> NcclCommunicator::Completed() {
  if (state_ == State::kLaunching) RETURN_IF_ERROR(Ready().status());
  RETURN_IF_ERROR(Enter());
  RETURN_IF_ERROR(PollEvents());
  return fired_;
}

void NcclCommunicator::Abort() {
  if (communicator_ == nullptr) return;
  cudaSetDevice(ordinal_);
  const absl::Status status = NcclStatus(ncclCommAbort(communicator_), "aborting a communicator");
  if (!status.ok()) LogWarning("a communicator was not aborted", {{"status", status.ToString()}});
  communicator_ = nullptr;
}

void NcclCommunicator::Destroy() {
  if (communicator_ == nullptr) return;
  cudaSetDevice(ordinal_);
  absl::Status status = NcclStatus(ncclCommFinalize(communicator_), "finalizing");
  const TimePoint deadline = SaturatingAdd(Clock::Real()->Now(), kFinalizeLimit);
  Mutex mutex;
  CondVar never;
  bool idle = false;
  while (status.ok() && !idle && Clock::Real()->Now() < deadline) {
    const absl::StatusOr<bool> now = LibraryIdle();
    status = now.status();
    idle = now.ok() && *now;
    MutexLock lock(mutex);
    if (!idle) never.WaitFor(mutex, kFinalizeNap);
  }
  if (!status.ok() || !idle) {
    Abort();
    return;
  }
  status = NcclStatus(ncclCommDestroy(communicator_), "destroying a communicator");
  if (!status.ok()) LogWarning("a communicator was not destroyed", {{"status", status.ToString()}});
  communicator_ = nullptr;
}

absl::StatusOr<bool> NcclCommunicator::Quiet() {
  RETURN_IF_ERROR(Enter());
  if (!last_recorded_) {
    RETURN_IF_ERROR(CudaStatus(cudaEventRecord(last_, stream_), "recording the last event"));
    last_recorded_ = true;
  }
  const cudaError_t error = cudaEventQuery(last_);
  if (error == cudaErrorNotReady) return false;
  RETURN_IF_ERROR(CudaStatus(error, "waiting for the last event"));
  return true;
}

class NcclCommunicators : public PairCommunicators {
 public:
  NcclCommunicators(int ordinal, uint32_t version, DeviceUuid uuid)
      : ordinal_(ordinal), version_(version), uuid_(uuid) {}

  DeviceUuid device_uuid() const override { return uuid_; }
  bool accepts_shared_device() const override {
    const char* asked = std::getenv(kSharedDeviceVariable);
    return version_ >= kSharedDeviceVersion && asked != nullptr && std::atoi(asked) == 1;
  }
  uint32_t library_version() const override { return version_; }
  absl::StatusOr<PairId> MintId() override {
    ncclUniqueId unique_id;
    RETURN_IF_ERROR(NcclStatus(ncclGetUniqueId(&unique_id), "minting an id"));
    PairId id;
    std::memcpy(id.data(), &unique_id, id.size());
    return id;
  }
  absl::StatusOr<std::unique_ptr<PairCommunicator>> Make(PairRole role, const PairId& id,
                                                         int num_ctas) override {
    auto communicator = std::make_unique<NcclCommunicator>(ordinal_, role);
    if (absl::Status s = communicator->Begin(id, num_ctas); !s.ok()) {
      communicator->Abort();
      return s;
    }
    return communicator;
  }

 private:
  const int ordinal_;
  const uint32_t version_;
  const DeviceUuid uuid_;
};

}  // namespace

absl::StatusOr<int> CountGpusForNccl() {
  int count = 0;
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceCount(&count), "looking for GPUs"));
  return count;
}

absl::StatusOr<std::unique_ptr<PairCommunicators>> CreateNcclCommunicators(
    const NcclPluginOptions& options) {
  SetLogLevel(options.log_level);
  // Before NCCL reads it: the head of this file says why. Nothing else here uses NCCL.
  setenv("NCCL_P2P_DIRECT_DISABLE", "1", 1);
  ASSIGN_OR_RETURN(const int count, CountGpusForNccl());
  if (options.ordinal < 0 || options.ordinal >= count) {
    return absl::NotFoundError(
        absl::StrCat("no GPU ", options.ordinal, ": there are ", count, " (numbered from 0)"));
  }
  int version = 0;
  RETURN_IF_ERROR(NcclStatus(ncclGetVersion(&version), "asking for the version"));
  if (version / 100 < NCCL_VERSION_CODE / 100) {
    return absl::FailedPreconditionError(
        absl::StrCat("NCCL is version ", version, "; this build needs ", NCCL_VERSION_CODE));
  }
  cudaDeviceProp properties;
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, options.ordinal), "properties"));
  DeviceUuid uuid;
  static_assert(sizeof(properties.uuid.bytes) == sizeof(DeviceUuid));
  std::memcpy(uuid.data(), properties.uuid.bytes, uuid.size());
  LogInfo("NCCL loaded", {{"version", version}, {"device", options.ordinal}});
  return std::make_unique<NcclCommunicators>(options.ordinal, static_cast<uint32_t>(version), uuid);
}

}  // namespace baton::kvtransfer
