/* text_small.c: tokenizers over vocabularies made here: order of merges, special tokens, streams, refusals, lack of memory.
 *
 * Witness for the merges: the definition, by brute force. text.c has the tests on real vocabularies.
 */
#include "test.h"

#include "heap_i.h"
#include "text/text.h"

/* ------------------------------------------------------------------------------------------------------ making vocabularies */

enum { MAX_TOKENS = 1024, MAX_MERGES = 512 };
typedef struct maker {
  wr_vocab_source src;
  wr_gguf_text tokens[MAX_TOKENS], merges[MAX_MERGES];
  int32_t types[MAX_TOKENS];
  float scores[MAX_TOKENS];
  char pool[65536];
  size_t used;
} maker;

static wr_gguf_text keep(maker *m, const char *text, size_t n) {
  char *p = m->pool + m->used;
  if (m->used + n > sizeof m->pool) abort();
  if (n) memcpy(p, text, n);
  m->used += n;
  return (wr_gguf_text){p, n};
}

static int32_t add(maker *m, const char *text, wr_token_type type, float score) {
  size_t i = m->src.n_tokens++;
  if (i >= MAX_TOKENS) abort();
  m->tokens[i] = keep(m, text, strlen(text));
  m->types[i] = (int32_t)type;
  m->scores[i] = score;
  m->src.n_types = m->src.n_tokens;
  if (m->src.scores) m->src.n_scores = m->src.n_tokens;
  return (int32_t)i;
}

static void add_merge(maker *m, const char *text) { m->merges[m->src.n_merges++] = keep(m, text, strlen(text)); }

/* The characters that stand for bytes, as GPT-2's encoder.py lists them: printable ones first, then the rest from 256 on. */
static void spell_byte(int byte, char out[3]) {
  int c = -1, extra = 0;
  for (int b = 0; b <= byte; b++) {
    bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
    c = printable ? b : 256 + extra++;
  }
  if (c < 128)
    out[0] = (char)c, out[1] = 0;
  else
    out[0] = (char)(0xc0 | c >> 6), out[1] = (char)(0x80 | (c & 63)), out[2] = 0;
}

static void begin(maker *m, const char *model) {
  memset(m, 0, sizeof *m);
  wr_vocab_source_init(&m->src);
  m->src.model = (wr_gguf_text){model, strlen(model)};
  m->src.tokens = m->tokens;
  m->src.types = m->types;
}

/* ids 0…255 are the bytes */
static void begin_bpe(maker *m) {
  begin(m, "gpt2");
  m->src.pre = (wr_gguf_text){"gpt-2", 5};
  m->src.merges = m->merges;
  for (int b = 0; b < 256; b++) {
    char spelled[3];
    spell_byte(b, spelled);
    add(m, spelled, WR_TOKEN_NORMAL, 0);
  }
}

/* ids: 0 <unk>, 1 <s>, 2 </s>, 3…258 the bytes, 259 the blank */
static void begin_spm(maker *m) {
  begin(m, "llama");
  m->src.scores = m->scores;
  add(m, "<unk>", WR_TOKEN_UNKNOWN, 0);
  add(m, "<s>", WR_TOKEN_CONTROL, 0);
  add(m, "</s>", WR_TOKEN_CONTROL, 0);
  for (int b = 0; b < 256; b++) {
    char spelled[8];
    snprintf(spelled, sizeof spelled, "<0x%02X>", b);
    add(m, spelled, WR_TOKEN_BYTE, 0);
  }
  add(m, "\u2581", WR_TOKEN_NORMAL, -1000);
}

static wr_tokenizer *make(const maker *m) {
  wr_tokenizer *t = NULL;
  CHECK_MSG(wr_tokenizer_open(&m->src, &t) == WEIR_OK, "%s", weir_last_error());
  return t;
}

static void check_ids(const wr_tokenizer *t, const char *text, size_t n, unsigned flags, const int32_t *want, size_t n_want) {
  wr_ids ids = {0};
  if (!CHECK_MSG(wr_encode(t, text, n, flags, &ids) == WEIR_OK, "%s", weir_last_error())) return;
  bool same = ids.len == n_want;
  for (size_t i = 0; same && i < n_want; i++) same = ids.ptr[i] == want[i];
  wr_str got = {0};
  for (size_t i = 0; i < ids.len; i++) wr_str_printf(&got, " %d", ids.ptr[i]);
  CHECK_MSG(same, "\"%s\" gives%s, and not the %zu ids that were wanted", wr_escape(text, n), got.ptr ? got.ptr : " nothing",
            n_want);
  wr_str back = {0};
  CHECK(wr_decode(t, ids.ptr, ids.len, WR_TEXT_KEEP_SPECIAL, &back) == WEIR_OK);
  if (!(flags & (WR_TEXT_ADD_SPECIAL | WR_TEXT_LOSSY | WR_TEXT_CONTINUES)))
    CHECK_MSG(back.len == n && (n == 0 || memcmp(back.ptr, text, n) == 0), "\"%s\" comes back as \"%s\"", wr_escape(text, n),
              wr_escape(back.ptr, back.len));
  wr_ids_free(&ids);
  wr_str_free(&got);
  wr_str_free(&back);
}
#define CHECK_IDS(t, text, flags, ...) \
  check_ids(t, text, sizeof(text) - 1, flags, (const int32_t[]){__VA_ARGS__}, WR_ARRAY_LEN(((const int32_t[]){__VA_ARGS__})))

