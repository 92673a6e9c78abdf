/* RMSNorm, LayerNorm and their gradients on other devices than the CPU: see norm.h for the equations.
 *
 * One group of items a row (and head). Sums of a row: item t adds elements t, t + 64, ...; the items' sums are added as a tree. Sums over
 * rows: one item a column, rows ascending. */
#include "device/dialect.h"
#include "ops/norm_row_dev.h"

enum { ITEMS = 64 };

/* x, w, y, rstd; n: D; f: eps */
KERNEL(rmsnorm_f32, ITEMS, 4) {
  SHARED f32 room[ITEMS];
  const i64 r = group(0), h = group(1), D = c->n[0];
  if (r >= LIVE(0)) return;
  GLOBAL const f32 *x = ROW(const f32, 0, r) + h * D, *w = ARG(const f32, 1);
  GLOBAL f32 *y = ROW(f32, 2, r) + h * D;
  const f32 rstd = norm_rstd(x, D, c->f[0], room);
  EACH(d, D, ITEMS) y[d] = x[d] * rstd * (HAS(1) ? w[d] : 1.0f);
  if (HAS(3) && item() == 0) ROW(f32, 3, r)[h] = rstd;
}

/* dy, x, w, rstd, dx; n: D */
KERNEL(rmsnorm_dx_f32, ITEMS, 5) {
  SHARED f32 room[ITEMS];
  const i64 r = group(0), h = group(1), D = c->n[0];
  if (r >= LIVE(1)) return;
  GLOBAL const f32 *dy = ROW(const f32, 0, r) + h * D, *x = ROW(const f32, 1, r) + h * D, *w = ARG(const f32, 2);
  GLOBAL f32 *dx = ROW(f32, 4, r) + h * D;
  const f32 rstd = ROW(const f32, 3, r)[h];
  f32 sum = 0;
  EACH(d, D, ITEMS) sum = f32_fma(dy[d] * (HAS(2) ? w[d] : 1.0f), x[d], sum);
  sum = group_sum(sum, room, ITEMS);
  const f32 k = rstd * rstd * rstd / (f32)D * sum;
  EACH(d, D, ITEMS) put(&dx[d], rstd * (HAS(2) ? w[d] : 1.0f) * dy[d] - k * x[d], ADDS(4));
}

/* dy, x, w, rstd, dx, dw; n: D, heads */
KERNEL(rmsnorm_dw_f32, ITEMS, 6) {
  const i64 d = (i64)group(0) * ITEMS + item(), D = c->n[0], rows = LIVE(1);
  if (d >= D) return;
  f32 sum = 0;
  for (i64 r = 0; r < rows; r++)
    for (i64 h = 0; h < c->n[1]; h++)
      sum = f32_fma(ROW(const f32, 0, r)[h * D + d] * ROW(const f32, 1, r)[h * D + d], ROW(const f32, 3, r)[h], sum);
  put(ROW(f32, 5, d), sum, ADDS(5));
}

/* x, w, b, y, stats; n: D; f: eps */
KERNEL(layernorm_f32, ITEMS, 5) {
  SHARED f32 room[ITEMS];
  const i64 r = group(0), D = c->n[0];
  if (r >= LIVE(0)) return;
  GLOBAL const f32 *x = ROW(const f32, 0, r), *w = ARG(const f32, 1), *b = ARG(const f32, 2);
  GLOBAL f32 *y = ROW(f32, 3, r);
  f32 sum = 0, square = 0;
  EACH(d, D, ITEMS) sum += x[d];
  const f32 mean = group_sum(sum, room, ITEMS) / (f32)D;
  EACH(d, D, ITEMS) square = f32_fma(x[d] - mean, x[d] - mean, square);
  square = group_sum(square, room, ITEMS);
  const f32 rstd = 1.0f / f32_sqrt(square / (f32)D + c->f[0]);
  EACH(d, D, ITEMS) y[d] = (x[d] - mean) * rstd * (HAS(1) ? w[d] : 1.0f) + (HAS(2) ? b[d] : 0.0f);
  if (HAS(4) && item() == 0) {
    ROW(f32, 4, r)[0] = mean;
    ROW(f32, 4, r)[1] = rstd;
  }
}

