/* Sessions: one sequence, its pages, and the logits of its last position.
 *
 * Invariant: tokens[0, seq.length) is what the cache holds, after every call, failed ones too. Logits are those of the last of
 * them, if has_logits. */
#include <math.h>

#include "infer/infer_i.h"

wr_dtype wr_kv_dtype(weir_kv_type t) {
  static const wr_dtype types[] = {[WEIR_KV_DEFAULT] = WR_F16, [WEIR_KV_F16] = WR_F16,   [WEIR_KV_F32] = WR_F32,
                                   [WEIR_KV_BF16] = WR_BF16,   [WEIR_KV_Q8_0] = WR_Q8_0, [WEIR_KV_Q4_0] = WR_Q4_0};
  return types[t];
}

weir_status wr_kv_check(const wr_hparams *h, weir_kv_type t) {
  if ((int)t < WEIR_KV_DEFAULT || (int)t > WEIR_KV_Q4_0)
    return wr_fail(WEIR_EUSAGE, "kv is %d, which is no weir_kv_type", (int)t);
  const wr_dtype_info *type = &wr_dtypes[wr_kv_dtype(t)];
  const int64_t width = h->key_width % type->block ? h->key_width : h->value_width;
  if (width % type->block)
    return wr_fail(WEIR_EUSAGE,
                   "a KV cache of %s (kv, --kv) has blocks of %d elements, but the model's heads are %lld wide: ask for f16",
                   type->name, type->block, (long long)width);
  return WEIR_OK;
}

static weir_status new_session(weir_model *m, weir_session **out) {
  weir_session *s = wr_calloc(1, sizeof *s);
  if (!s) return wr_fail_nomem(sizeof *s, "a session");
  const size_t logits = (size_t)m->m->h.vocab * sizeof *s->logits;
  s->logits = wr_malloc(logits);
  if (!s->logits) {
    wr_free(s);
    return wr_fail_nomem(logits, "logits");
  }
  s->model = m;
  *out = s;
  return WEIR_OK;
}

weir_status wr_session_check(const weir_model *m, const weir_session_options *o) {
  if (o->context_tok < 0 || o->context_tok > INT32_MAX)
    return wr_fail(WEIR_EUSAGE, "context_tok (--ctx) is %lld, but it must be from 1 to %d, or 0 for the default",
                   (long long)o->context_tok, INT32_MAX);
  if (o->pool_tok < 0 || o->pool_tok > INT32_MAX)
    return wr_fail(WEIR_EUSAGE, "pool_tok is %lld, but it must be from 0 to %d", (long long)o->pool_tok, INT32_MAX);
  WR_TRY(wr_kv_check(&m->m->h, o->kv));
  if (o->piece_tok < 0 || o->piece_tok > WR_ENGINE_ROWS)
    return wr_fail(WEIR_EUSAGE, "piece_tok (--cut) is %d, but it must be from 1 to %d", o->piece_tok, WR_ENGINE_ROWS);
  WR_TRY(wr_context_check(&m->m->h, o->context_tok));
  if (!m->ctx->device->team)
    return wr_fail(WEIR_EUNSUPPORTED, "the device '%s' plans but does not run models", m->ctx->device->api->name);
  return WEIR_OK;
}

weir_status weir_session_open(weir_model *m, const weir_session_options *options, weir_session **out) {
  const weir_session_options o = options ? *options : (weir_session_options){0};
  const uint64_t begin = wr_now_ns();
  WR_TRY(wr_session_check(m, &o));
  weir_session *s;
  WR_TRY(new_session(m, &s));
  s->piece = o.piece_tok ? o.piece_tok : WR_ENGINE_ROWS;
  const wr_dtype kv = wr_kv_dtype(o.kv);
  weir_status status = wr_engine_open(m, o.context_tok ? o.context_tok : wr_context_default(m, kv), o.pool_tok, kv, &s->engine);
  if (status == WEIR_OK) status = wr_engine_prepare(s->engine, 1, 1, false);
  if (status == WEIR_OK) status = wr_sampler_init(&s->sampler, NULL, NULL);
  if (status != WEIR_OK) {
    weir_session_close(s);
    return status;
  }
  s->open_seconds = (double)(wr_now_ns() - begin) * 1e-9;
  *out = s;
  return WEIR_OK;
}

void weir_session_close(weir_session *s) {
  if (!s) return;
  if (s->engine) wr_engine_drop(s->engine, &s->seq);
  wr_engine_unref(s->engine);
  wr_sampler_free(&s->sampler);
  wr_free(s->tokens);
  wr_free(s->logits);
  wr_free(s);
}

