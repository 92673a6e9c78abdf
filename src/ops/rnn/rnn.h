/* rnn: a recurrent layer over a whole sequence as one op, so that a kernel may keep its weights on chip over all time steps.
 *
 * rnn (LSTM)  x[T,B,D], w_ih[4H,D], w_hh[4H,H], bias[4H] or absent, h0[B,H] and c0[B,H] or absent (zero)
 *             -> y[T,B,H], hT[B,H], cT[B,H]; saved for the gradient: gates[T,B,4H] after activation, cells[T,B,H]
 *   a   = W_ih x_t + W_hh h_{t-1} + b          rows of the weights in the order i, f, g, o (PyTorch's)
 *   i, f, o = sigmoid(a_i), sigmoid(a_f), sigmoid(a_o);  g = tanh(a_g)
 *   c_t = f c_{t-1} + i g;  h_t = o tanh(c_t);  y_t = h_t
 * rnn_bwd     from dy, dhT, dcT (each may be absent) -> dx, dw_ih, dw_hh, dbias, dh0, dc0, each only if wanted. Backwards over t:
 *   dh = dy_t + W_hhᵀ da_{t+1} (dhT at the end);  dc = dh o (1 - tanh² c_t) + f_{t+1} dc_{t+1} (dcT at the end)
 *   da_i = dc g i(1-i);  da_f = dc c_{t-1} f(1-f);  da_g = dc i (1-g²);  da_o = dh tanh(c_t) o(1-o)
 *   dx_t = W_ihᵀ da_t;  dW_ih = sum_t da_t x_tᵀ;  dW_hh = sum_t da_t h_{t-1}ᵀ;  db = sum_t da_t
 *
 * One bias: PyTorch's two are added by whoever loads them. State is folded: it cannot be rewound by truncation.
 * Reference: Hochreiter and Schmidhuber 1997, Long Short-Term Memory, in the form with forget gates of Gers et al. 2000. */
#ifndef WR_OPS_RNN_H
#define WR_OPS_RNN_H

#include "core/core.h"

/* Outputs of wr_rnn that a caller may want beside y: WR_NEW to have it (its id is written back), WR_NONE not to. */
typedef struct wr_rnn_last { int h, c; } wr_rnn_last;
int wr_rnn(wr_program *p, int x, int w_ih, int w_hh, int bias, int h0, int c0, wr_rnn_last *last); /* last: NULL for neither. -> y */

#endif
