/* decode_cpu.c: what the bytes of each dtype mean. Plain loops, compiled once for each instruction set: the same bits from all.
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
#include "core/dtype/dtype_i.h"

#ifndef WR_ISA
  #define WR_ISA generic
#endif
#define WR_DECODE_PASTE(name, isa) wr_decode_##name##_##isa
#define WR_DECODE_EXPAND(name, isa) WR_DECODE_PASTE(name, isa)
#define WR_DECODE(name) WR_DECODE_EXPAND(name, WR_ISA)

static float half_at(const uint8_t *p) { return wr_half(wr_read_u16(p)); }

void WR_DECODE(F32)(const void *src, float *dst, int64_t n) { memcpy(dst, src, (size_t)n * sizeof *dst); }

void WR_DECODE(F64)(const void *src, float *dst, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    double d;
    memcpy(&d, (const uint8_t *)src + 8 * i, sizeof d);
    dst[i] = (float)d;
  }
}

void WR_DECODE(F16)(const void *src, float *dst, int64_t n) {
  for (int64_t i = 0; i < n; i++) dst[i] = wr_half(wr_read_u16((const uint8_t *)src + 2 * i));
}

void WR_DECODE(BF16)(const void *src, float *dst, int64_t n) {
  for (int64_t i = 0; i < n; i++) dst[i] = wr_float_of_bits((uint32_t)wr_read_u16((const uint8_t *)src + 2 * i) << 16);
}

void WR_DECODE(I32)(const void *src, float *dst, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    int32_t v;
    memcpy(&v, (const uint8_t *)src + 4 * i, sizeof v);
    dst[i] = (float)v;
  }
}

/* ---------------------------------------------------------------------------------------------------- blocks of 32 elements */

enum { B = 32 };

void WR_DECODE(Q8_0)(const void *src, float *dst, int64_t n) {
  const uint8_t *p = src;
  for (int64_t i = 0; i < n; i += B, p += 34) {
    float d = half_at(p);
    for (int j = 0; j < B; j++) dst[i + j] = d * (float)(int8_t)p[2 + j];
  }
}

void WR_DECODE(Q4_0)(const void *src, float *dst, int64_t n) {
  const uint8_t *p = src;
  for (int64_t i = 0; i < n; i += B, p += 18) {
    float d = half_at(p);
    for (int j = 0; j < B / 2; j++) {
      dst[i + j] = d * (float)((p[2 + j] & 15) - 8);
      dst[i + j + B / 2] = d * (float)((p[2 + j] >> 4) - 8);
    }
  }
}

void WR_DECODE(Q4_1)(const void *src, float *dst, int64_t n) {
  const uint8_t *p = src;
  for (int64_t i = 0; i < n; i += B, p += 20) {
    float d = half_at(p), m = half_at(p + 2);
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

void WR_DECODE(Q5_0)(const void *src, float *dst, int64_t n) {
  const uint8_t *p = src;
  for (int64_t i = 0; i < n; i += B, p += 22) {
    float d = half_at(p);
    uint32_t high;
    memcpy(&high, p + 2, sizeof high);
    for (int j = 0; j < B / 2; j++) {
      dst[i + j] = d * (float)(five_low(p + 6, high, j) - 16);
      dst[i + j + B / 2] = d * (float)(five_high(p + 6, high, j) - 16);
    }
  }
}

void WR_DECODE(Q5_1)(const void *src, float *dst, int64_t n) {
  const uint8_t *p = src;
  for (int64_t i = 0; i < n; i += B, p += 24) {
    float d = half_at(p), m = half_at(p + 2);
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

void WR_DECODE(Q4_K)(const void *src, float *dst, int64_t n) {
  const uint8_t *p = src;
  for (int64_t i = 0; i < n; i += SUPER, p += 144) {
    float d = half_at(p), dmin = half_at(p + 2);
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

void WR_DECODE(Q5_K)(const void *src, float *dst, int64_t n) {
  const uint8_t *p = src;
  for (int64_t i = 0; i < n; i += SUPER, p += 176) {
    float d = half_at(p), dmin = half_at(p + 2);
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
void WR_DECODE(Q6_K)(const void *src, float *dst, int64_t n) {
  const uint8_t *p = src;
  for (int64_t i = 0; i < n; i += SUPER, p += 210) {
    float d = half_at(p + 208);
    for (int half = 0; half < 2; half++) {
      const uint8_t *low = p + 64 * half, *high = p + 128 + 32 * half, *scales = p + 192 + 8 * half;
      for (int run = 0; run < 4; run++) {
        const uint8_t *bytes = low + 32 * (run & 1);
        int nibble = run < 2 ? 0 : 4;
        float *out = dst + i + 128 * half + 32 * run;
        for (int part = 0; part < 32; part += 16) {
          float s = d * (float)(int8_t)scales[2 * run + part / 16];
          for (int j = part; j < part + 16; j++) {
            int q = (bytes[j] >> nibble & 15) | (high[j] >> 2 * run & 3) << 4;
            out[j] = s * (float)(q - 32);
          }
        }
      }
    }
  }
}
