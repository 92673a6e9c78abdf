/* Reads checkpoints: which folders there are, whether one is complete, what is in it; and moves away those that a run goes back before.
 *
 * The manifest is text of a fixed form with a checksum of itself in its last line, so that one flipped byte anywhere in a checkpoint
 * is found. It is JSON for whoever looks; weir reads only what it wrote.
 * Refuses: manifests of other versions, names with a slash.
 */
#include "format/checkpoint_i.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VERSION = 1, READ_BYTES = 1 << 20 };
static const size_t MANIFEST_MAX = 64 << 10, STATE_MAX = 64 << 20;

weir_status wr_join(char *out, size_t cap, const char *folder, const char *name) {
  const int n = snprintf(out, cap, "%s/%s", folder, name);
  if (n >= 0 && (size_t)n < cap) return WEIR_OK;
  return wr_fail(WEIR_EFAIL, "%s/%s: the name is too long", wr_shown(folder), wr_shown(name));
}

int64_t wr_step_of(const char *name, const char *suffix) {
  if (strncmp(name, "step-", 5) != 0) return -1;
  int64_t step = 0;
  const char *p = name + 5;
  const char *first = p;
  for (; *p >= '0' && *p <= '9' && p - first < 18; p++) step = step * 10 + (*p - '0');
  if (p == first || (*first == '0' && p - first > 1)) return -1; /* step-007 is not a name that weir gives */
  return strcmp(p, suffix) == 0 ? step : -1;
}

