/* base: what every other folder stands on. Errors, memory, strings, log, clock, random bits, files, and the team of threads.
 *
 * Owns: the thread's last error sentence; the process-wide hooks; the team. Knows nothing of tensors, devices or models.
 * Names: wr_ is weir's internal prefix. Functions that can fail return weir_status and leave a sentence with wr_fail().
 */
#ifndef WR_BASE_H
#define WR_BASE_H

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "weir/weir.h"

#define WR_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define WR_MIN(a, b) ((a) < (b) ? (a) : (b))
#define WR_MAX(a, b) ((a) > (b) ? (a) : (b))
#define WR_PRINTF(fmt_at, args_at) __attribute__((format(printf, fmt_at, args_at)))
#define WR_UNUSED __attribute__((unused))
#define WR_CACHE_LINE 64

/* Evaluate once; on failure hand the status to the caller. The sentence was already left where it failed. */
#define WR_TRY(expr) \
  do { \
    weir_status wr_try_ = (expr); \
    if (wr_try_ != WEIR_OK) return wr_try_; \
  } while (0)

/* ---- status: error.c */
weir_status wr_fail(weir_status status, const char *fmt, ...) WR_PRINTF(2, 3); /* sets weir_last_error(), returns status */
weir_status wr_fail_nomem(size_t bytes, const char *what);                      /* ENOMEM, "no memory for <what> (<n> MB)" */
weir_status wr_fail_errno(weir_status status, const char *path, const char *did); /* "<path>: cannot <did>: <strerror>" */
/* Put a prefix ("path: ") before the sentence that a callee left. Returns status. */
weir_status wr_fail_prefix(weir_status status, const char *fmt, ...) WR_PRINTF(2, 3);

/* ---- memory: alloc.c. Everything on the heap goes through these (weir_hooks). */
void *wr_malloc(size_t bytes);                /* NULL on failure or bytes > PTRDIFF_MAX; never NULL for 0 bytes */
void *wr_calloc(size_t count, size_t size);   /* overflow-checked, zeroed */
void *wr_realloc(void *ptr, size_t bytes);
void wr_free(void *ptr);                      /* NULL allowed */
char *wr_strdup(const char *s);
char *wr_strndup(const char *s, size_t n);    /* n bytes and a NUL */
bool wr_mul_size(size_t a, size_t b, size_t *out); /* false on overflow, then out is untouched */
bool wr_add_size(size_t a, size_t b, size_t *out);
/* Grow an array to hold `need` elements (doubling). false: no memory, the array is as it was. */
bool wr_grow(void **array, size_t *cap, size_t need, size_t elem_bytes);
/* Anonymous pages, zero until touched, not counted before (MAP_NORESERVE); huge pages advised if `huge`. NULL: refused. */
void *wr_pages_alloc(size_t bytes, bool huge);
void wr_pages_free(void *ptr, size_t bytes);

/* Bump arena: many small objects of one life. Objects are 16-byte aligned and zeroed; all go at once. */
typedef struct wr_arena { struct wr_arena_block *head; size_t used_bytes; } wr_arena;
void *wr_arena_alloc(wr_arena *a, size_t bytes); /* NULL: no memory */
char *wr_arena_strdup(wr_arena *a, const char *s);
char *wr_arena_strndup(wr_arena *a, const char *s, size_t n);
char *wr_arena_printf(wr_arena *a, const char *fmt, ...) WR_PRINTF(2, 3);
void wr_arena_free(wr_arena *a);                 /* and the arena can be used again */

/* ---- strings: string.c. A growing byte string. `oom` is sticky, so that a long series of appends is checked once. */
typedef struct wr_str { char *ptr; size_t len, cap; bool oom; } wr_str;
void wr_str_put(wr_str *s, const void *bytes, size_t n); /* keeps a NUL after the end */
void wr_str_puts(wr_str *s, const char *z);
void wr_str_printf(wr_str *s, const char *fmt, ...) WR_PRINTF(2, 3);
void wr_str_escape(wr_str *s, const char *bytes, size_t n);  /* for terminals: controls and bad UTF-8 as \xNN */
void wr_str_json(wr_str *s, const char *bytes, size_t n);    /* a JSON string, quotes included; bad UTF-8 becomes U+FFFD */
void wr_str_clear(wr_str *s);                                /* length 0, memory kept */
void wr_str_free(wr_str *s);
bool wr_ends_with(const char *s, const char *end);
const char *wr_escape(const char *bytes, size_t n);           /* wr_str_escape, cut at 120 chars, in a per-thread ring of 4 */
size_t wr_utf8_valid(const void *bytes, size_t n);            /* length of the longest valid UTF-8 prefix (RFC 3629) */
/* How many bytes at the end of `bytes` are the beginning of a UTF-8 sequence that is not complete yet (0..3). */
size_t wr_utf8_partial(const void *bytes, size_t n);
void wr_size_text(char out[16], uint64_t bytes);              /* "98.4 MB": 10^3 steps, three digits */

