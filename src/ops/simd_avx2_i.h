/* simd_avx2_i.h: the sixteen lanes of simd_i.h, which includes it, as two ymm. */
#ifndef WR_OPS_SIMD_AVX2_I_H
#define WR_OPS_SIMD_AVX2_I_H

#include <immintrin.h>

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
WR_INLINE v16i v16_trunc_i32(v16 x) { return WR_V16I(_mm256_cvttps_epi32(x.a), _mm256_cvttps_epi32(x.b)); }
/* maddubs adds two products in int16 and saturates. Weights up to 127: |2 * 127 * 128| fits. So a weight is split at its top
 * bit, and that part fits too: 2 * 128 * -128 is just INT16_MIN, and activations stay below +128. */
WR_INLINE __m256i wr_dot4_u7(__m256i acc, __m256i u7, __m256i s8) {
  return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(u7, s8), _mm256_set1_epi16(1)));
}
WR_INLINE __m256i wr_dot4_u8(__m256i acc, __m256i u8, __m256i s8) {
  const __m256i top = _mm256_set1_epi8((char)0x80);
  return wr_dot4_u7(wr_dot4_u7(acc, _mm256_andnot_si256(top, u8), s8), _mm256_and_si256(top, u8), s8);
}
enum { WR_DOT_OFFSET = 0 };
WR_INLINE v16i v16i_dot4(v16i acc, v16i u8, v16i s8) {
  return WR_V16I(wr_dot4_u8(acc.a, u8.a, s8.a), wr_dot4_u8(acc.b, u8.b, s8.b));
}
WR_INLINE v16i v16i_dot4_u7(v16i acc, v16i u7, v16i s8) {
  return WR_V16I(wr_dot4_u7(acc.a, u7.a, s8.a), wr_dot4_u7(acc.b, u7.b, s8.b));
}
/* Bytes of a table, each by a byte of index, 0..15. */
WR_INLINE v16i v16i_look_up(const uint8_t table[16], v16i index) {
  const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
  return WR_V16I(_mm256_shuffle_epi8(t, index.a), _mm256_shuffle_epi8(t, index.b));
}
WR_INLINE void v16i_store_i8(int8_t *p, v16i x) {
  __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
  _mm_storeu_si128((__m128i *)p, _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
}
WR_INLINE v16i v16i_load_i8(const void *p) {
  const __m128i x = _mm_loadu_si128(p);
  return WR_V16I(_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)));
}
WR_INLINE v16i v16i_load_u8(const void *p) {
  const __m128i x = _mm_loadu_si128(p);
  return WR_V16I(_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)));
}

WR_INLINE v16 v16_load_f16(const uint16_t *p) {
  return WR_V16(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p + 1)));
}
WR_INLINE void v16_store_f16(uint16_t *p, v16 x) {
  _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  _mm_storeu_si128((__m128i *)p + 1, _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
WR_INLINE v16 v16_load_bf16(const uint16_t *p) {
  return v16i_as_float(WR_V16I(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16),
                               _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p + 1)), 16)));
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

#endif
