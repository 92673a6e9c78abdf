/* The engine: plans by bucket over one pool of KV pages.
 *
 * A replay takes pieces of several sequences as rows: token, position, slot in the pool, sequence. Which plan serves it depends
 * on the numbers of rows only, so a prompt, a decode step and a mixed batch differ in nothing else; rows of one numeric class
 * give the same bits in any of them.
 *
 * Pages: WR_KV_PAGE positions of all layers, side by side, so that a huge page of the machine's holds what a few tokens touch in every
 * layer. A page is shared by as many sequences as its count says and written by one: before a sequence writes into a page that others hold
 * too, it takes a copy. The pool is reserved as a whole and touched page by page.
 *
 * Invariants: a sequence holds at least the pages of its length; refs[p] is the number of sequences that hold p; free pages
 * have 0. One lock guards pages and plans, since plans share their activations: one replay runs at a time. */
#include <limits.h>

#include "infer/infer_i.h"

/* Rows and logits rows, the cheapest first. */
static const struct {
  int rows, out;
} buckets[] = {{1, 1},
               {4, 4},
               {8, 1},
               {16, 16},
               {64, 1},
               {WR_ENGINE_ROWS, 1},
               {WR_ENGINE_OUT, WR_ENGINE_OUT},
               {WR_ENGINE_ROWS, WR_ENGINE_OUT}};
enum { N_BUCKETS = WR_ARRAY_LEN(buckets) };

typedef struct bucket_plan {
  wr_program program;
  wr_plan plan;
  wr_step_io io;
  bool made;
} bucket_plan;

struct wr_engine {
  weir_model *model;
  pthread_mutex_t lock;
  int refs;
  wr_dtype kv;
  int64_t context_tok, pages_a_seq, n_pages;
  size_t k_bytes, layer_bytes;   /* of a page: keys of a layer; keys and values */
  wr_buf state[WR_PLAN_DEVICES]; /* of each device of the model: [n_pages][its layers]{ keys, values } */
  uint32_t *page_refs;           /* [n_pages] */
  int32_t *free_pages;           /* stack of [n_free] */
  int64_t n_free;
  wr_class_ledger classes;
  bucket_plan plans[2][N_BUCKETS]; /* [1]: with times of each step */
  const wr_plan *lender;           /* that with the most memory for activations, which the others use too */
};

/* --------------------------------------------------------------------------------------------------------- sizes */

uint64_t wr_kv_token_bytes(const wr_hparams *h, wr_dtype kv) {
  return (uint64_t)h->layers * (wr_kv_page_bytes(h, kv, false) + wr_kv_page_bytes(h, kv, true)) / WR_KV_PAGE;
}

int64_t wr_context_default(const weir_model *m, wr_dtype kv) {
  enum { USUAL = 8192 };
  const wr_hparams *h = &m->m->h;
  const uint64_t left = wr_context_left(m->ctx), tok = wr_kv_token_bytes(h, kv);
  int64_t n = WR_MIN(h->trained_tok, (int64_t)USUAL);
  const uint64_t fits = left / 2 / tok / WR_KV_PAGE * WR_KV_PAGE;
  if (fits < (uint64_t)n) n = WR_MAX((int64_t)fits, (int64_t)WR_KV_PAGE);
  return n;
}

/* --------------------------------------------------------------------------------------------------------- plans */

/* Of a page, what lies on one of the model's devices. */
static size_t page_bytes(const wr_engine *e, int place) {
  const wr_model *m = e->model->m;
  return (size_t)(m->first_layer[place + 1] - m->first_layer[place]) * e->layer_bytes;
}

static weir_status make_plan(wr_engine *e, bucket_plan *b, int rows, int out, bool profiled) {
  const wr_step_shape shape = {.rows = rows,
                               .out = out,
                               .seqs = WR_MIN(rows, WR_ENGINE_SEQS),
                               .pages = e->n_pages,
                               .pages_a_seq = e->pages_a_seq,
                               .kv = e->kv};
  WR_TRY(wr_step_build(&b->program, e->model->m, &shape, &b->io));
  for (int i = 0; i < b->io.n_layers; i++) {
    const int place = wr_model_place(e->model->m, i);
    const size_t keys = (size_t)(i - e->model->m->first_layer[place]) * e->layer_bytes, page = page_bytes(e, place);
    wr_bind_rows(&b->program, b->io.k[i], &e->state[place], keys, page);
    wr_bind_rows(&b->program, b->io.v[i], &e->state[place], keys + e->k_bytes, page);
  }
  const wr_plan_options options = {.classes = &e->classes,
                                   .tune = &e->model->ctx->tune,
                                   .use = e->model->use,
                                   .profile = profiled,
                                   .lender = e->lender,
                                   .others = e->model->ctx->others,
                                   .n_others = e->model->ctx->n_others};
  pthread_mutex_lock(&e->model->ctx->lock);
  const weir_status s = wr_plan_make(&b->program, &e->model->ctx->mem, &options, &b->plan);
  pthread_mutex_unlock(&e->model->ctx->lock);
  return s;
}

