/* Models for the public API: weights and tokenizer, checked against each other. */
#include "infer/infer_i.h"

static weir_status check_vocab(const weir_model *m) {
  const size_t tokens = wr_tokenizer_size(m->tokenizer->t);
  if (tokens <= (size_t)m->m->h.vocab) return WEIR_OK; /* fewer are padding rows */
  return wr_fail(WEIR_EFORMAT, "%s: the tokenizer has %zu entries, but the model has only %lld rows for them",
                 wr_gguf_path(m->m->gguf), tokens, (long long)m->m->h.vocab);
}

static weir_status read_name(weir_model *m) {
  wr_gguf_text text = {"", 0};
  const wr_gguf_meta *meta = wr_gguf_find(m->m->gguf, "general.name");
  if (meta && meta->type == WR_GGUF_VALUE_STRING) text = meta->v.text;
  wr_str s = {0};
  wr_str_escape(&s, text.ptr, WR_MIN(text.len, (size_t)1024));
  m->name = s.oom ? NULL : wr_strdup(s.ptr ? s.ptr : "");
  wr_str_free(&s);
  return m->name ? WEIR_OK : wr_fail_nomem(text.len, "the name of a model");
}

weir_status weir_model_open(weir_context *ctx, const char *path, const weir_model_options *options, weir_model **out) {
  const weir_model_options o = options ? *options : (weir_model_options){0};
  if (!path) return wr_fail(WEIR_EUSAGE, "no model file was named");
  const wr_model_options mo = {.no_mmap = o.no_mmap,
                               .no_pack = o.no_pack,
                               .force_pack = o.force_pack,
                               .plan_only = !ctx->device->team,
                               .others = ctx->others,
                               .n_others = ctx->n_others};
  weir_model *m = wr_calloc(1, sizeof *m);
  if (!m) return wr_fail_nomem(sizeof *m, "a model");
  m->ctx = ctx;
  pthread_mutex_lock(&ctx->lock);
  weir_status s = wr_model_open(&ctx->mem, path, &mo, &m->m);
  pthread_mutex_unlock(&ctx->lock);
  if (s == WEIR_OK) s = wr_tokenizer_wrap(m->m->gguf, &m->tokenizer);
  if (s == WEIR_OK) s = check_vocab(m);
  if (s == WEIR_OK) s = read_name(m);
  if (s == WEIR_OK && o.use && !(m->use = wr_strdup(o.use))) s = wr_fail_nomem(strlen(o.use), "a list of kernels");
  if (s != WEIR_OK) {
    weir_model_close(m);
    return s;
  }
  *out = m;
  return WEIR_OK;
}

void weir_model_close(weir_model *m) {
  if (!m) return;
  weir_tokenizer_close(m->tokenizer);
  pthread_mutex_lock(&m->ctx->lock);
  wr_model_close(m->m);
  pthread_mutex_unlock(&m->ctx->lock);
  wr_free(m->name);
  wr_free(m->use);
  wr_free(m);
}

void weir_model_get_info(const weir_model *m, weir_model_info *out) {
  const wr_hparams *h = &m->m->h;
  *out = (weir_model_info){.path = wr_gguf_path(m->m->gguf),
                           .name = m->name,
                           .arch = h->arch->name,
                           .types = m->m->types,
                           .layout = m->m->layout,
                           .devices = m->m->split,
                           .layers = (int)h->layers,
                           .width = (int)h->width,
                           .ff = (int)h->ff,
                           .heads = (int)h->heads,
                           .kv_heads = (int)h->kv_heads,
                           .head_width = (int)h->key_width,
                           .vocab = (int)h->vocab,
                           .trained_tok = h->trained_tok,
                           .default_tok = wr_context_default(m, WR_F16),
                           .parameters = m->m->parameters,
                           .file_bytes = wr_gguf_file_bytes(m->m->gguf),
                           .weight_bytes = m->m->weight_bytes,
                           .token_bytes = m->m->token_bytes,
                           .kv_token_bytes = wr_kv_token_bytes(h, WR_F16),
                           .load_seconds = m->m->load_seconds,
                           .pack_seconds = m->m->pack_seconds};
}

const weir_tokenizer *weir_model_tokenizer(const weir_model *m) { return m->tokenizer; }

size_t wr_give_text(wr_str *s, char *out, size_t cap) {
  const size_t n = s->oom ? 0 : s->len;
  if (cap) {
    const size_t k = WR_MIN(n, cap - 1);
    if (k) memcpy(out, s->ptr, k);
    out[k] = 0;
  }
  wr_str_free(s);
  return n;
}

/* Text about the one-row plan, or the sentence that says why there is none. `s`: what stands before it; freed here. */
static size_t about_plan(const weir_model *m, wr_str s, void (*write)(const wr_plan *plan, wr_str *s), char *out, size_t cap) {
  weir_model *shared = (weir_model *)(uintptr_t)m; /* an engine changes its own state only */
  wr_engine *e = NULL;
  const wr_plan *plan;
  weir_status status = wr_engine_open(shared, WR_KV_PAGE, WR_KV_PAGE, WR_F16, &e);
  if (status == WEIR_OK) status = wr_engine_plan(e, 1, 1, false, &plan);
  if (status == WEIR_OK)
    write(plan, &s);
  else
    wr_str_printf(&s, "%s\n", weir_last_error());
  wr_engine_unref(e);
  return wr_give_text(&s, out, cap);
}

static void write_program(const wr_plan *plan, wr_str *s) { wr_print(plan->program, s); }

size_t weir_model_why(const weir_model *m, char *out, size_t cap) {
  wr_str s = {0};
  wr_str_printf(&s, "tune file: %s\n", weir_context_tune(m->ctx));
  return about_plan(m, s, wr_plan_why, out, cap);
}

size_t weir_model_program(const weir_model *m, char *out, size_t cap) {
  return about_plan(m, (wr_str){0}, write_program, out, cap);
}
