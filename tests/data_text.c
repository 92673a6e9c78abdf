/* data: text in its many forms, building shards of it and going on with a build, text that is tokenised as it is read, and what happens when
 * memory or disk runs out. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <zlib.h>
#include <zstd.h>

#include "data_i.h"
#include "heap_i.h"

/* ------------------------------------------------------------------------------------------------------------------- text */

typedef struct gathered {
  wr_str text;
  int pieces, docs, validation;
  uint64_t last_doc;
} gathered;
static weir_status gather(void *user, const wr_text_piece *p) {
  gathered *g = user;
  wr_str_put(&g->text, p->text, p->n);
  g->pieces++;
  if (p->first) g->docs++;
  if (p->first) wr_str_puts(&g->text, "|");
  g->validation += p->validation;
  g->last_doc = p->doc;
  return WEIR_OK;
}

static weir_status read_text(const wr_text_input_options *o, gathered *g, wr_text_counts *counts) {
  wr_text_input *in;
  wr_text_block b = {0};
  *g = (gathered){0};
  WR_TRY(wr_text_input_open(o, &in));
  weir_status s;
  while ((s = wr_text_input_read(in, &b)) == WEIR_OK && b.n) {
    s = wr_text_block_each(in, &b, gather, g);
    if (s == WEIR_OK) s = wr_text_input_settle(in, &b);
    if (s != WEIR_OK) break;
  }
  if (s == WEIR_OK) s = wr_text_input_end(in);
  if (counts) wr_text_input_counts(in, counts);
  wr_text_block_free(&b);
  wr_text_input_close(in);
  return s;
}

static wr_str some_text(size_t n) {
  wr_str t = {0};
  wr_rng r;
  wr_rng_seed(&r, 3);
  while (t.len < n) {
    const uint64_t x = wr_rng_u64(&r);
    wr_str_printf(&t, "%.*s%s", (int)(x % 7 + 1), "waterfall",
                  x % 97 < 3   ? ".\n"
                  : x % 97 < 5 ? "\xc3\xa9t\xc3\xa9 "
                  : x % 97 < 7 ? "  42"
                               : " ");
  }
  return t;
}

static void streams_of_members(void) {
  wr_str text = some_text(300000);
  const size_t half = text.len / 2;
  gzFile z = gzopen(at("t.gz"), "wb");
  REQUIRE(z && gzwrite(z, text.ptr, (unsigned)half) > 0 && gzclose(z) == Z_OK);
  z = gzopen(at("t.gz"), "ab"); /* a second member */
  REQUIRE(z && gzwrite(z, text.ptr + half, (unsigned)(text.len - half)) > 0 && gzclose(z) == Z_OK);
  char *packed = malloc(2 * ZSTD_compressBound(text.len));
  REQUIRE(packed);
  size_t n = ZSTD_compress(packed, ZSTD_compressBound(text.len), text.ptr, half, 1);
  n += ZSTD_compress(packed + n, ZSTD_compressBound(text.len), text.ptr + half, text.len - half, 1);
  write_file(at("t.zst"), packed, n);
  write_file(at("cut.zst"), packed, n - 10);
  char *gz;
  size_t gz_n;
  REQUIRE(wr_file_read(at("t.gz"), 1 << 20, &gz, &gz_n) == WEIR_OK);
  write_file(at("cut.gz"), gz, gz_n - 10);
  gz[gz_n / 3] ^= 1;
  write_file(at("bad.gz"), gz, gz_n);
  static const struct {
    const char *name;
    weir_status want;
    const char *says;
  } rows[] = {{"t.gz", WEIR_OK, ""},
              {"t.zst", WEIR_OK, ""},
              {"cut.gz", WEIR_EFORMAT, "ends in the middle"},
              {"cut.zst", WEIR_EFORMAT, "ends in the middle"},
              {"bad.gz", WEIR_EFORMAT, "damaged"}};
  for (size_t i = 0; i < WR_ARRAY_LEN(rows); i++) {
    const char *path = at(rows[i].name);
    gathered g;
    const weir_status s = read_text(&(wr_text_input_options){.paths = &path, .n_paths = 1, .block_bytes = 10000}, &g, NULL);
    CHECK_MSG(s == rows[i].want, "%s: %d", rows[i].name, s);
    if (s != WEIR_OK) CHECK_HAS(weir_last_error(), rows[i].says);
    if (s == WEIR_OK)
      CHECK(g.text.len == text.len + 1 && memcmp(g.text.ptr + g.text.len - half, text.ptr + text.len - half, half) == 0 &&
            g.docs == 1 && g.pieces > 20);
    wr_str_free(&g.text);
    unlink(path);
  }
  free(packed);
  wr_free(gz);
  wr_str_free(&text);
}

