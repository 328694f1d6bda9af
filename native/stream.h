// The name of a random stream and its 128-bit key (see stream.py for the specification).
#pragma once

#include <cstdint>

namespace prism {

struct Stream {
  std::uint64_t seed;
  std::uint64_t replica;
  std::uint64_t call;
};

// A 128-bit AES block as little-endian words.
struct Block {
  std::uint32_t w[4];
};

Block stream_key(const Stream& stream);

// One round of AES encryption by table look-up, on any machine.
Block aes_round(Block state, Block key);

}  // namespace prism
