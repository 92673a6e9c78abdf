/* file.c: owns reading files whole (mapped or copied), writing them so that no reader ever sees half of one, and folders.
 *
 * Refuses: folders, and streams without an end (a pipe or device is read up to STREAM_BYTES_MAX). What is not a regular file
 * cannot be mapped and is read into memory, as are the files of /proc, whose size says 0.
 * A copied file lies in pages of its own, so it is aligned as well as a mapped one.
 * Huge pages: a file system with large folios (ext4, xfs, btrfs of recent kernels) holds a file in huge pages when it was written or
 * read in large steps, and a map of it then has entries of 2 MB; MADV_HUGEPAGE makes the kernel read it so.
 */
#include "base/base_i.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define STREAM_BYTES_MAX ((size_t)4 << 30)
#define READ_STEP_MAX ((size_t)1 << 30)

/* Opens a file that is no folder. */
static weir_status open_to_read(const char *path, int *out_fd, struct stat *out_stat) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return wr_fail_errno(WEIR_EIO, path, "open");
  struct stat st;
  if (fstat(fd, &st) != 0) {
    weir_status status = wr_fail_errno(WEIR_EIO, path, "examine");
    close(fd);
    return status;
  }
  if (S_ISDIR(st.st_mode)) {
    close(fd);
    return wr_fail(WEIR_EIO, "%s: is a folder, not a file", wr_escape(path, strlen(path)));
  }
  *out_fd = fd;
  *out_stat = st;
  return WEIR_OK;
}

/* Reads until n bytes or the end of the file. Returns the bytes read, or -1 with errno. */
static ssize_t read_fully(int fd, void *to, size_t n) {
  size_t got = 0;
  while (got < n) {
    ssize_t step = read(fd, (uint8_t *)to + got, WR_MIN(n - got, READ_STEP_MAX));
    if (step < 0 && errno == EINTR) continue;
    if (step < 0) return -1;
    if (step == 0) break;
    got += (size_t)step;
  }
  return (ssize_t)got;
}

/* ---- maps */

/* A regular file of known size, copied. */
static weir_status copy_regular(int fd, const char *path, wr_map *m) {
  uint8_t *ptr = wr_pages_alloc(m->bytes, true);
  if (!ptr) return wr_fail_nomem(m->bytes, wr_escape(path, strlen(path)));
  ssize_t got = read_fully(fd, ptr, m->bytes);
  if (got == (ssize_t)m->bytes) {
    m->ptr = ptr;
    m->heap = true;
    return WEIR_OK;
  }
  weir_status status = got < 0 ? wr_fail_errno(WEIR_EIO, path, "read")
                               : wr_fail(WEIR_EIO, "%s: ended after %zd of %zu bytes; another program is changing it",
                                         wr_escape(path, strlen(path)), got, m->bytes);
  wr_pages_free(ptr, m->bytes);
  return status;
}

/* Whatever ends only when it ends: pages that double until then. */
static weir_status copy_stream(int fd, const char *path, wr_map *m) {
  size_t cap = (size_t)64 << 10, used = 0;
  uint8_t *ptr = wr_pages_alloc(cap, false);
  if (!ptr) return wr_fail_nomem(cap, wr_escape(path, strlen(path)));
  for (;;) {
    ssize_t got = read_fully(fd, ptr + used, cap - used);
    if (got < 0) {
      weir_status status = wr_fail_errno(WEIR_EIO, path, "read");
      wr_pages_free(ptr, cap);
      return status;
    }
    used += (size_t)got;
    if (used < cap) break;
    if (cap >= STREAM_BYTES_MAX) {
      char limit[16];
      wr_size_text(limit, STREAM_BYTES_MAX);
      wr_pages_free(ptr, cap);
      return wr_fail(WEIR_EIO, "%s: more than %s from what is not a regular file; save it to a file first",
                     wr_escape(path, strlen(path)), limit);
    }
    void *wider = mremap(ptr, cap, cap * 2, MREMAP_MAYMOVE);
    if (wider == MAP_FAILED) {
      wr_pages_free(ptr, cap);
      return wr_fail_nomem(cap * 2, wr_escape(path, strlen(path)));
    }
    ptr = wider;
    cap *= 2;
  }
  m->bytes = used;
  m->heap = true;
  if (used == 0) {
    wr_pages_free(ptr, cap);
    return WEIR_OK;
  }
  /* give back the pages after the last one in use, so that closing needs no second size */
  size_t page = (size_t)sysconf(_SC_PAGESIZE), keep = (used + page - 1) / page * page;
  if (keep < cap) wr_pages_free(ptr + keep, cap - keep);
  m->ptr = ptr;
  return WEIR_OK;
}

