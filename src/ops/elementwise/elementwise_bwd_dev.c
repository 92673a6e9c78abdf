/* Elementwise gradients, weighted sums and dropout on other devices than the CPU: see elementwise.h for the equations.
 *
 * An item an element; dropout: an item the four elements whose bits one counter gives, sixteen apart. */
#include "device/dialect.h"
#include "ops/act_dev.h"

enum { ITEMS = 128 };

/* dy, gate, up, dgate, dup; n: inner, act */
KERNEL(glu_bwd_f32, ITEMS, 5) {
  const i64 i = (i64)group(1) * ITEMS + item(), r = group(0);
  if (i >= c->n[0] || r >= LIVE(1)) return;
  const f32 dy = ROW(const f32, 0, r)[i], gate = ROW(const f32, 1, r)[i];
  f32 value;
  const f32 slope = act_slope(c->n[1], gate, &value);
  if (HAS(3)) put(&ROW(f32, 3, r)[i], dy * ROW(const f32, 2, r)[i] * slope, ADDS(3));
  if (HAS(4)) put(&ROW(f32, 4, r)[i], dy * value, ADDS(4));
}

/* dy, x, dx; n: inner, act */
KERNEL(gelu_bwd_f32, ITEMS, 3) {
  const i64 i = (i64)group(1) * ITEMS + item(), r = group(0);
  if (i >= c->n[0] || r >= LIVE(1)) return;
  f32 value;
  const f32 slope = act_slope(c->n[1], ROW(const f32, 1, r)[i], &value);
  put(&ROW(f32, 2, r)[i], ROW(const f32, 0, r)[i] * slope, ADDS(2));
}

/* a, b, y; n: inner; f: alpha, beta, gamma */
KERNEL(axpby_f32, ITEMS, 3) {
  const i64 i = (i64)group(1) * ITEMS + item(), r = group(0);
  if (i >= c->n[0] || r >= LIVE(0)) return;
  f32 y = c->f[0] * ROW(const f32, 0, r)[i];
  if (HAS(1)) y = f32_fma(c->f[1], ROW(const f32, 1, r)[i], y);
  ROW(f32, 2, r)[i] = i == r ? y + c->f[2] : y;
}

DEV u32 high_product(u32 a, u32 b) { return (u32)((u64)a * b >> 32); }

/* x, y; n: inner, name; f: rate * 2^24, 1 / (1 - rate) */
KERNEL(dropout_f32, ITEMS, 2) {
  const i64 k = (i64)group(1) * ITEMS + item(), first = k / 16 * 64 + k % 16, r = group(0);
  if (first >= c->n[0] || r >= LIVE(0)) return;
  GLOBAL const f32 *x = ROW(const f32, 0, r);
  GLOBAL f32 *y = ROW(f32, 1, r);
  u32 key0 = (u32)regs->seed, key1 = (u32)(regs->seed >> 32);
  u32 bits[4];
  bits[0] = (u32)k;
  bits[1] = (u32)r;
  bits[2] = (u32)regs->step;
  bits[3] = (u32)c->n[1];
  for (i32 round = 0; round < 10; round++) { /* Philox4x32-10 */
    const u32 high0 = high_product(bits[0], 0xD2511F53u), low0 = bits[0] * 0xD2511F53u;
    const u32 high1 = high_product(bits[2], 0xCD9E8D57u), low1 = bits[2] * 0xCD9E8D57u;
    bits[0] = high1 ^ bits[1] ^ key0;
    bits[1] = low1;
    bits[2] = high0 ^ bits[3] ^ key1;
    bits[3] = low0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  for (i32 j = 0; j < 4 && first + 16 * j < c->n[0]; j++)
    y[first + 16 * j] = (f32)(bits[j] >> 8) < c->f[0] ? 0.0f : x[first + 16 * j] * c->f[1];
}

#if WR_DEV_HOST
#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/elementwise_i.h"

wr_launch_fn glu_bwd_f32_dev, gelu_bwd_f32_dev, axpby_f32_dev, dropout_f32_dev;

/* An item for each of `elements` of every row of argument `arg`. */
static void by_element(const wr_call *c, wr_launch *out, const wr_dev_kernel *k, int arg, int64_t elements) {
  out->n[0] = wr_inner(&c->args[arg]);
  wr_launch_add(out, k, c->args[arg].ext[0], (elements + ITEMS - 1) / ITEMS, 1);
}

void glu_bwd_f32_dev(const wr_call *c, wr_launch *out) {
  out->n[1] = ((const wr_glu_params *)c->params)->act;
  by_element(c, out, &glu_bwd_f32, GLU_BWD_GATE, wr_inner(&c->args[GLU_BWD_GATE]));
}

void gelu_bwd_f32_dev(const wr_call *c, wr_launch *out) {
  out->n[1] = WR_GELU;
  by_element(c, out, &gelu_bwd_f32, GELU_BWD_X, wr_inner(&c->args[GELU_BWD_X]));
}

void axpby_f32_dev(const wr_call *c, wr_launch *out) {
  const wr_axpby_params *p = c->params;
  out->f[0] = p->alpha;
  out->f[1] = p->beta;
  out->f[2] = p->gamma;
  by_element(c, out, &axpby_f32, AXPBY_A, wr_inner(&c->args[AXPBY_A]));
}

void dropout_f32_dev(const wr_call *c, wr_launch *out) {
  const wr_dropout_params *p = c->params;
  out->n[1] = p->name;
  out->f[0] = p->rate * 0x1p24f;
  out->f[1] = (float)(1 / (1 - (double)p->rate));
  by_element(c, out, &dropout_f32, DROPOUT_X, (wr_inner(&c->args[DROPOUT_X]) + 63) / 64 * 16);
}
#endif
