/* simd_neon_i.h: the sixteen lanes of simd_i.h, which includes it, as four quadwords of Armv8.2 with dot products of bytes.
 *
 * The instructions that give other results than x86's are not used: FMAX and FMIN (NaN, signed zeros), FADDP across (another tree). */
#ifndef WR_OPS_SIMD_NEON_I_H
#define WR_OPS_SIMD_NEON_I_H

#include <arm_neon.h>

typedef struct v16 { float32x4_t a, b, c, d; } v16; /* lanes 0..3, 4..7, 8..11, 12..15 */
typedef struct v16i { int32x4_t a, b, c, d; } v16i;
typedef struct m16 { uint32x4_t a, b, c, d; } m16;

/* f of each quadword. */
#define WR_QUADS1(type, f, x) ((type){f((x).a), f((x).b), f((x).c), f((x).d)})
#define WR_QUADS2(type, f, x, y) ((type){f((x).a, (y).a), f((x).b, (y).b), f((x).c, (y).c), f((x).d, (y).d)})
#define WR_QUADS3(type, f, x, y, z) \
  ((type){f((x).a, (y).a, (z).a), f((x).b, (y).b, (z).b), f((x).c, (y).c, (z).c), f((x).d, (y).d, (z).d)})

WR_INLINE v16 v16_set1(float x) {
  const float32x4_t q = vdupq_n_f32(x);
  return (v16){q, q, q, q};
}
WR_INLINE v16 v16_zero(void) { return v16_set1(0); }
WR_INLINE v16 v16_load(const float *p) { return (v16){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}; }
WR_INLINE v16 v16_load_n(const float *p, int n) {
  if (n == 16) return v16_load(p);
  float t[16] = {0};
  for (int i = 0; i < n; i++) t[i] = p[i];
  return v16_load(t);
}
WR_INLINE void v16_store(float *p, v16 x) {
  vst1q_f32(p, x.a), vst1q_f32(p + 4, x.b);
  vst1q_f32(p + 8, x.c), vst1q_f32(p + 12, x.d);
}
WR_INLINE void v16_store_n(float *p, v16 x, int n) {
  if (n == 16) {
    v16_store(p, x);
    return;
  }
  float t[16];
  v16_store(t, x);
  for (int i = 0; i < n; i++) p[i] = t[i];
}
WR_INLINE v16 v16_add(v16 x, v16 y) { return WR_QUADS2(v16, vaddq_f32, x, y); }
WR_INLINE v16 v16_sub(v16 x, v16 y) { return WR_QUADS2(v16, vsubq_f32, x, y); }
WR_INLINE v16 v16_mul(v16 x, v16 y) { return WR_QUADS2(v16, vmulq_f32, x, y); }
WR_INLINE v16 v16_div(v16 x, v16 y) { return WR_QUADS2(v16, vdivq_f32, x, y); }
WR_INLINE v16 v16_fma(v16 x, v16 y, v16 z) { return WR_QUADS3(v16, vfmaq_f32, z, x, y); }
WR_INLINE v16 v16_sqrt(v16 x) { return WR_QUADS1(v16, vsqrtq_f32, x); }
WR_INLINE v16i v16_bits(v16 x) { return WR_QUADS1(v16i, vreinterpretq_s32_f32, x); }
WR_INLINE v16 v16i_as_float(v16i x) { return WR_QUADS1(v16, vreinterpretq_f32_s32, x); }