int wr_engine_bucket(int rows, int out) {
  int i = 0;
  while (i < N_BUCKETS && (buckets[i].rows < rows || buckets[i].out < out)) i++;
  return i;
}

static weir_status need_plan(wr_engine *e, int rows, int out, bool profiled, bucket_plan **result) {
  const int i = wr_engine_bucket(rows, out);
  if (i == N_BUCKETS)
    return wr_fail(WEIR_EUSAGE, "%d rows with %d rows of logits are more than one replay takes (%d, %d)", rows, out,
                   WR_ENGINE_ROWS, WR_ENGINE_OUT);
  bucket_plan *b = &e->plans[profiled][i];
  if (!b->made) {
    wr_program_init(&b->program);
    const weir_status s = make_plan(e, b, buckets[i].rows, buckets[i].out, profiled);
    if (s != WEIR_OK) {
      wr_program_free(&b->program);
      return s;
    }
    b->made = true;
    if (!e->lender || b->plan.arena_bytes > e->lender->arena_bytes) e->lender = &b->plan;
  }
  *result = b;
  return WEIR_OK;
}

weir_status wr_engine_prepare(wr_engine *e, int rows, int out, bool profiled) {
  bucket_plan *b;
  pthread_mutex_lock(&e->lock);
  const weir_status s = need_plan(e, rows, out, profiled, &b);
  pthread_mutex_unlock(&e->lock);
  return s;
}

weir_status wr_engine_plan(wr_engine *e, int rows, int out, bool profiled, const wr_plan **plan) {
  bucket_plan *b;
  pthread_mutex_lock(&e->lock);
  const weir_status s = need_plan(e, rows, out, profiled, &b);
  if (s == WEIR_OK) *plan = &b->plan;
  pthread_mutex_unlock(&e->lock);
  return s;
}

/* ------------------------------------------------------------------------------------------------ open and close */

static void free_engine(wr_engine *e) {
  pthread_mutex_lock(&e->model->ctx->lock);
  for (int p = 0; p < 2; p++)
    for (int i = 0; i < N_BUCKETS; i++)
      if (e->plans[p][i].made) {
        wr_plan_free(&e->plans[p][i].plan);
        wr_program_free(&e->plans[p][i].program);
      }
  for (int k = 0; k < e->model->m->n_mems; k++) wr_mem_free(e->model->m->mems[k], WR_MEM_STATE, &e->state[k]);
  pthread_mutex_unlock(&e->model->ctx->lock);
  wr_class_ledger_free(&e->classes);
  pthread_mutex_destroy(&e->lock);
  wr_free(e->page_refs);
  wr_free(e->free_pages);
  wr_free(e);
}

/* The sentence that a user needs: what was asked, what it takes, what there is, and what to ask for. */
static weir_status too_large(const wr_engine *e, int64_t context_tok, int64_t pool_tok, uint64_t left) {
  char need[16], have[16];
  const wr_hparams *h = &e->model->m->h;
  const uint64_t tok = wr_kv_token_bytes(h, e->kv);
  const double bytes = (double)tok * (double)pool_tok;
  wr_size_text(need, bytes < 1.8e19 ? (uint64_t)bytes : UINT64_MAX);
  wr_size_text(have, left);
  const uint64_t fits = left / 2 / tok / WR_KV_PAGE * WR_KV_PAGE;
  return wr_fail(
      WEIR_ENOMEM,
      "a context of %lld tokens needs %s of KV cache (%s), but only %s of memory are left: ask for a shorter context "
      "(context_tok, --ctx), say %llu",
      (long long)context_tok, need, wr_dtypes[e->kv].name, have,
      (unsigned long long)WR_MAX(WR_MIN(fits, (uint64_t)h->trained_tok), (uint64_t)WR_KV_PAGE));
}