/* mixed_bad.jsonl against corpora/manifest.json, as far as it decides; the rest is data.h's word. */
static void bad_records_by_line(void) {
  static const int bad[] = {2, 3, 4, 5, 6, 7, 11, 12, 14, 15, 17};
  const char *path = CORPORA "mixed_bad.jsonl";
  if (access(path, R_OK) != 0) SKIP("no ../shared/cases");
  gathered g;
  wr_text_counts c;
  wr_text_input_options o = {.paths = &path, .n_paths = 1, .max_bad = 1};
  CHECK(read_text(&o, &g, &c) == WEIR_OK);
  CHECK_EQ_INT(c.bad, WR_ARRAY_LEN(bad));
  CHECK_EQ_INT(c.records, 19);
  CHECK_EQ_INT(c.empty, 1);
  CHECK_EQ_INT(c.docs, 7);
  CHECK(g.text.ptr && memcmp(g.text.ptr, "first good|   |nul \0 inside|xxxx", 31) == 0);
  wr_str_free(&g.text);
  wr_text_input *in;
  wr_text_block b = {0};
  const wr_text_bad *shown;
  REQUIRE(wr_text_input_open(&o, &in) == WEIR_OK);
  while (wr_text_input_read(in, &b) == WEIR_OK && b.n) {
    CHECK(wr_text_block_each(in, &b, gather, &g) == WEIR_OK);
    CHECK(wr_text_input_settle(in, &b) == WEIR_OK);
  }
  CHECK_EQ_INT(wr_text_input_bad(in, &shown), WR_ARRAY_LEN(bad));
  for (size_t i = 0; i < WR_ARRAY_LEN(bad); i++) {
    char want[64];
    snprintf(want, sizeof want, "mixed_bad.jsonl:%d:", bad[i]);
    CHECK_HAS(shown[i].where, want);
  }
  wr_text_block_free(&b);
  wr_text_input_close(in);
  wr_str_free(&g.text);
  o.max_bad = 0.5;
  CHECK(read_text(&o, &g, &c) == WEIR_EFORMAT);
  CHECK_HAS(weir_last_error(), "11 of 19");
  wr_str_free(&g.text);
  o.strict = true;
  CHECK(read_text(&o, &g, &c) == WEIR_EFORMAT);
  CHECK_HAS(weir_last_error(), "mixed_bad.jsonl:2:13: ");
  wr_str_free(&g.text);
}

/* One line of JSON against what it should give; NULL: bad. */
static void json_lines(void) {
  static const struct {
    const char *line, *text, *rule;
  } rows[] = {
      {"{\"text\": \"a\\n\\\"\\u00e9\\ud83d\\ude00\\/\"}", "a\n\"\xc3\xa9\xf0\x9f\x98\x80/", NULL},
      {"{\"a\": [1, {\"text\": \"no\"}, -0.5e+3, true, null], \"text\" : \"yes\" , \"z\": {}}", "yes", NULL},
      {"{\"te\\u0078t\": \"named with an escape\"}", "named with an escape", NULL},
      {"{}", NULL, "missing"},
      {"{\"text\": \"a\",}", NULL, "key"},
      {"{\"text\": \"a\" \"b\"}", NULL, "','"},
      {"{\"text\": \"a\", \"n\": 01}", NULL, "','"},
      {"{\"text\": \"a\", \"n\": 1.}", NULL, "number"},
      {"{\"text\": \"a\", \"n\": NaN}", NULL, "not JSON"},
      {"{\"text\": \"a\", \"n\": [}", NULL, "not JSON"},
      {"{\"text\": \"tab\t\"}", NULL, "control"},
      {"{\"text\": \"\\x\"}", NULL, "escaped"},
      {"{\"text\": \"\\u12\"}", NULL, "hexadecimal"},
      {"{\"text\": \"\\udc00\"}", NULL, "surrogate"},
      {"{\"text\": \"\\ud800\\u0041\"}", NULL, "surrogate"},
      {"{\"text\": {\"text\": \"a\"}}", NULL, "string"},
      {"{\"text\": [], \"text\": \"a\"}", NULL, "twice"},
      {"{\"text\"", NULL, "ends"},
      {"{\"text\":", NULL, "ends"},
      {"{", NULL, "ends"},
      {"\"text\"", NULL, "object"},
  };
  char *scratch = NULL;
  size_t cap = 0;
  for (size_t i = 0; i < WR_ARRAY_LEN(rows); i++) {
    const char *text = NULL, *rule = NULL;
    size_t n = 0, column = 0;
    const wr_record r = wr_jsonl_field(rows[i].line, strlen(rows[i].line), "text", &scratch, &cap, &text, &n, &column, &rule);
    CHECK_MSG((r == WR_RECORD_OK) == (rows[i].text != NULL), "%s: %s", rows[i].line, rule ? rule : "good");
    if (r == WR_RECORD_OK && rows[i].text)
      CHECK_MSG(n == strlen(rows[i].text) && memcmp(text, rows[i].text, n) == 0, "%s: %.*s", rows[i].line, (int)n, text);
    if (r == WR_RECORD_BAD && rows[i].rule) CHECK_HAS(rule, rows[i].rule);
    if (r == WR_RECORD_BAD) CHECK(column >= 1 && column <= strlen(rows[i].line) + 1);
  }
  wr_free(scratch);
}

