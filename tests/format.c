/* The GGUF reader and writer, and the public API of files: round trips, malformed bytes, split models, typed look-up, failing
 * allocations. Files of other makers are read by gguf_cases.py. */
#include "format/format.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include "test.h"

#include "heap_i.h"

/* ---- a file made by hand, so that it can be wrong in any way */

typedef struct bytes {
  uint8_t at[1 << 16];
  size_t n;
} bytes;

static void put(bytes *b, const void *p, size_t n) {
  memcpy(b->at + b->n, p, n);
  b->n += n;
}
static void u32(bytes *b, uint32_t v) { put(b, &v, 4); }
static void u64(bytes *b, uint64_t v) { put(b, &v, 8); }
static void text_n(bytes *b, const char *s, size_t n) { u64(b, n), put(b, s, n); }
static void text(bytes *b, const char *s) { text_n(b, s, strlen(s)); }
static void head(bytes *b, uint32_t version, uint64_t n_tensors, uint64_t n_meta) {
  b->n = 0;
  put(b, "GGUF", 4);
  u32(b, version);
  u64(b, n_tensors);
  u64(b, n_meta);
}
static void meta_u32(bytes *b, const char *key, uint32_t v) { text(b, key), u32(b, WR_GGUF_VALUE_U32), u32(b, v); }
static void info2(bytes *b, const char *name, uint64_t d0, uint64_t d1, uint32_t type, uint64_t offset) {
  text(b, name);
  u32(b, 2);
  u64(b, d0);
  u64(b, d1);
  u32(b, type);
  u64(b, offset);
}
static void pad(bytes *b, size_t to) {
  while (b->n % to) b->at[b->n++] = 0;
}
static void data(bytes *b, size_t n) {
  pad(b, 32);
  for (size_t i = 0; i < n; i++) b->at[b->n++] = (uint8_t)i;
}

static weir_status try_bytes(const bytes *b) {
  /* A copy of exactly its size, for the address sanitizer. */
  uint8_t *copy = malloc(b->n ? b->n : 1);
  wr_gguf *g = NULL;
  memcpy(copy, b->at, b->n);
  weir_status status = wr_gguf_open_memory(copy, b->n, "made", &g);
  wr_gguf_close(g);
  free(copy);
  return status;
}

#define REFUSED(b, status, words) \
  do { \
    CHECK_EQ_INT(try_bytes(b), status); \
    CHECK_HAS(weir_last_error(), words); \
  } while (0)

static const char *temp_dir(void) {
  static char dir[64];
  if (!dir[0]) {
    strcpy(dir, "/tmp/weir-format-XXXXXX");
    if (!mkdtemp(dir)) abort();
  }
  return dir;
}
static const char *in_temp(const char *name) {
  static char path[4][256];
  static int turn;
  char *p = path[turn++ % 4];
  snprintf(p, sizeof path[0], "%s/%s", temp_dir(), name);
  return p;
}
static void save(const char *path, const bytes *b) {
  FILE *f = fopen(path, "wb");
  if (!f || fwrite(b->at, 1, b->n, f) != b->n) abort();
  fclose(f);
}
static int files_in_temp(void) {
  int n = 0;
  DIR *d = opendir(temp_dir());
  while (d && readdir(d)) n++;
  if (d) closedir(d);
  return n - 2;
}
static void empty_temp(void) {
  DIR *d = opendir(temp_dir());
  for (struct dirent *e; d && (e = readdir(d));)
    if (e->d_name[0] != '.') unlink(in_temp(e->d_name));
  if (d) closedir(d);
}

/* ---- types */

static void type_tables(void) {
  uint64_t n = 0;
  const wr_gguf_type_info *q4k = wr_gguf_type_find(WR_GGUF_Q4_K);
  REQUIRE(q4k != NULL);
  CHECK_STR(q4k->name, "Q4_K");
  CHECK(q4k == wr_gguf_type_named("q4_k", 4));
  CHECK(!wr_gguf_type_named("q4_k", 3) && !wr_gguf_type_named("", 0));
  CHECK(wr_gguf_type_bytes(q4k, 512, 3, &n) && n == 864);
  CHECK(!wr_gguf_type_bytes(q4k, 100, 1, &n) && n == 864);
  CHECK(!wr_gguf_type_bytes(wr_gguf_type_find(WR_GGUF_F32), 1ull << 40, 1ull << 40, &n));
  static const uint32_t gone[] = {4, 5, 31, 32, 33, 36, 37, 38, 43, 9999, UINT32_MAX};
  for (size_t i = 0; i < WR_ARRAY_LEN(gone); i++) CHECK(!wr_gguf_type_find(gone[i]));
  CHECK(!wr_gguf_type_find(WR_GGUF_IQ2_XS)->supported);
  CHECK(wr_gguf_type_find(WR_GGUF_BF16)->supported);
}

/* ---- writing and reading back */