/* ---------------------------------------------------------------------------------------------------------- order of merges */

/* The definition: as long as some neighbours merge, merge the pair with the smallest key, the leftmost of equal ones. */
typedef struct brute {
  int32_t ids[512];
  size_t n;
} brute;
typedef double (*key_fn)(const maker *m, int32_t a, int32_t b, int32_t *merged); /* INFINITY: they do not merge */

static void merge_brutally(const maker *m, brute *w, key_fn key) {
  for (;;) {
    double best = INFINITY;
    size_t at = 0;
    int32_t merged = 0, id = 0;
    for (size_t i = 0; i + 1 < w->n; i++) {
      double k = key(m, w->ids[i], w->ids[i + 1], &id);
      if (k < best) best = k, at = i, merged = id;
    }
    if (best == INFINITY) return;
    w->ids[at] = merged;
    memmove(w->ids + at + 1, w->ids + at + 2, (w->n - at - 2) * sizeof *w->ids);
    w->n--;
  }
}

static int32_t find(const maker *m, const char *text, size_t n) {
  for (size_t i = 0; i < m->src.n_tokens; i++)
    if (m->tokens[i].len == n && memcmp(m->tokens[i].ptr, text, n) == 0) return (int32_t)i;
  return -1;
}

static double rank_of(const maker *m, int32_t a, int32_t b, int32_t *merged) {
  char text[128];
  for (size_t i = 0; i < m->src.n_merges; i++) {
    wr_gguf_text x = m->tokens[a], y = m->tokens[b], z = m->merges[i];
    if (z.len != x.len + y.len + 1 || memcmp(z.ptr, x.ptr, x.len) != 0) continue;
    if (memcmp(z.ptr + x.len + 1, y.ptr, y.len) != 0) continue;
    memcpy(text, x.ptr, x.len);
    memcpy(text + x.len, y.ptr, y.len);
    *merged = find(m, text, x.len + y.len);
    return (double)i;
  }
  return INFINITY;
}

static double score_of(const maker *m, int32_t a, int32_t b, int32_t *merged) {
  char text[128];
  wr_gguf_text x = m->tokens[a], y = m->tokens[b];
  if (x.len + y.len > sizeof text) return INFINITY;
  memcpy(text, x.ptr, x.len);
  memcpy(text + x.len, y.ptr, y.len);
  int32_t id = find(m, text, x.len + y.len);
  if (id < 0 || m->types[id] != WR_TOKEN_NORMAL) return INFINITY;
  *merged = id;
  return -(double)m->scores[id];
}

static void bpe_merges_in_order_of_rank(void) {
  static maker m;
  wr_rng r;
  wr_rng_seed(&r, 8);
  for (int round = 0; round < 8; round++) {
    begin_bpe(&m);
    int32_t parts[64] = {'a', 'b', 'c'};
    size_t n_parts = 3;
    while (n_parts < 40) { /* a merge of two tokens that exist, at a random place in the order */
      wr_gguf_text x = m.tokens[parts[wr_rng_u64(&r) % n_parts]], y = m.tokens[parts[wr_rng_u64(&r) % n_parts]];
      char text[128], merge[130];
      if (x.len + y.len > 20) continue;
      snprintf(text, sizeof text, "%.*s%.*s", (int)x.len, x.ptr, (int)y.len, y.ptr);
      snprintf(merge, sizeof merge, "%.*s %.*s", (int)x.len, x.ptr, (int)y.len, y.ptr);
      if (find(&m, text, strlen(text)) >= 0) continue;
      parts[n_parts++] = add(&m, text, WR_TOKEN_NORMAL, 0);
      add_merge(&m, merge);
    }
    for (size_t i = m.src.n_merges; i > 1; i--) {
      size_t k = wr_rng_u64(&r) % i;
      wr_gguf_text swap = m.merges[i - 1];
      m.merges[i - 1] = m.merges[k], m.merges[k] = swap;
    }
    wr_tokenizer *t = make(&m);
    REQUIRE(t);
    for (int word = 0; word < 60; word++) {
      char text[400];
      brute w = {.n = 1 + wr_rng_u64(&r) % (word < 40 ? 40 : 400)};
      for (size_t i = 0; i < w.n; i++) w.ids[i] = text[i] = (char)('a' + wr_rng_u64(&r) % 3);
      size_t n = w.n;
      merge_brutally(&m, &w, rank_of);
      check_ids(t, text, n, 0, w.ids, w.n);
    }
    wr_tokenizer_close(t);
  }
}

