#include "tests/conformance/device_test_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "common/base/status_macros.h"
#include "kernels/vector_math/vector_math.h"

namespace baton {
namespace {

constexpr float kEpsilon = 1e-5f;

std::vector<double> Multiply(const TestTensor& w, const std::vector<double>& x,
                             const TestTensor* bias = nullptr) {
  std::vector<double> y(static_cast<size_t>(w.rows));
  for (size_t r = 0; r < y.size(); ++r) {
    y[r] = bias == nullptr ? 0 : bias->values[r];
    for (size_t c = 0; c < x.size(); ++c) y[r] += w.values[r * x.size() + c] * x[c];
  }
  return y;
}

std::vector<double> Normalise(const std::vector<double>& x, const TestTensor& gamma) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  const double scale = 1 / std::sqrt(sum / static_cast<double>(x.size()) + kEpsilon);
  std::vector<double> y;
  for (size_t i = 0; i < x.size(); ++i) y.push_back(x[i] * scale * gamma.values[i]);
  return y;
}

// Rotates every head of `x` in place.
void Rotate(std::vector<double>& x, size_t dim, const TestTensor& frequencies, size_t position) {
  for (size_t head = 0; head < x.size(); head += dim) {
    for (size_t i = 0; i < dim / 2; ++i) {
      const double angle = static_cast<double>(position) * frequencies.values[i];
      const double a = x[head + i];
      const double b = x[head + dim / 2 + i];
      x[head + i] = a * std::cos(angle) - b * std::sin(angle);
      x[head + dim / 2 + i] = b * std::cos(angle) + a * std::sin(angle);
    }
  }
}

}  // namespace

TestTensor RandomTensor(int64_t rows, int64_t cols, DType dtype, double deviation, uint32_t seed) {
  TestTensor t{dtype, rows, cols, {}, {}};
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, static_cast<float>(deviation));
  const auto n = static_cast<size_t>(rows * cols);
  t.bytes.resize(n * static_cast<size_t>(DTypeBytes(dtype)));
  for (size_t i = 0; i < n; ++i) {
    const float value = normal(rng);
    if (dtype == DType::kF32) {
      std::memcpy(t.bytes.data() + i * 4, &value, 4);
      t.values.push_back(value);
      continue;
    }
    // Any bits of moderate exponent will do for the short types.
    uint16_t bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
    if (dtype == DType::kF16) bits = static_cast<uint16_t>((bits & 0x83FF) | 0x2C00);
    std::memcpy(t.bytes.data() + i * 2, &bits, 2);
    t.values.push_back(dtype == DType::kF16 ? kernels::HalfToF32(bits) : kernels::Bf16ToF32(bits));
  }
  return t;
}

TestModel::TestModel(uint32_t seed) {
  const TestModelShape& s = shape_;
  uint32_t next = seed * 1000;
  const auto matrix = [&](int64_t rows, int64_t cols, DType dtype) {
    return RandomTensor(rows, cols, dtype, 0.3, ++next);
  };
  const auto vector = [&](int64_t n, DType dtype) { return RandomTensor(n, 1, dtype, 1, ++next); };
  embedding_ = matrix(s.head_rows, s.hidden, DType::kBF16);
  head_ = matrix(s.head_rows, s.hidden, DType::kF32);
  final_norm_ = vector(s.hidden, DType::kF32);
  frequencies_ = RandomTensor(s.head_dim / 2, 1, DType::kF32, 0.5, ++next);
  const int32_t q_size = s.num_heads * s.head_dim;
  const int32_t kv_size = s.num_kv_heads * s.head_dim;
  for (int32_t i = 0; i < s.num_layers; ++i) {
    layers_.push_back({.attention_norm = vector(s.hidden, DType::kF32),
                       .q = matrix(q_size, s.hidden, DType::kBF16),
                       .k = matrix(kv_size, s.hidden, i == 0 ? DType::kF32 : DType::kBF16),
                       .v = matrix(kv_size, s.hidden, DType::kBF16),
                       .qkv_bias_q = vector(q_size, DType::kBF16),
                       .qkv_bias_k = vector(kv_size, DType::kF32),
                       .qkv_bias_v = vector(kv_size, DType::kF16),
                       .o = matrix(s.hidden, q_size, DType::kF16),
                       .mlp_norm = vector(s.hidden, DType::kF16),
                       .gate = matrix(s.inner, s.hidden, DType::kBF16),
                       .up = matrix(s.inner, s.hidden, DType::kBF16),
                       .gate_bias = vector(s.inner, DType::kF32),
                       .up_bias = vector(s.inner, DType::kBF16),
                       .down = matrix(s.hidden, s.inner, DType::kF32),
                       .down_bias = vector(s.hidden, DType::kF32)});
  }
}

KvLayout TestModel::Layout(const Device& device, int32_t block_tokens) const {
  return {.num_layers = shape_.num_layers,
          .num_kv_heads = shape_.num_kv_heads,
          .block_tokens = block_tokens,
          .head_dim = shape_.head_dim,
          .dtype = Compute(device)};
}

