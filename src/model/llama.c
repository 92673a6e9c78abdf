/* The program of the Llama family: one step over rows of tokens and a paged KV cache.
 *
 *   x = embed(tokens)
 *   layer: h = rmsnorm(x); q, k, v = h Wq, h Wk, h Wv; q, k turned by their positions; k, v stored in the cache
 *          x = x + attention(q, cache) Wo;  h = rmsnorm(x);  x = x + (silu(h Wgate) * (h Wup)) Wdown
 *   logits = rmsnorm(x) W
 *
 * In the last layer only rows that want logits go on after attention: nobody reads the others, whose keys and values are stored
 * by then. */
#include <math.h>

#include "model/model.h"
#include "ops/ops.h"

typedef struct build {
  wr_program *p;
  const wr_model *m;
  const wr_step_shape *shape;
  wr_step_io *io;
  int freqs; /* frequency factors, or WR_NONE */
  wr_rope_params rope;
  int layer;
} build;

static int weight(build *b, int layer, wr_tensor_id id) {
  const wr_weight *w = wr_model_weight(b->m, layer, id);
  if (!w) return WR_NONE;
  wr_vtype t = {.dtype = (uint8_t)w->dtype, .layout = (uint8_t)w->layout, .rank = 2, .ext = {w->rows, w->cols, 1, 1}};
  if (w->rows == 1 && w->tensor->n_dims == 1) t = (wr_vtype){.dtype = (uint8_t)w->dtype, .rank = 1, .ext = {w->cols, 1, 1, 1}};
  const int value = wr_value_new(b->p, WR_PARAM, w->name, &t);
  if (value >= 0) wr_bind(b->p, value, &w->buf, 0);
  return value;
}

static int of_layer(build *b, wr_tensor_id id) { return weight(b, b->layer, id); }

static int table(build *b, const char *name, int live, int64_t rows, int64_t cols) {
  const wr_vtype t = {.dtype = WR_I32, .rank = cols ? 2 : 1, .live = (uint8_t)live, .ext = {rows, cols ? cols : 1, 1, 1}};
  return wr_value_new(b->p, WR_INPUT, name, &t);
}

static int cache(build *b, const char *kind, int64_t e2, int64_t e3) {
  char name[32];
  const wr_vtype t = {.dtype = (uint8_t)b->shape->kv, .rank = 4, .ext = {b->shape->pages, b->m->h.kv_heads, e2, e3}};
  snprintf(name, sizeof name, "blk.%d.%s", b->layer, kind);
  return wr_value_new(b->p, WR_STATE, name, &t);
}

static int linear(build *b, int x, wr_tensor_id w, wr_tensor_id bias, int residual) {
  const int matrix = of_layer(b, w);
  const int add = of_layer(b, bias);
  return wr_matmul(b->p, x, matrix, add, residual);
}

/* Into heads: [rows, heads, width]. */
static int project(build *b, int x, wr_tensor_id w, wr_tensor_id bias, int64_t heads) {
  const int matrix = of_layer(b, w);
  const int add = of_layer(b, bias);
  return wr_matmul_heads(b->p, x, matrix, add, WR_NONE, heads);
}