static int by_number(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

weir_status wr_steps_list(const char *folder, int64_t **out, size_t *n) {
  int64_t *steps = NULL;
  size_t cap = 0, count = 0;
  DIR *d = opendir(folder);
  if (!d && errno != ENOENT) return wr_fail_errno(WEIR_EIO, folder, "list");
  weir_status s = WEIR_OK;
  for (struct dirent *e; d && s == WEIR_OK && (e = readdir(d));) {
    const int64_t step = wr_step_of(e->d_name, "");
    if (step < 0) continue;
    if (wr_grow((void **)&steps, &cap, count + 1, sizeof *steps))
      steps[count++] = step;
    else
      s = wr_fail_nomem(count * sizeof *steps, "a list of checkpoints");
  }
  if (d) closedir(d);
  if (s != WEIR_OK) {
    wr_free(steps);
    return s;
  }
  if (count) qsort(steps, count, sizeof *steps, by_number);
  *out = steps;
  *n = count;
  return WEIR_OK;
}

/* ------------------------------------------------------------------------------------------------------ the manifest */

bool wr_manifest_name_ok(const char *name) {
  const size_t n = strlen(name);
  return n > 0 && n <= WR_MANIFEST_NAME && name[0] != '.' && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789._-") == n;
}

static void manifest_text(const wr_manifest *m, wr_str *s) {
  wr_str_printf(s, "{\n \"version\": %d,\n \"step\": %" PRId64 ",\n \"val_loss\": ", VERSION, m->step);
  if (isfinite(m->val_loss))
    wr_str_printf(s, "%.17g", m->val_loss);
  else
    wr_str_puts(s, "null");
  wr_str_puts(s, ",\n \"files\": [\n");
  for (int i = 0; i < m->n_files; i++)
    wr_str_printf(s, "  {\"name\": \"%s\", \"bytes\": %" PRIu64 ", \"xxh64\": \"%016" PRIx64 "\"}%s\n", m->files[i].name,
                  m->files[i].bytes, m->files[i].hash, i + 1 < m->n_files ? "," : "");
  wr_str_puts(s, " ],\n");
  const uint64_t hash = s->oom ? 0 : wr_hash64(s->ptr, s->len, 0);
  wr_str_printf(s, " \"xxh64\": \"%016" PRIx64 "\"\n}\n", hash);
}

weir_status wr_manifest_write(const char *folder, const wr_manifest *m) {
  char path[PATH_MAX];
  WR_TRY(wr_join(path, sizeof path, folder, WR_MANIFEST));
  wr_str s = {0};
  manifest_text(m, &s);
  weir_status status = s.oom ? wr_fail_nomem(s.len, "a manifest") : WEIR_OK;
  const int fd = status == WEIR_OK ? wr_os_create(path) : -1;
  if (status == WEIR_OK && (fd < 0 || wr_os_write(fd, path, s.ptr, s.len) != 0 || wr_os_fsync(fd, path) != 0))
    status = wr_fail_errno(wr_write_status(errno), path, "write");
  if (fd >= 0) close(fd);
  wr_str_free(&s);
  return status;
}

/* The text after `key` at *p, which it moves behind it. */
static bool after(const char **p, const char *key) {
  const size_t n = strlen(key);
  if (strncmp(*p, key, n) != 0) return false;
  *p += n;
  return true;
}

static bool parse_number(const char **p, int base, uint64_t *out) {
  char *end;
  if (!strchr("0123456789abcdef", **p) || **p == 0) return false; /* strtoull takes signs and spaces */
  errno = 0;
  *out = strtoull(*p, &end, base);
  if (end == *p || errno) return false;
  *p = end;
  return true;
}

static bool parse_file(const char **p, wr_manifest *m) {
  if (m->n_files == WR_MANIFEST_FILES || !after(p, "  {\"name\": \"")) return false;
  wr_manifest_file *f = &m->files[m->n_files++];
  const char *quote = strchr(*p, '"');
  if (!quote || quote - *p > WR_MANIFEST_NAME) return false;
  memcpy(f->name, *p, (size_t)(quote - *p));
  *p = quote;
  return wr_manifest_name_ok(f->name) && after(p, "\", \"bytes\": ") && parse_number(p, 10, &f->bytes) &&
         after(p, ", \"xxh64\": \"") && parse_number(p, 16, &f->hash) && after(p, "\"}");
}

bool wr_manifest_parse(const char *text, wr_manifest *m) {
  const char *p = text;
  uint64_t step, hash;
  *m = (wr_manifest){.val_loss = NAN};
  char head[64];
  snprintf(head, sizeof head, "{\n \"version\": %d,\n \"step\": ", VERSION);
  if (!after(&p, head) || !parse_number(&p, 10, &step) || step > INT64_MAX || !after(&p, ",\n \"val_loss\": ")) return false;
  m->step = (int64_t)step;
  if (!after(&p, "null")) {
    char *end;
    m->val_loss = strtod(p, &end);
    if (end == p || !isfinite(m->val_loss)) return false;
    p = end;
  }
  if (!after(&p, ",\n \"files\": [\n")) return false;
  while (parse_file(&p, m) && after(&p, ",\n")) {}
  if (m->n_files == 0 || !after(&p, "\n ],\n")) return false;
  const size_t covered = (size_t)(p - text);
  return after(&p, " \"xxh64\": \"") && parse_number(&p, 16, &hash) && strcmp(p, "\"\n}\n") == 0 &&
         hash == wr_hash64(text, covered, 0);
}

weir_status wr_manifest_read(const char *folder, wr_manifest *out) {
  char path[PATH_MAX], *text;
  size_t n;
  wr_manifest m;
  WR_TRY(wr_join(path, sizeof path, folder, WR_MANIFEST));
  WR_TRY(wr_file_read(path, MANIFEST_MAX, &text, &n));
  const bool ok = strlen(text) == n && wr_manifest_parse(text, &m);
  wr_free(text);
  if (!ok) return wr_fail(WEIR_EFORMAT, "%s: is damaged, or not the manifest of a checkpoint", wr_shown(path));
  *out = m;
  return WEIR_OK;
}

/* Read and not mapped, so that a disk that fails gives an error and no signal. */
static weir_status check_hash(int fd, const char *path, const wr_manifest_file *f) {
  void *buffer = wr_malloc(READ_BYTES);
  if (!buffer) return wr_fail_nomem(READ_BYTES, "checking a checkpoint");
  wr_hash hash;
  wr_hash_begin(&hash, 0);
  weir_status s = WEIR_OK;
  posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  for (;;) {
    const ssize_t got = read(fd, buffer, READ_BYTES);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) s = wr_fail_errno(WEIR_EIO, path, "read");
    if (got <= 0) break;
    wr_hash_add(&hash, buffer, (size_t)got);
  }
  wr_free(buffer);
  if (s == WEIR_OK && (hash.total_bytes != f->bytes || wr_hash_end(&hash) != f->hash))
    s = wr_fail(WEIR_EFORMAT, "%s: its checksum is %016" PRIx64 ", but the manifest says %016" PRIx64 ": it was damaged",
                wr_shown(path), wr_hash_end(&hash), f->hash);
  return s;
}

