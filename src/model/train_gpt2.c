/* The GPT-2 style to be trained:
 *
 *   x = token + position embedding
 *   layer: h = layernorm(x); q, k, v = h Wqkv + b;  x = x + attention(q, k, v) Wo + b
 *          h = layernorm(x);  x = x + gelu(h Wup + b) Wdown + b
 *   hidden = layernorm(x)
 *
 * Reference: Radford et al. 2019, Language Models are Unsupervised Multitask Learners. */
#include "model/model.h"
#include "model/train_i.h"
#include "ops/ops.h"

static weir_status check(const wr_spec *s) {
  if (s->kv_heads != s->heads)
    return wr_fail(WEIR_EUSAGE, "kv_heads is %lld, but gpt2 has as many as heads (%lld)", (long long)s->kv_heads,
                   (long long)s->heads);
  return WEIR_OK;
}

static int norm(wr_train_builder *b, int x, const char *weight, const char *bias) {
  const int w = wr_train_norm(b, weight);
  return wr_layernorm(b->p, x, w, wr_train_bias(b, bias, b->spec->width), (float)b->spec->eps);
}

/* One product makes q, k and v, whose heads stand one after another in a row; attention reads them there. */
static int attention(wr_train_builder *b, int x) {
  wr_program *p = b->p;
  const int64_t D = b->spec->width, heads = b->spec->heads;
  const wr_attention_params params = {.B = b->shape->B, .T = b->shape->T, .kv_heads = heads};
  const int h = norm(b, x, "attn_norm.weight", "attn_norm.bias");
  const int w = wr_train_matrix(b, "attn_qkv.weight", 3 * D, D);
  const int qkv = wr_matmul_heads(p, h, w, wr_train_bias(b, "attn_qkv.bias", 3 * D), WR_NONE, 3 * heads);
  const int mixed = wr_attention(p, qkv, WR_NONE, WR_NONE, b->io.first, &params);
  const int back = wr_train_back(b, "attn_output.weight", D, D);
  return wr_train_residual(b, x, mixed, back, wr_train_bias(b, "attn_output.bias", D), "attn_dropout");
}

static int feed_forward(wr_train_builder *b, int x) {
  const int64_t D = b->spec->width, F = b->spec->ff;
  const int h = norm(b, x, "ffn_norm.weight", "ffn_norm.bias");
  const int up = wr_train_matrix(b, "ffn_up.weight", F, D);
  const int mixed = wr_gelu(b->p, wr_matmul(b->p, h, up, wr_train_bias(b, "ffn_up.bias", F), WR_NONE));
  const int down = wr_train_back(b, "ffn_down.weight", D, F);
  return wr_train_residual(b, x, mixed, down, wr_train_bias(b, "ffn_down.bias", D), "ffn_dropout");
}

static int hidden(wr_train_builder *b, int x) {
  const int places = wr_train_table(b, "/position_embd.weight", b->spec->context_tok, b->spec->width);
  x = wr_train_dropout(b, wr_add(b->p, x, wr_embed(b->p, places, b->io.pos)), "/embd_dropout");
  x = wr_train_layers(b, x, attention, feed_forward);
  return norm(b, x, "/output_norm.weight", "/output_norm.bias");
}

const wr_train_arch wr_train_gpt2 = {
    .name = "gpt2",
    .check = check,
    .hidden = hidden,
    .params_a_layer = 12,
    .params_besides = 5,
};