/* Text cut at every place that cut.c allows gives the ids of the whole, with each vocabulary that is there. */
static void cuts_change_no_id(void) {
  static const char *const names[] = {"bytes",
                                      "../shared/data/vocab/ggml-vocab-gpt-2.gguf",
                                      "../shared/data/vocab/ggml-vocab-llama-bpe.gguf",
                                      "../shared/data/vocab/ggml-vocab-qwen2.gguf",
                                      "../shared/data/vocab/ggml-vocab-llama-spm.gguf",
                                      "../shared/data/vocab/ggml-vocab-phi-3.gguf"};
  static const char *const bits[] = {"don't",
                                     " ",
                                     "  ",
                                     "\n",
                                     "\n\n",
                                     "\r\n",
                                     " we'll ",
                                     "Hello",
                                     "x1",
                                     "12345",
                                     "...",
                                     " \xe4\xb8\xad\xe6\x96\x87",
                                     "\xc3\xa9",
                                     "\xe2\x80\x83",
                                     "a b",
                                     "\ta",
                                     "<|endoftext|>",
                                     "</s>",
                                     "\xff",
                                     "'s",
                                     "\n a",
                                     "_x ",
                                     "\xe3\x80\x80"};
  int tried = 0;
  for (size_t k = 0; k < WR_ARRAY_LEN(names); k++) {
    wr_tokenizer *t;
    if (wr_tokenizer_open_path(names[k], &t) != WEIR_OK) continue;
    const wr_cutter c = wr_cutter_make(t);
    wr_rng r;
    wr_rng_seed(&r, k);
    size_t cuts = 0;
    for (int round = 0; round < 300; round++) {
      wr_str text = {0};
      for (int i = 0; i < 40; i++) wr_str_puts(&text, bits[wr_rng_u64(&r) % WR_ARRAY_LEN(bits)]);
      wr_ids whole = {0}, parts = {0};
      CHECK(wr_encode(t, text.ptr, text.len, 0, &whole) == WEIR_OK);
      for (size_t from = 0, to; from < text.len; from = to) {
        to = text.len; /* the first place after `from` */
        for (size_t i = from + 1; i < text.len; i++) {
          const size_t cut = wr_cut_last(&c, text.ptr, i, i + 2 < text.len ? i + 2 : text.len);
          if (cut > from && cut < to) {
            to = cut;
            break;
          }
        }
        cuts += to < text.len;
        CHECK(wr_encode(t, text.ptr + from, to - from, from ? WR_TEXT_CONTINUES : 0, &parts) == WEIR_OK);
      }
      const bool same = whole.len == parts.len && memcmp(whole.ptr, parts.ptr, whole.len * 4) == 0;
      if (!CHECK_MSG(same, "%s: '%s'", names[k], wr_escape(text.ptr, text.len))) round = 300;
      wr_ids_free(&whole);
      wr_ids_free(&parts);
      wr_str_free(&text);
    }
    CHECK_MSG(cuts > 100 || strstr(names[k], "spm") || strstr(names[k], "phi"), "%s: %zu cuts", names[k], cuts);
    tried++;
    wr_tokenizer_close(t);
  }
  CHECK(tried >= 1);
}

/* ------------------------------------------------------------------------------------------------------------------ build */

static void build(const char *folder, const char *input, const weir_data_build_options *o, weir_data_build_report *r) {
  const weir_status s = wr_data_build(bytes_tokenizer(), &input, 1, folder, o, r);
  CHECK_MSG(s == WEIR_OK, "%s", weir_last_error());
}

/* What the shards hold, documents in order with a '|' for each end: for the tokenizer of bytes. */
static void unpack(const char *folder, int split, wr_str *out) {
  wr_shards_manifest m = {0};
  if (!CHECK_MSG(wr_shards_manifest_read(folder, &m) == WEIR_OK, "%s", weir_last_error())) return;
  for (size_t i = 0; i < m.split[split].n; i++) {
    wr_shard s;
    if (!CHECK(wr_shards_manifest_open_shard(folder, &m, split, i, &s) == WEIR_OK)) break;
    CHECK(wr_shard_check(&s, folder, NULL) == WEIR_OK);
    for (uint64_t k = 0, d = 0; k < s.head->n_tokens; k++) {
      const uint32_t id = wr_shard_token(&s, k);
      if (id < 256) wr_str_put(out, &(char){(char)id}, 1);
      const bool end = k + 1 == s.doc_ends[d];
      if (end) d++;
      CHECK_EQ_INT(id == 256, end && !(d == s.head->n_docs && s.head->continues)); /* exactly one EOS, and at the end */
      if (id == 256) wr_str_puts(out, "|");
    }
    wr_shard_close(&s);
  }
  wr_shards_manifest_free(&m);
}

