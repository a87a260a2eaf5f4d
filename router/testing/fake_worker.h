// A worker without an engine, behind a real gRPC server: it keeps the session protocol (credits,
// cancels, ends, artifacts, heartbeats) and makes tokens from a function. Can fall silent, pause,
// and vanish.
#ifndef BATON_ROUTER_TESTING_FAKE_WORKER_H_
#define BATON_ROUTER_TESTING_FAKE_WORKER_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "baton/worker/v1/session.grpc.pb.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/rpc/message_stream.h"

namespace baton::router {

// tokenizer.json of a byte-level vocabulary without merges: ids 0 to 255 are the bytes, 256 is <s>
// (put before every text), 257 is </s>.
std::string ByteTokenizerJson();

struct FakeWorkerOptions {
  worker::v1::WorkerRole role = worker::v1::WORKER_ROLE_COMBINED;
  uint64_t instance_id = 1;
  uint32_t prefill_credits = 64;
  // Empty: no socket, only Channel(). "127.0.0.1:0" takes a free port.
  std::string listen = {};
  std::string model = "m";
  int64_t context_tokens_max = 10'000;
  Duration step = std::chrono::milliseconds(1);
  // Token `index` of a sequence. Default: "abcdefgh" over and over.
  std::function<int32_t(const worker::v1::StartSequence& start, uint32_t index)> token = {};
};

// Thread-safe.
class FakeWorker final : public worker::v1::WorkerService::CallbackService {
 public:
  explicit FakeWorker(FakeWorkerOptions options);
  // Vanishes at once, as if killed.
  ~FakeWorker() override;

  std::shared_ptr<grpc::Channel> Channel();
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  // Where this prefill worker's hand-overs arrive. Must outlive this one.
  void set_decode_peer(FakeWorker* peer) { peer_ = peer; }

  // Answers nothing any more, heartbeats included, as a stopped process does.
  void set_silent(bool silent) EXCLUDES(mutex_);
  // Makes no steps.
  void set_paused(bool paused) EXCLUDES(mutex_);

  // Sequences it holds, in any state.
  size_t sequences() const EXCLUDES(mutex_);
  uint64_t tokens_sent() const EXCLUDES(mutex_);
  uint64_t starts() const EXCLUDES(mutex_);
  size_t sessions() const EXCLUDES(mutex_);

  grpc::ServerBidiReactor<worker::v1::SessionRequest, worker::v1::SessionResponse>* Session(
      grpc::CallbackServerContext* context) override;

 private:
  using Stream = rpc::ServerMessageStream<worker::v1::SessionRequest, worker::v1::SessionResponse>;
  using Key = std::pair<uint64_t, uint32_t>;  // request, attempt
  enum class Stage { kAwaitsKv, kPrefill, kGenerate };
  struct Sequence {
    uint64_t session = 0;
    worker::v1::StartSequence start;
    Stage stage = Stage::kGenerate;
    uint32_t next_index = 0;
    uint64_t credits = 0;
  };

  void OnRequest(uint64_t session, const worker::v1::SessionRequest& request) EXCLUDES(mutex_);
  void OnClosed(uint64_t session) EXCLUDES(mutex_);
  void OnStart(uint64_t session, const worker::v1::StartSequence& start) REQUIRES(mutex_);
  void Arrive(Key key) EXCLUDES(mutex_);
  void Run() EXCLUDES(mutex_);
  // One step of every sequence. Returns the sequences to hand over.
  std::vector<Key> Step() REQUIRES(mutex_);
  // False when the sequence has ended.
  bool Advance(Key key, Sequence* sequence, worker::v1::StepOutput* out,
               std::vector<Key>* handed_over) REQUIRES(mutex_);
  void Send(uint64_t session, worker::v1::SessionResponse frame) REQUIRES(mutex_);
  worker::v1::SessionResponse Hello() const;

  const FakeWorkerOptions options_;
  const std::string tokenizer_;
  FakeWorker* peer_ = nullptr;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::map<uint64_t, std::shared_ptr<Stream>> sessions_ GUARDED_BY(mutex_);
  std::map<Key, Sequence> sequences_ GUARDED_BY(mutex_);
  uint64_t next_session_ GUARDED_BY(mutex_) = 1;
  uint64_t tokens_sent_ GUARDED_BY(mutex_) = 0;
  uint64_t starts_ GUARDED_BY(mutex_) = 0;
  bool silent_ GUARDED_BY(mutex_) = false;
  bool paused_ GUARDED_BY(mutex_) = false;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_TESTING_FAKE_WORKER_H_
