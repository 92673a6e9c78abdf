/* Sums and activations on other devices than the CPU: see elementwise.h for the equations. A group takes a piece of a row; an element is
 * computed as on the CPU, so the bits are the same. */
#include "device/dialect.h"
#include "ops/act_dev.h"

enum { ITEMS = 64, PIECE = 256 };

DEV i64 piece_begin(void) { return (i64)group(1) * PIECE + item(); }
DEV i64 piece_end(i64 n) {
  const i64 end = ((i64)group(1) + 1) * PIECE;
  return end < n ? end : n;
}

/* a, b, y */
KERNEL(add_f32, ITEMS, 3) {
  const i64 r = group(0), end = piece_end(INNER(2));
  if (r >= LIVE(0)) return;
  GLOBAL const f32 *a = ROW(const f32, 0, r), *b = ROW(const f32, 1, r);
  GLOBAL f32 *y = ROW(f32, 2, r);
  for (i64 i = piece_begin(); i < end; i += ITEMS) y[i] = a[i] + b[i];
}

/* gate, up, y; n: act */
KERNEL(glu_f32, ITEMS, 3) {
  const i64 r = group(0), end = piece_end(INNER(2));
  if (r >= LIVE(0)) return;
  GLOBAL const f32 *gate = ROW(const f32, 0, r), *up = ROW(const f32, 1, r);
  GLOBAL f32 *y = ROW(f32, 2, r);
  for (i64 i = piece_begin(); i < end; i += ITEMS) y[i] = act_value(c->n[0], gate[i]) * up[i];
}

/* x, y */
KERNEL(gelu_f32, ITEMS, 2) {
  const i64 r = group(0), end = piece_end(INNER(1));
  if (r >= LIVE(0)) return;
  GLOBAL const f32 *x = ROW(const f32, 0, r);
  GLOBAL f32 *y = ROW(f32, 1, r);
  for (i64 i = piece_begin(); i < end; i += ITEMS) y[i] = act_value(1, x[i]);
}

/* x, y; f: cap */
KERNEL(softcap_f32, ITEMS, 2) {
  const i64 r = group(0), end = piece_end(INNER(1));
  if (r >= LIVE(0)) return;
  GLOBAL const f32 *x = ROW(const f32, 0, r);
  GLOBAL f32 *y = ROW(f32, 1, r);
  for (i64 i = piece_begin(); i < end; i += ITEMS) y[i] = c->f[0] * act_tanh(x[i] / c->f[0]);
}

#if WR_DEV_HOST
#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/elementwise_i.h"

wr_launch_fn add_f32_dev, glu_f32_dev, gelu_f32_dev, softcap_f32_dev;

/* A group for each piece of each row of argument i. */
static void add_pieces(const wr_call *c, wr_launch *out, const wr_dev_kernel *k, int i) {
  wr_launch_add(out, k, c->args[i].ext[0], (wr_inner(&c->args[i]) + PIECE - 1) / PIECE, 1);
}

void add_f32_dev(const wr_call *c, wr_launch *out) { add_pieces(c, out, &add_f32, ADD_A); }

void glu_f32_dev(const wr_call *c, wr_launch *out) {
  out->n[0] = ((const wr_glu_params *)c->params)->act;
  add_pieces(c, out, &glu_f32, GLU_GATE);
}

void gelu_f32_dev(const wr_call *c, wr_launch *out) { add_pieces(c, out, &gelu_f32, GELU_X); }

void softcap_f32_dev(const wr_call *c, wr_launch *out) {
  out->f[0] = ((const wr_softcap_params *)c->params)->cap;
  add_pieces(c, out, &softcap_f32, SOFTCAP_X);
}
#endif
