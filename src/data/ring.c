/* ring.c: owns text that is trained on directly: worker threads tokenise it into a ring of shared memory, samples are views into that.
 *
 * The tokens of an epoch are one stream, cut into *groups* of shuffle_window * context_tok tokens (and one more: the last target, which
 * is also the first input of the next group). A group lies in one of the ring's GROUPS buffers; its samples are permuted within it
 * by (seed, epoch, where it begins), so the order is the file's with a window of shuffling, and the same on every run.
 *
 *   a worker:   reads a block (one at a time, in turn), encodes it, waits until all blocks before it are stored, stores its tokens
 *   next():     takes samples of the current group; buffers are given back at the call after the one that left them
 *
 * Text that is one group or less is tokenised once and kept. Otherwise each epoch is read again. A call may touch three groups (the last
 * whole one of an epoch, its short rest, the first of the next), so a fourth can always be filled.
 *
 * The ring is a memfd, reserved with fallocate when it is opened, so memory that is not there is a sentence then and no bus error later;
 * it has no name, so nothing is left of it whatever ends the process. Nothing is forked. Where memfd is not allowed, anonymous memory
 * serves: the workers are threads.
 *
 * Position: where the current group's first token comes from (block, tokens to skip in it) and how many samples came before.
 */
#include "data/data_i.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define GROUPS 4u
#define WINDOW ((int64_t)1024)
#define MAX_WORKERS 256

typedef struct group {
  uint64_t start;     /* samples of the run before it */
  uint64_t epoch, id; /* id: samples of the epoch before it */
  uint64_t byte, doc, skip;
  uint64_t n_tok, n_samples;
  uint64_t *ends; /* of its documents, in its tokens */
  size_t n_ends, cap_ends;
} group;

typedef struct worker {
  struct ring *ring;
  pthread_t thread;
  wr_encoder *encoder;
  wr_text_block block;
  wr_encoded encoded;
} worker;

typedef struct ring {
  wr_data data;
  const wr_tokenizer *t;
  wr_framing framing;
  char **paths;
  int n_paths;
  wr_text_input_options input_options;
  wr_text_input *input;
  bool validation;
  int64_t T;
  uint64_t seed, window, group_tok; /* group_tok: tokens of a whole group, with the last target */
  int width;
  uint8_t *memory;
  size_t bytes;
  uint64_t base, taken, rank, ranks;
  wr_data_info info;
  worker *workers;
  int n_workers, n_started;

  pthread_mutex_t lock; /* of all below */
  pthread_cond_t changed;
  bool reading, stop, at_end; /* at_end: no block comes any more */
  uint64_t n_read, n_stored;  /* blocks, and ends of epochs */
  uint64_t read_epoch;
  group groups[GROUPS];
  uint64_t filling, oldest, current; /* numbers of groups; those in [oldest, filling) are whole and in use, `filling` grows */
  bool begun;                        /* the group `filling` has a first token */
  uint64_t next_start, next_id;      /* start and id of the next group to begin */
  uint64_t resume_skip;              /* tokens of the first block to pass over */
  bool first_block;
  bool part_only; /* the epoch was not read from its beginning */
  bool whole;     /* the last group is all of the text, for every epoch from its own on */
  uint64_t epoch_docs;
  weir_status status;
  char sentence[512];
} ring;

/* --------------------------------------------------------------------------------------------------------------- storing */

static uint8_t *tokens_of(const ring *r, uint64_t g) { return r->memory + (g % GROUPS) * r->group_tok * (uint64_t)r->width; }

static void put_tokens(uint8_t *to, int width, const int32_t *ids, size_t n) {
  if (width == 4) {
    memcpy(to, ids, n * 4);
    return;
  }
  uint16_t *narrow = (uint16_t *)(void *)to;
  for (size_t i = 0; i < n; i++) narrow[i] = (uint16_t)ids[i];
}

