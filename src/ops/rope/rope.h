/* rope: rotary position embedding.
 *
 * rope_table  pos[R], freq_factors[n/2] or absent -> table[R, n]: n/2 cosines, then n/2 sines; n = n_dims
 *   slow_i  = freq_scale fast_i            fast_i = pos theta^(-2i/n) / freq_factors_i
 *   angle_i = slow_i + mix_i (fast_i - slow_i)
 *   mix_i   = ext_factor (1 - clamp((i - low) / max(high - low, 0.001), 0, 1))             YaRN; without it 0: linear scaling
 *   low     = max(floor(turns(beta_fast)), 0),  high = min(ceil(turns(beta_slow)), n - 1)
 *   turns(b) = n ln(orig_ctx / (2 pi b)) / (2 ln theta)            the pair that makes b turns within orig_ctx
 *   m       = attn_factor (1 + 0.1 ln max(1 / freq_scale, 1) where ext_factor is not 0)
 *   table   = m cos(angle_i), m sin(angle_i)
 * rope        x[R, heads, Dh], table[R, n] -> y: in each head the pairs (a, b) become (a cos - b sin, b cos + a sin);
 *   inverse: sin is negated.
 *   Pair i is (2i, 2i+1), or (i, i + n/2) in NeoX order. Elements from n on are copied. Its gradient is the inverse rotation.
 *
 * The angles depend on positions alone, so a program computes them once: wr_rope looks for a table that was made of the same
 * values and parameters. Angles and their cosines are computed in double: at position 100,000 FP32 angles are off by 1/200.
 *
 * References: Su et al. 2021 (RoFormer); Peng et al. 2023 (YaRN).
 */
#ifndef WR_OPS_ROPE_H
#define WR_OPS_ROPE_H

#include "core/core.h"

typedef struct wr_rope_params {
  int n_dims; /* even; how much of a head turns. 0: the whole head */
  bool neox, inverse;
  float theta;                   /* 0: 10000 */
  float freq_scale;              /* 1 / the factor of linear or YaRN scaling. 0: 1 */
  float ext_factor, attn_factor; /* YaRN: 1, 1; attn_factor 0: 1 */
  float beta_fast, beta_slow;    /* YaRN: 32, 1. 0: these */
  int orig_ctx;                  /* YaRN: context before the extension */
} wr_rope_params;

typedef struct wr_rope_table_params {
  wr_rope_params rope;
  int dtype;
} wr_rope_table_params; /* F32 or F64: of the table */
typedef struct wr_rope_turn_params {
  bool neox, inverse;
} wr_rope_turn_params;

int wr_rope(wr_program *p, int x, int pos, int freq_factors, const wr_rope_params *params); /* freq_factors: WR_NONE for none */

#endif
