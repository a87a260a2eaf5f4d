// Fetches tokenizer files from workers, by digest and piece by piece, checks them and has
// tokenizers built off the loop. One set of files is fetched at a time, which bounds memory; a set
// that several models or workers share is fetched once. A fetch survives its worker: the next one
// that has the files goes on where it stopped, since the digest says what they are.
//
// Thread-compatible: owned by the core's loop. Building runs on the text pool.
#ifndef BATON_ROUTER_REGISTRY_TOKENIZER_LOADER_H_
#define BATON_ROUTER_REGISTRY_TOKENIZER_LOADER_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "baton/worker/v1/session.pb.h"
#include "common/base/clock.h"
#include "router/registry/worker_registry.h"
#include "router/text/text_codec.h"
#include "router/text/text_pool.h"

namespace baton::router {

class TokenizerLoader {
 public:
  using CodecOr = absl::StatusOr<std::shared_ptr<const TextCodec>>;

  // `built` is called from a thread of the pool; it must bring the result to OnBuilt.
  TokenizerLoader(TextPool* pool, TextCodecFactory factory,
                  std::function<void(std::string key, CodecOr codec)> built);

  // Null until the set of files called `key` (TokenizerKey) has been loaded.
  std::shared_ptr<const TextCodec> codec(const std::string& key) const;
  // Why there is none, for a client.
  std::string Reason(const std::string& key) const;

  // Starts or goes on with a fetch for a model of the registry that has no tokenizer yet. Called
  // after anything has changed.
  void Pump(WorkerRegistry* registry, TimePoint now);
  // ERRORS: a piece that was not asked for or is wrong in itself; the session should be closed.
  absl::Status OnChunk(Worker* worker, const worker::v1::ArtifactChunk& chunk,
                       WorkerRegistry* registry, TimePoint now);
  void OnWorkerLost(SessionId id);
  void OnBuilt(const std::string& key, CodecOr codec);
  // A set that has failed is tried again: a worker that has it has just connected.
  void RetryFailed(const std::string& key);
  // When Pump must run next although nothing happens; kNever if not at all.
  TimePoint NextDeadline() const;

 private:
  enum class State { kBuilding, kReady, kFailed };
  struct Entry {
    State state = State::kBuilding;
    std::shared_ptr<const TextCodec> codec;
  };
  struct Fetch {
    std::string key;
    std::vector<ArtifactRef> artifacts;
    // Files before `index` are complete, `data` is what has arrived of that one.
    size_t index = 0;
    std::vector<std::string> files;
    std::string data;
    SessionId source;  // 0: none at the moment.
    // A source that has failed or is silent; another one is preferred.
    SessionId avoid;
    TimePoint deadline = kNever;
  };

  // Sets that no model names any more (a new revision has another tokenizer).
  void ForgetUnused(WorkerRegistry& registry);
  void PickSource(WorkerRegistry* registry, TimePoint now);
  void RequestChunk(Worker* worker, TimePoint now);
  void FinishFile();
  void Build();

  TextPool* const pool_;
  const TextCodecFactory factory_;
  const std::function<void(std::string, CodecOr)> built_;
  std::map<std::string, Entry> entries_;
  std::unique_ptr<Fetch> fetch_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REGISTRY_TOKENIZER_LOADER_H_
