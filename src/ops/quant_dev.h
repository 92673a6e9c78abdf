/* quant_dev.h: quantised weights in kernels of the dialect, 32 elements of a row at a time, by what core/quant.def says of a type. From
 * layout pack16 (core/dtype/layout.c) by an item that is a lane, one row of a group of sixteen: the lanes of a group read whole lines of 64 bytes.
 * From plain rows by way of whole blocks (core/dtype/block_dev.h). Forms are constants after inlining. */
#ifndef WR_OPS_QUANT_DEV_H
#define WR_OPS_QUANT_DEV_H

#include "core/dtype/block_dev.h"
#include "device/dialect.h"

/* The columns of quant.def. */
typedef struct quant_form {
  i32 bits, bias, part, minimum, scale_bits, scale_bias, table;
} quant_form;

/* 32 elements of a row: quants, signed bytes, four a word in order, and of each part, one of 32 or two of 16, what makes them values:
 *   value = scale * (q - bias) + minimum,    bias: quant_bias() */
typedef struct quant_block {
  u32 q[8];
  f32 scale[2], minimum[2];
} quant_block;

CONSTANT u8 quant_iq4[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241}; /* wr_iq4 */

/* Quants of eight bits have 128 taken off. */
DEV i32 quant_wide(quant_form f) { return f.bits == 8 || f.table != 0; }
DEV i32 quant_bias(quant_form f) { return quant_wide(f) ? f.bias - 128 : f.bias; }

/* Scales and minima of a block of 256; words of each row that hold them. */
DEV i32 quant_n_scales(quant_form f) { return 256 / f.part * (1 + f.minimum); }
DEV i32 quant_n_words(quant_form f) { return quant_n_scales(f) * f.scale_bits / 32; }
/* Where a group's words and quants begin, in bytes; K: elements of a row. */
DEV i64 quant_words_at(quant_form f, i64 K) { return (K / (f.scale_bits ? 256 : 32) * (1 + f.minimum) * 32 + 63) / 64 * 64; }
DEV i64 quant_lines_at(quant_form f, i64 K) { return quant_words_at(f, K) + (f.scale_bits ? K / 256 * quant_n_words(f) * 64 : 0); }

/* Elements 4e..4e+3 of a block, unsigned; lines: the block's, from the lane's word on. */
DEV u32 quant_word(i32 bits, GLOBAL const u32 *lines, i32 e) {
  u32 q = 0;
  i32 low = 0;
  for (i32 w = 8; w; w /= 2) {
    if (!(bits & w)) continue;
    q |= ((lines[16 * (e % w)] >> (e / w * w)) & (((1u << w) - 1u) * 0x01010101u)) << low;
    low += w;
    lines += 16 * w;
  }
  return q;
}

/* Integer scale v of a block of 256; words: the block's, from the lane's on. */
DEV i32 quant_scale(quant_form f, GLOBAL const u32 *words, i32 v) {
  u32 s = 0;
  i32 low = 0;
  for (i32 w = 8; w; w /= 2) {
    if (!(f.scale_bits & w)) continue;
    s |= ((words[16 * (v * w / 32)] >> (v * w % 32)) & ((1u << w) - 1u)) << low;
    low += w;
    words += 16 * (quant_n_scales(f) * w / 32);
  }
  return (i32)s;
}

DEV u32 quant_look_up(u32 q) {
  return (u32)quant_iq4[q & 15u] | (u32)quant_iq4[(q >> 8) & 15u] << 8 | (u32)quant_iq4[(q >> 16) & 15u] << 16 |
         (u32)quant_iq4[(q >> 24) & 15u] << 24;
}

/* Elements 32b.. of a lane's row. */
DEV void quant_load(quant_form f, GLOBAL const u8 *at, i64 K, i64 b, i32 lane, quant_block *out) {
  const i32 parts = 32 / f.part;
  const i64 unit = f.scale_bits ? b / 8 : b;
  GLOBAL const u16 *halves = (GLOBAL const u16 *)at + unit * (1 + f.minimum) * 16 + lane;
  GLOBAL const u32 *lines = (GLOBAL const u32 *)(at + quant_lines_at(f, K)) + b * f.bits * 16 + lane;
  const f32 d = f16_f32(halves[0]), least = f.minimum ? f16_f32(halves[16]) : 0.0f;
  for (i32 e = 0; e < 8; e++) {
    u32 q = quant_word(f.bits, lines, e);
    if (f.table) q = quant_look_up(q);
    out->q[e] = quant_wide(f) ? q ^ 0x80808080u : q;
  }
  if (f.scale_bits) {
    GLOBAL const u32 *words = (GLOBAL const u32 *)(at + quant_words_at(f, K)) + unit * quant_n_words(f) * 16 + lane;
    for (i32 i = 0; i < parts; i++) {
      const i32 v = (i32)(b % 8) * parts + i;
      out->scale[i] = d * (f32)(quant_scale(f, words, v) - f.scale_bias);
      out->minimum[i] = f.minimum ? -least * (f32)quant_scale(f, words, 256 / f.part + v) : 0.0f;
    }
  } else {
    out->scale[0] = out->scale[1] = d;
    out->minimum[0] = out->minimum[1] = least;
  }
}

/* Elements 32 b.. of a plain block of a type. */
DEV void quant_take(quant_form f, const wr_block *from, i32 b, quant_block *out) {
  const i32 parts = 32 / f.part;
  const f32 d = f16_f32(from->f16[0]), least = f.minimum ? f16_f32(from->f16[1]) : 0.0f;
  for (i32 e = 0; e < 8; e++) {
    u32 q = 0;
    for (i32 i = 0; i < 4; i++) q |= (u32)from->q[32 * b + 4 * e + i] << (8 * i);
    if (f.table) q = quant_look_up(q);
    out->q[e] = quant_wide(f) ? q ^ 0x80808080u : q;
  }
  for (i32 i = 0; i < parts; i++) {
    const i32 v = b * parts + i;
    out->scale[i] = f.scale_bits ? d * (f32)((i32)from->scale[v] - f.scale_bias) : d;
    out->minimum[i] = !f.minimum ? 0.0f : f.scale_bits ? -least * (f32)from->scale[256 / f.part + v] : least;
  }
}

/* The value of element i, rounded after the product and after the sum. */
DEV f32 quant_value(quant_form f, const quant_block *w, i32 i) {
  const i32 part = i / f.part, q = (i32)(i8)(w->q[i / 4] >> (i % 4 * 8)) - quant_bias(f);
  const f32 product = w->scale[part] * (f32)q;
  return f.minimum ? product + w->minimum[part] : product;
}

/* sum + the products of four signed bytes */
DEV i32 quant_dot4(u32 a, u32 b, i32 sum) {
  for (i32 i = 0; i < 32; i += 8) sum += (i32)(i8)(a >> i) * (i32)(i8)(b >> i);
  return sum;
}

#endif
