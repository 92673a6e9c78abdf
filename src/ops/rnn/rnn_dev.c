/* rnn on other devices than the CPU, in a plain form: see rnn.h for the equations.
 *
 * A group has one sequence and walks its steps; an item has every 64th hidden unit. What units hand each other from step to step is in
 * SHARED memory, so H is limited. Gradients of weights and inputs are sums over what the walk left in scratch, an item an element. */
#include "device/dialect.h"

enum { ITEMS = 64, H_MAX = 1024, GATES = 4 };

/* n */
enum { N_B, N_D, N_H };

DEV f32 sigmoid(f32 x) { return 1.0f / (1.0f + f32_exp(-x)); }

/* x, w_ih, w_hh, bias, h0, c0, y, hT, cT, gates, cells */
KERNEL(rnn_f32, ITEMS, 11) {
  SHARED f32 states[2 * H_MAX], cell[H_MAX];
  const i64 b = group(0), T = EXT(0, 0), D = c->n[N_D], H = c->n[N_H];
  EACH(h, H, ITEMS) {
    states[h] = HAS(4) ? ROW(const f32, 4, b)[h] : 0.0f;
    cell[h] = HAS(5) ? ROW(const f32, 5, b)[h] : 0.0f;
  }
  for (i64 t = 0; t < T; t++) {
    LOCAL const f32 *before = states + (t & 1) * H_MAX;
    LOCAL f32 *after = states + ((t + 1) & 1) * H_MAX;
    GLOBAL const f32 *x = ROW(const f32, 0, t) + b * D;
    BARRIER();
    EACH(h, H, ITEMS) {
      f32 a[GATES];
      for (i32 g = 0; g < GATES; g++) {
        GLOBAL const f32 *w_ih = ROW(const f32, 1, g * H + h), *w_hh = ROW(const f32, 2, g * H + h);
        f32 sum = HAS(3) ? *ROW(const f32, 3, g * H + h) : 0.0f;
        for (i64 d = 0; d < D; d++) sum = f32_fma(w_ih[d], x[d], sum);
        for (i64 k = 0; k < H; k++) sum = f32_fma(w_hh[k], before[k], sum);
        a[g] = g == 2 ? f32_tanh(sum) : sigmoid(sum);
        if (HAS(9)) ROW(f32, 9, t)[(b * GATES + g) * H + h] = a[g];
      }
      cell[h] = f32_fma(a[1], cell[h], a[0] * a[2]);
      after[h] = a[3] * f32_tanh(cell[h]);
      if (HAS(6)) ROW(f32, 6, t)[b * H + h] = after[h];
      if (HAS(10)) ROW(f32, 10, t)[b * H + h] = cell[h];
      if (t < T - 1) continue;
      if (HAS(7)) ROW(f32, 7, b)[h] = after[h];
      if (HAS(8)) ROW(f32, 8, b)[h] = cell[h];
    }
  }
}

/* dy, dhT, dcT, x, w_ih, w_hh, h0, c0, y, gates, cells, dx, dw_ih, dw_hh, dbias, dh0, dc0. The scratch: da[T * B][4 H]. */
KERNEL(rnn_bwd_walk_f32, ITEMS, 17) {
  SHARED f32 dh[H_MAX], dc[H_MAX], da[GATES * H_MAX];
  const i64 b = group(0), T = EXT(3, 0), B = c->n[N_B], H = c->n[N_H], R = GATES * H;
  EACH(h, H, ITEMS) {
    dh[h] = HAS(1) ? ROW(const f32, 1, b)[h] : 0.0f;
    dc[h] = HAS(2) ? ROW(const f32, 2, b)[h] : 0.0f;
  }
  for (i64 t = T - 1; t >= 0; t--) {
    GLOBAL f32 *kept = SCRATCH(f32) + (t * B + b) * R;
    EACH(h, H, ITEMS) {
      GLOBAL const f32 *gates = ROW(const f32, 9, t) + b * R + h;
      const f32 i = gates[0], f = gates[H], g = gates[2 * H], o = gates[3 * H], th = f32_tanh(ROW(const f32, 10, t)[b * H + h]);
      f32 before = 0.0f;
      if (t > 0)
        before = ROW(const f32, 10, t - 1)[b * H + h];
      else if (HAS(7))
        before = ROW(const f32, 7, b)[h];
      const f32 dh_t = dh[h] + (HAS(0) ? ROW(const f32, 0, t)[b * H + h] : 0.0f);
      const f32 dc_t = f32_fma(dh_t * o, 1.0f - th * th, dc[h]);
      da[h] = dc_t * g * i * (1.0f - i);
      da[H + h] = dc_t * before * f * (1.0f - f);
      da[2 * H + h] = dc_t * i * (1.0f - g * g);
      da[3 * H + h] = dh_t * th * o * (1.0f - o);
      for (i32 n = 0; n < GATES; n++) kept[n * H + h] = da[n * H + h];
      dc[h] = dc_t * f;
    }
    BARRIER();
    EACH(k, H, ITEMS) {
      f32 sum = 0.0f;
      for (i64 r = 0; r < R; r++) sum = f32_fma(ROW(const f32, 5, r)[k], da[r], sum);
      dh[k] = sum;
    }
    BARRIER();
  }
  EACH(h, H, ITEMS) {
    if (HAS(15)) put(&ROW(f32, 15, b)[h], dh[h], ADDS(15));
    if (HAS(16)) put(&ROW(f32, 16, b)[h], dc[h], ADDS(16));
  }
}

