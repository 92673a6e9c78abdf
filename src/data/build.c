/* build.c: owns the making of a folder of shards: text in, encoded by a team of threads, written in the order of the input.
 *
 * A queue of slots, each a block of text. Whoever of the team has nothing to encode writes the oldest block if it is encoded, or reads
 * the next one if a slot is free; one thread reads and one writes at a time, so the output does not depend on the number of threads.
 *
 * A shard is closed at the first block's end after shard_tok tokens, and says which block is next. A build that was interrupted begins
 * with the first block again, but encodes only blocks that are in no shard yet: what is skipped costs a read (and of JSONL a scan, which
 * counts bad records again). build.json marks the folder until manifest.json takes its place.
 */
#include "data/data_i.h"

#include <dirent.h>
#include <pthread.h>
#include <unistd.h>

#define SHARD_TOK ((int64_t)64 << 20)
#define SLOTS_A_THREAD 3

typedef enum slot_state { FREE, BUSY, ENCODED } slot_state;

typedef struct slot {
  slot_state state;
  wr_text_block block;
  wr_encoded part[WR_SPLITS];
} slot;

typedef struct output { /* a split that grows */
  wr_shard_writer *writer;
  uint64_t skip; /* blocks before it are in shards already */
  bool in_doc;   /* the last token written is not the end of its document */
} output;

typedef struct build {
  const wr_tokenizer *t;
  wr_framing framing;
  const char *folder;
  wr_text_input *input;
  int64_t shard_tok;
  wr_shards_manifest manifest;
  output out[WR_SPLITS];
  int (*progress)(void *user, const weir_data_progress *p);
  void *user;
  uint64_t begin_ns, tokens; /* tokens: written by this run */
  wr_encoder **encoders;     /* [threads] */

  pthread_mutex_t lock; /* of all below */
  pthread_cond_t changed;
  slot *slots;
  size_t n_slots, head, tail; /* blocks [head, tail) are in slots, block i in slot i % n_slots */
  bool reading, writing, at_end;
  weir_data_progress now;
  weir_status status;
  char sentence[512]; /* weir_last_error is of a thread, and the failing one may not be the caller's */
} build;

/* ---------------------------------------------------------------------------------------------------------------- a block */

typedef struct encoding {
  build *b;
  wr_encoder *encoder;
  slot *slot;
} encoding;

static weir_status encode_piece(void *user, const wr_text_piece *piece) {
  encoding *e = user;
  const int split = piece->validation ? WR_SPLIT_VAL : WR_SPLIT_TRAIN;
  if (e->slot->block.number < e->b->out[split].skip) return WEIR_OK;
  const weir_status s = wr_encode_piece(e->encoder, &e->b->framing, piece, &e->slot->part[split]);
  return s == WEIR_OK ? s : wr_fail_prefix(s, "%s: ", wr_escape(e->slot->block.path, strlen(e->slot->block.path)));
}

static weir_status encode_block(build *b, slot *s, wr_encoder *encoder) {
  for (int i = 0; i < WR_SPLITS; i++) wr_encoded_clear(&s->part[i]);
  return wr_text_block_each(b->input, &s->block, encode_piece, &(encoding){b, encoder, s});
}

static weir_status begin_shard(build *b, int split) {
  char file[32];
  snprintf(file, sizeof file, "%s-%05zu.bin", wr_split_names[split], b->manifest.split[split].n);
  char *path = wr_path_join(b->folder, file);
  if (!path) return wr_fail_nomem(strlen(b->folder), "a path");
  const weir_status s =
      wr_shard_writer_open(path, b->manifest.vocab, b->manifest.tokenizer_hash, b->manifest.build, &b->out[split].writer);
  wr_free(path);
  return s;
}

/* Adds the shard that stands in the folder as the split's next one. */
static weir_status list_shard(build *b, int split, wr_shard *shard, const char *file) {
  return wr_shards_manifest_add(&b->manifest.split[split], file, shard->head) ? WEIR_OK : wr_fail_nomem(64, "a manifest");
}

static weir_status open_nth(const build *b, int split, size_t n, char file[32], wr_shard *out) {
  snprintf(file, 32, "%s-%05zu.bin", wr_split_names[split], n);
  char *path = wr_path_join(b->folder, file);
  if (!path) return wr_fail_nomem(strlen(b->folder), "a path");
  const weir_status s = access(path, F_OK) == 0 ? wr_shard_open(path, out) : WEIR_EIO;
  wr_free(path);
  return s;
}

