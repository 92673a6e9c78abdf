/* What the commands share: see cli_i.h. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli_i.h"

int wr_failed(const wr_options *o, weir_status status) {
  const int signal_code = wr_interrupted();
  if (status == WEIR_ESTOPPED && signal_code) return signal_code;
  fprintf(stderr, "weir %s: %s\n", o->command, weir_last_error());
  return weir_status_exit_code(status);
}

int wr_failed_file(const wr_options *o, const char *name, int err) {
  fprintf(stderr, "weir %s: %s: %s\n", o->command, name, strerror(err));
  return weir_status_exit_code(err == ENOSPC || err == EDQUOT || err == EFBIG ? WEIR_ENOMEM : WEIR_EIO);
}

int wr_done(const wr_options *o) {
  if (fflush(stdout) == 0 && !ferror(stdout)) return wr_interrupted();
  fprintf(stderr, "weir %s: standard output: %s\n", o->command, strerror(errno));
  return 1;
}

static int show_progress(void *user, const char *what, double done) {
  wr_progress(user, what, done);
  return 0;
}

weir_status wr_open_context(const wr_options *o, weir_context **out) {
  const weir_context_options options = {
      .threads = (int)o->threads, .pin = o->pin, .device = o->device, .progress = show_progress, .user = (void *)(uintptr_t)o};
  return weir_context_open(&options, out);
}

weir_status wr_open_model(const wr_options *o, const char *path, weir_context **ctx, weir_model **out) {
  const weir_model_options options = {.no_mmap = o->no_mmap, .no_pack = o->no_pack, .force_pack = o->pack};
  weir_status s = wr_open_context(o, ctx);
  if (s != WEIR_OK) return s;
  s = weir_model_open(*ctx, path, &options, out);
  if (s != WEIR_OK) weir_context_close(*ctx);
  return s;
}

void wr_close_model(weir_context *ctx, weir_model *m) {
  weir_model_close(m);
  weir_context_close(ctx);
}

weir_status wr_open_session(const wr_options *o, weir_model *m, weir_session **out) {
  const weir_session_options options = {.context_tok = o->ctx, .kv = o->kv_type};
  return weir_session_open(m, &options, out);
}

void wr_print_kernels(const weir_model *m) {
  const size_t n = weir_model_why(m, NULL, 0);
  char *text = malloc(n + 1);
  if (!text) return;
  weir_model_why(m, text, n + 1);
  fprintf(stderr, "\nkernels of one token, and why not the better ones:\n%s", text);
  free(text);
}

/* ---- signals */

static _Atomic(wr_stop_fn) stop_running;
static _Atomic(void *) running;
static _Atomic int seen_signal; /* also read by threads that report progress */

static void on_signal(int number) {
  if (number == SIGPIPE) signal(SIGPIPE, SIG_IGN); /* all that is written after the first one would raise it again */
  if (seen_signal && number == SIGPIPE) return;
  if (seen_signal) _exit(128 + number); /* the second one does not wait */
  seen_signal = number;
  const wr_stop_fn stop = atomic_load(&stop_running);
  if (!stop) _exit(128 + number);
  stop(atomic_load(&running));
}

static void handle(int number, void (*handler)(int)) {
  struct sigaction action = {.sa_handler = handler}, before;
  const bool may_be_ignored = number != SIGINT && number != SIGTERM; /* nohup */
  if (may_be_ignored && sigaction(number, NULL, &before) == 0 && before.sa_handler == SIG_IGN) return;
  sigaction(number, &action, NULL);
}

void wr_on_signal(wr_stop_fn stop, void *what) {
  atomic_store(&running, what);
  atomic_store(&stop_running, stop);
  handle(SIGINT, stop ? on_signal : SIG_DFL);
  handle(SIGTERM, stop ? on_signal : SIG_DFL);
  handle(SIGHUP, stop ? on_signal : SIG_DFL);
}

void wr_on_broken_pipe(void) { handle(SIGPIPE, on_signal); }

void wr_stop_by_progress(void *what) { (void)what; }

static void stop_session(void *s) { weir_stop(s); }
void wr_stop_on_signal(weir_session *s) { wr_on_signal(s ? stop_session : NULL, s); }

int wr_interrupted(void) { return seen_signal ? 128 + seen_signal : 0; }

/* ---- terminal */

bool wr_terminal(FILE *f) { return isatty(fileno(f)) == 1; }

bool wr_redraws(FILE *f) {
  const char *kind = getenv("TERM");
  return wr_terminal(f) && !(kind && strcmp(kind, "dumb") == 0);
}

bool wr_colours(FILE *f) {
  const char *none = getenv("NO_COLOR");
  return wr_redraws(f) && !(none && *none);
}

int wr_columns(FILE *f) {
  struct winsize size;
  return ioctl(fileno(f), TIOCGWINSZ, &size) == 0 && size.ws_col >= 20 ? size.ws_col : 80;
}

