// The operations a model is recorded as: a flat list, executed in order. It is a list, not a graph:
// fusions are the operations themselves. A device compiles the list once (device.h).
//
// Values are activations: matrices [rows, cols] of the device's activation type (float32 on the
// CPU; logits are float32 everywhere). The number of rows is known per step: all tokens of the
// step, or the tokens that are sampled from. Values live in a workspace planned by liveness; every
// value is written by one operation before others read it, and only AddNorm updates one in place.
//
// Identity: an operation computes each output row from the corresponding input rows (Attention:
// from the KV of its sequence up to its position too), so a device can make a row's bits
// independent of the rest of the batch. The CPU device always does.
#ifndef BATON_DEVICE_OPS_H_
#define BATON_DEVICE_OPS_H_

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/dtype.h"
#include "common/base/strong_id.h"

namespace baton {

// What a weight is for; the device chooses its form in memory by that.
enum class WeightRole : uint8_t {
  kMatrix,       // [rows, cols]: Linear, Embed, or both.
  kGatedMatrix,  // Two matrices [rows, cols], gate and up: Linear with the swiglu epilogue.
  kBias,         // [rows] of a kMatrix.
  kGatedBias,    // Two of [rows], gate and up, of a kGatedMatrix.
  kVector,       // [rows], float32: gammas, rotary frequencies.
};

// A weight that a device has prepared. Immutable, thread-safe, owned jointly by the programs that
// use it. `rows` is the number of outputs (gated: of one part); cols is 1 but for matrices.
class Weight {
 public:
  Weight(WeightRole role, DType dtype, int64_t rows, int64_t cols)
      : role_(role), dtype_(dtype), rows_(rows), cols_(cols) {}
  virtual ~Weight() = default;
  WeightRole role() const { return role_; }
  DType dtype() const { return dtype_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  // Device memory it takes.
  virtual int64_t bytes() const = 0;

 private:
  const WeightRole role_;
  const DType dtype_;
  const int64_t rows_;
  const int64_t cols_;
};
using WeightPtr = std::shared_ptr<const Weight>;

using ValueId = StrongId<struct ValueIdTag, int32_t>;
enum class ValueRows : uint8_t { kTokens, kSamples };
struct ValueSpec {
  ValueRows rows = ValueRows::kTokens;
  int64_t cols = 0;
};

// out = rows of `table` by the step's token source: ids, or samples of the step before.
struct EmbedOp {
  WeightPtr table;  // kMatrix [vocab, cols]
  ValueId out;      // [tokens, cols]
};

// residual += delta (if there is one); out = residual / rms(residual) * gamma. The residual is
// added here, so that a tensor-parallel reduction of delta can come before.
struct AddNormOp {
  ValueId delta;     // [rows, cols]; kNoValue: none
  ValueId residual;  // [rows, cols], updated
  WeightPtr gamma;   // kVector [cols]
  float epsilon = 0;
  ValueId out;  // [rows, cols]
};

enum class LinearEpilogue : uint8_t { kNone, kSwiglu };

// out = in * transpose(weight) + bias; with kSwiglu: silu(gate) * up of the two parts.
struct LinearOp {
  ValueId in;        // [rows, weight cols]
  WeightPtr weight;  // kMatrix, or kGatedMatrix with kSwiglu
  WeightPtr bias;    // kBias or kGatedBias; may be null
  LinearEpilogue epilogue = LinearEpilogue::kNone;
  ValueId out;  // [rows, weight rows]
};

// out = cosines and sines of the step's positions, read by every RopeKvWrite.
struct RopeAnglesOp {
  WeightPtr inverse_frequencies;  // kVector [head_dim / 2]
  float scale = 1;
  ValueId out;  // [tokens, head_dim]
};

// Splits qkv [tokens, (num_heads + 2 * num_kv_heads) * head_dim] into queries, keys, values;
// rotates queries into `q` and keys into the pool (half-split pairs); writes values to the pool.
struct RopeKvWriteOp {
  ValueId qkv;
  ValueId angles;
  int32_t layer = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  ValueId q;  // [tokens, num_heads * head_dim]
};

// Causal attention of each token over the KV of its sequence, from the pool.
struct AttentionOp {
  ValueId q;  // [tokens, num_heads * head_dim]
  int32_t layer = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  float scale = 1;
  ValueId out;  // [tokens, num_heads * head_dim]
};

// out = the rows of `in` that are sampled from.
struct GatherRowsOp {
  ValueId in;   // [tokens, cols]
  ValueId out;  // [samples, cols]
};

// Draws a token from each row (kernels/sampling/sampling.h defines how). Columns from `vocab` on
// are padding of the head and are never drawn nor counted in log-probabilities. The list's last
// operation; its results are the step's outputs.
struct SampleOp {
  ValueId logits;  // [samples, cols], cols >= vocab
  int32_t vocab = 0;
};

using Op = std::variant<EmbedOp, AddNormOp, LinearOp, RopeAnglesOp, RopeKvWriteOp, AttentionOp,
                        GatherRowsOp, SampleOp>;

inline const ValueId kNoValue{-1};

struct OpList {
  std::vector<ValueSpec> values;
  std::vector<Op> ops;

  ValueId NewValue(ValueRows rows, int64_t cols) {
    values.push_back({rows, cols});
    return ValueId(static_cast<int32_t>(values.size()) - 1);
  }
};

// "Linear", for messages.
absl::string_view OpName(const Op& op);

// Values an operation reads and writes (kNoValue left out; an updated value is in both).
struct OpValues {
  std::vector<ValueId> reads;
  std::vector<ValueId> writes;
};
OpValues ValuesOf(const Op& op);

// Checks shapes, roles and that values are written before they are read; num_layers bounds the
// layer indices. ERRORS: InvalidArgument naming the operation by index.
absl::Status CheckOps(const OpList& list, int32_t num_layers);

}  // namespace baton

#endif  // BATON_DEVICE_OPS_H_