static weir_status write_tiny(const char *path, uint32_t alignment) {
  static const uint64_t d_emb[] = {32, 3}, d_norm[] = {5}, d_four[] = {2, 1, 3, 2};
  static const int32_t types[] = {1, -2, 3};
  static const float scores[] = {0.5f, -1.25f};
  static const uint8_t flags[] = {1, 0, 1};
  const wr_gguf_text tokens[] = {{"a", 1}, {"", 0}, {"b\xff\0c", 4}};
  uint8_t block[102], norm[20], four[48];
  for (size_t i = 0; i < sizeof block; i++) block[i] = (uint8_t)(i * 7);
  for (size_t i = 0; i < sizeof norm; i++) norm[i] = (uint8_t)(i + 1);
  memset(four, 9, sizeof four);
  wr_gguf_writer *w;
  WR_TRY(wr_gguf_writer_open(path, alignment, &w));
  wr_gguf_put_text(w, "general.architecture", "tiny", 4);
  wr_gguf_put_text(w, "general.name", "name \x1b[2J\n%s\xff", 13);
  wr_gguf_put_u32(w, "tiny.block_count", 2);
  wr_gguf_put_u64(w, "big", UINT64_MAX);
  wr_gguf_put_i32(w, "negative", -5);
  wr_gguf_put_f32(w, "eps", 1e-5f);
  wr_gguf_put_bool(w, "yes", true);
  wr_gguf_put_array(w, "types", WR_GGUF_VALUE_I32, types, 3);
  wr_gguf_put_array(w, "scores", WR_GGUF_VALUE_F32, scores, 2);
  wr_gguf_put_array(w, "flags", WR_GGUF_VALUE_BOOL, flags, 3);
  wr_gguf_put_array(w, "nothing", WR_GGUF_VALUE_U8, NULL, 0);
  wr_gguf_put_texts(w, "tokenizer.ggml.tokens", tokens, 3);
  wr_gguf_put_tensor(w, "emb", WR_GGUF_Q8_0, 2, d_emb);
  wr_gguf_put_tensor(w, "norm", WR_GGUF_F32, 1, d_norm);
  wr_gguf_put_tensor(w, "four", WR_GGUF_F32, 4, d_four);
  wr_gguf_write(w, block, 50); /* pieces that do not fit the tensors */
  wr_gguf_write(w, block + 50, 52);
  wr_gguf_write(w, norm, sizeof norm);
  wr_gguf_write(w, four, sizeof four);
  weir_status status = wr_gguf_writer_finish(w);
  wr_gguf_writer_close(w);
  return status;
}

static void check_tiny(const wr_gguf *g) {
  CHECK_EQ_INT(wr_gguf_n_tensors(g), 3);
  const wr_gguf_tensor *emb = wr_gguf_tensor_find(g, "emb"), *norm = wr_gguf_tensor_at(g, 1);
  REQUIRE(emb && emb == wr_gguf_tensor_at(g, 0));
  CHECK_STR(emb->type->name, "Q8_0");
  CHECK(emb->n_dims == 2 && emb->dim[0] == 32 && emb->dim[1] == 3 && emb->dim[2] == 1);
  CHECK(emb->n_elems == 96 && emb->bytes == 102);
  for (size_t i = 0; i < 102; i++) CHECK_EQ_INT(emb->data[i], (uint8_t)(i * 7));
  CHECK_STR(norm->name, "norm");
  CHECK(norm->data[0] == 1 && norm->data[19] == 20);
  CHECK(norm->offset % wr_gguf_alignment(g) == 0 && norm->offset > emb->offset);
  const wr_gguf_tensor *four = wr_gguf_tensor_find(g, "four");
  REQUIRE(four != NULL);
  CHECK(four->n_dims == 4 && four->dim[3] == 2 && four->n_elems == 12 && four->data[47] == 9);
  CHECK(!wr_gguf_tensor_find(g, "em") && !wr_gguf_tensor_find(g, ""));

  int64_t v = 0;
  double f = 0;
  bool yes = false;
  wr_gguf_text t;
  wr_gguf_array a;
  CHECK_EQ_INT(wr_gguf_get_int(g, "tiny.block_count", true, 1, 10, &v), WEIR_OK);
  CHECK_EQ_INT(v, 2);
  CHECK_EQ_INT(wr_gguf_get_int(g, "negative", true, -10, 10, &v), WEIR_OK);
  CHECK_EQ_INT(v, -5);
  CHECK_EQ_INT(wr_gguf_get_float(g, "eps", true, &f), WEIR_OK);
  CHECK_NEAR(f, 1e-5, 1e-12);
  CHECK_EQ_INT(wr_gguf_get_bool(g, "yes", true, &yes), WEIR_OK);
  CHECK(yes);
  CHECK_EQ_INT(wr_gguf_get_text(g, "general.architecture", true, &t), WEIR_OK);
  CHECK(t.len == 4 && memcmp(t.ptr, "tiny", 4) == 0);
  CHECK_EQ_INT(wr_gguf_get_array(g, "types", true, WR_GGUF_VALUE_I32, &a), WEIR_OK);
  CHECK(a.count == 3 && wr_gguf_array_int(&a, 1) == -2 && wr_gguf_array_float(&a, 2) == 3.0);
  CHECK_EQ_INT(wr_gguf_get_array(g, "scores", true, WR_GGUF_VALUE_F32, &a), WEIR_OK);
  CHECK(a.count == 2 && wr_gguf_array_float(&a, 1) == -1.25);
  CHECK_EQ_INT(wr_gguf_get_array(g, "flags", true, WR_GGUF_VALUE_BOOL, &a), WEIR_OK);
  CHECK(a.count == 3 && wr_gguf_array_int(&a, 1) == 0 && wr_gguf_array_int(&a, 2) == 1);
  CHECK_EQ_INT(wr_gguf_get_array(g, "nothing", true, WR_GGUF_VALUE_U8, &a), WEIR_OK);
  CHECK_EQ_INT(a.count, 0);

  CHECK_EQ_INT(wr_gguf_get_array(g, "tokenizer.ggml.tokens", true, WR_GGUF_VALUE_STRING, &a), WEIR_OK);
  wr_gguf_text *index;
  REQUIRE(wr_gguf_array_texts(&a, &index) == WEIR_OK);
  int n = 0;
  for (const uint8_t *at = NULL; wr_gguf_array_next(&a, &at, &t); n++) CHECK(t.ptr == index[n].ptr && t.len == index[n].len);
  CHECK_EQ_INT(n, 3);
  CHECK(index[1].len == 0 && index[2].len == 4 && memcmp(index[2].ptr, "b\xff\0c", 4) == 0);
  wr_free(index);
}

