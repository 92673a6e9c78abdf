/* Batches: whatever comes, goes, shares, waits and is put back beside a request, its answer is the one that weir_generate gives alone. The
 * witness is that other loop; what may differ is only when things happen. */
#include <pthread.h>

#include "session_i.h"

#include "infer/infer.h"

enum { CONTEXT = 256, MOST = 160 };

/* A request, what it should give, and what it gave. */
typedef struct asked {
  weir_token prompt[CONTEXT];
  size_t n;
  weir_generate_options o;
  weir_text stop;
  uint64_t id;
  char text[4096]; /* the pieces */
  size_t text_bytes;
  int done, pieces, cancel_at; /* pieces after which it cancels itself; 0: never */
  weir_status status;
  weir_result *r, *alone;
  weir_batch *b;
} asked;

static int take_piece(void *user, const char *piece, size_t n) {
  asked *a = user;
  if (a->text_bytes + n < sizeof a->text) memcpy(a->text + a->text_bytes, piece, n);
  a->text_bytes += n;
  if (++a->pieces == a->cancel_at) weir_batch_cancel(a->b, a->id);
  return 0;
}

static void take_result(void *user, uint64_t id, weir_status status, weir_result *r) {
  asked *a = user;
  CHECK_EQ_INT(id, a->id);
  a->done++;
  a->status = status;
  a->r = r;
}

static bool add(weir_batch *b, asked *a) {
  a->b = b;
  const weir_request q = {
      .tokens = a->prompt, .n_tokens = a->n, .options = &a->o, .piece = take_piece, .done = take_result, .user = a};
  const weir_status s = weir_batch_add(b, &q, &a->id);
  return test_expect(s == WEIR_OK, TEST_WHERE, "add: %s", weir_last_error());
}

static uint32_t next_random(uint32_t *x) { return (*x = *x * 1664525u + 1013904223u) >> 8; }

/* Requests of every kind: greedy and drawn in each way, short and long, with beginnings in common, with stop texts. */
static void make_requests(asked *list, size_t n, uint32_t seed) {
  weir_token common[CONTEXT];
  make_prompt(common, CONTEXT);
  for (size_t i = 0; i < n; i++) {
    asked *a = &list[i];
    *a = (asked){.n = 1 + next_random(&seed) % MOST};
    const size_t shared = next_random(&seed) % 3 ? next_random(&seed) % a->n : 0;
    for (size_t k = 0; k < a->n; k++) a->prompt[k] = k < shared ? common[k] : (weir_token)(3 + next_random(&seed) % 300);
    a->o = (weir_generate_options){.max_tok = 1 + next_random(&seed) % 60, .no_limit = true};
    if (next_random(&seed) % 2) {
      a->o.sampling = (weir_sampling){.temperature = 0.5f + (float)(next_random(&seed) % 4), .seed = 1 + i};
      if (next_random(&seed) % 2) a->o.sampling.top_k = 1 + (int)(next_random(&seed) % 50);
      if (next_random(&seed) % 2) a->o.sampling.top_p = 0.8f;
      if (next_random(&seed) % 2) a->o.sampling.min_p = 0.01f;
    }
    if (next_random(&seed) % 3 == 0) a->o.sampling.repeat_penalty = 1.3f;
    a->o.ignore_eos = next_random(&seed) % 2;
    if (next_random(&seed) % 4 == 0) {
      a->stop = (weir_text){"e", 1};
      a->o.stop = &a->stop;
      a->o.n_stop = 1;
    }
  }
}

static void free_requests(asked *list, size_t n) {
  for (size_t i = 0; i < n; i++) {
    weir_result_free(list[i].r);
    weir_result_free(list[i].alone);
  }
}

static bool open_models(bench *b, const char *path, int threads, const weir_batch_options *o, weir_batch **batch) {
  const weir_context_options co = {.threads = threads};
  const weir_session_options so = {.context_tok = CONTEXT};
  *b = (bench){0};
  if (weir_context_open(&co, &b->ctx) == WEIR_OK && weir_model_open(b->ctx, path, NULL, &b->m) == WEIR_OK &&
      weir_session_open(b->m, &so, &b->s) == WEIR_OK && weir_batch_open(b->m, o, batch) == WEIR_OK)
    return true;
  printf("  cannot open %s: %s\n", path, weir_last_error());
  close_bench(b);
  return false;
}

