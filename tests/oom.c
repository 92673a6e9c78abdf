/* Memory that runs out: the n-th allocation fails, for every n of a small run. Every call must then give ENOMEM, or do without
 * (what is only a help, as the packed file), and nothing may be left over. */
#include <limits.h>

#include "session_i.h"

#include "heap_i.h"

static weir_status use_session(weir_session *s, weir_model *m) {
  const weir_sampling sampling = {.temperature = 1, .repeat_penalty = 1.1f, .seed = 1};
  const weir_text stop = {"zebra", 5};
  const weir_generate_options o = {.max_tok = 3, .sampling = sampling, .stop = &stop, .n_stop = 1, .profile = true};
  weir_result *r = NULL;
  weir_status status = weir_generate(s, "go on", 5, &o, NULL, NULL, &r);
  weir_result_free(r);
  if (status != WEIR_OK) return status;
  weir_session *f;
  status = weir_session_fork(s, &f);
  if (status != WEIR_OK) return status;
  const weir_token t[] = {5, 6, 7, 8};
  status = weir_session_eval(f, t, 4, NULL, NULL);
  double nll;
  if (status == WEIR_OK) status = weir_session_score(f, t, 4, 1, &nll);
  weir_session_close(f);
  char *text;
  size_t n;
  if (status == WEIR_OK) status = weir_tokenizer_decode(weir_model_tokenizer(m), t, 4, 0, &text, &n);
  if (status == WEIR_OK) weir_free(text);
  return status;
}

static weir_status evaluate(weir_model *m) {
  const weir_eval_options o = {.context_tok = 4, .stride_tok = 1};
  weir_eval_report r;
  return weir_eval(m, "good morning", 12, &o, &r);
}

static weir_status small_run(const weir_model_options *mo) {
  weir_context *ctx;
  weir_model *m;
  weir_session *s;
  const weir_context_options co = {.threads = 1};
  weir_status status = weir_context_open(&co, &ctx);
  if (status != WEIR_OK) return status;
  status = weir_model_open(ctx, RANDOM, mo, &m);
  if (status == WEIR_OK) {
    const weir_session_options so = {.pool_tok = 2048};
    status = weir_session_open(m, &so, &s);
    if (status == WEIR_OK) {
      status = use_session(s, m);
      weir_session_close(s);
    }
    if (status == WEIR_OK) status = evaluate(m);
    weir_model_close(m);
  }
  weir_context_close(ctx);
  return status;
}

static void keep_status(void *user, uint64_t id, weir_status status, weir_result *r) {
  (void)id;
  weir_result_free(r);
  if (status != WEIR_OK) *(weir_status *)user = status;
}

static weir_status use_batch(weir_batch *b) {
  weir_token t[70];
  weir_status status = WEIR_OK, ended = WEIR_OK;
  const weir_text stop = {"zebra", 5};
  const weir_token stop_token = 2;
  const weir_generate_options o = {.max_tok = 3,
                                   .sampling = {.temperature = 1, .seed = 1},
                                   .stop = &stop,
                                   .n_stop = 1,
                                   .stop_tokens = &stop_token,
                                   .n_stop_tokens = 1};
  const weir_request q = {.tokens = t, .n_tokens = 70, .options = &o, .done = keep_status, .user = &ended};
  make_prompt(t, 70);
  for (int i = 0; i < 2 && status == WEIR_OK; i++) status = weir_batch_add(b, &q, NULL);
  if (status == WEIR_OK) status = weir_batch_run(b);
  weir_batch_report r;
  if (status == WEIR_OK) status = weir_batch_get_report(b, &r);
  return status == WEIR_OK ? ended : status;
}

/* Two requests whose prompts share pages. */
static weir_status small_batch(const weir_model_options *mo) {
  weir_context *ctx;
  weir_model *m;
  weir_batch *b;
  const weir_context_options co = {.threads = 2};
  const weir_batch_options bo = {.slots = 2, .context_tok = 128, .profile = true};
  weir_status status = weir_context_open(&co, &ctx);
  if (status != WEIR_OK) return status;
  status = weir_model_open(ctx, RANDOM, mo, &m);
  if (status == WEIR_OK) {
    status = weir_batch_open(m, &bo, &b);
    if (status == WEIR_OK) {
      status = use_batch(b);
      weir_batch_close(b);
    }
    weir_model_close(m);
  }
  weir_context_close(ctx);
  return status;
}

