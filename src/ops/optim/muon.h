/* muon: momentum, made orthogonal, for matrices of hidden layers; tables, norms and biases take adamw.
 *
 * muon_direction  m (updated), grad -> u like them, any layout; register grad_scale
 *   m = momentum m + (1 - momentum) g,  g = grad grad_scale;   u = (1 - momentum) g + momentum m (Nesterov);   u = u / max(|u|, eps)
 *   m does not change when found_inf is not 0.
 * muon_apply      param (updated), u, of one layout; registers lr, found_inf
 *   param = param (1 - lr weight_decay) - lr scale u
 *
 * wr_muon emits the whole step of one parameter of R x C:
 *   X = u; five times: A = X X^T (R <= C, else X^T X), X = (a + b A + c A^2) X (else X (a + b A + c A^2));  a, b, c = 3.4445, -4.7750, 2.0315
 *   applied with scale 0.2 sqrt(max(R, C)): the update has the root mean square of AdamW's, whose learning rate and decay it takes
 * as torch.optim.Muon with adjust_lr_fn="match_rms_adamw" computes it, but in FP32.
 *
 * References: Jordan et al. 2024, Muon; Liu et al. 2025, Muon is Scalable for LLM Training. */
#ifndef WR_OPS_MUON_H
#define WR_OPS_MUON_H

#include "core/core.h"

typedef struct wr_muon_params {
  double momentum, weight_decay; /* 0.95, 0.1 */
  double eps;                    /* 0: 1e-7 */
  int steps;                     /* of Newton-Schulz; 0: 5 */
} wr_muon_params;

typedef struct wr_muon_apply_params {
  double scale, weight_decay;
} wr_muon_apply_params;

/* param: [R, C] F32 in plain or pack16, grad and momentum like it. */
void wr_muon(wr_program *p, int param, int grad, int momentum, const wr_muon_params *params);

#endif
