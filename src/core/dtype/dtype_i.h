/* dtype_i.h: what the files of this folder share. */
#ifndef WR_CORE_DTYPE_I_H
#define WR_CORE_DTYPE_I_H

#include "core/core.h"

/* decode_cpu.c is compiled once for each instruction set: wr_decode_Q8_0_avx2, ... */
#define WR_DECODE_DECLARE(LEVEL, isa, name) void wr_decode_##name##_##isa(const void *src, float *dst, int64_t n);
#define DTYPE(name, text, block, bytes, kind, tol) WR_EACH_ISA(WR_DECODE_DECLARE, name)
#include "core/dtype.def"
#undef DTYPE

static inline float wr_float_of_bits(uint32_t u) {
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}

static inline uint32_t wr_bits_of_float(float f) {
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  return u;
}

static inline uint16_t wr_read_u16(const uint8_t *p) {
  uint16_t v;
  memcpy(&v, p, sizeof v);
  return v;
}

/* Exponent and mantissa land in place, short of 112 in the exponent. A denormal m * 2^-24 is (2^-14 + m * 2^-24) - 2^-14: arithmetic on
 * float denormals would do too, but costs a hundred cycles each. Infinity and NaN want 112 in the exponent once more. */
static inline float wr_half(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, m = (uint32_t)(h & 0x7fff) << 13;
  uint32_t denormal = wr_bits_of_float(wr_float_of_bits(m | 0x38800000) - 0x1p-14f);
  uint32_t is_tiny = -(uint32_t)(m < 0x00800000), is_special = -(uint32_t)(m >= 0x0f800000);
  uint32_t normal = m + 0x38000000 + (is_special & 0x38000000);
  return wr_float_of_bits((denormal & is_tiny) | (normal & ~is_tiny) | sign); /* without branches: loops over it become vectors */
}

#endif
