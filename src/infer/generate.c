/* Generation: prompt, then one token after the other until something ends it; and what the run measured.
 *
 * Times: `decode` runs from the prompt's logits to the end, everything in it (sampling, text, callbacks), less the reads that
 * measure the limit. Those stand between tokens, spread over the run; what is left of them when it ends follows at once. */
#include "infer/infer_i.h"

enum { MAX_STOP = 16, DEFAULT_TOK = 256, LIMIT_RUNS = 5 };

typedef struct run {
  weir_session *s;
  const weir_generate_options *o;
  weir_piece_fn fn;
  void *user;
  weir_result *r;
  wr_answer answer;
  size_t cap_tokens;
  size_t max_tok;
  wr_limit limit;
  wr_profile_sums sums;
} run;

const char *weir_finish_name(weir_finish f) {
  switch (f) {
  case WEIR_FINISH_STOP: return "stop";
  case WEIR_FINISH_LENGTH: return "length";
  case WEIR_FINISH_STOPPED: return "stopped";
  }
  return "unknown";
}

void weir_result_free(weir_result *r) {
  if (!r) return;
  wr_free(r->text);
  wr_free(r->tokens);
  wr_free(r->prompt_tokens);
  wr_profile_drop(r->profile);
  wr_free(r);
}

static weir_status check_options(const weir_session *s, const weir_generate_options *o) {
  WR_TRY(weir_sampling_check(&o->sampling));
  if (o->max_tok < -1)
    return wr_fail(WEIR_EUSAGE, "max_tok is %lld, but it must be at least 0, or -1 for 'until the context is full'",
                   (long long)o->max_tok);
  if (o->n_stop > MAX_STOP) return wr_fail(WEIR_EUSAGE, "%zu stop texts are more than %d", o->n_stop, MAX_STOP);
  for (size_t i = 0; i < o->n_stop; i++) {
    if (!o->stop[i].bytes) return wr_fail(WEIR_EUSAGE, "stop text %zu is empty", i);
    if (wr_utf8_valid(o->stop[i].ptr, o->stop[i].bytes) != o->stop[i].bytes)
      return wr_fail(WEIR_EUSAGE, "stop text %zu is not UTF-8", i);
  }
  return wr_token_check(s->model, o->stop_tokens, o->n_stop_tokens);
}

static bool ends_answer(const run *g, int32_t token) {
  if (!g->o->ignore_eos && wr_token_is_end(g->s->model->tokenizer->t, token)) return true;
  for (size_t i = 0; i < g->o->n_stop_tokens; i++)
    if (g->o->stop_tokens[i] == token) return true;
  return false;
}

/* Hands out what can be handed out. true: the callback wants no more. */
static bool hand_out(run *g) {
  const char *piece;
  const size_t n = wr_answer_take(&g->answer, &piece);
  return n && g->fn && g->fn(g->user, piece, n);
}

static weir_status keep_token(run *g, int32_t token) {
  if (!wr_grow((void **)&g->r->tokens, &g->cap_tokens, g->r->n_tokens + 1, sizeof *g->r->tokens))
    return wr_fail_nomem((g->r->n_tokens + 1) * sizeof *g->r->tokens, "the answer's tokens");
  g->r->tokens[g->r->n_tokens++] = token;
  return WEIR_OK;
}

/* Draws the next token and takes it into the answer. Sets r->finish when that ends it. */
static weir_status next_token(run *g, int32_t *token) {
  weir_result *r = g->r;
  const uint64_t begin = wr_now_ns();
  WR_TRY(weir_session_sample(g->s, token));
  const uint64_t drawn = wr_now_ns();
  g->sums.sample_ns += (double)(drawn - begin);
  WR_TRY(keep_token(g, *token));
  if (ends_answer(g, *token)) {
    r->finish = WEIR_FINISH_STOP;
  } else {
    WR_TRY(wr_answer_put(&g->answer, *token));
    if (g->answer.stopped) r->finish = WEIR_FINISH_STOP;
    if (hand_out(g)) r->finish = WEIR_FINISH_STOPPED;
  }
  g->sums.text_ns += (double)(wr_now_ns() - drawn);
  if (!r->finish && r->n_tokens >= g->max_tok) r->finish = WEIR_FINISH_LENGTH;
  if (!r->finish && wr_session_stopped(g->s)) r->finish = WEIR_FINISH_STOPPED;
  return WEIR_OK;
}

/* How many reads of the limit should have been made after so many of max tokens. */
static int reads_due(const run *g) { return (int)((double)LIMIT_RUNS * (double)g->r->n_tokens / (double)(g->max_tok + 1)); }

