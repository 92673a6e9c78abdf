/* Generation: prompt, then one token after the other until something ends it; and what the run measured.
 *
 * Times: `decode` runs from the prompt's logits to the end, everything in it (sampling, text, callbacks), less the reads that
 * measure the limit. Those stand between tokens, spread over the run; what is left of them when it ends follows at once. */
#include "infer/infer_i.h"

enum { LIMIT_RUNS = 5 };

typedef struct run {
  weir_session *s;
  const weir_generate_options *o;
  wr_reply reply;
  weir_result *r; /* the reply's */
  wr_limit limit;
  wr_profile_sums sums;
} run;

/* Draws the next token and takes it into the answer. Sets r->finish when that ends it. */
static weir_status next_token(run *g, int32_t *token) {
  const uint64_t begin = wr_now_ns();
  WR_TRY(weir_session_sample(g->s, token));
  const uint64_t drawn = wr_now_ns();
  g->sums.sample_ns += (double)(drawn - begin);
  WR_TRY(wr_reply_put(&g->reply, *token));
  g->sums.text_ns += (double)(wr_now_ns() - drawn);
  if (!g->r->finish && wr_session_stopped(g->s)) g->r->finish = WEIR_FINISH_STOPPED;
  return WEIR_OK;
}

/* How many reads of the limit should have been made after so many of max tokens. */
static int reads_due(const run *g) { return (int)((double)LIMIT_RUNS * (double)g->r->n_tokens / (double)(g->reply.max_tok + 1)); }

static weir_status decode(run *g) {
  weir_result *r = g->r;
  const uint64_t begin = wr_now_ns();
  const int64_t first = g->s->seq.length;
  const double moved = wr_engine_moved(g->s->engine);
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
  r->moved_bytes_per_token = (wr_engine_moved(g->s->engine) - moved) / (double)steps;
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
  const wr_model *m = g->s->model->m;
  r->seconds.limit = l->seconds;
  r->huge_share = (double)wr_model_huge_bytes(m) / (double)WR_MAX(m->weight_bytes, (uint64_t)1);
  r->prefill_share = wr_prompt_share(g->s->engine, g->s->model, (int64_t)r->n_reused, (int64_t)(r->n_prompt_tokens - r->n_reused),
                                     g->s->piece, r->seconds.prefill);
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
  WR_TRY(wr_engine_plan(s->engine, 1, 1, g->o->profile, &plan));
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
  WR_TRY(weir_session_set_sampling(g->s, &g->o->sampling, &g->r->seed));
  WR_TRY(prefill(g));
  if (!g->r->finish) WR_TRY(decode(g));
  if (!g->o->no_limit) report_limit(g);
  if (g->o->profile) WR_TRY(wr_profile_make(&g->sums, g->r->seconds.decode * 1e9, g->r->limit_gb_s, &g->r->profile));
  return WEIR_OK;
}

static weir_status generate(weir_session *s, const weir_request *q, weir_result **out) {
  const weir_generate_options none = {0};
  run g = {.s = s, .o = q->options ? q->options : &none};
  weir_status status = wr_reply_begin(&g.reply, s->model, q, g.o, wr_engine_context(s->engine));
  g.r = g.reply.r;
  if (status == WEIR_OK) status = work(&g);
  if (status == WEIR_OK) status = wr_reply_end(&g.reply, out);
  wr_limit_free(&g.limit);
  wr_profile_free(&g.sums);
  wr_reply_free(&g.reply);
  return status;
}

weir_status weir_generate(weir_session *s, const char *prompt, size_t prompt_bytes, const weir_generate_options *options,
                          weir_piece_fn fn, void *user, weir_result **out) {
  const weir_request q = {.prompt = prompt, .prompt_bytes = prompt_bytes, .options = options, .piece = fn, .user = user};
  return generate(s, &q, out);
}

weir_status weir_generate_tokens(weir_session *s, const weir_token *prompt, size_t n, const weir_generate_options *options,
                                 weir_piece_fn fn, void *user, weir_result **out) {
  static const weir_token no_token = 0;
  const weir_request q = {
      .tokens = prompt ? prompt : &no_token, .n_tokens = n, .options = options, .piece = fn, .user = user};
  return generate(s, &q, out);
}
