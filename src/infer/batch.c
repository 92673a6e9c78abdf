/* The batch: requests that run together. What is taken at each step is schedule.c's business; here they come, are fed, drawn for and
 * answered, and leave.
 *
 * Who touches what: the queue, running[] and the sums are the lock's; everything else of a request belongs to the stepping thread once it
 * is in the queue. Callbacks are called without the lock. */
#include "infer/batch_i.h"

enum { SLOTS = 16, PIECE = 64, LIMIT_RUNS = 5, LIMIT_EVERY = 4 };

/* ------------------------------------------------------------------------------------------------------ open and close */

static void free_request(weir_batch *b, wr_request *q) {
  if (!q) return;
  wr_engine_drop(b->engine, &q->seq);
  wr_reply_free(&q->reply);
  wr_sampler_free(&q->sampler);
  wr_arena_free(&q->copies);
  wr_free(q->tokens);
  wr_free(q);
}

/* What the caches of all slots take, as far as half of the memory left holds that. */
static int64_t default_pool(const weir_batch *b, int64_t context_tok, wr_dtype kv) {
  const uint64_t fits = wr_context_left(b->model->ctx) / 2 / wr_kv_token_bytes(&b->model->m->h, kv);
  const uint64_t wanted = (uint64_t)context_tok * (uint64_t)b->slots;
  return WR_MAX((int64_t)WR_MIN(WR_MIN(wanted, fits), (uint64_t)INT32_MAX / 2), context_tok);
}

static weir_status open_batch(weir_batch *b, const weir_session_options *o, bool no_limit) {
  const wr_dtype kv = wr_kv_dtype(o->kv);
  const int64_t context_tok = o->context_tok ? o->context_tok : wr_context_default(b->model, kv);
  WR_TRY(wr_engine_open(b->model, context_tok, o->pool_tok ? o->pool_tok : default_pool(b, context_tok, kv), kv, &b->engine));
  b->ended = (wr_prefixes){.engine = b->engine, .most = (size_t)b->slots};
  const size_t logits = (size_t)b->slots * (size_t)b->model->m->h.vocab * sizeof *b->logits;
  b->logits = wr_malloc(logits);
  if (!b->logits) return wr_fail_nomem(logits, "logits");
  WR_TRY(wr_engine_prepare(b->engine, b->slots, b->slots, b->profiled));
  WR_TRY(wr_engine_prepare(b->engine, WR_ENGINE_ROWS, b->slots, false));
  if (!no_limit) WR_TRY(wr_limit_init(&b->limit, b->model));
  if (!b->profiled) return WEIR_OK;
  const wr_plan *plan;
  WR_TRY(wr_engine_plan(b->engine, b->slots, b->slots, true, &plan));
  return wr_profile_init(&b->profile, plan);
}

weir_status weir_batch_open(weir_model *m, const weir_batch_options *options, weir_batch **out) {
  const weir_batch_options o = options ? *options : (weir_batch_options){0};
  const int slots = o.slots ? o.slots : SLOTS;
  if (slots < 1 || slots > WR_ENGINE_SEQS)
    return wr_fail(WEIR_EUSAGE, "slots (--slots) is %d, but it must be from 1 to %d", o.slots, WR_ENGINE_SEQS);
  if (o.piece_tok < 0 || o.piece_tok > WR_ENGINE_ROWS - slots)
    return wr_fail(WEIR_EUSAGE, "piece_tok is %d, but with %d slots it must be from 1 to %d", o.piece_tok, slots,
                   WR_ENGINE_ROWS - slots);
  const weir_session_options so = {.context_tok = o.context_tok, .pool_tok = o.pool_tok, .kv = o.kv};
  WR_TRY(wr_session_check(m, &so));
  weir_batch *b = wr_calloc(1, sizeof *b);
  if (!b) return wr_fail_nomem(sizeof *b, "a batch");
  b->model = m;
  b->slots = slots;
  b->piece = o.piece_tok ? o.piece_tok : PIECE;
  b->profiled = o.profile;
  b->next_limit = o.no_limit ? UINT64_MAX : 1;
  pthread_mutex_init(&b->lock, NULL);
  sem_init(&b->wake, 0, 0);
  const weir_status status = open_batch(b, &so, o.no_limit);
  if (status != WEIR_OK) {
    weir_batch_close(b);
    return status;
  }
  *out = b;
  return WEIR_OK;
}