/* With the lock: the group that grows is as long as it will be. */
static void end_group(ring *r) {
  group *g = &r->groups[r->filling % GROUPS];
  g->n_samples = g->n_tok < 2 ? 0 : (g->n_tok - 1 + (uint64_t)r->T - 1) / (uint64_t)r->T;
  if (g->n_tok && (!g->n_ends || g->ends[g->n_ends - 1] < g->n_tok)) g->ends[g->n_ends++] = g->n_tok; /* one that goes on */
  r->next_start += g->n_samples;
  r->next_id += g->n_samples;
  r->begun = false;
  r->filling++;
  pthread_cond_broadcast(&r->changed);
}

/* With the lock, which is given up while a buffer is waited for. The group begins with token `at` of the block. false: stop. */
static bool begin_group(ring *r, const worker *w, size_t at, uint64_t epoch) {
  while (!r->stop && r->filling >= r->oldest + GROUPS) pthread_cond_wait(&r->changed, &r->lock);
  if (r->stop) return false;
  group *g = &r->groups[r->filling % GROUPS];
  uint64_t *ends = g->ends;
  const size_t cap = g->cap_ends;
  *g = (group){.start = r->next_start,
               .epoch = epoch,
               .id = r->next_id,
               .byte = w->block.byte,
               .doc = w->block.doc,
               .skip = at,
               .ends = ends,
               .cap_ends = cap};
  r->begun = true;
  return true;
}

/* In the worker's turn, with the lock. */
static weir_status store_block(ring *r, worker *w, uint64_t epoch) {
  WR_TRY(wr_text_input_settle(r->input, &w->block));
  const wr_encoded *e = &w->encoded;
  size_t at = 0, end = 0;
  if (r->first_block) {
    at = (size_t)WR_MIN(r->resume_skip, (uint64_t)e->ids.len);
    while (end < e->n_ends && e->ends[end] <= at) end++;
    r->first_block = false;
  }
  r->epoch_docs += e->n_ends;
  while (at < e->ids.len) {
    if (!r->begun && !begin_group(r, w, at, epoch)) return WEIR_OK;
    group *g = &r->groups[r->filling % GROUPS];
    const size_t n = (size_t)WR_MIN((uint64_t)(e->ids.len - at), r->group_tok - g->n_tok);
    uint8_t *to = tokens_of(r, r->filling) + g->n_tok * (uint64_t)r->width;
    size_t n_ends = 0;
    while (end + n_ends < e->n_ends && e->ends[end + n_ends] <= at + n) n_ends++;
    if (!wr_grow((void **)&g->ends, &g->cap_ends, g->n_ends + n_ends + 1, sizeof *g->ends))
      return wr_fail_nomem((g->n_ends + n_ends + 1) * sizeof *g->ends, "the ends of documents");
    put_tokens(to, r->width, e->ids.ptr + at, n);
    for (size_t i = 0; i < n_ends; i++) g->ends[g->n_ends++] = g->n_tok + (e->ends[end + i] - at);
    g->n_tok += n;
    at += n;
    end += n_ends;
    if (g->n_tok < r->group_tok) break;
    end_group(r);
    at--; /* the last target is the next group's first input */
    while (end && e->ends[end - 1] > at) end--;
  }
  return WEIR_OK;
}

/* In turn, with the lock: the text of an epoch has ended. */
static weir_status store_end(ring *r) {
  const bool one = r->begun && r->groups[r->filling % GROUPS].id == 0;
  const group *g = &r->groups[r->filling % GROUPS];
  if (!r->part_only) WR_TRY(wr_text_input_end(r->input));
  r->part_only = false;
  const uint64_t n = r->begun ? g->n_tok : 0, need = r->validation ? 2 : (uint64_t)r->T + 1;
  if (r->next_id == 0 && n < need) {
    const char *name = wr_escape(r->paths[0], strlen(r->paths[0]));
    if (r->validation) return wr_fail(WEIR_EUSAGE, "%s: the validation split is empty; ask for a larger share", name);
    return wr_fail(WEIR_EUSAGE, "%s: %llu tokens, need at least context + 1 = %lld; take a shorter context or more text", name,
                   (unsigned long long)n, (long long)r->T + 1);
  }
  if (one) {
    r->info.tokens = g->n_tok;
    r->info.docs = r->epoch_docs;
  }
  if (r->begun) end_group(r);
  if (one) {
    r->whole = true;
    r->info.samples = r->next_id;
  }
  r->next_id = 0;
  r->epoch_docs = 0;
  return WEIR_OK;
}

