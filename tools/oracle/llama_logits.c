/* llama_logits MODEL [BETA_FAST BETA_SLOW]: asks llama.cpp's library for logits and greedy continuations. Driven by
 * smollm2_logits.py.
 *
 * stdin:  for each prompt a line "BYTES SPECIAL GREEDY" and then the text: its length, whether special tokens in it count as
 *         such, how many tokens to continue. An empty prompt becomes the BOS token. SPECIAL 2: not a text but int32 ids.
 * stdout: for each prompt, native integers and floats: int32 count, ids; int32 V, V logits of the last position;
 *         int32 count, then for each greedy token int32 id and float margin (largest logit less the second). The token that
 *         ends the text is the last one.
 * The betas are YaRN's, for architectures whose keys for them llama.cpp does not read.
 * One sequence at a time on one thread (its threads spin: two are slower than one on a busy machine), KV cache in F32, no flash
 * attention, no repacked weights.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llama.h"

enum { CTX = 2048 };

static void quiet(enum ggml_log_level level, const char *text, void *user) {
  (void)user;
  if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static void stop(const char *why) {
  fprintf(stderr, "llama_logits: %s\n", why);
  exit(1);
}

static void put(const void *data, size_t bytes) {
  if (fwrite(data, 1, bytes, stdout) != bytes) stop("cannot write");
}

static void put_int(int32_t value) { put(&value, sizeof value); }

int main(int argc, char **argv) {
  if (argc != 2 && argc != 4) stop("usage: llama_logits MODEL [BETA_FAST BETA_SLOW] <prompts >answers");
  llama_log_set(quiet, NULL);
  llama_backend_init();
  struct llama_model_params mp = llama_model_default_params();
  mp.use_extra_bufts = false;
  struct llama_model *model = llama_model_load_from_file(argv[1], mp);
  if (!model) stop("cannot load the model");
  struct llama_context_params cp = llama_context_default_params();
  cp.n_ctx = CTX;
  cp.n_batch = CTX;
  if (argc == 4) {
    cp.yarn_beta_fast = strtof(argv[2], NULL);
    cp.yarn_beta_slow = strtof(argv[3], NULL);
  }
  cp.n_threads = cp.n_threads_batch = 1;
  cp.type_k = cp.type_v = GGML_TYPE_F32;
  cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  struct llama_context *ctx = llama_init_from_model(model, cp);
  if (!ctx) stop("cannot make a context");
  const struct llama_vocab *vocab = llama_model_get_vocab(model);
  int32_t V = llama_vocab_n_tokens(vocab);

  static llama_token ids[CTX];
  int bytes, special, greedy;
  while (scanf("%d %d %d", &bytes, &special, &greedy) == 3) {
    getchar(); /* the end of the line */
    char *text = malloc((size_t)bytes + 1);
    if (!text || fread(text, 1, (size_t)bytes, stdin) != (size_t)bytes) stop("the text of a prompt is cut");
    int n;
    if (special == 2) {
      n = bytes / 4 <= CTX ? bytes / 4 : -1;
      if (n > 0) memcpy(ids, text, (size_t)n * sizeof *ids);
    } else {
      n = llama_tokenize(vocab, text, bytes, ids, CTX, true, special != 0);
    }
    free(text);
    if (n < 0) stop("a prompt is too long");
    if (n == 0) ids[n++] = llama_vocab_bos(vocab);
    put_int(n);
    put(ids, (size_t)n * sizeof *ids);

    llama_memory_clear(llama_get_memory(ctx), true);
    if (llama_decode(ctx, llama_batch_get_one(ids, n))) stop("llama_decode failed");
    const float *logits = llama_get_logits_ith(ctx, -1);
    put_int(V);
    put(logits, (size_t)V * sizeof *logits);

    static int32_t chosen[CTX];
    static float margin[CTX];
    int steps = 0;
    while (steps < greedy) {
      int best = 0, second = -1;
      for (int i = 1; i < V; i++) {
        if (logits[i] > logits[best]) {
          second = best;
          best = i;
        } else if (second < 0 || logits[i] > logits[second]) {
          second = i;
        }
      }
      chosen[steps] = best;
      margin[steps++] = logits[best] - logits[second];
      if (llama_vocab_is_eog(vocab, best) || steps == greedy) break;
      llama_token next = best;
      if (llama_decode(ctx, llama_batch_get_one(&next, 1))) stop("llama_decode failed");
      logits = llama_get_logits_ith(ctx, -1);
    }
    put_int(steps);
    for (int i = 0; i < steps; i++) {
      put_int(chosen[i]);
      put(&margin[i], sizeof margin[i]);
    }
  }
  llama_free(ctx);
  llama_model_free(model);
  return 0;
}