/* All of it, or the beginning of it where it was cancelled. */
static void check_answer(bench *b, asked *a, size_t i) {
  if (!a->alone) REQUIRE(weir_generate_tokens(b->s, a->prompt, a->n, &a->o, NULL, NULL, &a->alone) == WEIR_OK);
  CHECK_MSG(a->done == 1, "request %zu ended %d times", i, a->done);
  CHECK_MSG(a->status == WEIR_OK && a->r, "request %zu gave %d", i, a->status);
  if (!a->r) return;
  const bool whole = a->r->finish != WEIR_FINISH_STOPPED;
  const size_t n = a->r->n_tokens;
  CHECK_MSG(n <= a->alone->n_tokens && (!whole || n == a->alone->n_tokens), "request %zu: %zu tokens, alone %zu", i, n,
            a->alone->n_tokens);
  CHECK_MSG(n == 0 || memcmp(a->r->tokens, a->alone->tokens, WR_MIN(n, a->alone->n_tokens) * sizeof(weir_token)) == 0,
            "request %zu: other tokens than alone", i);
  if (whole) {
    CHECK_STR(a->r->text, a->alone->text);
    CHECK_EQ_INT(a->r->finish, a->alone->finish);
    CHECK_EQ_INT(a->r->seed, a->alone->seed);
  }
  CHECK_MSG(a->text_bytes == a->r->text_bytes && memcmp(a->text, a->r->text, WR_MIN(a->text_bytes, sizeof a->text)) == 0,
            "request %zu: the pieces are not the text", i);
  CHECK_EQ_INT(a->r->n_prompt_tokens, a->n);
  CHECK(a->r->n_reused < a->n && a->r->seconds.queue >= 0 && a->r->seconds.prefill >= 0 && a->r->seconds.decode >= 0);
}

static void come_and_go(const weir_batch_options *o, size_t n, uint32_t seed, bool cancel, weir_batch_report *report) {
  *report = (weir_batch_report){0};
  bench b;
  weir_batch *batch;
  asked *list = calloc(n, sizeof *list);
  REQUIRE(list && open_models(&b, RANDOM, 2, o, &batch));
  make_requests(list, n, seed);
  size_t added = 0, left = 0;
  for (int steps = 0; added < n || left; steps++) {
    if (steps > 20000) {
      CHECK_MSG(false, "seed %u: it does not end", seed);
      break;
    }
    for (size_t k = next_random(&seed) % 4; k-- > 0 && added < n; added++) {
      list[added].cancel_at = cancel && next_random(&seed) % 3 == 0 ? 1 + (int)(next_random(&seed) % 8) : 0;
      REQUIRE(add(batch, &list[added]));
    }
    if (cancel && added && next_random(&seed) % 8 == 0) weir_batch_cancel(batch, 1 + next_random(&seed) % added);
    REQUIRE(weir_batch_step(batch, &left) == WEIR_OK);
  }
  for (size_t i = 0; i < n; i++) check_answer(&b, &list[i], i);
  CHECK(weir_batch_get_report(batch, report) == WEIR_OK);
  CHECK_EQ_INT(report->done, n);
  CHECK_EQ_INT(report->failed + report->running + report->waiting, 0);
  size_t tokens = 0, prompts = 0;
  for (size_t i = 0; i < n; i++) {
    tokens += list[i].r ? list[i].r->n_tokens : 0;
    prompts += list[i].n;
  }
  CHECK_EQ_INT(report->tokens, tokens);
  CHECK(cancel || report->prompt_tok + report->reused_tok == prompts);
  free_requests(list, n);
  free(list);
  weir_batch_close(batch);
  close_bench(&b);
}

