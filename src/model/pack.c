/* The packed file: a model's matrices in the layout that the kernels want, sixteen rows interleaved, made once and mapped from
 * then on.
 *
 * Owns: the files under <cache>/packed. One holds a head (identity of the source, a table of tensors, hashes) padded to a page,
 * and then the matrices in the order of use, each at a multiple of 64 bytes.
 *
 * Making: the size is known beforehand and reserved on the disk, so a full disk is an error code and not a signal; the team
 * packs straight into the mapped temporary file, so anonymous memory stays small; checksum, head, fsync, rename, fsync of the
 * folder. Whoever loses a race between two processes replaces a file by an equal one; maps of the old one stay valid.
 *
 * Using: the head must be byte for byte what this model would write (but for the checksum of the payload, which only
 * wr_pack_verify reads through), its own hash must be right and the size exact. Anything else is made anew. What cannot be made
 * is no failure: the model then runs in the file's own layout, and the reason is kept for whoever asks. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "model/model.h"
#include "model/model_i.h"

static const char MAGIC[8] = "WEIRPACK";
enum { VERSION = 1, PAGE = 4096, ALIGN = 64 };
static const uint64_t AUTO_BYTES = 4000000000u; /* no packing on our own accord from here on, … */
static const uint64_t AUTO_SHARE = 10;          /* … nor if the file would take more than this part of the free disk */
static const size_t HEAD_MAX = 64u << 20;

typedef struct pack_head {
  char magic[8];
  uint32_t version, layout_version;
  uint64_t file_bytes, head_bytes, n_tensors;
  uint64_t source_bytes, source_mtime_ns, source_inode; /* of the first part */
  uint64_t source_hash;                                 /* of the headers and identities of all parts */
  uint64_t payload_hash;                                /* of everything after the head */
  uint64_t head_hash;                                   /* of the head with this field 0 */
} pack_head;

typedef struct pack_tensor {
  char name[WR_GGUF_MAX_NAME + 8], dtype[8], layout[8];
  int64_t rows, cols;
  uint64_t offset, bytes;
} pack_tensor;

typedef struct packing {
  wr_model *m;
  wr_str head; /* pack_head, pack_tensor[n], path of the source with its NUL, zeros up to a page */
  atomic_long next;
  uint8_t *file;
} packing;

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

weir_status wr_pack_folder(char *out, size_t cap) {
  char cache[PATH_MAX];
  WR_TRY(wr_cache_dir(cache, sizeof cache));
  const int n = snprintf(out, cap, "%s/packed", cache);
  if (n < 0 || (size_t)n >= cap) return wr_fail(WEIR_EFAIL, "%s: the name of the cache folder is too long", cache);
  return WEIR_OK;
}

/* ------------------------------------------------------------------------------------------------------ the head */

static pack_head source_identity(const wr_model *m) {
  const wr_gguf_part first = wr_gguf_part_at(m->gguf, 0);
  pack_head h = {.version = VERSION,
                 .layout_version = WR_PACK16_VERSION,
                 .source_bytes = first.map->bytes,
                 .source_mtime_ns = first.map->mtime_ns,
                 .source_inode = first.map->inode};
  memcpy(h.magic, MAGIC, sizeof h.magic);
  for (int i = 0; i < wr_gguf_n_parts(m->gguf); i++) {
    const wr_gguf_part part = wr_gguf_part_at(m->gguf, i);
    const uint64_t id[3] = {part.map->bytes, part.map->mtime_ns, part.map->inode};
    h.source_hash = wr_hash64(id, sizeof id, h.source_hash);
    h.source_hash = wr_hash64(part.map->ptr, (size_t)WR_MIN(part.header_bytes, (uint64_t)part.map->bytes), h.source_hash);
  }
  return h;
}

