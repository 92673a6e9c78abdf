/* loss: cross-entropy of a categorical prediction, and its gradient.
 *
 * xent      logits[R,V], targets[R] (token ids; -1: the row does not count) -> loss[1]; lse[R] (saved for the gradient)
 *   lse_r = log sum_v exp(logits_rv)      (the row's maximum is taken out first)
 *   loss  = 1/n sum over the n rows that count of lse_r - logits_r,target_r      in nats; 0 when none counts
 * xent_bwd  dloss[1], logits, targets, lse -> dlogits like logits
 *   dlogits_rv = dloss / n * (exp(logits_rv - lse_r) - [v = target_r]);  0 in rows that do not count
 *
 * A target that is no id of the vocabulary does not count either: tables come from outside. */
#ifndef WR_OPS_LOSS_H
#define WR_OPS_LOSS_H

#include "core/core.h"

int wr_xent(wr_program *p, int logits, int targets); /* -> loss[1] */

#endif