static void build_holds_the_text(void) {
  wr_str text = some_text(2000000), got = {0};
  write_file(at("book.txt"), text.ptr, text.len);
  weir_data_build_report r;
  weir_data_build_options o = {.shard_tok = 300000, .threads = 1};
  build(at("one"), at("book.txt"), &o, &r);
  CHECK_EQ_INT(r.tokens + r.val_tokens, text.len + 2);
  CHECK(r.val_tokens > text.len / 100 - 300 && r.val_tokens < text.len / 100 + 300);
  CHECK_EQ_INT(r.docs, 1);
  CHECK(r.shards > 3);
  CHECK(weir_data_check(at("one"), NULL, NULL, NULL) == WEIR_OK);
  unpack(at("one"), WR_SPLIT_TRAIN, &got);
  unpack(at("one"), WR_SPLIT_VAL, &got);
  wr_str want = {0};
  wr_str_put(&want, text.ptr, (size_t)r.tokens - 1);
  wr_str_puts(&want, "|");
  wr_str_put(&want, text.ptr + r.tokens - 1, text.len - (size_t)r.tokens + 1);
  wr_str_puts(&want, "|");
  CHECK(got.len == want.len && memcmp(got.ptr, want.ptr, want.len) == 0);
  for (int threads = 2; threads <= 5; threads += 3) { /* any number of threads: the same files */
    o.threads = threads;
    build(at("more"), at("book.txt"), &o, NULL);
    CHECK(same_folder(at("one"), at("more")));
    remove_tree(at("more"));
  }
  build(at("one"), at("book.txt"), &o, &r); /* nothing to do */
  CHECK_EQ_INT(r.resumed_tokens, r.tokens + r.val_tokens);
  o.val_share = 0.5;
  const char *book = at("book.txt");
  CHECK(wr_data_build(bytes_tokenizer(), &book, 1, at("one"), &o, NULL) == WEIR_EUSAGE);
  remove_tree(at("one"));
  wr_str_free(&text);
  wr_str_free(&got);
  wr_str_free(&want);
}

static void jsonl_documents_and_validation(void) {
  wr_str lines = {0};
  for (int i = 0; i < 5000; i++) wr_str_printf(&lines, "{\"id\": %d, \"body\": \"doc %d\"}\n", i, i);
  write_file(at("docs.jsonl"), lines.ptr, lines.len);
  weir_data_build_report r;
  build(at("docs"), at("docs.jsonl"), &(weir_data_build_options){.field = "body", .val_share = 0.05, .threads = 3}, &r);
  CHECK_EQ_INT(r.docs + r.val_docs, 5000);
  CHECK(r.val_docs > 245 && r.val_docs < 255);
  wr_str got[2] = {{0}, {0}};
  for (int k = 0; k < 2; k++) unpack(at("docs"), k, &got[k]);
  int seen[2] = {0}, before = -1, wrong = 0;
  for (int k = 0; k < 2; k++, before = -1)
    for (const char *p = got[k].ptr; p && *p; p = strchr(p, '|') + 1, seen[k]++) {
      const int i = atoi(p + 4);
      wrong += i <= before;
      before = i;
    }
  CHECK_EQ_INT(wrong, 0); /* in the order of the input */
  CHECK_EQ_INT(seen[0], r.docs);
  CHECK_EQ_INT(seen[1], r.val_docs);
  remove_tree(at("docs"));
  build(at("none"), at("docs.jsonl"), &(weir_data_build_options){.field = "body", .val_share = -1}, &r);
  CHECK(r.val_docs == 0 && !r.note[0]);
  build(at("tiny"), at("docs.jsonl"), &(weir_data_build_options){.field = "body", .val_share = 1e-9}, &r);
  CHECK_HAS(r.note, "validation split is empty");
  const wr_data_source source = {at("tiny"), 0};
  wr_data *d;
  CHECK(wr_data_open(&(wr_data_options){.sources = &source, .n_sources = 1, .context_tok = 8, .validation = true}, &d) ==
        WEIR_EUSAGE);
  CHECK_HAS(weir_last_error(), "validation split is empty");
  CHECK(wr_data_open(&(wr_data_options){.sources = &source, .n_sources = 1, .context_tok = 100000}, &d) == WEIR_EUSAGE);
  CHECK_HAS(weir_last_error(), "need at least context + 1 = 100001");
  remove_tree(at("none"));
  remove_tree(at("tiny"));
  for (int k = 0; k < 2; k++) wr_str_free(&got[k]);
  wr_str_free(&lines);
}

