/* words.c: the words of ASCII text by hand, as the patterns of pretok.def cut them, several times faster than PCRE2.
 *
 * Owns one function for each pattern that most text meets. Each gives the length of the first word of a text whose beginning is
 * a word's beginning, or 0 where a byte beyond ASCII has a say: then PCRE2 cuts, up to the next place that is a word's
 * beginning whatever surrounds it (wr_word_break). No pattern looks behind itself, so a word depends only on what follows.
 *
 * Invariant: the words are those of PCRE2, always; tests/text_words.c holds one against the other.
 */
#include "text/text_i.h"

/* What the patterns ask of a byte. The values are bits, so that a run is a test against a mask. */
enum { LETTER = 1, DIGIT = 2, SPACE = 4, NEWLINE = 8, BLANK = 16, OTHER = 32, FOREIGN = 64, WHITE = SPACE | NEWLINE | BLANK };

#define R8(v) v, v, v, v, v, v, v, v
#define R16(v) R8(v), R8(v)
#define R26(v) R16(v), R8(v), v, v
#define R32(v) R16(v), R16(v)
static const uint8_t class_of[256] = {
    R8(OTHER),    OTHER,        BLANK,        NEWLINE,      BLANK, BLANK, NEWLINE, OTHER, OTHER, /* 00: \t \n \v \f \r */
    R16(OTHER),                                                                                  /* 10 */
    SPACE,        R8(OTHER),    OTHER,        OTHER,        OTHER, OTHER, OTHER,   OTHER, OTHER, /* 20 */
    R8(DIGIT),    DIGIT,        DIGIT,        OTHER,        OTHER, OTHER, OTHER,   OTHER, OTHER, /* 30 */
    OTHER,        R26(LETTER),  OTHER,        OTHER,        OTHER, OTHER, OTHER,                 /* 40 */
    OTHER,        R26(LETTER),  OTHER,        OTHER,        OTHER, OTHER, OTHER,                 /* 60 */
    R32(FOREIGN), R32(FOREIGN), R32(FOREIGN), R32(FOREIGN),
};

static inline size_t run(const uint8_t *p, size_t n, size_t i, unsigned mask) { /* where bytes of these classes end */
  while (i < n && (class_of[p[i]] & mask)) i++;
  return i;
}

static inline bool foreign(const uint8_t *p, size_t n, size_t i) { return i < n && class_of[p[i]] == FOREIGN; }

/* '(?:[sdmt]|ll|ve|re): its length or 0. `fold` is 0x20 where case does not matter. */
static inline size_t contraction(const uint8_t *p, size_t n, uint8_t fold) {
  if (n < 2) return 0;
  uint8_t a = p[1] | fold, b = n > 2 ? p[2] | fold : 0;
  if (a == 's' || a == 'd' || a == 'm' || a == 't') return 2;
  return (a == 'l' && b == 'l') || (a == 'v' && b == 'e') || (a == 'r' && b == 'e') ? 3 : 0;
}

/* \s+(?!\S)|\s+ over the white bytes [0, end): all of them at the end of the text, else all but the last. */
static inline size_t white(size_t end, bool text_ends) { return text_ends || end == 1 ? end : end - 1; }

/* own_digits: each digit was cut out before, so that digits end the text for everything else. */
static inline size_t gpt2(const uint8_t *p, size_t n, bool own_digits) {
  unsigned first = class_of[p[0]];
  size_t i = 0;
  if (own_digits && first == DIGIT) return 1;
  if (p[0] == '\'' && (i = contraction(p, n, 0)) != 0) return i;
  if (first == SPACE && n > 1) {
    unsigned second = class_of[p[1]];
    if (second == FOREIGN) return 0;
    if (second & (own_digits ? LETTER | OTHER : LETTER | DIGIT | OTHER)) first = second, i = 1;
  }
  if (first & (LETTER | DIGIT | OTHER)) {
    i = run(p, n, i + 1, first);
    return foreign(p, n, i) ? 0 : i;
  }
  i = run(p, n, 0, WHITE);
  if (foreign(p, n, i)) return 0;
  return white(i, i == n || (own_digits && class_of[p[i]] == DIGIT));
}

static inline size_t llama3(const uint8_t *p, size_t n, size_t max_digits) {
  unsigned first = class_of[p[0]], second = n > 1 ? class_of[p[1]] : 0;
  size_t i = 0;
  if (first == FOREIGN) return 0;
  if (first == DIGIT) {
    for (i = 1; i < n && i < max_digits && class_of[p[i]] == DIGIT;) i++;
    return i < max_digits && foreign(p, n, i) ? 0 : i;
  }
  if (first != LETTER && second == FOREIGN) return 0; /* a letter after one other character, or the s of old print, folded */
  if (p[0] == '\'' && (i = contraction(p, n, 0x20)) != 0) return i;
  if (first == LETTER || (first != NEWLINE && second == LETTER)) {
    i = run(p, n, 1, LETTER);
    return foreign(p, n, i) ? 0 : i;
  }
  if (first == OTHER || (first == SPACE && second == OTHER)) {
    i = run(p, n, 1, OTHER);
    return foreign(p, n, i) ? 0 : run(p, n, i, NEWLINE);
  }
  i = run(p, n, 0, WHITE);
  if (foreign(p, n, i)) return 0;
  for (size_t last = i; last; last--)
    if (class_of[p[last - 1]] == NEWLINE) return last;
  return white(i, i == n);
}

size_t wr_word_gpt2(const uint8_t *p, size_t n) { return gpt2(p, n, false); }
size_t wr_word_smollm(const uint8_t *p, size_t n) { return gpt2(p, n, true); }
size_t wr_word_llama3(const uint8_t *p, size_t n) { return llama3(p, n, 3); }
size_t wr_word_qwen2(const uint8_t *p, size_t n) { return llama3(p, n, 1); }

/* No pattern of these has a space anywhere but in front, or in a run of white characters. */
size_t wr_word_break(const uint8_t *p, size_t n) {
  for (size_t i = 1; i < n; i++)
    if (p[i] == ' ' && (class_of[p[i - 1]] & (LETTER | DIGIT | OTHER))) return i;
  return n;
}
