// The normal distribution, as a first guess of where the k best of ordinary data begin.
#pragma once

#include <algorithm>
#include <cmath>

namespace shortlist::core {

/// The quantile that `share` of a standard normal distribution lies above, to 4e-4 (Abramowitz and Stegun 26.2.23).
inline double upper_quantile(double share) {
  const double within = std::clamp(share, 1e-12, 1.0 - 1e-12);
  const bool mirrored = within > 0.5;
  const double t = std::sqrt(-2.0 * std::log(mirrored ? 1.0 - within : within));
  const double x =
      t - (2.515517 + t * (0.802853 + t * 0.010328)) / (1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308)));
  return mirrored ? -x : x;
}

inline double normal_density(double deviations) {
  constexpr double kDensityAtMean = 0.3989422804014327;
  return kDensityAtMean * std::exp(-0.5 * deviations * deviations);
}

}  // namespace shortlist::core