/* Writes the head, hashes left 0, and the offsets of the tensors in it. */
static weir_status make_head(packing *k) {
  const wr_model *m = k->m;
  pack_head h = source_identity(m);
  for (int i = 0; i < m->n_weights; i++) h.n_tensors += wr_weight_packs(m, &m->weights[i]);
  char full[PATH_MAX];
  const char *source = realpath(wr_gguf_path(m->gguf), full) ? full : wr_gguf_path(m->gguf);
  h.head_bytes = round_up(sizeof h + h.n_tensors * sizeof(pack_tensor) + strlen(source) + 1, PAGE);
  size_t at = h.head_bytes;
  wr_str_put(&k->head, &h, sizeof h);
  for (int i = 0; i < m->n_weights; i++) {
    const wr_weight *w = &m->weights[i];
    if (!wr_weight_packs(m, w)) continue;
    pack_tensor t = {
        .rows = w->rows, .cols = w->cols, .offset = at, .bytes = wr_layout_bytes(WR_PACK16, w->dtype, w->rows, w->cols)};
    snprintf(t.name, sizeof t.name, "%s", w->name);
    snprintf(t.dtype, sizeof t.dtype, "%s", wr_dtypes[w->dtype].name);
    snprintf(t.layout, sizeof t.layout, "%s", wr_layout_name(WR_PACK16));
    if (!wr_add_size(at, t.bytes, &at) || at > SIZE_MAX - ALIGN) at = SIZE_MAX - ALIGN;
    at = round_up(at, ALIGN);
    wr_str_put(&k->head, &t, sizeof t);
  }
  wr_str_put(&k->head, source, strlen(source) + 1);
  static const char zeros[PAGE];
  if (!k->head.oom && k->head.len < h.head_bytes) wr_str_put(&k->head, zeros, h.head_bytes - k->head.len);
  if (k->head.oom) return wr_fail_nomem(h.head_bytes, "the head of a packed file");
  h.file_bytes = at;
  memcpy(k->head.ptr, &h, sizeof h);
  return WEIR_OK;
}

static uint64_t hash_head(const void *head, size_t bytes) {
  pack_head h;
  memcpy(&h, head, sizeof h);
  h.head_hash = 0;
  return wr_hash64((const char *)head + sizeof h, bytes - sizeof h, wr_hash64(&h, sizeof h, 1));
}

/* Is this a whole packed file with an intact head? NULL: yes, else what is wrong. */
static const char *head_fault(const uint8_t *file, size_t bytes, size_t file_bytes) {
  pack_head h;
  if (bytes < sizeof h) return "it is too short";
  memcpy(&h, file, sizeof h);
  if (memcmp(h.magic, MAGIC, sizeof h.magic) != 0) return "it does not begin as a packed file";
  if (h.version != VERSION || h.layout_version != WR_PACK16_VERSION) return "it is of another version";
  if (h.file_bytes != file_bytes) return "its size is not what its head says";
  if (h.head_bytes < sizeof h || h.head_bytes > bytes || h.head_bytes % PAGE) return "its head is damaged";
  if (h.n_tensors > (h.head_bytes - sizeof h) / sizeof(pack_tensor)) return "its head is damaged";
  return h.head_hash == hash_head(file, (size_t)h.head_bytes) ? NULL : "its head is damaged";
}

/* Is it the file that this model would write? */
static const char *other_model(const packing *k, const wr_map *map) {
  const char *fault = head_fault(map->ptr, map->bytes, map->bytes);
  if (fault) return fault;
  pack_head h, want;
  memcpy(&h, map->ptr, sizeof h);
  memcpy(&want, k->head.ptr, sizeof want);
  want.payload_hash = h.payload_hash;
  want.head_hash = h.head_hash;
  if (memcmp(&h, &want, sizeof h) != 0) return "it belongs to another model";
  const size_t table = h.n_tensors * sizeof(pack_tensor);
  return memcmp(map->ptr + sizeof h, k->head.ptr + sizeof h, table) ? "its table is not this model's" : NULL;
}

/* -------------------------------------------------------------------------------------------------------- making */

static void pack_part(void *arg, int tid, int n_threads) {
  (void)tid, (void)n_threads;
  packing *k = arg;
  enum { GROUPS = 16 };
  const pack_tensor *table = (const pack_tensor *)(const void *)(k->head.ptr + sizeof(pack_head));
  long mine = atomic_fetch_add(&k->next, 1), unit = 0;
  for (int i = 0, at = 0; i < k->m->n_weights; i++) {
    const wr_weight *w = &k->m->weights[i];
    if (!wr_weight_packs(k->m, w)) continue;
    const pack_tensor *t = &table[at++];
    const int64_t groups = (w->rows + WR_PACK_ROWS - 1) / WR_PACK_ROWS;
    for (int64_t g = 0; g < groups; g += GROUPS, unit++) {
      if (unit != mine) continue;
      wr_pack16(w->dtype, w->tensor->data, w->rows, w->cols, k->file + t->offset, g, WR_MIN(g + GROUPS, groups));
      mine = atomic_fetch_add(&k->next, 1);
    }
  }
}

