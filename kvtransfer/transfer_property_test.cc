// Hundreds of rounds with random transfers, cancels, deadlines, message delays, wire faults, cut
// links and restarted workers, all from one seed per round. Whatever happens: every transfer ends
// at both sides with exactly one OnQuiescent; what D reports as received is right; no byte lands
// beside the granted blocks, or in them after quiescence; all staging slots come back.
//
// BATON_PROPERTY_ROUNDS sets the number of rounds per wire, BATON_PROPERTY_SEED the first seed.
#include <algorithm>
#include <cstdlib>
#include <random>
#include <thread>

#include "common/base/check.h"
#include "common/base/log.h"
#include "gtest/gtest.h"
#include "kvtransfer/fault/fault_wire.h"
#include "kvtransfer/local/local_wire.h"
#include "kvtransfer/nccl/fake_communicator.h"
#include "kvtransfer/tcp/tcp_wire.h"
#include "kvtransfer/transfer_harness.h"

namespace baton::kvtransfer {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// One transfer of a round, and its memory.
struct Subject {
  TransferId id;
  size_t num_blocks = 0;
  size_t block_bytes = 0;
  std::unique_ptr<TestBlocks> blocks;
  bool begun = false;
  bool expected = false;
  size_t next_block = 0;
  size_t next_offset = 0;
  bool finished = false;
  bool poisoned = false;
  std::vector<std::vector<std::byte>> poison;
};

class Round {
 public:
  Round(std::unique_ptr<Wire> wire, uint64_t seed)
      : rng_(seed),
        faults_(std::make_shared<FaultController>(seed)),
        h_(MakeFaultWire(std::move(wire), faults_), Options()) {}

  void Run() {
    SetFaults();
    for (uint64_t i = 0; i < 6; ++i) Add(i);
    for (int step = 0; step < 60; ++step) {
      Step();
      if (Chance(4)) Pause(microseconds(rng_() % 1500));
      PoisonWhatIsQuiescent();
    }
    faults_->Set({});
    h_.network().SetHook(nullptr);
    for (Subject& s : subjects_) {
      if (s.begun) h_.sender().Cancel(s.id);
      if (s.expected) h_.receiver().Cancel(s.id);
    }
    for (Subject& s : subjects_) CheckEnded(&s);
    PoisonWhatIsQuiescent();
    ASSERT_TRUE(h_.StagingFull());  // Nothing is on the wires any more.
    for (Subject& s : subjects_) {
      EXPECT_TRUE(s.poisoned) << s.id;
      EXPECT_EQ(s.blocks->Snapshot(), s.poison) << "a byte landed after quiescence, id " << s.id;
    }
    EXPECT_EQ(h_.sender_counters().staging_slots_quarantined, 0u);
    EXPECT_TRUE(h_.unquiescent().empty());
  }

 private:
  static TransferOptions Options() {
    TransferOptions options = TestOptions();
    options.staging_slot_bytes = 1024;
    options.heartbeat_interval = milliseconds(20);
    options.heartbeat_limit = milliseconds(200);
    options.chunk_limit = milliseconds(100);
    options.connect_limit = milliseconds(200);
    options.redial_limit = milliseconds(20);
    options.lease_limit = milliseconds(100);
    options.lease_renew_interval = milliseconds(20);
    options.lease_total_limit = milliseconds(400);
    return options;
  }

  bool Chance(uint64_t one_in) { return rng_() % one_in == 0; }

  void SetFaults() {
    FaultPolicy policy;
    if (Chance(2)) policy.delay = microseconds(rng_() % 500);
    switch (rng_() % 10) {
      case 0:
        policy.cut_after_bytes = rng_() % 60000;
        break;
      case 1:
        policy.corrupt_after_bytes = rng_() % 30000;
        break;
      case 2:
        policy.fail_every = 3 + rng_() % 60;
        break;
      case 3:
        policy.stall = true;
        break;
      case 4:
        policy.refuse_connect = true;
        break;
      case 5:
        policy.refuse_offer = true;
        break;
      default:
        break;
    }
    faults_->Set(policy);
    const uint64_t seed = rng_();
    h_.network().SetHook([state = std::make_shared<FaultController>(seed)](LinkDirection,
                                                                           const ControlMessage&) {
      const uint64_t r = state->Random();
      return MemoryNetwork::Verdict{
          .deliver = true, .delay = r % 20 == 0 ? microseconds(r / 20 % 2000) : microseconds(0)};
    });
  }

  TimePoint RandomDeadline() {
    return Chance(3) ? Clock::Real()->Now() + milliseconds(rng_() % 60) : kNever;
  }

  void Add(uint64_t i) {
    Subject s;
    s.id = TransferId(i);
    s.num_blocks = rng_() % 5;
    s.block_bytes = 1 + rng_() % 8000;
    s.blocks = std::make_unique<TestBlocks>(s.num_blocks, s.block_bytes, rng_());
    subjects_.push_back(std::move(s));
  }

