/* optim: one step of an optimiser over one parameter.
 *
 * adamw  param, m, v (updated), grad; from the registers step (from 1), lr, grad_scale (0 means 1), found_inf
 *   g = grad * grad_scale
 *   param -= lr * weight_decay * param
 *   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g²
 *   param -= lr / (1 - beta1^step) * m / (sqrt(v / (1 - beta2^step)) + eps)
 *   Nothing changes when found_inf is not 0. All four have one layout, any.
 *
 * Reference: Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization, as torch.optim.AdamW computes it. */
#ifndef WR_OPS_OPTIM_H
#define WR_OPS_OPTIM_H

#include "core/core.h"

typedef struct wr_adamw_params {
  double beta1, beta2, eps, weight_decay;
} wr_adamw_params;

void wr_adamw(wr_program *p, int param, int grad, int m, int v, const wr_adamw_params *params);

#endif
