/* generate MODEL.gguf [PROMPT]: loads a model, continues a text, says how fast it was.
 *   cc generate.c -lweir -lpcre2-8 -ldl -lm -pthread */
#include <stdio.h>
#include <string.h>

#include "weir/weir.h"

static int print_piece(void *user, const char *piece, size_t bytes) {
  (void)user;
  fwrite(piece, 1, bytes, stdout);
  fflush(stdout);
  return 0; /* anything else ends the answer here */
}

static int fail(weir_status status) {
  fprintf(stderr, "generate: %s\n", weir_last_error());
  return weir_status_exit_code(status);
}

int main(int argc, char **argv) {
  if (argc != 2 && argc != 3) {
    fprintf(stderr, "usage: generate MODEL.gguf [PROMPT]\n");
    return 2;
  }
  const char *prompt = argc == 3 ? argv[2] : "A weir is";
  weir_context *ctx;
  weir_model *model;
  weir_session *session;
  weir_result *r;
  weir_status s = weir_context_open(NULL, &ctx);
  if (s) return fail(s);
  if ((s = weir_model_open(ctx, argv[1], NULL, &model))) return fail(s);
  if ((s = weir_session_open(model, NULL, &session))) return fail(s);

  weir_generate_options o = {.max_tok = 64};
  if ((s = weir_sampling_set(&o.sampling, "temperature", 0.7))) return fail(s);
  if ((s = weir_generate(session, prompt, strlen(prompt), &o, print_piece, NULL, &r))) return fail(s);

  printf("\n");
  fprintf(stderr, "%zu + %zu tokens, seed %llu, %.1f tok/s; %.1f MB a token, %.0f%% of the limit of %.1f GB/s (%s)\n",
          r->n_prompt_tokens, r->n_tokens, (unsigned long long)r->seed, r->decode_tok_s, r->bytes_per_token * 1e-6,
          100 * r->share_of_limit, r->limit_gb_s, r->limit_mode);
  weir_result_free(r);
  weir_session_close(session);
  weir_model_close(model);
  weir_context_close(ctx);
  return 0;
}