/* Scores from a small set, so that many are equal; with and without tokens that cross from a word into the next blank. */
static void spm_merges_in_order_of_score(void) {
  static maker m;
  wr_rng r;
  wr_rng_seed(&r, 9);
  for (int round = 0; round < 8; round++) {
    begin_spm(&m);
    const char *alphabet[] = {"a", "b", "\u00e9", "\u2581"};
    int32_t letters[4] = {0, 0, 0, 259};
    for (int i = 0; i < 3; i++) letters[i] = add(&m, alphabet[i], WR_TOKEN_NORMAL, -900);
    for (int k = 0; k < 40; k++) {
      char text[64] = "";
      for (uint64_t n = 2 + wr_rng_u64(&r) % 4; n > 0; n--) {
        bool blank_may_come = round % 2 || !text[0] || strcmp(text + strlen(text) - WR_MIN(strlen(text), 3), "\u2581") == 0;
        strcat(text, alphabet[wr_rng_u64(&r) % (blank_may_come ? 4 : 3)]);
      }
      if (find(&m, text, strlen(text)) < 0) add(&m, text, WR_TOKEN_NORMAL, (float)(wr_rng_u64(&r) % 6) * -2.5f);
    }
    wr_tokenizer *t = make(&m);
    REQUIRE(t);
    for (int word = 0; word < 60; word++) {
      char text[1200] = "";
      brute w = {.n = 1};
      w.ids[0] = letters[3]; /* the space prefix */
      for (uint64_t n = 1 + wr_rng_u64(&r) % (word < 56 ? 30 : 300); n > 0; n--) {
        uint64_t k = wr_rng_u64(&r) % 4;
        strcat(text, k == 3 ? " " : alphabet[k]);
        w.ids[w.n++] = letters[k];
      }
      merge_brutally(&m, &w, score_of);
      check_ids(t, text, strlen(text), 0, w.ids, w.n);
    }
    wr_tokenizer_close(t);
  }
}

/* ----------------------------------------------------------------------------------------------------------- special tokens */

static void special_tokens_are_the_callers_choice(void) {
  static maker m;
  begin_bpe(&m);
  int32_t ab = add(&m, "ab", WR_TOKEN_CONTROL, 0), abc = add(&m, "abc", WR_TOKEN_NORMAL, 0);
  int32_t end = add(&m, "<|im_end|>", WR_TOKEN_USER_DEFINED, 0); /* mistyped, as in many files */
  int32_t u = add(&m, "<u>", WR_TOKEN_USER_DEFINED, 0), uu = add(&m, "<u><u>", WR_TOKEN_USER_DEFINED, 0);
  int32_t s = add(&m, "</s>", WR_TOKEN_NORMAL, 0), raw = add(&m, "\u00e9", WR_TOKEN_USER_DEFINED, 0);
  add_merge(&m, "a b");  /* would make a control token: passed over */
  add_merge(&m, "ab c"); /* and so is what needs it */
  m.src.bos_id = ab, m.src.add_bos = 1, m.src.add_eos = 1, m.src.eos_id = end;
  wr_tokenizer *t = make(&m);
  REQUIRE(t);
  CHECK_IDS(t, "abc", 0, 'a', 'b', 'c');
  CHECK_IDS(t, "abc", WR_TEXT_PARSE_SPECIAL, ab, 'c');
  CHECK_IDS(t, "x", WR_TEXT_ADD_SPECIAL, ab, 'x', end);
  CHECK_IDS(t, "<u>a<u><u><u>", 0, u, 'a', uu, u); /* leftmost, then longest */
  CHECK_IDS(t, "<|im_end|>", 0, '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>');
  CHECK_IDS(t, "<|im_end|><|im_end", WR_TEXT_PARSE_SPECIAL, end, '<', '|', 'i', 'm', '_', 'e', 'n', 'd');
  CHECK_IDS(t, "</s>", WR_TEXT_PARSE_SPECIAL, '<', '/', 's', '>'); /* NORMAL: HTML, not an end */
  CHECK_IDS(t, "\u00e9\xe9", 0, raw, 0xe9);
  CHECK_EQ_INT(wr_token_type_of(t, end), WR_TOKEN_CONTROL);
  CHECK(wr_token_is_end(t, end) && !wr_token_is_end(t, s) && !wr_token_is_end(t, -1) && !wr_token_is_end(t, 1 << 20));
  CHECK_EQ_INT(wr_token_find(t, "ab", 2), ab);
  CHECK_EQ_INT(wr_token_find(t, "abc", 3), abc);
  CHECK_EQ_INT(wr_token_find(t, "<u>", 3), u);
  CHECK_EQ_INT(wr_token_find(t, "<u", 2), WR_NO_TOKEN);
  CHECK_EQ_INT(wr_token_find(t, "", 0), WR_NO_TOKEN);
  const int32_t ids[] = {ab, 'x', u, end};
  wr_str out = {0};
  CHECK(wr_decode(t, ids, 4, 0, &out) == WEIR_OK);
  CHECK_STR(out.ptr, "x<u>"); /* control tokens are not text */
  const int32_t wrong[] = {'x', (int32_t)m.src.n_tokens};
  CHECK_EQ_INT(wr_decode(t, wrong, 2, 0, &out), WEIR_EUSAGE);
  CHECK_STR(out.ptr, "x<u>");
  wr_str_free(&out);
  wr_tokenizer_close(t);
}

