/* peaks.c: owns the loops that find the arithmetic peaks: one instruction over registers, nothing loaded or stored.
 *
 * A unit that takes 4 cycles for a result and starts one a cycle needs 4 sums in flight, two such units 8; ten leave a margin.
 * The operands pass through an empty asm, or a compiler would see that a product never changes and compute it once. Operands
 * are 0 and sums start at 0: the time does not depend on values, and no sum can become a denormal or a NaN.
 */
#include "device/cpu/machine_i.h"

#if defined(__x86_64__)
  #include <immintrin.h>
#endif

enum { SUMS = 10 };

/* `step(sum)` ten times a turn. Sums are variables: see read.c. */
#define PEAK_LOOP(vector, zero, a, b, step) \
  vector s0 = zero, s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0, s8 = s0, s9 = s0; \
  for (int64_t i = 0; i < rounds; i++) { \
    __asm__ volatile("" : "+x"(a), "+x"(b)); \
    step(s0); \
    step(s1); \
    step(s2); \
    step(s3); \
    step(s4); \
    step(s5); \
    step(s6); \
    step(s7); \
    step(s8); \
    step(s9); \
    __asm__ volatile("" : "+x"(s0), "+x"(s1), "+x"(s2), "+x"(s3), "+x"(s4)); \
    __asm__ volatile("" : "+x"(s5), "+x"(s6), "+x"(s7), "+x"(s8), "+x"(s9)); \
  }

#if defined(__x86_64__)

static void fp32_generic(int64_t rounds) {
  __m128 a = _mm_setzero_ps(), b = a;
  #define STEP(s) \
    __asm__ volatile("" : "+x"(a)); \
    s = _mm_add_ps(s, _mm_mul_ps(a, b))
  PEAK_LOOP(__m128, _mm_setzero_ps(), a, b, STEP)
  #undef STEP
}

__attribute__((target("avx2,fma"))) static void fp32_avx2(int64_t rounds) {
  __m256 a = _mm256_setzero_ps(), b = a;
  #define STEP(s) s = _mm256_fmadd_ps(a, b, s)
  PEAK_LOOP(__m256, _mm256_setzero_ps(), a, b, STEP)
  #undef STEP
}

/* bytes to words to 32-bit sums: three instructions for 32 products */
__attribute__((target("avx2"))) static void int8_avx2(int64_t rounds) {
  __m256i a = _mm256_setzero_si256(), b = a, ones = a;
  __asm__ volatile("" : "+x"(ones));
  #define STEP(s) \
    __asm__ volatile("" : "+x"(a)); \
    s = _mm256_add_epi32(s, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones))
  PEAK_LOOP(__m256i, _mm256_setzero_si256(), a, b, STEP)
  #undef STEP
}

/* "x" in the empty asm names 16 of the 32 registers: enough for twelve variables, and understood at every level */
__attribute__((target("avx512f"))) static void fp32_avx512(int64_t rounds) {
  __m512 a = _mm512_setzero_ps(), b = a;
  #define STEP(s) s = _mm512_fmadd_ps(a, b, s)
  PEAK_LOOP(__m512, _mm512_setzero_ps(), a, b, STEP)
  #undef STEP
}

__attribute__((target("avx512f,avx512bw,avx512vnni"))) static void int8_avx512(int64_t rounds) {
  __m512i a = _mm512_setzero_si512(), b = a;
  #define STEP(s) s = _mm512_dpbusd_epi32(s, a, b)
  PEAK_LOOP(__m512i, _mm512_setzero_si512(), a, b, STEP)
  #undef STEP
}

__attribute__((target("avx512f,avx512bf16"))) static void bf16_avx512(int64_t rounds) {
  __m512i a = _mm512_setzero_si512(), b = a;
  #define STEP(s) s = _mm512_dpbf16_ps(s, (__m512bh)a, (__m512bh)b)
  PEAK_LOOP(__m512, _mm512_setzero_ps(), a, b, STEP)
  #undef STEP
}

/* As an instruction and not an intrinsic: clang 14 declares the intrinsics of FP16 only when the whole file is compiled for
 * it. */
__attribute__((target("avx512f,avx512bw,avx512fp16"))) static void fp16_avx512(int64_t rounds) {
  __m512i a = _mm512_setzero_si512(), b = a;
  #define STEP(s) __asm__ volatile("vfmadd231ph %2, %1, %0" : "+v"(s) : "v"(a), "v"(b))
  PEAK_LOOP(__m512i, _mm512_setzero_si512(), a, b, STEP)
  #undef STEP
}

