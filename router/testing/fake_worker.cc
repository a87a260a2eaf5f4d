#include "router/testing/fake_worker.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "engine/tokenizer/byte_level.h"
#include "router/testing/worker_frames.h"

namespace baton::router {
namespace {

constexpr size_t kChunkBytes = 256 << 10;
constexpr std::chrono::milliseconds kHeartbeat(50);

bool Contains(const google::protobuf::RepeatedField<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

std::string ByteTokenizerJson() {
  std::string vocab;
  for (int byte = 0; byte < 256; ++byte) {
    const absl::string_view c = byte_level::CharOfByte(static_cast<uint8_t>(byte));
    absl::StrAppend(&vocab, byte == 0 ? "\"" : ",\"", c == "\"" || c == "\\" ? "\\" : "", c,
                    "\":", byte);
  }
  return absl::StrCat(
      R"({"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":false},)",
      R"("decoder":{"type":"ByteLevel"},"added_tokens":[)",
      R"({"id":256,"content":"<s>","special":true},{"id":257,"content":"</s>","special":true}],)",
      R"("post_processor":{"type":"TemplateProcessing","single":[)",
      R"({"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[],)",
      R"("special_tokens":{"<s>":{"id":"<s>","ids":[256],"tokens":["<s>"]}}},)",
      R"("model":{"type":"BPE","merges":[],"vocab":{)", vocab, "}}}");
}

FakeWorker::FakeWorker(FakeWorkerOptions options)
    : options_(std::move(options)), tokenizer_(ByteTokenizerJson()) {
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  if (!options_.listen.empty()) {
    builder.AddListeningPort(options_.listen, grpc::InsecureServerCredentials(), &port_);
  }
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  CHECK(server_ != nullptr) << "cannot listen on " << options_.listen;
  thread_ = std::thread([this] { Run(); });
}

FakeWorker::~FakeWorker() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.SignalAll();
  thread_.join();
  server_->Shutdown(gpr_inf_past(GPR_CLOCK_MONOTONIC));
}

std::shared_ptr<grpc::Channel> FakeWorker::Channel() {
  return server_->InProcessChannel(grpc::ChannelArguments());
}

void FakeWorker::set_silent(bool silent) {
  MutexLock lock(mutex_);
  silent_ = silent;
}
void FakeWorker::set_paused(bool paused) {
  MutexLock lock(mutex_);
  paused_ = paused;
}
size_t FakeWorker::sequences() const {
  MutexLock lock(mutex_);
  return sequences_.size();
}
uint64_t FakeWorker::tokens_sent() const {
  MutexLock lock(mutex_);
  return tokens_sent_;
}
uint64_t FakeWorker::starts() const {
  MutexLock lock(mutex_);
  return starts_;
}
size_t FakeWorker::sessions() const {
  MutexLock lock(mutex_);
  return sessions_.size();
}

grpc::ServerBidiReactor<worker::v1::SessionRequest, worker::v1::SessionResponse>*
FakeWorker::Session(grpc::CallbackServerContext* context) {
  auto stream = Stream::Create(context, 1 << 20);
  uint64_t session = 0;
  {
    MutexLock lock(mutex_);
    session = next_session_++;
    sessions_.emplace(session, stream);
  }
  stream->Start(
      {.on_message = [this,
                      session](worker::v1::SessionRequest request) { OnRequest(session, request); },
       .on_closed = [this, session](const absl::Status&) { OnClosed(session); }});
  return stream.get();
}

void FakeWorker::OnRequest(uint64_t session, const worker::v1::SessionRequest& request) {
  MutexLock lock(mutex_);
  if (request.has_hello()) {
    Send(session, Hello());
  } else if (request.has_fetch_artifact()) {
    worker::v1::SessionResponse frame;
    auto* chunk = frame.mutable_artifact();
    chunk->set_digest(request.fetch_artifact().digest());
    chunk->set_offset(request.fetch_artifact().offset());
    chunk->set_data(
        tokenizer_.substr(static_cast<size_t>(request.fetch_artifact().offset()), kChunkBytes));
    Send(session, frame);
  } else if (request.has_start()) {
    OnStart(session, request.start());
  } else if (request.has_cancel()) {
    const Key key(request.cancel().request_id(), request.cancel().attempt());
    sequences_.erase(key);
    Send(session, EndFrame(RequestId(key.first), worker::v1::END_REASON_CANCELLED, key.second));
  } else if (request.has_credits()) {
    const auto it =
        sequences_.find(Key(request.credits().request_id(), request.credits().attempt()));
    if (it != sequences_.end()) it->second.credits += request.credits().credits();
  }
}

void FakeWorker::OnStart(uint64_t session, const worker::v1::StartSequence& start) {
  ++starts_;
  const Key key(start.request_id(), start.attempt());
  Sequence sequence{.session = session, .start = start};
  sequence.credits = start.initial_credits();
  switch (start.mode()) {
    case worker::v1::START_MODE_RESERVE:
      sequence.stage = Stage::kAwaitsKv;
      sequence.next_index = 1;
      break;
    case worker::v1::START_MODE_PREFILL:
    case worker::v1::START_MODE_PREFILL_ONLY:
      sequence.stage = Stage::kPrefill;
      sequence.credits = 1;
      break;
    default:
      sequence.stage = Stage::kGenerate;
  }
  const bool reserve = start.mode() == worker::v1::START_MODE_RESERVE;
  sequences_[key] = std::move(sequence);
  if (reserve) Send(session, ReservedFrame(RequestId(key.first), key.second));
}

void FakeWorker::OnClosed(uint64_t session) {
  MutexLock lock(mutex_);
  sessions_.erase(session);
  std::erase_if(sequences_, [&](const auto& entry) { return entry.second.session == session; });
}

void FakeWorker::Arrive(Key key) {
  MutexLock lock(mutex_);
  const auto it = sequences_.find(key);
  if (it != sequences_.end()) it->second.stage = Stage::kGenerate;
}

void FakeWorker::Run() {
  TimePoint next_heartbeat = Clock::Real()->Now();
  while (true) {
    std::vector<Key> handed_over;
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      changed_.WaitFor(mutex_, options_.step);
      if (stopping_) return;
      if (!paused_) handed_over = Step();
      if (Clock::Real()->Now() >= next_heartbeat) {
        next_heartbeat = Clock::Real()->Now() + kHeartbeat;
        for (const auto& [session, stream] : sessions_) Send(session, HeartbeatFrame());
      }
    }
    for (const Key& key : handed_over) {
      if (peer_ != nullptr) peer_->Arrive(key);
    }
  }
}

