/* bpe.c: the trainer of byte-level BPE.
 *
 * Witnesses: Hugging Face's trainer, whose merges and ids are in tests/golden/bpe.txt (tools/oracle/bpe.py), and the definition, by
 * brute force, on small random texts. The result must be the same for any number of threads and any order of the texts.
 */
#include "test.h"

#include "heap_i.h"
#include "text/text.h"

#include <limits.h>
#include <time.h>

/* ------------------------------------------------------------------------------------------------------------------- texts */

enum { MAX_TEXTS = 1024 };
static struct {
  char *pool;
  size_t used, n;
  wr_gguf_text text[MAX_TEXTS];
} texts;

static int digit_of(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

/* The lines "text HEX" of tests/golden/vocab.txt, each twice, as the oracle takes them. */
static bool read_texts(void) {
  char *file;
  size_t n_file;
  if (texts.n) return true;
  if (!CHECK_MSG(wr_file_read("tests/golden/vocab.txt", 1 << 20, &file, &n_file) == WEIR_OK, "%s", weir_last_error()))
    return false;
  texts.pool = malloc(n_file);
  if (!texts.pool) abort();
  char *save = NULL;
  for (char *line = strtok_r(file, "\n", &save); line && texts.n + 2 <= MAX_TEXTS; line = strtok_r(NULL, "\n", &save)) {
    if (strncmp(line, "text ", 5) != 0) continue;
    char *p = texts.pool + texts.used;
    size_t n = 0;
    for (const char *h = line + 5; h[0] && h[0] != '-' && h[1]; h += 2) p[n++] = (char)(digit_of(h[0]) << 4 | digit_of(h[1]));
    texts.used += n;
    texts.text[texts.n++] = (wr_gguf_text){p, n};
    texts.text[texts.n++] = (wr_gguf_text){p, n};
  }
  wr_free(file);
  return CHECK(texts.n > 300);
}

static wr_tokenizer *train(const wr_bpe_options *o, const wr_gguf_text *list, size_t n, bool backwards) {
  wr_bpe_trainer *b = NULL;
  wr_tokenizer *t = NULL;
  if (!CHECK_MSG(wr_bpe_trainer_open(o, &b) == WEIR_OK, "%s", weir_last_error())) return NULL;
  for (size_t i = 0; i < n; i++) {
    const wr_gguf_text *text = &list[backwards ? n - 1 - i : i];
    CHECK(wr_bpe_trainer_add(b, text->ptr, text->len) == WEIR_OK);
  }
  CHECK_MSG(wr_bpe_trainer_finish(b, NULL, NULL, &t) == WEIR_OK, "%s", weir_last_error());
  wr_bpe_trainer_close(b);
  return t;
}

/* ------------------------------------------------------------------------------------------------------------ Hugging Face */

static uint64_t hash_ids(const wr_tokenizer *t, size_t *count) {
  uint64_t h = 0xcbf29ce484222325u;
  *count = 0;
  for (size_t i = 0; i < texts.n; i++) {
    wr_ids ids = {0};
    CHECK(wr_encode(t, texts.text[i].ptr, texts.text[i].len, WR_TEXT_PARSE_SPECIAL, &ids) == WEIR_OK);
    for (size_t k = 0; k < ids.len; k++)
      for (int byte = 0; byte < 4; byte++) h = (h ^ ((uint32_t)ids.ptr[k] >> 8 * byte & 255)) * 0x100000001b3u;
    *count += ids.len;
    wr_ids_free(&ids);
  }
  return h;
}

/* One section of the golden file. Each merge that makes a new token makes the next id, so merges are checked through spellings. */
static char *check_section(char *line, char **save) {
  wr_bpe_options o = {.threads = 2};
  char pre[32];
  long long vocab, min_count;
  if (!CHECK(sscanf(line, "train %31s %lld %lld", pre, &vocab, &min_count) == 3)) return NULL;
  o.pre = pre, o.vocab = vocab, o.min_count = (uint64_t)min_count;
  wr_tokenizer *t = train(&o, texts.text, texts.n, false);
  int32_t next = 257;
  size_t merges = 0;
  for (line = strtok_r(NULL, "\n", save); t && line && strncmp(line, "ids ", 4) != 0; line = strtok_r(NULL, "\n", save)) {
    char both[1024], *gap = strchr(line, ' ');
    if (!CHECK_MSG(gap != NULL, "%s", line)) break;
    int n = snprintf(both, sizeof both, "%.*s%s", (int)(gap - line), line, gap + 1);
    int32_t id = wr_token_find(t, both, (size_t)n);
    CHECK_MSG(id == next || (id > 0 && id < next), "%s: merge %zu, \"%s\", is token %d, not %d", pre, merges, line, id, next);
    if (id == next) next++;
    merges++;
  }
  if (t && line) {
    size_t want_count = 0, count;
    unsigned long long want = 0;
    CHECK(sscanf(line, "ids %zu %llx", &want_count, &want) == 2);
    CHECK_EQ_INT(next, wr_tokenizer_size(t));
    uint64_t hash = hash_ids(t, &count);
    CHECK_EQ_INT(count, want_count);
    CHECK_MSG(hash == want, "%s: the ids hash to %016llx, not %016llx", pre, (unsigned long long)hash, want);
    CHECK(merges > 300);
  }
  wr_tokenizer_close(t);
  return line;
}

static void merges_are_hugging_faces(void) {
  char *file, *save = NULL;
  size_t n, sections = 0;
  if (!read_texts()) return;
  REQUIRE(wr_file_read("tests/golden/bpe.txt", 1 << 20, &file, &n) == WEIR_OK);
  for (char *line = strtok_r(file, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
    if (line[0] != '#') sections++, line = check_section(line, &save);
  CHECK_EQ_INT(sections, 4);
  wr_free(file);
}

/* ------------------------------------------------------------------------------------------------------------- determinism */

static void threads_and_order_do_not_matter(void) {
  if (!read_texts()) return;
  uint64_t want = 0;
  for (int threads = 1; threads <= 4; threads++)
    for (int backwards = 0; backwards < 2; backwards++) {
      wr_bpe_options o = {.threads = threads, .vocab = 800};
      wr_tokenizer *t = train(&o, texts.text, texts.n, backwards);
      if (!t) return;
      uint64_t h = wr_tokenizer_hash(t);
      if (!want) want = h;
      CHECK_MSG(h == want, "another tokenizer with %d threads", threads);
      wr_tokenizer_close(t);
    }
}

/* One text of several megabytes is cut into pieces of work, which must not cut a word. */
static void pieces_of_work_cut_no_word(void) {
  enum { WORDS = 200000 };
  static const char *const words[] = {" the",   " quick",   " brown",       " fox's",  ", and",
                                      " 12345", "\n\nOver", " caf\xc3\xa9", " jumping"};
  wr_str whole = {0};
  wr_gguf_text *each = malloc(WORDS * sizeof *each);
  if (!each) abort();
  wr_rng r;
  wr_rng_seed(&r, 3);
  for (int i = 0; i < WORDS; i++) {
    const char *w = words[wr_rng_u64(&r) % WR_ARRAY_LEN(words)];
    each[i] = (wr_gguf_text){w, strlen(w)};
    wr_str_puts(&whole, w);
  }
  wr_bpe_options one = {.threads = 1, .vocab = 400, .min_count = 1}, three = one;
  three.threads = 3;
  wr_gguf_text all = {whole.ptr, whole.len};
  wr_tokenizer *a = train(&one, &all, 1, false), *b = train(&three, &all, 1, false), *c = train(&three, each, WORDS, false);
  CHECK(a && b && c && wr_tokenizer_hash(a) == wr_tokenizer_hash(b));
  CHECK(a && c && wr_tokenizer_size(a) == wr_tokenizer_size(c)); /* min_count 1: the words in pieces would leave fewer merges */
  wr_tokenizer_close(a);
  wr_tokenizer_close(b);
  wr_tokenizer_close(c);
  wr_str_free(&whole);
  free(each);
}

/* ------------------------------------------------------------------------------------------------------------- definition */

/* The definition, on words of letters: count all pairs, take the most frequent, lowest ids first, replace it everywhere. */
enum { BRUTE_WORDS = 40, BRUTE_LEN = 24 };
typedef struct brute {
  int32_t ids[BRUTE_WORDS][BRUTE_LEN];
  int len[BRUTE_WORDS];
} brute;

static bool brute_best(const brute *b, int32_t *left, int32_t *right) {
  long best = 1;
  for (int w = 0; w < BRUTE_WORDS; w++)
    for (int i = 0; i + 1 < b->len[w]; i++) {
      int32_t x = b->ids[w][i], y = b->ids[w][i + 1];
      long count = 0;
      for (int v = 0; v < BRUTE_WORDS; v++)
        for (int k = 0; k + 1 < b->len[v]; k++) count += b->ids[v][k] == x && b->ids[v][k + 1] == y;
      if (count > best || (count == best && count > 1 && (x < *left || (x == *left && y < *right))))
        best = count, *left = x, *right = y;
    }
  return best > 1;
}

static void brute_merge(brute *b, int32_t left, int32_t right, int32_t made) {
  for (int w = 0; w < BRUTE_WORDS; w++) {
    int n = 0;
    for (int i = 0; i < b->len[w];) {
      bool here = i + 1 < b->len[w] && b->ids[w][i] == left && b->ids[w][i + 1] == right;
      b->ids[w][n++] = here ? made : b->ids[w][i];
      i += here ? 2 : 1;
    }
    b->len[w] = n;
  }
}

static void brute_force_agrees(void) {
  wr_rng r;
  wr_rng_seed(&r, 11);
  for (int round = 0; round < 60; round++) {
    static brute b;
    char pool[BRUTE_WORDS][BRUTE_LEN];
    wr_gguf_text list[BRUTE_WORDS];
    unsigned letters = 1 + (unsigned)(wr_rng_u64(&r) % 4); /* few letters: long runs, and tokens that come about in two ways */
    for (int w = 0; w < BRUTE_WORDS; w++) {
      b.len[w] = 1 + (int)(wr_rng_u64(&r) % (BRUTE_LEN - 1));
      for (int i = 0; i < b.len[w]; i++) {
        pool[w][i] = (char)('a' + wr_rng_u64(&r) % letters);
        b.ids[w][i] = 1 + pool[w][i] - '!'; /* 0 is the special token, and '!' the first character */
      }
      list[w] = (wr_gguf_text){pool[w], (size_t)b.len[w]};
    }
    wr_bpe_options o = {.threads = 1, .vocab = 330};
    wr_tokenizer *t = train(&o, list, BRUTE_WORDS, false);
    REQUIRE(t);
    int32_t left = 0, right = 0, next = 257;
    while (next < o.vocab && brute_best(&b, &left, &right)) {
      char both[256];
      wr_gguf_text l = wr_token_text(t, left), k = wr_token_text(t, right);
      int n = snprintf(both, sizeof both, "%.*s%.*s", (int)l.len, l.ptr, (int)k.len, k.ptr);
      int32_t id = wr_token_find(t, both, (size_t)n);
      if (!CHECK_MSG(id > 0 && id <= next, "round %d: \"%s\" is %d when %d comes next", round, both, id, next)) break;
      if (id == next) next++;
      brute_merge(&b, left, right, id);
    }
    CHECK_EQ_INT(wr_tokenizer_size(t), next);
    wr_tokenizer_close(t);
  }
}

/* ------------------------------------------------------------------------------------------------------------------- limits */

static void what_cannot_be_is_refused(void) {
  wr_bpe_trainer *b = NULL;
  CHECK_EQ_INT(wr_bpe_trainer_open(&(wr_bpe_options){.vocab = 256}, &b), WEIR_EUSAGE);
  CHECK_HAS(weir_last_error(), "257");
  CHECK_EQ_INT(wr_bpe_trainer_open(&(wr_bpe_options){.vocab = INT64_MAX}, &b), WEIR_EUSAGE);
  CHECK_EQ_INT(wr_bpe_trainer_open(&(wr_bpe_options){.vocab = 300, .pre = "nonesuch"}, &b), WEIR_EUSAGE);
  CHECK_HAS(weir_last_error(), "gpt-2");
  CHECK(!b);
}

static void no_text_gives_the_bytes(void) {
  wr_tokenizer *t = train(&(wr_bpe_options){.vocab = 5000, .threads = 1}, NULL, 0, false);
  REQUIRE(t);
  CHECK_EQ_INT(wr_tokenizer_size(t), 257);
  CHECK_EQ_INT(wr_tokenizer_special(t)->eos, 0);
  CHECK(wr_token_is_end(t, 0));
  wr_ids ids = {0};
  wr_str back = {0};
  CHECK(wr_encode(t, "\x00\xff z", 4, 0, &ids) == WEIR_OK && ids.len == 4);
  CHECK(wr_decode(t, ids.ptr, ids.len, 0, &back) == WEIR_OK && back.len == 4 && memcmp(back.ptr, "\x00\xff z", 4) == 0);
  wr_ids_free(&ids);
  wr_str_free(&back);
  wr_tokenizer_close(t);
}

static int stop_at_once(void *user, int64_t vocab, int64_t wanted) {
  *(int *)user += 1;
  CHECK(vocab <= wanted);
  return 1;
}

static void progress_stops_it(void) {
  int calls = 0;
  wr_bpe_trainer *b = NULL;
  wr_tokenizer *t = NULL;
  if (!read_texts()) return;
  REQUIRE(wr_bpe_trainer_open(&(wr_bpe_options){.vocab = 1000, .threads = 1}, &b) == WEIR_OK);
  for (size_t i = 0; i < texts.n; i++) CHECK(wr_bpe_trainer_add(b, texts.text[i].ptr, texts.text[i].len) == WEIR_OK);
  CHECK_EQ_INT(wr_bpe_trainer_finish(b, stop_at_once, &calls, &t), WEIR_ESTOPPED);
  CHECK(calls == 1 && !t);
  CHECK_EQ_INT(wr_bpe_trainer_finish(b, NULL, NULL, &t), WEIR_EUSAGE);
  wr_bpe_trainer_close(b);
}

/* Half a megabyte without a place to cut it: the runner's time limit is the test. */
static void a_text_without_a_space(void) {
  enum { N = 1 << 19 };
  char *text = malloc(N);
  if (!text) abort();
  wr_rng r;
  wr_rng_seed(&r, 5);
  for (int i = 0; i < N; i++) text[i] = (char)('a' + wr_rng_u64(&r) % 26);
  wr_gguf_text one = {text, N};
  wr_tokenizer *t = train(&(wr_bpe_options){.vocab = 1000, .threads = 2}, &one, 1, false);
  CHECK(t && wr_tokenizer_size(t) == 1000);
  wr_tokenizer_close(t);
  memset(text, 'a', N);
  t = train(&(wr_bpe_options){.vocab = 1000, .threads = 2}, &one, 1, false);
  CHECK(t && wr_tokenizer_size(t) > 257);
  wr_tokenizer_close(t);
  free(text);
}

/* Every allocation fails once: no crash, no leak, and a sentence. */
static void memory_may_run_out(void) {
  weir_set_hooks(&(weir_hooks){HEAP_HOOKS});
  bool done = false;
  long failures = 0;
  for (long at = 1; !done && at < 10000; at++) {
    static const char text[] = "the cat sat on the mat, the cat that sat on the hat; that cat";
    wr_bpe_trainer *b = NULL;
    wr_tokenizer *t = NULL;
    heap_fail(at);
    weir_status st = wr_bpe_trainer_open(&(wr_bpe_options){.vocab = 280, .threads = 1}, &b);
    if (st == WEIR_OK) st = wr_bpe_trainer_add(b, text, sizeof text - 1);
    if (st == WEIR_OK) st = wr_bpe_trainer_finish(b, NULL, NULL, &t);
    done = !heap_failed();
    CHECK((st == WEIR_OK) == (t != NULL));
    if (st != WEIR_OK) failures++;
    CHECK(st == WEIR_OK || st == WEIR_ENOMEM);
    wr_tokenizer_close(t);
    wr_bpe_trainer_close(b);
    CHECK_EQ_INT(heap.live, 0);
  }
  CHECK(done && failures > 20);
  weir_set_hooks(NULL);
}

static void clean_up(void) {
  free(texts.pool);
  texts.pool = NULL, texts.n = 0;
}

TEST_MAIN("bpe", TEST(merges_are_hugging_faces), TEST(threads_and_order_do_not_matter), TEST(pieces_of_work_cut_no_word),
          TEST(brute_force_agrees), TEST(what_cannot_be_is_refused), TEST(no_text_gives_the_bytes), TEST(progress_stops_it),
          TEST(a_text_without_a_space), TEST(memory_may_run_out), TEST(clean_up))