weir_status weir_session_fork(weir_session *s, weir_session **out) {
  weir_session *f;
  WR_TRY(new_session(s->model, &f));
  const size_t n = (size_t)s->seq.length;
  f->piece = s->piece;
  f->sampler = (wr_sampler){.s = s->sampler.s, .rng = s->sampler.rng};
  f->has_logits = s->has_logits;
  if (s->has_logits) memcpy(f->logits, s->logits, (size_t)s->model->m->h.vocab * sizeof *f->logits);
  weir_status status = WEIR_OK;
  if (!wr_grow((void **)&f->tokens, &f->cap_tokens, WR_MAX(n, (size_t)1), sizeof *f->tokens))
    status = wr_fail_nomem(n * sizeof *f->tokens, "the tokens of a session");
  if (status == WEIR_OK) status = wr_engine_fork(s->engine, &s->seq, s->seq.length, &f->seq);
  if (status != WEIR_OK) {
    weir_session_close(f);
    return status;
  }
  if (n) memcpy(f->tokens, s->tokens, n * sizeof *f->tokens);
  wr_engine_ref(s->engine);
  f->engine = s->engine;
  *out = f;
  return WEIR_OK;
}

int64_t weir_session_length(const weir_session *s) { return s->seq.length; }

int64_t weir_session_capacity(const weir_session *s) { return wr_engine_context(s->engine); }

const weir_token *weir_session_tokens(const weir_session *s) { return s->tokens; }

void weir_stop(weir_session *s) { atomic_store(&s->stop, 1); }

bool wr_session_stopped(weir_session *s) { return atomic_exchange(&s->stop, 0) != 0; }

weir_status wr_token_check(const weir_model *m, const int32_t *tokens, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (tokens[i] < 0 || tokens[i] >= m->m->h.vocab)
      return wr_fail(WEIR_EUSAGE, "token %zu is %d, which is outside the vocabulary of %lld", i, tokens[i],
                     (long long)m->m->h.vocab);
  return WEIR_OK;
}

/* One replay of n tokens, appended. */
static weir_status feed(weir_session *s, const int32_t *tokens, int n, wr_want want, float *logits, bool profiled) {
  const size_t at = (size_t)s->seq.length;
  if (!wr_grow((void **)&s->tokens, &s->cap_tokens, at + (size_t)n, sizeof *s->tokens))
    return wr_fail_nomem((at + (size_t)n) * sizeof *s->tokens, "the tokens of a session");
  wr_work work = {.seq = &s->seq, .tokens = tokens, .n = n, .want = want, .logits = logits};
  s->has_logits = false;
  WR_TRY(wr_engine_run(s->engine, &work, 1, profiled));
  memcpy(s->tokens + at, tokens, (size_t)n * sizeof *s->tokens);
  return WEIR_OK;
}

weir_status wr_session_step(weir_session *s, int32_t token, bool profiled) {
  WR_TRY(feed(s, &token, 1, WR_WANT_LAST, s->logits, profiled));
  s->has_logits = true;
  return WEIR_OK;
}

static weir_status room_for(const weir_session *s, size_t n) {
  const int64_t left = wr_engine_context(s->engine) - s->seq.length;
  if (n <= (size_t)left) return WEIR_OK;
  return wr_fail(WEIR_EUSAGE, "%zu tokens after %lld do not fit the context of %lld (context_tok, --ctx)", n,
                 (long long)s->seq.length, (long long)wr_engine_context(s->engine));
}

/* Appends tokens[0, n) of which the logits of [first, n) go to fn. */
static weir_status eval(weir_session *s, const int32_t *tokens, size_t n, size_t first, weir_logits_fn fn, void *user) {
  const int vocab = (int)s->model->m->h.vocab;
  float *all = NULL;
  weir_status status = WEIR_OK;
  for (size_t at = 0; at < n && status == WEIR_OK;) {
    if (wr_session_stopped(s)) {
      status = wr_fail(WEIR_ESTOPPED, "stopped after %zu of %zu tokens", at, n);
      break;
    }
    int k = (int)WR_MIN(n - at, (size_t)s->piece);
    if (!fn || at < first) { /* no logits but the very last */
      if (fn) k = (int)WR_MIN((size_t)k, first - at);
      const bool last = at + (size_t)k == n;
      status = feed(s, tokens + at, k, last ? WR_WANT_LAST : WR_WANT_NONE, s->logits, false);
      s->has_logits = last && status == WEIR_OK;
      at += (size_t)k;
      continue;
    }
    k = WR_MIN(k, WR_ENGINE_OUT);
    if (!all) all = wr_malloc((size_t)WR_ENGINE_OUT * (size_t)vocab * sizeof *all);
    status = all ? feed(s, tokens + at, k, WR_WANT_ALL, all, false)
                 : wr_fail_nomem((size_t)WR_ENGINE_OUT * (size_t)vocab * sizeof *all, "logits");
    if (status != WEIR_OK) break;
    memcpy(s->logits, all + (size_t)(k - 1) * (size_t)vocab, (size_t)vocab * sizeof *all);
    s->has_logits = true;
    for (int i = 0; i < k && status == WEIR_OK; i++)
      if (fn(user, s->seq.length - k + i, all + (size_t)i * (size_t)vocab, vocab))
        status = wr_fail(WEIR_ESTOPPED, "stopped by the callback at position %lld", (long long)(s->seq.length - k + i));
    at += (size_t)k;
  }
  wr_free(all);
  return status;
}

