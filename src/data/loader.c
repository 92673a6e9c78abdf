/* loader.c: owns training samples as views into mapped shards: which window stands at which position, and what is made resident ahead.
 *
 * Position p of the run, over all ranks, is a pure function of (options, p):
 * - without weights all windows of all sources are one domain of N: epoch p / N, window permute(N, seed, epoch, p % N);
 * - with weights, source 0 with share q has position p exactly when floor((p + 1) q) > floor(p q), and then it is its sample number
 *   floor(p q); the positions that it does not have are numbered again, and the other sources share them in the same way. So sources are
 *   spread evenly, and each goes through epochs of its own, every sample once in each.
 * Rank r takes positions r, r + ranks, …; `base` is where counting with this number of ranks began.
 *
 * Residency: what fits into half of the memory is asked for piece by piece while samples are taken, the whole of it; of larger data each
 * window is asked for `prefetch` samples ahead. The maps are read-only file pages, so processes of one machine share them.
 */
#include "data/data_i.h"

#include <sys/mman.h>
#include <unistd.h>

#define MAX_SOURCES 1024
#define PREFETCH_BYTES 1024            /* of a window: beyond that the hardware has seen the direction */
#define ADVISE_BYTES ((size_t)1 << 20) /* asked for at a time, while all of the data is made resident */

typedef struct source {
  char *path;
  wr_shard *shards;
  size_t n_shards;
  uint64_t *first_window; /* [n_shards + 1] */
  uint64_t first;         /* of its windows in the common domain */
  uint64_t share;         /* of what the sources before it leave, times 2^64; of the last one: all */
} source;

typedef struct loader {
  wr_data data;
  source *sources;
  int n_sources;
  bool weighted, validation, fits;
  int64_t T;
  uint64_t seed, windows;
  uint64_t base, taken, rank, ranks; /* taken: by this rank since base */
  uint64_t prefetch, advised;        /* advised: samples of this rank since base */
  int advise_source;
  size_t advise_shard, advise_at;
  size_t page;
  wr_data_info info;
} loader;

/* ---------------------------------------------------------------------------------------------------------------- order */

static uint64_t windows_of(uint64_t n_tokens, int64_t T) {
  return n_tokens < 2 ? 0 : (n_tokens - 1 + (uint64_t)T - 1) / (uint64_t)T;
}

typedef struct place {
  int source;
  uint64_t epoch, window; /* within the source */
} place;

static int source_of_window(const loader *l, uint64_t window) {
  int i = l->n_sources - 1;
  while (l->sources[i].first > window) i--;
  return i;
}

static place locate(const loader *l, uint64_t p) {
  if (!l->weighted) {
    const uint64_t epoch = p / l->windows, at = p % l->windows;
    const uint64_t w = l->validation ? at : wr_permute(l->windows, l->seed, epoch, at);
    const int i = source_of_window(l, w);
    return (place){i, epoch, w - l->sources[i].first};
  }
  int i = 0;
  uint64_t k = p;
  for (; i + 1 < l->n_sources; i++) {
    const uint64_t q = l->sources[i].share;
    const uint64_t before = (uint64_t)((unsigned __int128)k * q >> 64),
                   after = (uint64_t)((unsigned __int128)(k + 1) * q >> 64);
    if (after > before) {
      k = before;
      break;
    }
    k -= before;
  }
  const source *s = &l->sources[i];
  const uint64_t n = s->first_window[s->n_shards];
  return (place){i, k / n, wr_permute(n, l->seed + (uint64_t)i * 0x9E3779B97F4A7C15u, k / n, k % n)};
}

static size_t shard_of_window(const source *s, uint64_t window) {
  size_t low = 0, high = s->n_shards - 1; /* the last shard whose first window is <= window */
  while (low < high) {
    const size_t mid = low + (high - low + 1) / 2;
    if (s->first_window[mid] <= window)
      low = mid;
    else
      high = mid - 1;
  }
  return low;
}

