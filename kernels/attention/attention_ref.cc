#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/attention/attention.h"

namespace baton::kernels {
namespace {

void AttentionRow(const AttentionParams& p, const AttentionWork& work, int64_t token,
                  int64_t head) {
  const int64_t dim = p.kv.head_dim;
  const int64_t block_tokens = int64_t{1} << p.kv.block_tokens_log2;
  const int64_t row = ((work.token_begin + token) * p.num_heads + head) * dim;
  const int64_t num_keys = work.first_position + token + 1;
  const auto key = [&](int64_t j) {
    return p.kv.Key(work.block_table[j / block_tokens], work.kv_head, j % block_tokens);
  };
  std::vector<double> scores(static_cast<size_t>(num_keys));
  double largest = -std::numeric_limits<double>::infinity();
  for (int64_t j = 0; j < num_keys; ++j) {
    double dot = 0;
    for (int64_t i = 0; i < dim; ++i) dot += static_cast<double>(p.q[row + i]) * key(j)[i];
    scores[static_cast<size_t>(j)] = dot * static_cast<double>(p.scale);
    largest = std::max(largest, scores[static_cast<size_t>(j)]);
  }
  double sum = 0;
  for (double& s : scores) sum += s = std::exp(s - largest);
  for (int64_t i = 0; i < dim; ++i) {
    double out = 0;
    for (int64_t j = 0; j < num_keys; ++j) {
      out += scores[static_cast<size_t>(j)] * key(j)[p.kv.value_offset + i];
    }
    p.out[row + i] = static_cast<float>(out / sum);
  }
}

}  // namespace

void AttentionRef(const AttentionParams& p, const AttentionWork& work) {
  const int64_t group = p.num_heads / p.num_kv_heads;
  for (int64_t token = 0; token < work.num_tokens; ++token) {
    for (int64_t h = 0; h < group; ++h) AttentionRow(p, work, token, work.kv_head * group + h);
  }
}

}  // namespace baton::kernels
