/* codecs.c: what the bytes of each dtype mean, and how weir writes those that it writes. Owns the table wr_dtypes.
 *
 * Reads any bytes: every bit pattern is some value, so nothing is refused here (the reader of a file checks lengths). src and
 * dst need no alignment beyond that of their C type for floats: sources are read with memcpy.
 *
 * Values are those of the formats' definition, in F32, each product and each sum rounded (no fused product), so that decoding
 * agrees bit for bit with other readers:
 *   Q8_0  d*q        q int8                              Q4_K, Q5_K  (d*s)*q - dmin*m   s, m: six bits for each 32 elements
 *   Q4_0  d*(q-8)    Q5_0  d*(q-16)                      Q6_K        (d*s)*(q-32)       s: int8 for each 16 elements
 *   Q4_1  d*q + m    Q5_1  d*q + m
 * d, m, dmin are F16. In the 32-element types byte j of the nibbles holds element j (low) and element j + 16 (high).
 *
 * Reference: the block structures and dequantisation of ggml (ggml-common.h, ggml-quants.c).
 */
#include <math.h>

#include "core/core.h"

/* ------------------------------------------------------------------------------------------------------------------- floats */

static float float_of_bits(uint32_t u) {
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}

static uint32_t bits_of_float(float f) {
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  return u;
}

/* Exponent and mantissa land in place, short of 112 in the exponent; the product supplies that and makes denormals normal. */
float wr_f16_to_float(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16;
  float magnitude = float_of_bits((uint32_t)(h & 0x7fff) << 13) * 0x1p112f;
  uint32_t special = (h & 0x7c00) == 0x7c00 ? 0x7f800000 : 0;
  return float_of_bits(bits_of_float(magnitude) | special | sign);
}

/* Normal results: half of the last place less one is added, plus the bit that decides ties, and the rest cut off. Below 2^-14
 * the adder does the rounding: the last place of 0.5 + x is the place of F16's denormals. */
uint16_t wr_float_to_f16(float f) {
  uint32_t u = bits_of_float(f), sign = (u >> 16) & 0x8000;
  u &= 0x7fffffff;
  if (u > 0x7f800000) return (uint16_t)(sign | 0x7e00 | ((u >> 13) & 0x1ff));
  if (u >= 0x47800000) return (uint16_t)(sign | 0x7c00);
  if (u < 0x38800000) return (uint16_t)(sign | (bits_of_float(float_of_bits(u) + 0.5f) - 0x3f000000));
  return (uint16_t)(sign | ((u - 0x38000000 + 0xfff + ((u >> 13) & 1)) >> 13));
}

static uint16_t bf16_of_float(float f) {
  uint32_t u = bits_of_float(f);
  if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
  return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static uint16_t read_u16(const uint8_t *p) {
  uint16_t v;
  memcpy(&v, p, sizeof v);
  return v;
}

static float read_half(const uint8_t *p) { return wr_f16_to_float(read_u16(p)); }

static void write_half(uint8_t *p, float f) {
  uint16_t h = wr_float_to_f16(f);
  memcpy(p, &h, sizeof h);
}

static void decode_F32(const void *src, float *dst, int64_t n) { memcpy(dst, src, (size_t)n * sizeof *dst); }
static void encode_F32(const float *src, void *dst, int64_t n) { memcpy(dst, src, (size_t)n * sizeof *src); }

static void decode_F64(const void *src, float *dst, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    double d;
    memcpy(&d, (const uint8_t *)src + 8 * i, sizeof d);
    dst[i] = (float)d;
  }
}
static void encode_F64(const float *src, void *dst, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    double d = (double)src[i];
    memcpy((uint8_t *)dst + 8 * i, &d, sizeof d);
  }
}

static void decode_F16(const void *src, float *dst, int64_t n) {
  for (int64_t i = 0; i < n; i++) dst[i] = read_half((const uint8_t *)src + 2 * i);
}
static void encode_F16(const float *src, void *dst, int64_t n) {
  for (int64_t i = 0; i < n; i++) write_half((uint8_t *)dst + 2 * i, src[i]);
}