/* --------------------------------------------------------------------------------------------------------------- workers */

static weir_status take_piece(void *user, const wr_text_piece *piece) {
  worker *w = user;
  const ring *r = w->ring;
  if (piece->validation != r->validation) return WEIR_OK;
  const weir_status s = wr_encode_piece(w->encoder, &r->framing, piece, &w->encoded);
  return s == WEIR_OK ? s : wr_fail_prefix(s, "%s: ", wr_escape(w->block.path, strlen(w->block.path)));
}

static void note_failure(ring *r, weir_status s) { /* with the lock */
  if (s == WEIR_OK) return;
  if (r->status == WEIR_OK) {
    r->status = s;
    snprintf(r->sentence, sizeof r->sentence, "%s", weir_last_error());
  }
  r->stop = true;
  pthread_cond_broadcast(&r->changed);
}

/* With the lock, given up meanwhile: one block, or the end of an epoch (block.n == 0). false: there is no more to do. */
static bool read_next(ring *r, worker *w, uint64_t *turn, uint64_t *epoch) {
  while (r->reading && !r->stop && !r->at_end) pthread_cond_wait(&r->changed, &r->lock);
  if (r->stop || r->at_end) return false;
  r->reading = true;
  pthread_mutex_unlock(&r->lock);
  weir_status s = wr_text_input_read(r->input, &w->block);
  const bool end = s == WEIR_OK && w->block.n == 0;
  if (end && !r->validation) s = wr_text_input_seek(r->input, 0, 0, 0);
  pthread_mutex_lock(&r->lock);
  r->reading = false;
  *turn = r->n_read++;
  *epoch = r->read_epoch;
  if (end) {
    r->read_epoch++;
    r->at_end = r->validation;
  }
  note_failure(r, s);
  pthread_cond_broadcast(&r->changed);
  return s == WEIR_OK;
}

static void *work(void *arg) {
  worker *w = arg;
  ring *r = w->ring;
  pthread_mutex_lock(&r->lock);
  for (uint64_t turn, epoch; read_next(r, w, &turn, &epoch);) {
    weir_status s = WEIR_OK;
    const bool end = w->block.n == 0;
    if (!end) {
      pthread_mutex_unlock(&r->lock);
      wr_encoded_clear(&w->encoded);
      s = wr_text_block_each(r->input, &w->block, take_piece, w);
      pthread_mutex_lock(&r->lock);
    }
    while (!r->stop && r->n_stored != turn) pthread_cond_wait(&r->changed, &r->lock);
    if (!r->stop && !r->whole && s == WEIR_OK) s = end ? store_end(r) : store_block(r, w, epoch);
    if (s != WEIR_OK) note_failure(r, s);
    r->n_stored++;
    if (r->whole) r->stop = true;
    pthread_cond_broadcast(&r->changed);
  }
  pthread_mutex_unlock(&r->lock);
  return NULL;
}

static void stop_workers(ring *r) {
  pthread_mutex_lock(&r->lock);
  r->stop = true;
  pthread_cond_broadcast(&r->changed);
  pthread_mutex_unlock(&r->lock);
  for (int i = 0; i < r->n_started; i++) pthread_join(r->workers[i].thread, NULL);
  r->n_started = 0;
}

/* Signals are for the program's own threads. */
static weir_status start_workers(ring *r) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int err = 0;
  for (; r->n_started < r->n_workers; r->n_started++) {
    worker *w = &r->workers[r->n_started];
    err = pthread_create(&w->thread, NULL, work, w);
    if (err) break;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (r->n_started) return WEIR_OK; /* fewer do the same */
  errno = err;
  return wr_fail_errno(WEIR_ENOMEM, "data", "start a worker thread");
}

/* ------------------------------------------------------------------------------------------------------------ operations */

/* With the lock: group n is whole, or never will be (false). */
static bool wait_for_group(ring *r, uint64_t n) {
  while (n >= r->filling && !r->stop && !(r->at_end && r->n_stored == r->n_read)) pthread_cond_wait(&r->changed, &r->lock);
  return n < r->filling;
}

