/* tokenizer_json.c: tokenizer.json read and written.
 *
 * Witnesses: the ids of Hugging Face's tokenizers in ../shared/cases/tokenizer/expected_ids.json (cases B01, B09, B11), the verdicts of
 * its manifest.json on malformed files (case A14), and that what was written reads back as the same tokenizer. tokenizer_hf.py holds
 * written files against the library itself.
 */
#include "test.h"

#include "heap_i.h"
#include "text/text.h"

#include <jansson.h>
#include <unistd.h>

#define CASES "../shared/cases/tokenizer/"
#define VOCABS "../shared/data/vocab/ggml-vocab-"

static json_t *read_json(const char *name) { return json_load_file(name, JSON_ALLOW_NUL, NULL); }
static const char *text_of(const json_t *o, const char *key) { return json_string_value(json_object_get(o, key)); }

/* ------------------------------------------------------------------------------------------------------ ids of the library */

static void check_ids(const wr_tokenizer *t, const char *id, const json_t *text, unsigned flags, const json_t *want) {
  wr_ids ids = {0};
  CHECK_MSG(wr_encode(t, json_string_value(text), json_string_length(text), flags, &ids) == WEIR_OK, "%s", weir_last_error());
  size_t n = json_array_size(want), at = 0;
  while (at < n && at < ids.len && json_integer_value(json_array_get(want, at)) == ids.ptr[at]) at++;
  CHECK_MSG(at == n && n == ids.len, "%s: %s: flags %u: %zu ids, not %zu; id %zu is %d, not %lld", wr_tokenizer_name(t), id,
            flags, ids.len, n, at, at < ids.len ? ids.ptr[at] : -1,
            at < n ? (long long)json_integer_value(json_array_get(want, at)) : -1);
  wr_ids_free(&ids);
}

/* What the library gives back whole, weir does too, also token by token. */
static void check_text(const wr_tokenizer *t, const char *id, const json_t *want, const json_t *text) {
  wr_ids ids = {0};
  wr_str whole = {0}, stream = {0};
  const char *z = json_string_value(text);
  size_t n = json_string_length(text);
  for (size_t i = 0; i < json_array_size(want); i++)
    CHECK(wr_ids_put(&ids, (int32_t)json_integer_value(json_array_get(want, i))) == WEIR_OK);
  wr_text_stream s;
  wr_text_stream_init(&s, t, WR_TEXT_KEEP_SPECIAL);
  CHECK(wr_decode(t, ids.ptr, ids.len, WR_TEXT_KEEP_SPECIAL, &whole) == WEIR_OK);
  for (size_t i = 0; i < ids.len; i++) CHECK(wr_text_stream_put(&s, ids.ptr[i], &stream) == WEIR_OK);
  CHECK(wr_text_stream_flush(&s, &stream) == WEIR_OK);
  CHECK_MSG(whole.len == n && (!n || memcmp(whole.ptr, z, n) == 0), "%s: %s comes back as \"%s\"", wr_tokenizer_name(t), id,
            wr_escape(whole.ptr ? whole.ptr : "", whole.len));
  CHECK_MSG(stream.len == n && (!n || memcmp(stream.ptr, z, n) == 0), "%s: %s streams as \"%s\"", wr_tokenizer_name(t), id,
            wr_escape(stream.ptr ? stream.ptr : "", stream.len));
  wr_ids_free(&ids);
  wr_str_free(&whole);
  wr_str_free(&stream);
}

static void check_expected(const wr_tokenizer *t, const json_t *texts, const json_t *expected) {
  CHECK(json_array_size(expected) > 40 && json_array_size(texts) == json_array_size(expected));
  for (size_t i = 0; i < json_array_size(expected); i++) {
    const json_t *e = json_array_get(expected, i), *text = json_object_get(json_array_get(texts, i), "text");
    const char *id = text_of(e, "id");
    if (!CHECK_MSG(id && strcmp(id, text_of(json_array_get(texts, i), "id")) == 0, "row %zu: another text", i)) return;
    check_ids(t, id, text, WR_TEXT_PARSE_SPECIAL, json_object_get(e, "ids"));
    check_ids(t, id, text, WR_TEXT_PARSE_SPECIAL | WR_TEXT_ADD_SPECIAL, json_object_get(e, "ids_with_bos"));
    check_ids(t, id, text, 0, json_object_get(e, "ids_literal_specials"));
    if (json_is_true(json_object_get(e, "round_trip"))) check_text(t, id, json_object_get(e, "ids"), text);
  }
}