/* Six tiles of sums, one product of 16 rows by 64 bytes by 16 columns each. */
enum { TILE_SUMS = 6 };
static void int8_amx(int64_t rounds) {
  static const struct {
    uint8_t palette, rest[15];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  } config = {.palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
  __asm__ volatile("ldtilecfg %0" : : "m"(config)); /* which zeroes the tiles */
  for (int64_t i = 0; i < rounds; i++)
    __asm__ volatile("tdpbssd %tmm7, %tmm6, %tmm0\n\ttdpbssd %tmm7, %tmm6, %tmm1\n\ttdpbssd %tmm7, %tmm6, %tmm2\n\t"
                     "tdpbssd %tmm7, %tmm6, %tmm3\n\ttdpbssd %tmm7, %tmm6, %tmm4\n\ttdpbssd %tmm7, %tmm6, %tmm5");
  __asm__ volatile("tilerelease");
}

/* operations a round: sums × lanes × products a lane × (multiply and add) */
const wr_peak_loop wr_peak_loops[] = {
    {"fp32", "mul add 128", WR_ISA_GENERIC, SUMS * 4 * 2, fp32_generic},
    {"fp32", "fma 256", WR_ISA_AVX2, SUMS * 8 * 2, fp32_avx2},
    {"fp32", "fma 512", WR_ISA_AVX512, SUMS * 16 * 2, fp32_avx512},
    {"fp16", "fma 512", WR_ISA_AVX512 | WR_ISA_AVX512_FP16, SUMS * 32 * 2, fp16_avx512},
    {"bf16", "dot 512", WR_ISA_AVX512 | WR_ISA_AVX512_BF16, SUMS * 16 * 2 * 2, bf16_avx512},
    {"int8", "maddubs 256", WR_ISA_AVX2, SUMS * 32 * 2, int8_avx2},
    {"int8", "vnni 512", WR_ISA_AVX512, SUMS * 16 * 4 * 2, int8_avx512},
    {"int8", "amx 16x64", WR_ISA_AVX512_AMX, TILE_SUMS * 16 * 64 * 16 * 2, int8_amx},
};

#else

typedef float v4 __attribute__((vector_size(16)));
static void fp32_generic(int64_t rounds) {
  v4 a = {0}, b = {0}, s[SUMS] = {{0}};
  for (int64_t i = 0; i < rounds; i++)
    for (int k = 0; k < SUMS; k++) {
      s[k] += a * b;
      __asm__ volatile("" : "+m"(a), "+m"(s[k]));
    }
}

  #if defined(__aarch64__)
    /* Twice the sums, since cores start up to four such instructions a cycle; a loop in assembler, which alone can be sure of it. */
    #define TWENTY(S) S(0) S(1) S(2) S(3) S(4) S(5) S(6) S(7) S(8) S(9) S(10) S(11) S(12) S(13) S(14) S(15) S(16) S(17) S(18) S(19)
    #define ZERO(n) "movi v" #n ".4s, #0\n\t"
    #define PEAK_LOOP_20(step) \
      __asm__ volatile(".arch armv8.2-a+dotprod\n\t" TWENTY(ZERO) ZERO(20) ZERO(21) "1:\n\t" TWENTY( \
                           step) "subs %0, %0, #1\n\tb.ne 1b" \
                       : "+r"(rounds) \
                       : \
                       : "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", \
                         "v16", "v17", "v18", "v19", "v20", "v21");
    #define FMLA(n) "fmla v" #n ".4s, v20.4s, v21.4s\n\t"
    #define SDOT(n) "sdot v" #n ".4s, v20.16b, v21.16b\n\t"

static void fp32_neon(int64_t rounds) { PEAK_LOOP_20(FMLA) }
static void int8_neon(int64_t rounds) { PEAK_LOOP_20(SDOT) }
  #endif

const wr_peak_loop wr_peak_loops[] = {
    {"fp32", "mul add 128", WR_ISA_GENERIC, SUMS * 4 * 2, fp32_generic},
  #if defined(__aarch64__)
    {"fp32", "fma 128", WR_ISA_NEON, 2 * SUMS * 4 * 2, fp32_neon},
    {"int8", "sdot 128", WR_ISA_NEON, 2 * SUMS * 16 * 2, int8_neon},
  #endif
};

#endif

const int wr_peak_loops_n = (int)WR_ARRAY_LEN(wr_peak_loops);