weir_status wr_map_open(const char *path, bool no_mmap, wr_map *out) {
  int fd;
  struct stat st;
  WR_TRY(open_to_read(path, &fd, &st));
  wr_map m = {0};
  m.mtime_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
  m.inode = st.st_ino;
  m.device = st.st_dev;
  weir_status status = WEIR_OK;
  if (!S_ISREG(st.st_mode) || st.st_size == 0) {
    status = copy_stream(fd, path, &m);
  } else {
    m.bytes = (size_t)st.st_size;
    void *ptr = no_mmap ? MAP_FAILED : mmap(NULL, m.bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (ptr != MAP_FAILED)
      m.ptr = ptr;
    else if (!no_mmap && errno == ENOMEM)
      status = wr_fail_nomem(m.bytes, wr_escape(path, strlen(path)));
    else
      status = copy_regular(fd, path, &m); /* asked for, or a file system without maps */
  }
  close(fd);
  if (status == WEIR_OK) *out = m;
  return status;
}

void wr_map_close(wr_map *m) {
  if (m->ptr) munmap((void *)(uintptr_t)m->ptr, m->bytes);
  *m = (wr_map){0};
}

#ifndef MADV_POPULATE_READ
  #define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif

void wr_map_populate(const wr_map *m) {
  if (!m->ptr || m->heap || m->bytes > wr_memory_available() / 2) return;
  void *ptr = (void *)(uintptr_t)m->ptr;
  /* Advice, both: a kernel that knows neither brings each page when it is touched. */
  (void)madvise(ptr, m->bytes, MADV_HUGEPAGE);
  (void)madvise(ptr, m->bytes, MADV_POPULATE_READ);
}

/* Of each mapping that meets the range: its lines AnonHugePages, FilePmdMapped and ShmemPmdMapped. */
uint64_t wr_pages_huge(const void *ptr, size_t bytes) {
  FILE *f = fopen("/proc/self/smaps", "re");
  if (!f) return 0;
  const uintptr_t begin = (uintptr_t)ptr, end = begin + bytes;
  char line[512], what[32], unit[4];
  uintptr_t from, to;
  uint64_t sum_kb = 0, kb;
  bool within = false;
  while (fgets(line, sizeof line, f)) {
    if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &from, &to) == 2)
      within = from < end && to > begin;
    else if (within && sscanf(line, "%31[^:]: %" SCNu64 " %3s", what, &kb, unit) == 3 &&
             (strcmp(what, "AnonHugePages") == 0 || strcmp(what, "FilePmdMapped") == 0 || strcmp(what, "ShmemPmdMapped") == 0))
      sum_kb += kb;
  }
  fclose(f);
  return WR_MIN(sum_kb << 10, (uint64_t)bytes);
}

/* ---- small files */

weir_status wr_file_read(const char *path, size_t max_bytes, char **out, size_t *out_bytes) {
  int fd;
  struct stat st;
  WR_TRY(open_to_read(path, &fd, &st));
  weir_status status = WEIR_OK;
  void *text = NULL;
  size_t cap = 0, used = 0;
  size_t guess = S_ISREG(st.st_mode) && st.st_size > 0 ? (size_t)st.st_size : 4096;
  max_bytes = WR_MIN(max_bytes, (size_t)PTRDIFF_MAX - 4); /* more could not be allocated */
  guess = WR_MIN(guess, max_bytes);
  for (;;) {
    /* one byte more than allowed tells too long from just right; and one for the NUL */
    size_t want = WR_MIN(used == 0 ? guess + 1 : used * 2, max_bytes + 1);
    if (!wr_grow(&text, &cap, want + 1, 1)) {
      status = wr_fail_nomem(want, wr_escape(path, strlen(path)));
      break;
    }
    ssize_t got = read_fully(fd, (char *)text + used, want - used);
    if (got < 0) {
      status = wr_fail_errno(WEIR_EIO, path, "read");
      break;
    }
    used += (size_t)got;
    if (used > max_bytes) {
      char limit[16];
      wr_size_text(limit, max_bytes);
      status = wr_fail(WEIR_EFORMAT, "%s: larger than the %s that such a file may have", wr_escape(path, strlen(path)), limit);
      break;
    }
    if (used < want) break;
  }
  close(fd);
  if (status != WEIR_OK) {
    wr_free(text);
    return status;
  }
  ((char *)text)[used] = '\0';
  *out = text;
  if (out_bytes) *out_bytes = used;
  return WEIR_OK;
}

/* The folder that holds `path`, in heap memory. */
static char *folder_of(const char *path) {
  const char *slash = strrchr(path, '/');
  if (!slash) return wr_strdup(".");
  return slash == path ? wr_strdup("/") : wr_strndup(path, (size_t)(slash - path));
}

/* ---- changing files, each step of it after the hook's leave */

static bool refused(const char *op, const char *path) {
  const weir_hooks *h = wr_hooks();
  const int err = h->file(h->user, op, path);
  if (err) errno = err;
  return err != 0;
}

int wr_os_create(const char *path) {
  return refused("create", path) ? -1 : open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
}