static void round_trip(void) {
  static const uint32_t alignments[] = {0, 8, 64, 4096};
  for (size_t i = 0; i < WR_ARRAY_LEN(alignments); i++) {
    const char *path = in_temp("tiny.gguf");
    for (int no_mmap = 0; no_mmap < 2; no_mmap++) {
      wr_gguf *g = NULL;
      REQUIRE(write_tiny(path, alignments[i]) == WEIR_OK);
      REQUIRE(wr_gguf_open(path, &(wr_gguf_options){.no_mmap = no_mmap}, &g) == WEIR_OK);
      CHECK_EQ_INT(wr_gguf_alignment(g), alignments[i] ? alignments[i] : 32);
      CHECK_EQ_INT(wr_gguf_version(g), 3);
      CHECK_EQ_INT(wr_gguf_n_parts(g), 1);
      CHECK_EQ_INT(wr_gguf_part_at(g, 0).map->heap, no_mmap);
      CHECK_EQ_INT(wr_gguf_part_at(g, 0).map->bytes, wr_gguf_file_bytes(g));
      check_tiny(g);
      wr_gguf_close(g);
    }
  }
  CHECK_EQ_INT(files_in_temp(), 1);
  empty_temp();
}

/* Copying every entry and tensor of a file gives the same bytes. */
static void copy_is_equal(void) {
  const char *from = in_temp("a.gguf"), *to = in_temp("b.gguf");
  wr_gguf *g = NULL, *h = NULL;
  wr_gguf_writer *w;
  REQUIRE(write_tiny(from, 64) == WEIR_OK && wr_gguf_open(from, NULL, &g) == WEIR_OK);
  REQUIRE(wr_gguf_writer_open(to, 64, &w) == WEIR_OK);
  for (size_t i = 0; i < wr_gguf_n_meta(g); i++) wr_gguf_put_meta(w, wr_gguf_meta_at(g, i));
  for (size_t i = 0; i < wr_gguf_n_tensors(g); i++) {
    const wr_gguf_tensor *t = wr_gguf_tensor_at(g, i);
    wr_gguf_put_tensor(w, t->name, (wr_gguf_type)t->type->number, t->n_dims, t->dim);
  }
  for (size_t i = 0; i < wr_gguf_n_tensors(g); i++) {
    const wr_gguf_tensor *t = wr_gguf_tensor_at(g, i);
    wr_gguf_write(w, t->data, t->bytes);
  }
  CHECK_EQ_INT(wr_gguf_writer_finish(w), WEIR_OK);
  wr_gguf_writer_close(w);
  REQUIRE(wr_gguf_open(to, NULL, &h) == WEIR_OK);
  const wr_map *a = wr_gguf_part_at(g, 0).map, *b = wr_gguf_part_at(h, 0).map;
  CHECK(a->bytes == b->bytes && memcmp(a->ptr, b->ptr, a->bytes) == 0);
  wr_gguf_close(g);
  wr_gguf_close(h);
  empty_temp();
}

static void writer_refuses(void) {
  static const uint64_t d[] = {32, 2}, odd[] = {33}, huge[] = {1ull << 62, 4};
  const char *path = in_temp("w.gguf");
  wr_gguf_writer *w;
  float zeros[64] = {0};
#define WRITER(call, words) \
  do { \
    REQUIRE(wr_gguf_writer_open(path, 0, &w) == WEIR_OK); \
    call; \
    CHECK_EQ_INT(wr_gguf_writer_finish(w), WEIR_EUSAGE); \
    CHECK_HAS(weir_last_error(), words); \
    wr_gguf_writer_close(w); \
  } while (0)
  WRITER(wr_gguf_put_u32(w, "", 1), "name");
  WRITER(wr_gguf_put_u32(w, "\xff", 1), "\\xFF");
  WRITER((wr_gguf_put_u32(w, "twice", 1), wr_gguf_put_u32(w, "twice", 2)), "'twice'");
  WRITER((wr_gguf_put_tensor(w, "x", WR_GGUF_F32, 1, d), wr_gguf_put_tensor(w, "x", WR_GGUF_F32, 1, d),
          wr_gguf_write(w, zeros, 256)),
         "twice");
  WRITER(wr_gguf_put_tensor(w, "x", WR_GGUF_Q4_0, 1, odd), "'x'");
  WRITER(wr_gguf_put_tensor(w, "x", WR_GGUF_F32, 2, huge), "'x'");
  WRITER(wr_gguf_put_tensor(w, "x", (wr_gguf_type)4, 1, d), "'x'");
  WRITER(wr_gguf_put_tensor(w, "x", WR_GGUF_F32, 5, d), "'x'");
  WRITER((wr_gguf_put_tensor(w, "x", WR_GGUF_F32, 2, d), wr_gguf_write(w, zeros, 255)), "0 of 1 tensors, and 255 bytes");
  WRITER((wr_gguf_put_tensor(w, "x", WR_GGUF_F32, 1, d), wr_gguf_write(w, zeros, 129)), "more than the tensors");
  WRITER((wr_gguf_put_tensor(w, "x", WR_GGUF_F32, 1, d), wr_gguf_write(w, zeros, 128), wr_gguf_put_u32(w, "late", 1)), "late");
  CHECK_EQ_INT(wr_gguf_writer_open(path, 3, &w), WEIR_EUSAGE);
  CHECK_EQ_INT(wr_gguf_writer_open("/nowhere/at/all.gguf", 0, &w), WEIR_EIO);
  CHECK_EQ_INT(files_in_temp(), 0); /* a writer that did not finish leaves nothing */
}

/* ---- malformed bytes */

static void refuses_headers(void) {
  bytes b;
  b.n = 0;
  REFUSED(&b, WEIR_EFORMAT, "need 24 bytes, have 0");
  put(&b, "GGUF\3\0", 6);
  REFUSED(&b, WEIR_EFORMAT, "shorter than its header says (need 24 bytes, have 6)");
  b.n = 0;
  put(&b, "\x1b[2Jwhatever", 12);
  REFUSED(&b, WEIR_EFORMAT, "not a GGUF file: it begins with '\\x1B[2J'");
  b.n = 0;
  put(&b, "tjgg\3\0\0\0\0\0\0\0", 12);
  REFUSED(&b, WEIR_EUNSUPPORTED, "older than GGUF");
  static const uint32_t versions[] = {0, 1, 4, 99, 0x10003};
  for (size_t i = 0; i < WR_ARRAY_LEN(versions); i++) {
    head(&b, versions[i], 0, 0);
    REFUSED(&b, WEIR_EUNSUPPORTED, "reads versions 2 and 3");
  }
  head(&b, __builtin_bswap32(3), 0, 0);
  REFUSED(&b, WEIR_EUNSUPPORTED, "big-endian");
  head(&b, 2, 0, 0);
  CHECK_EQ_INT(try_bytes(&b), WEIR_OK);
  static const uint64_t counts[] = {1, 1000, 1ull << 32, 1ull << 58, 1ull << 61, 558992244657865200ull, 1ull << 63, UINT64_MAX};
  for (size_t i = 0; i < WR_ARRAY_LEN(counts); i++) {
    head(&b, 3, counts[i], 0);
    CHECK_EQ_INT(try_bytes(&b), WEIR_EFORMAT);
    head(&b, 3, 0, counts[i]);
    CHECK_EQ_INT(try_bytes(&b), WEIR_EFORMAT);
    head(&b, 3, counts[i], counts[i]);
    CHECK_EQ_INT(try_bytes(&b), WEIR_EFORMAT);
  }
}

