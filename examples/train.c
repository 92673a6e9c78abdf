/* train TEXT RUN [STEPS]: trains a small model on a text file, in the folder RUN, and lets it write.
 *   cc train.c -lweir -lpcre2-8 -ljansson -lzstd -lz -ldl -lm -pthread */
#include <stdio.h>
#include <stdlib.h>

#include "weir/weir.h"

static int fail(weir_status status) {
  fprintf(stderr, "train: %s\n", weir_last_error());
  return weir_status_exit_code(status);
}

int main(int argc, char **argv) {
  if (argc != 3 && argc != 4) {
    fprintf(stderr, "usage: train TEXT RUN [STEPS]\n");
    return 2;
  }
  const weir_train_data data = {.path = argv[1]};
  const weir_train_options options = {
      .size = "1m", .ctx = 128, .batch = 8, .steps = argc == 4 ? atoi(argv[3]) : 200, .data = &data, .n_data = 1};
  weir_context *ctx;
  weir_trainer *trainer;
  weir_train_report r;
  weir_status s = weir_context_open(NULL, &ctx);
  if (s) return fail(s);
  if ((s = weir_trainer_open(ctx, argv[2], &options, &trainer))) return fail(s); /* or goes on with the run that is there */
  do {
    if ((s = weir_trainer_step(trainer, &r))) return fail(s);
    if (r.step % 20 == 0) printf("step %lld  loss %.3f  %.0f tok/s\n", (long long)r.step, r.loss, r.tok_s);
  } while (!r.done);
  weir_trainer_close(trainer);

  weir_model *model; /* a run is a model */
  weir_session *session;
  weir_result *result;
  const weir_generate_options generate = {.max_tok = 40, .sampling = {.temperature = 0.8f, .seed = 1}};
  if ((s = weir_model_open(ctx, argv[2], NULL, &model))) return fail(s);
  if ((s = weir_session_open(model, NULL, &session))) return fail(s);
  if ((s = weir_generate(session, "the", 3, &generate, NULL, NULL, &result))) return fail(s);
  printf("the%s\n", result->text);
  weir_result_free(result);
  weir_session_close(session);
  weir_model_close(model);
  weir_context_close(ctx);
  return 0;
}
