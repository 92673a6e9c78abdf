/* simd_generic_i.h: the sixteen lanes of simd_i.h, which includes it, as a vector of the compiler's: for every machine. */
#ifndef WR_OPS_SIMD_GENERIC_I_H
#define WR_OPS_SIMD_GENERIC_I_H

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
WR_INLINE v16i v16_trunc_i32(v16 a) { return __builtin_convertvector(a, v16i); }
/* to nearest, ties to even, by the adder; |a| < 2^22 */
WR_INLINE v16i v16_round_i32(v16 a) {
  const v16 magic = v16_set1(12582912.0f);
  return (v16i)(a + magic) - (v16i)magic;
}
enum { WR_DOT_OFFSET = 0 };
WR_INLINE v16i v16i_dot4(v16i acc, v16i u8, v16i s8) {
  for (int j = 0; j < 4; j++) {
    v16i w = v16i_and(v16i_shr(u8, 8 * j), v16i_set1(0xff)), x = v16i_sar(v16i_shl(s8, 24 - 8 * j), 24);
    acc += w * x;
  }
  return acc;
}
WR_INLINE v16i v16i_dot4_u7(v16i acc, v16i u7, v16i s8) { return v16i_dot4(acc, u7, s8); }
/* Bytes of a table, each by a byte of index, 0..15. */
WR_INLINE v16i v16i_look_up(const uint8_t table[16], v16i index) {
  uint8_t bytes[64];
  v16i_store(bytes, index);
  for (int i = 0; i < 64; i++) bytes[i] = table[bytes[i]];
  return v16i_load(bytes);
}
WR_INLINE void v16i_store_i8(int8_t *p, v16i a) { WR_EACH p[i] = (int8_t)a[i]; }
WR_INLINE v16i v16i_load_i8(const void *p) {
  v16i r;
  WR_EACH r[i] = ((const int8_t *)p)[i];
  return r;
}
WR_INLINE v16i v16i_load_u8(const void *p) {
  v16i r;
  WR_EACH r[i] = ((const uint8_t *)p)[i];
  return r;
}

/* Exponent and mantissa land in place, short of 112 in the exponent, for infinity and NaN of twice that. A denormal m * 2^-24 is
 * (2^-14 + m * 2^-24) - 2^-14: no arithmetic on float denormals, which is slow. */
WR_INLINE v16 wr_v16_of_f16(wr_v16u h) {
  wr_v16u low = (h & 0x7fffu) << 13u, sign = (h & 0x8000u) << 16u;
  wr_v16u denormal = (wr_v16u)((v16)(low | 0x38800000u) - v16_set1(0x1p-14f));
  wr_v16u normal = low + 0x38000000u + ((wr_v16u)(low >= 0x0f800000u) & 0x38000000u);
  wr_v16u tiny = (wr_v16u)(low < 0x00800000u);
  return (v16)((denormal & tiny) | (normal & ~tiny) | sign);
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
WR_INLINE void v16_store_f16(uint16_t *p, v16 a) {
  wr_v16u h = wr_f16_of_v16(a);
  WR_EACH p[i] = (uint16_t)h[i];
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