static void sample_at(const loader *l, uint64_t p, wr_sample *out) {
  const place at = locate(l, p);
  const source *s = &l->sources[at.source];
  const size_t i = shard_of_window(s, at.window);
  const wr_shard_header *h = s->shards[i].head;
  const uint64_t from = (at.window - s->first_window[i]) * (uint64_t)l->T;
  const uint64_t to = WR_MIN(h->n_tokens, from + (uint64_t)l->T + 1);
  *out = (wr_sample){.tokens = s->shards[i].tokens + from * h->token_bytes,
                     .token_bytes = (int)h->token_bytes,
                     .n_tok = (int64_t)(to - from),
                     .id = at.window,
                     .source = at.source,
                     .epoch = at.epoch,
                     .first_tok = from};
  out->doc_ends = wr_doc_ends_find(s->shards[i].doc_ends, h->n_docs, from, to, &out->n_docs);
}

/* The window is somewhere in memory, in no order that hardware foresees; asked for while the rest of the batch is looked up. */
static void prefetch_lines(const wr_sample *s) {
  const int64_t n = WR_MIN(s->n_tok * s->token_bytes, (int64_t)PREFETCH_BYTES);
  for (int64_t k = 0; k < n; k += WR_CACHE_LINE) __builtin_prefetch((const uint8_t *)s->tokens + k);
}

/* ------------------------------------------------------------------------------------------------------------- residency */

static void advise(const loader *l, const uint8_t *from, size_t n) {
  const uintptr_t begin = (uintptr_t)from / l->page * l->page, end = (uintptr_t)from + n;
  madvise((void *)begin, end - begin, MADV_WILLNEED); /* advice: nothing depends on it */
}

static void advise_all(loader *l) {
  if (l->advise_source == l->n_sources) return;
  const source *s = &l->sources[l->advise_source];
  if (l->advise_shard == s->n_shards) {
    l->advise_source++;
    l->advise_shard = 0;
    return;
  }
  const wr_map *m = &s->shards[l->advise_shard].map;
  const size_t n = WR_MIN(m->bytes - l->advise_at, ADVISE_BYTES);
  advise(l, m->ptr + l->advise_at, n);
  l->advise_at += n;
  if (l->advise_at < m->bytes) return;
  l->advise_at = 0;
  l->advise_shard++;
}

static void advise_ahead(loader *l) {
  if (l->fits) {
    advise_all(l);
    return;
  }
  l->advised = WR_MAX(l->advised, l->taken);
  for (; l->advised < l->taken + l->prefetch; l->advised++) {
    const uint64_t p = l->base + l->rank + l->advised * l->ranks;
    if (l->validation && p >= l->windows) return;
    wr_sample s;
    sample_at(l, p, &s);
    advise(l, s.tokens, (size_t)s.n_tok * (size_t)s.token_bytes);
  }
}

/* ------------------------------------------------------------------------------------------------------------ operations */

static weir_status loader_next(wr_data *d, int64_t n, wr_sample *out, int64_t *n_out) {
  loader *l = (loader *)d;
  int64_t i = 0;
  for (; i < n; i++) {
    const uint64_t p = l->base + l->rank + l->taken * l->ranks;
    if (l->validation && p >= l->windows) break;
    sample_at(l, p, &out[i]);
    prefetch_lines(&out[i]);
    l->taken++;
  }
  advise_ahead(l);
  *n_out = i;
  return WEIR_OK;
}

static void loader_tell(const wr_data *d, wr_data_position *out) {
  const loader *l = (const loader *)d;
  *out = (wr_data_position){.taken = l->base + l->taken * l->ranks};
}

static weir_status loader_seek(wr_data *d, const wr_data_position *p) {
  loader *l = (loader *)d;
  l->base = p->taken;
  l->taken = l->advised = 0;
  advise_ahead(l);
  return WEIR_OK;
}

static void loader_info(const wr_data *d, wr_data_info *out) { *out = ((const loader *)d)->info; }

static void loader_close(wr_data *d) {
  loader *l = (loader *)d;
  for (int i = 0; l->sources && i < l->n_sources; i++) {
    source *s = &l->sources[i];
    for (size_t k = 0; s->shards && k < s->n_shards; k++) wr_shard_close(&s->shards[k]);
    wr_free(s->shards);
    wr_free(s->first_window);
    wr_free(s->path);
  }
  wr_free(l->sources);
  wr_free(l);
}