static weir_status decode(run *g) {
  weir_result *r = g->r;
  const uint64_t begin = wr_now_ns();
  const int64_t first = g->s->seq.length;
  int32_t token;
  for (;;) {
    WR_TRY(next_token(g, &token));
    if (r->finish) break;
    WR_TRY(wr_session_step(g->s, token, g->o->profile));
    if (g->o->profile) wr_profile_add(&g->sums);
    if (!g->o->no_limit && g->limit.runs < reads_due(g)) wr_limit_run(&g->limit);
  }
  r->seconds.decode = (double)(wr_now_ns() - begin) * 1e-9 - g->limit.seconds;
  const int64_t steps = g->s->seq.length - first;
  if (!steps) return WEIR_OK;
  r->decode_tok_s = (double)steps / r->seconds.decode;
  while (!g->o->no_limit && g->limit.runs < LIMIT_RUNS) {
    const int runs = g->limit.runs;
    wr_limit_run(&g->limit);
    if (g->limit.runs == runs) break; /* nothing to read */
  }
  /* KV bytes grow linearly with the position, so the mean over the steps is that of the two ends. */
  const wr_cost a = wr_engine_cost(g->s->engine, first), b = wr_engine_cost(g->s->engine, g->s->seq.length - 1);
  r->weight_bytes_per_token = (a.weight_bytes + b.weight_bytes) / 2;
  r->kv_bytes_per_token = (a.kv_bytes + b.kv_bytes) / 2;
  r->bytes_per_token = r->weight_bytes_per_token + r->kv_bytes_per_token;
  return WEIR_OK;
}

static void report_limit(run *g) {
  weir_result *r = g->r;
  const wr_limit *l = &g->limit;
  r->seconds.limit = l->seconds;
  r->limit_gb_s = l->best * 1e-9;
  r->limit_gb_s_worst = l->worst * 1e-9;
  r->limit_runs = l->runs;
  r->limit_bytes = l->bytes;
  r->limit_mode = wr_limit_mode(l);
  if (l->best <= 0 || r->bytes_per_token <= 0) return;
  r->limit_tok_s = l->best / r->bytes_per_token;
  r->share_of_limit = r->decode_tok_s / r->limit_tok_s;
}

static weir_status prefill(run *g) {
  weir_result *r = g->r;
  weir_session *s = g->s;
  uint64_t begin = wr_now_ns();
  const wr_plan *plan;
  WR_TRY(wr_session_prepare(s, r->prompt_tokens, r->n_prompt_tokens));
  WR_TRY(wr_engine_plan(s->engine, g->o->profile, &plan));
  if (g->o->profile) WR_TRY(wr_profile_init(&g->sums, plan));
  if (!g->o->no_limit) WR_TRY(wr_limit_init(&g->limit, s->model));
  const wr_model *m = s->model->m;
  r->seconds.load = m->load_seconds + m->pack_seconds + s->open_seconds + (double)(wr_now_ns() - begin) * 1e-9;
  begin = wr_now_ns();
  const weir_status status = weir_session_sync(s, r->prompt_tokens, r->n_prompt_tokens, &r->n_reused);
  r->seconds.prefill = (double)(wr_now_ns() - begin) * 1e-9;
  if (status == WEIR_ESTOPPED) {
    r->finish = WEIR_FINISH_STOPPED;
    return WEIR_OK;
  }
  WR_TRY(status);
  const size_t done = r->n_prompt_tokens - r->n_reused;
  if (done && r->seconds.prefill > 0) r->prefill_tok_s = (double)done / r->seconds.prefill;
  return WEIR_OK;
}

static weir_status work(run *g) {
  weir_result *r = g->r;
  weir_session *s = g->s;
  const size_t room = (size_t)wr_engine_context(s->engine);
  if (r->n_prompt_tokens >= room)
    return wr_fail(WEIR_EUSAGE,
                   "the prompt has %zu tokens, which leaves no room for an answer in the context of %zu (context_tok, --ctx)",
                   r->n_prompt_tokens, room);
  r->context_tok = (int64_t)room;
  const uint64_t wanted = g->o->max_tok ? (uint64_t)g->o->max_tok : DEFAULT_TOK; /* -1 is more than any context */
  g->max_tok = (size_t)WR_MIN(wanted, (uint64_t)(room - r->n_prompt_tokens));
  r->limit_mode = "";
  WR_TRY(weir_session_set_sampling(s, &g->o->sampling, &r->seed));
  WR_TRY(prefill(g));
  if (!r->finish) WR_TRY(decode(g));
  if (!g->o->no_limit) report_limit(g);
  WR_TRY(wr_answer_end(&g->answer));
  (void)hand_out(g);
  if (g->o->profile) WR_TRY(wr_profile_make(&g->sums, r->seconds.decode * 1e9, r->limit_gb_s, &r->profile));
  return WEIR_OK;
}