static void refuses_metadata(void) {
  static const uint64_t lengths[] = {1000, 1ull << 40, UINT64_MAX - 7, UINT64_MAX, 1ull << 63};
  bytes b;
  head(&b, 3, 0, 1);
  text(&b, ""), u32(&b, 4), u32(&b, 1), u32(&b, 1);
  REFUSED(&b, WEIR_EFORMAT, "the key is empty");
  head(&b, 3, 0, 1);
  text_n(&b, "a\0b", 3), u32(&b, 4), u32(&b, 1);
  REFUSED(&b, WEIR_EFORMAT, "'a\\x00b'");
  head(&b, 3, 0, 1);
  text(&b, "a\xc0\xaf"), u32(&b, 4), u32(&b, 1);
  REFUSED(&b, WEIR_EFORMAT, "not valid UTF-8");
  head(&b, 3, 0, 2);
  meta_u32(&b, "twice", 1), meta_u32(&b, "twice", 2);
  REFUSED(&b, WEIR_EFORMAT, "'twice' stands there twice (entries 1 and 2)");
  for (size_t i = 0; i < WR_ARRAY_LEN(lengths); i++) {
    head(&b, 3, 0, 1);
    u64(&b, lengths[i]), put(&b, "0123456789", 10);
    CHECK_EQ_INT(try_bytes(&b), WEIR_EFORMAT); /* a key */
    head(&b, 3, 0, 1);
    text(&b, "k"), u32(&b, WR_GGUF_VALUE_STRING), u64(&b, lengths[i]);
    REFUSED(&b, WEIR_EFORMAT, "('k')");
    for (uint32_t type = 0; type <= 12; type++) {
      head(&b, 3, 0, 1);
      text(&b, "k"), u32(&b, WR_GGUF_VALUE_ARRAY), u32(&b, type), u64(&b, lengths[i]), u64(&b, 0);
      CHECK_EQ_INT(try_bytes(&b), type == WR_GGUF_VALUE_ARRAY ? WEIR_EUNSUPPORTED : WEIR_EFORMAT);
    }
    head(&b, 3, 0, 1); /* a string of an array */
    text(&b, "k"), u32(&b, WR_GGUF_VALUE_ARRAY), u32(&b, WR_GGUF_VALUE_STRING), u64(&b, 1), u64(&b, lengths[i]);
    CHECK_EQ_INT(try_bytes(&b), WEIR_EFORMAT);
  }
  head(&b, 3, 0, 1);
  text(&b, "k"), u32(&b, 13), u32(&b, 0);
  REFUSED(&b, WEIR_EFORMAT, "value type 13");
  head(&b, 3, 0, 1);
  text(&b, "k"), u32(&b, WR_GGUF_VALUE_ARRAY), u32(&b, UINT32_MAX), u64(&b, 0);
  REFUSED(&b, WEIR_EFORMAT, "value type 4294967295");
  head(&b, 3, 0, 1);
  text(&b, "k"), u32(&b, WR_GGUF_VALUE_BOOL), put(&b, "\2", 1);
  REFUSED(&b, WEIR_EFORMAT, "it must be 0 or 1");

  static const uint32_t alignments[] = {0, 1, 4, 3, 48, 2u << 20, 0x80000000u};
  for (size_t i = 0; i < WR_ARRAY_LEN(alignments); i++) {
    head(&b, 3, 0, 1);
    meta_u32(&b, "general.alignment", alignments[i]);
    REFUSED(&b, WEIR_EFORMAT, "power of two");
  }
  head(&b, 3, 0, 1);
  text(&b, "general.alignment"), u32(&b, WR_GGUF_VALUE_U64), u64(&b, 32);
  REFUSED(&b, WEIR_EFORMAT, "is of type uint64");
}