/* Case B09: one space is added where text begins, and that one is taken away again. */
static void space_prefix_comes_and_goes(void) {
  static maker m;
  begin_spm(&m);
  const int32_t sp = 259;
  int32_t a = add(&m, "a", WR_TOKEN_NORMAL, -10), sa = add(&m, "\u2581a", WR_TOKEN_NORMAL, -1);
  int32_t spsp = add(&m, "\u2581\u2581", WR_TOKEN_NORMAL, -2), u = add(&m, " u ", WR_TOKEN_USER_DEFINED, 0);
  wr_tokenizer *t = make(&m);
  REQUIRE(t);
  CHECK_IDS(t, "a", 0, sa);
  CHECK_IDS(t, " a", 0, sp, sa);
  CHECK_IDS(t, "  a", 0, spsp, sa);
  CHECK_IDS(t, " ", 0, spsp);
  CHECK_IDS(t, "a a", 0, sa, sa);
  CHECK_IDS(t, "a", WR_TEXT_CONTINUES, a);
  CHECK_IDS(t, "a</s>a", WR_TEXT_PARSE_SPECIAL, sa, 2, sa);
  CHECK_IDS(t, " u a", 0, u, sa);
  CHECK_IDS(t, "a u  u  a", 0, sa, u, u, sp, sa);
  CHECK_IDS(t, "</s>", 0, sp, 3 + '<', 3 + '/', 3 + 's', 3 + '>');
  CHECK_IDS(t, "<0x0A>\n", 0, sp, 3 + '<', 3 + '0', 3 + 'x', 3 + '0', 3 + 'A', 3 + '>', 3 + '\n');
  CHECK_IDS(t, "\u20ac\xe2\x82", 0, sp, 3 + 0xe2, 3 + 0x82, 3 + 0xac, 3 + 0xe2, 3 + 0x82);
  check_ids(t, "", 0, WR_TEXT_ADD_SPECIAL, (const int32_t[]){1}, 1);
  check_ids(t, NULL, 0, 0, NULL, 0);
  const int32_t ids[] = {1, sa, sa};
  wr_str out = {0};
  CHECK(wr_decode(t, ids, 3, 0, &out) == WEIR_OK);
  CHECK_STR(out.ptr, "a a");
  wr_str_clear(&out);
  CHECK(wr_decode(t, ids + 1, 2, WR_TEXT_CONTINUES, &out) == WEIR_OK);
  CHECK_STR(out.ptr, " a a");
  wr_str_free(&out);
  wr_tokenizer_close(t);
  m.src.add_space_prefix = 0;
  t = make(&m);
  REQUIRE(t);
  CHECK_IDS(t, "a", 0, a);
  CHECK_IDS(t, " a", 0, sa);
  wr_tokenizer_close(t);
}

