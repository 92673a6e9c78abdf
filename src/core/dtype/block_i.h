/* block_i.h: what the bytes of each quantised block mean, once: a file's block into integers, and integers into values. Inline,
 * since it is compiled for each instruction set (decode_cpu.c) and for packing (layout.c).
 *
 * Reads any bytes: every bit pattern is some value. Reference: the block structures and dequantisation of ggml (ggml-common.h,
 * ggml-quants.c). What the integers are to a value: core/quant.def.
 */
#ifndef WR_CORE_DTYPE_BLOCK_I_H
#define WR_CORE_DTYPE_BLOCK_I_H

#include "core/dtype/dtype_i.h"

#define WR_BLOCK_FN static inline __attribute__((always_inline, unused))

/* A block of 32 or 256 elements. scale: those of the parts in order, and then the minima. */
typedef struct wr_block {
  uint16_t f16[2]; /* d; dmin, or the minimum of a block of 32 */
  uint8_t scale[32], q[256];
} wr_block;

/* Sixteen bytes: element j in the low nibble of byte j, element j + 16 in the high one. */
WR_BLOCK_FN void wr_nibbles_32(const uint8_t *p, uint8_t *q) {
  for (int j = 0; j < 16; j++) q[j] = p[j] & 15, q[j + 16] = p[j] >> 4;
}

/* Bit j of four bytes: the fifth of element j. */
WR_BLOCK_FN void wr_fifth_bits_32(const uint8_t *p, uint8_t *q) {
  for (int j = 0; j < 32; j++) q[j] |= (uint8_t)((p[j / 8] >> j % 8 & 1) << 4);
}

/* In blocks of 256, 32 bytes hold a few bits each of runs of 32 elements, one run above the other: bits [at, at + width) of byte j
 * belong to element j of a run. Ors them in as bits [to, to + width). */
WR_BLOCK_FN void wr_run_bits(const uint8_t *p, int at, int width, int to, uint8_t *q) {
  for (int j = 0; j < 32; j++) q[j] |= (uint8_t)((p[j] >> at & ((1 << width) - 1)) << to);
}

WR_BLOCK_FN void wr_unpack_Q8_0(const uint8_t *p, wr_block *b) {
  b->f16[0] = wr_read_u16(p);
  for (int j = 0; j < 32; j++) b->q[j] = p[2 + j] ^ 0x80;
}

WR_BLOCK_FN void wr_unpack_Q4_0(const uint8_t *p, wr_block *b) {
  b->f16[0] = wr_read_u16(p);
  wr_nibbles_32(p + 2, b->q);
}
WR_BLOCK_FN void wr_unpack_IQ4_NL(const uint8_t *p, wr_block *b) { wr_unpack_Q4_0(p, b); }

WR_BLOCK_FN void wr_unpack_Q4_1(const uint8_t *p, wr_block *b) {
  b->f16[0] = wr_read_u16(p), b->f16[1] = wr_read_u16(p + 2);
  wr_nibbles_32(p + 4, b->q);
}

WR_BLOCK_FN void wr_unpack_Q5_0(const uint8_t *p, wr_block *b) {
  b->f16[0] = wr_read_u16(p);
  wr_nibbles_32(p + 6, b->q);
  wr_fifth_bits_32(p + 2, b->q);
}

WR_BLOCK_FN void wr_unpack_Q5_1(const uint8_t *p, wr_block *b) {
  b->f16[0] = wr_read_u16(p), b->f16[1] = wr_read_u16(p + 2);
  wr_nibbles_32(p + 8, b->q);
  wr_fifth_bits_32(p + 4, b->q);
}

WR_BLOCK_FN void wr_unpack_Q2_K(const uint8_t *p, wr_block *b) {
  b->f16[0] = wr_read_u16(p + 80), b->f16[1] = wr_read_u16(p + 82);
  for (int i = 0; i < 16; i++) b->scale[i] = p[i] & 15, b->scale[16 + i] = p[i] >> 4;
  memset(b->q, 0, 256);
  for (int run = 0; run < 8; run++) wr_run_bits(p + 16 + run / 4 * 32, run % 4 * 2, 2, 0, b->q + 32 * run);
}

/* Scale i of 16: its low four bits are a nibble of bytes 0..7, the upper two lie in bytes 8..11. */
WR_BLOCK_FN void wr_unpack_Q3_K(const uint8_t *p, wr_block *b) {
  const uint8_t *scales = p + 96;
  b->f16[0] = wr_read_u16(p + 108);
  for (int i = 0; i < 16; i++)
    b->scale[i] = (uint8_t)((scales[i % 8] >> i / 8 * 4 & 15) | (scales[8 + i % 4] >> i / 4 * 2 & 3) << 4);
  memset(b->q, 0, 256);
  for (int run = 0; run < 8; run++) {
    wr_run_bits(p + 32 + run / 4 * 32, run % 4 * 2, 2, 0, b->q + 32 * run);
    wr_run_bits(p, run, 1, 2, b->q + 32 * run);
  }
}

