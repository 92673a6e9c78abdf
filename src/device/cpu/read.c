/* read.c: owns the plain read: every byte of some ranges, once, as fast as this machine loads them.
 *
 * It is the yardstick for kernels that stream weights, so it must be at least as good at reading as they are: the widest loads
 * of the machine (whatever WEIR_ISA asks of the kernels), eight accumulators so that nothing waits for a sum, and for parts
 * larger than the private caches a prefetch into L2 some 16 KB ahead, past the end of the page where the hardware's own
 * prefetch stops. Inside the caches that prefetch would cost a third of the load slots, hence the two kinds.
 *
 * Each thread reads the part of every range that a kernel's thread begins with: [bytes*tid/n, bytes*(tid+1)/n), in whole cache
 * lines that lie inside the range; the few bytes outside of them are neither read nor counted.
 */
#include "device/cpu/machine_i.h"

#if defined(__x86_64__)
  #include <immintrin.h>
#elif defined(__aarch64__)
  #include <arm_neon.h>
#endif

#define LINE ((size_t)64)
#define AHEAD ((size_t)16 << 10)
#define PREFETCH_FROM ((size_t)4 << 20) /* bytes of a thread's part: beyond the L2 of any core so far */

/* Reads whole lines. `ahead`: 0, or how far to prefetch. */
typedef void (*read_fn)(const uint8_t *p, size_t lines, size_t ahead);

/* The loop for one vector type: eight vectors a turn, an accumulator each, then the last lines. Accumulators are variables, not
 * an array: compilers keep an array's elements in memory, or copy them around, in just the loops where that costs most. */
#define READ_LOOP(vector, zero, load, mix, reg) \
  enum { BLOCK_LINES = (int)(8 * sizeof(vector) / LINE), LINE_VECTORS = (int)(LINE / sizeof(vector)) }; \
  vector a0 = zero, a1 = zero, a2 = zero, a3 = zero, a4 = zero, a5 = zero, a6 = zero, a7 = zero; \
  for (; lines >= BLOCK_LINES; lines -= BLOCK_LINES, p += BLOCK_LINES * LINE) { \
    if (ahead) { \
      _Pragma("GCC unroll 8") for (size_t i = 0; i < BLOCK_LINES; i++) __builtin_prefetch(p + ahead + i * LINE, 0, 2); \
    } \
    a0 = mix(a0, load((const void *)p)); \
    a1 = mix(a1, load((const void *)(p + sizeof(vector)))); \
    a2 = mix(a2, load((const void *)(p + 2 * sizeof(vector)))); \
    a3 = mix(a3, load((const void *)(p + 3 * sizeof(vector)))); \
    a4 = mix(a4, load((const void *)(p + 4 * sizeof(vector)))); \
    a5 = mix(a5, load((const void *)(p + 5 * sizeof(vector)))); \
    a6 = mix(a6, load((const void *)(p + 6 * sizeof(vector)))); \
    a7 = mix(a7, load((const void *)(p + 7 * sizeof(vector)))); \
  } \
  for (; lines; lines--, p += LINE) \
    for (size_t i = 0; i < LINE_VECTORS; i++) a0 = mix(a0, load((const void *)(p + i * sizeof(vector)))); \
  a0 = mix(mix(mix(a0, a1), mix(a2, a3)), mix(mix(a4, a5), mix(a6, a7))); \
  __asm__ volatile("" : : reg(a0)); /* all of it counts as used, so all of it is read */

static inline __attribute__((always_inline)) uint64_t word_load(const void *p) {
  uint64_t x;
  memcpy(&x, p, sizeof x);
  return x;
}
#define WORD_MIX(a, b) ((a) ^ (b))
static inline __attribute__((always_inline)) void read_words(const uint8_t *p, size_t lines, size_t ahead) {
  READ_LOOP(uint64_t, 0, word_load, WORD_MIX, "r")
}
static void read_generic(const uint8_t *p, size_t lines, size_t ahead) {
  if (ahead)
    read_words(p, lines, AHEAD);
  else
    read_words(p, lines, 0);
}