bool wr_utf8(void) {
  const char *names[] = {"LC_ALL", "LC_CTYPE", "LANG"}, *value = NULL;
  for (size_t i = 0; i < 3 && !(value && *value); i++) value = getenv(names[i]);
  return value && (strcasestr(value, "utf-8") || strcasestr(value, "utf8"));
}

void wr_bar(char *out, size_t cells, double share) {
  static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const double filled = (isfinite(share) ? fmin(fmax(share, 0), 1) : 0) * (double)cells;
  const size_t whole = (size_t)filled, part = (size_t)((filled - (double)whole) * 8);
  size_t at = 0;
  for (size_t i = 0; i < cells; i++) {
    const char *cell = i < whole ? "█" : i == whole && part ? eighths[part] : " ";
    const size_t n = strlen(cell);
    memcpy(out + at, cell, n);
    at += n;
  }
  out[at] = 0;
}

void wr_progress(const wr_options *o, const char *what, double done) {
  if (o->json || !wr_redraws(stderr)) return;
  char bar[3 * 30 + 1];
  wr_bar(bar, 30, done);
  if (done >= 0 && done < 1)
    fprintf(stderr, "\r%s %3.0f %%  %s\033[K", bar, done * 100, what);
  else
    fprintf(stderr, "\r\033[K");
  fflush(stderr);
}

void wr_size(char out[16], double bytes) {
  static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  size_t k = 0;
  for (; bytes >= 999.5 && k + 1 < sizeof units / sizeof units[0]; k++) bytes /= 1000;
  snprintf(out, 16, "%.*f %s", k == 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2, bytes, units[k]);
}

void wr_duration(char out[24], double seconds) {
  if (!isfinite(seconds) || seconds < 0)
    snprintf(out, 24, "?");
  else if (seconds < 60)
    snprintf(out, 24, seconds < 10 ? "%.1f s" : "%.0f s", seconds);
  else if (seconds < 3600)
    snprintf(out, 24, "%d min %02d s", (int)(seconds / 60), (int)fmod(seconds, 60));
  else
    snprintf(out, 24, "%.0f h %02d min", floor(seconds / 3600), (int)(fmod(seconds, 3600) / 60));
}

/* ---- input */

static char *read_stream(const wr_options *o, FILE *f, const char *name, size_t most, size_t *n) {
  size_t cap = 1 << 16, len = 0;
  char *text = malloc(cap);
  while (text) {
    len += fread(text + len, 1, cap - 1 - len, f);
    if (len > most || ferror(f) || feof(f)) break;
    if (len + 1 < cap) continue;
    char *more = cap > SIZE_MAX / 2 ? NULL : realloc(text, cap *= 2);
    if (!more) free(text);
    text = more;
  }
  if (text && !ferror(f) && len <= most) {
    text[len] = 0;
    *n = len;
    return text;
  }
  if (!text)
    fprintf(stderr, "weir %s: %s: no memory to read it\n", o->command, name);
  else if (ferror(f))
    wr_failed_file(o, name, errno);
  else
    fprintf(stderr, "weir %s: %s: longer than %zu bytes\n", o->command, name, most);
  free(text);
  return NULL;
}

char *wr_read_all(const wr_options *o, const char *path, const char *what, size_t most, size_t *n) {
  FILE *f = path ? fopen(path, "rb") : stdin;
  if (!f) {
    wr_failed_file(o, path, errno);
    return NULL;
  }
  if (!path && what && wr_terminal(stdin)) fprintf(stderr, "(%s, then Ctrl-D)\n", what);
  char *text = read_stream(o, f, path ? path : "standard input", most, n);
  if (path) fclose(f);
  return text;
}

bool wr_parse_ids(const wr_options *o, const char *text, size_t len, weir_token **ids, size_t *n) {
  size_t cap = 16, count = 0;
  weir_token *list = malloc(cap * sizeof *list);
  const char *at = text, *end = text + len;
  while (list) {
    while (at < end && (isspace((unsigned char)*at) || *at == ',')) at++;
    if (at == end) break;
    char *stop;
    errno = 0;
    const long v = strtol(at, &stop, 10);
    if (stop == at || errno || v < INT32_MIN || v > INT32_MAX ||
        (stop < end && !isspace((unsigned char)*stop) && *stop != ',')) {
      char shown[64];
      const char *over = at;
      while (over < end && !isspace((unsigned char)*over) && *over != ',') over++;
      weir_escape(at, (size_t)(over - at), shown, sizeof shown);
      wr_usage(o, "'%s' is no token id", shown);
      free(list);
      return false;
    }
    if (count == cap) {
      weir_token *more = realloc(list, 2 * cap * sizeof *list);
      if (!more) free(list);
      list = more;
      cap *= 2;
    }
    if (list) list[count++] = (weir_token)v;
    at = stop;
  }
  if (!list) {
    fprintf(stderr, "weir %s: no memory for the ids\n", o->command);
    return false;
  }
  *ids = list;
  *n = count;
  return true;
}
