/* Tokenizers for the public API: a thin coat over text/. */
#include "infer/infer_i.h"

#include "data/data.h"

/* Takes `inner` over, also when it fails. */
static weir_status wrap(wr_tokenizer *inner, weir_tokenizer **out) {
  weir_tokenizer *t = wr_calloc(1, sizeof *t);
  if (!t) {
    wr_tokenizer_close(inner);
    return wr_fail_nomem(sizeof *t, "a tokenizer");
  }
  t->t = inner;
  *out = t;
  return WEIR_OK;
}

weir_status wr_tokenizer_wrap(const wr_gguf *g, weir_tokenizer **out) {
  wr_tokenizer *t;
  WR_TRY(wr_tokenizer_open_gguf(g, &t));
  return wrap(t, out);
}

weir_status weir_tokenizer_open(const char *path, weir_tokenizer **out) {
  if (!path) return wr_fail(WEIR_EUSAGE, "no file was named");
  wr_tokenizer *t;
  WR_TRY(wr_tokenizer_open_path(path, &t));
  return wrap(t, out);
}

weir_status weir_tokenizer_train(const char *const *inputs, size_t n_inputs, const weir_tokenizer_train_options *options,
                                 weir_tokenizer_train_report *report, weir_tokenizer **out) {
  wr_tokenizer *t;
  WR_TRY(wr_data_train_tokenizer(inputs, n_inputs, options, report, &t));
  return wrap(t, out);
}

weir_status weir_tokenizer_save(const weir_tokenizer *t, const char *path) {
  if (!path) return wr_fail(WEIR_EUSAGE, "no file was named");
  return wr_tokenizer_save(t->t, path);
}

void weir_tokenizer_close(weir_tokenizer *t) {
  if (!t) return;
  wr_tokenizer_close(t->t);
  wr_free(t);
}

void weir_tokenizer_get_info(const weir_tokenizer *t, weir_tokenizer_info *out) {
  const wr_special_ids *ids = wr_tokenizer_special(t->t);
  const char *name = wr_tokenizer_name(t->t), *slash = strchr(name, '/');
  *out = (weir_tokenizer_info){.name = name,
                               .pre = slash ? slash + 1 : "",
                               .vocab = (int)wr_tokenizer_size(t->t),
                               .bos = ids->bos,
                               .eos = ids->eos,
                               .unk = ids->unk,
                               .add_bos = ids->add_bos,
                               .add_eos = ids->add_eos,
                               .chat = wr_chat_format(t->t)};
}

/* What a helper gathered becomes the caller's. An empty list is still an address. */
static weir_status give_ids(wr_ids *ids, weir_status s, weir_token **tokens, size_t *n_tokens) {
  if (s == WEIR_OK && !ids->ptr) {
    ids->ptr = wr_malloc(sizeof *ids->ptr);
    if (!ids->ptr) s = wr_fail_nomem(sizeof *ids->ptr, "tokens");
  }
  if (s != WEIR_OK) {
    wr_ids_free(ids);
    return s;
  }
  *tokens = ids->ptr;
  *n_tokens = ids->len;
  return WEIR_OK;
}

weir_status weir_tokenizer_encode(const weir_tokenizer *t, const char *text, size_t n, unsigned flags, weir_token **tokens,
                                  size_t *n_tokens) {
  unsigned f = 0;
  if (!(flags & WEIR_TEXT_NO_BOS)) f |= WR_TEXT_ADD_SPECIAL;
  if (flags & WEIR_TEXT_PARSE_SPECIAL) f |= WR_TEXT_PARSE_SPECIAL;
  if (flags & WEIR_TEXT_CONTINUES) f |= WR_TEXT_CONTINUES;
  wr_ids ids = {0};
  return give_ids(&ids, wr_encode(t->t, text ? text : "", n, f, &ids), tokens, n_tokens);
}

weir_status weir_tokenizer_decode(const weir_tokenizer *t, const weir_token *tokens, size_t n_tokens, unsigned flags,
                                  char **text, size_t *bytes) {
  wr_str out = {0};
  wr_str_put(&out, "", 0);
  const unsigned f =
      (flags & WEIR_TEXT_SHOW_SPECIAL ? WR_TEXT_KEEP_SPECIAL : 0u) | (flags & WEIR_TEXT_CONTINUES ? WR_TEXT_CONTINUES : 0u);
  weir_status s = wr_decode(t->t, tokens, n_tokens, f, &out);
  if (s == WEIR_OK && out.oom) s = wr_fail_nomem(out.cap, "text");
  if (s == WEIR_OK && !out.ptr) {
    out.ptr = wr_calloc(1, 1);
    if (!out.ptr) s = wr_fail_nomem(1, "text");
  }
  if (s != WEIR_OK) {
    wr_str_free(&out);
    return s;
  }
  *text = out.ptr;
  *bytes = out.len;
  return WEIR_OK;
}

weir_status weir_tokenizer_chat(const weir_tokenizer *t, const weir_message *messages, size_t n, bool answer,
                                weir_token **tokens, size_t *n_tokens) {
  wr_chat_message *list = wr_calloc(WR_MAX(n, (size_t)1), sizeof *list);
  if (!list) return wr_fail_nomem(n * sizeof *list, "a conversation");
  for (size_t i = 0; i < n; i++) {
    const weir_message *m = &messages[i];
    list[i] = (wr_chat_message){
        .role = m->role ? m->role : "", .content = m->content ? m->content : "", .content_len = m->content_bytes};
    list[i].role_len = strlen(list[i].role);
    if (!m->content_bytes && m->content) list[i].content_len = strlen(m->content);
  }
  wr_ids ids = {0};
  const weir_status s = wr_chat_encode(t->t, list, n, answer, WR_TEXT_ADD_SPECIAL, &ids);
  wr_free(list);
  return give_ids(&ids, s, tokens, n_tokens);
}
