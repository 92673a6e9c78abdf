/* The step of the Llama family:
 *
 *   layer: h = rmsnorm(x); q, k, v = h Wq, h Wk, h Wv; q, k turned by their positions; k, v stored in the cache
 *          x = x + attention(q, cache) Wo;  h = rmsnorm(x);  x = x + (silu(h Wgate) * (h Wup)) Wdown
 *   hidden = rmsnorm(x)
 *
 * References: Touvron et al. 2023; Shazeer 2020 (SwiGLU). */
#include "model/step_i.h"
#include "ops/ops.h"

/* freqs: frequency factors, or WR_NONE */
static int attention(wr_step_builder *b, int x, int freqs, const wr_rope_params *rope) {
  const wr_hparams *h = &b->m->h;
  const int n = wr_step_norm(b, x, b->layer, WR_T_ATTN_NORM);
  int q = wr_step_heads(b, n, WR_T_ATTN_Q, WR_T_ATTN_Q_BIAS, h->heads);
  int k = wr_step_heads(b, n, WR_T_ATTN_K, WR_T_ATTN_K_BIAS, h->kv_heads);
  const int v = wr_step_heads(b, n, WR_T_ATTN_V, WR_T_ATTN_V_BIAS, h->kv_heads);
  q = wr_rope(b->p, q, b->io->pos, freqs, rope);
  k = wr_rope(b->p, k, b->io->pos, freqs, rope);
  return wr_step_attention(b, x, q, k, v);
}

static int feed_forward(wr_step_builder *b, int x) {
  const int n = wr_step_norm(b, x, b->layer, WR_T_FFN_NORM);
  return wr_step_gated(b, n, WR_SILU, x);
}

int wr_step_llama(wr_step_builder *b, int x) {
  const wr_rope_params rope = wr_step_rope(&b->m->h);
  const int freqs = wr_step_weight(b, -1, WR_T_ROPE_FREQS);
  for (b->layer = 0; b->layer < b->m->h.layers; b->layer++) {
    x = attention(b, x, freqs, &rope);
    x = feed_forward(b, x);
  }
  return wr_step_norm(b, x, -1, WR_T_OUTPUT_NORM);
}
