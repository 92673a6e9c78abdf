/* tokenizer_file.c: tokenizers found by path, stored and read back: GGUF vocabularies, the "bytes" tokenizer, tokenizer.json.
 *
 * Witnesses: the hash before and after, the ids before and after, and what a changed vocabulary must do to the hash.
 */
#include "test.h"
#include "text/text.h"

#include <sys/stat.h>
#include <unistd.h>

#define VOCABS "../shared/data/vocab/ggml-vocab-"
#define SAMPLE "Hello, world! It's 2026\xe2\x80\xa6 \n\n  caf\xc3\xa9 <s> \xf0\x9f\x98\x80 \xff end"

static char folder[64];
static const char *in_folder(const char *name) {
  static char path[128];
  if (!folder[0]) {
    snprintf(folder, sizeof folder, "/tmp/weir-tokenizer-XXXXXX");
    if (!mkdtemp(folder)) abort();
  }
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

static bool exists(const char *path) { return access(path, R_OK) == 0; }

static bool store(const wr_tokenizer *t, const char *path) {
  return CHECK_MSG(wr_tokenizer_save(t, path) == WEIR_OK, "%s", weir_last_error());
}

static wr_tokenizer *open_path(const char *path) {
  wr_tokenizer *t = NULL;
  CHECK_MSG(wr_tokenizer_open_path(path, &t) == WEIR_OK, "%s: %s", path, weir_last_error());
  return t;
}

static void same_ids(const wr_tokenizer *a, const wr_tokenizer *b, const char *text, size_t n, unsigned flags) {
  wr_ids x = {0}, y = {0};
  CHECK_MSG(wr_encode(a, text, n, flags, &x) == WEIR_OK, "%s", weir_last_error());
  CHECK_MSG(wr_encode(b, text, n, flags, &y) == WEIR_OK, "%s", weir_last_error());
  CHECK(x.len == y.len && (!x.len || memcmp(x.ptr, y.ptr, x.len * sizeof *x.ptr) == 0));
  wr_ids_free(&x);
  wr_ids_free(&y);
}

/* A tokenizer that was stored and opened again is the same, and is stored as the same bytes. */
static void stored_is_the_same(const wr_tokenizer *t) {
  if (!store(t, in_folder("one.gguf"))) return;
  wr_tokenizer *u = open_path(in_folder("one.gguf"));
  if (!u) return;
  CHECK(wr_tokenizer_hash(u) == wr_tokenizer_hash(t));
  CHECK_STR(wr_tokenizer_name(u), wr_tokenizer_name(t));
  same_ids(t, u, SAMPLE, sizeof SAMPLE - 1, WR_TEXT_ADD_SPECIAL | WR_TEXT_PARSE_SPECIAL | WR_TEXT_LOSSY);
  char *a, *b;
  size_t n_a, n_b;
  REQUIRE(wr_file_read(in_folder("one.gguf"), 1 << 27, &a, &n_a) == WEIR_OK);
  if (store(u, in_folder("two.gguf"))) {
    REQUIRE(wr_file_read(in_folder("two.gguf"), 1 << 27, &b, &n_b) == WEIR_OK);
    CHECK(n_a == n_b && memcmp(a, b, n_a) == 0);
    wr_free(b);
  }
  wr_free(a);
  wr_tokenizer_close(u);
}

static const char *const all_vocabs[] = {"gpt-2", "llama-bpe", "llama-spm", "qwen2", "phi-3"};

static void vocabularies_come_back(void) {
  for (size_t i = 0; i < WR_ARRAY_LEN(all_vocabs); i++) {
    char path[128];
    snprintf(path, sizeof path, VOCABS "%s.gguf", all_vocabs[i]);
    if (!exists(path)) SKIP("../shared/data/vocab is not there");
    wr_tokenizer *t = open_path(path);
    if (!t) continue;
    stored_is_the_same(t);
    wr_tokenizer_close(t);
  }
}

static void bytes_tokenizer(void) {
  wr_tokenizer *t = open_path("bytes");
  REQUIRE(t);
  CHECK_EQ_INT(wr_tokenizer_size(t), 257);
  CHECK_EQ_INT(wr_tokenizer_special(t)->eos, 256);
  CHECK_EQ_INT(wr_tokenizer_special(t)->add_bos, 0);
  char text[256 * 2];
  for (int i = 0; i < 512; i++) text[i] = (char)(i * 7);
  wr_ids ids = {0};
  wr_str back = {0};
  CHECK(wr_encode(t, text, sizeof text, WR_TEXT_ADD_SPECIAL, &ids) == WEIR_OK);
  CHECK_EQ_INT(ids.len, sizeof text);
  for (size_t i = 0; i < ids.len && i < sizeof text; i++) CHECK_EQ_INT(ids.ptr[i], (uint8_t)text[i]);
  CHECK(wr_decode(t, ids.ptr, ids.len, 0, &back) == WEIR_OK);
  CHECK(back.len == sizeof text && memcmp(back.ptr, text, sizeof text) == 0);
  ids.len = 0;
  CHECK(wr_encode(t, "a<|endoftext|>", 14, WR_TEXT_PARSE_SPECIAL, &ids) == WEIR_OK);
  CHECK(ids.len == 2 && ids.ptr[1] == 256 && wr_token_is_end(t, 256));
  stored_is_the_same(t);
  wr_ids_free(&ids);
  wr_str_free(&back);
  wr_tokenizer_close(t);
}

/* A small vocabulary with two merges, then with one thing changed. */
typedef enum change { NOTHING, MERGE_ORDER, SPELLING, TYPE, EOS, PRE, A_MERGE_TWICE, ADD_BOS, CHANGES } change;

static uint64_t hash_with(change c) {
  char spelled[256][2];
  wr_gguf_text tokens[260], merges[3] = {{"a b", 3}, {"b c", 3}, {"a b", 3}};
  int32_t types[260];
  for (int b = 0; b < 256; b++) { /* the alphabet, as GPT-2's encoder.py lists it */
    int ch = b, extra = 0;
    for (int i = 0; i <= b; i++) {
      bool printable = (i >= '!' && i <= '~') || (i >= 0xa1 && i <= 0xac) || i >= 0xae;
      ch = printable ? i : 256 + extra++;
    }
    bool two = ch >= 128;
    spelled[b][0] = (char)(two ? 0xc0 | ch >> 6 : ch), spelled[b][1] = (char)(0x80 | (ch & 63));
    tokens[b] = (wr_gguf_text){spelled[b], two ? 2 : 1};
    types[b] = WR_TOKEN_NORMAL;
  }
  tokens[256] = (wr_gguf_text){"ab", 2}, tokens[257] = (wr_gguf_text){"bc", 2}, tokens[258] = (wr_gguf_text){"<e>", 3};
  tokens[259] = (wr_gguf_text){"zz", 2};
  types[256] = types[257] = types[259] = WR_TOKEN_NORMAL, types[258] = WR_TOKEN_CONTROL;
  wr_vocab_source src;
  wr_vocab_source_init(&src);
  src.model = (wr_gguf_text){"gpt2", 4};
  src.pre = (wr_gguf_text){"gpt-2", 5};
  src.tokens = tokens, src.n_tokens = 260, src.types = types, src.n_types = 260, src.merges = merges, src.n_merges = 2;
  src.eos_id = src.bos_id = 258;
  if (c == MERGE_ORDER) merges[0] = merges[1], merges[1] = merges[2];
  if (c == SPELLING) tokens[259] = (wr_gguf_text){"zy", 2};
  if (c == TYPE) types[258] = WR_TOKEN_USER_DEFINED;
  if (c == EOS) src.eos_id = 259;
  if (c == PRE) src.pre = (wr_gguf_text){"qwen2", 5};
  if (c == A_MERGE_TWICE) src.n_merges = 3;
  if (c == ADD_BOS) src.add_bos = 1;
  wr_tokenizer *t = NULL;
  if (!CHECK_MSG(wr_tokenizer_open(&src, &t) == WEIR_OK, "%s", weir_last_error())) return 0;
  uint64_t h = wr_tokenizer_hash(t);
  stored_is_the_same(t);
  wr_tokenizer_close(t);
  return h;
}

static void hash_sees_what_changes_ids(void) {
  uint64_t h[CHANGES];
  for (int c = 0; c < CHANGES; c++) h[c] = hash_with((change)c);
  for (int c = 1; c < CHANGES; c++) CHECK_MSG((h[c] == h[0]) == (c == A_MERGE_TWICE), "change %d", c);
}

static void folders(void) {
  char path[160];
  wr_tokenizer *t = open_path("bytes"), *u = NULL;
  REQUIRE(t);
  snprintf(path, sizeof path, "%s", in_folder("empty"));
  CHECK(mkdir(path, 0777) == 0);
  CHECK(wr_tokenizer_open_path(path, &u) != WEIR_OK);
  CHECK_HAS(weir_last_error(), "empty");
  if (store(t, in_folder("empty/tokenizer.gguf"))) {
    u = open_path(path);
    CHECK(u && wr_tokenizer_hash(u) == wr_tokenizer_hash(t));
    wr_tokenizer_close(u);
  }
  u = NULL;
  CHECK(wr_tokenizer_open_path(in_folder("nothing-here"), &u) == WEIR_EIO);
  CHECK_HAS(weir_last_error(), "nothing-here");
  CHECK(!u);
  wr_tokenizer_close(t);
}

static void clean_up(void) {
  char command[128];
  snprintf(command, sizeof command, "rm -r %s", folder);
  CHECK(!folder[0] || system(command) == 0);
}

TEST_MAIN("tokenizer_file", TEST(vocabularies_come_back), TEST(bytes_tokenizer), TEST(hash_sees_what_changes_ids),
          TEST(folders), TEST(clean_up))