static void bits_are_those_of_one_alone(void) {
  NEED(RANDOM);
  weir_batch_report r;
  come_and_go(&(weir_batch_options){.slots = 5, .context_tok = CONTEXT, .piece_tok = 7}, 40, 1, false, &r);
  CHECK(r.reused_tok > 0 && r.decode_steps > 0 && r.steps > r.decode_steps && r.tok_s > 0);
  CHECK(r.limit_runs > 0 && r.bytes_per_step > r.weight_bytes_per_step && r.share_of_limit > 0);
  come_and_go(&(weir_batch_options){.slots = 1, .context_tok = CONTEXT, .no_limit = true}, 8, 2, false, &r);
  CHECK(r.limit_runs == 0 && r.preempted == 0);
  come_and_go(&(weir_batch_options){.slots = 64, .context_tok = CONTEXT, .no_limit = true}, 150, 3, false, &r);
  come_and_go(&(weir_batch_options){.slots = 9, .context_tok = CONTEXT, .kv = WEIR_KV_F16, .piece_tok = 1}, 30, 4, true, &r);
}

/* A pool that holds one sequence of full length, and little more. */
static void small_pools_make_wait(void) {
  NEED(RANDOM);
  uint64_t preempted = 0;
  for (uint32_t seed = 10; seed < 14; seed++) {
    const weir_batch_options o = {
        .slots = 8, .context_tok = CONTEXT, .pool_tok = CONTEXT + 32 * (seed % 3), .piece_tok = 30, .no_limit = true};
    weir_batch_report r;
    come_and_go(&o, 40, seed, seed % 2, &r);
    preempted += r.preempted;
    CHECK(r.preempted == 0 || r.again_tok > 0 || r.reused_tok > 0);
  }
  CHECK(preempted > 0);
}

/* Long answers of sequences that fit together only at first. */
static void all_of_them_grow(void) {
  NEED(RANDOM);
  bench b;
  weir_batch *batch;
  static asked list[6];
  const weir_batch_options o = {.slots = 6, .context_tok = CONTEXT, .pool_tok = 320, .no_limit = true};
  REQUIRE(open_models(&b, RANDOM, 2, &o, &batch));
  for (size_t i = 0; i < 6; i++) {
    list[i] = (asked){.n = 20, .o = {.max_tok = -1, .ignore_eos = true, .no_limit = true}};
    make_prompt(list[i].prompt, 20);
    list[i].prompt[3] = (weir_token)(10 + i);
    if (i % 2) list[i].o.sampling = (weir_sampling){.temperature = 1, .seed = i, .repeat_penalty = 1.1f};
    REQUIRE(add(batch, &list[i]));
  }
  const weir_status status = weir_batch_run(batch);
  CHECK_MSG(status == WEIR_OK, "%s", weir_last_error());
  for (size_t i = 0; i < 6; i++) {
    check_answer(&b, &list[i], i);
    CHECK(list[i].r && list[i].r->n_tokens == CONTEXT - 20);
  }
  weir_batch_report r;
  CHECK(weir_batch_get_report(batch, &r) == WEIR_OK);
  CHECK(r.preempted > 0 && r.again_tok > 0);
  CHECK_EQ_INT(r.prompt_tok, 6 * 20);
  free_requests(list, 6);
  weir_batch_close(batch);
  close_bench(&b);
}

/* The same prompt eight times at once, and again when all have ended. */
static void prefixes_are_evaluated_once(void) {
  NEED(RANDOM);
  bench b;
  weir_batch *batch;
  static asked list[16];
  const weir_batch_options o = {.slots = 8, .context_tok = CONTEXT, .no_limit = true};
  REQUIRE(open_models(&b, RANDOM, 2, &o, &batch));
  for (size_t i = 0; i < 16; i++) {
    list[i] = (asked){.n = 150, .o = {.max_tok = 40, .ignore_eos = true, .no_limit = true}};
    list[i].o.sampling = (weir_sampling){.temperature = 1, .seed = 1 + i};
    make_prompt(list[i].prompt, 150);
  }
  weir_batch_report r;
  for (size_t i = 0; i < 8; i++) REQUIRE(add(batch, &list[i]));
  REQUIRE(weir_batch_run(batch) == WEIR_OK);
  CHECK(weir_batch_get_report(batch, &r) == WEIR_OK);
  CHECK_EQ_INT(r.prompt_tok, 150 + 7 * (150 - 128)); /* four whole pages of five */
  CHECK_EQ_INT(r.reused_tok, 7 * 128);
  for (size_t i = 8; i < 16; i++) REQUIRE(add(batch, &list[i]));
  REQUIRE(weir_batch_run(batch) == WEIR_OK);
  CHECK(weir_batch_get_report(batch, &r) == WEIR_OK);
  CHECK_EQ_INT(r.reused_tok, 15 * 128);
  for (size_t i = 0; i < 16; i++) check_answer(&b, &list[i], i);
  free_requests(list, 16);
  weir_batch_close(batch);
  close_bench(&b);
}

