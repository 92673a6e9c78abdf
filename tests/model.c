/* Models: what is refused and in which words (case A10), the packed file, and one model in two disguises.
 *
 * Outside witness of the arithmetic: tests/oracle programs and llama.cpp, elsewhere. Here a model is held against itself: RoPE
 * in NeoX order on permuted weights is RoPE on neighbouring pairs. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>

#include "session_i.h"

#include "infer/infer.h"

#define GGUF CASES "/gguf/"

static weir_status try_open(const char *path) {
  weir_context *ctx;
  weir_model *m = NULL;
  const weir_model_options no_pack = {.no_pack = true};
  if (weir_context_open(NULL, &ctx) != WEIR_OK) return WEIR_EFAIL;
  const weir_status s = weir_model_open(ctx, path, &no_pack, &m);
  if (s == WEIR_OK) {
    weir_session *session;
    weir_result *r;
    const weir_generate_options o = {.max_tok = 2, .no_limit = true};
    CHECK_MSG(weir_session_open(m, NULL, &session) == WEIR_OK, "%s: %s", path, weir_last_error());
    CHECK_MSG(weir_generate(session, "go", 2, &o, NULL, NULL, &r) == WEIR_OK, "%s: %s", path, weir_last_error());
    weir_result_free(r);
    weir_session_close(session);
  }
  weir_model_close(m);
  weir_context_close(ctx);
  return s;
}

static void impossible_hyper_parameters(void) {
  static const struct {
    const char *file, *words[3];
    bool accept;
  } rows[] = {
      {"01_valid", {0}, true},
      {"71_hp_block_count_0", {"llama.block_count", "0"}, 0},
      {"72_hp_block_count_4294967295", {"llama.block_count", "4294967295"}, 0},
      {"73_hp_block_count_513", {"llama.block_count", "513"}, 0},
      {"74_hp_block_count_1", {"llama.block_count", "string"}, 0},
      {"75_hp_head_count_0", {"llama.attention.head_count", "0"}, 0},
      {"76_hp_head_count_3", {"llama.attention.head_count", "3", "16"}, 0},
      {"77_hp_head_count_kv_0", {"llama.attention.head_count_kv", "0"}, 0},
      {"78_hp_head_count_kv_5", {"llama.attention.head_count_kv", "5"}, 0},
      {"79_hp_head_count_4,[2,2,2", {"llama.attention.head_count", "array"}, 0},
      {"80_hp_dimension_count_7", {"llama.rope.dimension_count", "7"}, 0},
      {"81_hp_dimension_count_64", {"llama.rope.dimension_count", "64"}, 0},
      {"82_hp_embedding_length_17", {"llama.embedding_length", "17"}, 0},
      {"83_hp_embedding_length_0", {"llama.embedding_length", "0"}, 0},
      {"84_hp_feed_forward_length_4294967280", {"llama.feed_forward_length", "4294967280"}, 0},
      {"85_hp_context_length_0", {"llama.context_length", "0"}, 0},
      {"86_hp_context_2p32m1", {0}, true},
      {"87_hp_eps_nan", {"llama.attention.layer_norm_rms_epsilon", "nan"}, 0},
      {"88_hp_ropebase_nan", {"llama.rope.freq_base", "nan"}, 0},
      {"89_hp_eps_zero", {"llama.attention.layer_norm_rms_epsilon", "0"}, 0},
      {"90_hp_ropebase_zero", {"llama.rope.freq_base", "0"}, 0},
      {"91_hp_eps_neg", {"llama.attention.layer_norm_rms_epsilon", "-"}, 0},
      {"92_hp_ropebase_neg", {"llama.rope.freq_base", "-"}, 0},
      {"93_missing_tensor", {"blk.", "missing"}, 0},
      {"94_missing_arch", {"general.architecture"}, 0},
      {"95_arch_u32", {"general.architecture", "uint32"}, 0},
      {"96_arch_unknown", {"general.architecture", "llama"}, 0},
      {"97_name_format_string", {0}, true},
  };
  NEED(GGUF "01_valid.gguf");
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    char path[256];
    snprintf(path, sizeof path, GGUF "%s.gguf", rows[i].file);
    const weir_status s = try_open(path);
    if (rows[i].accept) {
      CHECK_MSG(s == WEIR_OK, "%s: %s", rows[i].file, weir_last_error());
      continue;
    }
    CHECK_MSG(s == WEIR_EFORMAT || s == WEIR_EUNSUPPORTED, "%s: status %d", rows[i].file, s);
    CHECK_HAS(weir_last_error(), rows[i].file);
    for (int w = 0; w < 3 && rows[i].words[w]; w++) CHECK_HAS(weir_last_error(), rows[i].words[w]);
  }
}

static void a_claimed_context_is_not_believed(void) {
  NEED(GGUF "86_hp_context_2p32m1.gguf");
  bench b;
  REQUIRE(open_bench(&b, GGUF "86_hp_context_2p32m1.gguf", 1, 0));
  weir_model_info info;
  weir_model_get_info(b.m, &info);
  CHECK_EQ_INT(info.trained_tok, 4294967295);
  CHECK(weir_session_capacity(b.s) <= 8192);
  close_bench(&b);
}

static void a_name_is_shown_escaped(void) {
  NEED(GGUF "97_name_format_string.gguf");
  bench b;
  REQUIRE(open_bench(&b, GGUF "97_name_format_string.gguf", 1, 0));
  weir_model_info info;
  weir_model_get_info(b.m, &info);
  for (const char *c = info.name; *c; c++) CHECK((unsigned char)*c >= 32 && *c != 127);
  close_bench(&b);
}

/* ---- the packed file */