static weir_status open_pool(wr_engine *e, int64_t context_tok, int64_t pool_tok) {
  const wr_hparams *h = &e->model->m->h;
  const uint64_t left = wr_context_left(e->model->ctx), tok = wr_kv_token_bytes(h, e->kv);
  if ((uint64_t)pool_tok > left / tok || pool_tok / WR_KV_PAGE >= INT32_MAX / WR_KV_PAGE - 1)
    return too_large(e, context_tok, pool_tok, left);
  e->context_tok = context_tok;
  e->pages_a_seq = (context_tok + WR_KV_PAGE - 1) / WR_KV_PAGE;
  e->n_pages = WR_MAX((pool_tok + WR_KV_PAGE - 1) / WR_KV_PAGE, e->pages_a_seq);
  e->k_bytes = wr_kv_page_bytes(h, e->kv, false);
  e->layer_bytes = e->k_bytes + wr_kv_page_bytes(h, e->kv, true);
  const size_t n = (size_t)e->n_pages;
  e->page_refs = wr_calloc(n, sizeof *e->page_refs);
  e->free_pages = wr_malloc(n * sizeof *e->free_pages);
  if (!e->page_refs || !e->free_pages) return too_large(e, context_tok, pool_tok, left);
  for (int64_t i = 0; i < e->n_pages; i++) e->free_pages[i] = (int32_t)(e->n_pages - 1 - i); /* page 0 is taken first */
  e->n_free = e->n_pages;
  pthread_mutex_lock(&e->model->ctx->lock);
  weir_status s = WEIR_OK;
  for (int k = 0; k < e->model->m->n_mems && s == WEIR_OK; k++)
    s = wr_mem_alloc(e->model->m->mems[k], WR_MEM_STATE, n * page_bytes(e, k), true, "the KV cache", &e->state[k]);
  pthread_mutex_unlock(&e->model->ctx->lock);
  return s == WEIR_ENOMEM ? too_large(e, context_tok, pool_tok, left) : s;
}

weir_status wr_engine_open(weir_model *m, int64_t context_tok, int64_t pool_tok, wr_dtype kv, wr_engine **out) {
  wr_engine *e = wr_calloc(1, sizeof *e);
  if (!e) return wr_fail_nomem(sizeof *e, "an engine");
  e->model = m;
  e->kv = kv;
  e->refs = 1;
  pthread_mutex_init(&e->lock, NULL);
  const weir_status s = open_pool(e, context_tok, WR_MAX(pool_tok, context_tok));
  if (s != WEIR_OK) {
    free_engine(e);
    return s;
  }
  *out = e;
  return WEIR_OK;
}

void wr_engine_ref(wr_engine *e) {
  pthread_mutex_lock(&e->lock);
  e->refs++;
  pthread_mutex_unlock(&e->lock);
}

void wr_engine_unref(wr_engine *e) {
  if (!e) return;
  pthread_mutex_lock(&e->lock);
  const int left = --e->refs;
  pthread_mutex_unlock(&e->lock);
  if (!left) free_engine(e);
}

int64_t wr_engine_context(const wr_engine *e) { return e->context_tok; }

/* --------------------------------------------------------------------------------------------------------- pages */

static void release_page(wr_engine *e, int32_t page) {
  if (--e->page_refs[page] == 0) e->free_pages[e->n_free++] = page;
}

static weir_status take_page(wr_engine *e, int32_t *out) {
  if (!e->n_free)
    return wr_fail(WEIR_ENOMEM, "the KV cache is full: the session and its forks hold all of its %lld positions (pool_tok)",
                   (long long)e->n_pages * WR_KV_PAGE);
  *out = e->free_pages[--e->n_free];
  e->page_refs[*out] = 1;
  return WEIR_OK;
}

/* What device `place` has of page `from` to page `to`. */
static weir_status copy_page(wr_engine *e, int place, int32_t from, int32_t to) {
  wr_buf *state = &e->state[place];
  wr_device *d = state->device;
  const size_t n = page_bytes(e, place);
  void *bounce = wr_malloc(n);
  if (!bounce) return wr_fail_nomem(n, "the copy of a page");
  weir_status s = d->api->read(d, state, (size_t)from * n, bounce, n);
  if (s == WEIR_OK) s = d->api->write(d, state, (size_t)to * n, bounce, n);
  wr_free(bounce);
  return s;
}

/* A copy of its own of a page that others hold too. */
static weir_status own_page(wr_engine *e, int32_t *page) {
  int32_t copy = 0;
  WR_TRY(take_page(e, &copy));
  weir_status s = WEIR_OK;
  for (int k = 0; k < e->model->m->n_mems && s == WEIR_OK; k++) s = copy_page(e, k, *page, copy);
  release_page(e, s == WEIR_OK ? *page : copy);
  if (s == WEIR_OK) *page = copy;
  return s;
}

/* Pages for positions [length, length + n), all its own. What was taken stays taken on failure: the next try or truncate uses
 * it. */