/* A conversation that goes on finds all of its whole pages, its answers' too. */
static void conversations_go_on(void) {
  NEED(RANDOM);
  bench b;
  weir_batch *batch;
  static asked a;
  const weir_batch_options o = {.slots = 2, .context_tok = CONTEXT, .no_limit = true};
  REQUIRE(open_models(&b, RANDOM, 2, &o, &batch));
  a = (asked){.n = 20, .o = {.max_tok = 50, .ignore_eos = true, .no_limit = true}};
  make_prompt(a.prompt, 20);
  for (int turn = 0; turn < 4; turn++) {
    REQUIRE(add(batch, &a) && weir_batch_run(batch) == WEIR_OK);
    check_answer(&b, &a, (size_t)turn);
    CHECK_EQ_INT(a.r->n_reused, turn ? (a.n - 1 - 1) / 32 * 32 : 0); /* without the last answer's last token and the new one */
    memcpy(a.prompt + a.n, a.r->tokens, a.r->n_tokens * sizeof *a.prompt);
    a.n += a.r->n_tokens;
    a.prompt[a.n++] = 7;
    free_requests(&a, 1);
    a.r = a.alone = NULL;
    a.done = a.pieces = 0;
    a.text_bytes = 0;
  }
  weir_batch_close(batch);
  close_bench(&b);
}

static void cancelled_while_the_prompt_is_read(void) {
  NEED(RANDOM);
  bench b;
  weir_batch *batch;
  static asked list[4];
  size_t left;
  const weir_batch_options o = {.slots = 2, .context_tok = CONTEXT, .piece_tok = 10, .no_limit = true};
  REQUIRE(open_models(&b, RANDOM, 2, &o, &batch));
  make_requests(list, 4, 5);
  for (size_t i = 0; i < 4; i++) {
    list[i].n = i ? 150 : 3;
    list[i].o = (weir_generate_options){.max_tok = 30, .ignore_eos = true, .no_limit = true};
    REQUIRE(add(batch, &list[i]) && weir_batch_step(batch, &left) == WEIR_OK);
  }
  weir_batch_cancel(batch, list[1].id); /* is read */
  weir_batch_cancel(batch, list[3].id); /* waits */
  weir_batch_cancel(batch, 99);
  REQUIRE(weir_batch_step(batch, &left) == WEIR_OK);
  CHECK_EQ_INT(left, 2);
  for (size_t i = 1; i < 4; i += 2) {
    CHECK(list[i].done == 1 && list[i].r && list[i].r->finish == WEIR_FINISH_STOPPED && list[i].r->n_tokens == 0);
    CHECK_STR(list[i].r ? list[i].r->text : NULL, "");
  }
  REQUIRE(weir_batch_run(batch) == WEIR_OK);
  check_answer(&b, &list[0], 0);
  check_answer(&b, &list[2], 2);
  for (size_t i = 0; i < 2; i++) REQUIRE(add(batch, &list[i])); /* what is there at the close is dropped */
  CHECK(weir_batch_step(batch, NULL) == WEIR_OK);
  weir_batch_close(batch);
  CHECK_EQ_INT(list[0].done, 1);
  free_requests(list, 4);
  close_bench(&b);
}

static void stops_and_goes_on(void) {
  NEED(RANDOM);
  bench b;
  weir_batch *batch;
  static asked list[3];
  const weir_batch_options o = {.context_tok = CONTEXT, .no_limit = true};
  REQUIRE(open_models(&b, RANDOM, 2, &o, &batch));
  make_requests(list, 3, 6);
  for (size_t i = 0; i < 3; i++) REQUIRE(add(batch, &list[i]));
  weir_batch_stop(batch);
  CHECK_EQ_INT(weir_batch_run(batch), WEIR_ESTOPPED);
  CHECK_HAS(weir_last_error(), "3 requests");
  CHECK_EQ_INT(weir_batch_run(batch), WEIR_OK); /* once only */
  for (size_t i = 0; i < 3; i++) check_answer(&b, &list[i], i);
  size_t left = 9;
  CHECK(weir_batch_step(batch, &left) == WEIR_OK && left == 0);
  weir_batch_stop(batch);
  weir_batch_wait(batch);
  free_requests(list, 3);
  weir_batch_close(batch);
  close_bench(&b);
}

