/* A model of each architecture, tiny: their logits against Hugging Face transformers in double and against llama.cpp (golden
 * files by tools/oracle/tiny_models.py); from a file, from a checkpoint of a run, with a tied and an untied output matrix. */
#include <dirent.h>
#include <math.h>
#include <sys/stat.h>

#include "session_i.h"

#include "format/format.h"
#include "infer/infer.h"

#define GPT2 "tests/golden/tiny_gpt2.gguf"
#define LLAMA "tests/golden/tiny_llama.gguf"
#define GEMMA2 "tests/golden/tiny_gemma2.gguf"
#define GEMMA3 "tests/golden/tiny_gemma3.gguf"

typedef struct golden {
  wr_gguf *g;
  weir_token tokens[64];
  int rows[8], n_rows;
  wr_gguf_array logits, llama_cpp;
} golden;

static bool open_golden(golden *o, const char *path) {
  wr_gguf_array tokens, rows;
  if (wr_gguf_open(path, NULL, &o->g) != WEIR_OK ||
      wr_gguf_get_array(o->g, "golden.tokens", true, WR_GGUF_VALUE_I32, &tokens) != WEIR_OK ||
      wr_gguf_get_array(o->g, "golden.rows", true, WR_GGUF_VALUE_I32, &rows) != WEIR_OK ||
      wr_gguf_get_array(o->g, "golden.logits", true, WR_GGUF_VALUE_F32, &o->logits) != WEIR_OK ||
      wr_gguf_get_array(o->g, "golden.llama_cpp", true, WR_GGUF_VALUE_F32, &o->llama_cpp) != WEIR_OK)
    return false;
  for (uint64_t i = 0; i < 64; i++) o->tokens[i] = (weir_token)wr_gguf_array_int(&tokens, i);
  o->n_rows = (int)rows.count;
  for (uint64_t i = 0; i < rows.count; i++) o->rows[i] = (int)wr_gguf_array_int(&rows, i);
  return true;
}

static double log_sum_exp(const float *x, int n) {
  double max = -INFINITY, sum = 0;
  for (int i = 0; i < n; i++) max = x[i] > max ? x[i] : max; /* not fmax, over which gcc 12 for aarch64 fails */
  for (int i = 0; i < n; i++) sum += exp(x[i] - max);
  return max + log(sum);
}

/* Logits after the first n tokens, the KV cache in F32; `out` has 256. The hash of their bits. */
static uint64_t logits_of(const char *path, bool no_pack, int piece, const weir_token *tokens, size_t n, float *out) {
  weir_context *ctx = NULL;
  weir_model *m = NULL;
  weir_session *s = NULL;
  uint64_t hash = 0;
  const float *logits;
  int vocab;
  const weir_context_options co = {.threads = 2};
  const weir_model_options mo = {.no_pack = no_pack};
  const weir_session_options so = {.piece_tok = piece, .kv = WEIR_KV_F32};
  make_scratch();
  if (weir_context_open(&co, &ctx) == WEIR_OK && weir_model_open(ctx, path, &mo, &m) == WEIR_OK &&
      weir_session_open(m, &so, &s) == WEIR_OK && weir_session_eval(s, tokens, n, NULL, NULL) == WEIR_OK &&
      weir_session_logits(s, &logits, &vocab) == WEIR_OK && vocab == 256) {
    memcpy(out, logits, 256 * sizeof *out);
    hash = weir_logits_hash(logits, 256);
  } else {
    printf("  %s: %s\n", path, weir_last_error());
  }
  weir_session_close(s);
  weir_model_close(m);
  weir_context_close(ctx);
  return hash;
}