static weir_status reserve(wr_engine *e, wr_seq *seq, int n) {
  if (seq->length + n > e->context_tok)
    return wr_fail(WEIR_EUSAGE, "%lld tokens and %d more are beyond the context of %lld tokens (context_tok, --ctx)",
                   (long long)seq->length, n, (long long)e->context_tok);
  const size_t first = (size_t)(seq->length / WR_KV_PAGE), need = (size_t)((seq->length + n + WR_KV_PAGE - 1) / WR_KV_PAGE);
  if (!wr_grow((void **)&seq->pages, &seq->cap_pages, need, sizeof *seq->pages))
    return wr_fail_nomem(need * sizeof *seq->pages, "a page table");
  for (size_t p = first; p < WR_MIN(need, seq->n_pages); p++)
    if (e->page_refs[seq->pages[p]] > 1) WR_TRY(own_page(e, &seq->pages[p]));
  for (; seq->n_pages < need; seq->n_pages++) WR_TRY(take_page(e, &seq->pages[seq->n_pages]));
  return WEIR_OK;
}

weir_status wr_engine_truncate(wr_engine *e, wr_seq *seq, int64_t length) {
  if (length < 0 || length > seq->length)
    return wr_fail(WEIR_EUSAGE, "cannot go back to %lld of %lld tokens", (long long)length, (long long)seq->length);
  const size_t keep = (size_t)((length + WR_KV_PAGE - 1) / WR_KV_PAGE);
  pthread_mutex_lock(&e->lock);
  while (seq->n_pages > keep) release_page(e, seq->pages[--seq->n_pages]);
  seq->length = length;
  pthread_mutex_unlock(&e->lock);
  return WEIR_OK;
}

weir_status wr_engine_fork(wr_engine *e, const wr_seq *seq, int64_t length, wr_seq *out) {
  if (length < 0 || length > seq->length)
    return wr_fail(WEIR_EUSAGE, "cannot share %lld of %lld tokens", (long long)length, (long long)seq->length);
  wr_seq copy = {.length = length};
  const size_t n_pages = (size_t)((length + WR_KV_PAGE - 1) / WR_KV_PAGE);
  if (!wr_grow((void **)&copy.pages, &copy.cap_pages, WR_MAX(n_pages, (size_t)1), sizeof *copy.pages))
    return wr_fail_nomem(n_pages * sizeof *copy.pages, "a page table");
  pthread_mutex_lock(&e->lock);
  for (; copy.n_pages < n_pages; copy.n_pages++) {
    copy.pages[copy.n_pages] = seq->pages[copy.n_pages];
    e->page_refs[copy.pages[copy.n_pages]]++;
  }
  pthread_mutex_unlock(&e->lock);
  *out = copy;
  return WEIR_OK;
}

void wr_engine_drop(wr_engine *e, wr_seq *seq) {
  pthread_mutex_lock(&e->lock);
  while (seq->n_pages) release_page(e, seq->pages[--seq->n_pages]);
  pthread_mutex_unlock(&e->lock);
  wr_free(seq->pages);
  *seq = (wr_seq){0};
}

int64_t wr_engine_pages(const wr_engine *e) { return e->n_pages; }

int64_t wr_engine_pages_free(wr_engine *e) {
  pthread_mutex_lock(&e->lock);
  const int64_t n = e->n_free;
  pthread_mutex_unlock(&e->lock);
  return n;
}

/* ------------------------------------------------------------------------------------------------------ a replay */

typedef struct rows {
  int32_t token[WR_ENGINE_ROWS], pos[WR_ENGINE_ROWS], slot[WR_ENGINE_ROWS], seq[WR_ENGINE_ROWS], out[WR_ENGINE_OUT];
  int n, n_out;
  int64_t kv_tok;
} rows;

static weir_status gather_rows(wr_engine *e, const wr_work *work, int n, rows *r) {
  r->n = r->n_out = 0;
  r->kv_tok = 0;
  for (int i = 0; i < n; i++) {
    const wr_work *w = &work[i];
    const int outs = w->want == WR_WANT_ALL ? w->n : w->want == WR_WANT_LAST ? 1 : 0;
    if (w->n < 1 || w->n > WR_ENGINE_ROWS - r->n || outs > WR_ENGINE_OUT - r->n_out)
      return wr_fail(WEIR_EUSAGE, "a replay takes at most %d rows and %d rows of logits", WR_ENGINE_ROWS, WR_ENGINE_OUT);
    WR_TRY(reserve(e, w->seq, w->n));
    for (int t = 0; t < w->n; t++, r->n++) {
      const int64_t pos = w->seq->length + t;
      r->token[r->n] = w->tokens[t];
      r->pos[r->n] = (int32_t)pos;
      r->slot[r->n] = w->seq->pages[pos / WR_KV_PAGE] * WR_KV_PAGE + (int32_t)(pos % WR_KV_PAGE);
      r->seq[r->n] = i;
      r->kv_tok += pos + 1;
      if (w->want == WR_WANT_ALL || (w->want == WR_WANT_LAST && t == w->n - 1)) r->out[r->n_out++] = r->n;
    }
  }
  return WEIR_OK;
}

