/* codecs.c: how the dtypes are written whose scale needs no search, by definition and one element at a time, and the table wr_dtypes.
 * What a block's bytes mean: decode_cpu.c. Fast, and with the K types: ops/quant. */
#include <math.h>

#include "core/dtype/dtype_i.h"

/* ------------------------------------------------------------------------------------------------------------------- floats */

float wr_f16_to_float(uint16_t h) { return wr_half(h); }

/* Normal results: half of the last place less one is added, plus the bit that decides ties, and the rest cut off. Below 2^-14
 * the adder does the rounding: the last place of 0.5 + x is the place of F16's denormals. */
uint16_t wr_float_to_f16(float f) {
  uint32_t u = wr_bits_of_float(f), sign = (u >> 16) & 0x8000;
  u &= 0x7fffffff;
  if (u > 0x7f800000) return (uint16_t)(sign | 0x7e00 | ((u >> 13) & 0x1ff));
  if (u >= 0x47800000) return (uint16_t)(sign | 0x7c00);
  if (u < 0x38800000) return (uint16_t)(sign | (wr_bits_of_float(wr_float_of_bits(u) + 0.5f) - 0x3f000000));
  return (uint16_t)(sign | ((u - 0x38000000 + 0xfff + ((u >> 13) & 1)) >> 13));
}

static uint16_t bf16_of_float(float f) {
  uint32_t u = wr_bits_of_float(f);
  if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
  return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static void write_half(uint8_t *p, float f) {
  uint16_t h = wr_float_to_f16(f);
  memcpy(p, &h, sizeof h);
}

enum { B = 32 }; /* elements of a block */

static void encode_F32(const float *src, void *dst, int64_t n) { memcpy(dst, src, (size_t)n * sizeof *src); }

static void encode_F64(const float *src, void *dst, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    double d = (double)src[i];
    memcpy((uint8_t *)dst + 8 * i, &d, sizeof d);
  }
}

static void encode_F16(const float *src, void *dst, int64_t n) {
  for (int64_t i = 0; i < n; i++) write_half((uint8_t *)dst + 2 * i, src[i]);
}

static void encode_BF16(const float *src, void *dst, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    uint16_t h = bf16_of_float(src[i]);
    memcpy((uint8_t *)dst + 2 * i, &h, sizeof h);
  }
}

/* ----------------------------------------------------------------------------------------------------------------- encoding */

/* v, which has its rounding term already, cut to an integer of 0..top; NaN gives 0. */
static uint8_t level(float v, int top) {
  if (!(v > 0)) return 0;
  return v >= (float)top ? (uint8_t)top : (uint8_t)v;
}

/* To nearest, halves away from zero: cut after adding what is just below a half. NaN gives 0. */
static int8_t nearest_away(float v) { return (int8_t)(v == v ? v + copysignf(0x1.fffffep-2f, v) : 0); }

static void encode_Q8_0(const float *src, void *dst, int64_t n) {
  uint8_t *p = dst;
  for (int64_t i = 0; i < n; i += B, p += 34) {
    float amax = 0;
    for (int j = 0; j < B; j++) amax = fmaxf(amax, fabsf(src[i + j]));
    float d = amax / 127, id = d > 0 ? 1 / d : 0;
    write_half(p, d);
    for (int j = 0; j < B; j++) p[2 + j] = (uint8_t)nearest_away(src[i + j] * id);
  }
}

/* The element of largest magnitude gets the lowest level exactly: there is one more level below zero than above. */
static float signed_extreme(const float *x) {
  float best = 0;
  for (int j = 0; j < B; j++)
    if (fabsf(x[j]) > fabsf(best)) best = x[j];
  return best;
}

static void range_of(const float *x, float *low, float *high) {
  *low = *high = x[0];
  for (int j = 1; j < B; j++) *low = fminf(*low, x[j]), *high = fmaxf(*high, x[j]);
}

