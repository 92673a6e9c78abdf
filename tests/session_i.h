/* What the tests of models and sessions share: the files, a cache folder of their own, opening in one line. */
#ifndef TEST_SESSION_I_H
#define TEST_SESSION_I_H

#include <ftw.h>
#include <unistd.h>

#include "test.h"
#include "weir/weir.h"

#define CASES "../shared/cases"
#define SCRIPTED CASES "/models/scripted.gguf"
#define RANDOM CASES "/models/random.gguf"

static char scratch[64];

__attribute__((unused)) static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
  (void)st, (void)type, (void)at;
  return remove(path);
}

__attribute__((unused)) static void remove_scratch(void) { nftw(scratch, remove_one, 8, FTW_DEPTH | FTW_PHYS); }

/* A folder that goes away with the program, and is the cache. */
__attribute__((unused)) static const char *make_scratch(void) {
  if (scratch[0]) return scratch;
  snprintf(scratch, sizeof scratch, "/tmp/weir-test-XXXXXX");
  if (!mkdtemp(scratch)) {
    perror(scratch);
    exit(1);
  }
  setenv("WEIR_CACHE", scratch, 1);
  atexit(remove_scratch);
  return scratch;
}

__attribute__((unused)) static bool have(const char *path) {
  make_scratch();
  return access(path, R_OK) == 0;
}
#define NEED(path) \
  do { \
    if (!have(path)) SKIP(path " is missing"); \
  } while (0)

typedef struct bench {
  weir_context *ctx;
  weir_model *m;
  weir_session *s;
} bench;

__attribute__((unused)) static void close_bench(bench *b) {
  weir_session_close(b->s);
  weir_model_close(b->m);
  weir_context_close(b->ctx);
  *b = (bench){0};
}

__attribute__((unused)) static bool open_bench(bench *b, const char *path, int threads, int piece) {
  const weir_context_options co = {.threads = threads};
  const weir_session_options so = {.piece_tok = piece};
  *b = (bench){0};
  if (weir_context_open(&co, &b->ctx) == WEIR_OK && weir_model_open(b->ctx, path, NULL, &b->m) == WEIR_OK &&
      weir_session_open(b->m, &so, &b->s) == WEIR_OK)
    return true;
  printf("  cannot open %s: %s\n", path, weir_last_error());
  close_bench(b);
  return false;
}

/* A prompt of n tokens that is the same everywhere. */
__attribute__((unused)) static void make_prompt(weir_token *t, size_t n) {
  uint32_t x = 12345;
  for (size_t i = 0; i < n; i++) {
    x = x * 1664525u + 1013904223u;
    t[i] = (weir_token)(3 + (x >> 16) % 300);
  }
}

__attribute__((unused)) static uint64_t hash_of(weir_session *s) {
  const float *logits;
  int vocab;
  if (weir_session_logits(s, &logits, &vocab) != WEIR_OK) return 0;
  return weir_logits_hash(logits, (size_t)vocab);
}

#endif