/* Scale and minimum of part i of 8, six bits each in 12 bytes: parts 0..3 lie in the low bits of bytes 0..7; parts 4..7 have their
 * low four bits in bytes 8..11 and their upper two on top of those of bytes 0..7. */
WR_BLOCK_FN void wr_unpack_scale_min(const uint8_t *p, wr_block *b) {
  b->f16[0] = wr_read_u16(p), b->f16[1] = wr_read_u16(p + 2);
  p += 4;
  for (int i = 0; i < 4; i++) {
    b->scale[i] = p[i] & 63, b->scale[8 + i] = p[i + 4] & 63;
    b->scale[4 + i] = (uint8_t)((p[i + 8] & 15) | p[i] >> 6 << 4), b->scale[12 + i] = (uint8_t)(p[i + 8] >> 4 | p[i + 4] >> 6 << 4);
  }
}

/* 32 bytes: the low nibbles are one run, the high nibbles the next. */
WR_BLOCK_FN void wr_nibbles_256(const uint8_t *p, uint8_t *q) {
  memset(q, 0, 256);
  for (int run = 0; run < 8; run++) wr_run_bits(p + run / 2 * 32, run % 2 * 4, 4, 0, q + 32 * run);
}

WR_BLOCK_FN void wr_unpack_Q4_K(const uint8_t *p, wr_block *b) {
  wr_unpack_scale_min(p, b);
  wr_nibbles_256(p + 16, b->q);
}

WR_BLOCK_FN void wr_unpack_Q5_K(const uint8_t *p, wr_block *b) {
  wr_unpack_scale_min(p, b);
  wr_nibbles_256(p + 48, b->q);
  for (int run = 0; run < 8; run++) wr_run_bits(p + 16, run, 1, 4, b->q + 32 * run);
}

/* Two halves of 128 elements; each half is four runs that share bytes: runs 0 and 2 are the low and high nibbles of 32 bytes, runs 1
 * and 3 of the next 32. */
WR_BLOCK_FN void wr_unpack_Q6_K(const uint8_t *p, wr_block *b) {
  b->f16[0] = wr_read_u16(p + 208);
  for (int i = 0; i < 16; i++) b->scale[i] = p[192 + i] ^ 0x80;
  memset(b->q, 0, 256);
  for (int run = 0; run < 8; run++) {
    wr_run_bits(p + run / 4 * 64 + run % 2 * 32, run % 4 / 2 * 4, 4, 0, b->q + 32 * run);
    wr_run_bits(p + 128 + run / 4 * 32, run % 4 * 2, 2, 4, b->q + 32 * run);
  }
}

/* Scale of part i of 8: four bits in a nibble, two in a 16-bit word. */
WR_BLOCK_FN void wr_unpack_IQ4_XS(const uint8_t *p, wr_block *b) {
  const int high = wr_read_u16(p + 2);
  b->f16[0] = wr_read_u16(p);
  for (int i = 0; i < 8; i++) {
    b->scale[i] = (uint8_t)((p[4 + i / 2] >> i % 2 * 4 & 15) | (high >> 2 * i & 3) << 4);
    wr_nibbles_32(p + 8 + 16 * i, b->q + 32 * i);
  }
}

/* The values of a block in F32, each product and each sum rounded (no fused product), so that decoding agrees bit for bit with other
 * readers. t: constant. */
WR_BLOCK_FN void wr_block_values(wr_dtype t, const wr_block *b, float *dst) {
  const wr_quant form = wr_quant_of(t);
  const float d = wr_half(b->f16[0]), dmin = form.minimum ? wr_half(b->f16[1]) : 0;
  const int n = form.scale_bits ? 256 / form.part : 1;
  for (int i = 0; i < n; i++, dst += form.part) {
    const uint8_t *q = b->q + i * form.part;
    const float scale = form.scale_bits ? d * (float)(b->scale[i] - form.scale_bias) : d;
    const float minimum = form.scale_bits ? -(dmin * (float)b->scale[n + i]) : dmin;
    for (int j = 0; j < form.part; j++)
      if (form.minimum)
        dst[j] = scale * (float)q[j] + minimum;
      else
        dst[j] = scale * (float)((form.table ? wr_iq4[q[j]] : q[j]) - form.bias);
  }
}

#endif