static weir_status end_shard(build *b, int split, uint64_t next_block) {
  output *o = &b->out[split];
  WR_TRY(wr_shard_writer_finish(o->writer, o->in_doc, next_block));
  wr_shard_writer_close(o->writer);
  o->writer = NULL;
  char file[32];
  wr_shard shard;
  WR_TRY(open_nth(b, split, b->manifest.split[split].n, file, &shard));
  const weir_status s = list_shard(b, split, &shard, file);
  wr_shard_close(&shard);
  return s;
}

static weir_status write_part(build *b, int split, const wr_encoded *p, uint64_t number) {
  output *o = &b->out[split];
  if (!p->ids.len || number < o->skip) return WEIR_OK;
  if (!o->writer) WR_TRY(begin_shard(b, split));
  size_t from = 0;
  for (size_t i = 0; i < p->n_ends; i++) {
    WR_TRY(wr_shard_writer_put(o->writer, p->ids.ptr + from, p->ends[i] - from));
    WR_TRY(wr_shard_writer_end_doc(o->writer));
    from = p->ends[i];
  }
  WR_TRY(wr_shard_writer_put(o->writer, p->ids.ptr + from, p->ids.len - from));
  o->in_doc = from < p->ids.len;
  b->tokens += p->ids.len;
  return wr_shard_writer_tokens(o->writer) >= (uint64_t)b->shard_tok ? end_shard(b, split, number + 1) : WEIR_OK;
}

static weir_status write_block(build *b, const slot *s) {
  WR_TRY(wr_text_input_settle(b->input, &s->block));
  for (int i = 0; i < WR_SPLITS; i++) WR_TRY(write_part(b, i, &s->part[i], s->block.number));
  return WEIR_OK;
}

/* --------------------------------------------------------------------------------------------------------------- the team */

/* With the lock. The first failure is the build's. */
static void note_failure(build *b, weir_status s) {
  if (s == WEIR_OK || b->status != WEIR_OK) return;
  b->status = s;
  snprintf(b->sentence, sizeof b->sentence, "%s", weir_last_error());
}

static void tell_progress(build *b) {
  pthread_mutex_lock(&b->lock);
  weir_data_progress p = b->now;
  pthread_mutex_unlock(&b->lock);
  p.seconds = (double)(wr_now_ns() - b->begin_ns) * 1e-9;
  if (b->progress(b->user, &p) == 0) return;
  pthread_mutex_lock(&b->lock);
  note_failure(b, wr_fail(WEIR_ESTOPPED, "the build was stopped; started again it goes on after its last whole shard"));
  pthread_mutex_unlock(&b->lock);
}

/* With the lock: does what there is to do until a block can be encoded. NULL: nothing more comes. */
static slot *next_slot(build *b) {
  for (;;) {
    slot *oldest = &b->slots[b->head % b->n_slots], *newest = &b->slots[b->tail % b->n_slots];
    if (b->status != WEIR_OK || (b->at_end && b->head == b->tail)) return NULL;
    if (!b->writing && b->head < b->tail && oldest->state == ENCODED) {
      b->writing = true;
      pthread_mutex_unlock(&b->lock);
      wr_text_counts counts;
      const weir_status s = write_block(b, oldest);
      wr_text_input_counts(b->input, &counts);
      pthread_mutex_lock(&b->lock);
      b->writing = false;
      b->now.bytes = counts.bytes;
      b->now.tokens = b->tokens;
      note_failure(b, s);
      oldest->state = FREE;
      b->head++;
      pthread_cond_broadcast(&b->changed);
    } else if (!b->reading && !b->at_end && newest->state == FREE) {
      b->reading = true;
      pthread_mutex_unlock(&b->lock);
      const weir_status s = wr_text_input_read(b->input, &newest->block);
      const double done = wr_text_input_done(b->input);
      pthread_mutex_lock(&b->lock);
      b->reading = false;
      b->now.done = done;
      note_failure(b, s);
      b->at_end = s == WEIR_OK && newest->block.n == 0;
      pthread_cond_broadcast(&b->changed);
      if (s != WEIR_OK || b->at_end) continue;
      newest->state = BUSY;
      b->tail++;
      return newest;
    } else {
      pthread_cond_wait(&b->changed, &b->lock);
    }
  }
}

