/* The program of a step over rows of tokens and a paged KV cache:
 *
 *   x = embed(tokens);  x = the architecture's layers(x);  logits = x W, with a soft cap where the model has one
 *
 * and what the architectures' builders have in common. Reference: Peng et al. 2023 (YaRN). */
#include "model/step_i.h"

#include <math.h>

#include "ops/ops.h"

/* ------------------------------------------------------------------------------------------------------------ weights */

static int bound(wr_step_builder *b, const wr_weight *w, const char *name, int64_t first, int64_t rows) {
  const bool vector = w->rows == 1 && w->tensor->n_dims == 1;
  wr_vtype t = {.dtype = (uint8_t)w->dtype, .layout = (uint8_t)w->layout, .rank = 2, .ext = {rows, w->cols, 1, 1}};
  if (vector) t = (wr_vtype){.dtype = (uint8_t)w->dtype, .rank = 1, .ext = {rows, 1, 1, 1}};
  /* a packed group is sixteen rows, and wr_weight_packs sees to it that parts begin and end with one */
  const int64_t unit = w->layout == WR_PLAIN ? 1 : WR_PACK_ROWS;
  const size_t row_bytes = wr_layout_row_bytes(w->layout, w->dtype, vector ? 1 : w->cols);
  const int value = wr_value_new(b->p, WR_PARAM, name, &t);
  if (value >= 0) wr_bind(b->p, value, &w->buf, (size_t)(first / unit) * row_bytes);
  return value;
}

int wr_step_weight(wr_step_builder *b, int layer, wr_tensor_id id) {
  const wr_weight *w = wr_model_weight(b->m, layer, id);
  if (!w) return WR_NONE;
  return bound(b, w, w->name, 0, w->rows == 1 && w->tensor->n_dims == 1 ? w->cols : w->rows);
}

int wr_step_rows(wr_step_builder *b, wr_tensor_id id, int64_t first, int64_t rows, const char *suffix) {
  const wr_weight *w = wr_model_weight(b->m, b->layer, id);
  if (!w) return WR_NONE;
  char name[WR_GGUF_MAX_NAME + 32];
  snprintf(name, sizeof name, "%s.%s", w->name, suffix);
  return bound(b, w, name, first, rows);
}

int wr_step_heads(wr_step_builder *b, int x, wr_tensor_id w, wr_tensor_id bias, int64_t heads) {
  const int matrix = wr_step_weight(b, b->layer, w);
  const int add = wr_step_weight(b, b->layer, bias);
  return wr_matmul_heads(b->p, x, matrix, add, WR_NONE, heads);
}

int wr_step_norm(wr_step_builder *b, int x, int layer, wr_tensor_id id) {
  return wr_rmsnorm(b->p, x, wr_step_weight(b, layer, id), (float)b->m->h.eps);
}

int wr_step_gated(wr_step_builder *b, int x, wr_act act, int residual) {
  const int gate = wr_step_linear(b, x, WR_T_FFN_GATE, WR_T_FFN_GATE_BIAS, WR_NONE);
  const int up = wr_step_linear(b, x, WR_T_FFN_UP, WR_T_FFN_UP_BIAS, WR_NONE);
  const int mixed = wr_glu(b->p, act, gate, up);
  return wr_step_linear(b, mixed, WR_T_FFN_DOWN, WR_T_FFN_DOWN_BIAS, residual);
}

int wr_step_linear(wr_step_builder *b, int x, wr_tensor_id w, wr_tensor_id bias, int residual) {
  const int matrix = wr_step_weight(b, b->layer, w);
  const int add = wr_step_weight(b, b->layer, bias);
  return wr_matmul(b->p, x, matrix, add, residual);
}

/* ---------------------------------------------------------------------------------------------------------- attention */

static int cache(wr_step_builder *b, const char *kind, wr_layout layout, int64_t e2, int64_t e3) {
  char name[32];
  const wr_vtype t = {.dtype = (uint8_t)b->shape->kv,
                      .layout = (uint8_t)layout,
                      .rank = 4,
                      .ext = {b->shape->pages, b->m->h.kv_heads, e2, e3}};
  snprintf(name, sizeof name, "blk.%d.%s", b->layer, kind);
  return wr_value_new(b->p, WR_STATE, name, &t);
}

