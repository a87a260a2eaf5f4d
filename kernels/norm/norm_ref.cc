#include <cmath>

#include "kernels/norm/norm.h"

namespace baton::kernels {

void AddNormRef(const AddNormParams& p, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    float* x = p.residual + row * p.cols;
    double sum_of_squares = 0;
    for (int64_t c = 0; c < p.cols; ++c) {
      if (p.delta != nullptr) x[c] += p.delta[row * p.cols + c];
      sum_of_squares += static_cast<double>(x[c]) * x[c];
    }
    const double inverse = 1.0 / std::sqrt(sum_of_squares / static_cast<double>(p.cols) +
                                           static_cast<double>(p.epsilon));
    for (int64_t c = 0; c < p.cols; ++c) {
      p.out[row * p.cols + c] = static_cast<float>(x[c] * inverse * p.gamma[c]);
    }
  }
}

}  // namespace baton::kernels
