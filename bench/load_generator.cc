// Loads a router over its public API and prints one JSON object: latencies, rates, failures.
//
//   bench/load_generator --endpoint 127.0.0.1:8500 --model m --streams 64 --requests 2000
//       --prompt-tokens 128 --max-tokens 128
//
// `streams` requests are open at a time until `requests` have been made; all through the callback
// API on one channel per 100 streams, so that the client is not what is measured.
#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "baton/v1/generation.grpc.pb.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace baton::bench {
namespace {

struct Flags {
  std::string endpoint = "127.0.0.1:8500";
  std::string model;
  int streams = 16;
  int requests = 1000;
  int prompt_tokens = 64;
  int first_token_id = 4;
  int token_ids = 100;
  int max_tokens = 64;
};

struct Sample {
  double first_token_seconds = 0;
  // From the first token to the second, which in a cluster is the first of the decode worker.
  double second_token_seconds = 0;
  double later_token_seconds = 0;  // Of each token after the second, on average.
  double total_seconds = 0;
  int tokens = 0;
  bool ok = false;
};

class Generator {
 public:
  explicit Generator(const Flags& flags) : flags_(flags) {
    for (int i = 0; i < (flags.streams + 99) / 100; ++i) {
      grpc::ChannelArguments arguments;
      arguments.SetInt("bench.channel", i);  // A connection of its own.
      stubs_.push_back(v1::GenerationService::NewStub(grpc::CreateCustomChannel(
          flags.endpoint, grpc::InsecureChannelCredentials(), arguments)));
    }
    samples_.resize(static_cast<size_t>(flags.requests));
  }

  // Returns the seconds that all requests took together.
  double Run() {
    const TimePoint start = Clock::Real()->Now();
    for (int i = 0; i < std::min(flags_.streams, flags_.requests); ++i) StartNext();
    MutexLock lock(mutex_);
    while (ended_ < flags_.requests) changed_.WaitFor(mutex_, std::chrono::seconds(1));
    return ToSeconds(Clock::Real()->Now() - start);
  }

  const std::vector<Sample>& samples() const { return samples_; }

 private:
  class Call : public grpc::ClientReadReactor<v1::StreamGenerateResponse> {
   public:
    Call(Generator* generator, int index) : generator_(generator), index_(index) {
      const Flags& flags = generator->flags_;
      request_.set_model(flags.model);
      for (int i = 0; i < flags.prompt_tokens; ++i) {
        request_.mutable_token_ids()->add_ids(flags.first_token_id +
                                              (index * 31 + i) % flags.token_ids);
      }
      request_.mutable_sampling()->set_temperature(0);
      request_.mutable_stop()->set_max_tokens(flags.max_tokens);
      request_.mutable_stop()->set_ignore_eos(true);
      start_ = Clock::Real()->Now();
      const size_t stub = static_cast<size_t>(index) % generator->stubs_.size();
      generator->stubs_[stub]->async()->StreamGenerate(&context_, &request_, this);
      StartRead(&response_);
      StartCall();
    }

    void OnReadDone(bool ok) override {
      if (!ok) return;
      const int tokens = response_.delta().token_ids_size();
      const TimePoint now = Clock::Real()->Now();
      if (tokens > 0 && sample_.tokens == 0) {
        sample_.first_token_seconds = ToSeconds(now - start_);
        first_ = now;
      } else if (tokens > 0 && tokens_at_second_ == 0) {
        sample_.second_token_seconds = ToSeconds(now - first_);
        second_ = now;
        tokens_at_second_ = sample_.tokens + tokens;
      } else if (tokens > 0) {
        sample_.later_token_seconds =
            ToSeconds(now - second_) / (sample_.tokens + tokens - tokens_at_second_);
      }
      sample_.tokens += tokens;
      StartRead(&response_);
    }

    void OnDone(const grpc::Status& status) override {
      sample_.total_seconds = ToSeconds(Clock::Real()->Now() - start_);
      sample_.ok = status.ok();
      if (!status.ok()) generator_->PrintFirst(status);
      generator_->Ended(index_, sample_);
      delete this;  // NOLINT(banned-new): gRPC owns the reactor until here
    }