int wr_os_write(int fd, const char *path, const void *bytes, size_t n) {
  if (refused("write", path)) return -1;
  for (size_t done = 0; done < n;) {
    ssize_t step = write(fd, (const uint8_t *)bytes + done, WR_MIN(n - done, READ_STEP_MAX));
    if (step < 0 && errno == EINTR) continue;
    if (step < 0) return -1;
    done += (size_t)step;
  }
  return 0;
}

int wr_os_fsync(int fd, const char *path) { return refused("fsync", path) ? -1 : fsync(fd); }

int wr_os_fsync_folder(const char *path) {
  if (refused("fsync", path)) return -1;
  const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -1;
  const int rc = fsync(fd), err = errno;
  close(fd);
  errno = err;
  return rc != 0 && err == EINVAL ? 0 : rc;
}

int wr_os_rename(const char *from, const char *to) { return refused("rename", to) ? -1 : rename(from, to); }

int wr_os_exchange(const char *a, const char *b) {
  return refused("rename", b) ? -1 : renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
}

int wr_os_unlink(const char *path) { return refused("unlink", path) ? -1 : unlink(path); }

int wr_os_mkdir(const char *path) { return refused("mkdir", path) ? -1 : mkdir(path, 0777); }

weir_status wr_write_status(int err) {
  return err == ENOSPC || err == EDQUOT || err == EFBIG || err == ENOMEM ? WEIR_ENOMEM : WEIR_EIO;
}

static weir_status write_whole(int fd, const char *path, const void *bytes, size_t n) {
  if (wr_os_write(fd, path, bytes, n) != 0) return wr_fail_errno(wr_write_status(errno), path, "write");
  if (wr_os_fsync(fd, path) != 0) return wr_fail_errno(wr_write_status(errno), path, "write to disk");
  return WEIR_OK;
}

weir_status wr_file_write_atomic(const char *path, const void *bytes, size_t n) {
  struct stat st;
  if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
    return wr_fail(WEIR_EIO, "%s: is not a regular file, so it is not replaced", wr_escape(path, strlen(path)));
  wr_str temp = {0};
  wr_str_printf(&temp, "%s.%08x.tmp", path, (unsigned)wr_random_seed());
  char *folder = folder_of(path);
  weir_status status = WEIR_OK;
  if (temp.oom || !folder) {
    status = wr_fail_nomem(strlen(path), "a file name");
    goto done;
  }
  int fd = wr_os_create(temp.ptr);
  if (fd < 0) {
    status = wr_fail_errno(wr_write_status(errno), path, "create");
    goto done;
  }
  status = write_whole(fd, path, bytes, n);
  if (close(fd) != 0 && status == WEIR_OK) status = wr_fail_errno(wr_write_status(errno), path, "write");
  if (status == WEIR_OK && wr_os_rename(temp.ptr, path) != 0) status = wr_fail_errno(wr_write_status(errno), path, "replace");
  if (status != WEIR_OK) {
    unlink(temp.ptr);
    goto done;
  }
  /* the name itself must be on disk; some file systems cannot sync a folder, and then nothing better is to be had */
  (void)wr_os_fsync_folder(folder);
done:
  wr_free(folder);
  wr_str_free(&temp);
  return status;
}

/* ---- folders */

static weir_status make_folder(const char *path) {
  if (wr_os_mkdir(path) == 0) return WEIR_OK;
  int err = errno; /* EEXIST, or what a read-only file system says first */
  struct stat st;
  if (stat(path, &st) == 0) {
    if (S_ISDIR(st.st_mode)) return WEIR_OK;
    return wr_fail(WEIR_EIO, "%s: is a file, so it cannot be a folder", wr_escape(path, strlen(path)));
  }
  errno = err;
  return wr_fail_errno(wr_write_status(err), path, "make the folder");
}

weir_status wr_mkdir_p(const char *path) {
  char *part = wr_strdup(path);
  if (!part) return wr_fail_nomem(strlen(path), "a folder name");
  weir_status status = WEIR_OK;
  for (char *p = part; *p && status == WEIR_OK; p++) {
    if (*p != '/' || p == part) continue;
    *p = '\0';
    status = make_folder(part);
    *p = '/';
  }
  if (status == WEIR_OK) status = make_folder(part);
  wr_free(part);
  return status;
}

weir_status wr_cache_dir(char *out, size_t cap) {
  const char *own = getenv("WEIR_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  int n;
  if (own && *own)
    n = snprintf(out, cap, "%s", own);
  else if (xdg && *xdg == '/')
    n = snprintf(out, cap, "%s/weir", xdg); /* the XDG rules: a relative one is ignored */
  else if (home && *home)
    n = snprintf(out, cap, "%s/.cache/weir", home);
  else
    return wr_fail(WEIR_EFAIL, "no place for a cache: none of WEIR_CACHE, XDG_CACHE_HOME and HOME is set");
  if (n < 0 || (size_t)n >= cap) return wr_fail(WEIR_EFAIL, "the name of the cache folder is longer than %zu bytes", cap - 1);
  return WEIR_OK;
}
