/* matmul_unpack_i.h: the frame of the kernels that multiply many rows of x with quantised weights; for *_cpu.c files.
 *
 * A group of packed weights is unpacked into scratch once, bytes and FP32 scales, and every row of x is then taken against it in tiles. So
 * the loops over rows know no dtype, only the form of a block: one scale or two, with a minimum or without.
 * Class q8k32: the arithmetic is that of matmul_cpu.c, product for product.
 *
 *   unpacked group   bytes   line (b, e), e 0..7: byte 4r + i = element 32b + 4e + i of row r
 *                    scales  [part of 16 or 32 elements][r], then the minima likewise
 *   quantised x      as matmul_quant_i.h has it, in tiles of one height; the last has rows of which nothing is known, which are computed
 *                    and dropped
 */
#ifndef WR_OPS_MATMUL_UNPACK_I_H
#define WR_OPS_MATMUL_UNPACK_I_H

#include "core/core.h"
#include "ops/arg_i.h"
#include "ops/matmul/matmul.h"
#include "ops/matmul/matmul_i.h"
#include "ops/matmul/matmul_quant_i.h"
#include "ops/matmul/matmul_tile_i.h"
#include "ops/norm_row_i.h"

typedef struct unpacked {
  uint8_t *bytes;
  float *scales, *minima;
} unpacked;

/* acc[r] = the product of row r of a tile with a group. */
typedef void unpacked_tile_fn(const uint8_t *x, const unpacked *w, int64_t blocks, v16 *acc);

/* How a dtype is taken. tiles: by the rows that they compute, a unit (the frame's) more each. */
typedef struct unpacked_form {
  void (*unpack)(const weights *w, const uint8_t *group, const unpacked *to);
  unpacked_tile_fn *const *tiles;
} unpacked_form;

enum { UNPACK_GRAIN = 2, QUANTISE_GRAIN = 4 };

WR_INLINE void unpack_group(wr_dtype t, const weights *w, const uint8_t *group, const unpacked *to) {
  const wr_quant form = wr_quant_of(t);
  const int64_t K = w->K;
  const int parts = quant_parts(t);
  for (int64_t b = 0; b < K / 32; b++) {
    const uint8_t *lines = group + w->quants + b * 64 * form.bits;
#pragma GCC unroll 8
    for (int e = 0; e < 8; e++) {
      wr_prefetch(lines + 64 * e * form.bits / 8 + w->stride);
      v16i_store(to->bytes + b * 512 + 64 * e, quant_bytes(t, lines, e));
    }
  }
  if (!form.scale_bits) {
    for (int64_t b = 0; b < K / 32; b++) {
      const uint16_t *halves = (const uint16_t *)(const void *)group + b * 16 * (1 + form.minimum);
      v16_store(to->scales + 16 * b, v16_load_f16(halves));
      if (form.minimum) v16_store(to->minima + 16 * b, v16_load_f16(halves + 16));
    }
    return;
  }
  float room[32 * 16] __attribute__((aligned(64)));
  const int n = 8 * parts * 16; /* scales of a block of 256 */
  for (int64_t u = 0; u < K / 256; u++) {
    quant_scales(t, group + u * 32 * (1 + form.minimum), group + w->words + u * 64 * wr_quant_words(form), room);
    memcpy(to->scales + u * n, room, (size_t)n * sizeof *room);
    if (form.minimum) memcpy(to->minima + u * n, room + n, (size_t)n * sizeof *room);
  }
}

WR_INLINE unpacked unpacked_at(uint8_t *scratch, int64_t K) {
  float *const scales = (float *)(void *)(scratch + K * 16);
  return (unpacked){scratch, scales, scales + K};
}

/* All of a call. forms: by dtype; R: the height of tiles; unit: what the heights of tiles are multiples of. */
WR_INLINE void unpacked_rows(const unpacked_form *forms, int R, int unit, const wr_call *c, const wr_worker *worker) {
  const wr_arg *x = &c->args[WR_MM_X];
  const wr_dtype t = (wr_dtype)c->args[WR_MM_W].dtype;
  const unpacked_form *const form = &forms[t];
  const weights w = weights_of(t, c);
  const float *norm = c->args[WR_MM_NORM].data;
  const int64_t rows = wr_live_rows(c, WR_MM_X), K = w.K, groups = (w.N + 15) / 16;
  const size_t row_bytes = wr_mm_xq_bytes(K);
  uint8_t *const xq = c->scratch, *const own = xq + wr_mm_xq_area(x->ext[0] + R - 1, K) + (size_t)worker->tid * wr_mm_unpack_bytes(K);
  const unpacked first = unpacked_at(own, K), up = unpacked_at(own + wr_mm_unpack_bytes(K) / 2, K);
  int64_t begin, end;
  while (wr_take(worker, 0, rows, QUANTISE_GRAIN, &begin, &end))
    for (int64_t r = begin; r < end; r++) {
      float *const normal = (float *)(void *)own;
      const float *row = wr_arg_f32(x, r);
      if (norm) wr_rmsnorm_row(row, norm, K, ((const wr_matmul_params *)c->params)->eps, normal);
      quantise_row(t, norm ? normal : row, K, xq + (size_t)(r / R * R) * row_bytes, (int)(r % R), R);
    }
  wr_barrier(worker);
  while (wr_take(worker, 1, groups, UNPACK_GRAIN, &begin, &end))
    for (int64_t g = begin; g < end; g++) {
      form->unpack(&w, w.data + (size_t)g * w.stride, &first);
      if (w.up) form->unpack(&w, w.up + (size_t)g * w.stride, &up);
      for (int64_t r = 0; r < rows; r += R) {
        const int live = (int)WR_MIN(rows - r, (int64_t)R);
        unpacked_tile_fn *const run = form->tiles[(live - 1) / unit];
        const uint8_t *const tile = xq + (size_t)r * row_bytes;
        v16 acc[16], acc_up[16];
        run(tile, &first, K / 32, acc);
        if (w.up) {
          run(tile, &up, K / 32, acc_up);
          finish_gate(c, r, g, live, acc, acc_up, 1);
        } else {
          finish(c, r, g, live, acc, 1);
        }
      }
    }
}

#endif
