/* weir_convert: every number of what it writes against the source, which tensor gets which type, the errors that it tells, what it refuses,
 * and that nothing is left of what did not finish. (The codecs themselves are held against gguf and ggml in codecs.c.) */
#include <dirent.h>
#include <math.h>
#include <sys/stat.h>

#include "session_i.h"

#include "format/format.h"
#include "model/model.h"
#include "ops/ops.h"

#define GPT2 "tests/golden/tiny_gpt2.gguf"

static const char *target(const char *name) {
  static char path[160];
  snprintf(path, sizeof path, "%s/%s", make_scratch(), name);
  return path;
}

static int files(void) {
  int n = 0;
  DIR *d = opendir(make_scratch());
  for (struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.' && strstr(e->d_name, ".gguf") != NULL;
  if (d) closedir(d);
  return n;
}

/* Rounded to nearest, ties to even, by arithmetic on the bits. */
static float rounded(float x, const char *type) {
  if (strcmp(type, "F32") == 0) return x;
  const int drop = strcmp(type, "BF16") == 0 ? 16 : 13;
  if (drop == 13 && fabsf(x) < 0x1p-14f) return rintf(x * 0x1p24f) * 0x1p-24f; /* F16's subnormals */
  uint32_t u;
  memcpy(&u, &x, 4);
  u += (1u << (drop - 1)) - 1 + (u >> drop & 1);
  u &= ~((1u << drop) - 1);
  memcpy(&x, &u, 4);
  return x;
}

static void values_and_metadata(void) {
  static const char *const types[] = {"f32", "f16", "bf16"};
  wr_gguf *from, *to;
  REQUIRE(wr_gguf_open(GPT2, NULL, &from) == WEIR_OK);
  for (int k = 0; k < 3; k++) {
    char path[160];
    snprintf(path, sizeof path, "%s", target(types[k]));
    strcat(path, ".gguf");
    weir_convert_result r;
    REQUIRE(weir_convert(GPT2, path, &(weir_convert_options){.type = types[k]}, &r) == WEIR_OK);
    REQUIRE(wr_gguf_open(path, NULL, &to) == WEIR_OK);
    CHECK_EQ_INT(r.tensors, wr_gguf_n_tensors(from));
    CHECK_EQ_INT(r.bytes, wr_gguf_file_bytes(to));
    int64_t file_type = -1;
    CHECK_EQ_INT(wr_gguf_get_int(to, "general.file_type", true, 0, 99, &file_type), WEIR_OK);
    CHECK_EQ_INT(file_type, k == 2 ? 32 : k);
    CHECK_EQ_INT(wr_gguf_n_meta(to), wr_gguf_n_meta(from));
    uint64_t parameters = 0;
    for (size_t i = 0; i < wr_gguf_n_tensors(from); i++) {
      const wr_gguf_tensor *a = wr_gguf_tensor_at(from, i), *b = wr_gguf_tensor_find(to, a->name);
      REQUIRE(b);
      const bool stays = a->n_dims == 1 || strcmp(a->name, "position_embd.weight") == 0;
      static const char *const names[] = {"F32", "F16", "BF16"};
      CHECK_STR(b->type->name, stays ? "F32" : names[k]);
      int bad = 0;
      for (uint64_t n = 0; n < a->n_elems; n++) {
        float got, want = rounded(((const float *)(const void *)a->data)[n], b->type->name);
        const int dtype = strcmp(b->type->name, "F32") == 0 ? WR_F32 : strcmp(b->type->name, "F16") == 0 ? WR_F16 : WR_BF16;
        wr_dtypes[dtype].to_float(b->data + n * (uint64_t)wr_dtypes[dtype].block_bytes, &got, 1);
        bad += got != want;
      }
      CHECK_MSG(bad == 0, "%s as %s: %d wrong values", a->name, b->type->name, bad);
      parameters += a->n_elems;
    }
    CHECK_EQ_INT(r.parameters, parameters);
    wr_gguf_close(to);
    CHECK_EQ_INT(unlink(path), 0);
  }
  wr_gguf_close(from);
}

static int stop_half(void *user, double done) {
  *(double *)user = done;
  return done > 0.5;
}

static void refuses(void) {
  const char *path = target("out.gguf");
  const int before = files();
  CHECK_EQ_INT(weir_convert(GPT2, path, NULL, NULL), WEIR_OK);
  CHECK_EQ_INT(weir_convert(GPT2, path, NULL, NULL), WEIR_EUSAGE);
  CHECK_HAS(weir_last_error(), "--force");
  CHECK_EQ_INT(weir_convert(path, path, &(weir_convert_options){.force = true}, NULL), WEIR_OK); /* onto itself */
  struct stat st, was;
  CHECK_EQ_INT(stat(path, &was), 0);
  double done = 0;
  const weir_convert_options stopped = {.type = "bf16", .force = true, .progress = stop_half, .user = &done};
  CHECK_EQ_INT(weir_convert(GPT2, path, &stopped, NULL), WEIR_ESTOPPED);
  CHECK(done > 0.5);
  CHECK(stat(path, &st) == 0 && st.st_size == was.st_size);
  CHECK_EQ_INT(files(), before + 1);
  CHECK_EQ_INT(weir_convert(GPT2, path, &(weir_convert_options){.type = "q4_9", .force = true}, NULL), WEIR_EUSAGE);
  CHECK_HAS(weir_last_error(), "q4_9");
  CHECK_HAS(weir_last_error(), "q4_k_m");
  CHECK_EQ_INT(weir_convert(GPT2, make_scratch(), &(weir_convert_options){.force = true}, NULL), WEIR_EUSAGE);
  CHECK_EQ_INT(weir_convert("no.gguf", path, &(weir_convert_options){.force = true}, NULL), WEIR_EIO);
  CHECK_EQ_INT(weir_convert(GPT2, "x.safetensors", NULL, NULL), WEIR_EUNSUPPORTED);
  CHECK_EQ_INT(unlink(path), 0);

  char folder[200], file[260];
  snprintf(folder, sizeof folder, "%s/hf", make_scratch());
  snprintf(file, sizeof file, "%s/model.safetensors", folder);
  CHECK_EQ_INT(wr_mkdir_p(folder), WEIR_OK);
  CHECK_EQ_INT(wr_file_write_atomic(file, "x", 1), WEIR_OK);
  CHECK_EQ_INT(weir_convert(folder, path, NULL, NULL), WEIR_EUNSUPPORTED);
  CHECK_HAS(weir_last_error(), "safetensors");
  CHECK_EQ_INT(weir_convert(file, path, NULL, NULL), WEIR_EUNSUPPORTED);
  CHECK_EQ_INT(files(), before);
}

static void what_f16_cannot_hold(void) {
  char path[160];
  snprintf(path, sizeof path, "%s", target("large.gguf"));
  const float values[4] = {1, -70000, 2, 3};
  wr_gguf_writer *w;
  REQUIRE(wr_gguf_writer_open(path, 0, &w) == WEIR_OK);
  wr_gguf_put_tensor(w, "big.weight", WR_GGUF_F32, 2, (const uint64_t[]){2, 2});
  wr_gguf_write(w, values, sizeof values);
  CHECK_EQ_INT(wr_gguf_writer_finish(w), WEIR_OK);
  wr_gguf_writer_close(w);
  CHECK_EQ_INT(weir_convert(path, target("f16.gguf"), &(weir_convert_options){.type = "f16"}, NULL), WEIR_EUNSUPPORTED);
  CHECK_HAS(weir_last_error(), "big.weight");
  CHECK_HAS(weir_last_error(), "-70000");
  CHECK(access(target("f16.gguf"), F_OK) != 0);
  CHECK_EQ_INT(weir_convert(path, target("bf16.gguf"), &(weir_convert_options){.type = "bf16"}, NULL), WEIR_OK);
}

/* Integers are no weights: they are copied as they are, or refused. */
static void integers_stay_integers(void) {
  char path[160];
  snprintf(path, sizeof path, "%s", target("integers.gguf"));
  const int32_t values[4] = {1, -70000, 1 << 30 | 1, 3};
  wr_gguf_writer *w;
  wr_gguf *g;
  REQUIRE(wr_gguf_writer_open(path, 0, &w) == WEIR_OK);
  wr_gguf_put_tensor(w, "ids.weight", WR_GGUF_I32, 2, (const uint64_t[]){2, 2});
  wr_gguf_write(w, values, sizeof values);
  CHECK_EQ_INT(wr_gguf_writer_finish(w), WEIR_OK);
  wr_gguf_writer_close(w);
  CHECK_EQ_INT(weir_convert(path, target("bf16-ids.gguf"), &(weir_convert_options){.type = "bf16"}, NULL), WEIR_EUNSUPPORTED);
  CHECK_HAS(weir_last_error(), "ids.weight");
  CHECK_HAS(weir_last_error(), "I32");
  CHECK(access(target("bf16-ids.gguf"), F_OK) != 0);
  CHECK_EQ_INT(weir_convert(path, target("ids.gguf"), NULL, NULL), WEIR_OK);
  REQUIRE(wr_gguf_open(target("ids.gguf"), NULL, &g) == WEIR_OK);
  CHECK(memcmp(wr_gguf_tensor_at(g, 0)->data, values, sizeof values) == 0);
  wr_gguf_close(g);
}

/* ---- quantising */

typedef struct made {
  const char *name;
  uint64_t cols, rows; /* rows 0: a vector */
  const char *q4_k_m, *pure, *q4_0;
} made;

/* Nine layers: 0 (the first eighth), 7 and 8 (the last), and 3 and 6 (every third after the first) get more bits. */
static const made tensors[] = {
    {"token_embd.weight", 512, 40, "Q4_K", "Q4_K", "Q4_0"},
    {"position_embd.weight", 512, 4, "F32", "F32", "F32"},
    {"blk.0.attn_norm.weight", 512, 0, "F32", "F32", "F32"},
    {"blk.0.attn_v.weight", 512, 8, "Q6_K", "Q4_K", "Q4_0"},
    {"blk.1.attn_v.weight", 512, 8, "Q4_K", "Q4_K", "Q4_0"},
    {"blk.3.ffn_down.weight", 256, 8, "Q6_K", "Q4_K", "Q4_0"},
    {"blk.6.ffn_down.weight", 96, 8, "Q8_0", "Q5_0", "Q4_0"}, /* 96: no whole blocks of 256 */
    {"blk.5.ffn_down.weight", 96, 8, "Q5_0", "Q5_0", "Q4_0"},
    {"blk.5.attn_qkv.weight", 768, 8, "Q5_K", "Q4_K", "Q4_0"},
    {"blk.5.attn_q.weight", 20, 8, "F16", "F16", "F16"}, /* nor of 32 */
    {"blk.5.ffn_up.weight", 512, 2500, "Q4_K", "Q4_K", "Q4_0"}, /* more than a window */
    {"blk.8.ffn_down.weight", 512, 3, "Q6_K", "Q4_K", "Q4_0"},
    {"output.weight", 512, 17, "Q6_K", "Q4_K", "Q6_K"},
};

static weir_status write_model(const char *path, const float *put_in, size_t tensor, size_t at) {
  wr_gguf_writer *w;
  wr_rng rng;
  wr_rng_seed(&rng, 31);
  WR_TRY(wr_gguf_writer_open(path, 0, &w));
  wr_gguf_put_text(w, "general.architecture", "llama", 5);
  wr_gguf_put_u32(w, "general.file_type", 0);
  for (size_t i = 0; i < WR_ARRAY_LEN(tensors); i++)
    wr_gguf_put_tensor(w, tensors[i].name, WR_GGUF_F32, tensors[i].rows ? 2 : 1, (const uint64_t[]){tensors[i].cols, tensors[i].rows});
  for (size_t i = 0; i < WR_ARRAY_LEN(tensors); i++)
    for (size_t n = 0; n < tensors[i].cols * WR_MAX(tensors[i].rows, (uint64_t)1); n++) {
      const float v = put_in && i == tensor && n == at ? *put_in : (float)wr_rng_normal(&rng);
      wr_gguf_write(w, &v, sizeof v);
    }
  const weir_status s = wr_gguf_writer_finish(w);
  wr_gguf_writer_close(w);
  return s;
}

typedef struct told {
  weir_convert_tensor t[WR_ARRAY_LEN(tensors)];
  size_t n;
} told;

static void tell(void *user, const weir_convert_tensor *t) {
  told *all = user;
  REQUIRE(all->n < WR_ARRAY_LEN(tensors));
  CHECK_STR(t->name, tensors[all->n].name);
  all->t[all->n] = *t;
  all->t[all->n].name = tensors[all->n].name;
  all->n++;
}

/* The tensor's bytes are what the quantizer makes of the source's, its errors those of what the bytes mean. */
static void check_tensor(const wr_gguf *from, const wr_gguf *to, const char *want, const weir_convert_tensor *t) {
  const wr_gguf_tensor *a = wr_gguf_tensor_find(from, t->name), *b = wr_gguf_tensor_find(to, t->name);
  REQUIRE(a && b);
  CHECK_MSG(strcmp(b->type->name, want) == 0, "%s is %s, not %s", t->name, b->type->name, want);
  CHECK_STR(t->to, want);
  CHECK_STR(t->from, "F32");
  CHECK_EQ_INT(t->bytes_before, a->bytes);
  CHECK_EQ_INT(t->bytes_after, b->bytes);
  const wr_dtype type = (wr_dtype)wr_weight_dtype(b->type);
  const float *x = (const float *)(const void *)a->data;
  void *bytes = malloc(b->bytes);
  float *y = malloc(a->bytes);
  REQUIRE(bytes && y);
  wr_quantizer(type, WR_ISA_GENERIC)(x, bytes, (int64_t)a->n_elems);
  CHECK_MSG(memcmp(bytes, b->data, b->bytes) == 0, "%s: other bytes", t->name);
  wr_dtypes[type].to_float(b->data, y, (int64_t)a->n_elems);
  double square = 0, error = 0, most = 0;
  for (uint64_t i = 0; i < a->n_elems; i++) {
    const double d = (double)x[i] - (double)y[i];
    square += (double)x[i] * (double)x[i], error += d * d, most = fmax(most, fabs(d));
  }
  if (type == WR_F32) square = 0; /* nothing was changed */
  CHECK_NEAR(t->square, square, 1e-5 * square);
  CHECK_NEAR(t->error_square, error, 1e-4 * error);
  CHECK_NEAR(t->max_error, most, 1e-6 * most);
  free(bytes);
  free(y);
}

static void quantises(void) {
  static const struct {
    const char *type;
    bool pure;
    int file_type, threads;
  } ways[] = {{"q4_k_m", false, 15, 1}, {"Q4_K", false, 15, 3}, {"q4_k", true, 15, 2}, {"q4_0", false, 2, 2}};
  char source[160], out[160], first[160];
  snprintf(source, sizeof source, "%s", target("source.gguf"));
  snprintf(out, sizeof out, "%s", target("quantised.gguf"));
  snprintf(first, sizeof first, "%s", target("first.gguf"));
  REQUIRE(write_model(source, NULL, 0, 0) == WEIR_OK);
  wr_gguf *from, *to, *one;
  REQUIRE(wr_gguf_open(source, NULL, &from) == WEIR_OK);
  for (size_t k = 0; k < WR_ARRAY_LEN(ways); k++) {
    told all = {.n = 0};
    weir_convert_result r;
    const weir_convert_options o = {
        .type = ways[k].type, .pure = ways[k].pure, .threads = ways[k].threads, .force = true, .tensor = tell, .user = &all};
    CHECK_EQ_INT(weir_convert(source, out, &o, &r), WEIR_OK);
    REQUIRE(wr_gguf_open(out, NULL, &to) == WEIR_OK);
    int64_t file_type = -1, version = -1;
    CHECK_EQ_INT(wr_gguf_get_int(to, "general.file_type", true, 0, 99, &file_type), WEIR_OK);
    CHECK_EQ_INT(wr_gguf_get_int(to, "general.quantization_version", true, 0, 99, &version), WEIR_OK);
    CHECK_EQ_INT(file_type, ways[k].file_type);
    CHECK_EQ_INT(version, 2);
    CHECK_EQ_INT(all.n, WR_ARRAY_LEN(tensors));
    for (size_t i = 0; i < WR_ARRAY_LEN(tensors); i++) {
      const char *want = ways[k].pure ? tensors[i].pure : strcmp(ways[k].type, "q4_0") == 0 ? tensors[i].q4_0 : tensors[i].q4_k_m;
      check_tensor(from, to, want, &all.t[i]);
      CHECK_EQ_INT(all.t[i].instead_of != NULL, tensors[i].cols == 20 || (tensors[i].cols == 96 && strcmp(ways[k].type, "q4_0") != 0));
    }
    CHECK_STR(all.t[9].instead_of, strcmp(ways[k].type, "q4_0") == 0 ? "Q4_0" : "Q4_K");
    if (k == 0) CHECK_EQ_INT(rename(out, first), 0);
    if (k == 1) { /* three threads, the same bytes */
      REQUIRE(wr_gguf_open(first, NULL, &one) == WEIR_OK);
      const wr_map *a = wr_gguf_part_at(one, 0).map, *b = wr_gguf_part_at(to, 0).map;
      CHECK(a->bytes == b->bytes && memcmp(a->ptr, b->ptr, a->bytes) == 0);
      wr_gguf_close(one);
    }
    wr_gguf_close(to);
  }
  /* From one quantised type to another only when told to; what has its type already is no matter. */
  CHECK_EQ_INT(weir_convert(first, out, &(weir_convert_options){.type = "q8_0", .force = true}, NULL), WEIR_EUSAGE);
  CHECK_HAS(weir_last_error(), "token_embd.weight");
  CHECK_HAS(weir_last_error(), "--requantize");
  CHECK_EQ_INT(weir_convert(first, out, &(weir_convert_options){.type = "q4_k_m", .force = true}, NULL), WEIR_OK);
  CHECK_EQ_INT(weir_convert(first, out, &(weir_convert_options){.type = "f32", .force = true}, NULL), WEIR_OK);
  CHECK_EQ_INT(weir_convert(first, out, &(weir_convert_options){.type = "q8_0", .force = true, .requantize = true}, NULL), WEIR_OK);
  wr_gguf_close(from);
  CHECK_EQ_INT(unlink(source) | unlink(out) | unlink(first), 0);
}

/* In a tensor's last piece as in its first; floats may be NaN, blocks may not. */
static void what_blocks_cannot_hold(void) {
  static const struct {
    float value;
    size_t at;
    const char *says;
  } bad[] = {{NAN, 0, "NaN in row 0, column 0"}, {-INFINITY, 512 * 2500 - 1, "infinity in row 2499, column 511"}, {3e38f, 512 * 777 + 3, "3e+38 in row 777, column 3"}};
  char source[160], out[160];
  snprintf(source, sizeof source, "%s", target("bad.gguf"));
  snprintf(out, sizeof out, "%s", target("bad-out.gguf"));
  for (size_t k = 0; k < WR_ARRAY_LEN(bad); k++) {
    REQUIRE(write_model(source, &bad[k].value, 10, bad[k].at) == WEIR_OK);
    for (int threads = 1; threads < 3; threads++) {
      CHECK_EQ_INT(weir_convert(source, out, &(weir_convert_options){.type = "q4_k_m", .threads = threads}, NULL), WEIR_EUNSUPPORTED);
      CHECK_HAS(weir_last_error(), tensors[10].name);
      CHECK_HAS(weir_last_error(), bad[k].says);
      CHECK(access(out, F_OK) != 0);
    }
    CHECK_EQ_INT(weir_convert(source, out, &(weir_convert_options){.type = "bf16", .force = true}, NULL), WEIR_OK);
    CHECK_EQ_INT(unlink(out), 0);
  }
  CHECK_EQ_INT(unlink(source), 0);
}

TEST_MAIN("convert", TEST(values_and_metadata), TEST(refuses), TEST(what_f16_cannot_hold), TEST(integers_stay_integers), TEST(quantises),
          TEST(what_blocks_cannot_hold))