/* What a server does: requests come from several threads, one steps. */
typedef struct server {
  weir_batch *b;
  atomic_bool quit;
  asked *list;
  size_t n;
} server;

static void *serve(void *user) {
  server *s = user;
  while (!atomic_load(&s->quit)) {
    weir_batch_wait(s->b);
    CHECK(weir_batch_step(s->b, NULL) == WEIR_OK);
  }
  return NULL;
}

static void *ask(void *user) {
  server *s = user;
  weir_batch_report r;
  for (size_t i = 0; i < s->n; i++) {
    add(s->b, &s->list[i]);
    if (i % 3 == 0) weir_batch_cancel(s->b, s->list[i].id);
    CHECK(weir_batch_get_report(s->b, &r) == WEIR_OK);
  }
  return NULL;
}

static void requests_come_from_threads(void) {
  NEED(RANDOM);
  enum { THREADS = 3, EACH = 8 };
  bench b;
  server s[THREADS] = {0};
  pthread_t asking[THREADS], stepping;
  static asked list[THREADS * EACH];
  const weir_batch_options o = {.slots = 4, .context_tok = CONTEXT};
  REQUIRE(open_models(&b, RANDOM, 2, &o, &s[0].b));
  make_requests(list, THREADS * EACH, 7);
  for (size_t t = 0; t < THREADS; t++) {
    s[t].b = s[0].b;
    s[t].list = list + t * EACH;
    s[t].n = EACH;
  }
  REQUIRE(pthread_create(&stepping, NULL, serve, &s[0]) == 0);
  for (size_t t = 0; t < THREADS; t++) REQUIRE(pthread_create(&asking[t], NULL, ask, &s[t]) == 0);
  for (size_t t = 0; t < THREADS; t++) pthread_join(asking[t], NULL);
  weir_batch_report r = {0};
  while (r.done < THREADS * EACH && test_bad == 0) CHECK(weir_batch_get_report(s[0].b, &r) == WEIR_OK);
  atomic_store(&s[0].quit, true);
  weir_batch_stop(s[0].b);
  pthread_join(stepping, NULL);
  for (size_t i = 0; i < THREADS * EACH; i++) check_answer(&b, &list[i], i);
  free_requests(list, THREADS * EACH);
  weir_batch_close(s[0].b);
  close_bench(&b);
}

/* A callback that asks for more, and one that wants no more. */
typedef struct chain {
  weir_batch *b;
  int left, stopped;
} chain;

static int no_more(void *user, const char *piece, size_t n) {
  (void)user, (void)piece, (void)n;
  return 1;
}

static void go_on(void *user, uint64_t id, weir_status status, weir_result *r) {
  chain *c = user;
  (void)id;
  CHECK(status == WEIR_OK);
  c->stopped += r->finish == WEIR_FINISH_STOPPED;
  weir_result_free(r);
  if (c->left-- <= 0) return;
  const weir_request q = {.prompt = "run", .prompt_bytes = 3, .piece = no_more, .done = go_on, .user = c};
  CHECK(weir_batch_add(c->b, &q, NULL) == WEIR_OK);
}

static void callbacks_may_ask_and_stop(void) {
  NEED(SCRIPTED);
  bench b;
  chain c = {.left = 5};
  const weir_batch_options o = {.slots = 2, .context_tok = CONTEXT, .no_limit = true};
  REQUIRE(open_models(&b, SCRIPTED, 1, &o, &c.b));
  weir_request q = {.prompt = "run", .prompt_bytes = 3, .piece = no_more, .done = go_on, .user = &c};
  REQUIRE(weir_batch_add(c.b, &q, NULL) == WEIR_OK && weir_batch_run(c.b) == WEIR_OK);
  CHECK_EQ_INT(c.stopped, 6);
  q = (weir_request){.prompt = "run", .prompt_bytes = 3}; /* nobody listens */
  REQUIRE(weir_batch_add(c.b, &q, NULL) == WEIR_OK && weir_batch_run(c.b) == WEIR_OK);
  weir_batch_close(c.b);
  close_bench(&b);
}

