#include "engine/weights/rope_frequencies.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"

namespace baton {
namespace {

constexpr double kTwoPi = 6.283185307179586476925;

// Long wavelengths are stretched by factor, short ones kept, those between blended.
void ScaleLlama3(const RopeScaling& scaling, std::vector<double>* inverse) {
  const double original = scaling.original_max_position_embeddings;
  const double low = scaling.low_freq_factor;
  const double high = scaling.high_freq_factor;
  for (double& frequency : *inverse) {
    const double wavelength = kTwoPi / frequency;
    if (wavelength < original / high) continue;
    if (wavelength > original / low) {
      frequency /= scaling.factor;
      continue;
    }
    const double smooth = (original / wavelength - low) / (high - low);
    frequency = (1 - smooth) * frequency / scaling.factor + smooth * frequency;
  }
}

double YarnMscale(double scale, double mscale) {
  return scale <= 1 ? 1.0 : 0.1 * mscale * std::log(scale) + 1.0;
}

double YarnAttentionScaling(const RopeScaling& scaling) {
  if (scaling.attention_factor.has_value()) return *scaling.attention_factor;
  const double mscale = scaling.mscale.value_or(0);
  const double mscale_all_dim = scaling.mscale_all_dim.value_or(0);
  if (mscale != 0 && mscale_all_dim != 0) {
    return YarnMscale(scaling.factor, mscale) / YarnMscale(scaling.factor, mscale_all_dim);
  }
  return YarnMscale(scaling.factor, 1.0);
}

// Pairs that turn often within the original context keep their frequency, pairs that turn rarely
// are interpolated, with a linear ramp between.
void ScaleYarn(const RopeScaling& scaling, int32_t head_dim, double theta,
               std::vector<double>* inverse) {
  const auto correction_dim = [&](double rotations) {
    return head_dim * std::log(scaling.original_max_position_embeddings / (rotations * kTwoPi)) /
           (2 * std::log(theta));
  };
  double low = correction_dim(scaling.beta_fast);
  double high = correction_dim(scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < inverse->size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    double& frequency = (*inverse)[i];
    frequency = frequency / scaling.factor * ramp + frequency * (1 - ramp);
  }
}

}  // namespace

RopeFrequencies ComputeRopeFrequencies(int32_t head_dim, double theta, const RopeScaling& scaling) {
  CHECK(head_dim > 0 && head_dim % 2 == 0) << head_dim;
  CHECK(theta > 1) << theta;
  RopeFrequencies result;
  result.inverse.resize(head_dim / 2);
  for (int32_t i = 0; i < head_dim / 2; ++i) {
    result.inverse[i] = std::pow(theta, -2.0 * i / head_dim);
  }
  switch (scaling.type) {
    case RopeScaling::Type::kNone:
      break;
    case RopeScaling::Type::kLinear:
      for (double& frequency : result.inverse) frequency /= scaling.factor;
      break;
    case RopeScaling::Type::kLlama3:
      ScaleLlama3(scaling, &result.inverse);
      break;
    case RopeScaling::Type::kYarn:
      ScaleYarn(scaling, head_dim, theta, &result.inverse);
      result.attention_scaling = YarnAttentionScaling(scaling);
      break;
  }
  return result;
}

}  // namespace baton
