/* cut.c: owns where a long text may be cut so that the ids of its parts, put together, are the ids of the whole.
 *
 * Byte-level BPE splits text into words first, and every pre-tokenizer of text/pretok.def begins a word at these two places, whatever
 * stands before and after them:
 *   letter|blank letter     a blank between two ASCII letters: patterns take a blank only before letters, and only one
 *   line end|letter         after a line feed that follows visible ASCII, before an ASCII letter: no pattern goes from a line feed on to
 *                           a letter (after more white space, patterns look ahead to see whether the text ends)
 * SentencePiece knows no words, but where no spelling has its blank after anything but blanks, no merge crosses the beginning of a
 * blank. Tokens of type USER_DEFINED are found in the text before all that: if one of them holds such a place, nothing is cut there.
 * A part after the first is encoded with WR_TEXT_CONTINUES.
 */
#include "data/data_i.h"

static bool letter(char c) { return (unsigned)((c | 32) - 'a') < 26; }

static bool at_blank(const char *text, size_t i) { return text[i] == ' ' && letter(text[i - 1]) && letter(text[i + 1]); }
static bool at_line(const char *text, size_t i) {
  return text[i - 1] == '\n' && letter(text[i]) && i >= 2 && text[i - 2] > ' ' && text[i - 2] < 0x7f;
}

wr_cutter wr_cutter_make(const wr_tokenizer *t) {
  if (!t) return (wr_cutter){true, true};
  const bool words = strncmp(wr_tokenizer_name(t), "gpt2/", 5) == 0;
  wr_cutter c = {.blank = words || wr_tokenizer_ends_words_at_blanks(t), .line = words};
  for (size_t id = 0; id < wr_tokenizer_size(t); id++) {
    const wr_gguf_text k = wr_token_text(t, (int32_t)id);
    const bool whole = wr_token_type_of(t, (int32_t)id) == WR_TOKEN_USER_DEFINED;
    for (size_t i = 0; whole && i < k.len; i++) {
      if (k.ptr[i] == ' ') c.blank = false; /* also at its edges: what stands beside it is not known */
      if (k.ptr[i] == '\n') c.line = false;
      if (!words && (uint8_t)k.ptr[i] == 0xe2) c.blank = false;
    }
  }
  return c;
}

size_t wr_cut_last(const wr_cutter *c, const char *text, size_t from, size_t n) {
  for (size_t i = n; i-- > WR_MAX(from, (size_t)1);) {
    if (c->line && at_line(text, i)) return i;
    if (c->blank && i + 1 < n && at_blank(text, i)) return i;
  }
  return 0;
}