void weir_batch_close(weir_batch *b) {
  if (!b) return;
  for (wr_request *q; (q = b->first);) {
    b->first = q->next;
    free_request(b, q);
  }
  while (b->n_running) free_request(b, b->running[--b->n_running]);
  wr_prefixes_free(&b->ended);
  wr_engine_unref(b->engine);
  wr_limit_free(&b->limit);
  wr_profile_free(&b->profile);
  wr_profile_drop(b->shown);
  wr_free(b->logits);
  sem_destroy(&b->wake);
  pthread_mutex_destroy(&b->lock);
  wr_free(b);
}

/* ------------------------------------------------------------------------------------------------- coming and going */

static weir_status no_room(void) { return wr_fail_nomem(sizeof(wr_request), "a request"); }

/* Options that live as long as the request. */
static weir_status copy_options(wr_request *q, const weir_generate_options *o) {
  q->o = *o;
  q->o.system = NULL; /* is in the prompt */
  if (o->n_stop) {
    weir_text *stop = wr_arena_alloc(&q->copies, o->n_stop * sizeof *stop);
    q->o.stop = stop;
    for (size_t i = 0; i < o->n_stop && stop; i++) {
      stop[i] = (weir_text){wr_arena_strndup(&q->copies, o->stop[i].ptr, o->stop[i].bytes), o->stop[i].bytes};
      if (!stop[i].ptr) return no_room();
    }
    if (!stop) return no_room();
  }
  if (o->n_stop_tokens) {
    weir_token *ids = wr_arena_alloc(&q->copies, o->n_stop_tokens * sizeof *ids);
    if (!ids) return no_room();
    memcpy(ids, o->stop_tokens, o->n_stop_tokens * sizeof *ids);
    q->o.stop_tokens = ids;
  }
  return WEIR_OK;
}

static weir_status fill_request(weir_batch *b, wr_request *q, const weir_request *request) {
  const weir_generate_options none = {0}, *o = request->options ? request->options : &none;
  WR_TRY(wr_reply_begin(&q->reply, b->model, request, o, wr_engine_context(b->engine)));
  WR_TRY(copy_options(q, o));
  q->reply.o = &q->o;
  q->reply.answer.stop = q->o.stop;
  weir_result *r = q->reply.r;
  WR_TRY(wr_sampler_init(&q->sampler, &q->o.sampling, &r->seed));
  if (!wr_grow((void **)&q->tokens, &q->cap_tokens, r->n_prompt_tokens, sizeof *q->tokens)) return no_room();
  memcpy(q->tokens, r->prompt_tokens, r->n_prompt_tokens * sizeof *q->tokens);
  q->n_tokens = r->n_prompt_tokens;
  q->done = request->done;
  q->added_ns = wr_now_ns();
  return WEIR_OK;
}

weir_status weir_batch_add(weir_batch *b, const weir_request *request, uint64_t *id) {
  wr_request *q = wr_calloc(1, sizeof *q);
  if (!q) return no_room();
  const weir_status status = fill_request(b, q, request);
  if (status != WEIR_OK) {
    free_request(b, q);
    return status;
  }
  pthread_mutex_lock(&b->lock);
  q->id = ++b->last_id;
  if (id) *id = q->id;
  if (b->last)
    b->last->next = q;
  else
    b->first = q;
  b->last = q;
  b->waiting++;
  pthread_mutex_unlock(&b->lock);
  sem_post(&b->wake);
  return WEIR_OK;
}