static void refuses_tensors(void) {
  static const struct {
    uint64_t d0, d1;
    uint32_t type;
    uint64_t offset;
    weir_status status;
    const char *words;
  } rows[] = {
      {0, 4, 0, 0, WEIR_EFORMAT, "dimension 1 of 0 x 4 is 0"},
      {4, 0, 0, 0, WEIR_EFORMAT, "dimension 2 of 4 x 0 is 0"},
      {1ull << 32, 1ull << 32, 0, 0, WEIR_EFORMAT, "more elements than 2^63"},
      {16, (1ull << 60) + 262, 0, 0, WEIR_EFORMAT, "more elements than 2^63"},
      {16, UINT64_MAX, 0, 0, WEIR_EFORMAT, "more elements than 2^63"},
      {1ull << 63, 1, 0, 0, WEIR_EFORMAT, "more elements than 2^63"},
      {1ull << 31, 1ull << 31, 0, 0, WEIR_EFORMAT, "more than 2^63 bytes"},
      {1ull << 31, 1ull << 30, 0, 0, WEIR_EFORMAT, "more than 2^63 bytes"},
      {1ull << 20, 1ull << 40, 0, 0, WEIR_EFORMAT, "shorter than its header says (need "},
      {4, 4, 4, 0, WEIR_EUNSUPPORTED, "tensor type 4 "},
      {4, 4, 38, 0, WEIR_EUNSUPPORTED, "tensor type 38 "},
      {4, 4, 9999, 0, WEIR_EUNSUPPORTED, "tensor type 9999 "},
      {4, 4, UINT32_MAX, 0, WEIR_EUNSUPPORTED, "tensor type 4294967295 "},
      {16, 4, WR_GGUF_Q8_0, 0, WEIR_EFORMAT, "not whole blocks of 32"},
      {128, 1, WR_GGUF_Q4_K, 0, WEIR_EFORMAT, "not whole blocks of 256"},
      {4, 4, 0, 16, WEIR_EFORMAT, "no multiple of the alignment 32"},
      {4, 4, 0, 32, WEIR_EFORMAT, "shorter than its header says"},
      {4, 4, 0, 1ull << 40, WEIR_EFORMAT, "shorter than its header says"},
      {4, 4, 0, UINT64_MAX - 31, WEIR_EFORMAT, "beyond 2^63"},
      {4, 4, 0, 1ull << 62, WEIR_EFORMAT, "shorter than its header says"},
      {4, 4, 0, INT64_MAX - 31, WEIR_EFORMAT, "beyond 2^63"},
      {4, 5, 0, 0, WEIR_EFORMAT, "shorter than its header says (need 176 bytes, have 160)"},
      {4, 4, 0, 0, WEIR_OK, ""},
      {32, 1, WR_GGUF_IQ4_NL, 0, WEIR_OK, ""},
  };
  bytes b;
  for (size_t i = 0; i < WR_ARRAY_LEN(rows); i++) {
    head(&b, 3, 1, 0);
    info2(&b, "x", rows[i].d0, rows[i].d1, rows[i].type, rows[i].offset);
    data(&b, 64);
    weir_status status = try_bytes(&b);
    CHECK_MSG(status == rows[i].status, "row %zu: %d, not %d: %s", i, (int)status, (int)rows[i].status, weir_last_error());
    if (status != WEIR_OK) CHECK_HAS(weir_last_error(), rows[i].words);
    if (status != WEIR_OK) CHECK_HAS(weir_last_error(), "'x'");
  }
  static const uint32_t dims[] = {0, 5, UINT32_MAX};
  for (size_t i = 0; i < WR_ARRAY_LEN(dims); i++) {
    head(&b, 3, 1, 0);
    text(&b, "x"), u32(&b, dims[i]);
    for (int k = 0; k < 8; k++) u64(&b, 1);
    REFUSED(&b, WEIR_EFORMAT, "it must be 1 to 4");
  }
  head(&b, 3, 2, 0);
  info2(&b, "same", 4, 1, 0, 0), info2(&b, "same", 4, 1, 0, 32), data(&b, 64);
  REFUSED(&b, WEIR_EFORMAT, "two tensors have the name 'same'");
  char name[80];
  memset(name, 'n', sizeof name);
  for (size_t n = 64; n <= 65; n++) {
    head(&b, 3, 1, 0);
    name[n] = '\0';
    info2(&b, name, 4, 1, 0, 0), data(&b, 64);
    CHECK_EQ_INT(try_bytes(&b), n == 64 ? WEIR_OK : WEIR_EFORMAT);
    name[n] = 'n';
  }
}

/* However a good file is cut, it is refused; whatever byte of its header is changed, nothing bad happens. */
static void cut_and_flipped(void) {
  const char *path = in_temp("tiny.gguf");
  wr_gguf *g = NULL;
  REQUIRE(write_tiny(path, 0) == WEIR_OK && wr_gguf_open(path, NULL, &g) == WEIR_OK);
  wr_gguf_part part = wr_gguf_part_at(g, 0);
  const wr_gguf_tensor *last = wr_gguf_tensor_at(g, 2);
  size_t needed = (size_t)(last->offset + last->bytes);
  bytes b = {.n = 0};
  put(&b, part.map->ptr, part.map->bytes);
  for (size_t n = 0; n < needed; n++) {
    bytes cut = {.n = 0};
    put(&cut, b.at, n);
    if (try_bytes(&cut) != WEIR_EFORMAT) CHECK_MSG(false, "cut to %zu of %zu bytes: not refused", n, needed);
    if (n > 0 && n < 24 && n >= 4) CHECK_HAS(weir_last_error(), "shorter than its header says");
  }
  for (size_t i = 0; i < part.header_bytes; i++)
    for (int bit = 0; bit < 8; bit += 3) {
      bytes flipped = b;
      flipped.at[i] ^= (uint8_t)(1 << bit);
      weir_status status = try_bytes(&flipped);
      if (status != WEIR_OK && status != WEIR_EFORMAT && status != WEIR_EUNSUPPORTED)
        CHECK_MSG(false, "byte %zu, bit %d: status %d", i, bit, (int)status);
    }
  wr_gguf_close(g);
  empty_temp();
}

/* A header that claims much must not take much: names of a hundred thousand keys, in time and memory that follow the file. */
static void many_entries(void) {
  enum { N = 100000 };
  size_t n = 24, cap = 24 + N * 32;
  uint8_t *file = calloc(cap, 1);
  uint64_t counts[2] = {0, N};
  memcpy(file, "GGUF\3\0\0\0", 8);
  memcpy(file + 8, counts, 16);
  for (int i = 0; i < N; i++) {
    char key[16];
    uint64_t len = (uint64_t)snprintf(key, sizeof key, "k%d", i);
    memcpy(file + n, &len, 8);
    memcpy(file + n + 8, key, len);
    n += 8 + (size_t)len + 4 + 1; /* the type is 0, a uint8 of 0 */
  }
  wr_gguf *g = NULL;
  uint64_t t0 = wr_now_ns();
  CHECK_EQ_INT(wr_gguf_open_memory(file, n, "many", &g), WEIR_OK);
  CHECK(wr_now_ns() - t0 < 2000000000u);
  if (g) CHECK(wr_gguf_find(g, "k99999") == wr_gguf_meta_at(g, 99999));
  wr_gguf_close(g);
  free(file);
}

/* ---- typed look-up */

