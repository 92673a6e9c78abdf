/* block_dev.h: what the bytes of each quantised block mean, once: a file's block into integers. Inline, since it is compiled for each
 * instruction set (decode_cpu.c), for packing (layout.c) and for kernels of the dialect (ops/quant_dev.h).
 *
 * Reads any bytes: every bit pattern is some value. Reference: the block structures and dequantisation of ggml (ggml-common.h,
 * ggml-quants.c). What the integers are to a value: core/quant.def.
 */
#ifndef WR_CORE_DTYPE_BLOCK_DEV_H
#define WR_CORE_DTYPE_BLOCK_DEV_H

#include "device/dialect.h"

#if defined(WR_DEV_HOST)
#define WR_BLOCK_FN DEV __attribute__((always_inline))
WR_BLOCK_FN u16 wr_block_u16(const u8 *p) { /* at any address */
  u16 v;
  memcpy(&v, p, sizeof v);
  return v;
}
#else
#define WR_BLOCK_FN DEV
WR_BLOCK_FN u16 wr_block_u16(GLOBAL const u8 *p) { return *(GLOBAL const u16 *)p; }
#endif

/* A block of 32 or 256 elements. scale: those of the parts in order, and then the minima. */
typedef struct wr_block {
  u16 f16[2]; /* d; dmin, or the minimum of a block of 32 */
  u8 scale[32], q[256];
} wr_block;

/* Sixteen bytes: element j in the low nibble of byte j, element j + 16 in the high one. */
WR_BLOCK_FN void wr_nibbles_32(GLOBAL const u8 *p, u8 *q) {
  for (i32 j = 0; j < 16; j++) q[j] = p[j] & 15, q[j + 16] = p[j] >> 4;
}

/* Bit j of four bytes: the fifth of element j. */
WR_BLOCK_FN void wr_fifth_bits_32(GLOBAL const u8 *p, u8 *q) {
  for (i32 j = 0; j < 32; j++) q[j] |= (u8)((p[j / 8] >> j % 8 & 1) << 4);
}

/* In blocks of 256, 32 bytes hold a few bits each of runs of 32 elements, one run above the other: bits [at, at + width) of byte j
 * belong to element j of a run. Ors them in as bits [to, to + width). */
WR_BLOCK_FN void wr_run_bits(GLOBAL const u8 *p, i32 at, i32 width, i32 to, u8 *q) {
  for (i32 j = 0; j < 32; j++) q[j] |= (u8)((p[j] >> at & ((1 << width) - 1)) << to);
}

WR_BLOCK_FN void wr_unpack_Q8_0(GLOBAL const u8 *p, wr_block *b) {
  b->f16[0] = wr_block_u16(p);
  for (i32 j = 0; j < 32; j++) b->q[j] = p[2 + j] ^ 0x80;
}

WR_BLOCK_FN void wr_unpack_Q4_0(GLOBAL const u8 *p, wr_block *b) {
  b->f16[0] = wr_block_u16(p);
  wr_nibbles_32(p + 2, b->q);
}
WR_BLOCK_FN void wr_unpack_IQ4_NL(GLOBAL const u8 *p, wr_block *b) { wr_unpack_Q4_0(p, b); }

WR_BLOCK_FN void wr_unpack_Q4_1(GLOBAL const u8 *p, wr_block *b) {
  b->f16[0] = wr_block_u16(p), b->f16[1] = wr_block_u16(p + 2);
  wr_nibbles_32(p + 4, b->q);
}

WR_BLOCK_FN void wr_unpack_Q5_0(GLOBAL const u8 *p, wr_block *b) {
  b->f16[0] = wr_block_u16(p);
  wr_nibbles_32(p + 6, b->q);
  wr_fifth_bits_32(p + 2, b->q);
}

WR_BLOCK_FN void wr_unpack_Q5_1(GLOBAL const u8 *p, wr_block *b) {
  b->f16[0] = wr_block_u16(p), b->f16[1] = wr_block_u16(p + 2);
  wr_nibbles_32(p + 8, b->q);
  wr_fifth_bits_32(p + 4, b->q);
}

WR_BLOCK_FN void wr_unpack_Q2_K(GLOBAL const u8 *p, wr_block *b) {
  b->f16[0] = wr_block_u16(p + 80), b->f16[1] = wr_block_u16(p + 82);
  for (i32 i = 0; i < 16; i++) b->scale[i] = p[i] & 15, b->scale[16 + i] = p[i] >> 4;
  for (i32 j = 0; j < 256; j++) b->q[j] = 0;
  for (i32 run = 0; run < 8; run++) wr_run_bits(p + 16 + run / 4 * 32, run % 4 * 2, 2, 0, b->q + 32 * run);
}