/* `prompt` becomes the result's. */
static weir_status generate(weir_session *s, int32_t *prompt, size_t n, const weir_generate_options *o, weir_piece_fn fn,
                            void *user, weir_result **out) {
  run g = {.s = s, .o = o, .fn = fn, .user = user, .r = wr_calloc(1, sizeof *g.r)};
  if (!g.r) {
    wr_free(prompt);
    return wr_fail_nomem(sizeof *g.r, "a result");
  }
  g.r->prompt_tokens = prompt;
  g.r->n_prompt_tokens = n;
  wr_answer_init(&g.answer, s->model->tokenizer->t, o->show_special ? WR_TEXT_KEEP_SPECIAL : 0, o->stop, o->n_stop);
  weir_status status = work(&g);
  if (status == WEIR_OK && !g.answer.text.ptr) wr_str_put(&g.answer.text, "", 0);
  if (status == WEIR_OK && !g.answer.text.ptr) status = wr_fail_nomem(1, "the answer");
  wr_limit_free(&g.limit);
  wr_profile_free(&g.sums);
  if (status == WEIR_OK) {
    g.r->text = g.answer.text.ptr;
    g.r->text_bytes = g.answer.text.len;
    g.answer.text = (wr_str){0};
    *out = g.r;
  } else {
    weir_result_free(g.r);
  }
  wr_answer_free(&g.answer);
  return status;
}

/* Something has to come first: what the vocabulary begins texts with, or else ends them with. */
static weir_status not_empty(const weir_session *s, wr_ids *ids) {
  const wr_special_ids *special = wr_tokenizer_special(s->model->tokenizer->t);
  if (ids->len) return WEIR_OK;
  if (special->bos >= 0) return wr_ids_put(ids, special->bos);
  if (special->eos >= 0) return wr_ids_put(ids, special->eos);
  return wr_fail(WEIR_EUSAGE, "the prompt is empty, and the vocabulary has no token to begin a text with");
}

static weir_status encode_prompt(const weir_session *s, const char *prompt, size_t n, const weir_generate_options *o,
                                 wr_ids *ids) {
  const wr_tokenizer *t = s->model->tokenizer->t;
  if (!o->chat) return wr_encode(t, prompt, n, WR_TEXT_ADD_SPECIAL | (o->parse_special ? WR_TEXT_PARSE_SPECIAL : 0), ids);
  wr_chat_message m[2];
  size_t count = 0;
  if (o->system) m[count++] = (wr_chat_message){"system", o->system, strlen("system"), strlen(o->system)};
  m[count++] = (wr_chat_message){"user", prompt, strlen("user"), n};
  return wr_chat_chatml(t, m, count, true, WR_TEXT_ADD_SPECIAL, ids);
}

weir_status weir_generate(weir_session *s, const char *prompt, size_t prompt_bytes, const weir_generate_options *options,
                          weir_piece_fn fn, void *user, weir_result **out) {
  const weir_generate_options none = {0}, *o = options ? options : &none;
  WR_TRY(check_options(s, o));
  wr_ids ids = {0};
  weir_status status = encode_prompt(s, prompt ? prompt : "", prompt_bytes, o, &ids);
  if (status == WEIR_OK) status = not_empty(s, &ids);
  if (status != WEIR_OK) {
    wr_ids_free(&ids);
    return status;
  }
  return generate(s, ids.ptr, ids.len, o, fn, user, out);
}

weir_status weir_generate_tokens(weir_session *s, const weir_token *prompt, size_t n, const weir_generate_options *options,
                                 weir_piece_fn fn, void *user, weir_result **out) {
  const weir_generate_options none = {0}, *o = options ? options : &none;
  WR_TRY(check_options(s, o));
  WR_TRY(wr_token_check(s->model, prompt, n));
  wr_ids ids = {0};
  weir_status status = WEIR_OK;
  for (size_t i = 0; i < n && status == WEIR_OK; i++) status = wr_ids_put(&ids, prompt[i]);
  if (status == WEIR_OK) status = not_empty(s, &ids);
  if (status != WEIR_OK) {
    wr_ids_free(&ids);
    return status;
  }
  return generate(s, ids.ptr, ids.len, o, fn, user, out);
}
