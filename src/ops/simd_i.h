/* simd_i.h: sixteen lanes, for the files that are compiled once for each instruction set (*_cpu.c).
 *
 *   v16   sixteen floats        avx512: one zmm; avx2: two ymm; generic: a vector of the compiler's
 *   v16i  sixteen int32         (or 64 bytes, as the product of bytes sees it)
 *   m16   sixteen booleans
 *
 * Invariant: every function gives the same bits on every instruction set, NaN payloads excepted. So products that are to be
 * fused are written as v16_fma, horizontal sums have one fixed order, and exp is a polynomial of our own. Loads and stores need
 * no alignment. v16_round_i32 (to nearest even) is for |a| < 2^22 only.
 * Lanes past the end: the _n forms touch only the first n (0..16) elements in memory; loads fill the rest with zero.
 *
 * The generic form calls fmaf() for each lane: right everywhere, slow where the processor has no such instruction.
 */
#ifndef WR_OPS_SIMD_I_H
#define WR_OPS_SIMD_I_H

#include "base/base.h"

#ifndef WR_ISA
#define WR_ISA generic
#define WR_ISA_LEVEL 0
#endif
#if WR_ISA_LEVEL >= 1
#include <immintrin.h>
#endif

/* WR_KERNEL(swiglu_f32_cpu) is swiglu_f32_cpu_avx2 when compiled for avx2. */
#define WR_KERNEL_PASTE(base, isa) base##_##isa
#define WR_KERNEL_EXPAND(base, isa) WR_KERNEL_PASTE(base, isa)
#define WR_KERNEL(base) WR_KERNEL_EXPAND(base, WR_ISA)

/* Forced inline: bodies that are specialised by constant arguments, and everything that hands vectors around. */
#define WR_INLINE static inline __attribute__((always_inline, unused))

enum { WR_LANES = 16 };

/* Into the first-level cache. No fault, whatever the address. */
WR_INLINE void wr_prefetch(const void *p) { __builtin_prefetch(p, 0, 3); }

#if WR_ISA_LEVEL >= 2 /* ------------------------------------------------------------------------------------------- avx512 */

typedef __m512 v16;
typedef __m512i v16i;
typedef __mmask16 m16;

WR_INLINE __mmask16 wr_mask_n(int n) { return (__mmask16)((1u << n) - 1); }

WR_INLINE v16 v16_zero(void) { return _mm512_setzero_ps(); }
WR_INLINE v16 v16_set1(float x) { return _mm512_set1_ps(x); }
WR_INLINE v16 v16_load(const float *p) { return _mm512_loadu_ps(p); }
WR_INLINE v16 v16_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps(wr_mask_n(n), p); }
WR_INLINE void v16_store(float *p, v16 a) { _mm512_storeu_ps(p, a); }
WR_INLINE void v16_store_n(float *p, v16 a, int n) { _mm512_mask_storeu_ps(p, wr_mask_n(n), a); }
WR_INLINE v16 v16_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
WR_INLINE v16 v16_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
WR_INLINE v16 v16_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
WR_INLINE v16 v16_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
WR_INLINE v16 v16_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
WR_INLINE v16 v16_max(v16 a, v16 b) { return _mm512_max_ps(a, b); }
WR_INLINE v16 v16_min(v16 a, v16 b) { return _mm512_min_ps(a, b); }
WR_INLINE v16 v16_sqrt(v16 a) { return _mm512_sqrt_ps(a); }
WR_INLINE v16i v16_bits(v16 a) { return _mm512_castps_si512(a); }
WR_INLINE v16 v16i_as_float(v16i a) { return _mm512_castsi512_ps(a); }

