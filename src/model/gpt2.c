/* The step of GPT-2:
 *
 *   x = token + position embedding
 *   layer: h = layernorm(x); q, k, v = h Wqkv + b; k, v stored in the cache;  x = x + attention(q, cache) Wo + b
 *          h = layernorm(x);  x = x + gelu(h Wup + b) Wdown + b
 *   hidden = layernorm(x)
 *
 * The file holds q, k and v as one matrix; its three parts are three products here, each of which reads its rows in place.
 * Reference: Radford et al. 2019, Language Models are Unsupervised Multitask Learners. */
#include "model/step_i.h"
#include "ops/ops.h"

static int norm(wr_step_builder *b, int x, int layer, wr_tensor_id weight, wr_tensor_id bias) {
  const int w = wr_step_weight(b, layer, weight);
  const int add = wr_step_weight(b, layer, bias);
  return wr_layernorm(b->p, x, w, add, (float)b->m->h.eps);
}

/* Rows [first, first + heads * width) of Wqkv: [rows, heads, width]. */
static int project(wr_step_builder *b, int x, int64_t first, int64_t heads, int64_t width, const char *suffix) {
  const int matrix = wr_step_rows(b, WR_T_ATTN_QKV, first, heads * width, suffix);
  const int add = wr_step_rows(b, WR_T_ATTN_QKV_BIAS, first, heads * width, suffix);
  return wr_matmul_heads(b->p, x, matrix, add, WR_NONE, heads);
}

static int attention(wr_step_builder *b, int x) {
  const wr_hparams *h = &b->m->h;
  const int64_t q_rows = h->heads * h->key_width, k_rows = h->kv_heads * h->key_width;
  const int n = norm(b, x, b->layer, WR_T_ATTN_NORM, WR_T_ATTN_NORM_BIAS);
  const int q = project(b, n, 0, h->heads, h->key_width, "q");
  const int k = project(b, n, q_rows, h->kv_heads, h->key_width, "k");
  const int v = project(b, n, q_rows + k_rows, h->kv_heads, h->value_width, "v");
  return wr_step_attention(b, x, q, k, v);
}

static int feed_forward(wr_step_builder *b, int x) {
  const int n = norm(b, x, b->layer, WR_T_FFN_NORM, WR_T_FFN_NORM_BIAS);
  const int up = wr_step_linear(b, n, WR_T_FFN_UP, WR_T_FFN_UP_BIAS, WR_NONE);
  const int mixed = wr_gelu(b->p, up);
  return wr_step_linear(b, mixed, WR_T_FFN_DOWN, WR_T_FFN_DOWN_BIAS, x);
}

int wr_step_gpt2(wr_step_builder *b, int x) {
  const int places = wr_step_weight(b, -1, WR_T_POSITION_EMBD);
  const int at = wr_embed(b->p, places, b->io->pos);
  x = wr_add(b->p, x, at);
  for (b->layer = 0; b->layer < b->m->h.layers; b->layer++) {
    x = attention(b, x);
    x = feed_forward(b, x);
  }
  return norm(b, x, -1, WR_T_OUTPUT_NORM, WR_T_OUTPUT_NORM_BIAS);
}
