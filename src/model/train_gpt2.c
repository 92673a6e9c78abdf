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

static int hidden(wr_train_builder *b, int x) {
  (void)x;
  wr_program_fail(b->p, WEIR_EUNSUPPORTED, "gpt2 is being built");
  return WR_NONE;
}

const wr_train_arch wr_train_gpt2 = {
    .name = "gpt2",
    .check = check,
    .hidden = hidden,
    .params_a_layer = 12,
    .params_besides = 5,
    .eps_key = "attention.layer_norm_epsilon",
};