WR_INLINE m16 v16_lt(v16 a, v16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
WR_INLINE m16 v16_eq(v16 a, v16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
WR_INLINE m16 m16_first(int n) { return wr_mask_n(n); }
WR_INLINE v16 v16_select(m16 m, v16 yes, v16 no) { return _mm512_mask_blend_ps(m, no, yes); }

WR_INLINE v16i v16i_zero(void) { return _mm512_setzero_si512(); }
WR_INLINE v16i v16i_set1(int32_t x) { return _mm512_set1_epi32(x); }
WR_INLINE v16i v16i_load(const void *p) { return _mm512_loadu_si512(p); }
WR_INLINE void v16i_store(void *p, v16i a) { _mm512_storeu_si512(p, a); }
WR_INLINE v16i v16i_add(v16i a, v16i b) { return _mm512_add_epi32(a, b); }
WR_INLINE v16i v16i_sub(v16i a, v16i b) { return _mm512_sub_epi32(a, b); }
WR_INLINE v16i v16i_and(v16i a, v16i b) { return _mm512_and_si512(a, b); }
WR_INLINE v16i v16i_or(v16i a, v16i b) { return _mm512_or_si512(a, b); }
WR_INLINE v16i v16i_xor(v16i a, v16i b) { return _mm512_xor_si512(a, b); }
/* Low words of the products of unsigned lanes with b; high words into *high. */
WR_INLINE v16i v16i_mul_u32(v16i a, uint32_t b, v16i *high) {
  const __m512i f = _mm512_set1_epi32((int)b), even = _mm512_mul_epu32(a, f), odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), f);
  *high = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
  return _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
}
WR_INLINE v16i v16i_max(v16i a, v16i b) { return _mm512_max_epi32(a, b); }
WR_INLINE int32_t v16i_hmax(v16i a) { return _mm512_reduce_max_epi32(a); }
WR_INLINE int32_t v16i_sum(v16i a) { return _mm512_reduce_add_epi32(a); }
#define v16i_shl(a, n) _mm512_slli_epi32(a, (unsigned)(n)) /* n constant */
#define v16i_shr(a, n) _mm512_srli_epi32(a, (unsigned)(n)) /* unsigned */
#define v16i_sar(a, n) _mm512_srai_epi32(a, (unsigned)(n)) /* signed */
WR_INLINE v16 v16_from_i32(v16i a) { return _mm512_cvtepi32_ps(a); }
WR_INLINE v16i v16_round_i32(v16 a) { return _mm512_cvtps_epi32(a); }
WR_INLINE v16i v16i_dot4(v16i acc, v16i u8, v16i s8) { return _mm512_dpbusd_epi32(acc, u8, s8); }
WR_INLINE v16i v16i_dot4_u7(v16i acc, v16i u7, v16i s8) { return _mm512_dpbusd_epi32(acc, u7, s8); }
WR_INLINE void v16i_store_i8(int8_t *p, v16i a) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(a)); }

WR_INLINE v16 v16_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
WR_INLINE v16 v16_load_f16_n(const uint16_t *p, int n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(wr_mask_n(n), p)); }
WR_INLINE void v16_store_f16(uint16_t *p, v16 a) {
  _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
WR_INLINE void v16_store_f16_n(uint16_t *p, v16 a, int n) {
  _mm256_mask_storeu_epi16(p, wr_mask_n(n), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
WR_INLINE v16 v16_load_bf16(const uint16_t *p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
WR_INLINE v16 v16_load_bf16_n(const uint16_t *p, int n) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(wr_mask_n(n), p)), 16));
}

