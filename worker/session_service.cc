#include "worker/session_service.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/rpc/message_stream.h"
#include "worker/convert.h"

namespace baton::worker {
namespace {

using std::chrono::milliseconds;

using Stream = rpc::ServerMessageStream<v1::SessionRequest, v1::SessionResponse>;

constexpr Duration kTickInterval = milliseconds(50);
// A session must be greeted within this.
constexpr Duration kHelloLimit = std::chrono::seconds(5);
// Bounds on what a router may ask for.
constexpr uint32_t kHeartbeatMsMin = 10;
constexpr uint32_t kHeartbeatMsMax = 60'000;
constexpr uint32_t kHeartbeatLimitMsMax = 600'000;

struct AttemptKey {
  RequestId request_id;
  uint32_t attempt = 0;
  friend bool operator==(const AttemptKey&, const AttemptKey&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const AttemptKey& k) {
    return H::combine(std::move(h), k.request_id, k.attempt);
  }
};

}  // namespace

// One session. Handlers run on gRPC threads, events on loop threads, ticks on the ticker.
class SessionService::RouterSession : public std::enable_shared_from_this<RouterSession> {
 public:
  RouterSession(SessionService* service, RouterSessionId id, std::shared_ptr<Stream> stream,
                bool draining)
      : service_(service),
        id_(id),
        stream_(std::move(stream)),
        last_heard_(service->options_.clock->Now()),
        last_sent_(last_heard_),
        draining_at_start_(draining) {}

  void Start() {
    stream_->Start({.on_message = [self = shared_from_this()](
                                      v1::SessionRequest request) { self->OnRequest(request); },
                    .on_closed = [self = shared_from_this()](
                                     const absl::Status& status) { self->OnClosed(status); }});
  }

  void Close(const absl::Status& status) { stream_->Close(status); }

  void SendOutput(const StepOutput& output) {
    {
      MutexLock lock(mutex_);
      for (const SequenceEnd& end : output.ends) {
        active_.erase({end.key.request_id, end.key.attempt});
      }
    }
    for (const Reserved& reserved : output.reserved) {
      v1::SessionResponse response;
      response.mutable_reserved()->set_request_id(reserved.key.request_id.value);
      response.mutable_reserved()->set_attempt(reserved.key.attempt);
      stream_->Send(std::move(response));
    }
    if (output.tokens.empty() && output.ends.empty()) return;
    v1::SessionResponse response;
    *response.mutable_step() = ToProto(output);
    stream_->Send(std::move(response));
  }

  void Send(v1::SessionResponse response) { stream_->Send(std::move(response)); }

  // Heartbeats and their limit. Called by the ticker.
  void Tick(TimePoint now) {
    Duration interval;
    Duration silent;
    Duration limit;
    bool beat = false;
    uint64_t number = 0;
    {
      MutexLock lock(mutex_);
      interval = heartbeat_interval_;
      limit = greeted_ ? heartbeat_limit_ : kHelloLimit;
      silent = now - last_heard_;
      if (greeted_ && now - last_sent_ >= interval) {
        beat = true;
        last_sent_ = now;
        number = ++heartbeats_sent_;
      }
    }
    if (silent > limit) {
      LogWarning("router session silent", {{"session", id_.value}, {"seconds", ToSeconds(silent)}});
      Close(absl::UnavailableError("no heartbeat from the router"));
      return;
    }
    if (!beat) return;
    v1::SessionResponse response;
    response.mutable_heartbeat()->set_sequence_number(number);
    service_->FillLoads(*response.mutable_heartbeat());
    stream_->Send(std::move(response));
  }

 private:
  void OnRequest(const v1::SessionRequest& request) {
    bool greeted = false;
    {
      MutexLock lock(mutex_);
      last_heard_ = service_->options_.clock->Now();
      greeted = greeted_;
    }
    if (!greeted && request.frame_case() != v1::SessionRequest::kHello) {
      Close(absl::FailedPreconditionError("the first frame of a session must be RouterHello"));
      return;
    }
    switch (request.frame_case()) {
      case v1::SessionRequest::kHello:
        return OnHello(request.hello(), greeted);
      case v1::SessionRequest::kHeartbeat:
        return;
      case v1::SessionRequest::kFetchArtifact:
        return OnFetch(request.fetch_artifact());
      case v1::SessionRequest::kStart:
        return OnStart(request.start());
      case v1::SessionRequest::kCancel:
        return OnCancel(request.cancel());
      case v1::SessionRequest::kCredits:
        return OnCredits(request.credits());
      case v1::SessionRequest::FRAME_NOT_SET:
        Close(absl::InvalidArgumentError("session frame of an unknown kind"));
    }
  }