static void against_others(const char *path, double near, double llama_near, double llama_kl) {
  golden o;
  REQUIRE(open_golden(&o, path));
  float got[256], want[256];
  double worst = 0;
  for (int pack = 0; pack < 2; pack++)
    for (int r = 0; r < o.n_rows; r++) {
      const size_t n = (size_t)o.rows[r] + 1;
      const uint64_t hash = logits_of(path, !pack, 0, o.tokens, n, got);
      REQUIRE(hash);
      for (int i = 0; i < 256; i++) worst = fmax(worst, fabs(got[i] - wr_gguf_array_float(&o.logits, (uint64_t)(r * 256 + i))));
      float cut[256];
      CHECK(logits_of(path, !pack, 5, o.tokens, n, cut) == hash); /* the same bits however the prompt is cut */
    }
  CHECK_MSG(worst < near, "the largest difference from transformers is %.3g", worst);
  double kl = 0, off = 0;
  for (uint64_t i = 0; i < 256; i++) want[i] = (float)wr_gguf_array_float(&o.llama_cpp, i);
  const double a = log_sum_exp(want, 256), b = log_sum_exp(got, 256);
  for (int i = 0; i < 256; i++) {
    kl += exp(want[i] - a) * ((want[i] - a) - (got[i] - b));
    off = fmax(off, fabs(want[i] - got[i]));
  }
  CHECK_MSG(off < llama_near && kl < llama_kl, "from llama.cpp: largest difference %.3g, KL %.3g", off, kl);
  wr_gguf_close(o.g);
}

/* llama.cpp's GELU is a table in F16: it is that far from the exact answer itself (4e-3, KL 1.2e-7). */
static void gpt2_as_others_have_it(void) { against_others(GPT2, 3e-5, 6e-3, 3e-7); }

static void llama_as_others_have_it(void) { against_others(LLAMA, 1e-5, 2e-5, 1e-10); }

/* Windows of 16 positions, soft caps of 3 and 8, two bases: the prompt of 64 tokens sees them all. llama.cpp's GELU as above. */
static void gemma2_as_others_have_it(void) { against_others(GEMMA2, 3e-5, 2e-3, 1e-8); }

static void gemma3_as_others_have_it(void) { against_others(GEMMA3, 1e-4, 6e-3, 1e-8); }

/* The file without one of its keys: its name loses a letter's identity, and nobody knows the new one. The hash of the logits, 0: refused. */
static uint64_t without_key(const char *path, const char *key, const weir_token *tokens) {
  char *bytes, changed[128];
  size_t n;
  float logits[256];
  snprintf(changed, sizeof changed, "%s/changed.gguf", make_scratch());
  if (!CHECK(wr_file_read(path, 1 << 20, &bytes, &n) == WEIR_OK)) return 0;
  char *at = memmem(bytes, n, key, strlen(key));
  if (CHECK_MSG(at, "%s has no key %s", path, key)) at[strlen(key) - 1] = '_';
  CHECK(wr_file_write_atomic(changed, bytes, n) == WEIR_OK);
  wr_free(bytes);
  return logits_of(changed, true, 0, tokens, 64, logits);
}

/* Each key that only Gemma has tells: without it other logits, or, where a model of the kind always has it, a refusal. */
static void every_key_of_gemma_tells(void) {
  static const char *const must[] = {"gemma2.attention.sliding_window", "gemma2.attn_logit_softcapping",
                                     "gemma2.final_logit_softcapping"};
  static const char *const may[] = {"gemma3.attention.sliding_window", "gemma3.rope.freq_base", "gemma3.rope.scaling.factor"};
  golden o;
  float logits[256];
  REQUIRE(open_golden(&o, GEMMA3));
  for (size_t i = 0; i < WR_ARRAY_LEN(must); i++) {
    CHECK(without_key(GEMMA2, must[i], o.tokens) == 0);
    CHECK_HAS(weir_last_error(), must[i]);
  }
  const uint64_t whole = logits_of(GEMMA3, true, 0, o.tokens, 64, logits);
  for (size_t i = 0; i < WR_ARRAY_LEN(may); i++) {
    const uint64_t hash = without_key(GEMMA3, may[i], o.tokens);
    CHECK_MSG(hash && hash != whole, "%s does not tell", may[i]);
  }
  wr_gguf_close(o.g);
}

