/* The step of Gemma 2 and 3:
 *
 *   x = sqrt(width) x
 *   layer: h = rmsnorm(x); q, k, v = h Wq, h Wk, h Wv; Gemma 3: q, k = rmsnorm(q), rmsnorm(k), each head by itself
 *          q, k turned by their positions; k, v stored in the cache
 *          x = x + rmsnorm(attention(q, cache) Wo);  h = rmsnorm(x);  x = x + rmsnorm((gelu(h Wgate) * (h Wup)) Wdown)
 *   hidden = rmsnorm(x)
 *
 * Most layers attend through a window (wr_layer_window). In Gemma 3 these turn with a base of their own and without the scaling that
 * stretches the others. Norms multiply by their weight: converters have added the 1 that the published ones leave out. Soft caps are
 * hyper-parameters.
 *
 * References: Gemma Team 2024 (Gemma 2), 2025 (Gemma 3). */
#include <math.h>

#include "model/step_i.h"
#include "ops/ops.h"

/* Of the scores. The two 27B models alone, of 46 and 62 layers, do not go by the width of a key; no key of the file says so. */
static double attention_scale(const wr_hparams *h) {
  const int64_t layers_27b = h->arch->block == WR_BLOCK_GEMMA2 ? 46 : 62;
  return 1 / sqrt((double)(h->layers == layers_27b ? h->width / h->heads : h->key_width));
}

/* q or k as it is stored: each head normal (Gemma 3), then turned. */
static int turned(wr_step_builder *b, int x, wr_tensor_id id, const wr_rope_params *rope) {
  if (b->m->h.arch->block == WR_BLOCK_GEMMA3) x = wr_step_norm(b, x, b->layer, id);
  return wr_rope(b->p, x, b->io->pos, WR_NONE, rope);
}

static int attention(wr_step_builder *b, int x, const wr_rope_params *rope) {
  const wr_hparams *h = &b->m->h;
  const int n = wr_step_norm(b, x, b->layer, WR_T_ATTN_NORM);
  int q = wr_step_heads(b, n, WR_T_ATTN_Q, WR_T_ATTN_Q_BIAS, h->heads);
  int k = wr_step_heads(b, n, WR_T_ATTN_K, WR_T_ATTN_K_BIAS, h->kv_heads);
  const int v = wr_step_heads(b, n, WR_T_ATTN_V, WR_T_ATTN_V_BIAS, h->kv_heads);
  q = turned(b, q, WR_T_ATTN_Q_NORM, rope);
  k = turned(b, k, WR_T_ATTN_K_NORM, rope);
  const int mixed = wr_step_mix(b, &x, q, k, v, attention_scale(h));
  const int y = wr_step_linear(b, mixed, WR_T_ATTN_OUTPUT, WR_T_ATTN_OUTPUT_BIAS, WR_NONE);
  const int normal = wr_step_norm(b, y, b->layer, WR_T_ATTN_POST_NORM);
  return wr_add(b->p, x, normal);
}

static int feed_forward(wr_step_builder *b, int x) {
  const int n = wr_step_norm(b, x, b->layer, WR_T_FFN_NORM);
  const int y = wr_step_gated(b, n, WR_GELU, WR_NONE);
  const int normal = wr_step_norm(b, y, b->layer, WR_T_FFN_POST_NORM);
  return wr_add(b->p, x, normal);
}

int wr_step_gemma(wr_step_builder *b, int x) {
  const wr_hparams *h = &b->m->h;
  const wr_rope_params far = wr_step_rope(h);
  wr_rope_params near = far;
  near.theta = (float)h->rope_base_window;
  if (h->arch->block == WR_BLOCK_GEMMA3) near = (wr_rope_params){.n_dims = far.n_dims, .neox = far.neox, .theta = near.theta};
  x = wr_axpby(b->p, sqrtf((float)h->width), x, 0, WR_NONE, 0);
  for (b->layer = 0; b->layer < h->layers; b->layer++) {
    x = attention(b, x, wr_layer_window(h, b->layer) ? &near : &far);
    x = feed_forward(b, x);
  }
  return wr_step_norm(b, x, -1, WR_T_OUTPUT_NORM);
}