void weir_batch_cancel(weir_batch *b, uint64_t id) {
  pthread_mutex_lock(&b->lock);
  b->cancelling = true;
  for (wr_request *q = b->first; q; q = q->next) q->cancelled |= !id || q->id == id;
  for (int i = 0; i < b->n_running; i++) b->running[i]->cancelled |= !id || b->running[i]->id == id;
  pthread_mutex_unlock(&b->lock);
}

/* Out of those that run, or of the queue, which may be long. */
static void take_out(weir_batch *b, const wr_request *q) {
  for (int i = 0; i < b->n_running; i++) {
    if (b->running[i] != q) continue;
    b->n_running--;
    memmove(&b->running[i], &b->running[i + 1], (size_t)(b->n_running - i) * sizeof *b->running);
    return;
  }
  wr_request **at = &b->first, *before = NULL;
  for (; *at != q; at = &(*at)->next) before = *at;
  *at = q->next;
  if (b->last == q) b->last = before;
  b->waiting--;
}

static double seconds_between(uint64_t begin, uint64_t end) { return (double)(end - begin) * 1e-9; }

static void fill_times(const wr_request *q, weir_result *r) {
  const uint64_t now = wr_now_ns(), begun = q->begun_ns ? q->begun_ns : now, answer = q->answer_ns ? q->answer_ns : now;
  r->seconds.queue = seconds_between(q->added_ns, begun);
  r->seconds.prefill = seconds_between(begun, answer);
  r->seconds.decode = seconds_between(answer, now);
  const size_t evaluated = r->n_prompt_tokens - r->n_reused;
  if (q->answer_ns && r->seconds.prefill > 0) r->prefill_tok_s = (double)evaluated / r->seconds.prefill;
  if (r->n_tokens > 1 && r->seconds.decode > 0) r->decode_tok_s = (double)(r->n_tokens - 1) / r->seconds.decode;
}

static void finish(weir_batch *b, wr_request *q, weir_status status) {
  weir_result *r = NULL;
  if (status == WEIR_OK) status = wr_reply_end(&q->reply, &r);
  if (r) fill_times(q, r);
  wr_prefix_keep(&b->ended, q->tokens, &q->seq);
  pthread_mutex_lock(&b->lock);
  take_out(b, q);
  *(status == WEIR_OK ? &b->sums.done : &b->sums.failed) += 1;
  if (r) b->sums.reused_tok += r->n_reused;
  pthread_mutex_unlock(&b->lock);
  if (q->done)
    q->done(q->reply.user, q->id, status, r);
  else
    weir_result_free(r);
  free_request(b, q);
}

static wr_request *find_cancelled(weir_batch *b) {
  pthread_mutex_lock(&b->lock);
  wr_request *q = b->cancelling ? b->first : NULL;
  while (q && !q->cancelled) q = q->next;
  for (int i = 0; i < b->n_running && b->cancelling && !q; i++)
    if (b->running[i]->cancelled) q = b->running[i];
  b->cancelling = q;
  pthread_mutex_unlock(&b->lock);
  return q;
}

/* ------------------------------------------------------------------------------------------------------------- a step */

typedef struct drawn {
  weir_batch *b;
  int32_t token[WR_ENGINE_SEQS];
  weir_status status[WR_ENGINE_SEQS];
} drawn;

static void draw(drawn *d, int i) {
  const wr_work *w = &d->b->work[i];
  wr_request *q = d->b->turn[i];
  if (w->want == WR_WANT_NONE) return;
  const wr_model *m = d->b->model->m;
  const int vocab = WR_MIN((int)m->h.vocab, (int)wr_tokenizer_size(d->b->model->tokenizer->t)); /* the rest is padding */
  d->status[i] = wr_sampler_draw(&q->sampler, w->logits, vocab, q->tokens, q->n_tokens, &d->token[i]);
}

static void draw_part(void *arg, int tid, int n_threads) {
  drawn *d = arg;
  for (int i = tid; i < d->b->n_work; i += n_threads) draw(d, i);
}