/* The same from tokenizer.json and from the GGUF that it becomes, in which it stays the same. */
static void ids_are_the_librarys(void) {
  static const char *const names[] = {"tok_bytelevel.json", "tok_metaspace_legacy.json", "tok_metaspace_first.json"};
  json_t *texts = read_json(CASES "edge_strings.json"), *expected = read_json(CASES "expected_ids.json");
  if (!texts || !expected) SKIP("../shared/cases is not there");
  for (size_t i = 0; i < WR_ARRAY_LEN(names); i++) {
    char path[128], stored[64];
    snprintf(path, sizeof path, CASES "%s", names[i]);
    snprintf(stored, sizeof stored, "/tmp/weir-tokenizer-%d.gguf", (int)getpid());
    wr_tokenizer *t = NULL, *u = NULL;
    REQUIRE(wr_tokenizer_open_path(path, &t) == WEIR_OK);
    check_expected(t, texts, json_object_get(expected, names[i]));
    CHECK_MSG(wr_tokenizer_save(t, stored) == WEIR_OK, "%s", weir_last_error());
    CHECK_MSG(wr_tokenizer_open_path(stored, &u) == WEIR_OK, "%s", weir_last_error());
    if (u) {
      CHECK(wr_tokenizer_hash(t) == wr_tokenizer_hash(u));
      check_expected(u, texts, json_object_get(expected, names[i]));
    }
    unlink(stored);
    wr_tokenizer_close(t);
    wr_tokenizer_close(u);
  }
  json_decref(texts);
  json_decref(expected);
}

/* ------------------------------------------------------------------------------------------------------------- malformed */

static void malformed_files(void) {
  json_t *manifest = read_json(CASES "manifest.json");
  if (!manifest) SKIP("../shared/cases is not there");
  const char *name;
  json_t *row;
  size_t count = 0;
  json_object_foreach(manifest, name, row) {
    char path[128], text[64] = "aab abba";
    const char *expect = text_of(row, "expect");
    snprintf(path, sizeof path, CASES "%s", name);
    memset(text + 8, 'a', 40), text[48] = '!';
    wr_tokenizer *t = NULL;
    weir_status st = wr_tokenizer_open_path(path, &t);
    if (strcmp(expect, "accept") == 0) CHECK_MSG(st == WEIR_OK, "%s", weir_last_error());
    if (strcmp(expect, "reject") == 0) CHECK_MSG(st == WEIR_EFORMAT || st == WEIR_EUNSUPPORTED, "%s: %d", name, (int)st);
    CHECK((st == WEIR_OK) == (t != NULL));
    if (st != WEIR_OK) CHECK_HAS(weir_last_error(), name);
    wr_ids ids = {0};
    if (t) CHECK_MSG(wr_encode(t, text, 49, WR_TEXT_LOSSY, &ids) == WEIR_OK && ids.len, "%s: %s", name, weir_last_error());
    wr_ids_free(&ids);
    wr_tokenizer_close(t);
    count++;
  }
  CHECK(count > 20);
  json_decref(manifest);
}

#define MODEL(more, merges) \
  "{\"model\":{\"type\":\"BPE\"," more "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\\u0120\":3},\"merges\":[" merges "]}," \
  "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"

static weir_status try(const char *json, wr_tokenizer **out) {
  *out = NULL;
  return wr_tokenizer_open_json_memory(json, strlen(json), "x.json", out);
}