/* Killed at any moment and started again, a build ends with the same bytes. */
static void killed_builds_go_on(void) {
  wr_str text = some_text(3000000);
  write_file(at("kill.txt"), text.ptr, text.len);
  const weir_data_build_options o = {.shard_tok = 200000, .threads = 2};
  weir_data_build_report r = {0};
  build(at("whole"), at("kill.txt"), &o, &r);
  const double seconds = r.seconds;
  int killed = 0;
  uint64_t resumed = 0;
  for (int round = 0; round < 10; round++) {
    remove_tree(at("killed"));
    const pid_t child = fork();
    if (child == 0) {
      const char *input = at("kill.txt");
      wr_tokenizer *t;
      _exit(wr_tokenizer_open_path("bytes", &t) != WEIR_OK || wr_data_build(t, &input, 1, at("killed"), &o, NULL) != WEIR_OK);
    }
    usleep((useconds_t)(seconds * 1e6 * 0.09 * round) + 2000);
    kill(child, SIGKILL);
    int status;
    waitpid(child, &status, 0);
    killed += WIFSIGNALED(status);
    build(at("killed"), at("kill.txt"), &o, &r);
    resumed += r.resumed_tokens;
    CHECK(same_folder(at("whole"), at("killed")));
  }
  CHECK_MSG(killed >= 2 && resumed > 0, "%d killed, %llu tokens resumed", killed, (unsigned long long)resumed);
  remove_tree(at("whole"));
  remove_tree(at("killed"));
  wr_str_free(&text);
}

static int stop_at_once(void *user, const weir_data_progress *p) {
  (void)user, (void)p;
  return 1;
}

static void builds_can_be_stopped_and_fail_whole(void) {
  wr_str text = some_text(8000000);
  write_file(at("stop.txt"), text.ptr, text.len);
  const char *input = at("stop.txt");
  const weir_status s =
      wr_data_build(bytes_tokenizer(), &input, 1, at("stopped"), &(weir_data_build_options){.progress = stop_at_once}, NULL);
  CHECK(s == WEIR_ESTOPPED || s == WEIR_OK); /* a fast machine is done before it is asked */
  if (s == WEIR_ESTOPPED) CHECK(access(at("stopped/manifest.json"), F_OK) != 0);
  const wr_data_source source = {at("stopped"), 0};
  wr_data *d;
  if (s == WEIR_ESTOPPED) {
    CHECK(wr_data_open(&(wr_data_options){.sources = &source, .n_sources = 1, .context_tok = 8}, &d) == WEIR_EFORMAT);
    CHECK_HAS(weir_last_error(), "not finished");
  }
  static const char *const empties[] = {"empty.jsonl", "newlines.jsonl"};
  for (int i = 0; i < 2; i++) {
    char path[128];
    snprintf(path, sizeof path, CORPORA "%s", empties[i]);
    input = path;
    if (access(path, R_OK) != 0) continue;
    CHECK(wr_data_build(bytes_tokenizer(), &input, 1, at("empty"), NULL, NULL) == WEIR_EFORMAT);
    CHECK_HAS(weir_last_error(), "no text");
  }
  remove_tree(at("stopped"));
  remove_tree(at("empty"));
  wr_str_free(&text);
}

/* --------------------------------------------------------------------------------------------------- text read directly */

static wr_data *open_text(const char *path, int64_t T, int64_t window, int workers, int rank, int ranks, bool validation) {
  const wr_data_source source = {path, 0};
  const wr_data_options o = {.sources = &source,
                             .n_sources = 1,
                             .context_tok = T,
                             .seed = 11,
                             .tokenizer = bytes_tokenizer(),
                             .workers = workers,
                             .shuffle_window = window,
                             .rank = rank,
                             .ranks = ranks,
                             .validation = validation};
  wr_data *d = NULL;
  CHECK_MSG(wr_data_open(&o, &d) == WEIR_OK, "%s", weir_last_error());
  return d;
}

/* Text of `n` bytes where each 4-byte word names its place: sample contents tell which window they are. */
static uint64_t hash_sample(const wr_sample *s) {
  return wr_hash64(s->tokens, (size_t)s->n_tok * (size_t)s->token_bytes, (uint64_t)s->n_tok);
}

static size_t find_window(const wr_str *text, const wr_sample *s) {
  for (size_t at_byte = text->len - text->len / 50; at_byte < text->len; at_byte++) {
    int64_t i = 0;
    while (i < s->n_tok && at_byte + (size_t)i < text->len && token_of(s, i) == (uint8_t)text->ptr[at_byte + (size_t)i]) i++;
    if (i == s->n_tok) return at_byte;
  }
  return text->len;
}

