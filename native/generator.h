// The generator of one column group: four AES blocks that advance side by side.
//
// The specification of the bits is stream.py; this file only says it in the
// instructions of each machine.
#pragma once

#include "stream.h"
#include "vector.h"

namespace prism {
namespace PRISM_ISA {

constexpr int kStartRounds = 5;

#if defined(__AVX512F__)

struct Key {
  __m512i k;
  explicit Key(const Block& b) : k(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)b.w))) {}
};

struct Generator {
  __m512i s;

  Generator() = default;
  PRISM_INLINE Generator(const Key& key, std::uint64_t row, std::uint64_t block,
                         std::uint64_t group) {
    const std::uint64_t high = 4 * group + (block << 40);
    s = _mm512_xor_si512(
        _mm512_set_epi64((long long)(high + 3), (long long)row, (long long)(high + 2),
                         (long long)row, (long long)(high + 1), (long long)row, (long long)high,
                         (long long)row),
        key.k);
    PRISM_UNROLL for (int i = 0; i < kStartRounds; ++i) advance(key);
  }
  PRISM_INLINE void advance(const Key& key) { s = _mm512_aesenc_epi128(s, key.k); }
  PRISM_INLINE L16 uniform() const {
    L16 r;
    r.v[0] = (vl)_mm512_and_si512(s, _mm512_set1_epi64((1 << 29) - 1));
    r.v[1] = (vl)_mm512_srli_epi64(s, 35);
    return r;
  }
  PRISM_INLINE void words(std::uint32_t* out) const { _mm512_storeu_si512(out, s); }
};

#elif defined(__AVX2__)

struct Key {
  __m128i k;
  explicit Key(const Block& b) : k(_mm_loadu_si128((const __m128i*)b.w)) {}
};

struct Generator {
  alignas(32) __m128i s[4];

  Generator() = default;
  PRISM_INLINE Generator(const Key& key, std::uint64_t row, std::uint64_t block,
                         std::uint64_t group) {
    const std::uint64_t high = 4 * group + (block << 40);
    PRISM_UNROLL for (int b = 0; b < 4; ++b) {
      s[b] = _mm_xor_si128(_mm_set_epi64x((long long)(high + b), (long long)row), key.k);
    }
    PRISM_UNROLL for (int i = 0; i < kStartRounds; ++i) advance(key);
  }
  PRISM_INLINE void advance(const Key& key) {
    PRISM_UNROLL for (int b = 0; b < 4; ++b) s[b] = _mm_aesenc_si128(s[b], key.k);
  }
  PRISM_INLINE L16 uniform() const {
    L16 r;
    const __m256i mask = _mm256_set1_epi64x((1 << 29) - 1);
    PRISM_UNROLL for (int i = 0; i < 2; ++i) {
      const __m256i pair = _mm256_set_m128i(s[2 * i + 1], s[2 * i]);
      r.v[i] = (vl)_mm256_and_si256(pair, mask);
      r.v[2 + i] = (vl)_mm256_srli_epi64(pair, 35);
    }
    return r;
  }
  // Blocks 2i and 2i + 1.
  PRISM_INLINE __m256i pair(int i) const { return *(const __m256i*)(s + 2 * i); }
  PRISM_INLINE void words(std::uint32_t* out) const {
    PRISM_UNROLL for (int b = 0; b < 4; ++b) _mm_storeu_si128((__m128i*)(out + 4 * b), s[b]);
  }
};

#else

struct Key {
  Block k;
  explicit Key(const Block& b) : k(b) {}
};

struct Generator {
  Block s[4];

  Generator() = default;
  Generator(const Key& key, std::uint64_t row, std::uint64_t block, std::uint64_t group) {
    for (int b = 0; b < 4; ++b) {
      const std::uint64_t high = 4 * group + b + (block << 40);
      s[b] = {{(std::uint32_t)row ^ key.k.w[0], (std::uint32_t)(row >> 32) ^ key.k.w[1],
               (std::uint32_t)high ^ key.k.w[2], (std::uint32_t)(high >> 32) ^ key.k.w[3]}};
    }
    for (int i = 0; i < kStartRounds; ++i) advance(key);
  }
  void advance(const Key& key) {
    for (int b = 0; b < 4; ++b) s[b] = aes_round(s[b], key.k);
  }
  L16 uniform() const {
    L16 r;
    for (int lane = 0; lane < 8; ++lane) {
      const std::uint32_t low = s[lane / 2].w[lane % 2 * 2], high = s[lane / 2].w[lane % 2 * 2 + 1];
      r.v[lane / kDoubles][lane % kDoubles] = low & ((1 << 29) - 1);
      r.v[(8 + lane) / kDoubles][lane % kDoubles] = high >> 3;
    }
    return r;
  }
  void words(std::uint32_t* out) const {
    for (int i = 0; i < 16; ++i) out[i] = s[i / 4].w[i % 4];
  }
};

#endif

}  // namespace PRISM_ISA
}  // namespace prism
