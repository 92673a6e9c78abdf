/* The definition of the loss family: see loss.h for the equations. */
#include <math.h>

#include "ops/loss/loss.h"
#include "ops/loss/loss_i.h"
#include "ops/ref_i.h"

WR_ROW_FN(xent_ref);
WR_ROW_FN(xent_bwd_ref);
size_t xent_ref_scratch(const wr_call *c, int n_threads);

/* The target of a row, -1 when it does not count. */
static int64_t target_of(const wr_call *c, int arg, int64_t row, int64_t V) {
  const int64_t t = wr_ref_int(c, arg, row);
  return t >= 0 && t < V ? t : -1;
}

/* One loss a row, in double. */
size_t xent_ref_scratch(const wr_call *c, int n_threads) {
  (void)n_threads;
  return (size_t)c->args[XENT_LOGITS].ext[0] * sizeof(double);
}

WR_ROW_FN(xent_ref) {
  const wr_arg *logits = &c->args[XENT_LOGITS];
  const int64_t V = logits->ext[1], rows = wr_live_rows(c, XENT_LOGITS);
  double *row_loss = c->scratch;
  int64_t begin, end;
  while (wr_take(w, 0, rows, 1, &begin, &end))
    for (int64_t r = begin; r < end; r++) {
      double max = -INFINITY, sum = 0;
      for (int64_t v = 0; v < V; v++) max = fmax(max, wr_get(logits, r, v));
      for (int64_t v = 0; v < V; v++) sum += exp(wr_get(logits, r, v) - max);
      const int64_t t = target_of(c, XENT_TARGETS, r, V);
      row_loss[r] = t < 0 ? 0 : max + log(sum) - wr_get(logits, r, t);
      wr_ref_put(c, XENT_LSE, r, 0, max + log(sum));
    }
  wr_barrier(w);
  if (w->tid) return;
  double total = 0;
  int64_t n = 0;
  for (int64_t r = 0; r < rows; r++) {
    total += row_loss[r];
    n += target_of(c, XENT_TARGETS, r, V) >= 0;
  }
  wr_ref_put(c, XENT_LOSS, 0, 0, n ? total / (double)n : 0);
}

WR_ROW_FN(xent_bwd_ref) {
  const wr_arg *logits = &c->args[XENT_BWD_LOGITS];
  const int64_t V = logits->ext[1], rows = wr_live_rows(c, XENT_BWD_LOGITS);
  int64_t n = 0, begin, end;
  for (int64_t r = 0; r < rows; r++) n += target_of(c, XENT_BWD_TARGETS, r, V) >= 0;
  const double scale = n ? wr_get(&c->args[XENT_BWD_DLOSS], 0, 0) / (double)n : 0;
  while (wr_take(w, 0, rows, 1, &begin, &end))
    for (int64_t r = begin; r < end; r++) {
      const int64_t t = target_of(c, XENT_BWD_TARGETS, r, V);
      const double lse = wr_get(&c->args[XENT_BWD_LSE], r, 0);
      for (int64_t v = 0; v < V; v++)
        wr_ref_put(c, XENT_BWD_DLOGITS, r, v, t < 0 ? 0 : scale * (exp(wr_get(logits, r, v) - lse) - (v == t)));
    }
}