static int packed_files(char *path, size_t cap) {
  weir_cache *c;
  if (weir_cache_list(&c) != WEIR_OK) return -1;
  const int n = (int)c->n_entries;
  if (n && path) snprintf(path, cap, "%s", c->entries[0].path);
  weir_cache_free(c);
  return n;
}

static uint64_t hash_with(const weir_model_options *o, char *layout, size_t cap) {
  weir_context *ctx;
  weir_model *m = NULL;
  weir_session *s = NULL;
  weir_token t[40];
  uint64_t h = 0;
  make_prompt(t, 40);
  if (weir_context_open(NULL, &ctx) != WEIR_OK) return 0;
  if (weir_model_open(ctx, RANDOM, o, &m) == WEIR_OK && weir_session_open(m, NULL, &s) == WEIR_OK &&
      weir_session_sync(s, t, 40, NULL) == WEIR_OK) {
    weir_model_info info;
    weir_model_get_info(m, &info);
    snprintf(layout, cap, "%s", info.layout);
    h = hash_of(s);
  } else {
    printf("  %s\n", weir_last_error());
  }
  weir_session_close(s);
  weir_model_close(m);
  weir_context_close(ctx);
  return h;
}

static void damage(const char *path, long at, bool cut) {
  const int fd = open(path, O_RDWR);
  struct stat st;
  CHECK(fd >= 0 && fstat(fd, &st) == 0);
  const long where = at < 0 ? (long)st.st_size + at : at;
  uint8_t byte = 0;
  if (cut)
    CHECK(ftruncate(fd, where) == 0);
  else
    CHECK(pread(fd, &byte, 1, where) == 1 && (byte ^= 0x40, pwrite(fd, &byte, 1, where) == 1));
  close(fd);
}