static void encode_Q4_0(const float *src, void *dst, int64_t n) {
  uint8_t *p = dst;
  for (int64_t i = 0; i < n; i += B, p += 18) {
    const float *x = src + i;
    float d = signed_extreme(x) / -8, id = d != 0 ? 1 / d : 0;
    write_half(p, d);
    for (int j = 0; j < B / 2; j++)
      p[2 + j] = (uint8_t)(level(x[j] * id + 8.5f, 15) | level(x[j + B / 2] * id + 8.5f, 15) << 4);
  }
}

static void encode_Q4_1(const float *src, void *dst, int64_t n) {
  uint8_t *p = dst;
  for (int64_t i = 0; i < n; i += B, p += 20) {
    const float *x = src + i;
    float low, high;
    range_of(x, &low, &high);
    float d = (high - low) / 15, id = d > 0 ? 1 / d : 0;
    write_half(p, d), write_half(p + 2, low);
    for (int j = 0; j < B / 2; j++)
      p[4 + j] = (uint8_t)(level((x[j] - low) * id + 0.5f, 15) | level((x[j + B / 2] - low) * id + 0.5f, 15) << 4);
  }
}

static void write_fives(uint8_t *high_bytes, uint8_t *nibbles, const uint8_t *q) {
  uint32_t high = 0;
  for (int j = 0; j < B; j++) high |= (uint32_t)(q[j] >> 4) << j;
  memcpy(high_bytes, &high, sizeof high);
  for (int j = 0; j < B / 2; j++) nibbles[j] = (uint8_t)((q[j] & 15) | (q[j + B / 2] & 15) << 4);
}

static void encode_Q5_0(const float *src, void *dst, int64_t n) {
  uint8_t *p = dst;
  for (int64_t i = 0; i < n; i += B, p += 22) {
    float d = signed_extreme(src + i) / -16, id = d != 0 ? 1 / d : 0;
    uint8_t q[B];
    write_half(p, d);
    for (int j = 0; j < B; j++) q[j] = level(src[i + j] * id + 16.5f, 31);
    write_fives(p + 2, p + 6, q);
  }
}

static void encode_Q5_1(const float *src, void *dst, int64_t n) {
  uint8_t *p = dst;
  for (int64_t i = 0; i < n; i += B, p += 24) {
    float low, high;
    range_of(src + i, &low, &high);
    float d = (high - low) / 31, id = d > 0 ? 1 / d : 0;
    uint8_t q[B];
    write_half(p, d), write_half(p + 2, low);
    for (int j = 0; j < B; j++) q[j] = level((src[i + j] - low) * id + 0.5f, 31);
    write_fives(p + 4, p + 8, q);
  }
}

/* -------------------------------------------------------------------------------------------------------------------- table */

#define DECODER(LEVEL, isa, name) [WR_ISA_##LEVEL] = wr_decode_##name##_##isa,
wr_decode_fn *wr_decoder(wr_dtype t, int isa_level) {
  static wr_decode_fn *const decoders[WR_DTYPE_COUNT][3] = {
#define DTYPE(name, text, block, bytes, kind, tol) {WR_EACH_ISA(DECODER, name)},
#include "core/dtype.def"
#undef DTYPE
  };
  return decoders[t][isa_level];
}

/* types that are not written by definition: I32, and those of which a search finds the bytes */
#define encode_I32 NULL
#define encode_Q2_K NULL
#define encode_Q3_K NULL
#define encode_Q4_K NULL
#define encode_Q5_K NULL
#define encode_Q6_K NULL
#define encode_IQ4_NL NULL
#define encode_IQ4_XS NULL

const uint8_t wr_iq4[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

const wr_dtype_info wr_dtypes[WR_DTYPE_COUNT] = {
#define DTYPE(name, text, block, bytes, kind, tol) \
  {text, block, bytes, WR_##kind, tol, wr_decode_##name##_generic, encode_##name},
#include "core/dtype.def"
#undef DTYPE
};