  // Something an engine, the network or fate may do now.
  void Step() {
    Subject& s = subjects_[rng_() % subjects_.size()];
    if (Chance(40)) h_.network().CutAll(absl::UnavailableError("property test"));
    if (Chance(80)) h_.StartSender({{kTestModel, "layout-1"}});
    if (Chance(80)) {
      h_.peer().instance_id += Chance(2) ? 1 : 0;
      h_.StartReceiver(h_.peer().instance_id, {{kTestModel, "layout-1"}});
    }
    if (Chance(30)) SetFaults();
    if (!s.expected) {
      s.expected = true;
      ASSERT_TRUE(h_.Expect(s.id, s.blocks.get(), RandomDeadline()).ok());
    } else if (!s.begun) {
      s.begun = true;
      ASSERT_TRUE(h_.Begin(s.id, RandomDeadline()).ok());
    } else if (Chance(40)) {
      h_.sender().Cancel(s.id);
    } else if (Chance(40)) {
      h_.receiver().Cancel(s.id);
    } else if (Chance(20)) {
      h_.receiver().ConfirmProgress(s.id);
    } else if (!s.finished) {
      PushSome(&s);
    }
  }

  void PushSome(Subject* s) {
    std::vector<SourceRange> ranges;
    for (uint64_t n = 1 + rng_() % 6; n > 0 && s->next_block < s->num_blocks; --n) {
      const size_t left = s->block_bytes - s->next_offset;
      const size_t length = Chance(2) ? left : 1 + rng_() % left;
      // The source may have been given up already; then the sender ignores the push.
      ranges.push_back(s->blocks->Piece(s->next_block, s->next_offset, length));
      s->next_offset += length;
      if (s->next_offset == s->block_bytes) {
        ++s->next_block;
        s->next_offset = 0;
      }
    }
    h_.sender().Push(s->id, std::move(ranges));
    if (s->next_block == s->num_blocks) {
      s->finished = true;
      h_.sender().Finish(s->id, "done");
    }
  }

  bool Quiescent(const Subject& s) {
    return (!s.begun || h_.at_sender().events(s.id).quiescent == 1) &&
           (!s.expected || h_.at_receiver().events(s.id).quiescent == 1);
  }

  // The memory goes to its next owner as soon as both sides have said that they are done with it.
  void PoisonWhatIsQuiescent() {
    for (Subject& s : subjects_) {
      if (s.poisoned || !s.expected || !s.begun || !Quiescent(s)) continue;
      const TransferEvents e = h_.at_receiver().events(s.id);
      EXPECT_TRUE(s.blocks->GuardsIntact()) << s.id;
      if (e.delivered == 1) {
        EXPECT_TRUE(s.blocks->Equal()) << s.id;
        EXPECT_EQ(e.payload, "done");
      } else {
        EXPECT_EQ(h_.at_sender().events(s.id).delivered, 0) << "delivered to nobody, id " << s.id;
      }
      Poison(&s);
    }
  }
  void Poison(Subject* s) {
    s->blocks->Poison(std::byte{0x5E});
    s->poison = s->blocks->Snapshot();
    s->poisoned = true;
  }

  void CheckEnded(Subject* s) {
    if (!s->begun || !s->expected) Poison(s);
    ASSERT_TRUE(Eventually([&] { return Quiescent(*s); }))
        << "transfer " << s->id << " never ended: sender " << h_.at_sender().events(s->id).quiescent
        << ", receiver " << h_.at_receiver().events(s->id).quiescent;
  }

  std::mt19937_64 rng_;
  std::shared_ptr<FaultController> faults_;
  std::vector<Subject> subjects_;  // Before the harness, which uses their memory.
  TransferHarness h_;
};

void RunRounds(const std::function<std::unique_ptr<Wire>()>& make_wire) {
  const uint64_t rounds = FromEnvironment("BATON_PROPERTY_ROUNDS", 150);
  const uint64_t first_seed = FromEnvironment("BATON_PROPERTY_SEED", 1);
  SetLogLevel(LogLevel::kError);
  for (uint64_t seed = first_seed; seed < first_seed + rounds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Round(make_wire(), seed).Run();
    if (::testing::Test::HasFailure()) break;
  }
  SetLogLevel(LogLevel::kInfo);
}

TEST(TransferProperty, HoldsOverTheLocalWire) {
  RunRounds([] { return MakeLocalWire(); });
}

TEST(TransferProperty, HoldsOverTheTcpWire) {
  RunRounds([]() -> std::unique_ptr<Wire> {
    auto wire = MakeTcpWire({});
    CHECK(wire.ok()) << wire.status();
    return *std::move(wire);
  });
}

TEST(TransferProperty, HoldsOverTheNcclWireWithFakeCommunicators) {
  RunRounds([] {
    auto nccl = std::make_shared<FakeNccl>();
    nccl->Set({.make_time = std::chrono::milliseconds(2),
               .launch_time = std::chrono::microseconds(20),
               .operation_time = std::chrono::microseconds(50),
               .abort_time = std::chrono::milliseconds(10),
               .linger_time = std::chrono::milliseconds(5)});
    return MakeFakeNcclWire(nccl, {.num_ctas = 2, .communicators_max = 64});
  });
}

}  // namespace
}  // namespace baton::kvtransfer
