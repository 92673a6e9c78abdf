/* elementwise: sums and gated activations, element by element.
 *
 * add         a, b of one shape -> y = a + b
 * swiglu      gate, up of one shape -> y = silu(gate) up        silu(g) = g s,  s = 1 / (1 + e^-g)
 * swiglu_bwd  dy, gate, up -> dgate = dy up s (1 + g (1 - s)),  dup = dy g s;  each only if wanted, each may be added to
 */
#ifndef WR_OPS_ELEMENTWISE_H
#define WR_OPS_ELEMENTWISE_H

#include "core/core.h"

int wr_add(wr_program *p, int a, int b);
int wr_swiglu(wr_program *p, int gate, int up);

#endif