weir_status wr_manifest_check(const char *folder, const wr_manifest *m, const char *contents) {
  for (int i = 0; i < m->n_files; i++) {
    const wr_manifest_file *f = &m->files[i];
    char path[PATH_MAX];
    struct stat st;
    WR_TRY(wr_join(path, sizeof path, folder, f->name));
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return wr_fail_errno(WEIR_EFORMAT, path, "open");
    weir_status s = WEIR_OK;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size != f->bytes)
      s = wr_fail(WEIR_EFORMAT, "%s: has %lld bytes, but the manifest says %" PRIu64, wr_shown(path), (long long)st.st_size,
                  f->bytes);
    else if (!contents || strcmp(contents, f->name) == 0)
      s = check_hash(fd, path, f);
    close(fd);
    WR_TRY(s);
  }
  return WEIR_OK;
}

/* -------------------------------------------------------------------------------------------------------- checkpoints */

void wr_checkpoint_close(wr_checkpoint *c) {
  if (!c) return;
  wr_free(c->path);
  wr_free(c->state);
  wr_free(c);
}

/* contents: as for wr_manifest_check. */
static weir_status open_folder(const char *folder, const char *contents, wr_checkpoint **out) {
  wr_manifest m;
  char state[PATH_MAX];
  WR_TRY(wr_manifest_read(folder, &m));
  WR_TRY(wr_manifest_check(folder, &m, contents));
  wr_checkpoint *c = wr_calloc(1, sizeof *c);
  if (!c) return wr_fail_nomem(sizeof *c, "a checkpoint");
  c->step = m.step;
  c->val_loss = m.val_loss;
  c->path = wr_strdup(folder);
  weir_status s = c->path ? wr_join(state, sizeof state, folder, WR_STATE) : wr_fail_nomem(strlen(folder), "a path");
  if (s == WEIR_OK) s = wr_file_read(state, STATE_MAX, &c->state, &c->state_bytes);
  if (s != WEIR_OK) {
    wr_checkpoint_close(c);
    return s;
  }
  *out = c;
  return WEIR_OK;
}

weir_status wr_checkpoint_open(const char *folder, wr_checkpoint **out) { return open_folder(folder, NULL, out); }

