/* The definition of the rnn family: see rnn.h for the equations. Sequences of a batch do not meet in forward, so a unit of work is one of them. */
#include <math.h>

#include "ops/ref_i.h"
#include "ops/rnn/rnn.h"
#include "ops/rnn/rnn_i.h"

WR_ROW_FN(rnn_ref);
WR_ROW_FN(rnn_bwd_ref);
size_t rnn_bwd_ref_scratch(const wr_call *c, int n_threads);

static double sigmoid(double v) { return 1 / (1 + exp(-v)); }
/* Element of a state [B,H] that may be absent. */
static double state(const wr_arg *a, int64_t b, int64_t h) { return a->data ? wr_get(a, b, h) : 0; }

WR_ROW_FN(rnn_ref) {
  const wr_arg *x = &c->args[RNN_X], *w_ih = &c->args[RNN_W_IH], *w_hh = &c->args[RNN_W_HH], *bias = &c->args[RNN_BIAS];
  const wr_arg *y = &c->args[RNN_Y], *h0 = &c->args[RNN_H0], *c0 = &c->args[RNN_C0];
  const int64_t T = x->ext[0], B = x->ext[1], D = x->ext[2], H = w_hh->ext[1];
  int64_t begin, end;
  while (wr_take(w, 0, B, 1, &begin, &end))
    for (int64_t b = begin; b < end; b++)
      for (int64_t h = 0; h < H; h++) wr_ref_put(c, RNN_CT, b, h, state(c0, b, h));
  wr_barrier(w);
  while (wr_take(w, 1, B, 1, &begin, &end))
    for (int64_t b = begin; b < end; b++)
      for (int64_t t = 0; t < T; t++) {
        for (int64_t h = 0; h < H; h++) {
          double a[RNN_GATE_COUNT];
          for (int64_t g = 0; g < RNN_GATE_COUNT; g++) {
            const int64_t row = g * H + h;
            double sum = bias->data ? wr_get(bias, row, 0) : 0;
            for (int64_t d = 0; d < D; d++) sum += wr_get(w_ih, row, d) * wr_get(x, t, b * D + d);
            for (int64_t k = 0; k < H; k++) sum += wr_get(w_hh, row, k) * (t ? wr_get(y, t - 1, b * H + k) : state(h0, b, k));
            a[g] = g == RNN_G ? tanh(sum) : sigmoid(sum);
            wr_ref_put(c, RNN_GATES, t, (b * RNN_GATE_COUNT + g) * H + h, a[g]);
          }
          const double cell = a[RNN_F] * wr_get(&c->args[RNN_CT], b, h) + a[RNN_I] * a[RNN_G];
          wr_set(&c->args[RNN_CT], b, h, cell);
          wr_ref_put(c, RNN_CELLS, t, b * H + h, cell);
          wr_ref_put(c, RNN_Y, t, b * H + h, a[RNN_O] * tanh(cell));
        }
        for (int64_t h = 0; h < H && t == T - 1; h++) wr_ref_put(c, RNN_HT, b, h, wr_get(y, t, b * H + h));
      }
}

/* Pre-activation gradients da[T,B,4H], then dh and dc [B,H] of the step at hand, in double. */
size_t rnn_bwd_ref_scratch(const wr_call *c, int n_threads) {
  (void)n_threads;
  const wr_arg *x = &c->args[RNN_BWD_X];
  const size_t B = (size_t)x->ext[1], H = (size_t)c->args[RNN_BWD_W_HH].ext[1];
  return ((size_t)x->ext[0] * RNN_GATE_COUNT + 2) * B * H * sizeof(double);
}

