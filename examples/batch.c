/* batch MODEL.gguf [PROMPT...]: answers several prompts at once, each as soon as it is done.
 *   cc batch.c -lweir -lpcre2-8 -ldl -lm -pthread */
#include <stdio.h>
#include <string.h>

#include "weir/weir.h"

static void print_answer(void *user, uint64_t id, weir_status status, weir_result *r) {
  if (status)
    printf("%llu: %s: %s\n", (unsigned long long)id, (const char *)user, weir_last_error());
  else
    printf("%llu: %s%s [%s]\n\n", (unsigned long long)id, (const char *)user, r->text, weir_finish_name(r->finish));
  weir_result_free(r);
}

static int fail(weir_status status) {
  fprintf(stderr, "batch: %s\n", weir_last_error());
  return weir_status_exit_code(status);
}

int main(int argc, char **argv) {
  static char *usual[] = {"A weir is", "The capital of France is", "Once upon a time", "Two and two are"};
  if (argc < 2) {
    fprintf(stderr, "usage: batch MODEL.gguf [PROMPT...]\n");
    return 2;
  }
  const int n = argc > 2 ? argc - 2 : (int)(sizeof usual / sizeof usual[0]);
  char **prompts = argc > 2 ? argv + 2 : usual;
  weir_context *ctx;
  weir_model *model;
  weir_batch *batch;
  weir_status s = weir_context_open(NULL, &ctx);
  if (s) return fail(s);
  if ((s = weir_model_open(ctx, argv[1], NULL, &model))) return fail(s);
  if ((s = weir_batch_open(model, NULL, &batch))) return fail(s);

  const weir_generate_options o = {.max_tok = 32};
  for (int i = 0; i < n; i++) {
    const weir_request q = {
        .prompt = prompts[i], .prompt_bytes = strlen(prompts[i]), .options = &o, .done = print_answer, .user = prompts[i]};
    if ((s = weir_batch_add(batch, &q, NULL))) return fail(s);
  }
  if ((s = weir_batch_run(batch))) return fail(s);

  weir_batch_report r;
  if ((s = weir_batch_get_report(batch, &r))) return fail(s);
  fprintf(stderr, "%llu tokens in %llu steps, %.1f tok/s\n", (unsigned long long)r.tokens, (unsigned long long)r.steps,
          r.tok_s);
  weir_batch_close(batch);
  weir_model_close(model);
  weir_context_close(ctx);
  return 0;
}
