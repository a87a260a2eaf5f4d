// Loads the models of a worker: weights, KV pool and runner of each on one device, the tokenizer
// files that routers will fetch, and the description that routers get.
//
// Thread rule: made once at start; then immutable. The executors belong to the loops' threads.
#ifndef BATON_WORKER_MODEL_HOST_H_
#define BATON_WORKER_MODEL_HOST_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "baton/worker/v1/session.pb.h"
#include "device/device.h"
#include "engine/kvcache/kv_memory.h"
#include "engine/runner/step_executor.h"
#include "engine/weights/model_config.h"
#include "worker/artifacts.h"
#include "worker/worker_options.h"

namespace baton::worker {

struct HostedModel {
  v1::ModelDescription description;
  KvMemory kv;
  StepExecutor* executor = nullptr;  // Owned by the host.

  const std::string& name() const { return description.name(); }
};

class ModelHost {
 public:
  // ERRORS: those of the files, naming the model; ResourceExhausted: the memory does not hold what
  // a model needs; InvalidArgument: two models of one name, no model, impossible options.
  // `device` outlives the host; hosts may share one. `later_hosts`: hosts of the same models that
  // are still to be loaded on it, for whom KV pools that take what is left leave room.
  static absl::StatusOr<std::unique_ptr<ModelHost>> Load(const WorkerOptions& options,
                                                         Device& device, int later_hosts = 0);
  ~ModelHost();

  absl::Span<const HostedModel> models() const { return models_; }
  const ArtifactStore& artifacts() const { return artifacts_; }
  Device& device() const { return device_; }
  // Model name -> KV layout, for the transfer.
  std::map<std::string, std::string> kv_layouts() const;

 private:
  struct Loaded;
  explicit ModelHost(Device& device);
  // Models that are loaded on the device after one.
  struct LaterModels {
    int64_t weight_bytes = 0;
    int models = 0;
  };
  absl::Status Add(const ModelSpec& spec, const WorkerOptions& options, const LaterModels& later,
                   Device& device);
  static absl::Status LoadExecutor(const ModelSpec& spec, const WorkerOptions& options,
                                   const LaterModels& later, const ModelConfig& config,
                                   int32_t num_tokens, Device& device, Loaded& loaded);

  Device& device_;
  std::vector<std::unique_ptr<Loaded>> loaded_;
  std::vector<HostedModel> models_;
  ArtifactStore artifacts_;
};

}  // namespace baton::worker

#endif  // BATON_WORKER_MODEL_HOST_H_
