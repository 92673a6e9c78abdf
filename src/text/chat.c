/* chat.c: ChatML, where it is written out as ids and not as text.
 *
 * The scaffolding's control tokens are put as ids; role and content go through the encoder as text, in which no control token
 * is ever recognised. So a message that contains "<|im_end|>" says just that, and nobody can forge a turn.
 */
#include "text/text_i.h"

static const char im_start[] = "<|im_start|>", im_end[] = "<|im_end|>";

static int32_t control(const wr_tokenizer *t, const char *name) {
  int32_t id = wr_token_find(t, name, strlen(name));
  return wr_token_type_of(t, id) == WR_TOKEN_CONTROL ? id : WR_NO_TOKEN;
}

bool wr_chat_has_chatml(const wr_tokenizer *t) {
  return control(t, im_start) != WR_NO_TOKEN && control(t, im_end) != WR_NO_TOKEN;
}

static weir_status check_role(const wr_chat_message *m, size_t i) {
  bool good = m->role_len >= 1 && m->role_len <= 32;
  for (size_t k = 0; good && k < m->role_len; k++) {
    char c = m->role[k];
    good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  }
  if (good) return WEIR_OK;
  return wr_fail(WEIR_EUSAGE, "message %zu: the role \"%s\" is not 1 to 32 of A-Z a-z 0-9 _ -", i,
                 wr_escape(m->role, m->role_len));
}

static weir_status put_all(const wr_tokenizer *t, const wr_chat_message *messages, size_t n, bool generate, unsigned flags,
                           wr_str *text, wr_ids *out) {
  int32_t start = control(t, im_start), end = control(t, im_end);
  const wr_special_ids *special = wr_tokenizer_special(t);
  if ((flags & WR_TEXT_ADD_SPECIAL) && special->add_bos) WR_TRY(wr_ids_put(out, special->bos));
  for (size_t i = 0; i < n; i++) {
    const wr_chat_message *m = &messages[i];
    WR_TRY(check_role(m, i));
    wr_str_clear(text);
    wr_str_put(text, m->role, m->role_len);
    wr_str_put(text, "\n", 1);
    wr_str_put(text, m->content, m->content_len);
    if (text->oom) return wr_fail_nomem(m->content_len, "a message");
    WR_TRY(wr_ids_put(out, start));
    WR_TRY(wr_encode(t, text->ptr, text->len, flags & WR_TEXT_LOSSY, out));
    WR_TRY(wr_ids_put(out, end));
    WR_TRY(wr_encode(t, "\n", 1, 0, out));
  }
  if (!generate) return WEIR_OK;
  WR_TRY(wr_ids_put(out, start));
  return wr_encode(t, "assistant\n", 10, 0, out);
}

weir_status wr_chat_chatml(const wr_tokenizer *t, const wr_chat_message *messages, size_t n, bool generate, unsigned flags,
                           wr_ids *out) {
  if (!wr_chat_has_chatml(t))
    return wr_fail(WEIR_EUNSUPPORTED, "the vocabulary lacks the control tokens %s and %s of ChatML", im_start, im_end);
  size_t before = out->len;
  wr_str text = {0};
  weir_status st = put_all(t, messages, n, generate, flags, &text, out);
  wr_str_free(&text);
  if (st != WEIR_OK) out->len = before;
  return st;
}