static void lookup_sentences(void) {
  const char *path = in_temp("tiny.gguf");
  wr_gguf *g = NULL;
  int64_t v = 77;
  double f = 7;
  bool yes = false;
  wr_gguf_text t = {NULL, 7};
  wr_gguf_array a = {.count = 7};
  REQUIRE(write_tiny(path, 0) == WEIR_OK && wr_gguf_open(path, NULL, &g) == WEIR_OK);
  CHECK_EQ_INT(wr_gguf_get_int(g, "absent", false, 0, 1, &v), WEIR_OK);
  CHECK_EQ_INT(v, 77);
  CHECK_EQ_INT(wr_gguf_get_int(g, "absent", true, 0, 1, &v), WEIR_EFORMAT);
  CHECK_HAS(weir_last_error(), "tiny.gguf: metadata key 'absent' is missing (wanted an integer)");
  CHECK_EQ_INT(wr_gguf_get_int(g, "tiny.block_count", true, 3, 99, &v), WEIR_EFORMAT);
  CHECK_HAS(weir_last_error(), "'tiny.block_count' is the uint32 2, wanted 3 to 99");
  CHECK_EQ_INT(wr_gguf_get_int(g, "big", true, 0, INT64_MAX, &v), WEIR_EFORMAT);
  CHECK_HAS(weir_last_error(), "the uint64 18446744073709551615, wanted 0 or more");
  CHECK_EQ_INT(wr_gguf_get_int(g, "big", true, -10, 10, &v), WEIR_EFORMAT); /* not -1 */
  CHECK_EQ_INT(wr_gguf_get_int(g, "negative", true, 0, INT64_MAX, &v), WEIR_EFORMAT);
  CHECK_HAS(weir_last_error(), "the int32 -5");
  CHECK_EQ_INT(wr_gguf_get_int(g, "general.name", true, 0, 1, &v), WEIR_EFORMAT);
  CHECK_HAS(weir_last_error(), "is the string 'name \\x1B[2J\\x0A%s\\xFF', wanted an integer");
  CHECK_EQ_INT(wr_gguf_get_int(g, "yes", true, 0, 1, &v), WEIR_EFORMAT);
  CHECK_EQ_INT(wr_gguf_get_int(g, "eps", true, 0, 1, &v), WEIR_EFORMAT);
  CHECK_EQ_INT(v, 77);
  CHECK_EQ_INT(wr_gguf_get_float(g, "tiny.block_count", false, &f), WEIR_EFORMAT);
  CHECK_HAS(weir_last_error(), "wanted a float");
  CHECK_EQ_INT(wr_gguf_get_bool(g, "negative", false, &yes), WEIR_EFORMAT);
  CHECK_EQ_INT(wr_gguf_get_text(g, "types", false, &t), WEIR_EFORMAT);
  CHECK_HAS(weir_last_error(), "is an array of 3 int32, wanted a string");
  CHECK_EQ_INT(wr_gguf_get_array(g, "types", false, WR_GGUF_VALUE_STRING, &a), WEIR_EFORMAT);
  CHECK_HAS(weir_last_error(), "is an array of 3 int32, wanted an array of string");
  CHECK_EQ_INT(wr_gguf_get_array(g, "eps", false, WR_GGUF_VALUE_F32, &a), WEIR_EFORMAT);
  CHECK(f == 7 && !yes && t.len == 7 && a.count == 7);
  wr_gguf_close(g);
  empty_temp();
}

/* ---- split models */

typedef struct part_spec {
  int no, count, total;
  const char *tensor, *arch;
} part_spec;

static const char *part_path(int no, int count) {
  char name[64];
  snprintf(name, sizeof name, "m-%05d-of-%05d.gguf", no + 1, count);
  return in_temp(name);
}
static void save_part(const char *path, part_spec p) {
  bytes b;
  head(&b, 3, 1, 3 + (p.arch != NULL));
  text(&b, "split.no"), u32(&b, WR_GGUF_VALUE_U16), put(&b, &(uint16_t){(uint16_t)p.no}, 2);
  text(&b, "split.count"), u32(&b, WR_GGUF_VALUE_U16), put(&b, &(uint16_t){(uint16_t)p.count}, 2);
  text(&b, "split.tensors.count"), u32(&b, WR_GGUF_VALUE_I32), u32(&b, (uint32_t)p.total);
  if (p.arch) text(&b, "general.architecture"), u32(&b, WR_GGUF_VALUE_STRING), text(&b, p.arch);
  info2(&b, p.tensor, 4, 4, 0, 0);
  data(&b, 64);
  b.at[b.n - 64] = (uint8_t)(100 + p.no);
  save(path, &b);
}
static void save_three(void) {
  save_part(part_path(0, 3), (part_spec){0, 3, 3, "a", "llama"});
  save_part(part_path(1, 3), (part_spec){1, 3, 3, "b", NULL});
  save_part(part_path(2, 3), (part_spec){2, 3, 3, "c", "llama"});
}
static void split_refused(int from, weir_status status, const char *words) {
  wr_gguf *g = NULL;
  CHECK_EQ_INT(wr_gguf_open(part_path(from, 3), NULL, &g), status);
  CHECK_HAS(weir_last_error(), words);
  wr_gguf_close(g);
}