/* Each is one change to a file that opens, and the sentence names what is wrong. */
static void refused_by_name(void) {
  static const struct {
    const char *json, *says;
  } rows[] = {
      {MODEL("", "\"a b\",\"a c\"") "}", "merge 1, \"a c\""},
      {MODEL("", "[\"a\",\"b\"],[\"a\",\" \"]") "}", "merge 1, \"a\" and \" \""},
      {MODEL("", "\"a  b\"") "}", "merge 0"},
      {MODEL("", "[\"a\"]") "}", "merge 0"},
      {MODEL("\"dropout\":0.1,", "\"a b\"") "}", "dropout"},
      {MODEL("\"end_of_word_suffix\":\"</w>\",", "\"a b\"") "}", "end_of_word_suffix"},
      {MODEL("\"ignore_merges\":true,", "\"a b\"") "}", "ignore_merges true"},
      {MODEL("", "\"a b\"") ",\"normalizer\":{\"type\":\"Lowercase\"}}", "normalizer 'Lowercase'"},
      {MODEL("",
             "\"a b\"") ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Strip\"}]}}",
       "normalizer 'Strip'"},
      {MODEL("", "\"a b\"") ",\"normalizer\":{\"type\":\"NFC\"}}", "NFC()"},
      {MODEL("", "\"a b\"") ",\"post_processor\":{\"type\":\"Nope\"}}", "post_processor 'Nope'"},
      {MODEL("", "\"a b\"") ",\"added_tokens\":[{\"id\":4,\"content\":\"<m>\",\"lstrip\":true,\"special\":true}]}",
       "\"<m>\": lstrip"},
      {MODEL("", "\"a b\"") ",\"added_tokens\":[{\"id\":2,\"content\":\"a\"}]}", "\"a\" has the id 2, but 0"},
      {MODEL("", "\"a b\"") ",\"added_tokens\":[{\"content\":\"<m>\"}]}", "\"<m>\""},
      {MODEL("", "\"a b\"") ",\"added_tokens\":{}}", "added_tokens"},
      {"{\"model\":{\"vocab\":{\"a\":0.5},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"
       "}",
       "not a whole number"},
      {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}", "none that weir knows"},
      {"[]", "object"},
      {"{\"model\":{\"vocab\":{\"\\u0000\":0,\"\\ufdd0\":1},\"merges\":[]}}", "U+FDD0"},
  };
  wr_tokenizer *t;
  CHECK_MSG(try(MODEL("", "\"a b\"") "}", &t) == WEIR_OK, "%s", weir_last_error());
  wr_tokenizer_close(t);
  for (size_t i = 0; i < WR_ARRAY_LEN(rows); i++) {
    weir_status st = try(rows[i].json, &t);
    CHECK_MSG(st == WEIR_EFORMAT || st == WEIR_EUNSUPPORTED, "row %zu: %d", i, (int)st);
    CHECK(!t);
    CHECK_HAS(weir_last_error(), "x.json: ");
    CHECK_HAS(weir_last_error(), rows[i].says);
    wr_tokenizer_close(t);
  }
}

static void nul_is_a_byte(void) {
  wr_tokenizer *t;
  static const char json[] = "{\"model\":{\"vocab\":{\"a\":0,\"\\\\u0000\":1,\"\\u0000\":2,\"x\\u0000y\":3},\"merges\":[]},"
                             "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false}}";
  REQUIRE(try(json, &t) == WEIR_OK);
  wr_gguf_text one = wr_token_text(t, 1), nul = wr_token_text(t, 2), mid = wr_token_text(t, 3);
  CHECK(one.len == 6 && memcmp(one.ptr, "\\u0000", 6) == 0);
  CHECK(nul.len == 1 && nul.ptr[0] == 0);
  CHECK(mid.len == 3 && memcmp(mid.ptr, "x\0y", 3) == 0);
  wr_tokenizer_close(t);
}

/* Ids without a token, fewer and more than are filled. */
static void holes(void) {
  wr_tokenizer *t;
  wr_str json = {0};
  for (int last = 10; last <= 2000; last += 1990) {
    wr_str_clear(&json);
    wr_str_printf(&json,
                  "{\"model\":{\"vocab\":{\"a\":0,\"b\":%d},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                  "\"add_prefix_space\":false}}",
                  last);
    CHECK_EQ_INT(try(json.ptr, &t), last == 10 ? WEIR_OK : WEIR_EFORMAT);
    if (t) {
      CHECK_EQ_INT(wr_tokenizer_size(t), 11);
      CHECK_EQ_INT(wr_token_type_of(t, 5), WR_TOKEN_UNUSED);
    }
    wr_tokenizer_close(t);
  }
  /* one token said many times does not make room for many ids */
  wr_str_clear(&json);
  wr_str_puts(&json, "{\"model\":{\"vocab\":{\"a\":0,\"b\":5000},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                     "\"add_prefix_space\":false},\"added_tokens\":[");
  for (int i = 0; i < 6000; i++) wr_str_printf(&json, "%s{\"id\":0,\"content\":\"a\"}", i ? "," : "");
  wr_str_puts(&json, "]}");
  CHECK_EQ_INT(try(json.ptr, &t), WEIR_EFORMAT);
  CHECK_HAS(weir_last_error(), "have no token");
  wr_tokenizer_close(t);
  wr_str_free(&json);
}

/* ---------------------------------------------------------------------------------------------------------------- written */

