/* The Llama style to be trained:
 *
 *   layer: h = rmsnorm(x); q, k, v = h Wq, h Wk, h Wv; q, k turned by their positions (pairs 2i, 2i+1: GGUF's "llama")
 *          x = x + attention(q, k, v) Wo;  h = rmsnorm(x);  x = x + (silu(h Wgate) * (h Wup)) Wdown
 *   hidden = rmsnorm(x)
 *
 * References: Touvron et al. 2023; Shazeer 2020 (SwiGLU); Ainslie et al. 2023 (grouped queries). */
#include "model/model.h"
#include "model/train_i.h"
#include "ops/ops.h"

static weir_status check(const wr_spec *s) {
  if (s->width / s->heads % 2)
    return wr_fail(WEIR_EUSAGE, "width / heads is %lld, but RoPE turns pairs: it must be even",
                   (long long)(s->width / s->heads));
  if (!(s->rope_base >= 1 && s->rope_base <= 1e15))
    return wr_fail(WEIR_EUSAGE, "rope_base is %g, but it must be from 1 to 1e15", s->rope_base);
  return WEIR_OK;
}

static int attention(wr_train_builder *b, int x) {
  wr_program *p = b->p;
  const wr_spec *s = b->spec;
  const int64_t D = s->width, kv = D / s->heads * s->kv_heads;
  const wr_rope_params rope = {.theta = (float)s->rope_base};
  const wr_attention_params params = {.B = b->shape->B, .T = b->shape->T};
  const int h = wr_rmsnorm(p, x, wr_train_norm(b, "attn_norm.weight"), (float)s->eps);
  int q = wr_matmul_heads(p, h, wr_train_matrix(b, "attn_q.weight", D, D), WR_NONE, WR_NONE, s->heads);
  int k = wr_matmul_heads(p, h, wr_train_matrix(b, "attn_k.weight", kv, D), WR_NONE, WR_NONE, s->kv_heads);
  const int v = wr_matmul_heads(p, h, wr_train_matrix(b, "attn_v.weight", kv, D), WR_NONE, WR_NONE, s->kv_heads);
  q = wr_rope(p, q, b->io.pos, WR_NONE, &rope);
  k = wr_rope(p, k, b->io.pos, WR_NONE, &rope);
  const int mixed = wr_attention(p, q, k, v, b->io.first, &params);
  return wr_train_residual(b, x, mixed, wr_train_back(b, "attn_output.weight", D, D), WR_NONE, "attn_dropout");
}

static int feed_forward(wr_train_builder *b, int x) {
  wr_program *p = b->p;
  const int64_t D = b->spec->width, F = b->spec->ff;
  const int h = wr_rmsnorm(p, x, wr_train_norm(b, "ffn_norm.weight"), (float)b->spec->eps);
  const int gate = wr_matmul(p, h, wr_train_matrix(b, "ffn_gate.weight", F, D), WR_NONE, WR_NONE);
  const int up = wr_matmul(p, h, wr_train_matrix(b, "ffn_up.weight", F, D), WR_NONE, WR_NONE);
  const int mixed = wr_glu(p, WR_SILU, gate, up);
  return wr_train_residual(b, x, mixed, wr_train_back(b, "ffn_down.weight", D, F), WR_NONE, "ffn_dropout");
}

static int hidden(wr_train_builder *b, int x) {
  x = wr_train_dropout(b, x, "/embd_dropout");
  x = wr_train_layers(b, x, attention, feed_forward);
  return wr_rmsnorm(b->p, x, wr_train_norm(b, "/output_norm.weight"), (float)b->spec->eps);
}

static weir_status put_meta(const wr_spec *s, wr_gguf_writer *w) {
  WR_TRY(wr_gguf_put_u32(w, "llama.rope.dimension_count", (uint32_t)(s->width / s->heads)));
  return wr_gguf_put_f32(w, "llama.rope.freq_base", (float)s->rope_base);
}

const wr_train_arch wr_train_llama = {
    .name = "llama",
    .check = check,
    .hidden = hidden,
    .params_a_layer = 9,
    .params_besides = 3,
    .put_meta = put_meta,
};