/* x after the attention of a layer; in the last one only the rows that want logits. */
static int attention(build *b, int x, bool last) {
  const wr_hparams *h = &b->m->h;
  wr_program *p = b->p;
  const int norm = wr_rmsnorm(p, x, of_layer(b, WR_T_ATTN_NORM), (float)h->eps);
  int q = project(b, norm, WR_T_ATTN_Q, WR_T_ATTN_Q_BIAS, h->heads);
  int k = project(b, norm, WR_T_ATTN_K, WR_T_ATTN_K_BIAS, h->kv_heads);
  const int v = project(b, norm, WR_T_ATTN_V, WR_T_ATTN_V_BIAS, h->kv_heads);
  q = wr_rope(p, q, b->io->pos, b->freqs, &b->rope);
  k = wr_rope(p, k, b->io->pos, b->freqs, &b->rope);
  const int keys = cache(b, "k", h->key_width, WR_KV_PAGE);
  const int values = cache(b, "v", WR_KV_PAGE, h->value_width);
  b->io->k[b->layer] = keys;
  b->io->v[b->layer] = values;
  wr_kv_store(p, k, v, keys, values, b->io->slot);
  wr_attention_params params = {.scale = (float)(1 / sqrt((double)h->key_width))};
  if (h->window < INT32_MAX) params.window = (int)h->window; /* a longer one is none */
  int mixed = wr_attention_paged(p, q, keys, values, b->io->seq, b->io->pos, b->io->page_table, &params);
  if (last) {
    mixed = wr_gather(p, mixed, b->io->out_rows);
    x = wr_gather(p, x, b->io->out_rows);
  }
  return linear(b, mixed, WR_T_ATTN_OUTPUT, WR_T_ATTN_OUTPUT_BIAS, x);
}

static int feed_forward(build *b, int x) {
  wr_program *p = b->p;
  const int norm = wr_rmsnorm(p, x, of_layer(b, WR_T_FFN_NORM), (float)b->m->h.eps);
  const int gate = linear(b, norm, WR_T_FFN_GATE, WR_T_FFN_GATE_BIAS, WR_NONE);
  const int up = linear(b, norm, WR_T_FFN_UP, WR_T_FFN_UP_BIAS, WR_NONE);
  const int mixed = wr_swiglu(p, gate, up);
  return linear(b, mixed, WR_T_FFN_DOWN, WR_T_FFN_DOWN_BIAS, x);
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

size_t wr_kv_page_bytes(const wr_hparams *h, wr_dtype kv, bool value) {
  return (size_t)(h->kv_heads * (value ? h->value_width : h->key_width) * WR_KV_PAGE) * (size_t)wr_dtypes[kv].block_bytes;
}

weir_status wr_llama_build(wr_program *p, const wr_model *m, const wr_step_shape *shape, wr_step_io *out) {
  const wr_hparams *h = &m->h;
  wr_step_io io = {.n_layers = (int)h->layers};
  build b = {.p = p, .m = m, .shape = shape, .io = &io, .rope = rope_of(h)};
  io.k = wr_arena_alloc(&p->arena, (size_t)h->layers * sizeof *io.k);
  io.v = wr_arena_alloc(&p->arena, (size_t)h->layers * sizeof *io.v);
  if (!io.k || !io.v) return wr_fail_nomem((size_t)h->layers * sizeof *io.k, "a program");
  io.tokens = table(&b, "tokens", WR_LIVE_ROWS, shape->rows, 0);
  io.pos = table(&b, "pos", WR_LIVE_ROWS, shape->rows, 0);
  io.slot = table(&b, "slot", WR_LIVE_ROWS, shape->rows, 0);
  io.seq = table(&b, "seq", WR_LIVE_ROWS, shape->rows, 0);
  io.page_table = table(&b, "page_table", WR_LIVE_SEQS, shape->seqs, shape->pages_a_seq);
  io.out_rows = table(&b, "out_rows", WR_LIVE_OUT, shape->out, 0);
  b.freqs = weight(&b, -1, WR_T_ROPE_FREQS);
  const int embedding = weight(&b, -1, WR_T_TOKEN_EMBD);
  const int output = wr_model_weight(m, -1, WR_T_OUTPUT) ? weight(&b, -1, WR_T_OUTPUT) : embedding;
  int x = wr_embed(p, embedding, io.tokens);
  for (b.layer = 0; b.layer < h->layers; b.layer++) {
    x = attention(&b, x, b.layer == h->layers - 1);
    x = feed_forward(&b, x);
  }
  x = wr_rmsnorm(p, x, weight(&b, -1, WR_T_OUTPUT_NORM), (float)h->eps);
  io.logits = wr_matmul(p, x, output, WR_NONE, WR_NONE);
  wr_mark_output(p, io.logits);
  WR_TRY(wr_pass_fuse(p));
  *out = io;
  return WEIR_OK;
}