WR_INLINE float v16_sum(v16 a) {
  __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
WR_INLINE float v16_hmax(v16 a) {
  __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

#elif WR_ISA_LEVEL == 1 /* ------------------------------------------------------------------------------------------ avx2 */

typedef struct v16 { __m256 a, b; } v16;   /* lanes 0..7, 8..15 */
typedef struct v16i { __m256i a, b; } v16i;
typedef struct m16 { __m256 a, b; } m16;

#define WR_V16(fa, fb) ((v16){fa, fb})
#define WR_V16I(fa, fb) ((v16i){fa, fb})

/* Lanes below n: all bits. */
WR_INLINE __m256i wr_mask8(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

WR_INLINE v16 v16_zero(void) { return WR_V16(_mm256_setzero_ps(), _mm256_setzero_ps()); }
WR_INLINE v16 v16_set1(float x) { return WR_V16(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
WR_INLINE v16 v16_load(const float *p) { return WR_V16(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
WR_INLINE v16 v16_load_n(const float *p, int n) {
  return WR_V16(_mm256_maskload_ps(p, wr_mask8(n)), _mm256_maskload_ps(n > 8 ? p + 8 : p, wr_mask8(n - 8)));
}
WR_INLINE void v16_store(float *p, v16 x) { _mm256_storeu_ps(p, x.a), _mm256_storeu_ps(p + 8, x.b); }
WR_INLINE void v16_store_n(float *p, v16 x, int n) {
  _mm256_maskstore_ps(p, wr_mask8(n), x.a);
  if (n > 8) _mm256_maskstore_ps(p + 8, wr_mask8(n - 8), x.b);
}
WR_INLINE v16 v16_add(v16 x, v16 y) { return WR_V16(_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)); }
WR_INLINE v16 v16_sub(v16 x, v16 y) { return WR_V16(_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)); }
WR_INLINE v16 v16_mul(v16 x, v16 y) { return WR_V16(_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)); }
WR_INLINE v16 v16_div(v16 x, v16 y) { return WR_V16(_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)); }
WR_INLINE v16 v16_fma(v16 x, v16 y, v16 z) {
  return WR_V16(_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b));
}
WR_INLINE v16 v16_max(v16 x, v16 y) { return WR_V16(_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)); }
WR_INLINE v16 v16_min(v16 x, v16 y) { return WR_V16(_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)); }
WR_INLINE v16 v16_sqrt(v16 x) { return WR_V16(_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)); }
WR_INLINE v16i v16_bits(v16 x) { return WR_V16I(_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)); }
WR_INLINE v16 v16i_as_float(v16i x) { return WR_V16(_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)); }

WR_INLINE m16 v16_lt(v16 x, v16 y) {
  return (m16){_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)};
}
WR_INLINE m16 v16_eq(v16 x, v16 y) {
  return (m16){_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ)};
}
WR_INLINE m16 m16_first(int n) { return (m16){_mm256_castsi256_ps(wr_mask8(n)), _mm256_castsi256_ps(wr_mask8(n - 8))}; }
WR_INLINE v16 v16_select(m16 m, v16 yes, v16 no) {
  return WR_V16(_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b));
}

WR_INLINE v16i v16i_zero(void) { return WR_V16I(_mm256_setzero_si256(), _mm256_setzero_si256()); }
WR_INLINE v16i v16i_set1(int32_t x) { return WR_V16I(_mm256_set1_epi32(x), _mm256_set1_epi32(x)); }
WR_INLINE v16i v16i_load(const void *p) {
  return WR_V16I(_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)p + 1));
}
WR_INLINE void v16i_store(void *p, v16i x) {
  _mm256_storeu_si256((__m256i *)p, x.a);
  _mm256_storeu_si256((__m256i *)p + 1, x.b);
}
WR_INLINE v16i v16i_add(v16i x, v16i y) { return WR_V16I(_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)); }
WR_INLINE v16i v16i_sub(v16i x, v16i y) { return WR_V16I(_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)); }
WR_INLINE v16i v16i_and(v16i x, v16i y) { return WR_V16I(_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)); }
WR_INLINE v16i v16i_or(v16i x, v16i y) { return WR_V16I(_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)); }
WR_INLINE v16i v16i_xor(v16i x, v16i y) { return WR_V16I(_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)); }
WR_INLINE __m256i wr_mul_u32(__m256i x, __m256i f, __m256i *high) {
  const __m256i even = _mm256_mul_epu32(x, f), odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), f);
  *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
  return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}