#if defined(__x86_64__)
static inline __attribute__((always_inline, target("avx2"))) void read_256(const uint8_t *p, size_t lines, size_t ahead) {
  READ_LOOP(__m256i, _mm256_setzero_si256(), _mm256_load_si256, _mm256_xor_si256, "x")
}
__attribute__((target("avx2"))) static void read_avx2(const uint8_t *p, size_t lines, size_t ahead) {
  if (ahead)
    read_256(p, lines, AHEAD);
  else
    read_256(p, lines, 0);
}
static inline __attribute__((always_inline, target("avx512f"))) void read_512(const uint8_t *p, size_t lines, size_t ahead) {
  READ_LOOP(__m512i, _mm512_setzero_si512(), _mm512_load_si512, _mm512_xor_si512, "v")
}
__attribute__((target("avx512f"))) static void read_avx512(const uint8_t *p, size_t lines, size_t ahead) {
  if (ahead)
    read_512(p, lines, AHEAD);
  else
    read_512(p, lines, 0);
}
#elif defined(__aarch64__)
static inline __attribute__((always_inline)) void read_128(const uint8_t *p, size_t lines, size_t ahead) {
  READ_LOOP(uint8x16_t, vdupq_n_u8(0), vld1q_u8, veorq_u8, "w")
}
static void read_neon(const uint8_t *p, size_t lines, size_t ahead) {
  if (ahead)
    read_128(p, lines, AHEAD);
  else
    read_128(p, lines, 0);
}
#endif

#define READ_FN(LEVEL, isa, _) [WR_ISA_##LEVEL] = read_##isa,
static const read_fn read_fns[] = {WR_EACH_ISA(READ_FN, )};

/* The widest loads of the machine, whatever WEIR_ISA asks of the kernels. */
static read_fn best_read(void) {
  wr_cpu_facts facts;
  wr_cpu_facts_get(&facts);
  return read_fns[facts.isa & WR_ISA_LEVEL_MASK]; /* a level for each entry: the facts know no other */
}

/* ---- the team reads */

typedef struct reading {
  wr_team *team;
  read_fn fn;
  size_t ahead;
  const wr_range *ranges;
  size_t n;
  int passes;
  uint64_t began_ns, ended_ns; /* by thread 0 */
  _Atomic uint64_t bytes;      /* read in one pass by all threads */
} reading;

/* The whole cache lines of a thread's part of a range. */
static const uint8_t *part_of(const wr_range *r, int tid, int n_threads, size_t *lines) {
  uintptr_t base = (uintptr_t)r->ptr, first = (base + LINE - 1) / LINE, past = (base + r->bytes) / LINE;
  size_t all = past > first ? past - first : 0;
  size_t from = (size_t)((__uint128_t)all * (unsigned)tid / (unsigned)n_threads);
  size_t to = (size_t)((__uint128_t)all * ((unsigned)tid + 1) / (unsigned)n_threads);
  *lines = to - from;
  return (const uint8_t *)r->ptr + (first * LINE - base) + from * LINE;
}

static void read_part(void *arg, int tid, int n_threads) {
  reading *r = arg;
  uint64_t bytes = 0;
  wr_team_barrier(r->team, tid);
  if (tid == 0) r->began_ns = wr_now_ns();
  for (int pass = 0; pass < r->passes; pass++)
    for (size_t i = 0; i < r->n; i++) {
      size_t lines;
      const uint8_t *p = part_of(&r->ranges[i], tid, n_threads, &lines);
      if (!lines) continue;
      r->fn(p, lines, r->ahead);
      if (pass == 0) bytes += lines * LINE;
    }
  atomic_fetch_add_explicit(&r->bytes, bytes, memory_order_relaxed);
  wr_team_barrier(r->team, tid);
  if (tid == 0) r->ended_ns = wr_now_ns();
}

double wr_read_sample(wr_team *team, wr_read_kind kind, const wr_range *ranges, size_t n, int passes) {
  reading r = {.team = team,
               .fn = best_read(),
               .ahead = kind == WR_READ_PREFETCH ? AHEAD : 0,
               .ranges = ranges,
               .n = n,
               .passes = passes};
  wr_team_run(team, read_part, &r);
  if (r.ended_ns <= r.began_ns) return 0;
  return (double)atomic_load(&r.bytes) * passes / ((double)(r.ended_ns - r.began_ns) * 1e-9);
}

double wr_read_bandwidth(wr_team *team, const wr_range *ranges, size_t n, int passes) {
  size_t bytes = 0;
  for (size_t i = 0; i < n; i++) bytes += ranges[i].bytes;
  bool prefetch = bytes / (size_t)wr_team_size(team) >= PREFETCH_FROM;
  return wr_read_sample(team, prefetch ? WR_READ_PREFETCH : WR_READ_PLAIN, ranges, n, passes);
}