wr_rope_params wr_step_rope(const wr_hparams *h) {
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

int wr_step_mix(wr_step_builder *b, int *x, int q, int k, int v, double scale) {
  const wr_hparams *h = &b->m->h;
  wr_program *p = b->p;
  const int keys = cache(b, "k", wr_keys_layout(b->shape->kv), h->key_width, WR_KV_PAGE);
  const int values = cache(b, "v", WR_PLAIN, WR_KV_PAGE, h->value_width);
  b->io->k[b->layer] = keys;
  b->io->v[b->layer] = values;
  wr_kv_store(p, k, v, keys, values, b->io->slot);
  const wr_attention_params params = {
      .scale = (float)scale, .window = (int)wr_layer_window(h, b->layer), .softcap = (float)h->attn_softcap};
  int mixed = wr_attention_paged(p, q, keys, values, b->io->seq, b->io->pos, b->io->page_table, &params);
  if (b->layer == h->layers - 1) {
    mixed = wr_gather(p, mixed, b->io->out_rows);
    *x = wr_gather(p, *x, b->io->out_rows);
  }
  return mixed;
}

int wr_step_attention(wr_step_builder *b, int x, int q, int k, int v) {
  const int mixed = wr_step_mix(b, &x, q, k, v, 1 / sqrt((double)b->m->h.key_width));
  return wr_step_linear(b, mixed, WR_T_ATTN_OUTPUT, WR_T_ATTN_OUTPUT_BIAS, x);
}

size_t wr_kv_page_bytes(const wr_hparams *h, wr_dtype kv, bool value) {
  const int64_t elems = h->kv_heads * (value ? h->value_width : h->key_width) * WR_KV_PAGE;
  return (size_t)(elems / wr_dtypes[kv].block) * (size_t)wr_dtypes[kv].block_bytes;
}

/* ----------------------------------------------------------------------------------------------------------- the step */

static int table(wr_step_builder *b, const char *name, int live, int64_t rows, int64_t cols) {
  const wr_vtype t = {.dtype = WR_I32, .rank = cols ? 2 : 1, .live = (uint8_t)live, .ext = {rows, cols ? cols : 1, 1, 1}};
  return wr_value_new(b->p, WR_INPUT, name, &t);
}

weir_status wr_step_build(wr_program *p, const wr_model *m, const wr_step_shape *shape, wr_step_io *out) {
  const wr_hparams *h = &m->h;
  wr_step_io io = {.n_layers = (int)h->layers};
  wr_step_builder b = {.p = p, .m = m, .shape = shape, .io = &io};
  io.k = wr_arena_alloc(&p->arena, (size_t)h->layers * sizeof *io.k);
  io.v = wr_arena_alloc(&p->arena, (size_t)h->layers * sizeof *io.v);
  if (!io.k || !io.v) return wr_fail_nomem((size_t)h->layers * sizeof *io.k, "a program");
  io.tokens = table(&b, "tokens", WR_LIVE_ROWS, shape->rows, 0);
  io.pos = table(&b, "pos", WR_LIVE_ROWS, shape->rows, 0);
  io.slot = table(&b, "slot", WR_LIVE_ROWS, shape->rows, 0);
  io.seq = table(&b, "seq", WR_LIVE_ROWS, shape->rows, 0);
  io.page_table = table(&b, "page_table", WR_LIVE_SEQS, shape->seqs, shape->pages_a_seq);
  io.out_rows = table(&b, "out_rows", WR_LIVE_OUT, shape->out, 0);
  const int embedding = wr_step_weight(&b, -1, WR_T_TOKEN_EMBD);
  int output = wr_model_weight(m, -1, WR_T_OUTPUT) ? wr_step_weight(&b, -1, WR_T_OUTPUT) : embedding;
  if (m->head.device && (output = wr_step_weight(&b, -1, WR_T_TOKEN_EMBD)) >= 0) wr_bind(p, output, &m->head, 0);
  int x = wr_embed(p, embedding, io.tokens);
  x = h->arch->step(&b, x);
  io.logits = wr_matmul(p, x, output, WR_NONE, WR_NONE);
  if (h->logit_softcap > 0) io.logits = wr_softcap(p, io.logits, (float)h->logit_softcap);
  wr_mark_output(p, io.logits);
  WR_TRY(wr_pass_fuse(p));
  *out = io;
  return WEIR_OK;
}