static void work(void *arg, int tid, int n_threads) {
  build *b = arg;
  (void)n_threads;
  uint64_t told = b->begin_ns;
  for (;;) {
    pthread_mutex_lock(&b->lock);
    slot *s = next_slot(b);
    if (!s) pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    if (!s) return;
    const weir_status status = encode_block(b, s, b->encoders[tid]);
    pthread_mutex_lock(&b->lock);
    note_failure(b, status);
    s->state = ENCODED;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    if (tid == 0 && b->progress && wr_now_ns() - told > 100000000u) {
      told = wr_now_ns();
      tell_progress(b);
    }
  }
}

static weir_status run_team(build *b, int threads) {
  wr_team *team;
  WR_TRY(wr_team_open(threads, false, &team));
  const size_t n = (size_t)wr_team_size(team);
  b->n_slots = n * SLOTS_A_THREAD;
  b->slots = wr_calloc(b->n_slots, sizeof *b->slots);
  b->encoders = wr_calloc(n, sizeof *b->encoders);
  weir_status s = b->slots && b->encoders ? WEIR_OK : wr_fail_nomem(b->n_slots * sizeof *b->slots, "building shards");
  for (size_t i = 0; s == WEIR_OK && i < n; i++) s = wr_encoder_open(b->t, &b->encoders[i]);
  if (s == WEIR_OK) {
    wr_team_run(team, work, b);
    s = b->status == WEIR_OK ? WEIR_OK : wr_fail(b->status, "%s", b->sentence);
  }
  for (size_t i = 0; b->encoders && i < n; i++) wr_encoder_close(b->encoders[i]);
  wr_free(b->encoders);
  wr_team_close(team);
  return s;
}

/* -------------------------------------------------------------------------------------------------------------- the folder */

static char *in_folder(const build *b, const char *file, weir_status *s) {
  char *path = wr_path_join(b->folder, file);
  if (!path && *s == WEIR_OK) *s = wr_fail_nomem(strlen(b->folder), "a path");
  return path;
}

static weir_status write_tokenizer(const build *b) {
  weir_status s = WEIR_OK;
  char *path = in_folder(b, "tokenizer.gguf", &s);
  wr_gguf_writer *w = NULL;
  if (s == WEIR_OK) s = wr_gguf_writer_open(path, 0, &w);
  if (s == WEIR_OK) s = wr_vocab_put_gguf(b->t, w);
  if (s == WEIR_OK) s = wr_gguf_writer_finish(w);
  wr_gguf_writer_close(w);
  wr_free(path);
  return s;
}

/* The shards of this build that are whole already. */
static weir_status take_over(build *b) {
  for (int split = 0; split < WR_SPLITS; split++) {
    for (;;) {
      char file[32];
      wr_shard shard;
      const weir_status s = open_nth(b, split, b->manifest.split[split].n, file, &shard);
      if (s == WEIR_ENOMEM) return s;
      if (s != WEIR_OK) break; /* not there, or damaged: from here on it is built again */
      const bool ours = shard.head->build == b->manifest.build;
      const weir_status listed = ours ? list_shard(b, split, &shard, file) : WEIR_OK;
      b->out[split].skip = shard.head->next_block;
      b->out[split].in_doc = shard.head->continues;
      wr_shard_close(&shard);
      WR_TRY(listed);
      if (!ours) return wr_fail(WEIR_EUSAGE, "%s/%s is of another build; remove the folder or choose another", b->folder, file);
    }
  }
  return WEIR_OK;
}

static bool has_shards(const build *b) {
  bool has = false;
  for (int split = 0; split < WR_SPLITS; split++) {
    char file[32];
    snprintf(file, sizeof file, "%s-00000.bin", wr_split_names[split]);
    char *path = wr_path_join(b->folder, file);
    has |= !path || access(path, F_OK) == 0;
    wr_free(path);
  }
  return has;
}

/* The marker comes last: a folder that has one has the tokenizer too. */
static weir_status mark_folder(const build *b, const char *marker, const char *text, size_t n) {
  WR_TRY(write_tokenizer(b));
  return wr_file_write_atomic(marker, text, n);
}

/* Temporary files that a killed build left: a name of ours, something, ".tmp". Never another one. */
static void remove_leftovers(const build *b) {
  static const char *const ours[] = {"manifest.json.", "build.json.", "tokenizer.gguf.", "train-", "val-"};
  DIR *dir = opendir(b->folder);
  for (struct dirent *e; dir && (e = readdir(dir));) {
    const size_t n = strlen(e->d_name);
    bool is = false;
    for (size_t i = 0; i < WR_ARRAY_LEN(ours); i++) is |= strncmp(e->d_name, ours[i], strlen(ours[i])) == 0;
    if (!is || n < 4 || strcmp(e->d_name + n - 4, ".tmp") != 0) continue;
    char *path = wr_path_join(b->folder, e->d_name);
    if (path) wr_os_unlink(path);
    wr_free(path);
  }
  if (dir) closedir(dir);
}