static void bytes_without_a_token(void) {
  static maker m;
  begin_bpe(&m);
  m.types[0x04] = WR_TOKEN_UNUSED;
  m.tokens[0x04] = keep(&m, "[PAD4]", 6);
  wr_tokenizer *t = make(&m);
  REQUIRE(t);
  wr_ids ids = {0};
  CHECK(wr_ids_put(&ids, 7) == WEIR_OK);
  CHECK_EQ_INT(wr_encode(t, "a b\x04", 4, 0, &ids), WEIR_EUNSUPPORTED);
  CHECK_HAS(weir_last_error(), "byte 3 is 0x04");
  CHECK_EQ_INT(ids.len, 1);
  CHECK_IDS(t, "a\x04z", WR_TEXT_LOSSY, 'a', 'z');
  wr_encoder *e = NULL; /* what it remembers does not depend on the flags */
  REQUIRE(wr_encoder_open(t, &e) == WEIR_OK);
  CHECK_EQ_INT(wr_encoder_put(e, "!\x04", 2, WR_TEXT_LOSSY, &ids), WEIR_OK);
  CHECK_EQ_INT(wr_encoder_put(e, "!\x04", 2, 0, &ids), WEIR_EUNSUPPORTED);
  CHECK_EQ_INT(ids.len, 2);
  ids.len = 1;
  wr_encoder_close(e);
  wr_tokenizer_close(t);
  begin_spm(&m);
  m.types[3 + 0xac] = WR_TOKEN_NORMAL; /* "<0xAC>" is then a spelling like any other */
  t = make(&m);
  REQUIRE(t);
  CHECK_EQ_INT(wr_encode(t, "a \u20ac", 5, 0, &ids), WEIR_EUNSUPPORTED);
  CHECK_HAS(weir_last_error(), "byte 4 is 0xAC");
  CHECK_EQ_INT(ids.len, 1);
  CHECK_IDS(t, "\u20ac", WR_TEXT_LOSSY, 259, 3 + 0xe2, 3 + 0x82, 0);
  wr_tokenizer_close(t);
  wr_ids_free(&ids);
}

/* ------------------------------------------------------------------------------------------------------------ very long words */

/* A vocabulary whose ranks rise is merged rank by rank, another by a heap. The second here is the first and two merges more, out of
 * order, of letters that the text does not have. */
static wr_tokenizer *over_abc(maker *m, uint64_t seed, bool rising) {
  char made[40][16] = {"a", "b", "c"};
  int n = 3;
  wr_rng r;
  wr_rng_seed(&r, seed);
  begin_bpe(m);
  while (n < 40) {
    const char *left = made[wr_rng_u64(&r) % (unsigned)n], *right = made[wr_rng_u64(&r) % (unsigned)n];
    char both[2 * sizeof made[0]], merge[40];
    bool known = false;
    snprintf(both, sizeof both, "%s%s", left, right);
    for (int i = 0; i < n; i++) known |= strcmp(made[i], both) == 0;
    if (known || strlen(both) > 12) continue;
    memcpy(made[n], both, sizeof made[0]); /* with its end, by the test above */
    add(m, both, WR_TOKEN_NORMAL, 0);
    for (int i = 0; i < n; i++) /* in every way, so that one token comes about at several ranks */
      for (int k = 0; k < n; k++) {
        const size_t cut = strlen(made[i]);
        if (strncmp(both, made[i], cut) != 0 || strcmp(both + cut, made[k]) != 0) continue;
        snprintf(merge, sizeof merge, "%.*s %s", (int)cut, both, both + cut);
        add_merge(m, merge);
      }
    n++;
  }
  if (!rising) {
    add(m, "xy", WR_TOKEN_NORMAL, 0);
    add(m, "xyz", WR_TOKEN_NORMAL, 0);
    add_merge(m, "xy z");
    add_merge(m, "x y");
  }
  return make(m);
}

static void very_long_words(void) {
  enum { N = 9000 };
  static maker m[2];
  static char text[N];
  int merged = 0;
  for (uint64_t seed = 0; seed < 40; seed++) {
    wr_tokenizer *a = over_abc(&m[0], seed, true), *b = over_abc(&m[1], seed, false);
    REQUIRE(a && b);
    wr_rng r;
    wr_rng_seed(&r, 1000 + seed);
    unsigned letters = 1 + (unsigned)(seed % 3);
    for (int i = 0; i < N; i++) text[i] = (char)('a' + (wr_rng_u64(&r) % 8 ? 0 : wr_rng_u64(&r) % letters));
    if (seed % 2)
      for (int i = 0; i < N; i++) text[i] = (char)('a' + wr_rng_u64(&r) % letters);
    wr_ids x = {0}, y = {0};
    CHECK(wr_encode(a, text, N, 0, &x) == WEIR_OK && wr_encode(b, text, N, 0, &y) == WEIR_OK);
    CHECK_MSG(x.len == y.len && memcmp(x.ptr, y.ptr, x.len * sizeof *x.ptr) == 0, "seed %llu: other ids",
              (unsigned long long)seed);
    merged += x.len < N / 10 * 9;
    wr_ids_free(&x);
    wr_ids_free(&y);
    wr_tokenizer_close(a);
    wr_tokenizer_close(b);
  }
  CHECK_MSG(merged > 20, "only %d texts were shortened", merged);
}

/* ------------------------------------------------------------------------------------------------------------------- stream */

