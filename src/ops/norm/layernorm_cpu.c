/* LayerNorm on the CPU, FP32, compiled once for each instruction set; the same bits from each.
 *
 * A row's result depends on nothing but the row: sums over d run in 64 lanes, element d in lane d mod 64, added as a tree. The gradient goes
 * over x and dy once: a unit of work is a block of 32 rows at an absolute place, whose sums of dw and db stand in scratch; then the blocks
 * are added in ascending order, threads sharing out columns. */
#include <math.h>

#include "ops/arg_i.h"
#include "ops/norm/norm.h"
#include "ops/norm/norm_i.h"
#include "ops/simd_i.h"

WR_ROW_FN(WR_KERNEL(layernorm_f32_cpu));
WR_ROW_FN(WR_KERNEL(layernorm_bwd_f32_cpu));

enum { SUMS = 4, STRIP = SUMS * WR_LANES };

WR_INLINE float total(const v16 *s) { return v16_sum(v16_add(v16_add(s[0], s[1]), v16_add(s[2], s[3]))); }

static float sum(const float *x, int64_t D) {
  v16 s[SUMS] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()};
  int64_t d = 0;
  for (; d + STRIP <= D; d += STRIP)
    for (int j = 0; j < SUMS; j++) s[j] = v16_add(s[j], v16_load(x + d + j * WR_LANES));
  for (int j = 0; d < D; d += WR_LANES, j++) s[j] = v16_add(s[j], v16_load_n(x + d, wr_lanes(D - d)));
  return total(s);
}

/* sum of (x_d - mean)^2 */
static float squares(const float *x, int64_t D, float mean) {
  v16 s[SUMS] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()}, m = v16_set1(mean);
  int64_t d = 0;
  for (; d + STRIP <= D; d += STRIP)
    for (int j = 0; j < SUMS; j++) {
      const v16 a = v16_sub(v16_load(x + d + j * WR_LANES), m);
      s[j] = v16_fma(a, a, s[j]);
    }
  for (int j = 0; d < D; d += WR_LANES, j++) {
    const int n = wr_lanes(D - d);
    const v16 a = v16_select(m16_first(n), v16_sub(v16_load_n(x + d, n), m), v16_zero());
    s[j] = v16_fma(a, a, s[j]);
  }
  return total(s);
}

WR_ROW_FN(WR_KERNEL(layernorm_f32_cpu)) {
  const wr_arg *ax = &c->args[LAYERNORM_X], *ay = &c->args[LAYERNORM_Y], *as = &c->args[LAYERNORM_STATS];
  const float *weight = c->args[LAYERNORM_W].data, *bias = c->args[LAYERNORM_B].data;
  const float eps = ((const wr_layernorm_params *)c->params)->eps;
  const int64_t D = ax->ext[1];
  int64_t begin, end;
  while (wr_take(w, 0, wr_live_rows(c, LAYERNORM_X), wr_rows_grain(D), &begin, &end))
    for (int64_t r = begin; r < end; r++) {
      const float *x = wr_arg_f32(ax, r);
      float *y = wr_arg_f32(ay, r);
      const float mean = sum(x, D) / (float)D, rstd = 1.0f / sqrtf(squares(x, D, mean) / (float)D + eps);
      const v16 m = v16_set1(mean), s = v16_set1(rstd);
      for (int64_t d = 0; d < D; d += WR_LANES) {
        const int n = wr_lanes(D - d);
        v16 v = v16_mul(v16_sub(v16_load_n(x + d, n), m), s);
        if (weight) v = v16_mul(v, v16_load_n(weight + d, n));
        if (bias) v = v16_add(v, v16_load_n(bias + d, n));
        v16_store_n(y + d, v, n);
      }
      if (!as->data) continue;
      wr_arg_f32(as, r)[0] = mean;
      wr_arg_f32(as, r)[1] = rstd;
    }
}