/* GPT-2 has as many positions as it has learned. */
static void no_position_beyond_the_table(void) {
  make_scratch();
  weir_context *ctx;
  weir_model *m = NULL;
  weir_session *s = NULL;
  REQUIRE(weir_context_open(NULL, &ctx) == WEIR_OK);
  REQUIRE(weir_model_open(ctx, GPT2, NULL, &m) == WEIR_OK);
  weir_session_options so = {.context_tok = 65};
  CHECK_EQ_INT(weir_session_open(m, &so, &s), WEIR_EUSAGE);
  CHECK_HAS(weir_last_error(), "64 positions");
  so.context_tok = 0;
  REQUIRE(weir_session_open(m, &so, &s) == WEIR_OK);
  CHECK_EQ_INT(weir_session_capacity(s), 64);
  weir_token many[65] = {0};
  CHECK_EQ_INT(weir_session_eval(s, many, 64, NULL, NULL), WEIR_OK);
  CHECK(weir_session_eval(s, many, 1, NULL, NULL) != WEIR_OK);
  weir_session_close(s);
  weir_plan *plan;
  const weir_plan_options po = {.context_tok = 65};
  CHECK_EQ_INT(weir_plan_model(ctx, GPT2, &po, &plan), WEIR_EUSAGE);
  weir_model_close(m);
  weir_context_close(ctx);
}

/* ---- case F08: tied and untied */

typedef struct copied {
  const wr_gguf *g;
  bool tie, untie;
} copied;

static weir_status copy_meta(void *user, wr_gguf_writer *w) {
  const copied *c = user;
  for (size_t i = 0; i < wr_gguf_n_meta(c->g); i++) WR_TRY(wr_gguf_put_meta(w, wr_gguf_meta_at(c->g, i)));
  return WEIR_OK;
}

/* Saves the model as a checkpoint of a run, its tensors interleaved in memory; tied or untied as asked. The parameters it wrote. */
static uint64_t save_as_run(const char *path, const char *run, bool tie, bool untie) {
  enum { MAX = 64 };
  wr_gguf *g;
  wr_saver *s;
  wr_save_tensor t[MAX];
  size_t n = 0;
  uint64_t parameters = 0;
  if (wr_gguf_open(path, NULL, &g) != WEIR_OK) return 0;
  for (size_t i = 0; i < wr_gguf_n_tensors(g) && n < MAX - 1; i++) {
    const wr_gguf_tensor *from = wr_gguf_tensor_at(g, i);
    if (tie && strcmp(from->name, "output.weight") == 0) continue;
    t[n] = (wr_save_tensor){.name = from->name, .n_dims = from->n_dims, .data = (void *)(uintptr_t)from->data};
    memcpy(t[n].dim, from->dim, sizeof t[n].dim);
    parameters += from->n_elems;
    n++;
    if (!untie || strcmp(from->name, "token_embd.weight") != 0) continue;
    t[n] = t[n - 1];
    t[n++].name = "output.weight";
    parameters += from->n_elems;
  }
  copied c = {.g = g};
  const wr_save_file f = {"model.gguf", copy_meta, &c, t, n};
  weir_status status = wr_saver_open(run, NULL, &s);
  if (status == WEIR_OK) {
    status =
        wr_saver_begin(s, &(wr_save){.step = 1, .val_loss = NAN, .files = &f, .n_files = 1, .state = "{}", .state_bytes = 2});
    if (status == WEIR_OK) status = wr_saver_wait(s, NULL);
    wr_saver_close(s);
  }
  wr_gguf_close(g);
  if (status != WEIR_OK) printf("  %s\n", weir_last_error());
  return status == WEIR_OK ? parameters : 0;
}

static uint64_t parameters_of(const char *path) {
  weir_context *ctx;
  weir_model *m = NULL;
  weir_model_info info = {0};
  if (weir_context_open(NULL, &ctx) == WEIR_OK && weir_model_open(ctx, path, NULL, &m) == WEIR_OK)
    weir_model_get_info(m, &info);
  weir_model_close(m);
  weir_context_close(ctx);
  return info.parameters;
}

