/* Writes checkpoints beside training: owns the run's lock, the writer thread, and which folders stay.
 *
 * A save is cut into pieces of at most PIECE_BYTES in the order of the files. The writer takes them from the front, straight out of the
 * memory that training reads: nothing is copied while nothing changes. When the optimiser is about to run, the pieces at the back that
 * fit into the memory set aside are copied there by the whole team, the writer is told to hurry, and the caller waits for those in
 * front. From then on the writer reads copies only, and the optimiser may run as often as it likes.
 *
 *      written | being written | to be written from the tensors | to be written from copies
 *              next-1          next                             cut                         n_pieces
 *
 * The writer paces itself: after each piece it sleeps until its processor time is `share` of the time that passed, so that on a
 * machine whose every core trains a save costs a bounded part of each step, whatever the scheduler thinks. Whoever waits for it lifts
 * the pace.
 *
 * Invariants: only the writer touches files between the end of begin and its own; `lock` guards everything from `busy` to `result`; a
 * piece at or after `cut` is not taken while it is being copied. A failed save leaves no folder.
 */
#include "format/checkpoint_i.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { KEEP_LEAST = 2, NAP_NS_LEAST = 1000000, ASIDE_ALIGN = 64 };
static const uint64_t PIECE_BYTES = 512 << 10;
static const double SHARE = 0.05;

typedef struct piece {
  int file, lanes;
  uint64_t rows, cols; /* where lanes > 1: the rows that the tensor has of these groups, and their length */
  const uint8_t *data; /* in the caller's memory */
  uint8_t *copy;       /* in the memory set aside; NULL: none */
  uint64_t bytes;      /* at `data` and `copy` */
} piece;

struct wr_saver {
  char folder[PATH_MAX]; /* RUN/checkpoints */
  int lock_fd;           /* of that folder, -1: not open */
  int keep;
  double share;
  uint8_t *aside;
  size_t aside_bytes;

  pthread_t thread;
  bool joinable;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool busy, told; /* a save is under way; its end was told */
  bool hurry, copying;
  bool failed, released; /* the tensors are not read any more: for a failure, or because all was written or copied */
  size_t next, done, cut;
  wr_save_result result; /* of the save under way, or the last one */

  /* of the save under way; the writer's from the end of begin */
  piece *pieces;
  size_t n_pieces, cap_pieces;
  atomic_size_t copy_next;
  wr_gguf_writer *writers[WR_MANIFEST_FILES];
  wr_manifest manifest;
  char *state;
  size_t state_bytes;
  char temp[PATH_MAX], final[PATH_MAX];
  uint64_t begin_ns;
  float *rows; /* for a piece whose rows were interleaved */
  size_t cap_rows;
};