/* --------------------------------------------------------------------------------------------------------------- opening */

static weir_status open_shards(loader *l, source *s, const wr_shards_manifest *m) {
  const int split = l->validation ? WR_SPLIT_VAL : WR_SPLIT_TRAIN;
  const size_t n = m->split[split].n;
  s->shards = wr_calloc(WR_MAX(n, (size_t)1), sizeof *s->shards);
  s->first_window = wr_calloc(n + 1, sizeof *s->first_window);
  if (!s->shards || !s->first_window) return wr_fail_nomem(n * sizeof *s->shards, "the shards");
  for (size_t i = 0; i < n; i++) {
    WR_TRY(wr_shards_manifest_open_shard(s->path, m, split, i, &s->shards[i]));
    s->n_shards = i + 1;
    const wr_shard_header *h = s->shards[i].head;
    s->first_window[i + 1] = s->first_window[i] + windows_of(h->n_tokens, l->T);
    l->info.tokens += h->n_tokens;
    l->info.docs += h->n_docs - h->continues;
    l->info.mapped_bytes += s->shards[i].map.bytes;
    const uint64_t sums[] = {h->n_tokens, h->tokens_hash, h->docs_hash};
    l->info.id = wr_hash64(sums, sizeof sums, l->info.id);
  }
  return WEIR_OK;
}

static weir_status open_source(loader *l, int i, const wr_data_source *given) {
  source *s = &l->sources[i];
  s->path = wr_strdup(given->path);
  if (!s->path) return wr_fail_nomem(strlen(given->path), "a path");
  wr_shards_manifest m = {0};
  WR_TRY(wr_shards_manifest_read(s->path, &m));
  weir_status status = open_shards(l, s, &m);
  const uint64_t vocab = m.vocab, hash = m.tokenizer_hash;
  wr_shards_manifest_free(&m);
  WR_TRY(status);
  s->first = l->windows;
  l->windows += s->first_window[s->n_shards];
  if (i && (hash != l->info.tokenizer_hash || (int64_t)vocab != l->info.vocab))
    return wr_fail(WEIR_EUSAGE, "%s and %s were made by different tokenizers; build one of them again with the other's",
                   s->path, l->sources[0].path);
  l->info.tokenizer_hash = hash;
  l->info.vocab = (int64_t)vocab;
  return WEIR_OK;
}

/* There is something to learn from: one whole window, or of validation data one target. */
static weir_status check_length(const loader *l, const char *path) {
  uint64_t longest = 0;
  for (int i = 0; i < l->n_sources; i++)
    for (size_t k = 0; k < l->sources[i].n_shards; k++) longest = WR_MAX(longest, l->sources[i].shards[k].head->n_tokens);
  const char *name = wr_escape(path, strlen(path));
  if (l->validation && longest < 2)
    return wr_fail(WEIR_EUSAGE, "%s: the validation split is empty (%llu tokens); build with a larger --val", name,
                   (unsigned long long)l->info.tokens);
  if (!l->validation && longest < (uint64_t)l->T + 1)
    return wr_fail(WEIR_EUSAGE, "%s: %llu tokens%s, need at least context + 1 = %lld; take a shorter context or more text",
                   name, (unsigned long long)longest, l->info.tokens > longest ? " in the largest shard" : "",
                   (long long)l->T + 1);
  return WEIR_OK;
}

