/* optim: one step of an optimiser over one parameter, and what goes before it.
 *
 * adamw  param, m, v (updated), grad; from the registers step (from 1), lr, grad_scale (0 means 1), found_inf
 *   g = grad * grad_scale
 *   param -= lr * weight_decay * param
 *   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g²
 *   param -= lr / (1 - beta1^step) * m / (sqrt(v / (1 - beta2^step)) + eps)
 *   Nothing changes when found_inf is not 0. All four have one layout, any.
 *
 * sgd    param, grad, m (updated; optional); registers as of adamw
 *   g = grad * grad_scale + weight_decay param;   m = momentum m + g, then with nesterov g = g + momentum m, else g = m
 *   param -= lr g
 *   as torch.optim.SGD computes it: the decay is part of the gradient. Without m there is no momentum.
 *
 * sumsq  x -> y[1], F64: the sum of squares. In FP32 over fixed pieces of 1,024 elements, which are added in double in ascending order; above
 *        1e19 an element's square is infinite. Not a number when x has one, so that the first such gradient can be named.
 *
 * Each takes any layout, one for all its arguments; padding is zero and stays zero.
 *
 * Reference: Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization, as torch.optim.AdamW computes it. */
#ifndef WR_OPS_OPTIM_H
#define WR_OPS_OPTIM_H

#include "core/core.h"
#include "ops/optim/muon.h"

typedef struct wr_adamw_params {
  double beta1, beta2, eps, weight_decay;
} wr_adamw_params;

typedef struct wr_sgd_params {
  double momentum, weight_decay;
  bool nesterov;
} wr_sgd_params;

void wr_adamw(wr_program *p, int param, int grad, int m, int v, const wr_adamw_params *params);
void wr_sgd(wr_program *p, int param, int grad, int m, const wr_sgd_params *params); /* m: WR_NONE without momentum */
int wr_sumsq(wr_program *p, int x);                                                  /* -> y[1], F64 */

#endif