static uint64_t clock_ns(clockid_t clock) {
  struct timespec ts;
  clock_gettime(clock, &ts);
  return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static double seconds_since(uint64_t ns) { return (double)(wr_now_ns() - ns) * 1e-9; }

/* ------------------------------------------------------------------------------------------------------ the writer */

static weir_status write_piece(wr_saver *s, const piece *p) {
  const uint8_t *from = p->copy ? p->copy : p->data;
  wr_gguf_writer *w = s->writers[p->file];
  if (p->lanes <= 1) return wr_gguf_write(w, from, (size_t)p->bytes);
  const float *src = (const float *)(const void *)from;
  const uint64_t lanes = (uint64_t)p->lanes;
  for (uint64_t r = 0; r < p->rows; r++) {
    const float *lane = src + r / lanes * lanes * p->cols + r % lanes;
    float *dst = s->rows + r * p->cols;
    for (uint64_t k = 0; k < p->cols; k++) dst[k] = lane[k * lanes];
  }
  return wr_gguf_write(w, s->rows, (size_t)(p->rows * p->cols * sizeof(float)));
}

typedef struct pace {
  uint64_t cpu_ns, wall_ns; /* since when the share is measured */
} pace;

static pace pace_from_now(void) { return (pace){clock_ns(CLOCK_THREAD_CPUTIME_ID), clock_ns(CLOCK_MONOTONIC)}; }

/* With `lock` held. */
static void keep_pace(wr_saver *s, pace *p) {
  if (s->hurry) {
    *p = pace_from_now(); /* what was done in haste is not to be paid back by idleness */
    return;
  }
  const double cpu_ns = (double)(clock_ns(CLOCK_THREAD_CPUTIME_ID) - p->cpu_ns);
  const uint64_t until = p->wall_ns + (uint64_t)(cpu_ns / s->share), now = clock_ns(CLOCK_MONOTONIC);
  if (until < now + NAP_NS_LEAST) return;
  const struct timespec ts = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
  while (!s->hurry && pthread_cond_timedwait(&s->changed, &s->lock, &ts) == 0) {}
}

static weir_status write_pieces(wr_saver *s) {
  pace p = pace_from_now();
  weir_status status = WEIR_OK;
  pthread_mutex_lock(&s->lock);
  for (;;) {
    while (s->copying && s->next >= s->cut) pthread_cond_wait(&s->changed, &s->lock);
    if (s->next == s->n_pieces) break;
    const piece *at = &s->pieces[s->next++];
    pthread_mutex_unlock(&s->lock);
    status = write_piece(s, at);
    pthread_mutex_lock(&s->lock);
    s->done = s->next;
    s->failed = status != WEIR_OK;
    if (s->hurry) pthread_cond_broadcast(&s->changed);
    if (s->failed) break;
    keep_pace(s, &p);
  }
  s->released = true;
  pthread_mutex_unlock(&s->lock);
  return status;
}

static void close_writers(wr_saver *s) {
  for (int i = 0; i < WR_MANIFEST_FILES; i++) {
    wr_gguf_writer_close(s->writers[i]);
    s->writers[i] = NULL;
  }
}

static weir_status write_state(wr_saver *s, wr_manifest_file *f) {
  char path[PATH_MAX];
  WR_TRY(wr_join(path, sizeof path, s->temp, WR_STATE));
  snprintf(f->name, sizeof f->name, "%s", WR_STATE);
  f->bytes = s->state_bytes;
  f->hash = wr_hash64(s->state, s->state_bytes, 0);
  const int fd = wr_os_create(path);
  if (fd < 0) return wr_fail_errno(wr_write_status(errno), path, "create");
  weir_status status = WEIR_OK;
  if (wr_os_write(fd, path, s->state, s->state_bytes) != 0 || wr_os_fsync(fd, path) != 0)
    status = wr_fail_errno(wr_write_status(errno), path, "write");
  close(fd);
  return status;
}

/* Gives the folder its name. One that has the name already goes only after the new one was read back and is what it should be. */
static weir_status publish(wr_saver *s) {
  struct stat st;
  if (lstat(s->final, &st) != 0) {
    if (wr_os_rename(s->temp, s->final) == 0) return WEIR_OK;
    return wr_fail_errno(wr_write_status(errno), s->final, "give the finished checkpoint this name");
  }
  WR_TRY(wr_manifest_check(s->temp, &s->manifest, NULL));
  if (wr_os_exchange(s->temp, s->final) != 0) {
    if (errno != EINVAL && errno != ENOSYS)
      return wr_fail_errno(wr_write_status(errno), s->final, "give the finished checkpoint this name");
    /* a file system without exchange */
    WR_TRY(wr_checkpoint_abandon(s->folder, s->manifest.step));
    if (wr_os_rename(s->temp, s->final) != 0)
      return wr_fail_errno(wr_write_status(errno), s->final, "give the finished checkpoint this name");
    return WEIR_OK;
  }
  (void)wr_checkpoint_remove(s->temp); /* the old one, by now */
  return WEIR_OK;
}

static weir_status finish_files(wr_saver *s) {
  wr_manifest *m = &s->manifest;
  for (int i = 0; i < m->n_files; i++) {
    WR_TRY(wr_gguf_writer_finish(s->writers[i]));
    m->files[i].bytes = wr_gguf_writer_bytes(s->writers[i]);
    m->files[i].hash = wr_gguf_writer_hash(s->writers[i]);
  }
  WR_TRY(write_state(s, &m->files[m->n_files]));
  m->n_files++;
  WR_TRY(wr_manifest_write(s->temp, m));
  if (wr_os_fsync_folder(s->temp) != 0) return wr_fail_errno(wr_write_status(errno), s->temp, "sync");
  WR_TRY(publish(s));
  if (wr_os_fsync_folder(s->folder) != 0) return wr_fail_errno(wr_write_status(errno), s->folder, "sync");
  return WEIR_OK;
}

/* ---- which folders stay */

/* Temporary folders: of a process that was killed (the lock says that nobody is at it), or what could not be removed before. */
static void sweep(const wr_saver *s, bool warn) {
  char path[PATH_MAX];
  DIR *d = opendir(s->folder);
  for (struct dirent *e; d && (e = readdir(d));) {
    if (wr_step_of(e->d_name, ".tmp") < 0 || wr_join(path, sizeof path, s->folder, e->d_name) != WEIR_OK) continue;
    if (!wr_checkpoint_remove(path) && warn)
      wr_log(WEIR_LOG_WARN, "%s: is left as it is, it holds files that weir did not write", wr_shown(path));
  }
  if (d) closedir(d);
}

/* Removed under a temporary name, so that a half removed one is never taken for a checkpoint. */
static void remove_step(wr_saver *s, int64_t step) {
  char from[PATH_MAX], to[PATH_MAX], name[48];
  snprintf(name, sizeof name, "step-%" PRId64 ".tmp", step);
  if (wr_join(to, sizeof to, s->folder, name) != WEIR_OK) return;
  snprintf(name, sizeof name, "step-%" PRId64, step);
  if (wr_join(from, sizeof from, s->folder, name) != WEIR_OK) return;
  if (wr_os_rename(from, to) == 0) (void)wr_checkpoint_remove(to);
}

/* Is it complete, as far as sizes tell? ENOMEM: nobody knows. */
static weir_status looks_whole(const wr_saver *s, int64_t step, bool *whole, double *val_loss) {
  char path[PATH_MAX], name[48];
  wr_manifest m;
  snprintf(name, sizeof name, "step-%" PRId64, step);
  weir_status status = wr_join(path, sizeof path, s->folder, name);
  if (status == WEIR_OK) status = wr_manifest_read(path, &m);
  if (status == WEIR_OK) status = wr_manifest_check(path, &m, "");
  *whole = status == WEIR_OK && m.step == step;
  if (*whole) *val_loss = m.val_loss;
  return status == WEIR_ENOMEM ? status : WEIR_OK;
}

/* What a run went back before stays to be looked at, but not without end: the oldest go. */
static void prune_abandoned(wr_saver *s) {
  for (;;) {
    char oldest[PATH_MAX] = "", path[PATH_MAX];
    struct timespec when = {0};
    int n = 0;
    DIR *d = opendir(s->folder);
    for (struct dirent *e; d && (e = readdir(d));) {
      struct stat st;
      if (strncmp(e->d_name, "abandoned-step-", 15) != 0 || wr_join(path, sizeof path, s->folder, e->d_name) != WEIR_OK ||
          stat(path, &st) != 0)
        continue;
      const bool older = st.st_ctim.tv_sec != when.tv_sec ? st.st_ctim.tv_sec < when.tv_sec : st.st_ctim.tv_nsec < when.tv_nsec;
      if (n++ == 0 || older) {
        when = st.st_ctim;
        memcpy(oldest, path, sizeof oldest);
      }
    }
    if (d) closedir(d);
    if (n <= s->keep || !wr_checkpoint_remove(oldest)) return;
  }
}

/* Keeps the newest `keep` of n that are whole and the one with the lowest validation loss; removes the other ones. */
static void prune_steps(wr_saver *s, const int64_t *steps, size_t n, bool *whole) {
  double best_loss = INFINITY;
  int64_t best = -1;
  for (size_t i = 0; i < n; i++) {
    double loss = NAN;
    if (looks_whole(s, steps[i], &whole[i], &loss) != WEIR_OK) return; /* better too many than one too few */
    if (whole[i] && loss <= best_loss) best_loss = loss, best = steps[i];
  }
  int kept = 0;
  while (n-- > 0) {
    if (kept >= s->keep && steps[n] != best) remove_step(s, steps[n]);
    kept += whole[n];
  }
}

static void prune(wr_saver *s) {
  int64_t *steps;
  size_t n;
  if (wr_steps_list(s->folder, &steps, &n) != WEIR_OK) return;
  bool *whole = wr_calloc(WR_MAX(n, (size_t)1), sizeof *whole);
  if (whole) prune_steps(s, steps, n, whole);
  wr_free(whole);
  wr_free(steps);
  sweep(s, false);
  prune_abandoned(s);
}

static void *write_save(void *arg) {
  wr_saver *s = arg;
  weir_status status = write_pieces(s);
  if (status == WEIR_OK) status = finish_files(s);
  char sentence[sizeof s->result.sentence] = "";
  if (status != WEIR_OK) snprintf(sentence, sizeof sentence, "%s", weir_last_error());
  close_writers(s);
  if (status == WEIR_OK) {
    prune(s);
  } else {
    (void)wr_checkpoint_remove(s->temp);
    wr_log(WEIR_LOG_ERROR, "the checkpoint of step %" PRId64 " was not saved: %s", s->manifest.step, sentence);
  }
  pthread_mutex_lock(&s->lock);
  wr_save_result *r = &s->result;
  r->status = status;
  memcpy(r->sentence, sentence, sizeof sentence);
  for (int i = 0; i < s->manifest.n_files; i++) r->bytes += s->manifest.files[i].bytes;
  r->cpu_seconds = (double)clock_ns(CLOCK_THREAD_CPUTIME_ID) * 1e-9;
  r->seconds = seconds_since(s->begin_ns);
  s->busy = false;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
  return NULL;
}

/* --------------------------------------------------------------------------------------------------- the caller's side */

/* One run, one trainer. The lock is the kernel's and ends with the process. */
static weir_status take_lock(wr_saver *s) {
  s->lock_fd = open(s->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (s->lock_fd < 0) return wr_fail_errno(WEIR_EIO, s->folder, "open");
  if (flock(s->lock_fd, LOCK_EX | LOCK_NB) == 0) return WEIR_OK;
  if (errno == EWOULDBLOCK)
    return wr_fail(WEIR_EIO, "%s: another process trains in this folder; wait for it, or choose another --out",
                   wr_shown(s->folder));
  wr_log(WEIR_LOG_WARN, "%s: this file system has no locks, so nothing stops a second process from training here",
         wr_shown(s->folder));
  return WEIR_OK;
}

weir_status wr_saver_open(const char *run, const wr_saver_options *options, wr_saver **out) {
  const wr_saver_options o = options ? *options : (wr_saver_options){0};
  wr_saver *s = wr_calloc(1, sizeof *s);
  if (!s) return wr_fail_nomem(sizeof *s, "saving checkpoints");
  s->lock_fd = -1;
  s->keep = WR_MAX(o.keep, KEEP_LEAST);
  s->share = o.share > 0 ? WR_MIN(o.share, 1.0) : SHARE;
  s->aside = o.aside;
  s->aside_bytes = o.aside ? o.aside_bytes : 0;
  s->told = true;
  pthread_mutex_init(&s->lock, NULL);
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&s->changed, &attr);
  pthread_condattr_destroy(&attr);
  weir_status status = wr_join(s->folder, sizeof s->folder, run, "checkpoints");
  if (status == WEIR_OK) status = wr_mkdir_p(s->folder);
  if (status == WEIR_OK) status = take_lock(s);
  if (status != WEIR_OK) {
    wr_saver_close(s);
    return status;
  }
  sweep(s, true);
  *out = s;
  return WEIR_OK;
}

/* Waits for the save under way, and for its thread to be gone. */
static void settle(wr_saver *s) {
  pthread_mutex_lock(&s->lock);
  s->hurry = true;
  pthread_cond_broadcast(&s->changed);
  while (s->busy) pthread_cond_wait(&s->changed, &s->lock);
  s->hurry = false;
  pthread_mutex_unlock(&s->lock);
  if (s->joinable) pthread_join(s->thread, NULL);
  s->joinable = false;
}

void wr_saver_close(wr_saver *s) {
  if (!s) return;
  settle(s);
  close_writers(s);
  if (s->lock_fd >= 0) close(s->lock_fd);
  pthread_cond_destroy(&s->changed);
  pthread_mutex_destroy(&s->lock);
  wr_free(s->pieces);
  wr_free(s->state);
  wr_free(s->rows);
  wr_free(s);
}

static weir_status add_piece(wr_saver *s, const piece *p) {
  if (!wr_grow((void **)&s->pieces, &s->cap_pieces, s->n_pieces + 1, sizeof *s->pieces))
    return wr_fail_nomem((s->n_pieces + 1) * sizeof *s->pieces, "the pieces of a checkpoint");
  s->pieces[s->n_pieces++] = *p;
  return WEIR_OK;
}

static weir_status add_tensor(wr_saver *s, int file, const wr_save_tensor *t) {
  WR_TRY(wr_gguf_put_tensor(s->writers[file], t->name, WR_GGUF_F32, t->n_dims, t->dim));
  const uint64_t cols = t->dim[0];
  uint64_t rows = 1;
  for (int d = 1; d < t->n_dims; d++) rows *= t->dim[d]; /* put_tensor has found that the product fits */
  const uint8_t *data = t->data;
  if (t->lanes <= 1) {
    const uint64_t bytes = rows * cols * sizeof(float);
    for (uint64_t at = 0; at < bytes; at += PIECE_BYTES)
      WR_TRY(add_piece(s, &(piece){.file = file, .data = data + at, .bytes = WR_MIN(PIECE_BYTES, bytes - at)}));
    return WEIR_OK;
  }
  const uint64_t lanes = (uint64_t)t->lanes, group_bytes = lanes * cols * sizeof(float);
  const uint64_t groups = WR_MAX(PIECE_BYTES / group_bytes, (uint64_t)1); /* in a piece */
  for (uint64_t row = 0; row < rows; row += groups * lanes) {
    const uint64_t here = WR_MIN(groups * lanes, rows - row);
    const piece p = {.file = file,
                     .lanes = t->lanes,
                     .rows = here,
                     .cols = cols,
                     .data = data + row / lanes * group_bytes,
                     .bytes = (here + lanes - 1) / lanes * group_bytes};
    WR_TRY(add_piece(s, &p));
    if (!wr_grow((void **)&s->rows, &s->cap_rows, (size_t)(here * cols), sizeof *s->rows))
      return wr_fail_nomem((size_t)p.bytes, "writing a checkpoint");
  }
  return WEIR_OK;
}

static weir_status start_file(wr_saver *s, int i, const wr_save_file *f) {
  char path[PATH_MAX];
  if (!wr_manifest_name_ok(f->name))
    return wr_fail(WEIR_EUSAGE, "'%s' is no name for a file of a checkpoint", wr_shown(f->name));
  snprintf(s->manifest.files[i].name, sizeof s->manifest.files[i].name, "%s", f->name);
  WR_TRY(wr_join(path, sizeof path, s->temp, f->name));
  WR_TRY(wr_gguf_writer_open_plain(path, &s->writers[i]));
  if (f->put_meta) WR_TRY(f->put_meta(f->user, s->writers[i]));
  for (size_t t = 0; t < f->n_tensors; t++) WR_TRY(add_tensor(s, i, &f->tensors[t]));
  return WEIR_OK;
}

static weir_status start(wr_saver *s, const wr_save *save) {
  char name[48];
  if (save->step < 0 || save->n_files < 1 || save->n_files >= WR_MANIFEST_FILES)
    return wr_fail(WEIR_EUSAGE, "a checkpoint of step %" PRId64 " with %d files", save->step, save->n_files);
  snprintf(name, sizeof name, "step-%" PRId64, save->step);
  WR_TRY(wr_join(s->final, sizeof s->final, s->folder, name));
  snprintf(name, sizeof name, "step-%" PRId64 ".tmp", save->step);
  WR_TRY(wr_join(s->temp, sizeof s->temp, s->folder, name));
  s->manifest = (wr_manifest){.step = save->step, .val_loss = save->val_loss, .n_files = save->n_files};
  wr_free(s->state);
  s->state_bytes = save->state_bytes;
  s->state = wr_malloc(save->state_bytes);
  if (!s->state) return wr_fail_nomem(save->state_bytes, "the state of a run");
  if (save->state_bytes) memcpy(s->state, save->state, save->state_bytes);
  if (wr_os_mkdir(s->temp) != 0) return wr_fail_errno(wr_write_status(errno), s->temp, "make the folder");
  for (int i = 0; i < save->n_files; i++) WR_TRY(start_file(s, i, &save->files[i]));
  return WEIR_OK;
}

/* Threads of the library leave signals to the program's own. */
static weir_status start_thread(wr_saver *s) {
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  const int err = pthread_create(&s->thread, NULL, write_save, s);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  s->joinable = err == 0;
  return err ? wr_fail(WEIR_EFAIL, "no thread could be started to write a checkpoint: %s", strerror(err)) : WEIR_OK;
}

weir_status wr_saver_begin(wr_saver *s, const wr_save *save) {
  const uint64_t begin = wr_now_ns();
  settle(s);
  s->result = (wr_save_result){.step = save->step};
  s->begin_ns = begin;
  s->told = true;
  s->failed = s->released = false;
  s->next = s->done = s->n_pieces = 0;
  weir_status status = start(s, save);
  s->cut = s->n_pieces;
  s->busy = status == WEIR_OK;
  if (status == WEIR_OK) status = start_thread(s);
  if (status != WEIR_OK) {
    s->busy = false;
    s->result.status = status;
    snprintf(s->result.sentence, sizeof s->result.sentence, "%s", weir_last_error());
    close_writers(s);
    if (s->temp[0]) (void)wr_checkpoint_remove(s->temp);
    return wr_fail(status, "%s", s->result.sentence);
  }
  pthread_mutex_lock(&s->lock);
  s->told = false;
  s->result.waited_seconds += seconds_since(begin);
  pthread_mutex_unlock(&s->lock);
  return WEIR_OK;
}

static void copy_part(void *arg, int tid, int n_threads) {
  (void)tid, (void)n_threads;
  wr_saver *s = arg;
  for (size_t i; (i = atomic_fetch_add(&s->copy_next, 1)) < s->n_pieces;)
    memcpy(s->pieces[i].copy, s->pieces[i].data, (size_t)s->pieces[i].bytes);
}

/* Gives the pieces at the back places in the memory set aside. The first of them. */
static size_t place_copies(wr_saver *s, uint64_t *bytes) {
  size_t cut = s->n_pieces;
  uint64_t used = 0;
  while (cut > s->next) {
    piece *p = &s->pieces[cut - 1];
    const uint64_t take = (p->bytes + ASIDE_ALIGN - 1) / ASIDE_ALIGN * ASIDE_ALIGN;
    if (take > s->aside_bytes - used) break;
    p->copy = s->aside + used;
    used += take;
    *bytes += p->bytes;
    cut--;
  }
  return cut;
}

void wr_saver_before_change(wr_saver *s, wr_team *team, uint64_t *copied) {
  uint64_t bytes = 0;
  const uint64_t begin = wr_now_ns();
  pthread_mutex_lock(&s->lock);
  if (s->busy && !s->released) {
    s->cut = place_copies(s, &bytes);
    s->copying = bytes > 0;
    s->hurry = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    atomic_store(&s->copy_next, s->cut);
    if (bytes && team)
      wr_team_run(team, copy_part, s);
    else if (bytes)
      copy_part(s, 0, 1);
    pthread_mutex_lock(&s->lock);
    s->copying = false;
    pthread_cond_broadcast(&s->changed);
    while (s->busy && !s->failed && s->done < s->cut) pthread_cond_wait(&s->changed, &s->lock);
    s->hurry = false;
    s->released = true;
    s->result.aside_bytes += bytes;
    s->result.waited_seconds += seconds_since(begin);
  }
  pthread_mutex_unlock(&s->lock);
  if (copied) *copied = bytes;
}

bool wr_saver_poll(wr_saver *s, wr_save_result *out) {
  pthread_mutex_lock(&s->lock);
  const bool news = !s->busy && !s->told;
  if (news) {
    s->told = true;
    *out = s->result;
  }
  pthread_mutex_unlock(&s->lock);
  return news;
}

weir_status wr_saver_wait(wr_saver *s, wr_save_result *out) {
  settle(s);
  s->told = true;
  if (out) *out = s->result;
  return s->result.status == WEIR_OK ? WEIR_OK : wr_fail(s->result.status, "%s", s->result.sentence);
}