  void OnHello(const v1::RouterHello& hello, bool greeted) {
    if (greeted) return Close(absl::FailedPreconditionError("second RouterHello"));
    if (hello.protocol_version() != kSessionProtocolVersion) {
      return Close(absl::FailedPreconditionError(
          absl::StrCat("session protocol version ", hello.protocol_version(), ", this worker has ",
                       kSessionProtocolVersion)));
    }
    {
      MutexLock lock(mutex_);
      greeted_ = true;
      heartbeat_interval_ =
          milliseconds(std::clamp(hello.heartbeat_interval_ms(), kHeartbeatMsMin, kHeartbeatMsMax));
      heartbeat_limit_ = milliseconds(
          std::clamp(hello.heartbeat_limit_ms(), 2 * kHeartbeatMsMin, kHeartbeatLimitMsMax));
    }
    LogInfo("router connected", {{"session", id_.value}, {"router", hello.router_id()}});
    v1::SessionResponse response;
    *response.mutable_hello() = service_->MakeHello(absl::StrCat(id_.value));
    stream_->Send(std::move(response));
    if (draining_at_start_) {
      v1::SessionResponse draining;
      draining.mutable_draining();
      stream_->Send(std::move(draining));
    }
  }

  void OnFetch(const v1::FetchArtifact& fetch) {
    v1::SessionResponse response;
    if (service_->artifacts_ == nullptr) {
      response.mutable_artifact()->set_digest(fetch.digest());
      response.mutable_artifact()->set_unknown(true);
    } else {
      *response.mutable_artifact() = service_->artifacts_->Chunk(fetch.digest(), fetch.offset());
    }
    stream_->Send(std::move(response));
  }

  void OnStart(const v1::StartSequence& proto) {
    const SequenceKey key{id_, RequestId(proto.request_id()), proto.attempt()};
    const auto it = service_->models_.find(proto.model());
    if (it == service_->models_.end()) {
      return Refuse(key, proto.model(),
                    absl::NotFoundError("this worker does not serve the model"));
    }
    const Model& model = it->second;
    if (proto.model_revision() != model.description.revision()) {
      return Refuse(key, proto.model(),
                    absl::FailedPreconditionError(
                        absl::StrCat("model revision ", proto.model_revision(), " was asked for, ",
                                     model.description.revision(), " is served")));
    }
    absl::StatusOr<StartSequence> start = FromProto(proto, id_, service_->options_.clock->Now());
    if (!start.ok()) return Refuse(key, proto.model(), start.status());
    {
      MutexLock lock(mutex_);
      if (!active_.emplace(AttemptKey{key.request_id, key.attempt}, model.loop).second) {
        // The first one goes on; an answer about this key would end it at the router.
        LogWarning("duplicate start ignored", {{"request", key.request_id.value}});
        return;
      }
    }
    const absl::Status status = model.loop->Enqueue(*std::move(start));
    if (!status.ok()) Refuse(key, proto.model(), status);
  }

  void Refuse(const SequenceKey& key, const std::string& model, const absl::Status& status) {
    StepOutput output;
    output.session = id_;
    output.model = model;
    SequenceEnd end;
    end.key = key;
    end.reason = EndReason::kError;
    end.status = status;
    end.retryable = status.code() == absl::StatusCode::kResourceExhausted;
    output.ends.push_back(std::move(end));
    SendOutput(output);
  }

  void OnCancel(const v1::CancelSequence& cancel) {
    const SequenceKey key{id_, RequestId(cancel.request_id()), cancel.attempt()};
    if (EngineLoop* loop = ActiveLoop(key)) {
      // Refused only when the loop has stopped; then its sequences have ended already.
      loop->Enqueue(CancelSequence{key}).IgnoreError();
      return;
    }
    StepOutput output;
    SequenceEnd end;
    end.key = key;
    end.reason = EndReason::kCancelled;
    output.ends.push_back(std::move(end));
    SendOutput(output);
  }

  void OnCredits(const v1::GrantCredits& grant) {
    const SequenceKey key{id_, RequestId(grant.request_id()), grant.attempt()};
    if (EngineLoop* loop = ActiveLoop(key)) {
      loop->Enqueue(GrantCredits{key, grant.credits()}).IgnoreError();
    }
  }

  EngineLoop* ActiveLoop(const SequenceKey& key) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto it = active_.find({key.request_id, key.attempt});
    return it == active_.end() ? nullptr : it->second;
  }

  void OnClosed(const absl::Status& status) {
    LogInfo("router session ended", {{"session", id_.value}, {"status", status.ToString()}});
    for (const auto& [name, model] : service_->models_) {
      model.loop->Enqueue(SessionEnded{id_}).IgnoreError();
    }
    service_->Forget(id_);
  }

  SessionService* const service_;
  const RouterSessionId id_;
  const std::shared_ptr<Stream> stream_;