/* da of one sequence, t descending; leaves its dh0 and dc0 in dh and dc. */
static void sequence_bwd(const wr_call *c, int64_t b, double *da, double *dh, double *dc) {
  const wr_arg *dy = &c->args[RNN_BWD_DY], *w_hh = &c->args[RNN_BWD_W_HH], *gates = &c->args[RNN_BWD_GATES],
               *cells = &c->args[RNN_BWD_CELLS];
  const int64_t T = c->args[RNN_BWD_X].ext[0], B = c->args[RNN_BWD_X].ext[1], H = w_hh->ext[1];
  for (int64_t h = 0; h < H; h++) {
    dh[h] = state(&c->args[RNN_BWD_DHT], b, h);
    dc[h] = state(&c->args[RNN_BWD_DCT], b, h);
  }
  for (int64_t t = T - 1; t >= 0; t--) {
    double *at = da + (t * B + b) * RNN_GATE_COUNT * H;
    for (int64_t h = 0; h < H; h++) {
      double v[RNN_GATE_COUNT];
      for (int64_t g = 0; g < RNN_GATE_COUNT; g++) v[g] = wr_get(gates, t, (b * RNN_GATE_COUNT + g) * H + h);
      const double before = t ? wr_get(cells, t - 1, b * H + h) : state(&c->args[RNN_BWD_C0], b, h);
      const double th = tanh(wr_get(cells, t, b * H + h)), dh_t = dh[h] + (dy->data ? wr_get(dy, t, b * H + h) : 0);
      const double dc_t = dc[h] + dh_t * v[RNN_O] * (1 - th * th);
      at[RNN_I * H + h] = dc_t * v[RNN_G] * v[RNN_I] * (1 - v[RNN_I]);
      at[RNN_F * H + h] = dc_t * before * v[RNN_F] * (1 - v[RNN_F]);
      at[RNN_G * H + h] = dc_t * v[RNN_I] * (1 - v[RNN_G] * v[RNN_G]);
      at[RNN_O * H + h] = dh_t * th * v[RNN_O] * (1 - v[RNN_O]);
      dc[h] = dc_t * v[RNN_F];
    }
    for (int64_t k = 0; k < H; k++) {
      dh[k] = 0;
      for (int64_t r = 0; r < RNN_GATE_COUNT * H; r++) dh[k] += wr_get(w_hh, r, k) * at[r];
    }
  }
}

WR_ROW_FN(rnn_bwd_ref) {
  const wr_arg *x = &c->args[RNN_BWD_X], *w_ih = &c->args[RNN_BWD_W_IH], *w_hh = &c->args[RNN_BWD_W_HH],
               *y = &c->args[RNN_BWD_Y];
  const int64_t T = x->ext[0], B = x->ext[1], D = x->ext[2], H = w_hh->ext[1], R = RNN_GATE_COUNT * H;
  double *da = c->scratch, *dh = da + T * B * R, *dc = dh + B * H;
  int64_t begin, end;
  while (wr_take(w, 0, B, 1, &begin, &end))
    for (int64_t b = begin; b < end; b++) {
      sequence_bwd(c, b, da, dh + b * H, dc + b * H);
      for (int64_t h = 0; h < H; h++) {
        wr_ref_put(c, RNN_BWD_DH0, b, h, dh[b * H + h]);
        wr_ref_put(c, RNN_BWD_DC0, b, h, dc[b * H + h]);
      }
      for (int64_t t = 0; t < T && c->args[RNN_BWD_DX].data; t++)
        for (int64_t d = 0; d < D; d++) {
          double sum = 0;
          for (int64_t r = 0; r < R; r++) sum += wr_get(w_ih, r, d) * da[(t * B + b) * R + r];
          wr_ref_put(c, RNN_BWD_DX, t, b * D + d, sum);
        }
    }
  wr_barrier(w);
  while (wr_take(w, 1, R, 1, &begin, &end))
    for (int64_t r = begin; r < end; r++) {
      double bias = 0;
      for (int64_t i = 0; i < T * B; i++) bias += da[i * R + r];
      wr_ref_put(c, RNN_BWD_DBIAS, r, 0, bias);
      for (int64_t d = 0; d < D && c->args[RNN_BWD_DW_IH].data; d++) {
        double sum = 0;
        for (int64_t i = 0; i < T * B; i++) sum += da[i * R + r] * wr_get(x, i / B, i % B * D + d);
        wr_ref_put(c, RNN_BWD_DW_IH, r, d, sum);
      }
      for (int64_t k = 0; k < H && c->args[RNN_BWD_DW_HH].data; k++) {
        double sum = 0;
        for (int64_t i = 0; i < T * B; i++)
          sum += da[i * R + r] * (i < B ? state(&c->args[RNN_BWD_H0], i % B, k) : wr_get(y, i / B - 1, i % B * H + k));
        wr_ref_put(c, RNN_BWD_DW_HH, r, k, sum);
      }
    }
}