static void split_models(void) {
  for (int from = 0; from < 3; from++) {
    wr_gguf *g = NULL;
    save_three();
    REQUIRE(wr_gguf_open(part_path(from, 3), NULL, &g) == WEIR_OK);
    CHECK_EQ_INT(wr_gguf_n_parts(g), 3);
    CHECK_EQ_INT(wr_gguf_n_tensors(g), 3);
    CHECK_STR(wr_gguf_path(g), part_path(0, 3));
    CHECK(wr_gguf_find(g, "general.architecture") != NULL);
    for (int i = 0; i < 3; i++) {
      const wr_gguf_tensor *t = wr_gguf_tensor_find(g, (char[]){(char)('a' + i), 0});
      REQUIRE(t != NULL);
      CHECK(t == wr_gguf_tensor_at(g, (size_t)i) && t->part == i && t->data[0] == 100 + i);
      CHECK(wr_gguf_part_at(g, i).map->ptr + t->offset == t->data);
    }
    wr_gguf_close(g);
  }
  unlink(part_path(1, 3));
  split_refused(0, WEIR_EFORMAT, "part 2 of 3 of");
  split_refused(2, WEIR_EFORMAT, "is missing");
  unlink(part_path(0, 3));
  split_refused(2, WEIR_EFORMAT, "part 1 of 3");
  save_three();
  save_part(part_path(1, 3), (part_spec){2, 3, 3, "b", NULL});
  split_refused(0, WEIR_EFORMAT, "it says part 3 of 3");
  save_part(part_path(1, 3), (part_spec){1, 4, 3, "b", NULL});
  split_refused(0, WEIR_EFORMAT, "does not belong to the split model");
  save_part(part_path(1, 3), (part_spec){1, 3, 9, "b", NULL});
  split_refused(0, WEIR_EFORMAT, "with 9 tensors in all");
  save_part(part_path(1, 3), (part_spec){1, 3, 3, "b", "gpt2"});
  split_refused(0, WEIR_EFORMAT, "its architecture is 'gpt2', that of the first part 'llama'");
  save_part(part_path(1, 3), (part_spec){1, 3, 3, "a", NULL});
  split_refused(0, WEIR_EFORMAT, "tensor 'a' is in part 1 as well");
  for (int i = 0; i < 3; i++) save_part(part_path(i, 3), (part_spec){i, 3, 4, (char[]){(char)('a' + i), 0}, NULL});
  split_refused(1, WEIR_EFORMAT, "split.tensors.count is 4, but the 3 parts hold 3 tensors");
  save_part(part_path(0, 3), (part_spec){3, 3, 3, "a", NULL});
  split_refused(0, WEIR_EFORMAT, "split.no is 3, but split.count is 3");
  save_part(part_path(0, 3), (part_spec){0, 2, 3, "a", NULL});
  split_refused(0, WEIR_EFORMAT, "must end in '-00001-of-00002.gguf'");
  save_part(in_temp("other"), (part_spec){0, 3, 3, "a", NULL});
  wr_gguf *g = NULL;
  CHECK_EQ_INT(wr_gguf_open(in_temp("other"), NULL, &g), WEIR_EFORMAT);
  char cwd[4096], *shorter = NULL;
  /* a name shorter than the suffix */
  REQUIRE(getcwd(cwd, sizeof cwd) && chdir(temp_dir()) == 0 && (shorter = strdup("other")));
  CHECK_EQ_INT(wr_gguf_open(shorter, NULL, &g), WEIR_EFORMAT);
  free(shorter);
  REQUIRE(chdir(cwd) == 0);
  save_part(in_temp("one"), (part_spec){0, 1, 1, "a", NULL});
  CHECK_EQ_INT(wr_gguf_open(in_temp("one"), NULL, &g), WEIR_OK);
  wr_gguf_close(g);
  empty_temp();
}

/* ---- memory and size */

static weir_status open_and_show(void) {
  wr_gguf *g;
  weir_file *f;
  char line[512];
  WR_TRY(wr_gguf_open(part_path(2, 3), NULL, &g));
  wr_gguf_close(g);
  WR_TRY(weir_file_open(in_temp("tiny.gguf"), NULL, &f));
  for (size_t i = 0; i < 14; i++) weir_file_meta_print(f, i, line, sizeof line);
  weir_file_close(f);
  return write_tiny(in_temp("again.gguf"), 0);
}

static void nth_allocation_fails(void) {
  save_three();
  REQUIRE(write_tiny(in_temp("tiny.gguf"), 0) == WEIR_OK);
  weir_set_hooks(&(weir_hooks){HEAP_HOOKS});
  int failures = 0;
  long n = 1;
  for (; n < 10000; n++) {
    heap_fail(n);
    weir_status status = open_and_show();
    CHECK_EQ_INT(heap.live, 0);
    failures += status != WEIR_OK;
    if (status != WEIR_OK) CHECK_EQ_INT(status, WEIR_ENOMEM);
    if (!heap_failed()) break;
  }
  weir_set_hooks(NULL);
  CHECK(failures > 20 && n < 10000);
  empty_temp();
}

/* Opening does not touch the data: a file of 6 GB that is all hole opens at once. */
static void large_and_sparse(void) {
  const char *path = in_temp("large.gguf");
  bytes b;
  head(&b, 3, 2, 0);
  info2(&b, "first", 1ull << 20, 1500, 0, 0);
  info2(&b, "last", 4, 4, 0, 1500ull << 22);
  pad(&b, 32);
  save(path, &b);
  if (truncate(path, (off_t)(b.n + (1500ull << 22) + 64)) != 0) SKIP("no sparse file of 6 GB can be made");
  wr_gguf *g = NULL;
  uint64_t t0 = wr_now_ns();
  weir_status status = wr_gguf_open(path, NULL, &g);
  CHECK(wr_now_ns() - t0 < 500000000u);
  if (status == WEIR_ENOMEM) {
    empty_temp();
    SKIP("6 GB cannot be mapped");
  }
  REQUIRE(status == WEIR_OK);
  const wr_gguf_tensor *t = wr_gguf_tensor_find(g, "last");
  CHECK(t && t->offset == b.n + (1500ull << 22) && t->data[63] == 0);
  wr_gguf_close(g);
  CHECK_EQ_INT(truncate(path, (off_t)(b.n + (1500ull << 22) + 63)), 0);
  CHECK_EQ_INT(wr_gguf_open(path, NULL, &g), WEIR_EFORMAT);
  CHECK_HAS(weir_last_error(), "(need 6291456");
  empty_temp();
}

/* ---- the public API */