/* Case B06: what comes out is whole characters, and together it is everything. */
static void stream_holds_back_half_characters(void) {
  static maker m;
  begin_bpe(&m);
  wr_tokenizer *t = make(&m);
  REQUIRE(t);
  static const struct {
    const char *in, *out;
  } steps[] = {
      /* a byte in; what comes out */
      {"a", "a"},       {"\xf0", ""},       {"\x9f", ""},       {"\x98", ""},         {"\x80", "\U0001f600"},
      {"\xe2", ""},     {"\x82", ""},       {"z", "\xe2\x82z"}, {"\xff", "\xff"},     {"\xc3", ""},
      {"\xc3", "\xc3"}, {"\xa9", "\u00e9"}, {"\xed", ""},       {"\xa0", "\xed\xa0"}, {"\xe2", ""},
  };
  wr_text_stream s;
  wr_text_stream_init(&s, t, 0);
  wr_str out = {0};
  for (size_t i = 0; i < WR_ARRAY_LEN(steps); i++) {
    wr_str_clear(&out);
    CHECK(wr_text_stream_put(&s, (uint8_t)steps[i].in[0], &out) == WEIR_OK);
    CHECK_MSG(out.len == strlen(steps[i].out) && memcmp(out.ptr, steps[i].out, out.len) == 0, "step %zu gives \"%s\"", i,
              wr_escape(out.ptr, out.len));
  }
  CHECK_EQ_INT(wr_text_stream_put(&s, -1, &out), WEIR_EUSAGE);
  wr_str_clear(&out);
  CHECK(wr_text_stream_flush(&s, &out) == WEIR_OK);
  CHECK_STR(out.ptr, "\xe2");
  CHECK(wr_text_stream_flush(&s, &out) == WEIR_OK);
  CHECK_EQ_INT(out.len, 1);
  wr_str_free(&out);
  wr_tokenizer_close(t);
}

/* ----------------------------------------------------------------------------------------------------------------- refusals */

static void refused(const maker *m, weir_status status, const char *says) {
  wr_tokenizer *t = NULL;
  CHECK_MSG(wr_tokenizer_open(&m->src, &t) == status, "not refused as it should be (%s)", says);
  CHECK_HAS(weir_last_error(), says);
  CHECK(!t);
  wr_tokenizer_close(t);
}

static void vocabularies_that_make_no_sense(void) {
  static maker m;
  static char big[WR_ARRAY_LEN(m.pool)];
#define BPE(change, status, says) begin_bpe(&m), (change), refused(&m, status, says)
#define SPM(change, status, says) begin_spm(&m), (change), refused(&m, status, says)
  BPE(m.src.model.ptr = "bert", WEIR_EUNSUPPORTED, "bert");
  BPE(m.src.model.len = 0, WEIR_EFORMAT, "tokenizer.ggml.model");
  BPE(m.src.pre.len = 0, WEIR_EUNSUPPORTED, "tokenizer.ggml.pre is missing");
  BPE(m.src.pre = ((wr_gguf_text){"tekken\n", 7}), WEIR_EUNSUPPORTED, "tekken\\x0A");
  BPE(m.src.pre = ((wr_gguf_text){"gpt-2\0", 6}), WEIR_EUNSUPPORTED, "gpt-2\\x00");
  BPE(m.src.pre = ((wr_gguf_text){"llama3 llama-v3", 15}), WEIR_EUNSUPPORTED, "llama3 llama-v3");
  BPE(m.src.n_tokens = 0, WEIR_EFORMAT, "tokenizer.ggml.tokens");
  BPE(m.src.n_tokens = (size_t)1 << 30, WEIR_EUNSUPPORTED, "1073741824 tokens");
  BPE(m.src.n_merges = (size_t)1 << 30, WEIR_EUNSUPPORTED, "1073741824 merges");
  BPE(m.src.n_types = 3, WEIR_EFORMAT, "3 entries for 256 tokens");
  BPE(m.src.merges = NULL, WEIR_EFORMAT, "tokenizer.ggml.merges is missing");
  BPE(m.src.bos_id = 256, WEIR_EFORMAT, "bos_token_id is 256");
  BPE(m.src.eos_id = -2, WEIR_EFORMAT, "eos_token_id is -2");
  BPE(m.src.eot_id = UINT32_MAX, WEIR_EFORMAT, "eot_token_id is 4294967295");
  BPE(m.src.add_bos = 1, WEIR_EFORMAT, "bos_token_id is missing");
  BPE(m.src.add_eos = 1, WEIR_EFORMAT, "eos_token_id is missing");
  BPE(m.src.add_space_prefix = 1, WEIR_EUNSUPPORTED, "add_space_prefix");
  BPE(add_merge(&m, "ab"), WEIR_EFORMAT, "merge 0, \"ab\"");
  BPE(add_merge(&m, ""), WEIR_EFORMAT, "merge 0, \"\"");
  BPE(add_merge(&m, "a "), WEIR_EFORMAT, "two tokens");
  BPE(add_merge(&m, " b"), WEIR_EFORMAT, "two tokens");
  BPE(add_merge(&m, "a bc"), WEIR_EFORMAT, "names a token");
  BPE(add_merge(&m, "a b"), WEIR_EFORMAT, "makes a token");
  BPE(m.types[7] = WR_TOKEN_BYTE, WEIR_EFORMAT, "token 7");
  BPE((memset(big, 'x', sizeof big), m.tokens[9] = (wr_gguf_text){big, 4097}), WEIR_EUNSUPPORTED, "token 9 is 4097 bytes");
  SPM(m.src.scores = NULL, WEIR_EFORMAT, "tokenizer.ggml.scores is missing");
  SPM(m.src.n_scores = 1, WEIR_EFORMAT, "1 entries for 260 tokens");
  SPM(m.src.pre = ((wr_gguf_text){"qwen2", 5}), WEIR_EUNSUPPORTED, "qwen2");
  SPM(m.src.remove_extra_whitespaces = 1, WEIR_EUNSUPPORTED, "remove_extra_whitespaces");
  SPM(m.tokens[5].len = 5, WEIR_EFORMAT, "token 5");
#undef BPE
#undef SPM
}

