/* permute.c: owns the order of an epoch: a bijection of 0 … n-1 that is computed and never stored.
 *
 * A Feistel network over the least number of bits that holds n - 1, cut into two halves that may differ by one bit; each round adds
 * (exclusive or) a keyed function of one half to the other, so it can be undone and the network is a bijection of its 2^bits values.
 * Values at or above n are sent through again (cycle walking) until one lies below: a bijection of 0 … n-1. As 2^bits < 2n, that is
 * fewer than two rounds through on average. The keyed function is Philox, and the tweak (epoch and source) its counter.
 *
 * Four rounds are what the proofs ask for.
 *
 * References: Luby and Rackoff, "How to construct pseudorandom permutations from pseudorandom functions" (1988); Black and Rogaway,
 * "Ciphers with arbitrary finite domains" (2002).
 */
#include "data/data_i.h"

#define ROUNDS 4

uint64_t wr_permute(uint64_t n, uint64_t key, uint64_t tweak, uint64_t i) {
  if (n < 2) return 0;
  const int bits = 64 - __builtin_clzll(n - 1), low = bits / 2, high = bits - low;
  const uint64_t mask[2] = {(1ull << low) - 1, high == 64 ? ~0ull : (1ull << high) - 1};
  do {
    uint64_t half[2] = {i & mask[0], i >> low};
    for (uint64_t round = 0; round < ROUNDS; round++) {
      const int to = (round & 1) == 0; /* the high half first: it is the one that is never empty */
      uint32_t bitsof[4];
      wr_philox(key ^ round * 0x9E3779B97F4A7C15u, tweak, half[!to], bitsof);
      half[to] ^= ((uint64_t)bitsof[1] << 32 | bitsof[0]) & mask[to];
    }
    i = half[1] << low | half[0];
  } while (i >= n);
  return i;
}