absl::StatusOr<OpList> TestModel::Record(Device& device) const {
  const TestModelShape& s = shape_;
  const DType compute = Compute(device);
  OpList list;
  const auto tokens = [&](int64_t cols) { return list.NewValue(ValueRows::kTokens, cols); };
  const auto prepare = [&](const TestTensor& t, WeightRole role) {
    const WeightSegment segments[] = {t.Segment()};
    return device.Prepare(segments, role, compute);
  };
  ASSIGN_OR_RETURN(const WeightPtr table, prepare(embedding_, WeightRole::kMatrix));
  ASSIGN_OR_RETURN(const WeightPtr frequencies, prepare(frequencies_, WeightRole::kVector));
  const ValueId residual = tokens(s.hidden);
  const ValueId angles = tokens(s.head_dim);
  list.ops.push_back(EmbedOp{table, residual});
  list.ops.push_back(RopeAnglesOp{frequencies, 1.0f, angles});
  ValueId delta = kNoValue;
  for (int32_t i = 0; i < s.num_layers; ++i) {
    const Layer& layer = layers_[static_cast<size_t>(i)];
    const WeightSegment qkv_segments[] = {layer.q.Segment(), layer.k.Segment(), layer.v.Segment()};
    const WeightSegment bias_segments[] = {layer.qkv_bias_q.Segment(), layer.qkv_bias_k.Segment(),
                                           layer.qkv_bias_v.Segment()};
    const WeightSegment gate_segments[] = {layer.gate.Segment(), layer.up.Segment()};
    const WeightSegment gate_bias_segments[] = {layer.gate_bias.Segment(), layer.up_bias.Segment()};
    ASSIGN_OR_RETURN(const WeightPtr qkv_w,
                     device.Prepare(qkv_segments, WeightRole::kMatrix, compute));
    ASSIGN_OR_RETURN(const WeightPtr qkv_b,
                     device.Prepare(bias_segments, WeightRole::kBias, compute));
    ASSIGN_OR_RETURN(const WeightPtr o_w, prepare(layer.o, WeightRole::kMatrix));
    ASSIGN_OR_RETURN(const WeightPtr gated_w,
                     device.Prepare(gate_segments, WeightRole::kGatedMatrix, compute));
    ASSIGN_OR_RETURN(const WeightPtr gated_b,
                     device.Prepare(gate_bias_segments, WeightRole::kGatedBias, compute));
    ASSIGN_OR_RETURN(const WeightPtr down_w, prepare(layer.down, WeightRole::kMatrix));
    ASSIGN_OR_RETURN(const WeightPtr down_b, prepare(layer.down_bias, WeightRole::kBias));
    ASSIGN_OR_RETURN(const WeightPtr norm1, prepare(layer.attention_norm, WeightRole::kVector));
    ASSIGN_OR_RETURN(const WeightPtr norm2, prepare(layer.mlp_norm, WeightRole::kVector));
    const ValueId normed = tokens(s.hidden);
    const ValueId qkv = tokens((s.num_heads + 2 * s.num_kv_heads) * s.head_dim);
    const ValueId q = tokens(s.num_heads * s.head_dim);
    const ValueId attended = tokens(s.num_heads * s.head_dim);
    const ValueId projected = tokens(s.hidden);
    const ValueId normed2 = tokens(s.hidden);
    const ValueId gated = tokens(s.inner);
    const ValueId down = tokens(s.hidden);
    const float scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
    list.ops.push_back(AddNormOp{delta, residual, norm1, kEpsilon, normed});
    list.ops.push_back(LinearOp{normed, qkv_w, qkv_b, LinearEpilogue::kNone, qkv});
    list.ops.push_back(RopeKvWriteOp{qkv, angles, i, s.num_heads, s.num_kv_heads, s.head_dim, q});
    list.ops.push_back(AttentionOp{q, i, s.num_heads, s.num_kv_heads, s.head_dim, scale, attended});
    list.ops.push_back(LinearOp{attended, o_w, nullptr, LinearEpilogue::kNone, projected});
    list.ops.push_back(AddNormOp{projected, residual, norm2, kEpsilon, normed2});
    list.ops.push_back(LinearOp{normed2, gated_w, gated_b, LinearEpilogue::kSwiglu, gated});
    list.ops.push_back(LinearOp{gated, down_w, down_b, LinearEpilogue::kNone, down});
    delta = down;
  }
  ASSIGN_OR_RETURN(const WeightPtr final_norm, prepare(final_norm_, WeightRole::kVector));
  ASSIGN_OR_RETURN(const WeightPtr head, prepare(head_, WeightRole::kMatrix));
  const ValueId last_delta = list.NewValue(ValueRows::kSamples, s.hidden);
  const ValueId last_residual = list.NewValue(ValueRows::kSamples, s.hidden);
  const ValueId last = list.NewValue(ValueRows::kSamples, s.hidden);
  const ValueId logits = list.NewValue(ValueRows::kSamples, s.head_rows);
  list.ops.push_back(GatherRowsOp{delta, last_delta});
  list.ops.push_back(GatherRowsOp{residual, last_residual});
  list.ops.push_back(AddNormOp{last_delta, last_residual, final_norm, kEpsilon, last});
  list.ops.push_back(LinearOp{last, head, nullptr, LinearEpilogue::kNone, logits});
  list.ops.push_back(SampleOp{logits, s.vocab});
  return list;
}