/* Odd, but published files are like that. */
static void vocabularies_that_are_odd(void) {
  static maker m;
  begin_bpe(&m);
  int32_t ab = add(&m, "ab", WR_TOKEN_NORMAL, 0), ab2 = add(&m, "ab", WR_TOKEN_NORMAL, 0);
  int32_t empty = add(&m, "", WR_TOKEN_NORMAL, 0);
  int32_t odd = add(&m, "c d\u2581", (wr_token_type)77, 0);
  add(&m, "", WR_TOKEN_CONTROL, 0);
  add(&m, "", WR_TOKEN_USER_DEFINED, 0);
  add_merge(&m, "a b");
  add_merge(&m, "a b");
  m.src.pad_id = 1 << 20; /* an id that a converter forgot to check */
  m.src.unk_id = UINT32_MAX;
  wr_tokenizer *t = make(&m);
  REQUIRE(t);
  CHECK_IDS(t, "abab", WR_TEXT_PARSE_SPECIAL, ab, ab);
  CHECK_EQ_INT(wr_tokenizer_special(t)->pad, WR_NO_TOKEN);
  CHECK_EQ_INT(wr_token_type_of(t, odd), WR_TOKEN_UNDEFINED);
  wr_str out = {0};
  CHECK(wr_decode(t, (const int32_t[]){ab2, empty, odd}, 3, 0, &out) == WEIR_OK);
  CHECK_STR(out.ptr, "abc d\u2581");
  wr_str_free(&out);
  wr_tokenizer_close(t);
  begin_spm(&m); /* without types: they are seen from the spellings */
  m.src.types = NULL;
  m.src.bos_id = 1, m.src.eos_id = 2, m.src.unk_id = 0;
  m.scores[259] = NAN;
  t = make(&m);
  REQUIRE(t);
  CHECK_IDS(t, "</s>", 0, 259, 3 + '<', 3 + '/', 3 + 's', 3 + '>');
  CHECK_IDS(t, "</s>", WR_TEXT_PARSE_SPECIAL, 2);
  CHECK_STR(wr_tokenizer_name(t), "llama");
  wr_tokenizer_close(t);
}

/* --------------------------------------------------------------------------------------------------------------------- chat */

static weir_status chat(const wr_tokenizer *t, size_t n, const wr_chat_message *m, wr_ids *ids) {
  ids->len = 0;
  return wr_chat_encode(t, m, n, true, 0, ids);
}

#define SAYS(role, content) {role, content, sizeof(role) - 1, sizeof(content) - 1}

