/* norm: RMSNorm and LayerNorm over the last dimension, and their gradients.
 *
 * rmsnorm      x[R, G.., D], w[D] or absent -> y like x; rstd[R, G] (saved for the gradient)
 *   G: the dimensions between, 1 for rank 2
 *   rstd = 1 / sqrt(mean_d x_d^2 + eps)
 *   y_d  = x_d rstd w_d
 * rmsnorm_bwd  dy, x, w, rstd -> dx like x, dw[D]; each only if wanted, each may be added to
 *   c    = rstd^3 / D * sum_d dy_d w_d x_d
 *   dx_d = rstd w_d dy_d - c x_d
 *   dw_d = sum over rows of dy_d x_d rstd, rows ascending
 *
 * layernorm      x[R, D], w[D] or absent, b[D] or absent -> y like x; stats[R, 2] (saved for the gradient): mean, rstd
 *   mean = mean_d x_d;  rstd = 1 / sqrt(mean_d (x_d - mean)^2 + eps)
 *   y_d  = n_d w_d + b_d,  n_d = (x_d - mean) rstd
 * layernorm_bwd  dy, x, w, stats -> dx like x, dw[D], db[D]; each only if wanted, each may be added to
 *   dx_d = rstd (g_d - mean_d g_d - n_d mean_d g_d n_d),  g_d = dy_d w_d
 *   dw_d = sum over rows of dy_d n_d;  db_d = sum over rows of dy_d
 *
 * References: Zhang and Sennrich 2019 (RMSNorm); Ba, Kiros and Hinton 2016 (LayerNorm).
 */
#ifndef WR_OPS_NORM_H
#define WR_OPS_NORM_H

#include "core/core.h"

typedef struct wr_rmsnorm_params {
  float eps;
} wr_rmsnorm_params;

typedef struct wr_layernorm_params {
  float eps;
} wr_layernorm_params;

int wr_rmsnorm(wr_program *p, int x, int w, float eps); /* w: WR_NONE for none */
int wr_layernorm(wr_program *p, int x, int w, int b, float eps);

#endif
