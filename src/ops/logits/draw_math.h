#pragma once

#include <cstdint>
#include <cstring>

// The arithmetic of drawing a token, for the host and for devices: of single operations that are
// rounded alike everywhere (no fused ones), so that the same logits give the same token to the bit.

#ifdef __CUDACC__
#define BRAID_ANY_SIDE __host__ __device__ inline
#else
#define BRAID_ANY_SIDE inline
#endif

namespace braid {

BRAID_ANY_SIDE uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}
BRAID_ANY_SIDE float float_of_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

// NaN becomes -inf, +inf the largest float.
BRAID_ANY_SIDE float sanitised(float logit) {
  constexpr float kLargest = 3.402823466e+38f;
  const float bounded = logit < kLargest ? logit : kLargest;  // NaN: the largest
  return logit >= -kLargest ? bounded : float_of_bits(0xff800000u);
}

// Tokens in the order of choice: higher logit first, of equals the lower id. The smaller comes
// first. No logit is NaN.
BRAID_ANY_SIDE uint64_t rank_key(float logit, int32_t token) {
  const uint32_t bits = bits_of(logit + 0.0f);  // -0 is 0
  const uint32_t ascending = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return (uint64_t{~ascending} << 32) | static_cast<uint32_t>(token);
}

// e^x for x <= 0, to about 1 in 10^7; 0 below -87. After Cephes, expf.
BRAID_ANY_SIDE float exp_of_negative(float x) {
  if (!(x > -87.0f)) return 0;
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23
  const float shifted = x * 1.44269504088896341f + kRounder;
  const float n = shifted - kRounder;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float y = 1.9875691500e-4f;
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * (r * r) + r + 1.0f;
  return y * float_of_bits(static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23);
}

// log x, x > 0 and neither subnormal nor infinite. After FreeBSD's e_log.c.
BRAID_ANY_SIDE double log_of(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof(bits));
  constexpr uint64_t kRootHalf = 0x3fe6a09e667f3bcdu;  // sqrt(1/2)
  const auto exponent = static_cast<int64_t>(bits - kRootHalf) >> 52;
  bits -= static_cast<uint64_t>(exponent) << 52;
  double f;  // in [sqrt(1/2), sqrt(2)), minus 1
  memcpy(&f, &bits, sizeof(f));
  f = f - 1;
  const double s = f / (2 + f);
  const double z = s * s;
  const double w = z * z;
  const double odd = z * (6.666666666666735130e-01 +
                          w * (2.857142874366239149e-01 +
                               w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
  const double even = w * (3.999999999940941908e-01 +
                           w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
  const double half = 0.5 * f * f;
  const double k = static_cast<double>(exponent);
  return k * 6.93147180369123816490e-01 -
         ((half - (s * (half + (odd + even)) + k * 1.90821492927058770002e-10)) - f);
}

// Weight of a token beside the likeliest. The difference first: no temperature, however small, can
// overflow then.
BRAID_ANY_SIDE float draw_weight(float logit, float highest, float temperature) {
  return exp_of_negative((logit - highest) / temperature);
}

// Weights in whole numbers, whose sums do not depend on their order. Weights of up to 1 of up to
// 2^19 tokens fit. What counts nothing, below 2^-44, cannot win a race either (kLeastChance).
constexpr float kMassOfOne = 0x1p44f;
BRAID_ANY_SIDE uint64_t mass_of(float weight) { return static_cast<uint64_t>(weight * kMassOfOne); }

// top_p asks for this much of the total mass.
BRAID_ANY_SIDE double top_p_target(double top_p, uint64_t total) {
  return top_p * static_cast<double>(total);
}
// What is kept of `count` tokens has at least this mass: those below it are together less than the
// rest that need not be kept. The factor covers roundings.
BRAID_ANY_SIDE double top_p_floor(double target, uint64_t total, int64_t count) {
  return 0.999 * (static_cast<double>(total) - target) / static_cast<double>(count);
}

// A logit, sanitised, after an edit by a rule (draw_tokens.h).
template <typename Rule>
BRAID_ANY_SIDE float edited_logit(float logit, int32_t output_count, float bias, const Rule& rule) {
  if (output_count >= 0) {
    logit = logit > 0 ? logit / rule.repetition_penalty : logit * rule.repetition_penalty;
    if (output_count > 0) {
      logit = logit - rule.frequency_penalty * static_cast<float>(output_count);
      logit = logit - rule.presence_penalty;
    }
    logit = sanitised(logit);
  }
  return logit + bias;
}

// Σ exp(l - highest) in a row whose weights have this mass; then a token's log-probability.
BRAID_ANY_SIDE double log_of_mass(uint64_t mass) {
  return log_of(static_cast<double>(mass) * 0x1p-44);
}
BRAID_ANY_SIDE float logprob_of(float logit, float highest, double log_sum) {
  const double logprob = static_cast<double>(logit) - static_cast<double>(highest) - log_sum;
  return static_cast<float>(logprob > -9999 ? logprob : -9999);
}

// Philox4x32-10 (philox.h).
BRAID_ANY_SIDE void philox_rounds(uint32_t counter[4], uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xd2511f53} * counter[0];
    const uint64_t product1 = uint64_t{0xcd9e8d57} * counter[2];
    counter[0] = static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0;
    counter[1] = static_cast<uint32_t>(product1);
    counter[2] = static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1;
    counter[3] = static_cast<uint32_t>(product0);
    key0 += 0x9e3779b9;
    key1 += 0xbb67ae85;
  }
}

// A token's number in (0, 1): an odd multiple of 2^-33.
BRAID_ANY_SIDE double uniform_of_bits(uint32_t bits) { return (bits + 0.5) * 0x1p-32; }

// When the exponential clock of a token rings; the first wins. `number` is the token's own.
BRAID_ANY_SIDE double ring_time(double number, float weight) {
  return -log_of(1 - number) / static_cast<double>(weight);
}
// Whether a token may ring before `first`. -log(1 - u) >= u >= kLeastChance; the margin is for
// roundings.
constexpr double kLeastChance = 0x1p-33;
BRAID_ANY_SIDE double latest_number(double first, float weight) {
  return first * static_cast<double>(weight) * (1 + 0x1p-40);
}

}  // namespace braid
