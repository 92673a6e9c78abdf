/* matmul_tile_i.h: what the tiles of the packed kernels share: where a group's areas are, and how sums become y. For *_cpu.c files.
 *
 * y = (acc + bias) + res, or with a fused gate act(acc) * (acc of up). */
#ifndef WR_OPS_MATMUL_TILE_I_H
#define WR_OPS_MATMUL_TILE_I_H

#include "core/core.h"
#include "ops/act_i.h"
#include "ops/arg_i.h"
#include "ops/matmul/matmul.h"
#include "ops/matmul/matmul_i.h"
#include "ops/simd_i.h"

WR_INLINE bool is_quant(wr_dtype t) { return wr_quant_of(t).bits > 0; }

/* The matrix as the loops see it. */
typedef struct weights {
  const uint8_t *data, *up; /* up: the second matrix of a fused gate, like the first; NULL: none */
  size_t stride;            /* bytes of a group */
  size_t quants, words;     /* where its areas begin */
  int64_t K, N;
} weights;

WR_INLINE weights weights_of(wr_dtype t, const wr_call *c) {
  const wr_arg *w = &c->args[WR_MM_W];
  weights r = {.data = w->data, .up = c->args[WR_MM_UP].data, .K = wr_inner(w), .N = w->ext[0]};
  r.stride = wr_layout_row_bytes(WR_PACK16, t, r.K);
  r.quants = is_quant(t) ? r.stride - (size_t)r.K * (size_t)wr_quant_of(t).bits * 2 : 0;
  r.words = r.quants - (size_t)(r.K / 256) * (size_t)wr_quant_words(wr_quant_of(t)) * 64;
  return r;
}

/* y of R rows from `row` and one group: the accumulators, bias and residual. */
static __attribute__((noinline)) void finish(const wr_call *c, int64_t row, int64_t group, int R, const v16 *acc,
                                             int acc_step) {
  const wr_arg *bias = &c->args[WR_MM_BIAS], *res = &c->args[WR_MM_RES], *y = &c->args[WR_MM_Y];
  const int64_t n = group * 16;
  const int live = wr_lanes(wr_inner(y) - n);
  const v16 add = bias->data ? v16_load_n((const float *)bias->data + n, live) : v16_zero();
  for (int r = 0; r < R; r++) {
    v16 v = acc[r * acc_step];
    if (bias->data) v = v16_add(v, add);
    if (res->data) v = v16_add(v, v16_load_n(wr_arg_f32(res, row + r) + n, live));
    v16_store_n(wr_arg_f32(y, row + r) + n, v, live);
  }
}

/* The same for a fused gate: the accumulators of both products. */
static __attribute__((noinline)) void finish_gate(const wr_call *c, int64_t row, int64_t group, int R, const v16 *acc,
                                                  const v16 *up, int acc_step) {
  const wr_arg *y = &c->args[WR_MM_Y];
  const wr_act act = ((const wr_matmul_params *)c->params)->act;
  const int64_t n = group * 16;
  const int live = wr_lanes(wr_inner(y) - n);
  for (int r = 0; r < R; r++)
    v16_store_n(wr_arg_f32(y, row + r) + n, v16_mul(wr_act_v16(act, acc[r * acc_step]), up[r * acc_step]), live);
}

#endif
