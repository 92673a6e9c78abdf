/* elementwise: sums and activations, element by element.
 *
 * add         a, b of one shape -> y = a + b
 * axpby       a, b of one shape (b optional) -> y = alpha a + beta b + gamma I      gamma I: gamma where row and column are one; rank 2
 * glu         gate, up of one shape -> y = act(gate) up     SwiGLU with silu, GEGLU with gelu
 * glu_bwd     dy, gate, up -> dgate = dy up act'(gate),  dup = dy act(gate);  each only if wanted, each may be added to
 * gelu        x -> y = gelu(x)
 * gelu_bwd    dy, x -> dx = dy gelu'(x);  may be added to
 * softcap     x -> y = cap tanh(x / cap)
 * dropout     x -> y = x / (1 - rate) where the element's bits are at least rate, else 0; its gradient is the same of dy, so nothing is saved
 *   The bits of element i of row r: word i / 16 mod 4 of Philox4x32-10 with key `seed` and counter (i / 64 * 16 + i mod 16, r, step, name),
 *   low word first; seed and step are registers: each micro-step counts as a step of its own. The bits depend on the value's name,
 *   not on its place in the program: passes never change them.
 *
 * act:
 *   silu(x) = x s(x),     s(x) = 1 / (1 + e^-x)                        silu'(x) = s (1 + x (1 - s))
 *   gelu(x) = x s(2 u),   u = sqrt(2 / pi) (x + 0.044715 x^3)          gelu'(x) = s + 2 x s (1 - s) u',  u' = sqrt(2 / pi) (1 + 0.134145 x^2)
 *
 * References: Hendrycks and Gimpel 2016 (GELU; the form with tanh, x / 2 (1 + tanh u), which GPT-2 and Gemma have); Shazeer 2020 (gated
 * units); Srivastava et al. 2014 (dropout); Salmon et al. 2011 (Philox).
 */
#ifndef WR_OPS_ELEMENTWISE_H
#define WR_OPS_ELEMENTWISE_H

#include "core/core.h"

typedef struct wr_axpby_params {
  float alpha, beta, gamma;
} wr_axpby_params;

int wr_axpby(wr_program *p, float alpha, int a, float beta, int b, float gamma); /* b: WR_NONE without */
int wr_add(wr_program *p, int a, int b);

typedef enum wr_act { WR_SILU, WR_GELU } wr_act;
typedef struct wr_glu_params { wr_act act; } wr_glu_params;
int wr_glu(wr_program *p, wr_act act, int gate, int up);
int wr_gelu(wr_program *p, int x);

typedef struct wr_softcap_params { float cap; } wr_softcap_params; /* above 0 */
int wr_softcap(wr_program *p, int x, float cap);

typedef struct wr_dropout_params {
  float rate;    /* in [0, 1) */
  uint32_t name; /* hash of the value's name */
} wr_dropout_params;

int wr_dropout(wr_program *p, int x, float rate, const char *name);

#endif