static weir_status take_token(weir_batch *b, wr_request *q, int32_t token) {
  if (!wr_grow((void **)&q->tokens, &q->cap_tokens, q->n_tokens + 1, sizeof *q->tokens))
    return wr_fail_nomem((q->n_tokens + 1) * sizeof *q->tokens, "the tokens of a sequence");
  q->tokens[q->n_tokens++] = token;
  if (!q->answer_ns) q->answer_ns = wr_now_ns();
  pthread_mutex_lock(&b->lock);
  b->sums.tokens++;
  pthread_mutex_unlock(&b->lock);
  return wr_reply_put(&q->reply, token);
}

/* What was fed, by kind; before the tokens are drawn. */
static void count_rows(weir_batch *b, bool profiled) {
  pthread_mutex_lock(&b->lock);
  if (profiled) wr_profile_add(&b->profile);
  for (int i = 0; i < b->n_work; i++) {
    wr_request *q = b->turn[i];
    const int64_t end = q->seq.length, begin = end - b->work[i].n, prompt = (int64_t)q->reply.r->n_prompt_tokens;
    const int64_t fresh = WR_MIN(end, WR_MAX(begin, q->was_fed)); /* before it: once more */
    b->sums.again_tok += (uint64_t)(fresh - begin);
    b->sums.prompt_tok += (uint64_t)WR_MAX(WR_MIN(end, prompt) - fresh, (int64_t)0);
    if (b->next_only) b->decode_kv_tok += end;
  }
  pthread_mutex_unlock(&b->lock);
}

static weir_status feed(weir_batch *b, bool profiled) {
  const size_t vocab = (size_t)b->model->m->h.vocab;
  float *logits = b->logits;
  for (int i = 0; i < b->n_work; i++) {
    b->work[i].logits = logits;
    if (b->work[i].want != WR_WANT_NONE) logits += vocab;
  }
  WR_TRY(wr_engine_run(b->engine, b->work, b->n_work, profiled));
  count_rows(b, profiled);
  return WEIR_OK;
}

static void answer(weir_batch *b, bool profiled) {
  drawn d = {.b = b};
  const uint64_t begin = wr_now_ns();
  if (b->n_work > 1)
    wr_team_run(b->model->ctx->device->team, draw_part, &d);
  else
    draw(&d, 0);
  const uint64_t end = wr_now_ns();
  for (int i = 0; i < b->n_work; i++) {
    wr_request *q = b->turn[i];
    if (b->work[i].want == WR_WANT_NONE) continue;
    if (d.status[i] != WEIR_OK) draw(&d, i); /* on this thread, for its sentence */
    weir_status status = d.status[i];
    if (status == WEIR_OK) status = take_token(b, q, d.token[i]);
    if (status != WEIR_OK || q->reply.r->finish) finish(b, q, status);
  }
  if (!profiled) return;
  pthread_mutex_lock(&b->lock);
  b->profile.sample_ns += (double)(end - begin);
  b->profile.text_ns += (double)(wr_now_ns() - end);
  pthread_mutex_unlock(&b->lock);
}

/* The plan that the profile is of serves this step. */
static bool is_profiled(const weir_batch *b) {
  return b->profiled && b->next_only && wr_engine_bucket(b->rows, b->rows) == wr_engine_bucket(b->slots, b->slots);
}

static void count_step(weir_batch *b, double ns, bool profiled) {
  pthread_mutex_lock(&b->lock);
  b->sums.steps++;
  b->sums.seconds += ns * 1e-9;
  if (b->next_only) {
    b->sums.decode_steps++;
    b->sums.decode_tok += (uint64_t)b->n_work;
    b->sums.decode_seconds += ns * 1e-9;
  }
  if (profiled) b->profile_ns += ns;
  pthread_mutex_unlock(&b->lock);
}

