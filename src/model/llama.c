/* The step of the Llama family:
 *
 *   layer: h = rmsnorm(x); q, k, v = h Wq, h Wk, h Wv; q, k turned by their positions; k, v stored in the cache
 *          x = x + attention(q, cache) Wo;  h = rmsnorm(x);  x = x + (silu(h Wgate) * (h Wup)) Wdown
 *   hidden = rmsnorm(x)
 *
 * References: Touvron et al. 2023; Shazeer 2020 (SwiGLU); Peng et al. 2023 (YaRN). */
#include <math.h>

#include "model/step_i.h"
#include "ops/ops.h"

/* Into heads: [rows, heads, width]. */
static int project(wr_step_builder *b, int x, wr_tensor_id w, wr_tensor_id bias, int64_t heads) {
  const int matrix = wr_step_weight(b, b->layer, w);
  const int add = wr_step_weight(b, b->layer, bias);
  return wr_matmul_heads(b->p, x, matrix, add, WR_NONE, heads);
}

static int norm(wr_step_builder *b, int x, int layer, wr_tensor_id id) {
  return wr_rmsnorm(b->p, x, wr_step_weight(b, layer, id), (float)b->m->h.eps);
}

/* freqs: frequency factors, or WR_NONE */
static int attention(wr_step_builder *b, int x, int freqs, const wr_rope_params *rope) {
  const wr_hparams *h = &b->m->h;
  const int n = norm(b, x, b->layer, WR_T_ATTN_NORM);
  int q = project(b, n, WR_T_ATTN_Q, WR_T_ATTN_Q_BIAS, h->heads);
  int k = project(b, n, WR_T_ATTN_K, WR_T_ATTN_K_BIAS, h->kv_heads);
  const int v = project(b, n, WR_T_ATTN_V, WR_T_ATTN_V_BIAS, h->kv_heads);
  q = wr_rope(b->p, q, b->io->pos, freqs, rope);
  k = wr_rope(b->p, k, b->io->pos, freqs, rope);
  return wr_step_attention(b, x, q, k, v);
}

static int feed_forward(wr_step_builder *b, int x) {
  const int n = norm(b, x, b->layer, WR_T_FFN_NORM);
  const int gate = wr_step_linear(b, n, WR_T_FFN_GATE, WR_T_FFN_GATE_BIAS, WR_NONE);
  const int up = wr_step_linear(b, n, WR_T_FFN_UP, WR_T_FFN_UP_BIAS, WR_NONE);
  const int mixed = wr_glu(b->p, WR_SILU, gate, up);
  return wr_step_linear(b, mixed, WR_T_FFN_DOWN, WR_T_FFN_DOWN_BIAS, x);
}

static wr_rope_params rope_of(const wr_hparams *h) {
  wr_rope_params r = {.n_dims = (int)h->rope_dims,
                      .neox = h->arch->rope == WR_ROPE_HALVES,
                      .theta = (float)h->rope_base,
                      .freq_scale = 1,
                      .attn_factor = (float)h->rope_attn_factor};
  if (h->scaling != WR_SCALING_NONE) r.freq_scale = (float)(1 / h->rope_factor);
  if (h->scaling == WR_SCALING_YARN) {
    r.ext_factor = (float)h->yarn_ext_factor;
    /* The key is transformers' attention_factor: in the place of what the op derives from the scale, not on top of it. */
    const double derived = h->yarn_ext_factor != 0 ? 1 + 0.1 * log(fmax(h->rope_factor, 1)) : 1;
    if (h->yarn_attn_factor > 0) r.attn_factor = (float)(h->rope_attn_factor * h->yarn_attn_factor / derived);
    r.beta_fast = (float)h->yarn_beta_fast;
    r.beta_slow = (float)h->yarn_beta_slow;
    r.orig_ctx = (int)WR_MIN(h->rope_orig_tok ? h->rope_orig_tok : h->trained_tok, (int64_t)INT32_MAX);
  }
  return r;
}

int wr_step_llama(wr_step_builder *b, int x) {
  const wr_rope_params rope = rope_of(&b->m->h);
  const int freqs = wr_step_weight(b, -1, WR_T_ROPE_FREQS);
  for (b->layer = 0; b->layer < b->m->h.layers; b->layer++) {
    x = attention(b, x, freqs, &rope);
    x = feed_forward(b, x);
  }
  return norm(b, x, -1, WR_T_OUTPUT_NORM);
}
