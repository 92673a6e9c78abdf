/* decode_cpu.c: values of each dtype in F32. Plain loops, compiled once for each instruction set: the same bits from all.
 *
 * Reads any bytes: every bit pattern is some value, so nothing is refused here (the reader of a file checks lengths). src and
 * dst need no alignment beyond that of their C type for floats: sources are read with memcpy. Quantised blocks: block_dev.h.
 */
#include "core/dtype/block_i.h"

#ifndef WR_ISA
  #define WR_ISA generic
#endif
#define WR_DECODE_PASTE(name, isa) wr_decode_##name##_##isa
#define WR_DECODE_EXPAND(name, isa) WR_DECODE_PASTE(name, isa)
#define WR_DECODE(name) WR_DECODE_EXPAND(name, WR_ISA)

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

enum {
#define DTYPE(name, text, block, bytes, kind, tol) ELEMS_##name = block, BYTES_##name = bytes,
#include "core/dtype.def"
#undef DTYPE
};

#define QUANT(name, ...) \
  void WR_DECODE(name)(const void *src, float *dst, int64_t n) { \
    wr_block b; \
    for (const uint8_t *p = src; n > 0; n -= ELEMS_##name, p += BYTES_##name, dst += ELEMS_##name) { \
      wr_unpack_##name(p, &b); \
      wr_block_values(WR_##name, &b, dst); \
    } \
  }
#include "core/quant.def"