/* The group of sample p of the run, from the current one on; *epoch as it is for p. NULL: none, or a failure. */
static const group *find_group(ring *r, uint64_t p, uint64_t *epoch) {
  for (;;) {
    if (!wait_for_group(r, r->current)) return NULL;
    const group *g = &r->groups[r->current % GROUPS];
    const bool all = r->whole && r->current + 1 == r->filling;
    const uint64_t at = p - g->start;
    *epoch = g->epoch + (all ? at / g->n_samples : 0);
    if (all || at < g->n_samples) return g;
    if (r->whole && r->current + 1 >= r->filling) return NULL;
    if (!wait_for_group(r, r->current + 1)) return NULL; /* the old one stays current: tell() names it */
    r->current++;
  }
}

static void sample_of(const ring *r, const group *g, uint64_t p, uint64_t epoch, wr_sample *out) {
  const uint64_t at = (p - g->start) % g->n_samples;
  const uint64_t i = r->validation ? at : wr_permute(g->n_samples, r->seed, epoch ^ g->id << 20, at);
  const uint64_t from = i * (uint64_t)r->T, to = WR_MIN(g->n_tok, from + (uint64_t)r->T + 1);
  *out = (wr_sample){.tokens = tokens_of(r, r->current) + from * (uint64_t)r->width,
                     .token_bytes = r->width,
                     .n_tok = (int64_t)(to - from),
                     .id = g->id + i,
                     .epoch = epoch,
                     .first_tok = from};
  out->doc_ends = wr_doc_ends_find(g->ends, g->n_ends, from, to, &out->n_docs);
}

static weir_status ring_next(wr_data *d, int64_t n, wr_sample *out, int64_t *n_out) {
  ring *r = (ring *)d;
  if (n < 0 || (uint64_t)n > r->window / r->ranks)
    return wr_fail(WEIR_EUSAGE,
                   "%lld samples at once for each of %llu processes, of a shuffle window of %llu; take a larger window",
                   (long long)n, (unsigned long long)r->ranks, (unsigned long long)r->window);
  pthread_mutex_lock(&r->lock);
  r->oldest = r->current;
  pthread_cond_broadcast(&r->changed);
  int64_t i = 0;
  for (; i < n; i++) {
    const uint64_t p = r->base + r->rank + r->taken * r->ranks;
    uint64_t epoch;
    const group *g = find_group(r, p, &epoch);
    if (!g || (r->validation && p - g->start >= g->n_samples)) break;
    sample_of(r, g, p, epoch, &out[i]);
    r->taken++;
  }
  const weir_status s = i < n && r->status != WEIR_OK ? wr_fail(r->status, "%s", r->sentence) : WEIR_OK;
  pthread_mutex_unlock(&r->lock);
  if (s == WEIR_OK) *n_out = i;
  return s;
}

static void ring_tell(const wr_data *d, wr_data_position *out) {
  ring *r = (ring *)(uintptr_t)d; /* the lock is not part of what is told */
  pthread_mutex_lock(&r->lock);
  *out = (wr_data_position){.taken = r->base + r->taken * r->ranks};
  if (r->current < r->filling) {
    const group *g = &r->groups[r->current % GROUPS];
    const bool all = r->whole && r->current + 1 == r->filling && g->n_samples;
    const uint64_t epochs = all && out->taken > g->start ? (out->taken - g->start) / g->n_samples : 0;
    out->epoch = g->epoch + epochs;
    out->group = g->start + epochs * g->n_samples;
    out->doc = g->doc;
    out->byte = g->byte;
    out->skip = g->skip;
    out->id = g->id;
  }
  pthread_mutex_unlock(&r->lock);
}