/* What stands in the folder: nothing, this build unfinished, this build finished (*whole), or something else. */
static weir_status enter_folder(build *b, bool again, bool *whole) {
  weir_status s = wr_mkdir_p(b->folder);
  char *marker = in_folder(b, "build.json", &s), *manifest = in_folder(b, "manifest.json", &s), want[64];
  const int n = snprintf(want, sizeof want, "{\"build\": \"%016llx\"}\n", (unsigned long long)b->manifest.build);
  *whole = false;
  if (s == WEIR_OK && access(manifest, F_OK) == 0) {
    wr_shards_manifest m = {0};
    s = wr_shards_manifest_read(b->folder, &m);
    if (s == WEIR_OK && again && m.build == b->manifest.build) {
      wr_shards_manifest_free(&b->manifest);
      b->manifest = m;
      *whole = true;
      if (access(marker, F_OK) == 0) wr_os_unlink(marker); /* killed between the two */
      remove_leftovers(b);
    } else if (s == WEIR_OK) {
      wr_shards_manifest_free(&m);
      s = wr_fail(WEIR_EUSAGE, "%s: holds shards of other text or options; remove it or choose another folder",
                  wr_escape(b->folder, strlen(b->folder)));
    }
  } else if (s == WEIR_OK && access(marker, F_OK) == 0) {
    char *text = NULL;
    size_t len = 0;
    s = wr_file_read(marker, 4096, &text, &len);
    remove_leftovers(b);
    const bool ours = s == WEIR_OK && len == (size_t)n && memcmp(text, want, len) == 0;
    wr_free(text);
    if (s == WEIR_OK && !ours && has_shards(b))
      s = wr_fail(WEIR_EUSAGE, "%s: holds an unfinished build of other text or options; remove it or choose another folder",
                  wr_escape(b->folder, strlen(b->folder)));
    else if (s == WEIR_OK)
      s = ours ? take_over(b) : mark_folder(b, marker, want, (size_t)n);
  } else if (s == WEIR_OK) {
    s = mark_folder(b, marker, want, (size_t)n);
  }
  wr_free(marker);
  wr_free(manifest);
  return s;
}

static weir_status finish(build *b) {
  WR_TRY(wr_text_input_end(b->input));
  for (int i = 0; i < WR_SPLITS; i++)
    if (b->out[i].writer) WR_TRY(end_shard(b, i, b->tail));
  wr_text_counts c;
  wr_text_input_counts(b->input, &c);
  wr_shards_manifest *m = &b->manifest;
  m->bytes = c.bytes;
  m->docs = c.docs;
  m->records = c.records;
  m->bad = c.bad;
  m->empty = c.empty;
  WR_TRY(wr_shards_manifest_write(b->folder, m));
  weir_status s = WEIR_OK;
  char *marker = in_folder(b, "build.json", &s);
  if (marker) wr_os_unlink(marker);
  remove_leftovers(b);
  wr_free(marker);
  return s;
}

/* ------------------------------------------------------------------------------------------------------------- the report */

static void fill_report(const build *b, uint64_t resumed, weir_data_build_report *r) {
  const wr_shards_manifest *m = &b->manifest;
  const wr_manifest_split *train = &m->split[WR_SPLIT_TRAIN], *val = &m->split[WR_SPLIT_VAL];
  wr_text_counts c;
  const wr_text_bad *bad;
  wr_text_input_counts(b->input, &c);
  *r = (weir_data_build_report){.bytes = c.bytes ? c.bytes : m->bytes,
                                .docs = train->docs,
                                .val_docs = val->docs,
                                .tokens = train->tokens,
                                .val_tokens = val->tokens,
                                .records = c.bytes ? c.records : m->records,
                                .bad = c.bytes ? c.bad : m->bad,
                                .empty = c.bytes ? c.empty : m->empty,
                                .not_utf8 = c.not_utf8,
                                .nul = c.nul,
                                .binary_files = c.binary_files,
                                .resumed_tokens = resumed,
                                .shards = (int)(train->n + val->n),
                                .token_bytes = (int)m->token_bytes,
                                .seconds = (double)(wr_now_ns() - b->begin_ns) * 1e-9};
  r->mb_s = r->seconds > 0 ? (double)r->bytes * 1e-6 / r->seconds : 0;
  const uint64_t all = r->tokens + r->val_tokens;
  r->bytes_per_token = all ? (double)r->bytes / (double)all : 0;
  r->n_shown = WR_MIN(wr_text_input_bad(b->input, &bad), (size_t)WEIR_DATA_BAD_SHOWN);
  for (size_t i = 0; i < r->n_shown; i++) {
    snprintf(r->shown[i].where, sizeof r->shown[i].where, "%s", bad[i].where);
    snprintf(r->shown[i].rule, sizeof r->shown[i].rule, "%s", bad[i].rule);
  }
  if (m->val_share > 0 && all && !r->val_tokens)
    snprintf(r->note, sizeof r->note, "the validation split is empty: a share of %.3g of %llu documents is none", m->val_share,
             (unsigned long long)r->docs);
  else if (all && !r->tokens)
    snprintf(r->note, sizeof r->note, "the training split is empty: all of the text went into the validation split");
}

