/* weir_convert: every number of what it writes against the source, what it refuses, and that nothing is left of what did not finish.
 * (The codecs themselves are held against the gguf package in codecs.c.) */
#include <dirent.h>
#include <math.h>
#include <sys/stat.h>

#include "session_i.h"

#include "core/core.h"
#include "format/format.h"

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
  CHECK_EQ_INT(weir_convert(GPT2, path, &(weir_convert_options){.type = "q4_0", .force = true}, NULL), WEIR_EUSAGE);
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

TEST_MAIN("convert", TEST(values_and_metadata), TEST(refuses), TEST(what_f16_cannot_hold), TEST(integers_stay_integers))