static weir_status share_out(loader *l, const wr_data_source *given) {
  double left = 0;
  int n_weighted = 0;
  for (int i = 0; i < l->n_sources; i++) {
    if (!(given[i].weight >= 0 && given[i].weight < 1e300))
      return wr_fail(WEIR_EUSAGE, "%s: a weight of %g; it must be above 0", given[i].path, given[i].weight);
    left += given[i].weight;
    n_weighted += given[i].weight > 0;
  }
  if (!n_weighted || l->n_sources == 1 || l->validation) return WEIR_OK;
  if (n_weighted < l->n_sources) return wr_fail(WEIR_EUSAGE, "give every source a weight, or none");
  l->weighted = true;
  for (int i = 0; i < l->n_sources; left -= given[i++].weight) {
    source *s = &l->sources[i];
    if (!s->first_window[s->n_shards]) return wr_fail(WEIR_EUSAGE, "%s: has a weight but no samples", s->path);
    const double q = given[i].weight / left * 0x1p64;
    s->share = q < 0x1.fffffffffffffp63 ? (uint64_t)q : UINT64_MAX;
  }
  return WEIR_OK;
}

static const wr_data_ops loader_ops = {loader_close, loader_info, loader_next, loader_tell, loader_seek};

weir_status wr_shards_open(const wr_data_options *o, wr_data **out) {
  if (o->n_sources > MAX_SOURCES) return wr_fail(WEIR_EUSAGE, "%d sources; at most %d are possible", o->n_sources, MAX_SOURCES);
  loader *l = wr_calloc(1, sizeof *l);
  if (!l) return wr_fail_nomem(sizeof *l, "the loader");
  l->data.ops = &loader_ops;
  l->T = o->context_tok;
  l->seed = o->seed;
  l->rank = (uint64_t)o->rank;
  l->ranks = (uint64_t)WR_MAX(o->ranks, 1);
  l->validation = o->validation;
  l->prefetch = (uint64_t)(o->prefetch > 0 ? o->prefetch : 64);
  l->page = (size_t)sysconf(_SC_PAGESIZE);
  l->sources = wr_calloc((size_t)o->n_sources, sizeof *l->sources);
  weir_status s = l->sources ? WEIR_OK : wr_fail_nomem((size_t)o->n_sources * sizeof *l->sources, "the loader");
  for (int i = 0; s == WEIR_OK && i < o->n_sources; i++) {
    l->n_sources = i + 1;
    s = open_source(l, i, &o->sources[i]);
  }
  if (s == WEIR_OK) s = check_length(l, o->sources[0].path);
  if (s == WEIR_OK) s = share_out(l, o->sources);
  if (s != WEIR_OK) {
    loader_close(&l->data);
    return s;
  }
  l->info.samples = l->windows;
  l->fits = l->info.mapped_bytes <= wr_memory_available() / 2;
  advise_ahead(l);
  *out = &l->data;
  return WEIR_OK;
}

/* ------------------------------------------------------------------------------------------------------- either kind */

weir_status wr_data_open(const wr_data_options *o, wr_data **out) {
  if (o->n_sources < 1) return wr_fail(WEIR_EUSAGE, "no data was named");
  if (o->context_tok < 1 || o->context_tok > 1 << 30)
    return wr_fail(WEIR_EUSAGE, "a context of %lld tokens; 1 to %d are possible", (long long)o->context_tok, 1 << 30);
  if (o->ranks < 0 || o->rank < 0 || o->rank >= WR_MAX(o->ranks, 1))
    return wr_fail(WEIR_EUSAGE, "rank %d of %d", o->rank, o->ranks);
  int n_shards = 0;
  for (int i = 0; i < o->n_sources; i++) n_shards += wr_data_is_shards(o->sources[i].path);
  if (n_shards != 0 && n_shards != o->n_sources)
    return wr_fail(WEIR_EUSAGE, "shards and text cannot be mixed; build shards of the text with 'weir data build'");
  return n_shards ? wr_shards_open(o, out) : wr_ring_open(o, out);
}

void wr_data_close(wr_data *d) {
  if (d) d->ops->close(d);
}

void wr_data_get_info(const wr_data *d, wr_data_info *out) { d->ops->info(d, out); }

weir_status wr_data_next(wr_data *d, int64_t n, wr_sample *out, int64_t *n_out) { return d->ops->next(d, n, out, n_out); }

void wr_data_tell(const wr_data *d, wr_data_position *out) { d->ops->tell(d, out); }

weir_status wr_data_seek(wr_data *d, const wr_data_position *position) { return d->ops->seek(d, position); }