static weir_status write_tables(wr_engine *e, bucket_plan *b, const wr_work *work, int n, const rows *r) {
  const size_t bytes = (size_t)r->n * sizeof(int32_t), row_bytes = (size_t)e->pages_a_seq * sizeof(int32_t);
  WR_TRY(wr_plan_write(&b->plan, b->io.tokens, 0, r->token, bytes));
  WR_TRY(wr_plan_write(&b->plan, b->io.pos, 0, r->pos, bytes));
  WR_TRY(wr_plan_write(&b->plan, b->io.slot, 0, r->slot, bytes));
  WR_TRY(wr_plan_write(&b->plan, b->io.seq, 0, r->seq, bytes));
  WR_TRY(wr_plan_write(&b->plan, b->io.out_rows, 0, r->out, (size_t)r->n_out * sizeof(int32_t)));
  for (int i = 0; i < n; i++)
    WR_TRY(wr_plan_write(&b->plan, b->io.page_table, (size_t)i * row_bytes, work[i].seq->pages,
                         work[i].seq->n_pages * sizeof(int32_t)));
  return WEIR_OK;
}

static void set_regs(wr_regs *regs, int rows_n, int out, int seqs, int64_t kv_tok) {
  regs->live[WR_LIVE_ROWS] = rows_n;
  regs->live[WR_LIVE_OUT] = out;
  regs->live[WR_LIVE_SEQS] = seqs;
  regs->kv_tok = kv_tok;
}

static weir_status run_locked(wr_engine *e, wr_work *work, int n, bool profiled) {
  rows r;
  bucket_plan *b;
  if (n < 1 || n > WR_ENGINE_SEQS) return wr_fail(WEIR_EUSAGE, "a replay takes 1 to %d sequences, not %d", WR_ENGINE_SEQS, n);
  WR_TRY(gather_rows(e, work, n, &r));
  WR_TRY(need_plan(e, r.n, r.n_out, profiled, &b));
  WR_TRY(write_tables(e, b, work, n, &r));
  set_regs(b->plan.regs_host, r.n, r.n_out, n, r.kv_tok);
  WR_TRY(wr_plan_run(&b->plan));
  const size_t row_bytes = (size_t)e->model->m->h.vocab * sizeof(float);
  size_t at = 0;
  for (int i = 0; i < n; i++) {
    const size_t outs = work[i].want == WR_WANT_ALL ? (size_t)work[i].n : work[i].want == WR_WANT_LAST;
    if (outs) WR_TRY(wr_plan_read(&b->plan, b->io.logits, at * row_bytes, work[i].logits, outs * row_bytes));
    at += outs;
  }
  for (int i = 0; i < n; i++) work[i].seq->length += work[i].n;
  return WEIR_OK;
}

weir_status wr_engine_run(wr_engine *e, wr_work *work, int n, bool profiled) {
  pthread_mutex_lock(&e->lock);
  const weir_status s = run_locked(e, work, n, profiled);
  pthread_mutex_unlock(&e->lock);
  return s;
}

double wr_engine_moved(wr_engine *e) {
  double sum = 0;
  pthread_mutex_lock(&e->lock);
  for (int p = 0; p < 2; p++)
    for (int i = 0; i < N_BUCKETS; i++)
      if (e->plans[p][i].made) sum += e->plans[p][i].plan.moved_bytes;
  pthread_mutex_unlock(&e->lock);
  return sum;
}

wr_cost wr_engine_cost(wr_engine *e, int64_t position) {
  wr_cost sum = {0};
  const wr_plan *plan;
  if (wr_engine_plan(e, 1, 1, false, &plan) != WEIR_OK) return sum;
  wr_regs regs = {0};
  set_regs(&regs, 1, 1, 1, position + 1);
  for (int i = 0; i < plan->list.n; i++) {
    wr_cost c;
    wr_plan_cost(plan, i, &regs, &c);
    sum.flop += c.flop;
    sum.read_bytes += c.read_bytes;
    sum.write_bytes += c.write_bytes;
    sum.weight_bytes += c.weight_bytes;
    sum.kv_bytes += c.kv_bytes;
    sum.copy_bytes += c.copy_bytes;
  }
  return sum;
}