static void packs_once_and_checks(void) {
  NEED(RANDOM);
  char layout[512], path[512], again[512];
  size_t n = 0;
  CHECK(weir_cache_clear(false, NULL, NULL) == WEIR_OK);
  const uint64_t want = hash_with(NULL, layout, sizeof layout);
  CHECK(want != 0);
  if (strncmp(layout, "packed: ", 8) != 0) {
    printf("  %s\n", layout);
    SKIP("no packed layout for FP32");
  }
  REQUIRE(packed_files(path, sizeof path) == 1);
  CHECK_STR(layout + 8, path);
  CHECK(weir_cache_verify(path) == WEIR_OK);
  struct stat before, after;
  CHECK(stat(path, &before) == 0);
  CHECK(hash_with(NULL, layout, sizeof layout) == want);
  CHECK(stat(path, &after) == 0 && before.st_ino == after.st_ino); /* used, not made again */
  static const struct {
    long at;
    bool cut;
  } ways[] = {{3, 0}, {20, 0}, {200, 0}, {-1, 1}, {4096, 1}, {10, 1}, {0, 1}};
  for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
    damage(path, ways[i].at, ways[i].cut);
    CHECK_MSG(weir_cache_verify(path) == WEIR_EFORMAT, "damage %zu passed", i);
    CHECK(hash_with(NULL, layout, sizeof layout) == want);
    CHECK_MSG(weir_cache_verify(path) == WEIR_OK, "damage %zu was not repaired", i);
  }
  damage(path, -100, false); /* only the checksum can see this one */
  CHECK_EQ_INT(weir_cache_verify(path), WEIR_EFORMAT);
  /* another layout, no file */
  const weir_model_options no_pack = {.no_pack = true};
  CHECK(weir_cache_clear(false, &n, NULL) == WEIR_OK);
  CHECK_EQ_INT(n, 1);
  CHECK(hash_with(&no_pack, layout, sizeof layout) != 0);
  CHECK(strncmp(layout, "plain: ", 7) == 0);
  CHECK_EQ_INT(packed_files(NULL, 0), 0);
  /* a folder that cannot be written: the model runs all the same */
  snprintf(again, sizeof again, "%s/file", scratch);
  FILE *f = fopen(again, "w");
  REQUIRE(f);
  fclose(f);
  setenv("WEIR_CACHE", again, 1);
  CHECK(hash_with(NULL, layout, sizeof layout) != 0);
  CHECK(strncmp(layout, "plain: ", 7) == 0);
  setenv("WEIR_CACHE", scratch, 1);
}

static void *open_and_hash(void *arg) {
  char layout[512];
  *(uint64_t *)arg = hash_with(NULL, layout, sizeof layout);
  return NULL;
}

static void packers_may_race(void) {
  NEED(RANDOM);
  enum { MANY = 4 };
  pthread_t th[MANY];
  uint64_t h[MANY];
  CHECK(weir_cache_clear(false, NULL, NULL) == WEIR_OK);
  for (int i = 0; i < MANY; i++) REQUIRE(pthread_create(&th[i], NULL, open_and_hash, &h[i]) == 0);
  for (int i = 0; i < MANY; i++) pthread_join(th[i], NULL);
  for (int i = 0; i < MANY; i++) CHECK(h[i] != 0 && h[i] == h[0]);
  const int left = packed_files(NULL, 0);
  CHECK_MSG(left <= 1, "%d files are left", left);
}

/* ---- one model in two disguises */

typedef struct disguise {
  const char *arch;
  const char *extra; /* one more tensor of this name */
  bool halves;       /* rows of q and k in NeoX order */
} disguise;

static weir_status put_key(wr_gguf_writer *w, const wr_gguf_meta *m, const disguise *d) {
  char key[256];
  wr_gguf_meta copy = *m;
  if (m->key.len > 6 && memcmp(m->key.ptr, "llama.", 6) == 0) {
    const int n = snprintf(key, sizeof key, "%s.%.*s", d->arch, (int)m->key.len - 6, m->key.ptr + 6);
    copy.key = (wr_gguf_text){key, (size_t)n};
  }
  if (m->key.len == 20 && memcmp(m->key.ptr, "general.architecture", 20) == 0)
    return wr_gguf_put_text(w, "general.architecture", d->arch, strlen(d->arch));
  return wr_gguf_put_meta(w, &copy);
}

