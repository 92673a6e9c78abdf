/* Optimisers and sums of squares on other devices than the CPU: see optim.h and muon.h for the equations.
 *
 * Values are flat arrays (flat_i.h), an item an element. Sums of squares: an item adds every 256th element of a piece of 1,024, the items'
 * sums are added as a tree; then the pieces likewise. */
#include "device/dialect.h"

enum { ITEMS = 256, PIECE = 1024 };

DEV f32 grad_scale(GLOBAL const wr_dev_regs *regs) { return regs->grad_scale != 0.0f ? regs->grad_scale : 1.0f; }

/* 1 - beta^step, from ln beta: near 0 by a series, which has no cancellation. */
DEV f32 correction(f32 ln_beta, i64 step) {
  const f32 x = ln_beta * (f32)step;
  if (x < -0.5f) return 1.0f - f32_exp(x);
  f32 sum = 1.0f;
  for (i32 k = 9; k > 1; k--) sum = f32_fma(sum, x / (f32)k, 1.0f);
  return -x * sum;
}

/* param, grad, m, v; n: inner; f: ln beta1, ln beta2, beta1, beta2, 1 - beta1, 1 - beta2, eps, weight_decay */
KERNEL(adamw_f32, ITEMS, 4) {
  const i64 r = group(0), i = (i64)group(1) * ITEMS + item();
  if (i >= c->n[0] || regs->found_inf != 0) return;
  GLOBAL f32 *x = &ROW(f32, 0, r)[i], *m = &ROW(f32, 2, r)[i], *v = &ROW(f32, 3, r)[i];
  const f32 g = ROW(const f32, 1, r)[i] * grad_scale(regs);
  const f32 m1 = f32_fma(c->f[4], g, c->f[2] * *m), v1 = f32_fma(c->f[5] * g, g, c->f[3] * *v);
  const f32 below = f32_sqrt(v1 / correction(c->f[1], regs->step)) + c->f[6];
  *m = m1;
  *v = v1;
  *x = f32_fma(-regs->lr / correction(c->f[0], regs->step), m1 / below, *x * f32_fma(-regs->lr, c->f[7], 1.0f));
}

/* param, grad, m; n: inner, nesterov; f: momentum, weight_decay */
KERNEL(sgd_f32, ITEMS, 3) {
  const i64 r = group(0), i = (i64)group(1) * ITEMS + item();
  if (i >= c->n[0] || regs->found_inf != 0) return;
  GLOBAL f32 *x = &ROW(f32, 0, r)[i];
  f32 g = f32_fma(c->f[1], *x, ROW(const f32, 1, r)[i] * grad_scale(regs));
  if (HAS(2)) {
    GLOBAL f32 *m = &ROW(f32, 2, r)[i];
    const f32 m1 = f32_fma(c->f[0], *m, g);
    *m = m1;
    g = c->n[1] ? f32_fma(c->f[0], m1, g) : m1;
  }
  *x = f32_fma(-regs->lr, g, *x);
}

/* x; n: inner, pieces of a row. A sum for each piece into the scratch. */
KERNEL(sumsq_pieces_f32, ITEMS, 1) {
  SHARED f32 room[ITEMS];
  const i64 r = group(0), from = (i64)group(1) * PIECE;
  f32 sum = 0;
  for (i64 i = from + item(); i < from + PIECE && i < c->n[0]; i += ITEMS)
    sum = f32_fma(ROW(const f32, 0, r)[i], ROW(const f32, 0, r)[i], sum);
  sum = group_sum(sum, room, ITEMS);
  if (item() == 0) SCRATCH(f32)[r * c->n[1] + group(1)] = sum;
}

/* The sum of the scratch's first n floats, given to all items; room[ITEMS]. */
DEV f32 sum_of_pieces(GLOBAL const f32 *pieces, i64 n, LOCAL f32 *room) {
  f32 sum = 0;
  EACH(i, n, ITEMS) sum += pieces[i];
  return group_sum(sum, room, ITEMS);
}

/* The bits of a float as a double, of which a device may have none. Denormal ones become 0. */
DEV u64 double_bits(f32 x) {
  const u32 u = f32_bits(x), exponent = u >> 23 & 255u;
  const u64 sign = (u64)(u >> 31) << 63, fraction = (u64)(u & 0x7fffffu) << 29;
  if (exponent == 0) return sign;
  return sign | (u64)(exponent == 255u ? 2047u : exponent + 896u) << 52 | fraction;
}

/* x, y; n: inner, pieces of a row, all pieces */
KERNEL(sumsq_f32, ITEMS, 2) {
  SHARED f32 room[ITEMS];
  const f32 sum = sum_of_pieces(SCRATCH(const f32), c->n[2], room);
  if (item() == 0) *ARG(u64, 1) = double_bits(sum);
}