/* dy, x, w, stats, dx; n: D */
KERNEL(layernorm_dx_f32, ITEMS, 5) {
  SHARED f32 room[ITEMS];
  const i64 r = group(0), D = c->n[0];
  if (r >= LIVE(1)) return;
  GLOBAL const f32 *dy = ROW(const f32, 0, r), *x = ROW(const f32, 1, r), *w = ARG(const f32, 2);
  GLOBAL f32 *dx = ROW(f32, 4, r);
  const f32 mean = ROW(const f32, 3, r)[0], rstd = ROW(const f32, 3, r)[1];
  f32 g = 0, gn = 0;
  EACH(d, D, ITEMS) {
    const f32 own = dy[d] * (HAS(2) ? w[d] : 1.0f);
    g += own;
    gn = f32_fma(own, (x[d] - mean) * rstd, gn);
  }
  g = group_sum(g, room, ITEMS) / (f32)D;
  gn = group_sum(gn, room, ITEMS) / (f32)D;
  EACH(d, D, ITEMS)
    put(&dx[d], rstd * (dy[d] * (HAS(2) ? w[d] : 1.0f) - g - (x[d] - mean) * rstd * gn), ADDS(4));
}

/* dy, x, w, stats, dx, dw, db; n: D */
KERNEL(layernorm_dw_f32, ITEMS, 7) {
  const i64 d = (i64)group(0) * ITEMS + item(), rows = LIVE(1);
  if (d >= c->n[0]) return;
  f32 dw = 0, db = 0;
  for (i64 r = 0; r < rows; r++) {
    const f32 dy = ROW(const f32, 0, r)[d];
    GLOBAL const f32 *stats = ROW(const f32, 3, r);
    dw = f32_fma(dy, (ROW(const f32, 1, r)[d] - stats[0]) * stats[1], dw);
    db += dy;
  }
  if (HAS(5)) put(ROW(f32, 5, d), dw, ADDS(5));
  if (HAS(6)) put(ROW(f32, 6, d), db, ADDS(6));
}

#if WR_DEV_HOST
#include "ops/norm/norm.h"
#include "ops/norm/norm_i.h"

wr_launch_fn rmsnorm_f32_dev, rmsnorm_bwd_f32_dev, layernorm_f32_dev, layernorm_bwd_f32_dev;

void rmsnorm_f32_dev(const wr_call *c, wr_launch *out) {
  const wr_arg *x = &c->args[RMSNORM_X];
  out->n[0] = x->ext[x->rank - 1];
  out->f[0] = ((const wr_rmsnorm_params *)c->params)->eps;
  wr_launch_add(out, &rmsnorm_f32, x->ext[0], wr_inner(x) / out->n[0], 1);
}

void rmsnorm_bwd_f32_dev(const wr_call *c, wr_launch *out) {
  const wr_arg *x = &c->args[RMSNORM_BWD_X];
  out->n[0] = x->ext[x->rank - 1];
  out->n[1] = wr_inner(x) / out->n[0];
  if (c->args[RMSNORM_BWD_DX].data) wr_launch_add(out, &rmsnorm_dx_f32, x->ext[0], out->n[1], 1);
  if (c->args[RMSNORM_BWD_DW].data) wr_launch_add(out, &rmsnorm_dw_f32, (out->n[0] + ITEMS - 1) / ITEMS, 1, 1);
}

void layernorm_f32_dev(const wr_call *c, wr_launch *out) {
  const wr_arg *x = &c->args[LAYERNORM_X];
  out->n[0] = x->ext[1];
  out->f[0] = ((const wr_layernorm_params *)c->params)->eps;
  wr_launch_add(out, &layernorm_f32, x->ext[0], 1, 1);
}

void layernorm_bwd_f32_dev(const wr_call *c, wr_launch *out) {
  const wr_arg *x = &c->args[LAYERNORM_BWD_X];
  out->n[0] = x->ext[1];
  if (c->args[LAYERNORM_BWD_DX].data) wr_launch_add(out, &layernorm_dx_f32, x->ext[0], 1, 1);
  if (c->args[LAYERNORM_BWD_DW].data || c->args[LAYERNORM_BWD_DB].data)
    wr_launch_add(out, &layernorm_dw_f32, (x->ext[1] + ITEMS - 1) / ITEMS, 1, 1);
}
#endif