  Mutex mutex_;
  bool greeted_ GUARDED_BY(mutex_) = false;
  Duration heartbeat_interval_ GUARDED_BY(mutex_){};
  Duration heartbeat_limit_ GUARDED_BY(mutex_){};
  TimePoint last_heard_ GUARDED_BY(mutex_);
  TimePoint last_sent_ GUARDED_BY(mutex_);
  uint64_t heartbeats_sent_ GUARDED_BY(mutex_) = 0;
  // Which loop runs an attempt. Bounded by what the loops accept.
  absl::flat_hash_map<AttemptKey, EngineLoop*> active_ GUARDED_BY(mutex_);
  const bool draining_at_start_;
};

SessionService::SessionService(SessionServiceOptions options) : options_(std::move(options)) {
  ticker_ = std::thread([this] { Tick(); });
}

SessionService::~SessionService() { Shutdown(); }

void SessionService::AddModel(v1::ModelDescription description, EngineLoop* loop) {
  std::string name = description.name();
  const bool added = models_.emplace(std::move(name), Model{std::move(description), loop}).second;
  CHECK(added) << "model added twice";
}

void SessionService::set_addresses(std::string worker_id, std::string transfer_address) {
  MutexLock lock(mutex_);
  options_.worker_id = std::move(worker_id);
  options_.transfer_address = std::move(transfer_address);
}

void SessionService::BeginDrain() {
  {
    MutexLock lock(mutex_);
    if (draining_) return;
    draining_ = true;
  }
  for (const auto& [name, model] : models_) model.loop->Enqueue(worker::BeginDrain{}).IgnoreError();
  for (const auto& session : Sessions()) {
    v1::SessionResponse response;
    response.mutable_draining();
    session->Send(std::move(response));
  }
}

void SessionService::Shutdown() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  stop_changed_.SignalAll();
  // OK: what is queued, the last tokens of a drain, still reaches the router. A router that does
  // not read is cut off by the server's own shutdown.
  for (const auto& session : Sessions()) session->Close(absl::OkStatus());
  if (ticker_.joinable()) ticker_.join();
}

uint32_t SessionService::num_sessions() const {
  MutexLock lock(mutex_);
  return static_cast<uint32_t>(sessions_.size());
}

void SessionService::OnStepOutput(StepOutput output) {
  std::shared_ptr<RouterSession> session;
  {
    MutexLock lock(mutex_);
    const auto it = sessions_.find(output.session);
    if (it == sessions_.end()) return;  // Ended meanwhile; the loops have been told.
    session = it->second;
  }
  session->SendOutput(output);
}

void SessionService::OnPairFailed(const PairFailed& failure) {
  for (const auto& session : Sessions()) {
    v1::SessionResponse response;
    *response.mutable_pair_failed() = ToProto(failure);
    session->Send(std::move(response));
  }
}

grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionResponse>* SessionService::Session(
    grpc::CallbackServerContext* context) {
  auto stream = Stream::Create(context, options_.queue_frames_max);
  std::shared_ptr<RouterSession> session;
  {
    MutexLock lock(mutex_);
    if (!stopping_ && sessions_.size() < options_.sessions_max) {
      const RouterSessionId id(next_session_++);
      session = std::make_shared<RouterSession>(this, id, stream, draining_);
      sessions_.emplace(id, session);
    }
  }
  if (session == nullptr) {
    stream->Close(absl::ResourceExhaustedError("too many router sessions, or stopping"));
  } else {
    session->Start();
  }
  return stream.get();
}

void SessionService::Forget(RouterSessionId id) {
  MutexLock lock(mutex_);
  sessions_.erase(id);
}

std::vector<std::shared_ptr<SessionService::RouterSession>> SessionService::Sessions() const {
  std::vector<std::shared_ptr<RouterSession>> out;
  MutexLock lock(mutex_);
  out.reserve(sessions_.size());
  for (const auto& [id, session] : sessions_) out.push_back(session);
  return out;
}

v1::WorkerHello SessionService::MakeHello(const std::string& session_id) const {
  v1::WorkerHello hello;
  {
    MutexLock lock(mutex_);
    hello.set_worker_id(options_.worker_id);
    hello.set_transfer_address(options_.transfer_address);
  }
  hello.set_protocol_version(kSessionProtocolVersion);
  hello.set_instance_id(options_.instance_id);
  hello.set_role(options_.role);
  hello.set_prefill_credits(options_.prefill_credits);
  hello.set_session_id(session_id);
  for (const auto& [name, model] : models_) *hello.add_models() = model.description;
  return hello;
}

void SessionService::FillLoads(v1::WorkerHeartbeat& heartbeat) const {
  for (const auto& [name, model] : models_) *heartbeat.add_loads() = ToProto(model.loop->load());
}

void SessionService::Tick() {
  while (true) {
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      stop_changed_.WaitFor(mutex_, kTickInterval);
      if (stopping_) return;
    }
    const TimePoint now = options_.clock->Now();
    for (const auto& session : Sessions()) session->Tick(now);
  }
}

}  // namespace baton::worker
