/* vocab.c: what a tokenizer is made from, read out of a GGUF file.
 *
 * Owns the names and types of the tokenizer.ggml.* keys. Refuses values of another type; what the values mean, and whether they
 * fit together, is tokenizer.c's to judge.
 */
#include "text/text_i.h"

void wr_vocab_source_init(wr_vocab_source *s) {
  *s = (wr_vocab_source){.bos_id = -1,
                         .eos_id = -1,
                         .eot_id = -1,
                         .eom_id = -1,
                         .unk_id = -1,
                         .pad_id = -1,
                         .add_bos = -1,
                         .add_eos = -1,
                         .add_space_prefix = -1,
                         .remove_extra_whitespaces = -1};
}

void wr_vocab_source_free(wr_vocab_source *s) {
  wr_free((void *)s->tokens);
  wr_free((void *)s->scores);
  wr_free((void *)s->types);
  wr_free((void *)s->merges);
  wr_vocab_source_init(s);
}

static weir_status read_texts(const wr_gguf *g, const char *key, bool required, const wr_gguf_text **texts, size_t *count) {
  wr_gguf_array a = {0};
  WR_TRY(wr_gguf_get_array(g, key, required, WR_GGUF_VALUE_STRING, &a));
  if (!a.ptr && !a.count) return WEIR_OK;
  wr_gguf_text *out;
  WR_TRY(wr_gguf_array_texts(&a, &out));
  *texts = out, *count = a.count;
  return WEIR_OK;
}

static weir_status read_scores(const wr_gguf *g, wr_vocab_source *s) {
  const char *key = "tokenizer.ggml.scores";
  const wr_gguf_meta *m = wr_gguf_find(g, key);
  if (!m) return WEIR_OK;
  wr_gguf_array a = {0};
  bool whole = m->type == WR_GGUF_VALUE_ARRAY && m->v.array.type == WR_GGUF_VALUE_I32; /* some converters write integers */
  WR_TRY(wr_gguf_get_array(g, key, true, whole ? WR_GGUF_VALUE_I32 : WR_GGUF_VALUE_F32, &a));
  float *scores = wr_calloc(a.count, sizeof *scores);
  if (!scores) return wr_fail_nomem(a.count * sizeof *scores, "token scores");
  for (size_t i = 0; i < a.count; i++) scores[i] = whole ? (float)wr_gguf_array_int(&a, i) : (float)wr_gguf_array_float(&a, i);
  s->scores = scores, s->n_scores = a.count;
  return WEIR_OK;
}

static weir_status read_types(const wr_gguf *g, wr_vocab_source *s) {
  wr_gguf_array a = {0};
  WR_TRY(wr_gguf_get_array(g, "tokenizer.ggml.token_type", false, WR_GGUF_VALUE_I32, &a));
  if (!a.count) return WEIR_OK;
  int32_t *types = wr_calloc(a.count, sizeof *types);
  if (!types) return wr_fail_nomem(a.count * sizeof *types, "token types");
  for (size_t i = 0; i < a.count; i++) types[i] = (int32_t)wr_gguf_array_int(&a, i);
  s->types = types, s->n_types = a.count;
  return WEIR_OK;
}

static weir_status read_flag(const wr_gguf *g, const char *key, int *out) {
  bool v = *out > 0;
  if (!wr_gguf_find(g, key)) return WEIR_OK;
  WR_TRY(wr_gguf_get_bool(g, key, true, &v));
  *out = v;
  return WEIR_OK;
}

static weir_status read_all(const wr_gguf *g, wr_vocab_source *s) {
  WR_TRY(wr_gguf_get_text(g, "tokenizer.ggml.model", true, &s->model));
  WR_TRY(wr_gguf_get_text(g, "tokenizer.ggml.pre", false, &s->pre));
  WR_TRY(wr_gguf_get_text(g, "tokenizer.metaspace.prefix", false, &s->prefix));
  WR_TRY(read_texts(g, "tokenizer.ggml.tokens", true, &s->tokens, &s->n_tokens));
  WR_TRY(read_texts(g, "tokenizer.ggml.merges", false, &s->merges, &s->n_merges));
  WR_TRY(read_scores(g, s));
  WR_TRY(read_types(g, s));
  const struct {
    const char *key;
    int64_t *id;
  } ids[] = {
      {"tokenizer.ggml.bos_token_id", &s->bos_id},     {"tokenizer.ggml.eos_token_id", &s->eos_id},
      {"tokenizer.ggml.eot_token_id", &s->eot_id},     {"tokenizer.ggml.eom_token_id", &s->eom_id},
      {"tokenizer.ggml.unknown_token_id", &s->unk_id}, {"tokenizer.ggml.padding_token_id", &s->pad_id},
  };
  for (size_t i = 0; i < WR_ARRAY_LEN(ids); i++) WR_TRY(wr_gguf_get_int(g, ids[i].key, false, INT64_MIN, INT64_MAX, ids[i].id));
  WR_TRY(read_flag(g, "tokenizer.ggml.add_bos_token", &s->add_bos));
  WR_TRY(read_flag(g, "tokenizer.ggml.add_eos_token", &s->add_eos));
  WR_TRY(read_flag(g, "tokenizer.ggml.add_space_prefix", &s->add_space_prefix));
  return read_flag(g, "tokenizer.ggml.remove_extra_whitespaces", &s->remove_extra_whitespaces);
}

weir_status wr_vocab_source_read(const wr_gguf *g, wr_vocab_source *out) {
  wr_vocab_source s;
  wr_vocab_source_init(&s);
  weir_status st = read_all(g, &s);
  if (st != WEIR_OK) return wr_vocab_source_free(&s), st;
  *out = s;
  return WEIR_OK;
}
