/* The schedule: which rows the next step of a batch takes.
 *
 *   join       the queue's first ones take free slots while the cache has room for all that they and the running ones already have, and a
 *              page for each to grow
 *   share      a sequence of which nothing is in the cache takes the whole pages that another one has, running or ended. If one that came
 *              before it will have more of them soon, it waits for that one: prompts that come together are evaluated once
 *   rows       from the oldest to the youngest: the next token, or as much of the prompt as is left of this step's share for prompts
 *   make room  when pages run out, ended sequences give theirs back, then the youngest that runs: it waits at the queue's head, and what it
 *              had is kept as an ended one's
 *
 * That ends: the oldest one always gets its rows (alone it fits the pool, or it would not have been accepted), and whoever waits for
 * another's prefix waits for an older one.
 *
 * Kwon and others 2023, "Efficient memory management for large language model serving with PagedAttention"; Agrawal and others 2024, "Taming
 * throughput-latency tradeoff in LLM inference with Sarathi-Serve" (prompts in pieces beside decoding). */
#include "infer/batch_i.h"

static int64_t pages_of(int64_t tokens) { return (tokens + WR_KV_PAGE - 1) / WR_KV_PAGE; }

/* Pages that a sequence still needs for the tokens that it already has. */
static int64_t pages_wanted(const wr_request *q) { return pages_of((int64_t)q->n_tokens) - (int64_t)q->seq.n_pages; }

/* ------------------------------------------------------------------------------------------------------------ sharing */

/* Takes what others have of q's tokens; q has nothing yet. The last token is always q's own, for its logits. *soon: somebody older will have
 * more of them. */
static weir_status share(weir_batch *b, wr_request *q, bool *soon) {
  const int64_t most = (int64_t)q->n_tokens - 1;
  int64_t best, coming = 0;
  const wr_seq *from = wr_prefix_find(&b->ended, q->tokens, most, &best);
  for (int i = 0; i < b->n_running && b->running[i] != q; i++) {
    const wr_request *other = b->running[i];
    const int64_t common = wr_prefix_common(q->tokens, most, other->tokens, (int64_t)other->n_tokens);
    const int64_t have = WR_MIN(common, other->seq.length / WR_KV_PAGE * WR_KV_PAGE);
    coming = WR_MAX(coming, common);
    if (have <= best) continue;
    best = have;
    from = &other->seq;
  }
  *soon = coming > best;
  if (*soon || !from) return WEIR_OK;
  WR_TRY(wr_engine_fork(b->engine, from, best, &q->seq));
  if (!q->was_fed) q->reply.r->n_reused = (size_t)best;
  return WEIR_OK;
}

/* ------------------------------------------------------------------------------------------------------------ joining */

static bool has_room(weir_batch *b, int64_t pages) {
  while (wr_engine_pages_free(b->engine) < pages)
    if (!wr_prefix_give(&b->ended)) return false;
  return true;
}

static void begin(weir_batch *b, wr_request *q) {
  pthread_mutex_lock(&b->lock);
  b->first = q->next;
  if (!b->first) b->last = NULL;
  b->waiting--;
  q->next = NULL;
  b->running[b->n_running++] = q;
  pthread_mutex_unlock(&b->lock);
  if (!q->begun_ns) q->begun_ns = wr_now_ns();
}

static wr_request *head(weir_batch *b) {
  pthread_mutex_lock(&b->lock);
  wr_request *q = b->first;
  pthread_mutex_unlock(&b->lock);
  return q;
}

static weir_status join(weir_batch *b) {
  for (wr_request *q; b->n_running < b->slots && (q = head(b));) {
    bool soon;
    WR_TRY(share(b, q, &soon));
    int64_t pages = pages_wanted(q) + b->n_running + 1;
    for (int i = 0; i < b->n_running; i++) pages += pages_wanted(b->running[i]);
    if (b->n_running && !has_room(b, pages)) {
      wr_engine_drop(b->engine, &q->seq);
      if (!q->was_fed) q->reply.r->n_reused = 0;
      return WEIR_OK;
    }
    begin(b, q);
  }
  return WEIR_OK;
}

/* ------------------------------------------------------------------------------------------------------------- rows */

/* The youngest one goes back to the head of the queue. */
static void preempt(weir_batch *b) {
  pthread_mutex_lock(&b->lock);
  wr_request *q = b->running[--b->n_running];
  q->next = b->first;
  b->first = q;
  if (!b->last) b->last = q;
  b->waiting++;
  b->sums.preempted++;
  pthread_mutex_unlock(&b->lock);
  q->was_fed = WR_MAX(q->was_fed, q->seq.length);
  wr_prefix_keep(&b->ended, q->tokens, &q->seq);
}

/* Room for n more tokens of running[at] beside what this step takes already, *pages. false: it had to go itself. */
static bool make_room(weir_batch *b, int at, int n, int64_t *pages) {
  const wr_seq *seq = &b->running[at]->seq;
  *pages += pages_of(seq->length + n) - (int64_t)seq->n_pages;
  while (!has_room(b, *pages)) {
    preempt(b);
    if (b->n_running == at) return false;
  }
  return true;
}

static bool decodes(const wr_request *q) { return (int64_t)q->n_tokens - q->seq.length == 1; }

weir_status wr_batch_schedule(weir_batch *b) {
  WR_TRY(join(b));
  b->n_work = b->rows = 0;
  b->next_only = true;
  int64_t pages = 0;
  int for_prompts = WR_ENGINE_ROWS - b->slots; /* any sequence may have a next token */
  for (int i = 0; i < b->n_running; i++)
    if (decodes(b->running[i])) for_prompts = b->piece;
  for (int i = 0; i < b->n_running; i++) {
    wr_request *q = b->running[i];
    bool soon = false;
    if (!q->seq.length) WR_TRY(share(b, q, &soon));
    const int64_t left = (int64_t)q->n_tokens - q->seq.length;
    const int n = decodes(q) ? 1 : (int)WR_MIN(left, (int64_t)for_prompts);
    if (soon || !n) continue;
    if (!make_room(b, i, n, &pages)) break;
    if (!decodes(q)) for_prompts -= n;
    b->next_only &= q->answer_ns && decodes(q);
    b->turn[b->n_work] = q;
    b->work[b->n_work++] =
        (wr_work){.seq = &q->seq, .tokens = q->tokens + q->seq.length, .n = n, .want = n == left ? WR_WANT_LAST : WR_WANT_NONE};
    b->rows += n;
  }
  return WEIR_OK;
}