/* Fills the temporary file. */
static weir_status fill(packing *k, int fd, const char *path) {
  pack_head h;
  memcpy(&h, k->head.ptr, sizeof h);
  const int no_space = posix_fallocate(fd, 0, (off_t)h.file_bytes);
  if (no_space) {
    errno = no_space;
    return wr_fail_errno(wr_write_status(no_space), path, "reserve its space");
  }
  void *map = mmap(NULL, h.file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) return wr_fail_errno(WEIR_EIO, path, "map");
  (void)madvise(map, h.file_bytes, MADV_HUGEPAGE); /* the file's pages, too, are then huge for whoever maps it */
  k->file = map;
  atomic_store(&k->next, 0);
  wr_team_run(k->m->mem->device->team, pack_part, k);
  h.payload_hash = wr_hash64(k->file + h.head_bytes, (size_t)(h.file_bytes - h.head_bytes), 1);
  memcpy(k->head.ptr, &h, sizeof h);
  h.head_hash = hash_head(k->head.ptr, (size_t)h.head_bytes);
  memcpy(k->head.ptr, &h, sizeof h);
  memcpy(k->file, k->head.ptr, (size_t)h.head_bytes);
  weir_status s = WEIR_OK;
  if (msync(map, h.file_bytes, MS_SYNC) || fsync(fd)) s = wr_fail_errno(WEIR_EIO, path, "write");
  munmap(map, h.file_bytes);
  return s;
}

/* A temporary file is locked by the process that fills it; the system lets go of the lock when that process dies. */
static bool abandoned(const char *path) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return false;
  const bool free_to_go = flock(fd, LOCK_EX | LOCK_NB) == 0;
  close(fd);
  return free_to_go;
}

/* The head of a packed file, read and not mapped, since whoever lists does not want a signal from a file that shrinks. */
static char *read_head(const char *path, size_t file_bytes, size_t *bytes) {
  FILE *f = fopen(path, "rbe");
  if (!f) return NULL;
  pack_head h;
  char *head = NULL;
  if (fread(&h, sizeof h, 1, f) == 1 && h.head_bytes >= sizeof h && h.head_bytes <= WR_MIN(HEAD_MAX, file_bytes)) {
    head = wr_malloc((size_t)h.head_bytes);
    if (head) {
      memcpy(head, &h, sizeof h);
      *bytes = (size_t)h.head_bytes;
      if (fread(head + sizeof h, 1, *bytes - sizeof h, f) != *bytes - sizeof h) {
        wr_free(head);
        head = NULL;
      }
    }
  }
  fclose(f);
  return head;
}

/* The source that a whole packed file's head names; NULL: it is damaged. */
static const char *source_of(const char *head, size_t bytes, size_t file_bytes) {
  pack_head h;
  if (head_fault((const uint8_t *)head, bytes, file_bytes)) return NULL;
  memcpy(&h, head, sizeof h);
  const size_t at = sizeof h + (size_t)h.n_tensors * sizeof(pack_tensor);
  return at < bytes && memchr(head + at, 0, bytes - at) ? head + at : NULL;
}

/* A run's checkpoints come and go: what was packed of one that is gone is of no use to anybody. */
static bool of_gone_checkpoint(const char *path) {
  struct stat st;
  size_t bytes = 0;
  char *head = stat(path, &st) == 0 ? read_head(path, (size_t)st.st_size, &bytes) : NULL;
  const char *source = head ? source_of(head, bytes, (size_t)st.st_size) : NULL;
  const bool gone = source && strstr(source, "/checkpoints/step-") && access(source, F_OK) != 0 && errno == ENOENT;
  wr_free(head);
  return gone;
}

/* Remove what killed processes left in the folder, and what was packed of checkpoints that were removed. */
static void sweep(const char *folder) {
  DIR *d = opendir(folder);
  if (!d) return;
  char path[PATH_MAX + 256];
  for (struct dirent *e; (e = readdir(d));) {
    snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
    if (wr_ends_with(e->d_name, ".tmp") ? abandoned(path) : wr_ends_with(e->d_name, ".pack") && of_gone_checkpoint(path))
      unlink(path);
  }
  closedir(d);
}

/* A temporary file of this process, locked. The folder is locked meanwhile, so that nobody sweeps the file before it is. Where the file system has
 * no locks only the sweeping is lost. */