/* The newest complete one of at most `limit`. */
static weir_status newest(const char *run, int64_t limit, const char *contents, wr_checkpoint **out) {
  char folder[PATH_MAX], path[PATH_MAX], name[32];
  int64_t *steps;
  size_t n;
  WR_TRY(wr_join(folder, sizeof folder, run, "checkpoints"));
  WR_TRY(wr_steps_list(folder, &steps, &n));
  wr_checkpoint *c = NULL;
  weir_status s = WEIR_OK;
  bool skipped = false;
  while (n-- && !c && s == WEIR_OK) {
    if (steps[n] > limit) continue;
    snprintf(name, sizeof name, "step-%" PRId64, steps[n]);
    s = wr_join(path, sizeof path, folder, name);
    if (s == WEIR_OK) s = open_folder(path, contents, &c);
    if (s == WEIR_OK && c->step != steps[n]) {
      wr_checkpoint_close(c);
      c = NULL;
      s = wr_fail(WEIR_EFORMAT, "%s: its manifest is of another step", wr_shown(path));
    }
    if (s != WEIR_OK && s != WEIR_ENOMEM) { /* whatever is wrong with it, it is not complete */
      wr_log(WEIR_LOG_WARN, "a checkpoint is passed over, it is not complete: %s", weir_last_error());
      skipped = true;
      s = WEIR_OK;
    }
  }
  wr_free(steps);
  WR_TRY(s);
  if (!c && skipped)
    return wr_fail_prefix(WEIR_EFORMAT,
                          "%s: none of its checkpoints is complete; move them away to begin anew: ", wr_shown(folder));
  *out = c;
  return WEIR_OK;
}

weir_status wr_checkpoint_newest(const char *run, wr_checkpoint **out) { return newest(run, INT64_MAX, NULL, out); }

weir_status wr_checkpoint_before(const char *run, int64_t step, wr_checkpoint **out) { return newest(run, step, NULL, out); }

/* ------------------------------------------------------------------------------------------------------- its tensors */

static weir_status check_tensor(const wr_gguf *g, const wr_save_tensor *want) {
  const wr_gguf_tensor *t = wr_gguf_tensor_find(g, want->name);
  if (!t) return wr_fail(WEIR_EFORMAT, "%s: the tensor %s is missing", wr_shown(wr_gguf_path(g)), want->name);
  if (t->type->number != WR_GGUF_F32)
    return wr_fail(WEIR_EFORMAT, "%s: tensor %s is of type %s, not F32", wr_shown(wr_gguf_path(g)), want->name, t->type->name);
  bool same = t->n_dims == want->n_dims;
  for (int d = 0; d < want->n_dims && same; d++) same = t->dim[d] == want->dim[d];
  if (same) return WEIR_OK;
  return wr_fail(WEIR_EFORMAT, "%s: tensor %s has %d dimensions, %" PRIu64 " x %" PRIu64 ", not %d, %" PRIu64 " x %" PRIu64,
                 wr_shown(wr_gguf_path(g)), want->name, t->n_dims, t->dim[0], t->dim[1], want->n_dims, want->dim[0],
                 want->n_dims > 1 ? want->dim[1] : 1);
}

/* Plain rows into groups of `lanes` interleaved ones. */
static void interleave(const float *src, uint64_t rows, uint64_t cols, uint64_t lanes, float *dst) {
  for (uint64_t first = 0; first < rows; first += lanes, src += lanes * cols, dst += lanes * cols) {
    const uint64_t here = WR_MIN(lanes, rows - first);
    for (uint64_t k = 0; k < cols; k++)
      for (uint64_t r = 0; r < lanes; r++) dst[k * lanes + r] = r < here ? src[r * cols + k] : 0;
  }
}

weir_status wr_checkpoint_load(const wr_checkpoint *c, const char *file, const wr_save_tensor *tensors, size_t n) {
  char path[PATH_MAX];
  wr_gguf *g;
  WR_TRY(wr_join(path, sizeof path, c->path, file));
  WR_TRY(wr_gguf_open(path, NULL, &g));
  weir_status s = WEIR_OK;
  for (size_t i = 0; i < n && s == WEIR_OK; i++) s = check_tensor(g, &tensors[i]);
  for (size_t i = 0; i < n && s == WEIR_OK; i++) {
    const wr_gguf_tensor *t = wr_gguf_tensor_find(g, tensors[i].name);
    if (tensors[i].lanes > 1)
      interleave((const float *)(const void *)t->data, t->n_elems / t->dim[0], t->dim[0], (uint64_t)tensors[i].lanes,
                 tensors[i].data);
    else
      memcpy(tensors[i].data, t->data, (size_t)t->bytes);
  }
  wr_gguf_close(g);
  return s;
}