weir_status weir_session_eval(weir_session *s, const weir_token *tokens, size_t n, weir_logits_fn fn, void *user) {
  WR_TRY(wr_token_check(s->model, tokens, n));
  WR_TRY(room_for(s, n));
  return eval(s, tokens, n, 0, fn, user);
}

weir_status weir_session_rewind(weir_session *s, int64_t length) {
  if (length == s->seq.length) return WEIR_OK;
  WR_TRY(wr_engine_truncate(s->engine, &s->seq, length));
  s->has_logits = false;
  return WEIR_OK;
}

static size_t common_prefix(const weir_session *s, const int32_t *tokens, size_t n) {
  size_t k = 0;
  while (k < n && k < (size_t)s->seq.length && s->tokens[k] == tokens[k]) k++;
  return k;
}

weir_status wr_session_prepare(weir_session *s, const int32_t *tokens, size_t n) {
  const size_t rest = n - WR_MIN(common_prefix(s, tokens, n), n - 1), piece = (size_t)s->piece;
  WR_TRY(wr_engine_prepare(s->engine, (int)WR_MIN(rest, piece), 1, false));
  return rest % piece ? wr_engine_prepare(s->engine, (int)(rest % piece), 1, false) : WEIR_OK;
}

weir_status weir_session_sync(weir_session *s, const weir_token *tokens, size_t n, size_t *reused) {
  if (!n) return wr_fail(WEIR_EUSAGE, "a session cannot be made equal to no token at all (weir_session_rewind empties it)");
  WR_TRY(wr_token_check(s->model, tokens, n));
  if (n > (size_t)wr_engine_context(s->engine))
    return wr_fail(WEIR_EUSAGE, "%zu tokens do not fit the context of %lld (context_tok, --ctx)", n,
                   (long long)wr_engine_context(s->engine));
  size_t keep = common_prefix(s, tokens, n);
  const bool there = keep == n && (size_t)s->seq.length == n && s->has_logits;
  if (keep == n && !there) keep = n - 1; /* the last one again, for its logits */
  if (!there) {
    WR_TRY(weir_session_rewind(s, (int64_t)keep));
    WR_TRY(eval(s, tokens + keep, n - keep, 0, NULL, NULL));
  }
  if (reused) *reused = keep;
  return WEIR_OK;
}

weir_status weir_session_logits(const weir_session *s, const float **logits, int *vocab) {
  if (!s->has_logits)
    return wr_fail(WEIR_EUSAGE, "the session has no logits: nothing was evaluated since it was opened or rewound");
  *logits = s->logits;
  *vocab = (int)s->model->m->h.vocab;
  return WEIR_OK;
}

uint64_t weir_logits_hash(const float *logits, size_t n) { return wr_hash64(logits, n * sizeof *logits, 0); }

/* --------------------------------------------------------------------------------------------------------- score */

typedef struct score {
  const int32_t *tokens;
  int64_t first, n;
  double sum;
} score;

static int add_nll(void *user, int64_t position, const float *logits, int vocab) {
  score *c = user;
  const int64_t next = position + 1;
  if (next < c->first || next >= c->n) return 0;
  float max = logits[0];
  for (int i = 1; i < vocab; i++) max = WR_MAX(max, logits[i]);
  double sum = 0;
  for (int i = 0; i < vocab; i++) sum += exp((double)logits[i] - (double)max);
  c->sum += (double)max + log(sum) - (double)logits[c->tokens[next]];
  return 0;
}

weir_status weir_session_score(weir_session *s, const weir_token *tokens, size_t n, size_t first, double *mean_nll) {
  if (first < 1 || first >= n)
    return wr_fail(WEIR_EUSAGE, "first is %zu, but it must be from 1 to %zu (n - 1)", first, n ? n - 1 : 0);
  WR_TRY(wr_token_check(s->model, tokens, n));
  const size_t keep = WR_MIN(common_prefix(s, tokens, n), first - 1);
  WR_TRY(weir_session_rewind(s, (int64_t)keep));
  WR_TRY(room_for(s, n - keep));
  score c = {.tokens = tokens, .first = (int64_t)first, .n = (int64_t)n};
  WR_TRY(eval(s, tokens + keep, n - keep, first - 1 - keep, add_nll, &c));
  *mean_nll = c.sum / (double)(n - first);
  return WEIR_OK;
}

/* ------------------------------------------------------------------------------------------------------ sampling */

weir_status weir_session_set_sampling(weir_session *s, const weir_sampling *sampling, uint64_t *seed) {
  return wr_sampler_init(&s->sampler, sampling, seed);
}

weir_status weir_session_sample(weir_session *s, weir_token *token) {
  const float *logits = NULL;
  int vocab = 0;
  WR_TRY(weir_session_logits(s, &logits, &vocab));
  /* Rows beyond the tokenizer's tokens are padding of the matrix, not tokens. */
  const int drawn = WR_MIN(vocab, (int)wr_tokenizer_size(s->model->tokenizer->t));
  return wr_sampler_draw(&s->sampler, logits, drawn, s->tokens, (size_t)s->seq.length, token);
}