   private:
    Generator* const generator_;
    const int index_;
    grpc::ClientContext context_;
    v1::GenerateRequest request_;
    v1::StreamGenerateResponse response_;
    TimePoint start_;
    TimePoint first_;
    TimePoint second_;
    int tokens_at_second_ = 0;  // Received by then; a message may bring several.
    Sample sample_;
  };

  void StartNext() {
    const int index = next_.fetch_add(1);
    if (index < flags_.requests) new Call(this, index);  // NOLINT(banned-new): see OnDone
  }

  void PrintFirst(const grpc::Status& status) {
    if (printed_.exchange(true)) return;
    std::fprintf(stderr, "first failure: %d %s\n", static_cast<int>(status.error_code()),
                 status.error_message().c_str());
  }

  void Ended(int index, const Sample& sample) {
    samples_[static_cast<size_t>(index)] = sample;
    StartNext();
    {
      MutexLock lock(mutex_);
      ++ended_;
    }
    changed_.Signal();
  }

  const Flags flags_;
  std::vector<std::unique_ptr<v1::GenerationService::Stub>> stubs_;
  std::vector<Sample> samples_;
  std::atomic<int> next_{0};
  std::atomic<bool> printed_{false};
  Mutex mutex_;
  CondVar changed_;
  int ended_ GUARDED_BY(mutex_) = 0;
};

double Percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  const size_t k = static_cast<size_t>(p * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(k), values.end());
  return values[k];
}

nlohmann::json Summary(const std::vector<Sample>& samples, double seconds) {
  std::vector<double> first;
  std::vector<double> second;
  std::vector<double> later;
  std::vector<double> total;
  int64_t tokens = 0;
  int failed = 0;
  for (const Sample& sample : samples) {
    if (!sample.ok) {
      ++failed;
      continue;
    }
    first.push_back(sample.first_token_seconds);
    second.push_back(sample.second_token_seconds);
    later.push_back(sample.later_token_seconds);
    total.push_back(sample.total_seconds);
    tokens += sample.tokens;
  }
  return {{"requests", samples.size()},
          {"failed", failed},
          {"seconds", seconds},
          {"requests_per_second", static_cast<double>(samples.size()) / seconds},
          {"tokens_per_second", static_cast<double>(tokens) / seconds},
          {"first_token_ms_p50", Percentile(first, 0.5) * 1e3},
          {"first_token_ms_p99", Percentile(first, 0.99) * 1e3},
          {"second_token_ms_p50", Percentile(second, 0.5) * 1e3},
          {"later_token_ms_p50", Percentile(later, 0.5) * 1e3},
          {"request_ms_p50", Percentile(total, 0.5) * 1e3},
          {"request_ms_p99", Percentile(total, 0.99) * 1e3}};
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) {
  baton::bench::Flags flags;
  CLI::App app{"Loads a Baton router and prints latencies and rates as JSON."};
  app.option_defaults()->always_capture_default();
  app.add_option("--endpoint", flags.endpoint);
  app.add_option("--model", flags.model)->required();
  app.add_option("--streams", flags.streams)->check(CLI::Range(1, 100000));
  app.add_option("--requests", flags.requests)->check(CLI::Range(1, 10000000));
  app.add_option("--prompt-tokens", flags.prompt_tokens)->check(CLI::Range(1, 1000000));
  app.add_option("--first-token-id", flags.first_token_id)->check(CLI::Range(0, 1000000));
  app.add_option("--token-ids", flags.token_ids)->check(CLI::Range(1, 1000000));
  app.add_option("--max-tokens", flags.max_tokens)->check(CLI::Range(1, 1000000));
  CLI11_PARSE(app, argc, argv);
  baton::bench::Generator generator(flags);
  const double seconds = generator.Run();
  const nlohmann::json summary = baton::bench::Summary(generator.samples(), seconds);
  std::printf("%s\n", summary.dump(2).c_str());
  return summary["failed"].get<int>() == 0 ? 0 : 1;
}
