// Flags of everything that runs engine loops: the workers and `serve`.
#ifndef BATON_CLI_WORKER_FLAGS_H_
#define BATON_CLI_WORKER_FLAGS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/device_flags.h"
#include "device/device.h"
#include "kvtransfer/wire.h"
#include "worker/worker_options.h"

namespace CLI {
class App;
}  // namespace CLI

namespace baton::cli {

struct WorkerFlags {
  std::vector<std::string> models;
  DeviceFlags device;
  std::string kv_memory = "auto";
  int32_t kv_blocks = 0;
  int32_t block_tokens = 64;
  int32_t context = 0;
  int32_t threads = 0;
  int32_t max_tokens_per_step = 0;
  int32_t max_sequences = 64;
  std::string staging_slot = "auto";
  bool null_engine = false;
};

void AddWorkerFlags(CLI::App& command, WorkerFlags& flags);

// "64MiB", "1GiB", "1048576". ERRORS: InvalidArgument naming the text.
absl::StatusOr<uint64_t> ParseBytes(const std::string& text);

// ERRORS: InvalidArgument naming the flag.
absl::StatusOr<worker::WorkerOptions> MakeWorkerOptions(const WorkerFlags& flags);

// What "auto" means for the wire that KV goes over, and what the slots take of the device.
void ResolveStagingSlot(const WorkerFlags& flags, const kvtransfer::Wire& wire,
                        worker::WorkerOptions& options);

// What 0 means for the steps of a prefill worker on `device`.
void ResolvePromptStep(const WorkerFlags& flags, const Device& device,
                       worker::WorkerOptions& options);

// The device that the flags name; sets what "auto" means for it in `options`. ERRORS: of
// MakeDevice.
absl::StatusOr<std::unique_ptr<Device>> MakeWorkerDevice(const WorkerFlags& flags,
                                                         worker::WorkerOptions& options);

}  // namespace baton::cli

#endif  // BATON_CLI_WORKER_FLAGS_H_
