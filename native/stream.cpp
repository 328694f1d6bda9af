#include "stream.h"

namespace prism {
namespace {

struct Tables {
  // T[i][x]: the contribution of byte i of a column to the mixed column, S-box included.
  std::uint32_t t[4][256];
};

constexpr std::uint8_t gf_multiply(unsigned a, unsigned b) {
  unsigned product = 0;
  for (; b != 0; b >>= 1) {
    if (b & 1) product ^= a;
    a = (a << 1) ^ ((a & 0x80) ? 0x11B : 0);
  }
  return static_cast<std::uint8_t>(product);
}

constexpr Tables make_tables() {
  Tables tables{};
  // 3 generates the multiplicative group, so 3^i and 3^(255-i) are inverses.
  std::uint8_t power[256] = {};
  power[0] = 1;
  for (int i = 1; i < 255; ++i) power[i] = gf_multiply(power[i - 1], 3);
  std::uint8_t inverse[256] = {};
  for (int i = 0; i < 255; ++i) inverse[power[i]] = power[(255 - i) % 255];
  for (int x = 0; x < 256; ++x) {
    unsigned s = 0x63;
    for (int shift = 0; shift < 5; ++shift) {
      s ^= ((inverse[x] << shift) | (inverse[x] >> (8 - shift))) & 0xFF;
    }
    const std::uint32_t one = s, two = gf_multiply(s, 2), three = gf_multiply(s, 3);
    tables.t[0][x] = two | one << 8 | one << 16 | three << 24;
    tables.t[1][x] = three | two << 8 | one << 16 | one << 24;
    tables.t[2][x] = one | three << 8 | two << 16 | one << 24;
    tables.t[3][x] = one | one << 8 | three << 16 | two << 24;
  }
  return tables;
}

constexpr Tables kTables = make_tables();
constexpr int kKeyRounds = 10;

Block round_constant(std::uint64_t i) {
  const std::uint64_t low = (i + 1) * 0x9E3779B97F4A7C15u;
  const std::uint64_t high = (i + 1) * 0xD1B54A32D192ED03u;
  return {{static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32),
           static_cast<std::uint32_t>(high), static_cast<std::uint32_t>(high >> 32)}};
}

}  // namespace

Block aes_round(Block s, Block key) {
  Block r;
  for (int j = 0; j < 4; ++j) {
    r.w[j] = kTables.t[0][s.w[j] & 0xFF] ^ kTables.t[1][(s.w[(j + 1) % 4] >> 8) & 0xFF] ^
             kTables.t[2][(s.w[(j + 2) % 4] >> 16) & 0xFF] ^ kTables.t[3][s.w[(j + 3) % 4] >> 24] ^
             key.w[j];
  }
  return r;
}

Block stream_key(const Stream& stream) {
  Block state = {{static_cast<std::uint32_t>(stream.seed),
                  static_cast<std::uint32_t>(stream.seed >> 32),
                  static_cast<std::uint32_t>(stream.replica),
                  static_cast<std::uint32_t>(stream.replica >> 32)}};
  for (int i = 0; i < kKeyRounds; ++i) state = aes_round(state, round_constant(i));
  state.w[0] ^= static_cast<std::uint32_t>(stream.call);
  state.w[1] ^= static_cast<std::uint32_t>(stream.call >> 32);
  for (int i = 0; i < kKeyRounds; ++i) state = aes_round(state, round_constant(kKeyRounds + i));
  return state;
}

}  // namespace prism