static void decode_BF16(const void *src, float *dst, int64_t n) {
  for (int64_t i = 0; i < n; i++) dst[i] = float_of_bits((uint32_t)read_u16((const uint8_t *)src + 2 * i) << 16);
}
static void encode_BF16(const float *src, void *dst, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    uint16_t h = bf16_of_float(src[i]);
    memcpy((uint8_t *)dst + 2 * i, &h, sizeof h);
  }
}

static void decode_I32(const void *src, float *dst, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    int32_t v;
    memcpy(&v, (const uint8_t *)src + 4 * i, sizeof v);
    dst[i] = (float)v;
  }
}

/* ---------------------------------------------------------------------------------------------------- blocks of 32 elements */

enum { B = 32 };

static void decode_Q8_0(const void *src, float *dst, int64_t n) {
  const uint8_t *p = src;
  for (int64_t i = 0; i < n; i += B, p += 34) {
    float d = read_half(p);
    for (int j = 0; j < B; j++) dst[i + j] = d * (float)(int8_t)p[2 + j];
  }
}

static void decode_Q4_0(const void *src, float *dst, int64_t n) {
  const uint8_t *p = src;
  for (int64_t i = 0; i < n; i += B, p += 18) {
    float d = read_half(p);
    for (int j = 0; j < B / 2; j++) {
      dst[i + j] = d * (float)((p[2 + j] & 15) - 8);
      dst[i + j + B / 2] = d * (float)((p[2 + j] >> 4) - 8);
    }
  }
}

static void decode_Q4_1(const void *src, float *dst, int64_t n) {
  const uint8_t *p = src;
  for (int64_t i = 0; i < n; i += B, p += 20) {
    float d = read_half(p), m = read_half(p + 2);
    for (int j = 0; j < B / 2; j++) {
      dst[i + j] = d * (float)(p[4 + j] & 15) + m;
      dst[i + j + B / 2] = d * (float)(p[4 + j] >> 4) + m;
    }
  }
}

/* The five bits of element j (and j + 16): low ones from the nibbles, the fifth from bit j (j + 16) of `high`. */
static int five_low(const uint8_t *nibbles, uint32_t high, int j) { return (nibbles[j] & 15) | (int)(high >> j & 1) << 4; }
static int five_high(const uint8_t *nibbles, uint32_t high, int j) {
  return nibbles[j] >> 4 | (int)(high >> (j + 16) & 1) << 4;
}

static void decode_Q5_0(const void *src, float *dst, int64_t n) {
  const uint8_t *p = src;
  for (int64_t i = 0; i < n; i += B, p += 22) {
    float d = read_half(p);
    uint32_t high;
    memcpy(&high, p + 2, sizeof high);
    for (int j = 0; j < B / 2; j++) {
      dst[i + j] = d * (float)(five_low(p + 6, high, j) - 16);
      dst[i + j + B / 2] = d * (float)(five_high(p + 6, high, j) - 16);
    }
  }
}

static void decode_Q5_1(const void *src, float *dst, int64_t n) {
  const uint8_t *p = src;
  for (int64_t i = 0; i < n; i += B, p += 24) {
    float d = read_half(p), m = read_half(p + 2);
    uint32_t high;
    memcpy(&high, p + 4, sizeof high);
    for (int j = 0; j < B / 2; j++) {
      dst[i + j] = d * (float)five_low(p + 8, high, j) + m;
      dst[i + j + B / 2] = d * (float)five_high(p + 8, high, j) + m;
    }
  }
}

/* ------------------------------------------------------------------------------------------- super-blocks of 256 elements */

enum { SUPER = 256 };

/* Q4_K, Q5_K: scale and minimum of part i of 8, six bits each in 12 bytes: parts 0..3 lie in the low bits of bytes 0..7; parts
 * 4..7 have their low four bits in bytes 8..11 and their upper two on top of those of bytes 0..7. */
static void scale_min(const uint8_t *p, int i, float *scale, float *min) {
  int s = i < 4 ? p[i] & 63 : (p[i + 4] & 15) | (p[i - 4] >> 6) << 4;
  int m = i < 4 ? p[i + 4] & 63 : p[i + 4] >> 4 | (p[i] >> 6) << 4;
  *scale = (float)s, *min = (float)m;
}