static int create_temp(const char *folder, int dir, const char *temp) {
  (void)flock(dir, LOCK_EX);
  sweep(folder);
  const int fd = open(temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  const int error = errno;
  if (fd >= 0) (void)flock(fd, LOCK_EX | LOCK_NB);
  (void)flock(dir, LOCK_UN);
  errno = error;
  return fd;
}

static weir_status make_file(packing *k, const char *folder, const char *path) {
  static atomic_uint counter;
  WR_TRY(wr_mkdir_p(folder));
  char temp[PATH_MAX];
  const int n = snprintf(temp, sizeof temp, "%s.%ld.%u.tmp", path, (long)getpid(), atomic_fetch_add(&counter, 1));
  if (n < 0 || (size_t)n >= sizeof temp) return wr_fail(WEIR_EFAIL, "%s: the name is too long", path);
  const int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir < 0) return wr_fail_errno(WEIR_EIO, folder, "open");
  const int fd = create_temp(folder, dir, temp);
  weir_status s = fd < 0 ? wr_fail_errno(WEIR_EIO, temp, "create") : fill(k, fd, temp);
  if (s == WEIR_OK && rename(temp, path)) s = wr_fail_errno(WEIR_EIO, path, "put in place");
  if (s == WEIR_OK) (void)fsync(dir);
  if (fd >= 0) close(fd);
  if (fd >= 0 && s != WEIR_OK) unlink(temp);
  close(dir);
  return s;
}

/* May it be made without being asked? NULL: yes. */
static const char *too_big(const char *folder, uint64_t bytes, bool force, char *buf, size_t cap) {
  char size[16], room[16];
  wr_size_text(size, bytes);
  if (force) return NULL;
  if (bytes >= AUTO_BYTES) {
    snprintf(buf, cap, "the packed file would take %s, and weir makes files of 4 GB and more only when told to", size);
    return buf;
  }
  struct statvfs fs;
  if (statvfs(folder, &fs)) return NULL; /* making it will say what is wrong */
  const uint64_t left = (uint64_t)fs.f_bavail * fs.f_frsize;
  if (bytes <= left / AUTO_SHARE) return NULL;
  wr_size_text(room, left);
  snprintf(buf, cap, "the packed file would take %s, more than a tenth of the %s that are free in %s", size, room, folder);
  return buf;
}

/* --------------------------------------------------------------------------------------------------------- using */

static void adopt(packing *k, const wr_map *map) {
  wr_model *m = k->m;
  const pack_tensor *t = (const pack_tensor *)(const void *)(k->head.ptr + sizeof(pack_head));
  for (int i = 0; i < m->n_weights; i++) {
    wr_weight *w = &m->weights[i];
    if (!wr_weight_packs(m, w)) continue;
    w->layout = WR_PACK16;
    w->bytes = (size_t)t->bytes;
    w->host = map->ptr + t->offset;
    t++;
  }
  m->packed = *map;
}

static weir_status try_file(packing *k, const char *path, bool *used) {
  wr_map map;
  if (access(path, F_OK)) return WEIR_OK;
  WR_TRY(wr_map_open(path, false, &map));
  const char *fault = other_model(k, &map);
  if (fault) {
    wr_log(WEIR_LOG_WARN, "%s is made anew: %s", path, fault);
    wr_map_close(&map);
    return WEIR_OK;
  }
  adopt(k, &map);
  *used = true;
  return WEIR_OK;
}

static weir_status open_or_make(packing *k, const wr_model_options *options, wr_str *why) {
  WR_TRY(make_head(k));
  pack_head h;
  memcpy(&h, k->head.ptr, sizeof h);
  if (!h.n_tensors) {
    wr_str_puts(why, "no matrix of this model has a packed layout");
    return WEIR_OK;
  }
  char folder[PATH_MAX], path[PATH_MAX];
  WR_TRY(wr_pack_folder(folder, sizeof folder));
  const int n = snprintf(path, sizeof path, "%s/%llx-%llx-%llx-%016llx-v%d.pack", folder, (unsigned long long)h.source_bytes,
                         (unsigned long long)h.source_mtime_ns, (unsigned long long)h.source_inode,
                         (unsigned long long)h.source_hash, WR_PACK16_VERSION);
  if (n < 0 || (size_t)n >= sizeof path) return wr_fail(WEIR_EFAIL, "%s: the name of the cache folder is too long", folder);
  bool used = false;
  WR_TRY(try_file(k, path, &used));
  if (!used) {
    char text[PATH_MAX + 200];
    WR_TRY(wr_mkdir_p(folder));
    const char *refusal = too_big(folder, h.file_bytes, options->force_pack, text, sizeof text);
    if (refusal) {
      wr_str_puts(why, refusal);
      return WEIR_OK;
    }
    const uint64_t begin = wr_now_ns();
    WR_TRY(make_file(k, folder, path));
    WR_TRY(try_file(k, path, &used));
    k->m->pack_seconds = (double)(wr_now_ns() - begin) * 1e-9;
  }
  if (!used) return wr_fail(WEIR_EIO, "%s: what was just written cannot be read back", path);
  wr_str_printf(why, "%s", path);
  return WEIR_OK;
}

