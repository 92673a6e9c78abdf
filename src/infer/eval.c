/* Perplexity of a model over a text. Owns weir_eval.
 *
 * The text is tokenised at once, BOS in front where the vocabulary asks for it, and cut into windows of `context_tok` tokens that know
 * nothing of each other; where the vocabulary asks for BOS, it takes the place of each window's first token. Row p of a window predicts
 * its token p + 1, so the last token is never fed.
 *
 *   chunks (the default)   windows side by side; rows context/2 … context-2 count. What llama-perplexity does (perplexity.cpp)
 *   sliding (stride_tok)   a window every `stride` tokens; its last `stride` tokens count, so each of the text counts once. What
 *                          llama-perplexity --ppl-stride does with windows of context + stride/2
 *
 * Rows that do not count give no logits. Logits have the same bits however rows are cut, and losses are summed in the order of the text,
 * so the result is the same for any number of threads. */
#include <math.h>

#include "infer/infer_i.h"

enum { USUAL_TOK = 512, LEAST_TOK = 4 };

typedef struct evaluation {
  weir_model *m;
  const weir_eval_options *o;
  wr_engine *engine;
  wr_seq seq;
  wr_ids ids;
  int32_t *window; /* [context_tok] */
  float *logits;   /* [WR_ENGINE_OUT, vocab] */
  double loss[WR_ENGINE_OUT];
  const int32_t *targets; /* of the rows at hand */
  int n_rows;
  int64_t step;  /* from one window's beginning to the next */
  int64_t first; /* row of a window from which on they count */
  double sum, squares;
  uint64_t begin_ns;
  weir_eval_report r;
} evaluation;

/* ---- what is evaluated */

static weir_status encode(evaluation *e, const char *text, size_t n) {
  const wr_tokenizer *t = e->m->tokenizer->t;
  const wr_special_ids *special = wr_tokenizer_special(t);
  e->r.bos = special->add_bos && special->bos >= 0;
  if (e->r.bos) WR_TRY(wr_ids_put(&e->ids, special->bos));
  WR_TRY(wr_encode(t, text, n, 0, &e->ids)); /* no EOS, whatever the vocabulary asks for: the text is not known to end */
  e->r.text_tok = e->ids.len;
  return WEIR_OK;
}

static weir_status check_options(const weir_model *m, const weir_eval_options *o) {
  const int64_t ctx = o->context_tok;
  if (ctx && (ctx < LEAST_TOK || ctx > INT32_MAX))
    return wr_fail(WEIR_EUSAGE, "context_tok (--ctx) is %lld, but it must be from %d to %d, or 0 for the default",
                   (long long)ctx, LEAST_TOK, INT32_MAX);
  WR_TRY(wr_kv_check(&m->m->h, o->kv));
  if (!m->ctx->device->team)
    return wr_fail(WEIR_EUNSUPPORTED, "the device '%s' plans but does not run models", m->ctx->device->api->name);
  return ctx > m->m->h.trained_tok + 1 ? wr_context_check(&m->m->h, ctx) : WEIR_OK;
}

static weir_status cut_windows(evaluation *e) {
  weir_eval_report *r = &e->r;
  const int64_t ctx = r->context_tok, stride = r->stride_tok, n = (int64_t)e->ids.len;
  if (stride < 0 || stride >= ctx)
    return wr_fail(WEIR_EUSAGE,
                   "stride_tok (--stride) is %lld, but it must be from 1 to %lld, one less than a window, or 0: no sliding",
                   (long long)stride, (long long)ctx - 1);
  if (n < 2 * ctx)
    return wr_fail(
        WEIR_EUSAGE,
        "the text has %lld tokens, but windows of %lld need %lld at least: give more text, or a shorter window (context_tok, "
        "--ctx)",
        (long long)n, (long long)ctx, (long long)(2 * ctx));
  e->step = stride ? stride : ctx;
  e->first = stride ? ctx - 1 - stride : ctx / 2;
  r->windows = (n - ctx) / e->step + 1;
  if (ctx - 1 > e->m->m->h.trained_tok)
    wr_log(WEIR_LOG_WARN, "windows of %lld tokens are longer than the %lld that the model was trained with", (long long)ctx,
           (long long)e->m->m->h.trained_tok);
  return WEIR_OK;
}

static weir_status make_room(evaluation *e) {
  const size_t window = (size_t)e->r.context_tok * sizeof *e->window;
  const size_t logits = (size_t)WR_ENGINE_OUT * (size_t)e->m->m->h.vocab * sizeof *e->logits;
  e->window = wr_malloc(window);
  if (!e->window) return wr_fail_nomem(window, "a window of tokens");
  e->logits = wr_malloc(logits);
  if (!e->logits) return wr_fail_nomem(logits, "logits");
  return wr_engine_open(e->m, e->r.context_tok - 1, 0, wr_kv_dtype(e->o->kv), &e->engine);
}