/* m, grad, u; n: inner, pieces of a row; f: momentum, 1 - momentum. u before it is made a unit, a sum of squares for each piece. */
KERNEL(muon_momentum_f32, ITEMS, 3) {
  SHARED f32 room[ITEMS];
  const i64 r = group(0), from = (i64)group(1) * PIECE;
  f32 sum = 0;
  for (i64 i = from + item(); i < from + PIECE && i < c->n[0]; i += ITEMS) {
    const f32 g = c->f[1] * (ROW(const f32, 1, r)[i] * grad_scale(regs)), m1 = f32_fma(c->f[0], ROW(const f32, 0, r)[i], g);
    const f32 look = f32_fma(c->f[0], m1, g);
    if (regs->found_inf == 0) ROW(f32, 0, r)[i] = m1;
    ROW(f32, 2, r)[i] = look;
    sum = f32_fma(look, look, sum);
  }
  sum = group_sum(sum, room, ITEMS);
  if (item() == 0) SCRATCH(f32)[r * c->n[1] + group(1)] = sum;
}

/* m, grad, u; n: inner, pieces of a row, all pieces; f[2]: eps */
KERNEL(muon_unit_f32, ITEMS, 3) {
  SHARED f32 room[ITEMS];
  const i64 r = group(0), from = (i64)group(1) * PIECE;
  const f32 factor = 1.0f / f32_max(f32_sqrt(sum_of_pieces(SCRATCH(const f32), c->n[2], room)), c->f[2]);
  for (i64 i = from + item(); i < from + PIECE && i < c->n[0]; i += ITEMS) ROW(f32, 2, r)[i] *= factor;
}

/* param, u; n: inner; f: scale, weight_decay */
KERNEL(muon_apply_f32, ITEMS, 2) {
  const i64 r = group(0), i = (i64)group(1) * ITEMS + item();
  if (i >= c->n[0] || regs->found_inf != 0) return;
  GLOBAL f32 *x = &ROW(f32, 0, r)[i];
  *x = f32_fma(-regs->lr * c->f[0], ROW(const f32, 1, r)[i], *x * f32_fma(-regs->lr, c->f[1], 1.0f));
}

#if WR_DEV_HOST
#include "ops/flat_i.h"
#include "ops/optim/muon_i.h"
#include "ops/optim/optim.h"
#include "ops/optim/optim_i.h"

wr_launch_fn adamw_f32_dev, sgd_f32_dev, sumsq_f32_dev, muon_direction_f32_dev, muon_apply_f32_dev;

size_t optim_dev_scratch(const wr_call *c, int n_threads) {
  (void)n_threads;
  return (size_t)wr_flat_pieces(&c->args[0], PIECE) * sizeof(float);
}

/* A kernel over the first n arguments as flat arrays, cut into pieces of so many elements. */
static void over_pieces(const wr_call *c, wr_launch *out, const wr_dev_kernel *k, int n, int64_t piece) {
  int64_t rows;
  wr_flat(c, n, &rows, &out->n[0]);
  const int64_t pieces = (out->n[0] + piece - 1) / piece;
  wr_launch_add(out, k, rows, pieces, 1);
}

static void count_pieces(const wr_call *c, wr_launch *out, int n) {
  int64_t rows;
  wr_flat(c, n, &rows, &out->n[0]);
  out->n[1] = (out->n[0] + PIECE - 1) / PIECE;
  out->n[2] = rows * out->n[1];
}

void adamw_f32_dev(const wr_call *c, wr_launch *out) {
  const wr_adamw_params *p = c->params;
  const double numbers[] = {log(p->beta1), log(p->beta2), p->beta1, p->beta2, 1 - p->beta1, 1 - p->beta2, p->eps, p->weight_decay};
  for (size_t i = 0; i < WR_ARRAY_LEN(numbers); i++) out->f[i] = (float)numbers[i];
  over_pieces(c, out, &adamw_f32, 4, ITEMS);
}

void sgd_f32_dev(const wr_call *c, wr_launch *out) {
  const wr_sgd_params *p = c->params;
  out->f[0] = (float)p->momentum;
  out->f[1] = (float)p->weight_decay;
  out->n[1] = p->nesterov;
  over_pieces(c, out, &sgd_f32, 3, ITEMS);
}

void sumsq_f32_dev(const wr_call *c, wr_launch *out) {
  count_pieces(c, out, 1);
  over_pieces(c, out, &sumsq_pieces_f32, 1, PIECE);
  wr_launch_add(out, &sumsq_f32, 1, 1, 1);
}

void muon_direction_f32_dev(const wr_call *c, wr_launch *out) {
  const wr_muon_params *p = c->params;
  out->f[0] = (float)p->momentum;
  out->f[1] = (float)(1 - p->momentum);
  out->f[2] = (float)p->eps;
  count_pieces(c, out, 3);
  over_pieces(c, out, &muon_momentum_f32, 3, PIECE);
  over_pieces(c, out, &muon_unit_f32, 3, PIECE);
}

void muon_apply_f32_dev(const wr_call *c, wr_launch *out) {
  const wr_muon_apply_params *p = c->params;
  out->f[0] = (float)p->scale;
  out->f[1] = (float)p->weight_decay;
  over_pieces(c, out, &muon_apply_f32, 2, ITEMS);
}
#endif
