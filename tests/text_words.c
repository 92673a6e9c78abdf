/* text_words.c: words cut by hand (src/text/words.c) are the words that the patterns of pretok.def cut.
 *
 * Witness: PCRE2 over the same text; the text is random, of the pieces that the patterns tell apart.
 */
#include "test.h"
#include "text/text_i.h"

enum { MAX_WORDS = 4096 };
typedef struct words {
  const char *text;
  size_t n, end[MAX_WORDS];
} words;

static weir_status keep(void *user, const char *word, size_t n) {
  words *w = user;
  if (n && w->n < MAX_WORDS) w->end[w->n++] = (size_t)(word - w->text) + n;
  return WEIR_OK;
}

static void compare(const wr_splitter *s, const char *text, size_t n) {
  static words fast, slow;
  fast = (words){.text = text}, slow = (words){.text = text};
  CHECK_MSG(wr_split(s, text, n, keep, &fast) == WEIR_OK, "%s", weir_last_error());
  CHECK_MSG(wr_split_pcre(s, text, n, keep, &slow) == WEIR_OK, "%s", weir_last_error());
  size_t i = 0;
  while (i < fast.n && i < slow.n && fast.end[i] == slow.end[i]) i++;
  CHECK_MSG(i == fast.n && i == slow.n, "%s: \"%s\": word %zu ends at %zu, not %zu", s->pretok->row->name, wr_escape(text, n),
            i, i < fast.n ? fast.end[i] : 0, i < slow.n ? slow.end[i] : 0);
}

static const char *const pieces[] = {"a",
                                     "B",
                                     "s",
                                     "S",
                                     "ll",
                                     "re",
                                     "VE",
                                     "t",
                                     "d",
                                     "m",
                                     "word",
                                     "0",
                                     "7",
                                     "123",
                                     "2026",
                                     " ",
                                     " ",
                                     "  ",
                                     "   ",
                                     "\t",
                                     "\n",
                                     "\r\n",
                                     "\n\n",
                                     "\v",
                                     "\f",
                                     "'",
                                     "'",
                                     "'s",
                                     "'LL",
                                     "!",
                                     "?!",
                                     "--",
                                     "_",
                                     "{",
                                     "\x7f",
                                     "\x01",
                                     "\xc3\xa9" /* e acute */,
                                     "\xd0\x96",
                                     "\xe4\xb8\xad",
                                     "\xc2\xa0" /* no-break space */,
                                     "\xe3\x80\x80" /* ideographic space */,
                                     "\xc2\x85",
                                     "\xd9\xa3" /* a digit */,
                                     "\xc2\xbd" /* one half */,
                                     "\xcc\x81" /* a mark */,
                                     "\xe2\x80\xa6",
                                     "\xf0\x9f\x98\x80",
                                     "\xc5\xbf" /* long s */,
                                     "\xff",
                                     "\xc3",
                                     "\xe1\xa0\x8e" /* U+180E */,
                                     "\xe2\x84\xaa" /* Kelvin */};

static void words_are_pcre2s(void) {
  static const char *const names[] = {"gpt-2", "llama-bpe", "smollm", "qwen2", "dbrx", "default"};
  for (size_t k = 0; k < WR_ARRAY_LEN(names); k++) {
    wr_pretok p = {0};
    wr_splitter s;
    const wr_pretok_row *row = wr_pretok_find((wr_gguf_text){names[k], strlen(names[k])});
    REQUIRE(row && wr_pretok_open(row, &p) == WEIR_OK && wr_splitter_open(&p, &s) == WEIR_OK);
    wr_rng r;
    wr_rng_seed(&r, 7 + k);
    for (int round = 0; round < 20000; round++) {
      char text[512];
      size_t n = 0;
      unsigned count = 1 + (unsigned)(wr_rng_u64(&r) % 24);
      /* some rounds are ASCII alone, some change between runs of either */
      bool foreign = round % 3 != 0;
      for (unsigned i = 0; i < count; i++) {
        if (round % 3 == 2 && wr_rng_u64(&r) % 5 == 0) foreign = !foreign;
        const char *piece = pieces[wr_rng_u64(&r) % (foreign ? WR_ARRAY_LEN(pieces) : 36)];
        memcpy(text + n, piece, strlen(piece));
        n += strlen(piece);
      }
      compare(&s, text, n);
    }
    for (int a = 0; a < 256; a++) /* every byte beside every kind of neighbour */
      for (int b = 0; b < 256; b++) {
        char text[6] = {(char)a, (char)b, 'x', ' ', (char)b, (char)a};
        compare(&s, text, 6);
        compare(&s, text, 2);
      }
    wr_splitter_close(&s);
    wr_pretok_close(&p);
  }
}

TEST_MAIN("text_words", TEST(words_are_pcre2s))