WR_INLINE m16 v16_lt(v16 x, v16 y) { return WR_QUADS2(m16, vcltq_f32, x, y); }
WR_INLINE m16 v16_eq(v16 x, v16 y) { return WR_QUADS2(m16, vceqq_f32, x, y); }
WR_INLINE m16 m16_first(int n) {
  static const int32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const int32x4_t all = vdupq_n_s32(n);
  return (m16){vcltq_s32(vld1q_s32(lanes), all), vcltq_s32(vld1q_s32(lanes + 4), all), vcltq_s32(vld1q_s32(lanes + 8), all),
               vcltq_s32(vld1q_s32(lanes + 12), all)};
}
WR_INLINE v16 v16_select(m16 m, v16 yes, v16 no) { return WR_QUADS3(v16, vbslq_f32, m, yes, no); }
/* the second where one is NaN, as the x86 instructions do */
WR_INLINE float32x4_t wr_max4(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
WR_INLINE float32x4_t wr_min4(float32x4_t x, float32x4_t y) { return vbslq_f32(vcltq_f32(x, y), x, y); }
WR_INLINE v16 v16_max(v16 x, v16 y) { return WR_QUADS2(v16, wr_max4, x, y); }
WR_INLINE v16 v16_min(v16 x, v16 y) { return WR_QUADS2(v16, wr_min4, x, y); }

WR_INLINE v16i v16i_set1(int32_t x) {
  const int32x4_t q = vdupq_n_s32(x);
  return (v16i){q, q, q, q};
}
WR_INLINE v16i v16i_zero(void) { return v16i_set1(0); }
WR_INLINE int32x4_t wr_load4(const uint8_t *p) { return vreinterpretq_s32_u8(vld1q_u8(p)); }
WR_INLINE v16i v16i_load(const void *from) {
  const uint8_t *p = from;
  return (v16i){wr_load4(p), wr_load4(p + 16), wr_load4(p + 32), wr_load4(p + 48)};
}
WR_INLINE void v16i_store(void *to, v16i x) {
  uint8_t *p = to;
  vst1q_u8(p, vreinterpretq_u8_s32(x.a)), vst1q_u8(p + 16, vreinterpretq_u8_s32(x.b));
  vst1q_u8(p + 32, vreinterpretq_u8_s32(x.c)), vst1q_u8(p + 48, vreinterpretq_u8_s32(x.d));
}
WR_INLINE v16i v16i_add(v16i x, v16i y) { return WR_QUADS2(v16i, vaddq_s32, x, y); }
WR_INLINE v16i v16i_sub(v16i x, v16i y) { return WR_QUADS2(v16i, vsubq_s32, x, y); }
WR_INLINE v16i v16i_and(v16i x, v16i y) { return WR_QUADS2(v16i, vandq_s32, x, y); }
WR_INLINE v16i v16i_or(v16i x, v16i y) { return WR_QUADS2(v16i, vorrq_s32, x, y); }
WR_INLINE v16i v16i_xor(v16i x, v16i y) { return WR_QUADS2(v16i, veorq_s32, x, y); }
WR_INLINE int32x4_t wr_mul_u32(int32x4_t x, uint32_t f, int32x4_t *high) {
  const uint32x4_t u = vreinterpretq_u32_s32(x);
  const uint32x4_t lo = vreinterpretq_u32_u64(vmull_n_u32(vget_low_u32(u), f));
  const uint32x4_t hi = vreinterpretq_u32_u64(vmull_n_u32(vget_high_u32(u), f));
  *high = vreinterpretq_s32_u32(vuzp2q_u32(lo, hi));
  return vreinterpretq_s32_u32(vuzp1q_u32(lo, hi));
}
WR_INLINE v16i v16i_mul_u32(v16i x, uint32_t b, v16i *high) {
  v16i low;
  low.a = wr_mul_u32(x.a, b, &high->a), low.b = wr_mul_u32(x.b, b, &high->b);
  low.c = wr_mul_u32(x.c, b, &high->c), low.d = wr_mul_u32(x.d, b, &high->d);
  return low;
}
WR_INLINE v16i v16i_max(v16i x, v16i y) { return WR_QUADS2(v16i, vmaxq_s32, x, y); }
WR_INLINE int32_t v16i_hmax(v16i x) { return vmaxvq_s32(vmaxq_s32(vmaxq_s32(x.a, x.b), vmaxq_s32(x.c, x.d))); }
WR_INLINE int32_t v16i_sum(v16i x) { return vaddvq_s32(vaddq_s32(vaddq_s32(x.a, x.b), vaddq_s32(x.c, x.d))); }
/* by the operators, which become shifts by a constant where n is one */
#define WR_SHL4(q) vreinterpretq_s32_u32(vreinterpretq_u32_s32(q) << (uint32_t)n)
#define WR_SHR4(q) vreinterpretq_s32_u32(vreinterpretq_u32_s32(q) >> (uint32_t)n)
#define WR_SAR4(q) ((q) >> n)
WR_INLINE v16i v16i_shl(v16i x, int n) { return WR_QUADS1(v16i, WR_SHL4, x); }
WR_INLINE v16i v16i_shr(v16i x, int n) { return WR_QUADS1(v16i, WR_SHR4, x); }
WR_INLINE v16i v16i_sar(v16i x, int n) { return WR_QUADS1(v16i, WR_SAR4, x); }
#undef WR_SHL4
#undef WR_SHR4
#undef WR_SAR4
WR_INLINE v16 v16_from_i32(v16i x) { return WR_QUADS1(v16, vcvtq_f32_s32, x); }
WR_INLINE v16i v16_round_i32(v16 x) { return WR_QUADS1(v16i, vcvtnq_s32_f32, x); }
WR_INLINE v16i v16_trunc_i32(v16 x) { return WR_QUADS1(v16i, vcvtq_s32_f32, x); }
/* SDOT takes signed bytes on both sides: of an unsigned one, 128 goes off and its top bit changes. */
enum { WR_DOT_OFFSET = 128 };
WR_INLINE int32x4_t wr_dot4_s8(int32x4_t acc, int32x4_t x, int32x4_t y) {
  return vdotq_s32(acc, vreinterpretq_s8_s32(x), vreinterpretq_s8_s32(y));
}
WR_INLINE v16i v16i_dot4_u7(v16i acc, v16i u7, v16i s8) { return WR_QUADS3(v16i, wr_dot4_s8, acc, u7, s8); }
WR_INLINE v16i v16i_dot4(v16i acc, v16i u8, v16i s8) {
  return v16i_dot4_u7(acc, v16i_xor(u8, v16i_set1((int32_t)0x80808080u)), s8);
}
/* Bytes of a table, each by a byte of index, 0..15. */
WR_INLINE v16i v16i_look_up(const uint8_t table[16], v16i index) {
  const uint8x16_t t = vld1q_u8(table);
#define WR_LOOK_UP(i) vreinterpretq_s32_u8(vqtbl1q_u8(t, vreinterpretq_u8_s32(i)))
  return WR_QUADS1(v16i, WR_LOOK_UP, index);
#undef WR_LOOK_UP
}
WR_INLINE void v16i_store_i8(int8_t *p, v16i x) {
  vst1_s8(p, vqmovn_s16(vcombine_s16(vqmovn_s32(x.a), vqmovn_s32(x.b))));
  vst1_s8(p + 8, vqmovn_s16(vcombine_s16(vqmovn_s32(x.c), vqmovn_s32(x.d))));
}
WR_INLINE v16i v16i_load_i8(const void *p) {
  const int8x16_t x = vld1q_s8(p);
  const int16x8_t lo = vmovl_s8(vget_low_s8(x)), hi = vmovl_s8(vget_high_s8(x));
  return (v16i){vmovl_s16(vget_low_s16(lo)), vmovl_s16(vget_high_s16(lo)), vmovl_s16(vget_low_s16(hi)), vmovl_s16(vget_high_s16(hi))};
}
WR_INLINE int32x4_t wr_wide_u16(uint16x4_t x) { return vreinterpretq_s32_u32(vmovl_u16(x)); }
WR_INLINE v16i v16i_load_u8(const void *p) {
  const uint8x16_t x = vld1q_u8(p);
  const uint16x8_t lo = vmovl_u8(vget_low_u8(x)), hi = vmovl_u8(vget_high_u8(x));
  return (v16i){wr_wide_u16(vget_low_u16(lo)), wr_wide_u16(vget_high_u16(lo)), wr_wide_u16(vget_low_u16(hi)),
                wr_wide_u16(vget_high_u16(hi))};
}

WR_INLINE float32x4_t wr_load4_f16(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
WR_INLINE v16 v16_load_f16(const uint16_t *p) {
  return (v16){wr_load4_f16(p), wr_load4_f16(p + 4), wr_load4_f16(p + 8), wr_load4_f16(p + 12)};
}
WR_INLINE uint16x4_t wr_f16_of_4(float32x4_t x) { return vreinterpret_u16_f16(vcvt_f16_f32(x)); }
WR_INLINE void v16_store_f16(uint16_t *p, v16 x) {
  vst1_u16(p, wr_f16_of_4(x.a)), vst1_u16(p + 4, wr_f16_of_4(x.b));
  vst1_u16(p + 8, wr_f16_of_4(x.c)), vst1_u16(p + 12, wr_f16_of_4(x.d));
}
WR_INLINE float32x4_t wr_load4_bf16(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
WR_INLINE v16 v16_load_bf16(const uint16_t *p) {
  return (v16){wr_load4_bf16(p), wr_load4_bf16(p + 4), wr_load4_bf16(p + 8), wr_load4_bf16(p + 12)};
}

WR_INLINE float v16_sum(v16 x) {
  const float32x4_t b = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
  const float32x2_t c = vadd_f32(vget_low_f32(b), vget_high_f32(b));
  return vget_lane_f32(c, 0) + vget_lane_f32(c, 1);
}
WR_INLINE float v16_hmax(v16 x) {
  float32x4_t b = wr_max4(wr_max4(x.a, x.c), wr_max4(x.b, x.d));
  b = wr_max4(b, vextq_f32(b, b, 2));
  return vgetq_lane_f32(wr_max4(b, vdupq_laneq_f32(b, 1)), 0);
}

#endif