std::vector<double> TestModel::Attend(const Layer& layer, const std::vector<std::vector<double>>& q,
                                      const std::vector<std::vector<double>>& k,
                                      const std::vector<std::vector<double>>& v,
                                      size_t position) const {
  const auto dim = static_cast<size_t>(shape_.head_dim);
  const auto group = static_cast<size_t>(shape_.num_heads / shape_.num_kv_heads);
  std::vector<double> out(q[position].size(), 0);
  for (size_t head = 0; head < static_cast<size_t>(shape_.num_heads); ++head) {
    const size_t kv = head / group * dim;
    std::vector<double> weights;
    double sum = 0;
    for (size_t j = 0; j <= position; ++j) {
      double dot = 0;
      for (size_t i = 0; i < dim; ++i) dot += q[position][head * dim + i] * k[j][kv + i];
      weights.push_back(std::exp(dot / std::sqrt(static_cast<double>(dim))));
      sum += weights.back();
    }
    for (size_t j = 0; j <= position; ++j) {
      for (size_t i = 0; i < dim; ++i) out[head * dim + i] += weights[j] / sum * v[j][kv + i];
    }
  }
  return Multiply(layer.o, out);
}

void TestModel::RunLayer(const Layer& layer, std::vector<std::vector<double>>& x) const {
  const auto dim = static_cast<size_t>(shape_.head_dim);
  std::vector<std::vector<double>> q, k, v;
  for (size_t t = 0; t < x.size(); ++t) {
    const auto normed = Normalise(x[t], layer.attention_norm);
    q.push_back(Multiply(layer.q, normed, &layer.qkv_bias_q));
    k.push_back(Multiply(layer.k, normed, &layer.qkv_bias_k));
    v.push_back(Multiply(layer.v, normed, &layer.qkv_bias_v));
    Rotate(q[t], dim, frequencies_, t);
    Rotate(k[t], dim, frequencies_, t);
  }
  for (size_t t = 0; t < x.size(); ++t) {
    const auto attended = Attend(layer, q, k, v, t);
    for (size_t i = 0; i < attended.size(); ++i) x[t][i] += attended[i];
    const auto normed = Normalise(x[t], layer.mlp_norm);
    auto gate = Multiply(layer.gate, normed, &layer.gate_bias);
    const auto up = Multiply(layer.up, normed, &layer.up_bias);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    const auto down = Multiply(layer.down, gate, &layer.down_bias);
    for (size_t i = 0; i < down.size(); ++i) x[t][i] += down[i];
  }
}

std::vector<std::vector<double>> TestModel::ReferenceLogits(
    const std::vector<int32_t>& tokens) const {
  const auto hidden = static_cast<size_t>(shape_.hidden);
  std::vector<std::vector<double>> x;
  for (const int32_t token : tokens) {
    const auto first =
        embedding_.values.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(token) * hidden);
    x.emplace_back(first, first + static_cast<ptrdiff_t>(hidden));
  }
  for (const Layer& layer : layers_) RunLayer(layer, x);
  std::vector<std::vector<double>> logits;
  for (const auto& row : x) logits.push_back(Multiply(head_, Normalise(row, final_norm_)));
  return logits;
}

StepMeta MakeMeta(const std::vector<TestSequence>& sequences, int32_t block_tokens) {
  StepMeta meta;
  meta.query_starts.push_back(0);
  meta.block_table_starts.push_back(0);
  for (const TestSequence& s : sequences) {
    const auto first_row = static_cast<int32_t>(meta.positions.size());
    for (size_t i = 0; i < s.token_source.size(); ++i) {
      const int32_t position = s.start_position + static_cast<int32_t>(i);
      meta.token_source.push_back(s.token_source[i]);
      meta.positions.push_back(position);
      meta.kv_slots.push_back(int64_t{s.block_table[static_cast<size_t>(position / block_tokens)]} *
                                  block_tokens +
                              position % block_tokens);
    }
    meta.block_tables.insert(meta.block_tables.end(), s.block_table.begin(), s.block_table.end());
    meta.query_starts.push_back(static_cast<int32_t>(meta.positions.size()));
    meta.block_table_starts.push_back(static_cast<int32_t>(meta.block_tables.size()));
    for (const int32_t row : s.sample_rows) {
      meta.sample_rows.push_back(first_row + row);
      kernels::SampleParams sampling = s.sampling;
      sampling.noise.position = static_cast<uint32_t>(s.start_position + row + 1);
      meta.sampling.push_back(sampling);
    }
  }
  return meta;
}

}  // namespace baton