/* ------------------------------------------------------------------------------------------------- moving and removing */

bool wr_checkpoint_remove(const char *folder) {
  char path[PATH_MAX];
  DIR *d = opendir(folder);
  for (struct dirent *e; d && (e = readdir(d));) {
    const size_t n = strlen(e->d_name);
    const bool ours = (n > 5 && strcmp(e->d_name + n - 5, ".gguf") == 0) || strcmp(e->d_name, WR_STATE) == 0 ||
                      strcmp(e->d_name, WR_MANIFEST) == 0;
    if (ours && wr_join(path, sizeof path, folder, e->d_name) == WEIR_OK) (void)wr_os_unlink(path);
  }
  if (d) closedir(d);
  return rmdir(folder) == 0;
}

weir_status wr_checkpoint_abandon(const char *checkpoints, int64_t step) {
  char from[PATH_MAX], to[PATH_MAX], name[64];
  snprintf(name, sizeof name, "step-%" PRId64, step);
  WR_TRY(wr_join(from, sizeof from, checkpoints, name));
  for (int turn = 1;; turn++) {
    if (turn == 1)
      snprintf(name, sizeof name, "abandoned-step-%" PRId64, step);
    else
      snprintf(name, sizeof name, "abandoned-step-%" PRId64 "-%d", step, turn);
    WR_TRY(wr_join(to, sizeof to, checkpoints, name));
    if (access(to, F_OK) != 0) break;
  }
  if (wr_os_rename(from, to) != 0) return wr_fail_errno(wr_write_status(errno), from, "move out of the way");
  return WEIR_OK;
}

weir_status wr_checkpoint_rollback(const char *run, int64_t step) {
  char folder[PATH_MAX];
  int64_t *steps;
  size_t n;
  WR_TRY(wr_join(folder, sizeof folder, run, "checkpoints"));
  WR_TRY(wr_steps_list(folder, &steps, &n));
  weir_status s = WEIR_OK;
  bool moved = false;
  while (n-- && s == WEIR_OK && steps[n] > step) {
    s = wr_checkpoint_abandon(folder, steps[n]);
    moved = true;
  }
  wr_free(steps);
  if (s == WEIR_OK && moved && wr_os_fsync_folder(folder) != 0) s = wr_fail_errno(WEIR_EIO, folder, "sync");
  return s;
}

/* -------------------------------------------------------------------------------------------------- a run as a model */

weir_status wr_model_path(const char *path, char **out) {
  struct stat st;
  char inner[PATH_MAX];
  wr_checkpoint *c = NULL;
  const bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
  if (folder) {
    /* only what is read is read through: the optimiser's state may be twice as large as the model */
    if (wr_join(inner, sizeof inner, path, WR_MANIFEST) == WEIR_OK && access(inner, F_OK) == 0) {
      WR_TRY(open_folder(path, WR_MODEL, &c));
    } else if (wr_join(inner, sizeof inner, path, "checkpoints") == WEIR_OK && access(inner, F_OK) == 0) {
      WR_TRY(newest(path, INT64_MAX, WR_MODEL, &c));
      if (!c)
        return wr_fail(WEIR_EFORMAT, "%s: holds no complete checkpoint yet; `weir train --out` on it goes on with the run",
                       wr_shown(path));
    } else {
      return wr_fail(WEIR_EUNSUPPORTED,
                     "%s: is a folder, and neither a run nor a checkpoint; weir reads GGUF files, name the file in it",
                     wr_shown(path));
    }
  }
  weir_status s = c ? wr_join(inner, sizeof inner, c->path, WR_MODEL) : WEIR_OK;
  wr_checkpoint_close(c);
  WR_TRY(s);
  char *copy = wr_strdup(folder ? inner : path);
  if (!copy) return wr_fail_nomem(strlen(path), "a path");
  *out = copy;
  return WEIR_OK;
}