/* ---- losses */

static void row_losses(void *arg, int tid, int n_threads) {
  evaluation *e = arg;
  const int64_t vocab = e->m->m->h.vocab;
  for (int r = tid; r < e->n_rows; r += n_threads) {
    const float *x = e->logits + r * vocab;
    float max = x[0];
    double sum = 0;
    for (int64_t i = 1; i < vocab; i++) max = WR_MAX(max, x[i]);
    for (int64_t i = 0; i < vocab; i++) sum += exp((double)x[i] - (double)max);
    e->loss[r] = (double)max + log(sum) - (double)x[e->targets[r]];
  }
}

/* The estimate so far. The error takes tokens for independent, as llama-perplexity does. */
static void estimate(evaluation *e) {
  weir_eval_report *r = &e->r;
  const double n = (double)r->tokens;
  r->seconds = (double)(wr_now_ns() - e->begin_ns) * 1e-9;
  if (!r->tokens) return;
  r->nll = e->sum / n;
  r->nll_error = n > 1 ? sqrt(fmax(e->squares / n - r->nll * r->nll, 0) / (n - 1)) : 0;
  r->perplexity = exp(r->nll);
}

static weir_status add_losses(evaluation *e, int64_t at) {
  for (int i = 0; i < e->n_rows; i++) {
    if (!isfinite(e->loss[i]))
      return wr_fail(WEIR_EFAIL, "the loss of token %lld of the text is not finite: the model's weights or logits are not",
                     (long long)at + i);
    e->sum += e->loss[i];
    e->squares += e->loss[i] * e->loss[i];
  }
  e->r.tokens += (uint64_t)e->n_rows;
  return WEIR_OK;
}

/* Feeds a piece of the window that begins at token `start` of the text. The rows that it took. */
static weir_status feed(evaluation *e, int64_t start, int64_t at, int *taken) {
  const int64_t end = e->r.context_tok - 1;
  const bool counts = at >= e->first;
  *taken = (int)(counts ? WR_MIN(end - at, (int64_t)WR_ENGINE_OUT) : WR_MIN(e->first - at, (int64_t)WR_ENGINE_ROWS));
  wr_work work = {
      .seq = &e->seq, .tokens = e->window + at, .n = *taken, .want = counts ? WR_WANT_ALL : WR_WANT_NONE, .logits = e->logits};
  WR_TRY(wr_engine_run(e->engine, &work, 1, false));
  if (!counts) return WEIR_OK;
  e->n_rows = *taken;
  e->targets = e->window + at + 1;
  wr_team_run(e->m->ctx->device->team, row_losses, e);
  return add_losses(e, start + at + 1);
}

static weir_status run_window(evaluation *e, int64_t i) {
  const int64_t start = i * e->step, ctx = e->r.context_tok;
  memcpy(e->window, e->ids.ptr + start, (size_t)ctx * sizeof *e->window);
  if (e->r.bos) e->window[0] = wr_tokenizer_special(e->m->tokenizer->t)->bos;
  WR_TRY(wr_engine_truncate(e->engine, &e->seq, 0));
  int taken;
  for (int64_t at = 0; at < ctx - 1; at += taken) {
    WR_TRY(feed(e, start, at, &taken));
    e->r.done = ((double)i + (double)(at + taken) / (double)(ctx - 1)) / (double)e->r.windows;
    estimate(e);
    if (e->o->progress && e->o->progress(e->o->user, &e->r))
      return wr_fail(WEIR_ESTOPPED, "stopped in window %lld of %lld", (long long)i + 1, (long long)e->r.windows);
  }
  return WEIR_OK;
}

static weir_status evaluate(evaluation *e, const char *text, size_t n) {
  WR_TRY(check_options(e->m, e->o));
  e->r.context_tok = e->o->context_tok ? e->o->context_tok : WR_MIN((int64_t)USUAL_TOK, e->m->m->h.trained_tok);
  e->r.stride_tok = e->o->stride_tok;
  WR_TRY(encode(e, text, n));
  WR_TRY(cut_windows(e));
  WR_TRY(make_room(e));
  for (int64_t i = 0; i < e->r.windows; i++) WR_TRY(run_window(e, i));
  return WEIR_OK;
}

weir_status weir_eval(weir_model *m, const char *text, size_t bytes, const weir_eval_options *options, weir_eval_report *out) {
  const weir_eval_options none = {0};
  evaluation e = {.m = m, .o = options ? options : &none, .begin_ns = wr_now_ns()};
  const weir_status s = evaluate(&e, text ? text : "", bytes);
  if (e.engine) wr_engine_drop(e.engine, &e.seq);
  wr_engine_unref(e.engine);
  wr_ids_free(&e.ids);
  wr_free(e.window);
  wr_free(e.logits);
  if (s == WEIR_OK) *out = e.r;
  return s;
}