static void tied_and_untied(void) {
  golden o;
  char run[128];
  float a[256], b[256];
  REQUIRE(open_golden(&o, GPT2));
  const uint64_t from_file = logits_of(GPT2, false, 0, o.tokens, 64, a);
  snprintf(run, sizeof run, "%s/tied", make_scratch());
  const uint64_t tied = save_as_run(GPT2, run, false, false);
  CHECK(tied > 0);
  CHECK_EQ_INT(parameters_of(run), tied);
  CHECK(logits_of(run, false, 0, o.tokens, 64, b) == from_file);

  snprintf(run, sizeof run, "%s/untied", make_scratch());
  const uint64_t untied = save_as_run(GPT2, run, false, true);
  CHECK_EQ_INT(untied, tied + 256 * 48);
  CHECK_EQ_INT(parameters_of(run), untied);
  CHECK(logits_of(run, false, 0, o.tokens, 64, b) == from_file); /* the same numbers twice */

  weir_tokenizer *t;
  REQUIRE(weir_tokenizer_open(run, &t) == WEIR_OK);
  weir_tokenizer_info info;
  weir_tokenizer_get_info(t, &info);
  CHECK_EQ_INT(info.vocab, 256);
  weir_tokenizer_close(t);
  weir_file *file;
  REQUIRE(weir_file_open(run, NULL, &file) == WEIR_OK);
  weir_file_info fi;
  weir_file_get_info(file, &fi);
  CHECK_HAS(fi.path, "/checkpoints/step-1/model.gguf");
  CHECK_EQ_INT(fi.parameters, untied);
  weir_file_close(file);

  /* a model whose output matrix is its own gives other logits without it */
  const uint64_t own = logits_of(LLAMA, false, 0, o.tokens, 64, a);
  snprintf(run, sizeof run, "%s/llama", make_scratch());
  CHECK(save_as_run(LLAMA, run, false, false) > 0);
  CHECK(logits_of(run, false, 0, o.tokens, 64, b) == own);
  snprintf(run, sizeof run, "%s/llama-tied", make_scratch());
  CHECK(save_as_run(LLAMA, run, true, false) > 0);
  const uint64_t shared = logits_of(run, false, 0, o.tokens, 64, b);
  CHECK(shared && shared != own);
  wr_gguf_close(o.g);
}

/* The packed file of a checkpoint is not taken for that of another one that came in its place. */
static void a_newer_checkpoint_is_noticed(void) {
  golden o;
  char run[128], name[256];
  float a[256], b[256];
  REQUIRE(open_golden(&o, GPT2));
  snprintf(run, sizeof run, "%s/newer", make_scratch());
  CHECK(save_as_run(LLAMA, run, false, false) > 0);
  const uint64_t first = logits_of(run, false, 0, o.tokens, 64, a);
  CHECK(save_as_run(LLAMA, run, true, false) > 0); /* the same step again */
  const uint64_t second = logits_of(run, false, 0, o.tokens, 64, b);
  CHECK(first && second && first != second);
  snprintf(name, sizeof name, "%s/checkpoints/step-1", run);
  CHECK(logits_of(name, false, 0, o.tokens, 64, b) == second);
  wr_gguf_close(o.g);
}

static int packed_files(void) {
  int n = 0;
  char folder[128];
  snprintf(folder, sizeof folder, "%s/packed", make_scratch());
  DIR *d = opendir(folder);
  for (struct dirent *e; d && (e = readdir(d));) n += strstr(e->d_name, ".pack") != NULL;
  if (d) closedir(d);
  return n;
}

/* What was packed of a checkpoint that is gone goes when the next one is packed. */
static void packed_checkpoints_go_with_them(void) {
  golden o;
  char run[128], path[256];
  float a[256];
  REQUIRE(open_golden(&o, GPT2));
  snprintf(run, sizeof run, "%s/first", make_scratch());
  CHECK(save_as_run(LLAMA, run, false, false) > 0);
  CHECK(logits_of(run, false, 0, o.tokens, 64, a));
  const int before = packed_files();
  CHECK(before > 0);
  snprintf(path, sizeof path, "%s/checkpoints/step-1/model.gguf", run);
  CHECK_EQ_INT(unlink(path), 0);
  snprintf(run, sizeof run, "%s/second", make_scratch());
  CHECK(save_as_run(LLAMA, run, true, false) > 0);
  CHECK(logits_of(run, false, 0, o.tokens, 64, a));
  CHECK_EQ_INT(packed_files(), before);
  wr_gguf_close(o.g);
}

TEST_MAIN("tiny", TEST(gpt2_as_others_have_it), TEST(llama_as_others_have_it), TEST(gemma2_as_others_have_it),
          TEST(gemma3_as_others_have_it), TEST(every_key_of_gemma_tells), TEST(no_position_beyond_the_table),
          TEST(tied_and_untied), TEST(a_newer_checkpoint_is_noticed), TEST(packed_checkpoints_go_with_them))