static weir_status ring_seek(wr_data *d, const wr_data_position *p) {
  ring *r = (ring *)d;
  if (p->taken < p->group || p->taken - p->group > r->window + r->ranks)
    return wr_fail(WEIR_EFORMAT, "sample %llu is not in the group of samples that begins with %llu: no position in a text",
                   (unsigned long long)p->taken, (unsigned long long)p->group);
  stop_workers(r);
  wr_text_input_close(r->input);
  r->input = NULL;
  WR_TRY(wr_text_input_open(&r->input_options, &r->input));
  WR_TRY(wr_text_input_seek(r->input, p->byte, 0, p->doc));
  r->base = p->taken;
  r->taken = 0;
  r->stop = r->at_end = r->reading = r->begun = r->whole = false;
  r->n_read = r->n_stored = r->filling = r->oldest = r->current = r->epoch_docs = 0;
  r->read_epoch = p->epoch;
  r->next_start = p->group;
  r->next_id = p->id;
  r->resume_skip = p->skip;
  r->first_block = true;
  r->part_only = p->byte > 0;
  r->status = WEIR_OK;
  r->info.tokens = r->info.samples = r->info.docs = 0;
  r->info.id = wr_text_input_id(r->input);
  WR_TRY(start_workers(r));
  /* what is wrong with the text is said now, not at the first step */
  pthread_mutex_lock(&r->lock);
  wait_for_group(r, 0);
  const weir_status s = r->status == WEIR_OK ? WEIR_OK : wr_fail(r->status, "%s", r->sentence);
  pthread_mutex_unlock(&r->lock);
  return s;
}

static void ring_info(const wr_data *d, wr_data_info *out) {
  ring *r = (ring *)(uintptr_t)d;
  pthread_mutex_lock(&r->lock);
  *out = r->info;
  pthread_mutex_unlock(&r->lock);
}

static void ring_close(wr_data *d) {
  ring *r = (ring *)d;
  stop_workers(r);
  for (int i = 0; r->workers && i < r->n_workers; i++) {
    wr_encoder_close(r->workers[i].encoder);
    wr_text_block_free(&r->workers[i].block);
    wr_encoded_free(&r->workers[i].encoded);
  }
  for (unsigned i = 0; i < GROUPS; i++) wr_free(r->groups[i].ends);
  for (int i = 0; r->paths && i < r->n_paths; i++) wr_free(r->paths[i]);
  if (r->memory) munmap(r->memory, r->bytes);
  wr_text_input_close(r->input);
  wr_free((void *)(uintptr_t)r->input_options.field);
  wr_free(r->paths);
  wr_free(r->workers);
  pthread_mutex_destroy(&r->lock);
  pthread_cond_destroy(&r->changed);
  wr_free(r);
}

/* --------------------------------------------------------------------------------------------------------------- opening */

static weir_status no_memory(const ring *r, const char *why) {
  char size[16];
  wr_size_text(size, r->bytes);
  return wr_fail(WEIR_ENOMEM,
                 "no %s of shared memory for the ring of tokens (%s); a smaller shuffle window or context needs less", size,
                 why);
}

/* Memory of its own where memfd is not to be had: the workers are threads, so it serves as well. */
static weir_status reserve_anonymous(ring *r) {
  void *p = mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (p == MAP_FAILED) return no_memory(r, "it was refused");
  r->memory = p;
  return WEIR_OK;
}

/* fallocate takes pages until there are none, so what is there is looked at first. */
static weir_status reserve(ring *r) {
  struct rlimit limit;
  char reason[96];
  const uint64_t available = wr_memory_available();
  if (r->bytes > available) {
    wr_size_text(reason, available);
    return no_memory(r, strcat(reason, " are free"));
  }
  const bool limited = getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < r->bytes; /* would be a signal, not an error */
  const int fd = limited ? -1 : memfd_create("weir-ring", MFD_CLOEXEC);
  if (fd < 0) return reserve_anonymous(r);
  int err = ftruncate(fd, (off_t)r->bytes) == 0 ? 0 : errno;
  while (!err && fallocate(fd, 0, 0, (off_t)r->bytes) != 0)
    if (errno != EINTR) err = errno;
  void *p = err ? MAP_FAILED : mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (!err && p == MAP_FAILED) err = errno;
  close(fd);
  if (err == EOPNOTSUPP || err == EPERM || err == ENOSYS) return reserve_anonymous(r);
  if (err) return no_memory(r, strerror_r(err, reason, sizeof reason));
  r->memory = p;
  return WEIR_OK;
}

static const wr_data_ops ring_ops = {ring_close, ring_info, ring_next, ring_tell, ring_seek};

