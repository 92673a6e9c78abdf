/* norm: RMSNorm over the last dimension, and its gradient.
 *
 * rmsnorm      x[R, G.., D], w[D] or absent -> y like x; rstd[R, G] (saved for the gradient)
 *   G: the dimensions between, 1 for rank 2
 *   rstd = 1 / sqrt(mean_d x_d^2 + eps)
 *   y_d  = x_d rstd w_d
 * rmsnorm_bwd  dy, x, w, rstd -> dx like x, dw[D]; each only if wanted, each may be added to
 *   c    = rstd^3 / D * sum_d dy_d w_d x_d
 *   dx_d = rstd w_d dy_d - c x_d
 *   dw_d = sum over rows of dy_d x_d rstd, rows ascending
 */
#ifndef WR_OPS_NORM_H
#define WR_OPS_NORM_H

#include "core/core.h"

typedef struct wr_rmsnorm_params {
  float eps;
} wr_rmsnorm_params;

int wr_rmsnorm(wr_program *p, int x, int w, float eps); /* w: WR_NONE for none */

#endif
