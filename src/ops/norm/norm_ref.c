/* The definition of the norm family: see norm.h for the equations. */
#include <math.h>

#include "ops/norm/norm.h"
#include "ops/norm/norm_i.h"
#include "ops/ref_i.h"

WR_ROW_FN(rmsnorm_ref);
WR_ROW_FN(rmsnorm_bwd_ref);
WR_ROW_FN(layernorm_ref);
WR_ROW_FN(layernorm_bwd_ref);

static double weight(const wr_arg *w, int64_t d) { return w->data ? wr_get(w, d, 0) : 1; }

WR_ROW_FN(rmsnorm_ref) {
  const wr_arg *x = &c->args[RMSNORM_X], *w_arg = &c->args[RMSNORM_W];
  const wr_rmsnorm_params *p = c->params;
  int64_t D = x->ext[x->rank - 1], groups = wr_inner(x) / D, begin, end;
  while (wr_take(w, 0, wr_live_rows(c, RMSNORM_X), 1, &begin, &end))
    for (int64_t r = begin; r < end; r++)
      for (int64_t g = 0; g < groups; g++) {
        double sum = 0;
        for (int64_t d = 0; d < D; d++) sum += wr_get(x, r, g * D + d) * wr_get(x, r, g * D + d);
        double rstd = 1 / sqrt(sum / (double)D + (double)p->eps);
        /* y may be x: each element is read for the last time just before it is written */
        for (int64_t d = 0; d < D; d++)
          wr_ref_put(c, RMSNORM_Y, r, g * D + d, wr_get(x, r, g * D + d) * rstd * weight(w_arg, d));
        wr_ref_put(c, RMSNORM_RSTD, r, g, rstd);
      }
}

WR_ROW_FN(rmsnorm_bwd_ref) {
  const wr_arg *dy = &c->args[RMSNORM_BWD_DY], *x = &c->args[RMSNORM_BWD_X], *w_arg = &c->args[RMSNORM_BWD_W];
  const wr_arg *rstd = &c->args[RMSNORM_BWD_RSTD];
  int64_t D = x->ext[x->rank - 1], groups = wr_inner(x) / D, rows = wr_live_rows(c, RMSNORM_BWD_X), begin, end;
  if (c->args[RMSNORM_BWD_DX].data)
    while (wr_take(w, 0, rows, 1, &begin, &end))
      for (int64_t r = begin; r < end; r++)
        for (int64_t g = 0; g < groups; g++) {
          double s = wr_get(rstd, r, g), dot = 0;
          for (int64_t d = 0; d < D; d++) dot += wr_get(dy, r, g * D + d) * weight(w_arg, d) * wr_get(x, r, g * D + d);
          double k = s * s * s / (double)D * dot;
          for (int64_t d = 0; d < D; d++)
            wr_ref_put(c, RMSNORM_BWD_DX, r, g * D + d,
                       s * weight(w_arg, d) * wr_get(dy, r, g * D + d) - k * wr_get(x, r, g * D + d));
        }
  if (c->args[RMSNORM_BWD_DW].data)
    while (wr_take(w, 1, D, 1, &begin, &end))
      for (int64_t d = begin; d < end; d++) {
        double sum = 0;
        for (int64_t r = 0; r < rows; r++)
          for (int64_t g = 0; g < groups; g++) sum += wr_get(dy, r, g * D + d) * wr_get(x, r, g * D + d) * wr_get(rstd, r, g);
        wr_ref_put(c, RMSNORM_BWD_DW, d, 0, sum);
      }
}

WR_ROW_FN(layernorm_ref) {
  const wr_arg *x = &c->args[LAYERNORM_X], *w_arg = &c->args[LAYERNORM_W], *b = &c->args[LAYERNORM_B];
  const wr_layernorm_params *p = c->params;
  int64_t D = x->ext[1], begin, end;
  while (wr_take(w, 0, wr_live_rows(c, LAYERNORM_X), 1, &begin, &end))
    for (int64_t r = begin; r < end; r++) {
      double mean = 0, square = 0;
      for (int64_t d = 0; d < D; d++) mean += wr_get(x, r, d) / (double)D;
      for (int64_t d = 0; d < D; d++) square += (wr_get(x, r, d) - mean) * (wr_get(x, r, d) - mean);
      double rstd = 1 / sqrt(square / (double)D + (double)p->eps);
      for (int64_t d = 0; d < D; d++)
        wr_ref_put(c, LAYERNORM_Y, r, d, (wr_get(x, r, d) - mean) * rstd * weight(w_arg, d) + (b->data ? wr_get(b, d, 0) : 0));
      wr_ref_put(c, LAYERNORM_STATS, r, 0, mean);
      wr_ref_put(c, LAYERNORM_STATS, r, 1, rstd);
    }
}

WR_ROW_FN(layernorm_bwd_ref) {
  const wr_arg *dy = &c->args[LAYERNORM_BWD_DY], *x = &c->args[LAYERNORM_BWD_X], *w_arg = &c->args[LAYERNORM_BWD_W],
               *stats = &c->args[LAYERNORM_BWD_STATS];
  int64_t D = x->ext[1], rows = wr_live_rows(c, LAYERNORM_BWD_X), begin, end;
  if (c->args[LAYERNORM_BWD_DX].data)
    while (wr_take(w, 0, rows, 1, &begin, &end))
      for (int64_t r = begin; r < end; r++) {
        double mean = wr_get(stats, r, 0), rstd = wr_get(stats, r, 1), mean_g = 0, mean_gn = 0;
        for (int64_t d = 0; d < D; d++) {
          double g = wr_get(dy, r, d) * weight(w_arg, d) / (double)D;
          mean_g += g;
          mean_gn += g * (wr_get(x, r, d) - mean) * rstd;
        }
        for (int64_t d = 0; d < D; d++)
          wr_ref_put(c, LAYERNORM_BWD_DX, r, d,
                     rstd * (wr_get(dy, r, d) * weight(w_arg, d) - mean_g - (wr_get(x, r, d) - mean) * rstd * mean_gn));
      }
  while (wr_take(w, 1, D, 1, &begin, &end))
    for (int64_t d = begin; d < end; d++) {
      double dw = 0, db = 0;
      for (int64_t r = 0; r < rows; r++) {
        dw += wr_get(dy, r, d) * (wr_get(x, r, d) - wr_get(stats, r, 0)) * wr_get(stats, r, 1);
        db += wr_get(dy, r, d);
      }
      wr_ref_put(c, LAYERNORM_BWD_DW, d, 0, dw);
      wr_ref_put(c, LAYERNORM_BWD_DB, d, 0, db);
    }
}