/* Scale i of 16: its low four bits are a nibble of bytes 0..7, the upper two lie in bytes 8..11. */
WR_BLOCK_FN void wr_unpack_Q3_K(GLOBAL const u8 *p, wr_block *b) {
  GLOBAL const u8 *scales = p + 96;
  b->f16[0] = wr_block_u16(p + 108);
  for (i32 i = 0; i < 16; i++)
    b->scale[i] = (u8)((scales[i % 8] >> i / 8 * 4 & 15) | (scales[8 + i % 4] >> i / 4 * 2 & 3) << 4);
  for (i32 j = 0; j < 256; j++) b->q[j] = 0;
  for (i32 run = 0; run < 8; run++) {
    wr_run_bits(p + 32 + run / 4 * 32, run % 4 * 2, 2, 0, b->q + 32 * run);
    wr_run_bits(p, run, 1, 2, b->q + 32 * run);
  }
}

/* Scale and minimum of part i of 8, six bits each in 12 bytes: parts 0..3 lie in the low bits of bytes 0..7; parts 4..7 have their
 * low four bits in bytes 8..11 and their upper two on top of those of bytes 0..7. */
WR_BLOCK_FN void wr_unpack_scale_min(GLOBAL const u8 *p, wr_block *b) {
  b->f16[0] = wr_block_u16(p), b->f16[1] = wr_block_u16(p + 2);
  p += 4;
  for (i32 i = 0; i < 4; i++) {
    b->scale[i] = p[i] & 63, b->scale[8 + i] = p[i + 4] & 63;
    b->scale[4 + i] = (u8)((p[i + 8] & 15) | p[i] >> 6 << 4), b->scale[12 + i] = (u8)(p[i + 8] >> 4 | p[i + 4] >> 6 << 4);
  }
}

/* 32 bytes: the low nibbles are one run, the high nibbles the next. */
WR_BLOCK_FN void wr_nibbles_256(GLOBAL const u8 *p, u8 *q) {
  for (i32 j = 0; j < 256; j++) q[j] = 0;
  for (i32 run = 0; run < 8; run++) wr_run_bits(p + run / 2 * 32, run % 2 * 4, 4, 0, q + 32 * run);
}

WR_BLOCK_FN void wr_unpack_Q4_K(GLOBAL const u8 *p, wr_block *b) {
  wr_unpack_scale_min(p, b);
  wr_nibbles_256(p + 16, b->q);
}

WR_BLOCK_FN void wr_unpack_Q5_K(GLOBAL const u8 *p, wr_block *b) {
  wr_unpack_scale_min(p, b);
  wr_nibbles_256(p + 48, b->q);
  for (i32 run = 0; run < 8; run++) wr_run_bits(p + 16, run, 1, 4, b->q + 32 * run);
}

/* Two halves of 128 elements; each half is four runs that share bytes: runs 0 and 2 are the low and high nibbles of 32 bytes, runs 1
 * and 3 of the next 32. */
WR_BLOCK_FN void wr_unpack_Q6_K(GLOBAL const u8 *p, wr_block *b) {
  b->f16[0] = wr_block_u16(p + 208);
  for (i32 i = 0; i < 16; i++) b->scale[i] = p[192 + i] ^ 0x80;
  for (i32 j = 0; j < 256; j++) b->q[j] = 0;
  for (i32 run = 0; run < 8; run++) {
    wr_run_bits(p + run / 4 * 64 + run % 2 * 32, run % 4 / 2 * 4, 4, 0, b->q + 32 * run);
    wr_run_bits(p + 128 + run / 4 * 32, run % 4 * 2, 2, 4, b->q + 32 * run);
  }
}

/* Scale of part i of 8: four bits in a nibble, two in a 16-bit word. */
WR_BLOCK_FN void wr_unpack_IQ4_XS(GLOBAL const u8 *p, wr_block *b) {
  const i32 high = wr_block_u16(p + 2);
  b->f16[0] = wr_block_u16(p);
  for (i32 i = 0; i < 8; i++) {
    b->scale[i] = (u8)((p[4 + i / 2] >> i % 2 * 4 & 15) | (high >> 2 * i & 3) << 4);
    wr_nibbles_32(p + 8 + 16 * i, b->q + 32 * i);
  }
}

#endif