static void profile_adds_up(void) {
  NEED(RANDOM);
  bench b;
  weir_batch *batch;
  static asked list[4];
  const weir_batch_options o = {.slots = 4, .context_tok = CONTEXT, .profile = true};
  REQUIRE(open_models(&b, RANDOM, 2, &o, &batch));
  make_requests(list, 4, 8);
  for (size_t i = 0; i < 4; i++) {
    list[i].o.max_tok = 40;
    REQUIRE(add(batch, &list[i]));
  }
  REQUIRE(weir_batch_run(batch) == WEIR_OK);
  weir_batch_report r;
  REQUIRE(weir_batch_get_report(batch, &r) == WEIR_OK);
  REQUIRE(r.profile);
  double sum = 0;
  for (size_t i = 0; i < r.profile->n_rows; i++) sum += r.profile->rows[i].ms;
  CHECK_NEAR(sum, r.profile->wall_ms, 1e-6 * r.profile->wall_ms + 1e-9);
  CHECK(r.profile->wall_ms > 0 && r.profile->wall_ms <= r.decode_seconds * 1e3); /* the last one alone has another plan */
  for (size_t i = 0; i < 4; i++) check_answer(&b, &list[i], i);
  free_requests(list, 4);
  weir_batch_close(batch);
  close_bench(&b);
}

static void refuses_what_cannot_run(void) {
  NEED(RANDOM);
  bench b;
  weir_batch *batch, *none = NULL;
  const weir_batch_options o = {.context_tok = 64, .no_limit = true};
  REQUIRE(open_models(&b, RANDOM, 1, &o, &batch));
  static const struct {
    weir_batch_options o;
    const char *word;
  } bad[] = {{{.slots = -1}, "slots"},
             {{.slots = 65}, "64"},
             {{.piece_tok = -1}, "piece_tok"},
             {{.slots = 56, .piece_tok = 201}, "200"},
             {{.context_tok = -5}, "context_tok"},
             {{.pool_tok = -1}, "pool_tok"},
             {{.kv = (weir_kv_type)99}, "kv"}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    CHECK_EQ_INT(weir_batch_open(b.m, &bad[i].o, &none), WEIR_EUSAGE);
    CHECK_HAS(weir_last_error(), bad[i].word);
  }
  CHECK(none == NULL);
  weir_token t[64];
  make_prompt(t, 64);
  uint64_t id = 77;
  weir_request q = {.tokens = t, .n_tokens = 64};
  CHECK_EQ_INT(weir_batch_add(batch, &q, &id), WEIR_EUSAGE);
  CHECK_HAS(weir_last_error(), "no room for an answer");
  const weir_generate_options wrong[] = {{.max_tok = -2}, {.n_stop = 17}, {.sampling = {.top_p = 2}}};
  for (size_t i = 0; i < 3; i++) {
    q = (weir_request){.tokens = t, .n_tokens = 5, .options = &wrong[i]};
    CHECK_EQ_INT(weir_batch_add(batch, &q, &id), WEIR_EUSAGE);
  }
  t[2] = 1000000;
  q = (weir_request){.tokens = t, .n_tokens = 5};
  CHECK_EQ_INT(weir_batch_add(batch, &q, &id), WEIR_EUSAGE);
  CHECK_EQ_INT(id, 77);
  q = (weir_request){.prompt = NULL}; /* BOS alone */
  CHECK_EQ_INT(weir_batch_add(batch, &q, &id), WEIR_OK);
  CHECK_EQ_INT(id, 1);
  CHECK_EQ_INT(weir_batch_run(batch), WEIR_OK);
  weir_batch_close(batch);
  weir_batch_close(NULL);
  close_bench(&b);
}

TEST_MAIN("batch", TEST(bits_are_those_of_one_alone), TEST(small_pools_make_wait), TEST(all_of_them_grow),
          TEST(prefixes_are_evaluated_once), TEST(conversations_go_on), TEST(cancelled_while_the_prompt_is_read),
          TEST(stops_and_goes_on), TEST(requests_come_from_threads), TEST(callbacks_may_ask_and_stop), TEST(profile_adds_up),
          TEST(refuses_what_cannot_run))
