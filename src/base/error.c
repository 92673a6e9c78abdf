/* error.c: owns the last error sentence of each thread, the names of the status codes, and the process-wide hooks.
 *
 * A sentence is at most 1023 bytes and is cut at a whole UTF-8 character. It is formed in a second buffer first, so that an
 * argument may point into the old sentence.
 */
#include "base/base_i.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#define SENTENCE_BYTES 1024

static _Thread_local char sentence[SENTENCE_BYTES];

/* ---- status */

static const struct {
  weir_status status;
  int exit_code;
  const char *name;
} status_rows[] = {
#define X(row_name, value, row_exit_code, text) {WEIR_##row_name, row_exit_code, "WEIR_" #row_name},
    WEIR_STATUS_MAP(X)
#undef X
};

const char *weir_status_name(weir_status status) {
  for (size_t i = 0; i < WR_ARRAY_LEN(status_rows); i++)
    if (status_rows[i].status == status) return status_rows[i].name;
  return "unknown status";
}

int weir_status_exit_code(weir_status status) {
  for (size_t i = 0; i < WR_ARRAY_LEN(status_rows); i++)
    if (status_rows[i].status == status) return status_rows[i].exit_code;
  return 1;
}

const char *weir_last_error(void) { return sentence[0] ? sentence : "no error"; }

const char *weir_version(void) { return "0.1.0"; }

static void keep_sentence(char *text) {
  size_t n = strlen(text);
  if (n == SENTENCE_BYTES - 1) n -= wr_utf8_partial(text, n);
  memcpy(sentence, text, n);
  sentence[n] = '\0';
}

weir_status wr_fail(weir_status status, const char *fmt, ...) {
  char text[SENTENCE_BYTES];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  keep_sentence(text);
  return status;
}

weir_status wr_fail_nomem(size_t bytes, const char *what) {
  char size[16];
  wr_size_text(size, bytes);
  return wr_fail(WEIR_ENOMEM, "no memory for %s (%s)", what, size);
}

weir_status wr_fail_errno(weir_status status, const char *path, const char *did) {
  int err = errno;
  char reason[128];
  /* the GNU strerror_r: returns the text, which may or may not be in `reason` */
  const char *text = strerror_r(err, reason, sizeof reason);
  return wr_fail(status, "%s: cannot %s: %s", wr_escape(path, strlen(path)), did, text);
}

weir_status wr_fail_prefix(weir_status status, const char *fmt, ...) {
  char text[SENTENCE_BYTES];
  va_list args;
  va_start(args, fmt);
  int n = vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  if (n >= 0 && (size_t)n < sizeof text) snprintf(text + n, sizeof text - (size_t)n, "%s", weir_last_error());
  keep_sentence(text);
  return status;
}

/* ---- hooks */

static void *std_allocate(void *user, size_t bytes) {
  (void)user;
  return malloc(bytes);
}

static void *std_reallocate(void *user, void *ptr, size_t bytes) {
  (void)user;
  return realloc(ptr, bytes);
}

static void std_release(void *user, void *ptr) {
  (void)user;
  free(ptr);
}

static uint64_t std_clock_ns(void *user) {
  (void)user;
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static int std_file(void *user, const char *op, const char *path) {
  (void)user, (void)op, (void)path;
  return 0;
}

static const weir_hooks std_hooks = {std_allocate, std_reallocate, std_release, std_clock_ns,
                                     NULL,         WEIR_LOG_WARN,  std_file,    NULL};
static weir_hooks hooks = {std_allocate, std_reallocate, std_release, std_clock_ns, NULL, WEIR_LOG_WARN, std_file, NULL};

const weir_hooks *wr_hooks(void) { return &hooks; }

void weir_set_hooks(const weir_hooks *h) {
  weir_hooks next = std_hooks;
  if (h) {
    if (h->allocate) next.allocate = h->allocate;
    if (h->reallocate) next.reallocate = h->reallocate;
    if (h->release) next.release = h->release;
    if (h->clock_ns) next.clock_ns = h->clock_ns;
    if (h->file) next.file = h->file;
    if (h->log_level != WEIR_LOG_DEFAULT) next.log_level = h->log_level;
    next.log = h->log;
    next.user = h->user;
  }
  hooks = next;
}
