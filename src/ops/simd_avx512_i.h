/* simd_avx512_i.h: the sixteen lanes of simd_i.h, which includes it, as one zmm. */
#ifndef WR_OPS_SIMD_AVX512_I_H
#define WR_OPS_SIMD_AVX512_I_H

#include <immintrin.h>

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
WR_INLINE v16i v16_trunc_i32(v16 a) { return _mm512_cvttps_epi32(a); }
enum { WR_DOT_OFFSET = 0 };
WR_INLINE v16i v16i_dot4(v16i acc, v16i u8, v16i s8) { return _mm512_dpbusd_epi32(acc, u8, s8); }
WR_INLINE v16i v16i_dot4_u7(v16i acc, v16i u7, v16i s8) { return _mm512_dpbusd_epi32(acc, u7, s8); }
/* Bytes of a table, each by a byte of index, 0..15. */
WR_INLINE v16i v16i_look_up(const uint8_t table[16], v16i index) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table)), index);
}
WR_INLINE void v16i_store_i8(int8_t *p, v16i a) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(a)); }
/* Sixteen bytes, widened. */
WR_INLINE v16i v16i_load_i8(const void *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128(p)); }
WR_INLINE v16i v16i_load_u8(const void *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128(p)); }

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

#endif