std::vector<FakeWorker::Key> FakeWorker::Step() {
  std::vector<Key> handed_over;
  std::map<uint64_t, worker::v1::SessionResponse> outputs;
  for (auto it = sequences_.begin(); it != sequences_.end();) {
    auto& [key, sequence] = *it;
    worker::v1::StepOutput* out = outputs[sequence.session].mutable_step();
    it = Advance(key, &sequence, out, &handed_over) ? std::next(it) : sequences_.erase(it);
  }
  for (auto& [session, frame] : outputs) {
    if (frame.step().tokens_size() > 0) Send(session, std::move(frame));
  }
  return handed_over;
}

bool FakeWorker::Advance(Key key, Sequence* sequence, worker::v1::StepOutput* out,
                         std::vector<Key>* handed_over) {
  if (sequence->stage == Stage::kAwaitsKv || sequence->credits == 0) return true;
  --sequence->credits;
  ++tokens_sent_;
  const worker::v1::StartSequence& start = sequence->start;
  auto* token = out->add_tokens();
  token->set_request_id(key.first);
  token->set_attempt(key.second);
  token->set_index(sequence->next_index);
  token->set_token_id(options_.token ? options_.token(start, sequence->next_index)
                                     : 'a' + static_cast<int32_t>(sequence->next_index % 8));
  if (start.sampling().logprobs()) {
    token->set_logprob(-0.5F);
    for (uint32_t i = 0; i < start.sampling().top_logprobs(); ++i) {
      token->add_top_token_ids(static_cast<int32_t>(i));
      token->add_top_logprobs(-static_cast<float>(i));
    }
  }
  ++sequence->next_index;
  worker::v1::EndReason reason = worker::v1::END_REASON_UNSPECIFIED;
  if (Contains(start.eos_token_ids(), token->token_id())) {
    reason = worker::v1::END_REASON_EOS;
  } else if (Contains(start.stop_token_ids(), token->token_id())) {
    reason = worker::v1::END_REASON_STOP_TOKEN;
  } else if (sequence->next_index >= start.max_tokens()) {
    reason = worker::v1::END_REASON_LENGTH;
  } else if (sequence->stage == Stage::kPrefill) {
    reason = worker::v1::END_REASON_HANDED_OVER;
    handed_over->push_back(key);
  }
  if (reason == worker::v1::END_REASON_UNSPECIFIED) return true;
  auto* end = out->add_ends();
  end->set_request_id(key.first);
  end->set_attempt(key.second);
  end->set_reason(reason);
  if (reason == worker::v1::END_REASON_HANDED_OVER) {
    end->set_kv_bytes(64 * static_cast<uint64_t>(start.token_ids_size()));
  }
  return false;
}

void FakeWorker::Send(uint64_t session, worker::v1::SessionResponse frame) {
  const auto it = sessions_.find(session);
  if (!silent_ && it != sessions_.end()) it->second->Send(std::move(frame));
}

worker::v1::SessionResponse FakeWorker::Hello() const {
  worker::v1::ModelDescription model = TestModel(options_.model);
  model.set_context_tokens_max(options_.context_tokens_max);
  model.set_block_tokens(16);
  model.set_num_blocks(4096);
  model.set_vocabulary_size(300);
  model.set_sampled_vocabulary_size(300);
  model.clear_eos_token_ids();
  model.add_eos_token_ids(257);
  model.mutable_artifacts(0)->set_digest(Sha256ForTest(tokenizer_));
  model.mutable_artifacts(0)->set_size_bytes(static_cast<int64_t>(tokenizer_.size()));
  return HelloFrame(options_.role, options_.instance_id, {model}, options_.prefill_credits);
}

}  // namespace baton::router
