/* The definition of the loss family: see loss.h for the equations. */
#include <math.h>

#include "ops/loss/loss.h"
#include "ops/loss/loss_i.h"
#include "ops/ref_i.h"

WR_ROW_FN(xent_ref);
WR_ROW_FN(xent_bwd_ref);
WR_ROW_FN(head_xent_ref);
WR_ROW_FN(head_xent_bwd_ref);
size_t xent_ref_scratch(const wr_call *c, int n_threads);
size_t head_xent_ref_scratch(const wr_call *c, int n_threads);
size_t head_xent_bwd_ref_scratch(const wr_call *c, int n_threads);

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

/* ---- with the product before: logits of one row at a time, in a thread's scratch; then a loss and an lse for each row */

static size_t head_scratch(const wr_arg *x, const wr_arg *w, int n_threads) {
  return (size_t)(2 * x->ext[0] + n_threads * w->ext[0]) * sizeof(double);
}
size_t head_xent_ref_scratch(const wr_call *c, int n_threads) {
  return head_scratch(&c->args[HEAD_X], &c->args[HEAD_W], n_threads);
}
size_t head_xent_bwd_ref_scratch(const wr_call *c, int n_threads) {
  return head_scratch(&c->args[HEAD_BWD_X], &c->args[HEAD_BWD_W], n_threads);
}

static double logit(const wr_arg *x, const wr_arg *w, int64_t r, int64_t v) {
  double sum = 0;
  for (int64_t d = 0; d < x->ext[1]; d++) sum += wr_get(x, r, d) * wr_get(w, v, d);
  return sum;
}

/* Logits of row r, their log-sum, and the loss (0: the row does not count). */
static void head_row(const wr_call *c, int x_arg, int targets, int64_t r, double *logits, double *lse, double *loss) {
  const wr_arg *x = &c->args[x_arg], *w = &c->args[x_arg + 1];
  const int64_t V = w->ext[0], t = target_of(c, targets, r, V);
  double max = -INFINITY, sum = 0;
  for (int64_t v = 0; v < V; v++) logits[v] = logit(x, w, r, v), max = fmax(max, logits[v]);
  for (int64_t v = 0; v < V; v++) sum += exp(logits[v] - max);
  *lse = max + log(sum);
  *loss = t < 0 ? 0 : *lse - logits[t];
}

static int64_t counted(const wr_call *c, int targets, int64_t rows, int64_t V) {
  int64_t n = 0;
  for (int64_t r = 0; r < rows; r++) n += target_of(c, targets, r, V) >= 0;
  return n;
}

static void put_mean(const wr_call *c, int arg, const double *row_loss, int64_t rows, int64_t n) {
  double total = 0;
  for (int64_t r = 0; r < rows; r++) total += row_loss[r];
  wr_ref_put(c, arg, 0, 0, n ? total / (double)n : 0);
}

WR_ROW_FN(head_xent_ref) {
  const int64_t R = c->args[HEAD_X].ext[0], V = c->args[HEAD_W].ext[0], rows = wr_live_rows(c, HEAD_X);
  double *row_loss = c->scratch, *lse = row_loss + R, *logits = lse + R + w->tid * V;
  int64_t begin, end;
  while (wr_take(w, 0, rows, 1, &begin, &end))
    for (int64_t r = begin; r < end; r++) head_row(c, HEAD_X, HEAD_TARGETS, r, logits, &lse[r], &row_loss[r]);
  wr_barrier(w);
  if (!w->tid) put_mean(c, HEAD_LOSS, row_loss, rows, counted(c, HEAD_TARGETS, rows, V));
}

WR_ROW_FN(head_xent_bwd_ref) {
  const wr_arg *x = &c->args[HEAD_BWD_X], *wt = &c->args[HEAD_BWD_W];
  const int64_t R = x->ext[0], D = x->ext[1], V = wt->ext[0], rows = wr_live_rows(c, HEAD_BWD_X);
  const int64_t n = counted(c, HEAD_BWD_TARGETS, rows, V);
  const double scale = n ? wr_get(&c->args[HEAD_BWD_DLOSS], 0, 0) / (double)n : 0;
  double *row_loss = c->scratch, *lse = row_loss + R, *logits = lse + R + w->tid * V;
  int64_t begin, end;
  while (wr_take(w, 0, rows, 1, &begin, &end))
    for (int64_t r = begin; r < end; r++) {
      const int64_t t = target_of(c, HEAD_BWD_TARGETS, r, V);
      head_row(c, HEAD_BWD_X, HEAD_BWD_TARGETS, r, logits, &lse[r], &row_loss[r]);
      for (int64_t d = 0; d < D && c->args[HEAD_BWD_DX].data; d++) {
        double sum = 0;
        for (int64_t v = 0; v < V && t >= 0; v++) sum += (exp(logits[v] - lse[r]) - (v == t)) * wr_get(wt, v, d);
        wr_ref_put(c, HEAD_BWD_DX, r, d, scale * sum);
      }
    }
  wr_barrier(w);
  if (!w->tid) put_mean(c, HEAD_BWD_LOSS, row_loss, rows, n);
  if (!c->args[HEAD_BWD_DW].data) return;
  /* rows of dw in groups: packed rows of one group share lines, and the rows that the last one lacks are zero */
  const wr_arg *dw = &c->args[HEAD_BWD_DW];
  const size_t group_bytes = wr_layout_row_bytes((wr_layout)dw->layout, (wr_dtype)dw->dtype, D);
  const int64_t in_group = dw->layout == WR_PLAIN ? 1 : WR_PACK_ROWS;
  while (wr_take(w, 1, (V + in_group - 1) / in_group, 1, &begin, &end))
    for (int64_t g = begin; g < end; g++) {
      if (!(c->acc >> HEAD_BWD_DW & 1)) memset((char *)dw->data + g * dw->stride_bytes, 0, group_bytes);
      for (int64_t v = g * in_group; v < WR_MIN((g + 1) * in_group, V); v++)
        for (int64_t r = 0; r < rows; r++) {
          const int64_t t = target_of(c, HEAD_BWD_TARGETS, r, V);
          if (t < 0) continue;
          const double slope = scale * (exp(logit(x, wt, r, v) - lse[r]) - (v == t));
          for (int64_t d = 0; d < D; d++) wr_set(dw, v, d, wr_get(dw, v, d) + slope * wr_get(x, r, d));
        }
    }
}