static void decode_Q4_K(const void *src, float *dst, int64_t n) {
  const uint8_t *p = src;
  for (int64_t i = 0; i < n; i += SUPER, p += 144) {
    float d = read_half(p), dmin = read_half(p + 2);
    const uint8_t *q = p + 16;
    for (int part = 0; part < 8; part += 2, q += 32) { /* 32 bytes: low nibbles are one part, high nibbles the next */
      float s0, m0, s1, m1, *out = dst + i + 32 * part;
      scale_min(p + 4, part, &s0, &m0);
      scale_min(p + 4, part + 1, &s1, &m1);
      s0 *= d, m0 *= dmin, s1 *= d, m1 *= dmin;
      for (int j = 0; j < 32; j++) out[j] = s0 * (float)(q[j] & 15) - m0;
      for (int j = 0; j < 32; j++) out[j + 32] = s1 * (float)(q[j] >> 4) - m1;
    }
  }
}

static void decode_Q5_K(const void *src, float *dst, int64_t n) {
  const uint8_t *p = src;
  for (int64_t i = 0; i < n; i += SUPER, p += 176) {
    float d = read_half(p), dmin = read_half(p + 2);
    const uint8_t *high = p + 16, *q = p + 48; /* bit `part` of high[j]: the fifth bit of element j of that part */
    for (int part = 0; part < 8; part += 2, q += 32) {
      float s0, m0, s1, m1, *out = dst + i + 32 * part;
      scale_min(p + 4, part, &s0, &m0);
      scale_min(p + 4, part + 1, &s1, &m1);
      s0 *= d, m0 *= dmin, s1 *= d, m1 *= dmin;
      for (int j = 0; j < 32; j++) out[j] = s0 * (float)((q[j] & 15) + ((high[j] >> part & 1) << 4)) - m0;
      for (int j = 0; j < 32; j++) out[j + 32] = s1 * (float)((q[j] >> 4) + ((high[j] >> (part + 1) & 1) << 4)) - m1;
    }
  }
}

/* Two halves of 128 elements; each half is four runs of 32 that share bytes: runs 0 and 2 are the low and high nibbles of
 * low[0..31], runs 1 and 3 of low[32..63]; the upper two bits of run r are bits 2r of high[0..31]. */
static void decode_Q6_K(const void *src, float *dst, int64_t n) {
  const uint8_t *p = src;
  for (int64_t i = 0; i < n; i += SUPER, p += 210) {
    float d = read_half(p + 208);
    for (int half = 0; half < 2; half++) {
      const uint8_t *low = p + 64 * half, *high = p + 128 + 32 * half, *scales = p + 192 + 8 * half;
      for (int run = 0; run < 4; run++) {
        const uint8_t *bytes = low + 32 * (run & 1);
        int nibble = run < 2 ? 0 : 4;
        float *out = dst + i + 128 * half + 32 * run;
        for (int j = 0; j < 32; j++) {
          int q = (bytes[j] >> nibble & 15) | (high[j] >> 2 * run & 3) << 4;
          out[j] = d * (float)(int8_t)scales[2 * run + j / 16] * (float)(q - 32);
        }
      }
    }
  }
}

/* ----------------------------------------------------------------------------------------------------------------- encoding */

/* v, which has its rounding term already, cut to an integer of 0..top; NaN gives 0. */
static uint8_t level(float v, int top) {
  if (!(v > 0)) return 0;
  return v >= (float)top ? (uint8_t)top : (uint8_t)v;
}

static void encode_Q8_0(const float *src, void *dst, int64_t n) {
  uint8_t *p = dst;
  for (int64_t i = 0; i < n; i += B, p += 34) {
    float amax = 0;
    for (int j = 0; j < B; j++) amax = fmaxf(amax, fabsf(src[i + j]));
    float d = amax / 127, id = d > 0 ? 1 / d : 0;
    write_half(p, d);
    for (int j = 0; j < B; j++) p[2 + j] = (uint8_t)(level(src[i + j] * id + 128.5f, 255) - 128);
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

/* types that weir does not write */
#define encode_I32 NULL
#define encode_Q4_K NULL
#define encode_Q5_K NULL
#define encode_Q6_K NULL

const wr_dtype_info wr_dtypes[WR_DTYPE_COUNT] = {
#define DTYPE(name, text, block, bytes, kind, tol) {text, block, bytes, WR_##kind, tol, decode_##name, encode_##name},
#include "core/dtype.def"
#undef DTYPE
};