static uint64_t build_id(const wr_text_input *in, const wr_text_input_options *o, int64_t shard_tok, uint64_t tokenizer) {
  uint64_t share;
  const double given = o->val_share;
  memcpy(&share, &given, sizeof share);
  const uint64_t facts[] = {wr_text_input_id(in), share, (uint64_t)shard_tok, tokenizer, WR_SHARD_VERSION};
  return wr_hash64(facts, sizeof facts, 0);
}

weir_status wr_data_build(const wr_tokenizer *t, const char *const *inputs, size_t n_inputs, const char *folder,
                          const weir_data_build_options *options, weir_data_build_report *out) {
  static const weir_data_build_options defaults;
  const weir_data_build_options *o = options ? options : &defaults;
  if (o->shard_tok < 0 || o->threads < 0)
    return wr_fail(WEIR_EUSAGE, "%s must not be below 0", o->threads < 0 ? "threads" : "the size of a shard");
  if (n_inputs > INT32_MAX) return wr_fail(WEIR_EUSAGE, "too many inputs");
  const wr_text_input_options input = {.paths = inputs,
                                       .n_paths = (int)n_inputs,
                                       .field = o->field,
                                       .jsonl = o->jsonl,
                                       .tokenizer = t,
                                       .val_share = o->val_share == 0 ? 0.01 : o->val_share,
                                       .strict = o->strict,
                                       .max_bad = o->max_bad};
  build b = {.t = t,
             .framing = wr_framing_of(t),
             .folder = folder,
             .shard_tok = o->shard_tok ? o->shard_tok : SHARD_TOK,
             .progress = o->progress,
             .user = o->user,
             .begin_ns = wr_now_ns(),
             .lock = PTHREAD_MUTEX_INITIALIZER,
             .changed = PTHREAD_COND_INITIALIZER};
  WR_TRY(wr_text_input_open(&input, &b.input));
  b.manifest = (wr_shards_manifest){.vocab = wr_tokenizer_size(t),
                                    .tokenizer_hash = wr_tokenizer_hash(t),
                                    .token_bytes = (uint32_t)wr_token_width(wr_tokenizer_size(t)),
                                    .val_share = input.val_share};
  b.manifest.build = build_id(b.input, &input, b.shard_tok, b.manifest.tokenizer_hash);
  snprintf(b.manifest.tokenizer, sizeof b.manifest.tokenizer, "%s", wr_tokenizer_name(t));
  bool whole, standard = false;
  for (size_t i = 0; i < n_inputs; i++) standard |= strcmp(inputs[i], "-") == 0;
  weir_status s = enter_folder(&b, !standard, &whole);
  const uint64_t resumed = b.manifest.split[WR_SPLIT_TRAIN].tokens + b.manifest.split[WR_SPLIT_VAL].tokens;
  if (s == WEIR_OK && !whole) s = run_team(&b, o->threads);
  if (s == WEIR_OK && !whole) s = finish(&b);
  if (out) fill_report(&b, resumed, out);
  for (int i = 0; i < WR_SPLITS; i++) wr_shard_writer_close(b.out[i].writer);
  for (size_t i = 0; i < b.n_slots && b.slots; i++) {
    wr_text_block_free(&b.slots[i].block);
    for (int k = 0; k < WR_SPLITS; k++) wr_encoded_free(&b.slots[i].part[k]);
  }
  wr_free(b.slots);
  wr_shards_manifest_free(&b.manifest);
  wr_text_input_close(b.input);
  return s;
}
