/* chat.c: conversations, written out as ids and not as text, in the format whose control tokens the vocabulary has.
 *
 * The scaffolding's control tokens are put as ids; role and content go through the encoder as text, in which no control token
 * is ever recognised. So a message that contains "<|im_end|>" says just that, and nobody can forge a turn.
 *
 * Formats:
 *   chatml   <|im_start|>ROLE\nCONTENT<|im_end|>\n ...   any roles in any order
 *   gemma    <start_of_turn>ROLE\nCONTENT<end_of_turn>\n ...   as the template of Gemma 3 writes and refuses: user and assistant, called
 *            model, take turns; blanks around a content are taken away; what the system says begins the user's first turn
 */
#include "text/text_i.h"

typedef struct chat_format {
  const char *name, *start, *end; /* start, end: control tokens around a turn */
  const char *assistant;          /* the role's name */
  bool turns;                     /* the rules of gemma */
} chat_format;

static const chat_format formats[] = {
    {"chatml", "<|im_start|>", "<|im_end|>", "assistant", false},
    {"gemma", "<start_of_turn>", "<end_of_turn>", "model", true},
};

static int32_t control(const wr_tokenizer *t, const char *name) {
  int32_t id = wr_token_find(t, name, strlen(name));
  return wr_token_type_of(t, id) == WR_TOKEN_CONTROL ? id : WR_NO_TOKEN;
}

static const chat_format *format_of(const wr_tokenizer *t) {
  for (size_t i = 0; i < WR_ARRAY_LEN(formats); i++)
    if (control(t, formats[i].start) != WR_NO_TOKEN && control(t, formats[i].end) != WR_NO_TOKEN) return &formats[i];
  return NULL;
}

const char *wr_chat_format(const wr_tokenizer *t) {
  const chat_format *f = format_of(t);
  return f ? f->name : NULL;
}

static bool role_is(const wr_chat_message *m, const char *role) {
  return m->role_len == strlen(role) && memcmp(m->role, role, m->role_len) == 0;
}

/* turn: how many turns there are before it. */
static weir_status check_role(const chat_format *f, const wr_chat_message *m, size_t i, size_t turn) {
  bool good = m->role_len >= 1 && m->role_len <= 32;
  for (size_t k = 0; good && k < m->role_len; k++) {
    char c = m->role[k];
    good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  }
  if (!good)
    return wr_fail(WEIR_EUSAGE, "message %zu: the role \"%s\" is not 1 to 32 of A-Z a-z 0-9 _ -", i,
                   wr_escape(m->role, m->role_len));
  if (!f->turns || role_is(m, turn % 2 ? "assistant" : "user")) return WEIR_OK;
  return wr_fail(WEIR_EUSAGE,
                 "message %zu is of \"%s\", where the format %s has \"%s\": user and assistant take turns, and what the system says "
                 "comes first",
                 i, wr_escape(m->role, m->role_len), f->name, turn % 2 ? "assistant" : "user");
}

static bool blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f); }

static void put_trimmed(wr_str *text, const char *p, size_t n) {
  while (n && blank(p[n - 1])) n--;
  while (n && blank(*p)) p++, n--;
  wr_str_put(text, p, n);
}

/* What stands between a turn's control tokens. system: what goes in front, or NULL. */
static weir_status put_body(const chat_format *f, const wr_chat_message *m, const wr_chat_message *system, wr_str *text) {
  wr_str_clear(text);
  if (role_is(m, "assistant"))
    wr_str_puts(text, f->assistant);
  else
    wr_str_put(text, m->role, m->role_len);
  wr_str_puts(text, "\n");
  if (system) {
    wr_str_put(text, system->content, system->content_len);
    wr_str_puts(text, "\n\n");
  }
  if (f->turns)
    put_trimmed(text, m->content, m->content_len);
  else
    wr_str_put(text, m->content, m->content_len);
  return text->oom ? wr_fail_nomem(m->content_len, "a message") : WEIR_OK;
}

static weir_status put_all(const chat_format *f, const wr_tokenizer *t, const wr_chat_message *messages, size_t n, bool generate,
                           unsigned flags, wr_str *text, wr_ids *out) {
  const int32_t start = control(t, f->start), end = control(t, f->end);
  const wr_special_ids *special = wr_tokenizer_special(t);
  const wr_chat_message *system = f->turns && n && role_is(&messages[0], "system") ? messages : NULL;
  const size_t first = system ? 1 : 0;
  if (system && n == 1)
    return wr_fail(WEIR_EUSAGE, "a system's message alone: the format %s puts it into the user's first turn, and there is none",
                   f->name);
  if ((flags & WR_TEXT_ADD_SPECIAL) && special->add_bos) WR_TRY(wr_ids_put(out, special->bos));
  for (size_t i = first; i < n; i++) {
    WR_TRY(check_role(f, &messages[i], i, i - first));
    WR_TRY(put_body(f, &messages[i], i == first ? system : NULL, text));
    WR_TRY(wr_ids_put(out, start));
    WR_TRY(wr_encode(t, text->ptr, text->len, flags & WR_TEXT_LOSSY, out));
    WR_TRY(wr_ids_put(out, end));
    WR_TRY(wr_encode(t, "\n", 1, 0, out));
  }
  if (!generate) return WEIR_OK;
  const wr_chat_message answer = {.role = "assistant", .content = "", .role_len = strlen("assistant")};
  WR_TRY(put_body(f, &answer, NULL, text));
  WR_TRY(wr_ids_put(out, start));
  return wr_encode(t, text->ptr, text->len, 0, out);
}

weir_status wr_chat_encode(const wr_tokenizer *t, const wr_chat_message *messages, size_t n, bool generate, unsigned flags,
                           wr_ids *out) {
  const chat_format *f = format_of(t);
  if (!f)
    return wr_fail(WEIR_EUNSUPPORTED, "the vocabulary lacks the control tokens of a chat: %s and %s of ChatML, or %s and %s of Gemma",
                   formats[0].start, formats[0].end, formats[1].start, formats[1].end);
  size_t before = out->len;
  wr_str text = {0};
  weir_status st = put_all(f, t, messages, n, generate, flags, &text, out);
  wr_str_free(&text);
  if (st != WEIR_OK) out->len = before;
  return st;
}