static void reads_back(const char *from, bool same_special) {
  char path[64];
  wr_tokenizer *t = NULL, *u = NULL;
  snprintf(path, sizeof path, "/tmp/weir-tokenizer-%d.json", (int)getpid());
  REQUIRE(wr_tokenizer_open_path(from, &t) == WEIR_OK);
  CHECK_MSG(wr_tokenizer_save(t, path) == WEIR_OK, "%s", weir_last_error());
  CHECK_MSG(wr_tokenizer_open_path(path, &u) == WEIR_OK, "%s", weir_last_error());
  if (u) {
    CHECK_STR(wr_tokenizer_name(u), wr_tokenizer_name(t));
    CHECK_EQ_INT(wr_tokenizer_size(u), wr_tokenizer_size(t));
    if (same_special) CHECK(wr_tokenizer_hash(u) == wr_tokenizer_hash(t));
    static const char text[] = "Hello, world!  It's 2026\n\n caf\xc3\xa9 <|endoftext|> \xf0\x9f\x98\x80 \xff";
    wr_ids a = {0}, b = {0};
    CHECK(wr_encode(t, text, sizeof text - 1, WR_TEXT_PARSE_SPECIAL | WR_TEXT_ADD_SPECIAL, &a) == WEIR_OK);
    CHECK(wr_encode(u, text, sizeof text - 1, WR_TEXT_PARSE_SPECIAL | WR_TEXT_ADD_SPECIAL, &b) == WEIR_OK);
    CHECK(a.len == b.len && memcmp(a.ptr, b.ptr, a.len * sizeof *a.ptr) == 0);
    wr_ids_free(&a);
    wr_ids_free(&b);
  }
  unlink(path);
  wr_tokenizer_close(t);
  wr_tokenizer_close(u);
}

static void written_files_read_back(void) {
  reads_back("bytes", true);
  if (access(VOCABS "gpt-2.gguf", R_OK)) SKIP("../shared/data/vocab is not there");
  reads_back(VOCABS "gpt-2.gguf", true);
  reads_back(VOCABS "llama-bpe.gguf", true);
  reads_back(VOCABS "qwen2.gguf", false); /* which token ends a text is not in the file */
}

static void what_cannot_be_written(void) {
  wr_tokenizer *t = NULL;
  REQUIRE(wr_tokenizer_open_path("bytes", &t) == WEIR_OK);
  CHECK_EQ_INT(wr_tokenizer_save(t, "/tmp/x.txt"), WEIR_EUSAGE);
  CHECK_HAS(weir_last_error(), ".json");
  CHECK_EQ_INT(wr_tokenizer_save(t, "/nonexistent-folder/x.json"), WEIR_EIO);
  wr_tokenizer_close(t);
  t = NULL;
  if (access(VOCABS "llama-spm.gguf", R_OK)) SKIP("../shared/data/vocab is not there");
  REQUIRE(wr_tokenizer_open_path(VOCABS "llama-spm.gguf", &t) == WEIR_OK);
  CHECK_EQ_INT(wr_tokenizer_save(t, "/tmp/x.json"), WEIR_EUNSUPPORTED);
  CHECK_HAS(weir_last_error(), ".gguf");
  wr_tokenizer_close(t);
}

/* Every allocation fails once: a sentence, no tokenizer, and nothing left. */
static void memory_may_run_out(void) {
  static const char *const files[] = {
      MODEL("", "\"a b\"") ",\"added_tokens\":[{\"id\":4,\"content\":\"<m>\",\"special\":true}]}",
      "{\"model\":{\"byte_fallback\":true,\"vocab\":{\"\u2581\":0,\"a\":1,\"b\":2,\"ab\":4},\"merges\":[[\"a\",\"b\"]]},"
      "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\u2581\",\"prepend_scheme\":\"first\",\"split\":false}}"};
  char path[64];
  snprintf(path, sizeof path, "/tmp/weir-tokenizer-%d.json", (int)getpid());
  for (size_t i = 0; i < WR_ARRAY_LEN(files); i++) {
    bool done = false;
    long failures = 0;
    weir_set_hooks(&(weir_hooks){HEAP_HOOKS});
    for (long at = 1; !done && at < 10000; at++) {
      wr_tokenizer *t = NULL;
      heap_fail(at);
      weir_status st = try(files[i], &t);
      CHECK((st == WEIR_OK) == (t != NULL));
      if (st == WEIR_OK && i == 0) st = wr_tokenizer_save(t, path);
      done = !heap_failed();
      if (st != WEIR_OK) failures++;
      CHECK_MSG(st == WEIR_OK || st == WEIR_ENOMEM, "allocation %ld: %s", at, weir_last_error());
      wr_tokenizer_close(t);
      CHECK_EQ_INT(heap.live, 0);
    }
    weir_set_hooks(NULL);
    CHECK(done && failures > 10);
  }
  unlink(path);
}

TEST_MAIN("tokenizer_json", TEST(ids_are_the_librarys), TEST(malformed_files), TEST(refused_by_name), TEST(nul_is_a_byte),
          TEST(holes), TEST(written_files_read_back), TEST(what_cannot_be_written), TEST(memory_may_run_out))