/* Rows of a head from pairs (0,1)(2,3)… to halves. */
static weir_status put_rows(wr_gguf_writer *w, const wr_gguf_tensor *t, const disguise *d) {
  const bool turned = d->halves && (strstr(t->name, "attn_q.") || strstr(t->name, "attn_k."));
  const uint64_t head = 16, row_bytes = t->bytes / t->dim[1];
  if (!turned) return wr_gguf_write(w, t->data, (size_t)t->bytes);
  weir_status s = WEIR_OK;
  for (uint64_t r = 0; r < t->dim[1] && s == WEIR_OK; r++) {
    const uint64_t in = r % head, from = r - in + (in < head / 2 ? 2 * in : 2 * (in - head / 2) + 1);
    s = wr_gguf_write(w, t->data + from * row_bytes, (size_t)row_bytes);
  }
  return s;
}

static weir_status rewrite(const char *to, const disguise *d) {
  wr_gguf *g;
  wr_gguf_writer *w;
  WR_TRY(wr_gguf_open(RANDOM, NULL, &g));
  weir_status s = wr_gguf_writer_open(to, 0, &w);
  if (s != WEIR_OK) {
    wr_gguf_close(g);
    return s;
  }
  for (size_t i = 0; i < wr_gguf_n_meta(g); i++) (void)put_key(w, wr_gguf_meta_at(g, i), d);
  const uint64_t four = 4;
  static const float zeros[4];
  for (size_t i = 0; i < wr_gguf_n_tensors(g); i++) {
    const wr_gguf_tensor *t = wr_gguf_tensor_at(g, i);
    (void)wr_gguf_put_tensor(w, t->name, (wr_gguf_type)t->type->number, t->n_dims, t->dim);
  }
  if (d->extra) (void)wr_gguf_put_tensor(w, d->extra, WR_GGUF_F32, 1, &four);
  for (size_t i = 0; i < wr_gguf_n_tensors(g); i++) (void)put_rows(w, wr_gguf_tensor_at(g, i), d);
  if (d->extra) (void)wr_gguf_write(w, zeros, sizeof zeros);
  s = wr_gguf_writer_finish(w);
  wr_gguf_writer_close(w);
  wr_gguf_close(g);
  return s;
}

static float *logits_of(const char *path, int *vocab) {
  bench b;
  weir_token t[40];
  const float *l;
  float *copy = NULL;
  make_prompt(t, 40);
  if (!open_bench(&b, path, 1, 0)) return NULL;
  if (weir_session_sync(b.s, t, 40, NULL) == WEIR_OK && weir_session_logits(b.s, &l, vocab) == WEIR_OK) {
    copy = malloc((size_t)*vocab * sizeof *copy);
    if (copy) memcpy(copy, l, (size_t)*vocab * sizeof *copy);
  }
  close_bench(&b);
  return copy;
}

static void both_rope_orders_agree(void) {
  NEED(RANDOM);
  char path[256];
  int n = 0;
  snprintf(path, sizeof path, "%s/halves.gguf", make_scratch());
  CHECK(rewrite(path, &(disguise){.arch = "qwen2", .halves = true}) == WEIR_OK);
  float *a = logits_of(RANDOM, &n), *b = logits_of(path, &n);
  REQUIRE(a && b);
  double worst = 0, size = 0;
  for (int i = 0; i < n; i++) {
    worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
    size = fmax(size, fabs((double)a[i]));
  }
  CHECK_MSG(worst < 1e-5 * size, "logits differ by %g of %g", worst, size);
  free(b);
  CHECK(rewrite(path, &(disguise){.arch = "qwen2"}) == WEIR_OK); /* not permuted: it must matter */
  b = logits_of(path, &n);
  REQUIRE(b);
  double other = 0;
  for (int i = 0; i < n; i++) other = fmax(other, fabs((double)a[i] - (double)b[i]));
  CHECK(other > 1e-3 * size);
  free(a);
  free(b);
}