/* Reads the limit when it is time. That takes tens of milliseconds, in which nobody should wait for the lock. */
static void read_limit(weir_batch *b) {
  if (!b->next_only || b->sums.decode_steps < b->next_limit || b->limit.runs == LIMIT_RUNS) return;
  wr_limit l = b->limit;
  wr_limit_run(&l);
  b->next_limit *= LIMIT_EVERY;
  pthread_mutex_lock(&b->lock);
  b->limit = l;
  pthread_mutex_unlock(&b->lock);
}

static weir_status step(weir_batch *b) {
  const uint64_t begin = wr_now_ns();
  for (wr_request *q; (q = find_cancelled(b));) {
    q->reply.r->finish = WEIR_FINISH_STOPPED;
    finish(b, q, WEIR_OK);
  }
  WR_TRY(wr_batch_schedule(b));
  if (!b->n_work) return WEIR_OK;
  const bool profiled = is_profiled(b);
  WR_TRY(feed(b, profiled));
  answer(b, profiled);
  count_step(b, (double)(wr_now_ns() - begin), profiled);
  read_limit(b);
  return WEIR_OK;
}

static size_t count_left(weir_batch *b) {
  pthread_mutex_lock(&b->lock);
  const size_t left = b->waiting + (size_t)b->n_running;
  pthread_mutex_unlock(&b->lock);
  return left;
}

weir_status weir_batch_step(weir_batch *b, size_t *left) {
  WR_TRY(step(b));
  if (left) *left = count_left(b);
  return WEIR_OK;
}

weir_status weir_batch_run(weir_batch *b) {
  for (size_t left; (left = count_left(b));) {
    if (atomic_exchange(&b->stop, false)) return wr_fail(WEIR_ESTOPPED, "stopped with %zu requests left", left);
    WR_TRY(step(b));
  }
  return WEIR_OK;
}

void weir_batch_stop(weir_batch *b) {
  atomic_store(&b->stop, true);
  sem_post(&b->wake);
}

void weir_batch_wait(weir_batch *b) {
  while (!count_left(b) && !atomic_exchange(&b->stop, false)) sem_wait(&b->wake);
}

/* ------------------------------------------------------------------------------------------------------------ report */

static weir_status make_report(weir_batch *b, weir_batch_report *r) {
  const wr_limit *l = &b->limit;
  *r = b->sums;
  r->running = (size_t)b->n_running;
  r->waiting = b->waiting;
  if (r->seconds > 0) r->tok_s = (double)r->tokens / r->seconds;
  r->limit_mode = "";
  if (!r->decode_steps) return WEIR_OK;
  r->decode_tok_s = (double)r->decode_tok / r->decode_seconds;
  /* KV bytes are linear in the positions read, whoever's they are. */
  const wr_cost c = wr_engine_cost(b->engine, b->decode_kv_tok / (int64_t)r->decode_steps - 1);
  r->weight_bytes_per_step = c.weight_bytes;
  r->kv_bytes_per_step = c.kv_bytes;
  r->bytes_per_step = c.weight_bytes + c.kv_bytes;
  r->limit_gb_s = l->best * 1e-9;
  r->limit_gb_s_worst = l->worst * 1e-9;
  r->limit_runs = l->runs;
  r->limit_bytes = l->bytes;
  r->limit_mode = wr_limit_mode(l);
  if (l->best > 0 && r->bytes_per_step > 0) {
    r->limit_tok_s = l->best / r->bytes_per_step * (double)r->decode_tok / (double)r->decode_steps;
    r->share_of_limit = r->decode_tok_s / r->limit_tok_s;
  }
  if (!b->profile.tokens) return WEIR_OK;
  wr_profile_drop(b->shown);
  b->shown = NULL;
  WR_TRY(wr_profile_make(&b->profile, b->profile_ns, r->limit_gb_s, &b->shown));
  r->profile = b->shown;
  return WEIR_OK;
}

weir_status weir_batch_get_report(weir_batch *b, weir_batch_report *out) {
  weir_batch_report r;
  pthread_mutex_lock(&b->lock);
  const weir_status status = make_report(b, &r);
  pthread_mutex_unlock(&b->lock);
  if (status == WEIR_OK) *out = r;
  return status;
}