static void ring_gives_the_shards_windows(void) {
  enum { T = 32 };
  wr_str text = some_text(900000);
  write_file(at("ring.txt"), text.ptr, text.len);
  static const int64_t windows[] = {64, 1 << 20}; /* many groups; all in one */
  for (int k = 0; k < 2; k++) {
    for (int validation = 0; validation < 2; validation++) {
      wr_data *d = open_text(at("ring.txt"), T, windows[k], 3, 0, 1, validation);
      REQUIRE(d);
      uint8_t *seen = calloc(text.len, 1);
      uint64_t n = 0, targets = 0;
      wr_sample s;
      int64_t got = 0;
      const size_t tail = (size_t)((double)text.len * 0.01);
      size_t begin = 0;
      for (; seen; n++) { /* one epoch: a window's place is its id */
        CHECK(wr_data_next(d, 1, &s, &got) == WEIR_OK);
        if (!got || s.epoch) break;
        if (validation && !n) begin = find_window(&text, &s);
        for (int64_t i = 0; i < s.n_tok; i++) {
          const uint64_t place = begin + s.id * T + (uint64_t)i;
          if (token_of(&s, i) == 256) continue;
          if (place >= text.len || token_of(&s, i) != (uint8_t)text.ptr[place]) {
            CHECK_MSG(false, "sample %llu, token %lld", (unsigned long long)s.id, (long long)i);
            break;
          }
          if (i) seen[place]++;
        }
        targets += (uint64_t)s.n_tok - 1;
      }
      uint64_t once = 0;
      for (size_t i = 0; seen && i < text.len; i++) once += seen[i] == 1;
      CHECK_EQ_INT(once + 1, targets); /* each target once, and the end token */
      if (validation)
        CHECK(targets > tail - 10 && targets < tail + 300);
      else
        CHECK(targets > text.len - tail - 300);
      free(seen);
      wr_data_close(d);
    }
  }
  wr_str_free(&text);
}

/* Three files of different kinds, each longer than a block, an empty one and one in a folder. */
static void write_folder(const char *folder, const wr_str *text) {
  char path[600];
  const size_t third = text->len / 3;
  if (wr_mkdir_p(folder) != WEIR_OK) abort();
  snprintf(path, sizeof path, "%s/a.txt", folder);
  write_file(path, text->ptr, third);
  snprintf(path, sizeof path, "%s/b.jsonl", folder);
  FILE *f = fopen(path, "wb");
  for (size_t k = third; f && k + 400 < 2 * third; k += 300) { /* words only: no escapes are needed */
    fprintf(f, "{\"text\": \"");
    for (size_t i = k; i < k + 200 + k % 100; i++) fputc(text->ptr[i] >= 'a' && text->ptr[i] <= 'z' ? text->ptr[i] : ' ', f);
    fprintf(f, "\"}\n");
  }
  if (!f || fclose(f) != 0) abort();
  snprintf(path, sizeof path, "%s/c.gz", folder);
  gzFile z = gzopen(path, "wb1");
  if (!z || gzwrite(z, text->ptr + 2 * third, (unsigned)third) <= 0 || gzclose(z) != Z_OK) abort();
  snprintf(path, sizeof path, "%s/d.txt", folder);
  write_file(path, "", 0);
  snprintf(path, sizeof path, "%s/e", folder);
  if (wr_mkdir_p(path) != WEIR_OK) abort();
  snprintf(path, sizeof path, "%s/e/f.txt", folder);
  write_file(path, "the last words", 14);
}

static uint64_t sample_key(const wr_sample *s) { return hash_sample(s) ^ s->id << 1 ^ s->epoch << 40; }