static weir_status open_parts(ring *r, const wr_data_options *o) {
  r->paths = wr_calloc((size_t)o->n_sources, sizeof *r->paths);
  r->workers = wr_calloc((size_t)r->n_workers, sizeof *r->workers);
  if (!r->paths || !r->workers) return wr_fail_nomem((size_t)o->n_sources * sizeof *r->paths, "the data");
  r->n_paths = o->n_sources;
  for (int i = 0; i < o->n_sources; i++) {
    if (o->sources[i].weight > 0)
      return wr_fail(WEIR_EUSAGE, "%s: text cannot be weighted; build shards of it with 'weir data build'", o->sources[i].path);
    if (strcmp(o->sources[i].path, "-") == 0)
      return wr_fail(WEIR_EUSAGE, "standard input can be read only once; build shards of it with 'weir data build -'");
    r->paths[i] = wr_strdup(o->sources[i].path);
    if (!r->paths[i]) return wr_fail_nomem(strlen(o->sources[i].path), "a path");
  }
  r->input_options = (wr_text_input_options){.paths = (const char *const *)r->paths,
                                             .n_paths = r->n_paths,
                                             .tokenizer = r->t,
                                             .val_share = o->val_share == 0 ? 0.01 : o->val_share,
                                             .max_bad = o->max_bad};
  if (o->field && !(r->input_options.field = wr_strdup(o->field))) return wr_fail_nomem(strlen(o->field), "the data");
  for (int i = 0; i < r->n_workers; i++) {
    r->workers[i].ring = r;
    WR_TRY(wr_encoder_open(r->t, &r->workers[i].encoder));
  }
  WR_TRY(reserve(r));
  return ring_seek(&r->data, &(wr_data_position){0});
}

weir_status wr_ring_open(const wr_data_options *o, wr_data **out) {
  if (!o->tokenizer) return wr_fail(WEIR_EUSAGE, "%s: text needs a tokenizer", o->sources[0].path);
  if (o->workers < 0 || o->workers > MAX_WORKERS)
    return wr_fail(WEIR_EUSAGE, "%d workers; 0 (one) to %d are possible", o->workers, MAX_WORKERS);
  if (o->shuffle_window < 0 || o->shuffle_window > (int64_t)1 << 40)
    return wr_fail(WEIR_EUSAGE, "a shuffle window of %lld samples", (long long)o->shuffle_window);
  ring *r = wr_calloc(1, sizeof *r);
  if (!r) return wr_fail_nomem(sizeof *r, "the data");
  r->data.ops = &ring_ops;
  r->t = o->tokenizer;
  r->framing = wr_framing_of(o->tokenizer);
  r->T = o->context_tok;
  r->seed = o->seed;
  r->validation = o->validation;
  r->rank = (uint64_t)o->rank;
  r->ranks = (uint64_t)WR_MAX(o->ranks, 1);
  r->n_workers = WR_MAX(o->workers, 1);
  r->window = (uint64_t)(o->shuffle_window ? o->shuffle_window : WINDOW);
  r->width = wr_token_width(wr_tokenizer_size(o->tokenizer));
  pthread_mutex_init(&r->lock, NULL);
  pthread_cond_init(&r->changed, NULL);
  weir_status s = WEIR_OK;
  if (__builtin_mul_overflow(r->window, (uint64_t)r->T, &r->group_tok) || r->group_tok > UINT64_MAX / 64)
    s = wr_fail(WEIR_ENOMEM, "a shuffle window of %llu samples of %lld tokens does not fit into memory",
                (unsigned long long)r->window, (long long)r->T);
  r->group_tok++;
  r->bytes = (size_t)(GROUPS * r->group_tok * (uint64_t)r->width);
  r->info = (wr_data_info){.mapped_bytes = r->bytes,
                           .vocab = (int64_t)wr_tokenizer_size(o->tokenizer),
                           .tokenizer_hash = wr_tokenizer_hash(o->tokenizer),
                           .text = true};
  if (s == WEIR_OK) s = open_parts(r, o);
  if (s != WEIR_OK) {
    ring_close(&r->data);
    return s;
  }
  *out = &r->data;
  return WEIR_OK;
}
