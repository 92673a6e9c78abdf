/* loss: cross-entropy of a categorical prediction, alone and with the product before it, and their gradients.
 *
 * xent      logits[R,V], targets[R] (token ids; -1: the row does not count) -> loss[1]; lse[R] (saved for the gradient)
 *   lse_r = log sum_v exp(logits_rv)      (the row's maximum is taken out first)
 *   loss  = 1/n sum over the n rows that count of lse_r - logits_r,target_r      in nats; 0 when none counts
 * xent_bwd  dloss[1], logits, targets, lse -> dlogits like logits
 *   dlogits_rv = dloss / n * (exp(logits_rv - lse_r) - [v = target_r]);  0 in rows that do not count
 *
 * head_xent      x[R,D], w[V,D], targets[R] -> loss[1], that of xent with logits_rv = x_r . w_v, which the CPU makes in pieces of rows, so
 *   that they never exist whole; other devices have room for them
 * head_xent_bwd  dloss[1], x, w, targets -> loss[1], dx like x, dw like w; each only if wanted, dx and dw may be added to
 *   dx_r = sum_v dlogits_rv w_v;  dw_v = sum_r dlogits_rv x_r;  dlogits as of xent_bwd
 *   It is one pass: where nothing else reads the loss before, the gradient's instruction takes the place of head_xent, and a training step
 *   makes logits once.
 *
 * A target that is no id of the vocabulary does not count either: tables come from outside. */
#ifndef WR_OPS_LOSS_H
#define WR_OPS_LOSS_H

#include "core/core.h"

int wr_xent(wr_program *p, int logits, int targets);          /* -> loss[1] */
int wr_head_xent(wr_program *p, int x, int w, int targets); /* -> loss[1] */

#endif