/* ---- log, clock, random: misc.c */
void wr_log(weir_log_level level, const char *fmt, ...) WR_PRINTF(2, 3);
uint64_t wr_now_ns(void);
/* Counter generator (Philox4x32-10): the same 128 bits for the same key and counter, wherever and whenever it is called. */
void wr_philox(uint64_t key, uint64_t counter_hi, uint64_t counter_lo, uint32_t out[4]);
/* Sequential generator for seeds, samplers and tests (xoshiro256**, seeded by splitmix64). */
typedef struct wr_rng { uint64_t s[4]; } wr_rng;
void wr_rng_seed(wr_rng *r, uint64_t seed);
uint64_t wr_rng_u64(wr_rng *r);
double wr_rng_uniform(wr_rng *r);             /* [0, 1) with 53 bits */
double wr_rng_normal(wr_rng *r);
uint64_t wr_random_seed(void);                /* from the system */
uint64_t wr_hash64(const void *bytes, size_t n, uint64_t seed); /* XXH64: for checksums of files we made; not cryptographic */
/* The same in pieces: begin, add …, end. */
typedef struct wr_hash { uint64_t acc[4], seed, total_bytes; uint8_t rest[32]; } wr_hash;
void wr_hash_begin(wr_hash *h, uint64_t seed);
void wr_hash_add(wr_hash *h, const void *bytes, size_t n);
uint64_t wr_hash_end(const wr_hash *h);

/* ---- files: file.c */
typedef struct wr_map {
  const uint8_t *ptr;                         /* the whole file, read-only; NULL for an empty file */
  size_t bytes;
  bool heap;                                  /* read into memory instead of mapped (no_mmap, or not a regular file) */
  uint64_t mtime_ns, inode, device;
} wr_map;
weir_status wr_map_open(const char *path, bool no_mmap, wr_map *out); /* folders, missing files: EIO with the path */
void wr_map_close(wr_map *m);
/* All of it into memory now, in order, in huge pages where the system gives files such, so that nobody waits at a page's first touch.
 * Not what would take more than half of the memory that is left: pages of that come when they are touched. */
void wr_map_populate(const wr_map *m);
uint64_t wr_pages_huge(const void *ptr, size_t bytes); /* how many of these bytes lie in huge pages now, as /proc says; 0: unknown */
weir_status wr_file_read(const char *path, size_t max_bytes, char **out, size_t *out_bytes); /* caller frees; NUL added */
weir_status wr_file_write_atomic(const char *path, const void *bytes, size_t n); /* temp name, fsync, rename, fsync folder */
weir_status wr_mkdir_p(const char *path);
/* What changes files goes through these, so that weir_hooks.file can make any of them fail. As the system calls: -1 with errno. */
int wr_os_create(const char *path);           /* write-only, must not exist yet */
int wr_os_write(int fd, const char *path, const void *bytes, size_t n); /* all of it */
int wr_os_fsync(int fd, const char *path);
int wr_os_fsync_folder(const char *path);     /* 0 also where the file system cannot sync a folder */
int wr_os_rename(const char *from, const char *to);
int wr_os_exchange(const char *a, const char *b); /* two names change places; EINVAL, ENOSYS: not on this file system */
int wr_os_unlink(const char *path);
int wr_os_mkdir(const char *path);
/* ENOMEM for a full disk or quota, else EIO. */
weir_status wr_write_status(int err);
/* "$WEIR_CACHE" or "$XDG_CACHE_HOME/weir" or "$HOME/.cache/weir"; not created. EFAIL when none of them is set. */
weir_status wr_cache_dir(char *out, size_t cap);

/* ---- team of threads: team.c
 * A fixed set of threads that run one function together, the caller being thread 0. Between runs the others spin briefly
 * (tens of microseconds) and then sleep on a futex, so an idle team costs nothing. Threads block all signals. */
typedef struct wr_team wr_team;
typedef void (*wr_team_fn)(void *arg, int tid, int n_threads);
/* threads 0: usable physical cores: affinity, cgroup v1 and v2 quota respected. Fewer threads than asked are accepted when the
 * system refuses to start them (logged). pin: thread i is bound to the i-th usable CPU. */
weir_status wr_team_open(int threads, bool pin, wr_team **out);
void wr_team_close(wr_team *t);               /* NULL allowed */
int wr_team_size(const wr_team *t);
void wr_team_run(wr_team *t, wr_team_fn fn, void *arg); /* returns when all have finished; calls from two threads take turns */
void wr_team_barrier(wr_team *t, int tid);    /* only inside fn, called by all threads of the team */
int wr_default_threads(void);                 /* what threads = 0 gives, at least 1 */

/* ---- limits.c: bytes that this process could still take: the least of free memory, cgroup limits and address-space limit */
uint64_t wr_memory_available(void);

#endif