static void public_api(void) {
  const char *path = in_temp("tiny.gguf");
  weir_file *f = NULL;
  weir_file_info info;
  weir_file_tensor t;
  weir_file_meta m;
  weir_value v;
  char line[256];
  REQUIRE(write_tiny(path, 0) == WEIR_OK);
  REQUIRE(weir_file_open(path, NULL, &f) == WEIR_OK);
  weir_file_get_info(f, &info);
  CHECK_STR(info.format, "gguf");
  CHECK(info.n_tensors == 3 && info.n_meta == 12 && info.parameters == 96 + 5 + 12 && info.tensor_bytes == 102 + 20 + 48);
  CHECK(info.arch.bytes == 4 && info.layers == 2 && info.width == -1 && info.vocab == 3 && info.trained_tok == -1);
  CHECK_EQ_INT(weir_file_tensor_at(f, 2, &t), WEIR_OK);
  CHECK_STR(t.name, "four");
  CHECK(t.n_dims == 4 && t.dim[2] == 3 && t.supported);
  CHECK_EQ_INT(weir_file_tensor_at(f, 3, &t), WEIR_EUSAGE);
  CHECK_EQ_INT(weir_file_meta_at(f, 12, &m), WEIR_EUSAGE);
  CHECK_EQ_INT(weir_file_meta_at(f, 11, &m), WEIR_OK);
  CHECK(m.array && m.count == 3 && strcmp(m.type, "string") == 0);
  static const size_t lengths[] = {1, 0, 4};
  for (int order = 0; order < 4; order++) /* forwards, backwards, and again */
    for (size_t i = 0; i < 3; i++) {
      size_t e = order % 2 ? 2 - i : i;
      CHECK_EQ_INT(weir_file_value_at(f, 11, e, &v), WEIR_OK);
      CHECK(v.kind == WEIR_VALUE_TEXT && v.text.bytes == lengths[e]);
    }
  CHECK_EQ_INT(weir_file_value_at(f, 11, 3, &v), WEIR_EUSAGE);
  CHECK_EQ_INT(weir_file_value_at(f, 3, 0, &v), WEIR_OK);
  CHECK(v.kind == WEIR_VALUE_UINT && v.u == UINT64_MAX);
  CHECK_EQ_INT(weir_file_value_at(f, 4, 0, &v), WEIR_OK);
  CHECK(v.kind == WEIR_VALUE_INT && v.i == -5);
  CHECK_EQ_INT(weir_file_value_at(f, 9, 1, &v), WEIR_OK);
  CHECK(v.kind == WEIR_VALUE_BOOL && !v.b);
  CHECK_EQ_INT(weir_file_value_at(f, 8, 1, &v), WEIR_OK);
  CHECK(v.kind == WEIR_VALUE_FLOAT && v.f == -1.25 && v.digits == 9);
  weir_file_meta_print(f, 1, line, sizeof line);
  CHECK_STR(line, "\"name \\x1B[2J\\x0A%s\\xFF\"");
  weir_file_meta_print(f, 11, line, sizeof line);
  CHECK_STR(line, "[\"a\", \"\", \"b\\xFF\\x00c\"] (3)");
  weir_file_meta_print(f, 10, line, sizeof line);
  CHECK_STR(line, "[] (0)");
  CHECK_EQ_INT(weir_file_meta_print(f, 7, line, 4), 14);
  CHECK_STR(line, "[1,");
  CHECK_EQ_INT(weir_escape("a\x1b", 2, NULL, 0), 5);
  weir_file_close(f);
  CHECK_EQ_INT(weir_file_open(temp_dir(), NULL, &f), WEIR_EUNSUPPORTED);
  CHECK_EQ_INT(weir_file_open(in_temp("nothing"), NULL, &f), WEIR_EIO);
  empty_temp();
}

/* ---- the crafted files that all developers share: refused both mapped and read */

static void shared_cases(void) {
  DIR *d = opendir("../shared/cases/gguf");
  int n = 0;
  if (!d) SKIP("../shared/cases/gguf is not there");
  for (struct dirent *e; (e = readdir(d));) {
    char path[512];
    int number = atoi(e->d_name);
    if (number == 0) continue;
    snprintf(path, sizeof path, "../shared/cases/gguf/%s", e->d_name);
    for (int no_mmap = 0; no_mmap < 2; no_mmap++) {
      wr_gguf *g = NULL;
      weir_status status = wr_gguf_open(path, &(wr_gguf_options){.no_mmap = no_mmap}, &g);
      bool good = number == 1 || number > 57; /* from 71 on the container is sound, the model's parameters or texts are not */
      bool refused = status == WEIR_EFORMAT || status == WEIR_EUNSUPPORTED;
      CHECK_MSG(good ? status == WEIR_OK : refused, "%s: status %d", path, (int)status);
      if (strstr(e->d_name, "_trunc_")) CHECK_HAS(weir_last_error(), "the file is shorter than its header says (need ");
      if (strstr(e->d_name, "27_dup")) CHECK_HAS(weir_last_error(), "'token_embd.weight'");
      wr_gguf_close(g);
    }
    n++;
  }
  closedir(d);
  CHECK(n > 50);
}

/* SmolLM2-135M-Instruct in Q4_1, as its makers describe it. */
static void real_model(void) {
  const char *path = getenv("WEIR_TEST_MODEL");
  weir_file *f = NULL;
  weir_file_info info;
  if (!path) SKIP("WEIR_TEST_MODEL is not set");
  REQUIRE(weir_file_open(path, NULL, &f) == WEIR_OK);
  weir_file_get_info(f, &info);
  CHECK(info.layers == 30 && info.width == 576 && info.ff == 1536 && info.heads == 9 && info.kv_heads == 3);
  CHECK(info.vocab == 49152 && info.trained_tok == 8192 && info.n_tensors == 272);
  CHECK_EQ_INT(info.parameters, 134515008);
  CHECK(info.tensor_bytes < info.file_bytes);
  weir_file_close(f);
}

static void remove_temp(void) { rmdir(temp_dir()); }

TEST_MAIN("format", TEST(type_tables), TEST(round_trip), TEST(copy_is_equal), TEST(writer_refuses), TEST(refuses_headers),
          TEST(refuses_metadata), TEST(refuses_tensors), TEST(cut_and_flipped), TEST(many_entries), TEST(lookup_sentences),
          TEST(split_models), TEST(nth_allocation_fails), TEST(large_and_sparse), TEST(public_api), TEST(shared_cases),
          TEST(real_model), TEST(remove_temp))
