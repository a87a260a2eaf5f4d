#include "cli/worker_flags.h"

#include <CLI/CLI.hpp>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"

namespace baton::cli {
namespace {

constexpr char kAuto[] = "auto";
constexpr uint64_t kCpuKvMemoryBytes = uint64_t{1} << 30;
// Between GPUs a hand-over is as quick as its pieces are large (NCCL alone over NVLink: 201 GB/s at
// 4 MiB, 326 at 32 MiB); over TCP small pieces are gathered, sent and scattered at the same time.
constexpr uint64_t kDeviceSlotBytes = uint64_t{32} << 20;
constexpr int32_t kStepTokensMin = 16;
// Products of an 8B shape are as quick as in longer steps: 4,096 tokens take 99 ms on an H200, in
// steps of 4,096 98, of 512 109.
constexpr int32_t kGpuPromptStepTokens = 2048;

}  // namespace

void AddWorkerFlags(CLI::App& command, WorkerFlags& flags) {
  command.add_option("models", flags.models, "Models to serve: [NAME=]PATH of a directory")
      ->required();
  AddDeviceFlags(command, flags.device);
  command.add_option(
      "--kv-memory", flags.kv_memory,
      "Memory for KV, shared evenly by the models: bytes, or with KiB, MiB, GiB; auto: "
      "what a GPU has left beside the weights, 1GiB on the CPU");
  command.add_option("--kv-blocks", flags.kv_blocks, "KV blocks per model; 0: by --kv-memory")
      ->check(CLI::Range(0, 1 << 24));
  command
      .add_option("--block-tokens", flags.block_tokens,
                  "Tokens per KV block, a power of two from 16; equal on all workers")
      ->check(CLI::Range(16, 4096));
  command
      .add_option("--context", flags.context,
                  "Longest prompt plus output in tokens; 0: the model's limit")
      ->check(CLI::Range(0, 1 << 24));
  command.add_option("--threads", flags.threads, "Compute threads; 0: all cores")
      ->check(CLI::Range(0, 1024));
  command
      .add_option("--max-tokens-per-step", flags.max_tokens_per_step,
                  "Tokens that one engine step computes; longer prompts go in chunks; 0: 2048 on a "
                  "prefill worker with a GPU, else 512")
      ->check(CLI::Range(0, 1 << 16));
  command.add_option("--max-sequences", flags.max_sequences, "Sequences that run at a time")
      ->check(CLI::Range(1, 4096));
  command.add_option(
      "--staging-slot", flags.staging_slot,
      "Bytes of one of the eight KV staging slots: the largest piece of a hand-over; "
      "auto: 32MiB of the GPU where NCCL can be used, else 4MiB");
  command.add_flag("--null-engine", flags.null_engine,
                   "Load no weights and answer with a fixed token: to measure all the rest");
}

absl::StatusOr<uint64_t> ParseBytes(const std::string& text) {
  absl::string_view rest = text;
  uint64_t unit = 1;
  constexpr std::pair<absl::string_view, uint64_t> kUnits[] = {
      {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}};
  for (const auto& [suffix, factor] : kUnits) {
    if (rest.size() > suffix.size() && rest.substr(rest.size() - suffix.size()) == suffix) {
      rest.remove_suffix(suffix.size());
      unit = factor;
      break;
    }
  }
  uint64_t number = 0;
  const bool digits = !rest.empty() && absl::ascii_isdigit(static_cast<unsigned char>(rest[0]));
  if (!digits || !absl::SimpleAtoi(rest, &number) ||
      number > std::numeric_limits<uint64_t>::max() / unit || number == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", absl::CHexEscape(text), "' is no size: expected e.g. 64MiB or 1GiB"));
  }
  return number * unit;
}

absl::StatusOr<worker::WorkerOptions> MakeWorkerOptions(const WorkerFlags& flags) {
  worker::WorkerOptions options;
  std::set<std::string> names;
  for (const std::string& text : flags.models) {
    ASSIGN_OR_RETURN(worker::ModelSpec spec, worker::ParseModelSpec(text));
    if (!names.insert(spec.name).second) {
      return absl::InvalidArgumentError(absl::StrCat("two models are named '", spec.name, "'"));
    }
    options.models.push_back(std::move(spec));
  }
  if (flags.kv_memory != kAuto) {
    absl::StatusOr<uint64_t> kv_memory = ParseBytes(flags.kv_memory);
    if (!kv_memory.ok()) return Annotate(kv_memory.status(), "--kv-memory");
    options.kv_memory_bytes = *kv_memory;
  }
  if (flags.staging_slot != kAuto) {
    absl::StatusOr<uint64_t> slot = ParseBytes(flags.staging_slot);
    if (!slot.ok()) return Annotate(slot.status(), "--staging-slot");
    options.transfer.staging_slot_bytes = *slot;
  }
  if (flags.max_tokens_per_step > 0 && flags.max_tokens_per_step < kStepTokensMin) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-tokens-per-step: ", flags.max_tokens_per_step, "; at least ",
                     kStepTokensMin, ", or 0"));
  }
  if ((flags.block_tokens & (flags.block_tokens - 1)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--block-tokens: ", flags.block_tokens, " is no power of two"));
  }
  options.kv_blocks = flags.kv_blocks;
  options.block_tokens = flags.block_tokens;
  options.context_tokens = flags.context;
  options.threads = flags.threads;
  if (flags.max_tokens_per_step > 0) options.tokens_per_step_max = flags.max_tokens_per_step;
  options.sequences_max = flags.max_sequences;
  options.null_engine = flags.null_engine;
  return options;
}

void ResolveStagingSlot(const WorkerFlags& flags, const kvtransfer::Wire& wire,
                        worker::WorkerOptions& options) {
  const bool on_device = wire.staging_place() == StagingPlace::kDevice;
  if (flags.staging_slot == kAuto && on_device) {
    options.transfer.staging_slot_bytes = kDeviceSlotBytes;  // Else the default.
  }
  options.device_staging_bytes = on_device
                                     ? static_cast<int64_t>(options.transfer.staging_slot_bytes) *
                                           options.transfer.staging_slots
                                     : 0;
}

void ResolvePromptStep(const WorkerFlags& flags, const Device& device,
                       worker::WorkerOptions& options) {
  if (flags.max_tokens_per_step == 0 && device.name() != "cpu") {
    options.tokens_per_step_max = kGpuPromptStepTokens;
  }
}

absl::StatusOr<std::unique_ptr<Device>> MakeWorkerDevice(const WorkerFlags& flags,
                                                         worker::WorkerOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<Device> device, MakeDevice(flags.device, flags.threads));
  if (flags.kv_memory == kAuto) {
    // A GPU is ours alone; the memory of a machine is not.
    options.kv_memory_bytes = device->name() == "cpu" || flags.null_engine ? kCpuKvMemoryBytes : 0;
  }
  return device;
}

}  // namespace baton::cli
