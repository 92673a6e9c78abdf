/* The definition of the matmul family: see matmul.h for the equations. Any dtype and layout of w, sums in double. */
#include <math.h>

#include "ops/matmul/matmul.h"
#include "ops/matmul/matmul_i.h"
#include "ops/ref_i.h"

WR_ROW_FN(matmul_ref);
WR_ROW_FN(matmul_dx_ref);
WR_ROW_FN(matmul_dw_ref);

/* Pieces of a row of weights, decoded: long enough to be quick, whole blocks of every type. */
enum { PIECE = 256 };

/* w[n, k .. k + PIECE), or to the end of the row. Returns how many. */
static int64_t weights_at(const wr_arg *w, int64_t n, int64_t k, double *dst) {
  const int64_t count = WR_MIN((int64_t)PIECE, wr_inner(w) - k);
  if (w->dtype == WR_F64) {
    for (int64_t i = 0; i < count; i++) dst[i] = wr_get(w, n, k + i);
    return count;
  }
  float piece[PIECE];
  wr_row_to_float(w, n, k, count, piece);
  for (int64_t i = 0; i < count; i++) dst[i] = (double)piece[i];
  return count;
}

/* 1 / rms of a row of x where a norm is fused, else 1. */
static double norm_scale(const wr_call *c, int64_t m) {
  const wr_arg *x = &c->args[WR_MM_X];
  const int64_t K = wr_inner(x);
  double sum = 0;
  if (!c->args[WR_MM_NORM].data) return 1;
  for (int64_t k = 0; k < K; k++) sum += wr_get(x, m, k) * wr_get(x, m, k);
  return 1 / sqrt(sum / (double)K + (double)((const wr_matmul_params *)c->params)->eps);
}

/* Row m of x times row n of w. */
static double product(const wr_call *c, const wr_arg *wt, int64_t m, int64_t n) {
  const wr_arg *x = &c->args[WR_MM_X], *norm = &c->args[WR_MM_NORM];
  const int64_t K = wr_inner(x);
  double sum = 0, piece[PIECE];
  for (int64_t k = 0; k < K; k += PIECE) {
    const int64_t count = weights_at(wt, n, k, piece);
    for (int64_t i = 0; i < count; i++) sum += wr_get(x, m, k + i) * (norm->data ? wr_get(norm, k + i, 0) : 1) * piece[i];
  }
  return sum * norm_scale(c, m);
}

WR_ROW_FN(matmul_ref) {
  const wr_arg *wt = &c->args[WR_MM_W], *bias = &c->args[WR_MM_BIAS], *res = &c->args[WR_MM_RES], *up = &c->args[WR_MM_UP];
  const int64_t rows = wr_live_rows(c, WR_MM_X);
  int64_t begin, end;
  while (wr_take(w, 0, wt->ext[0], 1, &begin, &end))
    for (int64_t n = begin; n < end; n++)
      for (int64_t m = 0; m < rows; m++) {
        double sum = product(c, wt, m, n);
        if (up->data) sum = wr_ref_act(((const wr_matmul_params *)c->params)->act, sum) * product(c, up, m, n);
        if (bias->data) sum += wr_get(bias, n, 0);
        if (res->data) sum += wr_get(res, m, n);
        wr_ref_put(c, WR_MM_Y, m, n, sum);
      }
}

WR_ROW_FN(matmul_dx_ref) {
  const wr_arg *dy = &c->args[WR_MM_DX_DY], *wt = &c->args[WR_MM_DX_W];
  const int64_t N = wt->ext[0], K = wr_inner(wt);
  int64_t begin, end;
  while (wr_take(w, 0, wr_live_rows(c, WR_MM_DX_DY), 1, &begin, &end))
    for (int64_t m = begin; m < end; m++)
      for (int64_t k = 0; k < K; k += PIECE) {
        double sum[PIECE] = {0}, piece[PIECE];
        int64_t count = 0;
        for (int64_t n = 0; n < N; n++) {
          const double d = wr_get(dy, m, n);
          count = weights_at(wt, n, k, piece);
          for (int64_t i = 0; i < count; i++) sum[i] += d * piece[i];
        }
        for (int64_t i = 0; i < count; i++) wr_ref_put(c, WR_MM_DX_DX, m, k + i, sum[i]);
      }
}

WR_ROW_FN(matmul_dw_ref) {
  const wr_arg *dy = &c->args[WR_MM_DW_DY], *x = &c->args[WR_MM_DW_X];
  const int64_t rows = wr_live_rows(c, WR_MM_DW_X), K = wr_inner(x);
  int64_t begin, end;
  while (wr_take(w, 0, wr_inner(dy), 1, &begin, &end))
    for (int64_t n = begin; n < end; n++) {
      double bias = 0;
      for (int64_t m = 0; m < rows; m++) bias += wr_get(dy, m, n);
      wr_ref_put(c, WR_MM_DW_DBIAS, n, 0, bias);
      for (int64_t k = 0; k < K; k++) {
        double sum = 0;
        for (int64_t m = 0; m < rows; m++) sum += wr_get(dy, m, n) * wr_get(x, m, k);
        wr_ref_put(c, WR_MM_DW_DW, n, k, sum);
      }
    }
}