/* One row: dx, and what it brings to the block's sums (NULL: not wanted). */
static void backward_row(const wr_call *c, int64_t r, float *dw, float *db) {
  const wr_arg *ax = &c->args[LAYERNORM_BWD_X], *adx = &c->args[LAYERNORM_BWD_DX];
  const float *x = wr_arg_f32(ax, r), *dy = wr_arg_f32(&c->args[LAYERNORM_BWD_DY], r);
  const float *weight = c->args[LAYERNORM_BWD_W].data, *stats = wr_arg_f32(&c->args[LAYERNORM_BWD_STATS], r);
  const bool add = c->acc >> LAYERNORM_BWD_DX & 1;
  const int64_t D = ax->ext[1];
  const v16 mean = v16_set1(stats[0]), rstd = v16_set1(stats[1]);
  v16 sum_g[SUMS] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()};
  v16 sum_gn[SUMS] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()};
  for (int64_t d = 0, j = 0; d < D; d += WR_LANES, j = (j + 1) % SUMS) {
    const int n = wr_lanes(D - d);
    const v16 own = v16_load_n(dy + d, n), normal = v16_mul(v16_sub(v16_load_n(x + d, n), mean), rstd);
    const v16 g = weight ? v16_mul(own, v16_load_n(weight + d, n)) : own;
    sum_g[j] = v16_add(sum_g[j], g);
    sum_gn[j] = v16_fma(g, normal, sum_gn[j]);
    if (dw) v16_store_n(dw + d, v16_fma(own, normal, v16_load_n(dw + d, n)), n);
    if (db) v16_store_n(db + d, v16_add(own, v16_load_n(db + d, n)), n);
  }
  if (!adx->data) return;
  float *dx = wr_arg_f32(adx, r);
  const v16 mean_g = v16_set1(total(sum_g) / (float)D), mean_gn = v16_set1(-(total(sum_gn) / (float)D));
  for (int64_t d = 0; d < D; d += WR_LANES) {
    const int n = wr_lanes(D - d);
    const v16 normal = v16_mul(v16_sub(v16_load_n(x + d, n), mean), rstd);
    v16 g = v16_load_n(dy + d, n);
    if (weight) g = v16_mul(g, v16_load_n(weight + d, n));
    v16 v = v16_mul(rstd, v16_fma(normal, mean_gn, v16_sub(g, mean_g)));
    if (add) v = v16_add(v16_load_n(dx + d, n), v);
    v16_store_n(dx + d, v, n);
  }
}

/* The blocks' sums of the columns [d, d + n), ascending; `which` 0: dw, 1: db. */
static void add_blocks(const wr_call *c, int arg, int which, int64_t blocks, int64_t d, int n) {
  const int64_t D = c->args[LAYERNORM_BWD_X].ext[1];
  if (!c->args[arg].data) return;
  float *to = (float *)c->args[arg].data + d;
  v16 s = v16_zero();
  for (int64_t k = 0; k < blocks; k++) s = v16_add(s, v16_load_n((const float *)c->scratch + (2 * k + which) * D + d, n));
  if (c->acc >> arg & 1) s = v16_add(v16_load_n(to, n), s);
  v16_store_n(to, s, n);
}

WR_ROW_FN(WR_KERNEL(layernorm_bwd_f32_cpu)) {
  const int64_t D = c->args[LAYERNORM_BWD_X].ext[1], rows = wr_live_rows(c, LAYERNORM_BWD_X);
  const int64_t blocks = (rows + WR_LN_BLOCK - 1) / WR_LN_BLOCK;
  const bool want_dw = c->args[LAYERNORM_BWD_DW].data, want_db = c->args[LAYERNORM_BWD_DB].data;
  int64_t begin, end;
  while (wr_take(w, 0, blocks, 1, &begin, &end))
    for (int64_t k = begin; k < end; k++) {
      float *dw = want_dw ? (float *)c->scratch + 2 * k * D : NULL,
            *db = want_db ? (float *)c->scratch + (2 * k + 1) * D : NULL;
      if (dw) memset(dw, 0, (size_t)D * sizeof *dw);
      if (db) memset(db, 0, (size_t)D * sizeof *db);
      for (int64_t r = k * WR_LN_BLOCK; r < WR_MIN((k + 1) * WR_LN_BLOCK, rows); r++) backward_row(c, r, dw, db);
    }
  if (!want_dw && !want_db) return;
  wr_barrier(w);
  while (wr_take(w, 1, (D + WR_LANES - 1) / WR_LANES, 1, &begin, &end))
    for (int64_t i = begin; i < end; i++) {
      add_blocks(c, LAYERNORM_BWD_DW, 0, blocks, i * WR_LANES, wr_lanes(D - i * WR_LANES));
      add_blocks(c, LAYERNORM_BWD_DB, 1, blocks, i * WR_LANES, wr_lanes(D - i * WR_LANES));
    }
}
