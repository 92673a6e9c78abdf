/* Cross-entropy on the CPU, FP32, compiled once for each instruction set; the same bits from each.
 *
 * Sums of exponentials: loss_row_i.h. The mean over rows is taken by one thread in double, rows ascending. */
#include "ops/arg_i.h"
#include "ops/loss/loss.h"
#include "ops/loss/loss_i.h"
#include "ops/loss/loss_row_i.h"
#include "ops/simd_i.h"

WR_ROW_FN(WR_KERNEL(xent_f32_cpu));
WR_ROW_FN(WR_KERNEL(xent_bwd_f32_cpu));

enum { PIECE = 4096 };

WR_ROW_FN(WR_KERNEL(xent_f32_cpu)) {
  const wr_arg *logits = &c->args[XENT_LOGITS], *targets = &c->args[XENT_TARGETS], *lse = &c->args[XENT_LSE];
  const int64_t V = logits->ext[1], rows = wr_live_rows(c, XENT_LOGITS);
  double *row_loss = c->scratch;
  int64_t begin, end;
  while (wr_take(w, 0, rows, wr_rows_grain(V), &begin, &end))
    for (int64_t r = begin; r < end; r++) {
      const float *x = wr_arg_f32(logits, r);
      const int64_t t = target_of(targets, r, V);
      const double ln = log_sum(x, V);
      row_loss[r] = t < 0 ? 0 : ln - (double)x[t];
      if (lse->data) *wr_arg_f32(lse, r) = (float)ln;
    }
  wr_barrier(w);
  if (w->tid) return;
  const int64_t n = count_targets(targets, rows, V);
  double total = 0;
  for (int64_t r = 0; r < rows; r++) total += row_loss[r];
  *(float *)c->args[XENT_LOSS].data = n ? (float)(total / (double)n) : 0;
}

WR_ROW_FN(WR_KERNEL(xent_bwd_f32_cpu)) {
  const wr_arg *logits = &c->args[XENT_BWD_LOGITS], *targets = &c->args[XENT_BWD_TARGETS], *out = &c->args[XENT_BWD_DLOGITS];
  const int64_t V = logits->ext[1], rows = wr_live_rows(c, XENT_BWD_LOGITS), pieces = (V + PIECE - 1) / PIECE;
  const int64_t n = count_targets(targets, rows, V);
  const float scale = n ? (float)((double)*(const float *)c->args[XENT_BWD_DLOSS].data / (double)n) : 0;
  const bool add = c->acc >> XENT_BWD_DLOGITS & 1;
  int64_t begin, end;
  while (wr_take(w, 0, rows * pieces, wr_rows_grain(WR_MIN(V, (int64_t)PIECE)), &begin, &end))
    for (int64_t u = begin; u < end; u++) {
      const int64_t r = u / pieces, from = u % pieces * PIECE, to = WR_MIN(from + PIECE, V), t = target_of(targets, r, V);
      const float *x = wr_arg_f32(logits, r);
      float *dx = wr_arg_f32(out, r);
      const v16 ln = v16_set1(*wr_arg_f32(&c->args[XENT_BWD_LSE], r)), s = v16_set1(t < 0 ? 0 : scale);
      const float old = t >= from && t < to && add ? dx[t] : 0; /* the target's element is written once more below */
      for (int64_t v = from; v < to; v += WR_LANES) {
        const int k = wr_lanes(to - v);
        v16 d = t < 0 ? v16_zero() : v16_mul(s, v16_exp(v16_sub(v16_load_n(x + v, k), ln)));
        if (add) d = v16_add(v16_load_n(dx + v, k), d);
        v16_store_n(dx + v, d, k);
      }
      if (t < from || t >= to) continue;
      float p[WR_LANES];
      v16_store(p, v16_exp(v16_sub(v16_set1(x[t]), ln)));
      dx[t] = old + scale * (p[0] - 1);
    }
}