static void unknown_tensors_are_refused(void) {
  NEED(RANDOM);
  char path[256];
  snprintf(path, sizeof path, "%s/extra.gguf", make_scratch());
  CHECK(rewrite(path, &(disguise){.arch = "llama", .extra = "blk.0.attn_q_norm.weight"}) == WEIR_OK);
  CHECK_EQ_INT(try_open(path), WEIR_EUNSUPPORTED);
  CHECK_HAS(weir_last_error(), "blk.0.attn_q_norm.weight");
}

static void says_what_it_is(void) {
  NEED(RANDOM);
  bench b;
  REQUIRE(open_bench(&b, RANDOM, 1, 0));
  weir_model_info i;
  weir_model_get_info(b.m, &i);
  CHECK_STR(i.arch, "llama");
  CHECK_STR(i.name, "random");
  CHECK_STR(i.types, "f32");
  CHECK_EQ_INT(i.layers, 2);
  CHECK_EQ_INT(i.heads, 4);
  CHECK_EQ_INT(i.kv_heads, 2);
  CHECK_EQ_INT(i.head_width, 16);
  CHECK_EQ_INT(i.vocab, 341);
  CHECK_EQ_INT(i.kv_token_bytes, 2 * 2 * 2 * 16 * 2);
  char text[65536];
  const size_t n = weir_model_why(b.m, text, sizeof text);
  CHECK(n > 100 && n == strlen(text));
  CHECK_HAS(text, "matmul");
  CHECK_EQ_INT(weir_model_program(b.m, text, 10), weir_model_program(b.m, text, sizeof text));
  CHECK_HAS(text, "attention_paged");
  close_bench(&b);
}

static void plans_on_other_devices(void) {
  NEED(RANDOM);
  weir_context *ctx;
  weir_plan *p;
  weir_hardware hw;
  REQUIRE(weir_context_open(NULL, &ctx) == WEIR_OK);
  const weir_plan_options o = {.on = "h200", .context_tok = 512, .batch = 3};
  REQUIRE(weir_plan_model(ctx, RANDOM, &o, &p) == WEIR_OK);
  CHECK_HAS(p->device, "H200 SXM");
  CHECK(p->fits && p->bandwidth_gb_s == 4800 && p->source[0]);
  CHECK_NEAR(p->kv_bytes, 3 * 512 * 256, 0);
  CHECK(p->weight_bytes >= 480672 - 8000 && p->weight_bytes < 600000); /* the file less its head; packing pads rows */
  CHECK(p->token_bytes > 200000 && p->token_bytes < p->weight_bytes + p->kv_bytes);
  char text[4096];
  CHECK(weir_plan_print(p, text, sizeof text) == strlen(text));
  CHECK_HAS(text, "fits");
  weir_plan_free(p);
  CHECK_EQ_INT(weir_hardware_find("a100", &hw), WEIR_EUSAGE);
  CHECK_HAS(weir_last_error(), "A100 SXM4 80GB");
  CHECK_EQ_INT(weir_hardware_find("abacus", &hw), WEIR_EUSAGE);
  CHECK(weir_hardware_find("rtx 4090", &hw) == WEIR_OK && hw.memory_gb == 24);
  for (int i = 0; i < weir_hardware_count(); i++) {
    CHECK(weir_hardware_at(i, &hw) == WEIR_OK && hw.bandwidth_gb_s > 0 && hw.source[0]);
  }
  weir_context_close(ctx);
}

TEST_MAIN("model", TEST(impossible_hyper_parameters), TEST(a_claimed_context_is_not_believed), TEST(a_name_is_shown_escaped),
          TEST(packs_once_and_checks), TEST(packers_may_race), TEST(both_rope_orders_agree), TEST(unknown_tensors_are_refused),
          TEST(says_what_it_is), TEST(plans_on_other_devices))
