/* weir.h: the public API of weir, an engine that trains and runs generative language models.
 * SPDX-License-Identifier: Apache-2.0
 *
 * This header is the manual. In short:
 *
 *   weir_context *ctx;  weir_context_open(NULL, &ctx);                 threads, devices, memory
 *   weir_model *m;      weir_model_open(ctx, "m.gguf", NULL, &m);      weights, mapped and shared read-only
 *   weir_session *s;    weir_session_open(m, NULL, &s);                one sequence: its KV cache
 *   weir_generate(s, "Hello", NULL, print_piece, user, &result);       text out, with how fast and why
 *
 * Rules that hold everywhere
 * - weir_noun_verb; the object comes first, outputs come last and are untouched on failure.
 * - A call that can fail returns a weir_status: 0, or one of the negative codes below. weir_last_error() is the sentence that
 *   says what was wrong, of the last failed call of the calling thread.
 * - In an option struct {0} is the default of every field. NULL for the whole struct means the same.
 * - The library never exits, never prints, never installs a signal handler. weir_hooks replaces its allocator, clock and log.
 * - Two threads may use two handles. One handle is used by one thread at a time, except weir_stop(). A model is shared
 *   read-only by any number of sessions; close them before the model, and the models before the context.
 * - Text is bytes with a length. It is UTF-8 where it is text; nothing needs a final NUL unless it says so.
 *
 * Caveats
 * - A mapped model file that another process truncates raises SIGBUS in the reader; weir_model_options.no_mmap reads it instead.
 */
#ifndef WEIR_H
#define WEIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --------------------------------------------------------------------------------------------------------------- status */

/* name, value, exit code of the command line for it, what it means */
#define WEIR_STATUS_MAP(X) \
  X(OK, 0, 0, "done") \
  X(EFAIL, -1, 1, "the work failed") \
  X(EUSAGE, -2, 2, "wrong usage: an argument or option is missing, unknown or out of range") \
  X(EFORMAT, -3, 3, "the input is malformed") \
  X(EUNSUPPORTED, -4, 3, "the input is well-formed but weir does not support it") \
  X(ENOMEM, -5, 4, "not enough memory or disk") \
  X(EDEVICE, -6, 5, "a device failed") \
  X(EIO, -7, 1, "a file could not be opened, read or written") \
  X(ESTOPPED, -8, 130, "stopped by weir_stop() or by a callback")

typedef enum weir_status {
#define X(name, value, exit_code, text) WEIR_##name = value,
  WEIR_STATUS_MAP(X)
#undef X
} weir_status;

const char *weir_status_name(weir_status status);  /* "WEIR_ENOMEM"; "unknown status" for a number that is none of them */
int weir_status_exit_code(weir_status status);     /* what the command line exits with */
const char *weir_last_error(void);                 /* a sentence, never NULL; valid until this thread's next failing call */
const char *weir_version(void);                    /* "0.1.0" */

/* ---------------------------------------------------------------------------------------------------------------- hooks */

typedef enum weir_log_level { WEIR_LOG_DEFAULT = 0, WEIR_LOG_ERROR, WEIR_LOG_WARN, WEIR_LOG_INFO, WEIR_LOG_DEBUG } weir_log_level;

/* Process-wide. Set them before the first other call, or while nothing of weir exists. A NULL member keeps the built-in one.
 * allocate/release: every heap allocation of the library goes through them, so a test can make the n-th one fail. */
typedef struct weir_hooks {
  void *(*allocate)(void *user, size_t bytes);              /* aligned as malloc does; NULL: no memory */
  void *(*reallocate)(void *user, void *ptr, size_t bytes); /* as realloc */
  void (*release)(void *user, void *ptr);                   /* as free */
  uint64_t (*clock_ns)(void *user);                         /* monotonic */
  void (*log)(void *user, weir_log_level level, const char *message);
  weir_log_level log_level;                                 /* default: WARN; without a log hook nothing is printed */
  void *user;
} weir_hooks;
void weir_set_hooks(const weir_hooks *hooks); /* NULL: back to the built-in ones */

#ifdef __cplusplus
}
#endif
#endif