weir_status wr_pack_open(wr_model *m, const wr_model_options *options, wr_str *why) {
  if (options->no_pack) {
    wr_str_puts(why, "no_pack was asked for");
    return WEIR_OK;
  }
  if (options->plan_only) { /* sizes only */
    for (int i = 0; i < m->n_weights; i++) {
      wr_weight *w = &m->weights[i];
      if (!wr_weight_packs(m, w)) continue;
      w->layout = WR_PACK16;
      w->bytes = wr_layout_bytes(WR_PACK16, w->dtype, w->rows, w->cols);
    }
    wr_str_puts(why, "a plan reads no weights");
    return WEIR_OK;
  }
  if (!m->mem->device->team) {
    wr_str_printf(why, "the device %s takes the file's own layout", m->mem->device->api->name);
    return WEIR_OK;
  }
  struct stat st;
  if (stat(wr_gguf_path(m->gguf), &st) || !S_ISREG(st.st_mode)) {
    wr_str_puts(why, "the model is no regular file, so it could not be told from another one next time");
    return WEIR_OK;
  }
  packing k = {.m = m};
  const weir_status s = open_or_make(&k, options, why);
  wr_str_free(&k.head);
  if (s == WEIR_OK) return WEIR_OK;
  /* Without the faster form, not without the model. */
  wr_log(WEIR_LOG_WARN, "the weights are not packed, so decoding is slower: %s", weir_last_error());
  wr_str_puts(why, weir_last_error());
  return WEIR_OK;
}

/* ---------------------------------------------------------------------------------------------------- listing and verifying */

static bool source_changed(const pack_head *h, const char *source) {
  struct stat st;
  if (stat(source, &st)) return true;
  const uint64_t mtime = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
  return (uint64_t)st.st_size != h->source_bytes || mtime != h->source_mtime_ns || (uint64_t)st.st_ino != h->source_inode;
}

static weir_status list_one(const char *path, const struct stat *st, weir_status (*fn)(void *user, const wr_pack_file *f),
                            void *user) {
  wr_pack_file f = {
      .path = (char *)(uintptr_t)path, .source = (char *)(uintptr_t) "", .bytes = (uint64_t)st->st_size, .stale = true};
  if (wr_ends_with(path, ".tmp")) {
    f.stale = abandoned(path);
    return fn(user, &f);
  }
  size_t bytes = 0;
  char *head = read_head(path, (size_t)st->st_size, &bytes);
  const char *source = head ? source_of(head, bytes, (size_t)st->st_size) : NULL;
  if (source) {
    pack_head h;
    memcpy(&h, head, sizeof h);
    f.source = (char *)(uintptr_t)source;
    f.stale = source_changed(&h, source);
  }
  const weir_status s = fn(user, &f);
  wr_free(head);
  return s;
}

weir_status wr_pack_list(weir_status (*fn)(void *user, const wr_pack_file *f), void *user) {
  char folder[PATH_MAX], path[PATH_MAX + 256];
  WR_TRY(wr_pack_folder(folder, sizeof folder));
  DIR *d = opendir(folder);
  if (!d && (errno == ENOENT || errno == ENOTDIR)) return WEIR_OK;
  if (!d) return wr_fail_errno(WEIR_EIO, folder, "list");
  weir_status s = WEIR_OK;
  for (struct dirent *e; s == WEIR_OK && (e = readdir(d));) {
    struct stat st;
    if (!wr_ends_with(e->d_name, ".pack") && !wr_ends_with(e->d_name, ".tmp")) continue;
    snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
    if (lstat(path, &st) || !S_ISREG(st.st_mode)) continue;
    s = list_one(path, &st, fn, user);
  }
  closedir(d);
  return s;
}

weir_status wr_pack_verify(const char *path) {
  wr_map map;
  WR_TRY(wr_map_open(path, false, &map));
  const char *fault = head_fault(map.ptr, map.bytes, map.bytes);
  if (!fault) {
    pack_head h;
    memcpy(&h, map.ptr, sizeof h);
    if (wr_hash64(map.ptr + h.head_bytes, map.bytes - (size_t)h.head_bytes, 1) != h.payload_hash)
      fault = "its checksum is wrong";
  }
  wr_map_close(&map);
  return fault ? wr_fail(WEIR_EFORMAT, "%s is not a good packed file: %s", path, fault) : WEIR_OK;
}
