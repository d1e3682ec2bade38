#pragma once

#include <cstdint>

namespace braid::cuda {

// How the keys of any sequence are cut into spans, by absolute position alone: each begins at a
// multiple of 64. Without a window they are of 64 keys up to position 2048, then there are four for
// each doubling of the position; with a window all are alike, so long that it touches few of them.
class KeySpans {
 public:
  explicit KeySpans(int64_t window) {
    if (window == 0) return;
    shift_ = kLeastShift;
    while (shift_ < 30 && window >> shift_ > kMostOfWindow) ++shift_;
  }

#ifdef __CUDACC__
  __host__ __device__
#endif
      int
      index_of(int position) const {
    if (shift_ > 0) return position >> shift_;
    if (position < kLeast * kEven) return position >> kLeastShift;
    int octave = 0;
    while (position >> octave >= 2 * kLeast * kEven) ++octave;
    return kEven + kOfOctave * octave + (position >> (octave + kOctaveShift)) - kOfOctave;
  }

  // The first position.
#ifdef __CUDACC__
  __host__ __device__
#endif
      int
      begin_of(int index) const {
    if (shift_ > 0) return index << shift_;
    if (index < kEven) return index << kLeastShift;
    const int octave = (index - kEven) / kOfOctave, place = (index - kEven) % kOfOctave;
    return (kOfOctave + place) << (octave + kOctaveShift);
  }

  // The most that a stretch of so many positions touches (without a window: of the first ones).
  int most_touched(int64_t positions) const {
    if (shift_ == 0) return index_of(static_cast<int>(positions - 1)) + 1;
    return positions < 2 ? 1 : static_cast<int>((positions - 2) >> shift_) + 2;
  }

 private:
  static constexpr int kLeastShift = 6, kLeast = 1 << kLeastShift;
  static constexpr int kEven = 32, kOfOctave = 4, kOctaveShift = 9;
  static constexpr int kMostOfWindow = 56;
  static_assert(kLeast * kEven == kOfOctave << kOctaveShift);

  int shift_ = 0;  // of equal spans
};

}  // namespace braid::cuda
