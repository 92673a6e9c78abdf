/* misc.c: owns the log, the clock, random numbers and the checksum.
 *
 * References: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC11), Philox4x32 with ten rounds; Blackman and
 * Vigna, "Scrambled linear pseudorandom number generators" (2018), xoshiro256** and splitmix64; Collet, "xxHash fast digest
 * algorithm", XXH64. The tests hold all three against published vectors.
 */
#include "base/base_i.h"

#include <math.h>
#include <sys/random.h>
#include <unistd.h>

/* ---- log and clock */

void wr_log(weir_log_level level, const char *fmt, ...) {
  const weir_hooks *h = wr_hooks();
  if (!h->log || level > h->log_level) return;
  char message[1024];
  va_list args;
  va_start(args, fmt);
  vsnprintf(message, sizeof message, fmt, args);
  va_end(args);
  h->log(h->user, level, message);
}

uint64_t wr_now_ns(void) {
  const weir_hooks *h = wr_hooks();
  return h->clock_ns(h->user);
}

/* ---- random */

/* The low word of counter_lo is word 0 of the published counter, the high word of counter_hi is word 3; likewise the key. */
void wr_philox(uint64_t key, uint64_t counter_hi, uint64_t counter_lo, uint32_t out[4]) {
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  uint32_t c0 = (uint32_t)counter_lo, c1 = (uint32_t)(counter_lo >> 32);
  uint32_t c2 = (uint32_t)counter_hi, c3 = (uint32_t)(counter_hi >> 32);
  for (int round = 0; round < 10; round++) {
    uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c1 = (uint32_t)p1;
    c3 = (uint32_t)p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

static uint64_t rotl64(uint64_t x, int by) { return x << by | x >> (64 - by); }

void wr_rng_seed(wr_rng *r, uint64_t seed) {
  for (int i = 0; i < 4; i++) {
    uint64_t z = seed += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    r->s[i] = z ^ z >> 31;
  }
}

uint64_t wr_rng_u64(wr_rng *r) {
  uint64_t *s = r->s;
  uint64_t result = rotl64(s[1] * 5, 7) * 9, t = s[1] << 17;
  s[2] ^= s[0];
  s[3] ^= s[1];
  s[1] ^= s[2];
  s[0] ^= s[3];
  s[2] ^= t;
  s[3] = rotl64(s[3], 45);
  return result;
}

double wr_rng_uniform(wr_rng *r) { return (double)(wr_rng_u64(r) >> 11) * 0x1p-53; }

/* Marsaglia's polar method; the second value is dropped, so that the state is the four words and nothing else. */
double wr_rng_normal(wr_rng *r) {
  for (;;) {
    double x = 2 * wr_rng_uniform(r) - 1, y = 2 * wr_rng_uniform(r) - 1, q = x * x + y * y;
    if (q > 0 && q < 1) return x * sqrt(-2 * log(q) / q);
  }
}

uint64_t wr_random_seed(void) {
  uint64_t seed;
  if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) == (ssize_t)sizeof seed) return seed;
  return wr_now_ns() * 0x9E3779B97F4A7C15u ^ (uint64_t)getpid() << 32; /* no entropy yet, early at boot */
}

/* ---- XXH64 */

#define XXH_P1 0x9E3779B185EBCA87u
#define XXH_P2 0xC2B2AE3D27D4EB4Fu
#define XXH_P3 0x165667B19E3779F9u
#define XXH_P4 0x85EBCA77C2B2AE63u
#define XXH_P5 0x27D4EB2F165667C5u

static uint64_t load64(const uint8_t *p) {
  uint64_t x;
  memcpy(&x, p, 8);
  return x; /* little-endian machines only, as the files that weir makes */
}

static uint64_t xxh_round(uint64_t acc, uint64_t lane) { return rotl64(acc + lane * XXH_P2, 31) * XXH_P1; }

static uint64_t xxh_merge(uint64_t hash, uint64_t acc) { return (hash ^ xxh_round(0, acc)) * XXH_P1 + XXH_P4; }

/* Whole stripes of 32 bytes. */
static const uint8_t *xxh_stripes(uint64_t acc[4], const uint8_t *p, size_t n) {
  uint64_t a = acc[0], b = acc[1], c = acc[2], d = acc[3];
  for (; n >= 32; n -= 32, p += 32) {
    a = xxh_round(a, load64(p));
    b = xxh_round(b, load64(p + 8));
    c = xxh_round(c, load64(p + 16));
    d = xxh_round(d, load64(p + 24));
  }
  acc[0] = a, acc[1] = b, acc[2] = c, acc[3] = d;
  return p;
}

void wr_hash_begin(wr_hash *h, uint64_t seed) {
  *h = (wr_hash){.acc = {seed + XXH_P1 + XXH_P2, seed + XXH_P2, seed, seed - XXH_P1}, .seed = seed};
}

void wr_hash_add(wr_hash *h, const void *bytes, size_t n) {
  const uint8_t *p = bytes;
  const size_t have = (size_t)(h->total_bytes % 32);
  h->total_bytes += n;
  if (have) {
    const size_t fill = WR_MIN(n, 32 - have);
    memcpy(h->rest + have, p, fill);
    if (have + fill < 32) return;
    xxh_stripes(h->acc, h->rest, 32);
    p += fill;
    n -= fill;
  }
  p = xxh_stripes(h->acc, p, n);
  if (n % 32) memcpy(h->rest, p, n % 32);
}

uint64_t wr_hash_end(const wr_hash *h) {
  const uint8_t *p = h->rest;
  size_t left = (size_t)(h->total_bytes % 32);
  uint64_t hash = h->seed + XXH_P5;
  if (h->total_bytes >= 32) {
    hash = rotl64(h->acc[0], 1) + rotl64(h->acc[1], 7) + rotl64(h->acc[2], 12) + rotl64(h->acc[3], 18);
    for (int i = 0; i < 4; i++) hash = xxh_merge(hash, h->acc[i]);
  }
  hash += h->total_bytes;
  for (; left >= 8; left -= 8, p += 8) hash = rotl64(hash ^ xxh_round(0, load64(p)), 27) * XXH_P1 + XXH_P4;
  if (left >= 4) {
    uint32_t word;
    memcpy(&word, p, 4);
    hash = rotl64(hash ^ word * XXH_P1, 23) * XXH_P2 + XXH_P3;
    left -= 4;
    p += 4;
  }
  for (; left; left--, p++) hash = rotl64(hash ^ *p * XXH_P5, 11) * XXH_P1;
  hash = (hash ^ hash >> 33) * XXH_P2;
  hash = (hash ^ hash >> 29) * XXH_P3;
  return hash ^ hash >> 32;
}

uint64_t wr_hash64(const void *bytes, size_t n, uint64_t seed) {
  wr_hash h;
  wr_hash_begin(&h, seed);
  wr_hash_add(&h, bytes, n);
  return wr_hash_end(&h);
}