/* Any position, other workers, other ranks: the samples of the undisturbed run. */
static void ring_goes_on_where_it_stopped(void) {
  enum { N = 5000 };
  static uint64_t want[N];
  static const struct {
    size_t bytes;
    int64_t T, window;
    bool folder;
  } cases[] = {{60000, 32, 256, false},    /* some 8 groups an epoch */
               {40000, 32, 4096, false},   /* all in one */
               {1000000, 256, 128, true}}; /* blocks within files, all kinds of them */
  static const int stops[] = {0, 1, 7, 255, 256, 257, 600, 1200, 1300, 2400, 2900, 3900, 4500};
  wr_sample s;
  int64_t got;
  for (size_t k = 0; k < WR_ARRAY_LEN(cases); k++) {
    wr_str text = some_text(cases[k].bytes);
    const int64_t T = cases[k].T, window = cases[k].window;
    const char *path = cases[k].folder ? at("resume") : at("resume.txt");
    if (cases[k].folder)
      write_folder(path, &text);
    else
      write_file(path, text.ptr, text.len);
    wr_data *d = open_text(path, T, window, 1, 0, 1, false);
    REQUIRE(d);
    uint64_t samples = 0;
    for (int i = 0; i < N; i++) {
      CHECK(wr_data_next(d, 1, &s, &got) == WEIR_OK && got == 1);
      want[i] = sample_key(&s);
      if (s.epoch == 0) samples++;
    }
    CHECK_MSG(samples < N, "%llu samples an epoch", (unsigned long long)samples);
    wr_data_close(d);
    for (size_t i = 0; i < WR_ARRAY_LEN(stops); i++) {
      const int first = 1 + (int)i % 3, then = 1 + (int)(i / 2) % 3, stop = stops[i] / first * first;
      wr_data_position where = {0};
      for (int r = 0; r < first; r++) {
        d = open_text(path, T, window, 2, r, first, false);
        REQUIRE(d);
        for (int p = r; p < stop; p += first) {
          CHECK(wr_data_next(d, 1, &s, &got) == WEIR_OK && got == 1);
          CHECK_EQ_INT(sample_key(&s), want[p]);
        }
        wr_data_tell(d, &where);
        CHECK_EQ_INT(where.taken, stop);
        wr_data_close(d);
      }
      for (int r = 0; r < then; r++) {
        d = open_text(path, T, window, 3, r, then, false);
        REQUIRE(d);
        CHECK_MSG(wr_data_seek(d, &where) == WEIR_OK, "%s", weir_last_error());
        for (int p = stop + r; p < N && p < stop + 400; p += then) {
          CHECK(wr_data_next(d, 1, &s, &got) == WEIR_OK && got == 1);
          CHECK_EQ_INT(sample_key(&s), want[p]);
        }
        wr_data_close(d);
      }
    }
    wr_str_free(&text);
  }
}

static int shm_files(void) {
  int n = 0;
  DIR *dir = opendir("/dev/shm");
  while (dir && readdir(dir)) n++;
  if (dir) closedir(dir);
  return n;
}

/* kill -9 leaves nothing; a limit on file sizes is no signal; memory that is not there is a sentence. */
static void ring_leaves_nothing(void) {
  wr_str text = some_text(200000);
  write_file(at("left.txt"), text.ptr, text.len);
  const int before = shm_files();
  const pid_t child = fork();
  if (child == 0) {
    wr_data *d = open_text(at("left.txt"), 32, 64, 4, 0, 1, false);
    wr_sample s[64];
    int64_t got;
    for (;;)
      if (!d || wr_data_next(d, 64, s, &got) != WEIR_OK) _exit(1);
  }
  usleep(200000);
  kill(child, SIGKILL);
  int status;
  waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status));
  CHECK_EQ_INT(shm_files(), before);
  const pid_t limited = fork();
  if (limited == 0) {
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){4096, 4096});
    wr_data *d = open_text(at("left.txt"), 32, 1024, 2, 0, 1, false);
    wr_sample s[64];
    int64_t got;
    _exit(!d || wr_data_next(d, 64, s, &got) != WEIR_OK || got != 64);
  }
  waitpid(limited, &status, 0);
  CHECK_EQ_INT(status, 0);
  const wr_data_source source = {at("left.txt"), 0};
  wr_data *d;
  wr_data_options o = {
      .sources = &source, .n_sources = 1, .context_tok = 1 << 20, .tokenizer = bytes_tokenizer(), .shuffle_window = 1 << 30};
  CHECK(wr_data_open(&o, &d) == WEIR_ENOMEM);
  CHECK_HAS(weir_last_error(), "smaller shuffle window");
  o.context_tok = 300000;
  o.shuffle_window = 1;
  CHECK(wr_data_open(&o, &d) == WEIR_EUSAGE);
  CHECK_HAS(weir_last_error(), "need at least context + 1 = 300001");
  wr_str_free(&text);
}

static _Atomic bool busy;
static void *spin(void *arg) {
  volatile uint64_t *x = arg;
  while (busy) ++*x;
  return NULL;
}

/* Workers start while other threads are busy, again and again: none hangs, as nothing is forked. */
static void workers_start_beside_busy_threads(void) {
  enum { THREADS = 16, RUNS = 5 };
  pthread_t threads[THREADS];
  static uint64_t counts[THREADS];
  wr_str text = some_text(20000);
  write_file(at("busy.txt"), text.ptr, text.len);
  busy = true;
  for (int i = 0; i < THREADS; i++) REQUIRE(pthread_create(&threads[i], NULL, spin, &counts[i]) == 0);
  uint64_t slowest = 0;
  for (int i = 0; i < RUNS; i++) {
    const uint64_t begin = wr_now_ns();
    wr_data *d = open_text(at("busy.txt"), 32, 64, 4, 0, 1, false);
    wr_sample s[32];
    int64_t got = 0;
    CHECK(d && wr_data_next(d, 32, s, &got) == WEIR_OK && got == 32);
    wr_data_close(d);
    slowest = WR_MAX(slowest, wr_now_ns() - begin);
  }
  busy = false;
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  CHECK_MSG(slowest < 10000000000u, "the slowest took %.1f s", (double)slowest * 1e-9);
  wr_str_free(&text);
}

