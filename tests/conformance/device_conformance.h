// One suite that every device passes. A small random model is run through the public interface and
// compared with double precision; then the promises of device.h are tried one by one: chunking,
// batch composition, samples fed to the next step, several programs, isolation of damaged rows,
// errors. A test program links device_conformance.cc and instantiates DeviceConformance.
#ifndef BATON_TESTS_CONFORMANCE_DEVICE_CONFORMANCE_H_
#define BATON_TESTS_CONFORMANCE_DEVICE_CONFORMANCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "device/device.h"
#include "gtest/gtest.h"
#include "tests/conformance/device_test_model.h"

namespace baton {

struct DeviceUnderTest {
  std::string name;
  // Null: there is no such device here, and the tests are skipped.
  std::function<absl::StatusOr<std::unique_ptr<Device>>()> create;
  // Error of a logit against double precision, relative to the largest of its row.
  double tolerance;
};

// `n` tokens of the test model.
std::vector<int32_t> RandomTokens(size_t n, uint32_t seed);

// The test model compiled on a device, with its own pool. Ends the process on errors.
class CompiledTestModel {
 public:
  CompiledTestModel(Device& device, int32_t block_tokens, uint32_t seed = 1,
                    int32_t num_blocks = 24);

  const TestModel& model() const { return model_; }
  KvPool& kv() { return *kv_; }
  Program& program() { return *program_; }
  int32_t block_tokens() const { return block_tokens_; }

  DeviceTicket Start(const std::vector<TestSequence>& sequences, bool logits = true);
  StepOutputs Finish(DeviceTicket ticket);
  StepOutputs Run(const std::vector<TestSequence>& sequences) { return Finish(Start(sequences)); }
  // Logits of all positions of a prompt in block table `table`, computed `chunk` tokens at a time.
  std::vector<float> Logits(const std::vector<int32_t>& tokens, size_t chunk,
                            const std::vector<int32_t>& table);

 private:
  TestModel model_;
  int32_t block_tokens_;
  std::unique_ptr<KvPool> kv_;
  std::unique_ptr<Program> program_;
};

class DeviceConformance : public ::testing::TestWithParam<DeviceUnderTest> {
 protected:
  void SetUp() override;
  std::unique_ptr<Device> device_;
};

}  // namespace baton

#endif  // BATON_TESTS_CONFORMANCE_DEVICE_CONFORMANCE_H_
