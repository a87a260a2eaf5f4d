// A small random model made with the public interface of a device, and the same model in double
// precision with plain loops: what the device conformance suite runs.
#ifndef BATON_TESTS_CONFORMANCE_DEVICE_TEST_MODEL_H_
#define BATON_TESTS_CONFORMANCE_DEVICE_TEST_MODEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "device/device.h"

namespace baton {

// Two layers, grouped heads, biases everywhere, three stored types, odd sizes; the head has more
// rows than the vocabulary.
struct TestModelShape {
  int32_t hidden = 24;
  int32_t num_layers = 2;
  int32_t num_heads = 4;
  int32_t num_kv_heads = 2;
  int32_t head_dim = 10;
  int32_t inner = 21;
  int32_t vocab = 37;
  int32_t head_rows = 41;
};

// Weights as a file would hold them. `values` is what the stored bytes mean.
struct TestTensor {
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<std::byte> bytes;
  std::vector<double> values;

  WeightSegment Segment() const { return {bytes, dtype, rows, cols}; }
};
TestTensor RandomTensor(int64_t rows, int64_t cols, DType dtype, double deviation, uint32_t seed);

class TestModel {
 public:
  explicit TestModel(uint32_t seed = 1);

  const TestModelShape& shape() const { return shape_; }
  // The type that `device` computes this model in.
  DType Compute(const Device& device) const { return device.ComputeType(DType::kF32); }
  KvLayout Layout(const Device& device, int32_t block_tokens) const;
  // ERRORS: of Device::Prepare.
  absl::StatusOr<OpList> Record(Device& device) const;
  // Logits of every position of a prompt, [tokens][head_rows], in double precision.
  std::vector<std::vector<double>> ReferenceLogits(const std::vector<int32_t>& tokens) const;

 private:
  struct Layer {
    TestTensor attention_norm, q, k, v, qkv_bias_q, qkv_bias_k, qkv_bias_v, o;
    TestTensor mlp_norm, gate, up, gate_bias, up_bias, down, down_bias;
  };
  std::vector<double> Attend(const Layer& layer, const std::vector<std::vector<double>>& q,
                             const std::vector<std::vector<double>>& k,
                             const std::vector<std::vector<double>>& v, size_t position) const;
  void RunLayer(const Layer& layer, std::vector<std::vector<double>>& x) const;

  TestModelShape shape_;
  TestTensor embedding_;
  std::vector<Layer> layers_;
  TestTensor final_norm_;
  TestTensor head_;
  TestTensor frequencies_;
};

// One sequence's part of a step, for building StepMeta.
struct TestSequence {
  int32_t start_position = 0;
  std::vector<int32_t> token_source;
  std::vector<int32_t> block_table;
  // Rows (of this sequence) to take logits and samples of.
  std::vector<int32_t> sample_rows = {};
  kernels::SampleParams sampling = {};
};
StepMeta MakeMeta(const std::vector<TestSequence>& sequences, int32_t block_tokens);

}  // namespace baton

#endif  // BATON_TESTS_CONFORMANCE_DEVICE_TEST_MODEL_H_