/* may_do_without: how many allocations may fail and the run succeed all the same */
static void every_allocation(weir_status (*run)(const weir_model_options *), const weir_model_options *mo, long may_do_without) {
  const weir_hooks hooks = {HEAP_HOOKS, .log_level = WEIR_LOG_ERROR};
  weir_set_hooks(&hooks);
  heap_fail(0);
  CHECK_MSG(run(mo) == WEIR_OK, "%s", weir_last_error());
  const long all = heap.calls;
  CHECK_EQ_INT(heap.live, 0);
  long refused = 0, done = 0;
  for (long i = 1; i <= all; i++) {
    heap_fail(i);
    const weir_status s = run(mo);
    refused += s == WEIR_ENOMEM;
    if (s == WEIR_OK && ++done <= may_do_without) continue;
    CHECK_MSG(s == WEIR_ENOMEM, "allocation %ld of %ld failed and the run gave %d (%s)", i, all, s, weir_last_error());
    CHECK_MSG(heap.live == 0, "allocation %ld of %ld failed and %ld are left", i, all, heap.live);
  }
  weir_set_hooks(NULL);
  CHECK_MSG(refused > all / 2, "%ld of %ld allocations are needed", refused, all);
}

/* Done without: the machine's figures, of which a prompt's share of the peak comes. */
static void without_packing(void) {
  NEED(RANDOM);
  every_allocation(small_run, &(weir_model_options){.no_pack = true}, 8);
}

static void with_packing(void) {
  NEED(RANDOM);
  every_allocation(small_run, NULL, LONG_MAX);
}

/* What is kept of sequences that ended is a help; a draw that failed on a thread of the team is tried again. */
static void batches(void) {
  NEED(RANDOM);
  every_allocation(small_batch, &(weir_model_options){.no_pack = true}, LONG_MAX);
}

static weir_status small_conversion(const weir_model_options *mo) {
  (void)mo;
  char path[128];
  snprintf(path, sizeof path, "%s/small.gguf", make_scratch());
  const weir_convert_options o = {.type = "q4_k_m", .threads = 2, .force = true};
  return weir_convert("tests/golden/tiny_llama.gguf", path, &o, NULL);
}

/* Done without: a second thread. */
static void converting(void) { every_allocation(small_conversion, NULL, LONG_MAX); }

/* Two steps of a run in a folder, with a checkpoint, from shards that are there. A text sample and the report are done without. */
static weir_status small_training(const char *folder, const char *shards) {
  weir_context *ctx;
  weir_trainer *t;
  weir_train_report r = {0};
  const weir_context_options co = {.threads = 1};
  const weir_train_data data = {.path = shards};
  const weir_train_options o = {.layers = 1,
                                .width = 16,
                                .heads = 1,
                                .ff = 16,
                                .ctx = 8,
                                .batch = 2,
                                .steps = 2,
                                .every = "1",
                                .eval_every = 1,
                                .eval_batches = 1,
                                .sample_tok = 2,
                                .data = &data,
                                .n_data = 1,
                                .no_machine = true};
  weir_status status = weir_context_open(&co, &ctx);
  if (status != WEIR_OK) return status;
  status = weir_trainer_open(ctx, folder, &o, &t);
  if (status == WEIR_OK) {
    while (status == WEIR_OK && !r.done) status = weir_trainer_step(t, &r);
    weir_trainer_close(t);
  }
  weir_context_close(ctx);
  return status;
}

static void training(void) {
  const weir_hooks hooks = {HEAP_HOOKS, .log_level = WEIR_LOG_ERROR};
  char shards[128], folder[128], text[128];
  const char *inputs[] = {text};
  weir_tokenizer *t;
  snprintf(text, sizeof text, "%s/text.txt", make_scratch());
  snprintf(shards, sizeof shards, "%s/shards", scratch);
  FILE *f = fopen(text, "w");
  REQUIRE(f);
  for (int i = 0; i < 200; i++) fprintf(f, "the quick brown fox jumps over the lazy dog %d\n", i);
  fclose(f);
  REQUIRE(weir_tokenizer_open("bytes", &t) == WEIR_OK);
  const weir_data_build_options bo = {.val_share = 0.1};
  CHECK_MSG(weir_data_build(t, inputs, 1, shards, &bo, NULL) == WEIR_OK, "%s", weir_last_error());
  weir_tokenizer_close(t);
  weir_set_hooks(&hooks);
  long all = 0, refused = 0;
  for (long i = 0; i <= all; i += i < 400 ? 7 : 23) { /* i 0: none fails */
    snprintf(folder, sizeof folder, "%s/run-%ld", scratch, i);
    heap_fail(i);
    const weir_status s = small_training(folder, shards);
    if (i == 0) all = heap.calls;
    CHECK_MSG(s == WEIR_OK || (i && s == WEIR_ENOMEM), "allocation %ld of %ld failed and the run gave %d (%s)", i, all, s,
              weir_last_error());
    CHECK_MSG(heap.live == 0, "allocation %ld of %ld failed and %ld are left", i, all, heap.live);
    refused += s == WEIR_ENOMEM;
  }
  weir_set_hooks(NULL);
  CHECK_MSG(all > 200 && refused > 20, "%ld allocations, %ld refused", all, refused);
}

TEST_MAIN("oom", TEST(without_packing), TEST(with_packing), TEST(batches), TEST(converting), TEST(training))