WR_INLINE v16i v16i_mul_u32(v16i x, uint32_t b, v16i *high) {
  const __m256i f = _mm256_set1_epi32((int)b);
  v16i low;
  low.a = wr_mul_u32(x.a, f, &high->a);
  low.b = wr_mul_u32(x.b, f, &high->b);
  return low;
}
WR_INLINE v16i v16i_max(v16i x, v16i y) { return WR_V16I(_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)); }
WR_INLINE int32_t v16i_hmax(v16i x) {
  __m256i b = _mm256_max_epi32(x.a, x.b);
  __m128i c = _mm_max_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
  c = _mm_max_epi32(c, _mm_shuffle_epi32(c, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(c, _mm_shuffle_epi32(c, 0xb1)));
}
WR_INLINE int32_t v16i_sum(v16i x) {
  __m256i b = _mm256_add_epi32(x.a, x.b);
  __m128i c = _mm_add_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
  c = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(c, _mm_shuffle_epi32(c, 0xb1)));
}
WR_INLINE v16i v16i_shl(v16i x, int n) { return WR_V16I(_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)); }
WR_INLINE v16i v16i_shr(v16i x, int n) { return WR_V16I(_mm256_srli_epi32(x.a, n), _mm256_srli_epi32(x.b, n)); }
WR_INLINE v16i v16i_sar(v16i x, int n) { return WR_V16I(_mm256_srai_epi32(x.a, n), _mm256_srai_epi32(x.b, n)); }
WR_INLINE v16 v16_from_i32(v16i x) { return WR_V16(_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)); }
WR_INLINE v16i v16_round_i32(v16 x) { return WR_V16I(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)); }
/* maddubs adds two products in int16 and saturates. Weights up to 127: |2 * 127 * 128| fits. So a weight is split at its top
 * bit, and that part fits too: 2 * 128 * -128 is just INT16_MIN, and activations stay below +128. */
WR_INLINE __m256i wr_dot4_u7(__m256i acc, __m256i u7, __m256i s8) {
  return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(u7, s8), _mm256_set1_epi16(1)));
}
WR_INLINE __m256i wr_dot4_u8(__m256i acc, __m256i u8, __m256i s8) {
  const __m256i top = _mm256_set1_epi8((char)0x80);
  return wr_dot4_u7(wr_dot4_u7(acc, _mm256_andnot_si256(top, u8), s8), _mm256_and_si256(top, u8), s8);
}
WR_INLINE v16i v16i_dot4(v16i acc, v16i u8, v16i s8) {
  return WR_V16I(wr_dot4_u8(acc.a, u8.a, s8.a), wr_dot4_u8(acc.b, u8.b, s8.b));
}
WR_INLINE v16i v16i_dot4_u7(v16i acc, v16i u7, v16i s8) {
  return WR_V16I(wr_dot4_u7(acc.a, u7.a, s8.a), wr_dot4_u7(acc.b, u7.b, s8.b));
}
WR_INLINE void v16i_store_i8(int8_t *p, v16i x) {
  __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
  _mm_storeu_si128((__m128i *)p, _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
}

WR_INLINE v16 v16_load_f16(const uint16_t *p) {
  return WR_V16(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p + 1)));
}
WR_INLINE v16 v16_load_f16_n(const uint16_t *p, int n) {
  uint16_t t[16] = {0};
  for (int i = 0; i < n; i++) t[i] = p[i];
  return v16_load_f16(t);
}
WR_INLINE void v16_store_f16(uint16_t *p, v16 x) {
  _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  _mm_storeu_si128((__m128i *)p + 1, _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
WR_INLINE void v16_store_f16_n(uint16_t *p, v16 x, int n) {
  uint16_t t[16];
  v16_store_f16(t, x);
  for (int i = 0; i < n; i++) p[i] = t[i];
}
WR_INLINE v16 v16_load_bf16(const uint16_t *p) {
  return v16i_as_float(WR_V16I(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16),
                               _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p + 1)), 16)));
}
WR_INLINE v16 v16_load_bf16_n(const uint16_t *p, int n) {
  uint16_t t[16] = {0};
  for (int i = 0; i < n; i++) t[i] = p[i];
  return v16_load_bf16(t);
}