/* ---------------------------------------------------------------------------------------------------------- what runs out */

static int refuse(void *user, const char *op, const char *path) {
  (void)user, (void)op;
  return strstr(path, root) && heap_refuses() ? ENOSPC : 0;
}

static weir_status build_and_read(const wr_tokenizer *t, const char *folder) {
  const char *input = at("runs.jsonl");
  WR_TRY(
      wr_data_build(t, &input, 1, folder, &(weir_data_build_options){.threads = 1, .shard_tok = 1000, .val_share = 0.2}, NULL));
  WR_TRY(weir_data_check(folder, NULL, NULL, NULL));
  const wr_data_source sources[] = {{folder, 0}, {input, 0}};
  for (int i = 0; i < 2; i++) {
    wr_data *d;
    wr_sample s[4];
    int64_t got;
    WR_TRY(wr_data_open(
        &(wr_data_options){.sources = &sources[i], .n_sources = 1, .context_tok = 16, .tokenizer = t, .shuffle_window = 16},
        &d));
    weir_status status = WEIR_OK;
    for (int k = 0; k < 40 && status == WEIR_OK; k++) status = wr_data_next(d, 4, s, &got);
    wr_data_close(d);
    WR_TRY(status);
  }
  return WEIR_OK;
}

static void write_runs(void) {
  FILE *f = fopen(at("runs.jsonl"), "wb");
  for (int i = 0; f && i < 60; i++) fprintf(f, "{\"text\": \"line\\n %d of some more\"}\n", i);
  if (f) fclose(f);
}

/* The n-th allocation fails: ENOMEM, and nothing is left over. Some n are skipped: the sum of the steps is what it is. */
static void allocations_may_fail(void) {
  write_runs();
  bool done = false;
  for (long n = 1; !done; n += 1 + n / 40) {
    wr_tokenizer *t;
    remove_tree(at("oom"));
    REQUIRE(wr_tokenizer_open_path("bytes", &t) == WEIR_OK);
    heap_fail(n);
    weir_set_hooks(&(weir_hooks){HEAP_HOOKS});
    const weir_status s = build_and_read(t, at("oom"));
    done = s == WEIR_OK && !heap_failed();
    CHECK_MSG(s == WEIR_ENOMEM || s == WEIR_OK, "allocation %ld: %d, %s", n, s, weir_last_error());
    CHECK_MSG(heap.live == 0, "allocation %ld: %ld are left", n, (long)heap.live);
    weir_set_hooks(NULL);
    wr_tokenizer_close(t);
    if (heap.live) break;
  }
  remove_tree(at("oom"));
}

/* The n-th change of a file fails for want of room: said so, and the same build again ends with the same bytes. */
static void disks_may_be_full(void) {
  write_runs();
  wr_tokenizer *t = bytes_tokenizer();
  remove_tree(at("full"));
  REQUIRE(build_and_read(t, at("room")) == WEIR_OK);
  bool done = false;
  for (long n = 1; !done; n++) {
    remove_tree(at("full"));
    heap_fail(n);
    weir_set_hooks(&(weir_hooks){.file = refuse});
    const weir_status s = build_and_read(t, at("full"));
    weir_set_hooks(NULL);
    done = !heap_failed();
    CHECK_MSG(s == WEIR_OK ? done || access(at("full/manifest.json"), F_OK) == 0 : s == WEIR_ENOMEM, "change %ld: %d, %s", n, s,
              weir_last_error());
    CHECK(build_and_read(t, at("full")) == WEIR_OK);
    CHECK_MSG(same_folder(at("room"), at("full")), "change %ld", n);
  }
  CHECK(heap.calls > 20);
  remove_tree(at("full"));
  remove_tree(at("room"));
}

TEST_MAIN("data_text", TEST(streams_of_members), TEST(bad_records_by_line), TEST(json_lines), TEST(cuts_change_no_id),
          TEST(build_holds_the_text), TEST(jsonl_documents_and_validation), TEST(killed_builds_go_on),
          TEST(builds_can_be_stopped_and_fail_whole), TEST(ring_gives_the_shards_windows), TEST(ring_goes_on_where_it_stopped),
          TEST(ring_leaves_nothing), TEST(workers_start_beside_busy_threads), TEST(allocations_may_fail),
          TEST(disks_may_be_full), TEST(cleans_up))