/* da of step and sequence i, gate row r. */
#define DA(i, r) SCRATCH(const f32)[(i) * GATES * c->n[N_H] + (r)]

KERNEL(rnn_dx_f32, ITEMS, 12) {
  const i64 i = group(0), t = i / c->n[N_B], b = i % c->n[N_B], D = c->n[N_D], d = (i64)group(1) * ITEMS + item();
  f32 sum = 0.0f;
  if (d >= D) return;
  for (i64 r = 0; r < GATES * c->n[N_H]; r++) sum = f32_fma(ROW(const f32, 4, r)[d], DA(i, r), sum);
  put(&ROW(f32, 11, t)[b * D + d], sum, ADDS(11));
}

KERNEL(rnn_dw_ih_f32, ITEMS, 13) {
  const i64 r = group(0), B = c->n[N_B], D = c->n[N_D], d = (i64)group(1) * ITEMS + item();
  f32 sum = 0.0f;
  if (d >= D) return;
  for (i64 i = 0; i < EXT(3, 0) * B; i++) sum = f32_fma(ROW(const f32, 3, i / B)[i % B * D + d], DA(i, r), sum);
  put(&ROW(f32, 12, r)[d], sum, ADDS(12));
}

KERNEL(rnn_dw_hh_f32, ITEMS, 14) {
  const i64 r = group(0), B = c->n[N_B], H = c->n[N_H], k = (i64)group(1) * ITEMS + item();
  f32 sum = 0.0f;
  if (k >= H) return;
  for (i64 i = HAS(6) ? 0 : B; i < EXT(3, 0) * B; i++) {
    const f32 before = i < B ? ROW(const f32, 6, i)[k] : ROW(const f32, 8, i / B - 1)[i % B * H + k];
    sum = f32_fma(before, DA(i, r), sum);
  }
  put(&ROW(f32, 13, r)[k], sum, ADDS(13));
}

KERNEL(rnn_dbias_f32, ITEMS, 15) {
  const i64 r = (i64)group(0) * ITEMS + item();
  f32 sum = 0.0f;
  if (r >= GATES * c->n[N_H]) return;
  for (i64 i = 0; i < EXT(3, 0) * c->n[N_B]; i++) sum += DA(i, r);
  put(ROW(f32, 14, r), sum, ADDS(14));
}

#if WR_DEV_HOST
#include "ops/rnn/rnn.h"
#include "ops/rnn/rnn_i.h"

wr_launch_fn rnn_f32_dev, rnn_bwd_f32_dev;
const char *rnn_dev_refuses(const wr_call *c);
const char *rnn_bwd_dev_refuses(const wr_call *c);
size_t rnn_bwd_dev_scratch(const wr_call *c, int n_threads);

static const char *too_wide(const wr_arg *w_hh) {
  return w_hh->ext[1] > H_MAX ? "more hidden units than SHARED memory is asked for (1024)" : NULL;
}
const char *rnn_dev_refuses(const wr_call *c) { return too_wide(&c->args[RNN_W_HH]); }
const char *rnn_bwd_dev_refuses(const wr_call *c) { return too_wide(&c->args[RNN_BWD_W_HH]); }

size_t rnn_bwd_dev_scratch(const wr_call *c, int n_threads) {
  (void)n_threads;
  const wr_arg *x = &c->args[RNN_BWD_X];
  return (size_t)(x->ext[0] * x->ext[1] * GATES * c->args[RNN_BWD_W_HH].ext[1]) * sizeof(float);
}

static void numbers(wr_launch *out, const wr_arg *x, const wr_arg *w_hh) {
  out->n[N_B] = x->ext[1];
  out->n[N_D] = x->ext[2];
  out->n[N_H] = w_hh->ext[1];
}

void rnn_f32_dev(const wr_call *c, wr_launch *out) {
  numbers(out, &c->args[RNN_X], &c->args[RNN_W_HH]);
  wr_launch_add(out, &rnn_f32, out->n[N_B], 1, 1);
}

void rnn_bwd_f32_dev(const wr_call *c, wr_launch *out) {
  const wr_arg *x = &c->args[RNN_BWD_X];
  numbers(out, x, &c->args[RNN_BWD_W_HH]);
  const int64_t R = GATES * out->n[N_H], columns = (out->n[N_D] + ITEMS - 1) / ITEMS, units = (out->n[N_H] + ITEMS - 1) / ITEMS;
  wr_launch_add(out, &rnn_bwd_walk_f32, out->n[N_B], 1, 1);
  if (c->args[RNN_BWD_DX].data) wr_launch_add(out, &rnn_dx_f32, x->ext[0] * x->ext[1], columns, 1);
  if (c->args[RNN_BWD_DW_IH].data) wr_launch_add(out, &rnn_dw_ih_f32, R, columns, 1);
  if (c->args[RNN_BWD_DW_HH].data) wr_launch_add(out, &rnn_dw_hh_f32, R, units, 1);
  if (c->args[RNN_BWD_DBIAS].data) wr_launch_add(out, &rnn_dbias_f32, (R + ITEMS - 1) / ITEMS, 1, 1);
}
#endif