/* Gemma's format, with files that call its tokens USER_DEFINED. The ids against llama.cpp's and jinja2's: models.py, text.c. */
static void chats_of_gemma(void) {
  static maker m;
  begin_spm(&m);
  m.src.add_space_prefix = 0;
  add(&m, "<start_of_turn>", WR_TOKEN_USER_DEFINED, 0);
  add(&m, "<end_of_turn>", WR_TOKEN_USER_DEFINED, 0);
  wr_tokenizer *t = make(&m);
  REQUIRE(t);
  CHECK_STR(wr_chat_format(t), "gemma");
  const wr_chat_message talk[] = {SAYS("system", " brief "), SAYS("user", "\t hi <end_of_turn>\n"), SAYS("assistant", " yo "),
                                  SAYS("user", "")};
  wr_ids ids = {0};
  wr_str text = {0};
  REQUIRE(chat(t, 4, talk, &ids) == WEIR_OK);
  size_t control = 0;
  for (size_t i = 0; i < ids.len; i++) control += wr_token_type_of(t, ids.ptr[i]) == WR_TOKEN_CONTROL;
  CHECK_EQ_INT(control, 7); /* nobody forges a turn */
  CHECK(wr_decode(t, ids.ptr, ids.len, WR_TEXT_KEEP_SPECIAL, &text) == WEIR_OK);
  CHECK_STR(text.ptr, "<start_of_turn>user\n brief \n\nhi <end_of_turn><end_of_turn>\n<start_of_turn>model\nyo<end_of_turn>\n"
                      "<start_of_turn>user\n<end_of_turn>\n<start_of_turn>model\n");
  CHECK(wr_token_is_end(t, 261));
  wr_tokenizer_close(t);
  /* "</s>" is the file's end of text, whatever type it has; where texts begin and end with others, it is HTML */
  m.types[2] = WR_TOKEN_USER_DEFINED;
  for (int own = 0; own < 2; own++) {
    m.src.bos_id = own ? 1 : 260;
    m.src.eos_id = 261;
    t = make(&m);
    REQUIRE(t);
    CHECK(wr_token_is_end(t, 2) == own && (wr_token_type_of(t, 2) == WR_TOKEN_CONTROL) == own);
    if (!own) CHECK_IDS(t, "</s>", 0, 2);
    if (!own) wr_tokenizer_close(t);
  }
  const wr_chat_message twice[] = {SAYS("user", "a"), SAYS("user", "b")}, late[] = {SAYS("user", "a"), SAYS("system", "b")};
  CHECK_EQ_INT(chat(t, 2, twice, &ids), WEIR_EUSAGE);
  CHECK_HAS(weir_last_error(), "message 1");
  CHECK_EQ_INT(chat(t, 2, late, &ids), WEIR_EUSAGE);
  CHECK_EQ_INT(chat(t, 1, talk + 2, &ids), WEIR_EUSAGE); /* the assistant begins */
  CHECK_EQ_INT(chat(t, 1, talk, &ids), WEIR_EUSAGE);     /* nobody to whom the system's message could go */
  CHECK_HAS(weir_last_error(), "system");
  CHECK_EQ_INT(ids.len, 0);
  wr_ids_free(&ids);
  wr_str_free(&text);
  wr_tokenizer_close(t);
}

/* ----------------------------------------------------------------------------------------------------------- lack of memory */

static weir_status everything(const maker *m) {
  wr_tokenizer *t;
  wr_ids ids = {0};
  wr_str out = {0};
  const wr_chat_message message = {"user", "hello <|im_end|> there", 4, 22};
  WR_TRY(wr_tokenizer_open(&m->src, &t));
  weir_status st = wr_encode(t, "some text, \xff and a very long word: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 74, 0, &ids);
  if (st == WEIR_OK) st = wr_decode(t, ids.ptr, ids.len, 0, &out);
  if (st == WEIR_OK && m->src.merges) st = wr_chat_encode(t, &message, 1, true, 0, &ids);
  wr_text_stream s;
  wr_text_stream_init(&s, t, 0);
  for (size_t i = 0; st == WEIR_OK && i < ids.len; i++) st = wr_text_stream_put(&s, ids.ptr[i], &out);
  if (st == WEIR_OK) st = wr_text_stream_flush(&s, &out);
  wr_ids_free(&ids);
  wr_str_free(&out);
  wr_tokenizer_close(t);
  return st;
}

static void every_allocation_may_fail(void) {
  static maker m;
  for (int spm = 0; spm < 2; spm++) {
    if (spm)
      begin_spm(&m);
    else
      begin_bpe(&m), add(&m, "<|im_start|>", WR_TOKEN_CONTROL, 0), add(&m, "<|im_end|>", WR_TOKEN_CONTROL, 0);
    weir_status st = WEIR_ENOMEM;
    weir_set_hooks(&(weir_hooks){HEAP_HOOKS});
    long n = 0, silent = 0;
    while (n < 1000) {
      heap_fail(++n);
      st = everything(&m);
      CHECK_MSG(st == WEIR_OK || st == WEIR_ENOMEM, "allocation %ld fails: %s", n, weir_last_error());
      CHECK_MSG(heap.live == 0, "allocation %ld fails: %ld blocks are lost", n, (long)heap.live);
      if (!heap_failed()) break;
      silent += st == WEIR_OK;
    }
    weir_set_hooks(NULL);
    CHECK_EQ_INT(st, WEIR_OK);
    CHECK(n > 8);
    CHECK_EQ_INT(silent, 0);
  }
}

TEST_MAIN("text_small", TEST(bpe_merges_in_order_of_rank), TEST(spm_merges_in_order_of_score),
          TEST(special_tokens_are_the_callers_choice), TEST(space_prefix_comes_and_goes), TEST(bytes_without_a_token),
          TEST(very_long_words), TEST(stream_holds_back_half_characters), TEST(vocabularies_that_make_no_sense),
          TEST(vocabularies_that_are_odd), TEST(chats_of_gemma), TEST(every_allocation_may_fail))
