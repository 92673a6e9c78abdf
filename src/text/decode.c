/* decode.c: ids to text, all at once or as a stream.
 *
 * Owns what a token means in bytes, and undoes what encoding added: the space that begins text at the start and after a
 * special token. Invalid UTF-8 that ids spell stays what it is; the stream only delays bytes, it never changes them. Nothing is
 * "cleaned up" (no space before a comma is dropped), since that would lose what was encoded.
 */
#include "text/text_i.h"

static void put_bpe(const wr_token *k, wr_str *out) {
  char bytes[WR_TEXT_MAX_TOKEN_BYTES];
  size_t n = 0;
  for (size_t i = 0; i < k->len;) {
    uint8_t c = (uint8_t)k->ptr[i], d = i + 1 < k->len ? (uint8_t)k->ptr[i + 1] : 0;
    bool two = c >= 0xc2 && c < 0xe0 && (d & 0xc0) == 0x80;
    int byte = two ? wr_char_byte((c & 0x1fu) << 6 | (d & 0x3fu)) : c < 128 ? wr_char_byte(c) : -1;
    if (byte >= 0)
      bytes[n++] = (char)byte, i += two ? 2 : 1;
    else
      bytes[n++] = k->ptr[i++]; /* not of the alphabet, so it stands for itself */
  }
  wr_str_put(out, bytes, n);
}

static void put_spm(const wr_token *k, bool drop_space, wr_str *out) {
  for (size_t i = 0; i < k->len;) {
    if (k->len - i >= 3 && memcmp(k->ptr + i, WR_SPACE_MARK, 3) == 0) {
      if (!drop_space || i) wr_str_put(out, " ", 1);
      i += 3;
    } else {
      size_t from = i++;
      while (i < k->len && (uint8_t)k->ptr[i] != (uint8_t)WR_SPACE_MARK[0]) i++;
      wr_str_put(out, k->ptr + from, i - from);
    }
  }
}

/* The bytes of one token. *fresh: text that comes now carries a space prefix; updated. */
static weir_status put_token(const wr_tokenizer *t, int32_t id, unsigned flags, bool *fresh, wr_str *out) {
  if (id < 0 || (uint32_t)id >= t->n)
    return wr_fail(WEIR_EUSAGE, "token id %d is outside the vocabulary of %u tokens", id, t->n);
  const wr_token *k = &t->tokens[id];
  if (wr_token_is_special(k->type)) {
    bool shown = k->type == WR_TOKEN_USER_DEFINED || (flags & WR_TEXT_KEEP_SPECIAL);
    if (shown) wr_str_put(out, k->ptr, k->len);
    *fresh = t->prefix != WR_PREFIX_FIRST || (*fresh && !shown);
    return WEIR_OK;
  }
  bool drop = *fresh && t->prefix != WR_PREFIX_NEVER;
  if (k->type == WR_TOKEN_BYTE) {
    char b = (char)wr_token_byte(k);
    if (!drop || b != ' ') wr_str_put(out, &b, 1);
  } else if (t->kind == WR_TEXT_SPM) {
    put_spm(k, drop, out);
  } else {
    put_bpe(k, out);
  }
  if (k->len) *fresh = false;
  return WEIR_OK;
}

static weir_status finish(wr_str *out, size_t before, weir_status st) {
  if (st == WEIR_OK && !out->oom) return WEIR_OK;
  if (out->len > before) out->len = before, out->ptr[before] = 0;
  return st == WEIR_OK ? wr_fail_nomem(out->len, "decoded text") : st;
}

weir_status wr_decode(const wr_tokenizer *t, const int32_t *ids, size_t n, unsigned flags, wr_str *out) {
  size_t before = out->len;
  bool fresh = !(flags & WR_TEXT_CONTINUES);
  weir_status st = WEIR_OK;
  for (size_t i = 0; i < n && st == WEIR_OK; i++) st = put_token(t, ids[i], flags, &fresh, out);
  return finish(out, before, st);
}

void wr_text_stream_init(wr_text_stream *s, const wr_tokenizer *t, unsigned flags) {
  *s = (wr_text_stream){.tokenizer = t, .flags = flags, .at_start = !(flags & WR_TEXT_CONTINUES)};
}

/* What is held is put back before the token's bytes, and the end that is incomplete is taken off again. */
weir_status wr_text_stream_put(wr_text_stream *s, int32_t id, wr_str *out) {
  size_t before = out->len;
  bool fresh = s->at_start;
  if (s->n_held) wr_str_put(out, s->held, s->n_held);
  WR_TRY(finish(out, before, put_token(s->tokenizer, id, s->flags, &fresh, out)));
  s->at_start = fresh;
  s->n_held = 0;
  if (out->len == before) return WEIR_OK;
  s->n_held = (uint8_t)wr_utf8_partial(out->ptr + before, out->len - before);
  out->len -= s->n_held;
  memcpy(s->held, out->ptr + out->len, s->n_held);
  out->ptr[out->len] = 0;
  return WEIR_OK;
}

weir_status wr_text_stream_flush(wr_text_stream *s, wr_str *out) {
  size_t before = out->len;
  if (s->n_held) wr_str_put(out, s->held, s->n_held);
  WR_TRY(finish(out, before, WEIR_OK));
  s->n_held = 0;
  return WEIR_OK;
}
