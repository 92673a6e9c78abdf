/* The answer: from tokens to text that may be shown.
 *
 * Three things hold text back. A character whose bytes have not all come (text/ does that). Bytes that cannot be UTF-8: each
 * stretch that a decoder would give up on at once becomes one U+FFFD. And what may be the beginning of a stop text: the longest
 * end of the answer that begins one stays here until the next token decides.
 *
 * Invariant: what was handed out is a prefix of the final answer, and the final answer holds no stop text. */
#include "infer/infer_i.h"

void wr_answer_init(wr_answer *a, const wr_tokenizer *t, unsigned flags, const weir_text *stop, size_t n_stop) {
  *a = (wr_answer){.stop = stop, .n_stop = n_stop};
  wr_text_stream_init(&a->stream, t, flags | WR_TEXT_CONTINUES);
}

void wr_answer_free(wr_answer *a) {
  wr_str_free(&a->raw);
  wr_str_free(&a->text);
}

/* Bytes of the longest beginning of an ill-formed sequence that is a prefix of some well-formed one: what one U+FFFD stands
 * for. */
static size_t bad_length(const char *bytes, size_t n) {
  for (size_t k = WR_MIN(n, (size_t)3); k > 1; k--)
    if (wr_utf8_partial(bytes, k) == k) return k;
  return 1;
}

static void put_clean(wr_str *out, const char *bytes, size_t n) {
  while (n) {
    const size_t good = wr_utf8_valid(bytes, n);
    wr_str_put(out, bytes, good);
    bytes += good;
    n -= good;
    if (!n) break;
    const size_t bad = bad_length(bytes, n);
    wr_str_puts(out, "\xEF\xBF\xBD");
    bytes += bad;
    n -= bad;
  }
}

static bool matches(const wr_str *text, size_t at, const weir_text *stop) {
  return stop->bytes <= text->len - at && memcmp(text->ptr + at, stop->ptr, stop->bytes) == 0;
}

/* Looks for the earliest stop text. Only what was not handed out can hold one. */
static void find_stop(wr_answer *a) {
  for (size_t at = a->given; at < a->text.len; at++)
    for (size_t i = 0; i < a->n_stop; i++) {
      if (!matches(&a->text, at, &a->stop[i])) continue;
      a->text.len = at;
      a->text.ptr[at] = 0;
      a->stopped = true;
      return;
    }
}

static weir_status absorb(wr_answer *a, weir_status s) {
  WR_TRY(s);
  put_clean(&a->text, a->raw.ptr, a->raw.len);
  wr_str_clear(&a->raw);
  if (a->raw.oom || a->text.oom) return wr_fail_nomem(a->text.len, "the answer");
  find_stop(a);
  return WEIR_OK;
}

weir_status wr_answer_put(wr_answer *a, int32_t token) {
  if (a->stopped) return WEIR_OK;
  return absorb(a, wr_text_stream_put(&a->stream, token, &a->raw));
}

weir_status wr_answer_end(wr_answer *a) {
  if (a->stopped) return WEIR_OK;
  WR_TRY(absorb(a, wr_text_stream_flush(&a->stream, &a->raw)));
  a->stopped = true; /* nothing is held back from now on */
  return WEIR_OK;
}

/* Length of the longest end of the text that is a true beginning of a stop text. */
static size_t held_back(const wr_answer *a) {
  for (size_t at = a->given; at < a->text.len; at++) {
    const size_t n = a->text.len - at;
    for (size_t i = 0; i < a->n_stop; i++)
      if (n < a->stop[i].bytes && memcmp(a->text.ptr + at, a->stop[i].ptr, n) == 0) return n;
  }
  return 0;
}

size_t wr_answer_take(wr_answer *a, const char **piece) {
  const size_t end = a->text.len - (a->stopped ? 0 : held_back(a));
  if (end <= a->given) return 0;
  const size_t n = end - a->given;
  *piece = a->text.ptr + a->given;
  a->given = end;
  return n;
}
