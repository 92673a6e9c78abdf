/* RMSNorm on the CPU, FP32, compiled once for each instruction set; the same bits from each.
 *
 * A row's result depends on nothing but the row (ops/norm_row_i.h). dw sums its rows in blocks of 32 at absolute positions: ascending within a block,
 * then the blocks ascending; threads share out columns, never rows. */
#include "ops/arg_i.h"
#include "ops/norm/norm.h"
#include "ops/norm/norm_i.h"
#include "ops/norm_row_i.h"
#include "ops/simd_i.h"

WR_ROW_FN(WR_KERNEL(rmsnorm_f32_cpu));
WR_ROW_FN(WR_KERNEL(rmsnorm_bwd_f32_cpu));

enum { DW_ROWS = 32 };

WR_ROW_FN(WR_KERNEL(rmsnorm_f32_cpu)) {
  const wr_arg *ax = &c->args[RMSNORM_X], *ay = &c->args[RMSNORM_Y], *as = &c->args[RMSNORM_RSTD];
  const wr_rmsnorm_params *p = c->params;
  const float *weight = c->args[RMSNORM_W].data;
  int64_t D = ax->ext[ax->rank - 1], groups = wr_inner(ax) / D, begin, end;
  while (wr_take(w, 0, wr_live_rows(c, RMSNORM_X), wr_rows_grain(wr_inner(ax)), &begin, &end))
    for (int64_t r = begin; r < end; r++)
      for (int64_t g = 0; g < groups; g++) {
        const float *x = wr_arg_f32(ax, r) + g * D;
        float *y = wr_arg_f32(ay, r) + g * D;
        const float rstd = wr_rmsnorm_row(x, weight, D, p->eps, y);
        if (as->data) wr_arg_f32(as, r)[g] = rstd;
      }
}

static void bwd_dx(const wr_call *c, int64_t r, int64_t g, int64_t D) {
  const float *x = wr_arg_f32(&c->args[RMSNORM_BWD_X], r) + g * D, *dy = wr_arg_f32(&c->args[RMSNORM_BWD_DY], r) + g * D;
  const float *weight = c->args[RMSNORM_BWD_W].data, rstd = wr_arg_f32(&c->args[RMSNORM_BWD_RSTD], r)[g];
  float *dx = wr_arg_f32(&c->args[RMSNORM_BWD_DX], r) + g * D;
  bool add = c->acc >> RMSNORM_BWD_DX & 1;
  float dot = weight ? wr_sum_of_products(dy, x, weight, D) : wr_sum_of_products(dy, x, NULL, D);
  v16 s = v16_set1(rstd), k = v16_set1(-(rstd * rstd * rstd / (float)D * dot));
  for (int64_t d = 0; d < D; d += WR_LANES) {
    int n = wr_lanes(D - d);
    v16 v = v16_mul(v16_load_n(dy + d, n), s);
    if (weight) v = v16_mul(v, v16_load_n(weight + d, n));
    v = v16_fma(k, v16_load_n(x + d, n), v);
    if (add) v = v16_add(v16_load_n(dx + d, n), v);
    v16_store_n(dx + d, v, n);
  }
}

/* dw of the columns [d, d + n) */
static void bwd_dw(const wr_call *c, int64_t rows, int64_t groups, int64_t D, int64_t d, int n) {
  const wr_arg *ax = &c->args[RMSNORM_BWD_X], *ady = &c->args[RMSNORM_BWD_DY], *as = &c->args[RMSNORM_BWD_RSTD];
  float *dw = (float *)c->args[RMSNORM_BWD_DW].data + d;
  v16 total = v16_zero(), sum = v16_zero();
  int in_block = 0;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t g = 0; g < groups; g++) {
      v16 x = v16_mul(v16_load_n(wr_arg_f32(ax, r) + g * D + d, n), v16_set1(wr_arg_f32(as, r)[g]));
      sum = v16_fma(v16_load_n(wr_arg_f32(ady, r) + g * D + d, n), x, sum);
      if (++in_block < DW_ROWS) continue;
      total = v16_add(total, sum);
      sum = v16_zero();
      in_block = 0;
    }
  total = v16_add(total, sum);
  if (c->acc >> RMSNORM_BWD_DW & 1) total = v16_add(v16_load_n(dw, n), total);
  v16_store_n(dw, total, n);
}

WR_ROW_FN(WR_KERNEL(rmsnorm_bwd_f32_cpu)) {
  const wr_arg *ax = &c->args[RMSNORM_BWD_X];
  int64_t D = ax->ext[ax->rank - 1], groups = wr_inner(ax) / D, rows = wr_live_rows(c, RMSNORM_BWD_X), begin, end;
  if (c->args[RMSNORM_BWD_DX].data)
    while (wr_take(w, 0, rows, wr_rows_grain(wr_inner(ax)), &begin, &end))
      for (int64_t r = begin; r < end; r++)
        for (int64_t g = 0; g < groups; g++) bwd_dx(c, r, g, D);
  if (c->args[RMSNORM_BWD_DW].data)
    while (wr_take(w, 1, (D + WR_LANES - 1) / WR_LANES, 1, &begin, &end))
      for (int64_t i = begin; i < end; i++) bwd_dw(c, rows, groups, D, i * WR_LANES, wr_lanes(D - i * WR_LANES));
}