WR_INLINE float v16_sum(v16 x) {
  __m256 b = _mm256_add_ps(x.a, x.b);
  __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
WR_INLINE float v16_hmax(v16 x) {
  __m256 b = _mm256_max_ps(x.a, x.b);
  __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

#else /* --------------------------------------------------------------------------------------------------------- generic */

#pragma GCC diagnostic ignored "-Wpsabi" /* vectors are handed around only within inlined functions */
typedef float v16 __attribute__((vector_size(64)));
typedef int32_t v16i __attribute__((vector_size(64)));
typedef uint32_t wr_v16u __attribute__((vector_size(64)));
typedef v16i m16;

#define WR_EACH for (int i = 0; i < 16; i++)

WR_INLINE v16 v16_zero(void) { return (v16){0}; }
WR_INLINE v16 v16_set1(float x) { return (v16){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
WR_INLINE v16 v16_load(const float *p) { v16 r; memcpy(&r, p, sizeof r); return r; }
WR_INLINE v16 v16_load_n(const float *p, int n) { v16 r = {0}; memcpy(&r, p, (size_t)n * sizeof *p); return r; }
WR_INLINE void v16_store(float *p, v16 a) { memcpy(p, &a, sizeof a); }
WR_INLINE void v16_store_n(float *p, v16 a, int n) { memcpy(p, &a, (size_t)n * sizeof *p); }
WR_INLINE v16 v16_add(v16 a, v16 b) { return a + b; }
WR_INLINE v16 v16_sub(v16 a, v16 b) { return a - b; }
WR_INLINE v16 v16_mul(v16 a, v16 b) { return a * b; }
WR_INLINE v16 v16_div(v16 a, v16 b) { return a / b; }
WR_INLINE v16 v16_fma(v16 a, v16 b, v16 c) {
  WR_EACH c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
}
WR_INLINE v16i v16_bits(v16 a) { return (v16i)a; }
WR_INLINE v16 v16i_as_float(v16i a) { return (v16)a; }
WR_INLINE m16 v16_lt(v16 a, v16 b) { return (m16)(a < b); }
WR_INLINE m16 v16_eq(v16 a, v16 b) { return (m16)(a == b); }
WR_INLINE m16 m16_first(int n) {
  m16 r;
  WR_EACH r[i] = i < n ? -1 : 0;
  return r;
}
WR_INLINE v16 v16_select(m16 m, v16 yes, v16 no) { return (v16)(((v16i)yes & m) | ((v16i)no & ~m)); }
/* the second where one is NaN, as the x86 instructions do */
WR_INLINE v16 v16_max(v16 a, v16 b) { return v16_select((m16)(a > b), a, b); }
WR_INLINE v16 v16_min(v16 a, v16 b) { return v16_select((m16)(a < b), a, b); }
WR_INLINE v16 v16_sqrt(v16 a) {
  WR_EACH a[i] = __builtin_sqrtf(a[i]);
  return a;
}

WR_INLINE v16i v16i_zero(void) { return (v16i){0}; }
WR_INLINE v16i v16i_set1(int32_t x) { return (v16i){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
WR_INLINE v16i v16i_load(const void *p) { v16i r; memcpy(&r, p, sizeof r); return r; }
WR_INLINE void v16i_store(void *p, v16i a) { memcpy(p, &a, sizeof a); }
WR_INLINE v16i v16i_add(v16i a, v16i b) { return (v16i)((wr_v16u)a + (wr_v16u)b); }
WR_INLINE v16i v16i_sub(v16i a, v16i b) { return (v16i)((wr_v16u)a - (wr_v16u)b); }
WR_INLINE v16i v16i_and(v16i a, v16i b) { return a & b; }
WR_INLINE v16i v16i_or(v16i a, v16i b) { return a | b; }
WR_INLINE v16i v16i_xor(v16i a, v16i b) { return a ^ b; }
WR_INLINE v16i v16i_mul_u32(v16i a, uint32_t b, v16i *high) {
  v16i low;
  WR_EACH {
    const uint64_t p = (uint64_t)(uint32_t)a[i] * b;
    low[i] = (int32_t)(uint32_t)p;
    (*high)[i] = (int32_t)(uint32_t)(p >> 32);
  }
  return low;
}
WR_INLINE v16i v16i_max(v16i a, v16i b) {
  v16i m = a > b;
  return (a & m) | (b & ~m);
}
WR_INLINE int32_t v16i_hmax(v16i a) {
  int32_t m = a[0];
  for (int i = 1; i < 16; i++) m = a[i] > m ? a[i] : m;
  return m;
}
WR_INLINE int32_t v16i_sum(v16i a) {
  uint32_t s = 0;
  for (int i = 0; i < 16; i++) s += (uint32_t)a[i];
  return (int32_t)s;
}
WR_INLINE v16i v16i_shl(v16i a, int n) { return (v16i)((wr_v16u)a << (uint32_t)n); }
WR_INLINE v16i v16i_shr(v16i a, int n) { return (v16i)((wr_v16u)a >> (uint32_t)n); }
WR_INLINE v16i v16i_sar(v16i a, int n) { return a >> n; }
WR_INLINE v16 v16_from_i32(v16i a) { return __builtin_convertvector(a, v16); }
/* to nearest, ties to even, by the adder; |a| < 2^22 */
WR_INLINE v16i v16_round_i32(v16 a) {
  const v16 magic = v16_set1(12582912.0f);
  return (v16i)(a + magic) - (v16i)magic;
}
WR_INLINE v16i v16i_dot4(v16i acc, v16i u8, v16i s8) {
  for (int j = 0; j < 4; j++) {
    v16i w = v16i_and(v16i_shr(u8, 8 * j), v16i_set1(0xff)), x = v16i_sar(v16i_shl(s8, 24 - 8 * j), 24);
    acc += w * x;
  }
  return acc;
}
WR_INLINE v16i v16i_dot4_u7(v16i acc, v16i u7, v16i s8) { return v16i_dot4(acc, u7, s8); }
WR_INLINE void v16i_store_i8(int8_t *p, v16i a) { WR_EACH p[i] = (int8_t)a[i]; }

/* Exponent and mantissa land in place, short of 112 in the exponent, for infinity and NaN of twice that. A denormal m * 2^-24 is
 * (2^-14 + m * 2^-24) - 2^-14: no arithmetic on float denormals, which is slow. */
WR_INLINE v16 wr_v16_of_f16(wr_v16u h) {
  wr_v16u low = (h & 0x7fffu) << 13u, sign = (h & 0x8000u) << 16u;
  wr_v16u denormal = (wr_v16u)((v16)(low | 0x38800000u) - v16_set1(0x1p-14f));
  wr_v16u normal = low + 0x38000000u + ((wr_v16u)(low >= 0x0f800000u) & 0x38000000u);
  wr_v16u tiny = (wr_v16u)(low < 0x00800000u);
  return (v16)((denormal & tiny) | (normal & ~tiny) | sign);
}
WR_INLINE v16 v16_load_f16_n(const uint16_t *p, int n) {
  wr_v16u h = {0};
  for (int i = 0; i < n; i++) h[i] = p[i];
  return wr_v16_of_f16(h);
}
WR_INLINE v16 v16_load_f16(const uint16_t *p) {
  wr_v16u h;
  WR_EACH h[i] = p[i];
  return wr_v16_of_f16(h);
}
/* Normal: add half of the last place less one, plus the bit that decides ties, and cut. Below 2^-14: the adder rounds at the
 * place of F16's denormals when 0.5 is added. */
WR_INLINE wr_v16u wr_f16_of_v16(v16 a) {
  wr_v16u bits = (wr_v16u)a, sign = (bits >> 16u) & 0x8000u;
  bits &= 0x7fffffffu;
  wr_v16u normal = (bits - 0x38000000u + 0xfffu + ((bits >> 13u) & 1u)) >> 13u;
  wr_v16u tiny = (wr_v16u)((v16)bits + v16_set1(0.5f)) - 0x3f000000u;
  wr_v16u is_tiny = (wr_v16u)(bits < 0x38800000u), is_big = (wr_v16u)(bits >= 0x47800000u);
  wr_v16u is_nan = (wr_v16u)(bits > 0x7f800000u);
  wr_v16u r = (tiny & is_tiny) | (normal & ~is_tiny);
  r = (r & ~is_big) | (0x7c00u & is_big) | (0x0200u & is_nan);
  return r | sign;
}
WR_INLINE void v16_store_f16_n(uint16_t *p, v16 a, int n) {
  wr_v16u h = wr_f16_of_v16(a);
  for (int i = 0; i < n; i++) p[i] = (uint16_t)h[i];
}
WR_INLINE void v16_store_f16(uint16_t *p, v16 a) {
  wr_v16u h = wr_f16_of_v16(a);
  WR_EACH p[i] = (uint16_t)h[i];
}
WR_INLINE v16 v16_load_bf16_n(const uint16_t *p, int n) {
  wr_v16u h = {0};
  for (int i = 0; i < n; i++) h[i] = (uint32_t)p[i] << 16;
  return (v16)h;
}
WR_INLINE v16 v16_load_bf16(const uint16_t *p) {
  wr_v16u h;
  WR_EACH h[i] = (uint32_t)p[i] << 16;
  return (v16)h;
}

WR_INLINE float v16_sum(v16 a) {
  for (int step = 8; step; step /= 2)
    for (int i = 0; i < step; i++) a[i] += a[i + step];
  return a[0];
}
WR_INLINE float v16_hmax(v16 a) {
  for (int step = 8; step; step /= 2)
    for (int i = 0; i < step; i++) a[i] = a[i] > a[i + step] ? a[i] : a[i + step];
  return a[0];
}
#undef WR_EACH
#endif

/* ------------------------------------------------------------------------------------------------------ made of the above */

WR_INLINE v16 v16_abs(v16 a) { return v16i_as_float(v16i_and(v16_bits(a), v16i_set1(0x7fffffff))); }
WR_INLINE v16 v16_neg(v16 a) { return v16_sub(v16_set1(-0.0f), a); }

/* Sixteen floats to BF16, to nearest even; NaN stays NaN. n 0..16. */
WR_INLINE void v16_store_bf16_n(uint16_t *p, v16 a, int n) {
  uint32_t t[16];
  v16i bits = v16_bits(a), odd = v16i_and(v16i_shr(bits, 16), v16i_set1(1));
  v16i near = v16i_add(v16i_add(bits, v16i_set1(0x7fff)), odd), quiet = v16i_or(bits, v16i_set1(0x00400000));
  v16i_store(t, v16i_shr(v16_bits(v16_select(v16_eq(a, a), v16i_as_float(near), v16i_as_float(quiet))), 16));
  for (int i = 0; i < n; i++) p[i] = (uint16_t)t[i];
}

/* e^a within 1 ulp or so: a = n ln 2 + r, |r| <= ln 2 / 2; a polynomial of degree 7 in r (Taylor's, whose remainder there is
 * below 2^-29), and 2^n as two factors, so that denormal results are rounded once and n = 128 does not overflow early.
 * exp(-inf) = 0, exp(large) = inf, NaN stays. */
WR_INLINE v16 v16_exp(v16 a) {
  const v16 magic = v16_set1(12582912.0f); /* 1.5 * 2^23: the adder rounds to integers, which then stand in the low bits */
  a = v16_min(v16_set1(89.0f), v16_max(v16_set1(-105.0f), a));
  v16 t = v16_fma(a, v16_set1(1.44269504f), magic);
  v16 n = v16_sub(t, magic);
  v16 r = v16_fma(n, v16_set1(-0.693359375f), a); /* ln 2 = 355/512 - 2.12194440e-4 */
  r = v16_fma(n, v16_set1(2.12194440e-4f), r);
  v16 p = v16_set1(1.0f / 5040);
  p = v16_fma(p, r, v16_set1(1.0f / 720));
  p = v16_fma(p, r, v16_set1(1.0f / 120));
  p = v16_fma(p, r, v16_set1(1.0f / 24));
  p = v16_fma(p, r, v16_set1(1.0f / 6));
  p = v16_fma(p, r, v16_set1(0.5f));
  p = v16_fma(p, r, v16_set1(1.0f));
  p = v16_fma(p, r, v16_set1(1.0f));
#if WR_ISA_LEVEL >= 2
  return _mm512_scalef_ps(p, n); /* p 2^n rounded once; as below, where the first product is exact */
#else
  v16i k = v16i_sub(v16_bits(t), v16_bits(magic)), half = v16i_sar(k, 1), rest = v16i_sub(k, half);
  v16 s1 = v16i_as_float(v16i_shl(v16i_add(half, v16i_set1(127)), 23));
  v16 s2 = v16i_as_float(v16i_shl(v16i_add(rest, v16i_set1(127)), 23));
  return v16_mul(v16_mul(p, s1), s2);
#endif
}

/* 1 / (1 + e^-a) */
WR_INLINE v16 v16_sigmoid(v16 a) {
  const v16 one = v16_set1(1.0f);
  return v16_div(one, v16_add(one, v16_exp(v16_neg(a))));
}

#endif
