/* Lines: see lines_i.h.
 *
 * libedit is opened when it is first needed, by its readline interface, of which only the names below are used; without it, or where the
 * terminal is none, lines are read plainly. Characters are read here in either case, so that a signal ends the line at once and what is not
 * UTF-8 becomes U+FFFD instead of the end of the input. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include "cli_i.h"
#include "lines_i.h"

enum { HISTORY_LINES = 1000, BAD_CHARACTER = 0xFFFD };

static struct {
  const char *history;
  bool (*interrupted)(void);
  bool edits, stopped; /* the line that is read was ended by a signal */
  char *(*readline)(const char *prompt);
  int (*add_history)(const char *line);
  int (*read_history)(const char *path);
  int (*write_history)(const char *path);
  int (*stifle_history)(int most);
} lines;

/* A byte of standard input; -1: its end, or a signal. Signals are let in while it waits and nowhere before, so none is missed. */
static int next_byte(void) {
  static unsigned char bytes[4096];
  static ssize_t n, at;
  struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
  sigset_t all, before;
  int ready = 1;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  while (!(lines.stopped = lines.interrupted()) && at >= n && (ready = ppoll(&in, 1, NULL, &before)) < 0 && errno == EINTR)
    continue;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (lines.stopped || ready < 0) return -1;
  if (at >= n) {
    at = 0;
    n = read(STDIN_FILENO, bytes, sizeof bytes);
  }
  return at < n ? bytes[at++] : -1;
}

/* What libedit reads by: a character, -1 at the end. */
static int next_character(FILE *f) {
  static int kept = -1; /* the byte that showed that the character before it was cut short */
  mbstate_t state = {0};
  (void)f;
  for (int byte, count = 0;; count++) {
    byte = kept >= 0 ? kept : next_byte();
    kept = -1;
    if (byte < 0) return count ? BAD_CHARACTER : -1;
    const char c = (char)byte;
    wchar_t wide;
    const size_t n = mbrtowc(&wide, &c, 1, &state);
    if (n <= 1) return (int)wide;
    if (n == (size_t)-2) continue;
    if (count) kept = byte;
    return BAD_CHARACTER;
  }
}

static bool find(void *library, const char *name, void *out) {
  void *found = dlsym(library, name);
  memcpy(out, &found, sizeof found);
  return found;
}

static bool load(void) {
  void *library = dlopen("libedit.so.2", RTLD_NOW | RTLD_LOCAL);
  int (**getc_function)(FILE *);
  if (!library || !find(library, "readline", &lines.readline) || !find(library, "add_history", &lines.add_history) ||
      !find(library, "read_history", &lines.read_history) || !find(library, "write_history", &lines.write_history) ||
      !find(library, "stifle_history", &lines.stifle_history) || !find(library, "rl_getc_function", &getc_function))
    return false;
  *getc_function = next_character;
  return true;
}

void wr_lines_open(bool plain, const char *history, bool (*interrupted)(void)) {
  lines.history = history;
  lines.interrupted = interrupted;
  /* libedit turns characters back into bytes by the locale; one without UTF-8 could not */
  if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
  lines.edits = !plain && wr_redraws(stdout) && wr_terminal(stdin) && load();
  if (!lines.edits) return;
  lines.stifle_history(HISTORY_LINES);
  if (history) lines.read_history(history);
}

bool wr_lines_edited(void) { return lines.edits; }

static wr_line ended(void) { return lines.stopped ? WR_LINE_INTERRUPTED : WR_LINE_END; }

static wr_line read_plainly(const char *prompt, char **text, size_t *n) {
  size_t len = 0, cap = 256;
  char *line = malloc(cap);
  int byte = 0;
  if (wr_terminal(stdin)) {
    fputs(prompt, stderr);
    fflush(stderr);
  }
  while (line && (byte = next_byte()) >= 0 && byte != '\n') {
    if (len + 1 == cap) {
      char *more = realloc(line, cap *= 2);
      if (!more) free(line);
      line = more;
    }
    if (line) line[len++] = (char)byte;
  }
  if (!line) return WR_LINE_FAILED;
  if (byte < 0 && (!len || lines.stopped)) {
    free(line);
    return ended();
  }
  line[len] = 0;
  *text = line;
  *n = len;
  return WR_LINE_READ;
}

wr_line wr_lines_read(const char *prompt, char **text, size_t *n) {
  lines.stopped = false;
  if (!lines.edits) return read_plainly(prompt, text, n);
  char *line = lines.readline(prompt);
  if (!line || lines.stopped) {
    free(line);
    return ended();
  }
  *text = line;
  *n = strlen(line);
  return WR_LINE_READ;
}

void wr_lines_remember(const char *text) {
  if (lines.edits) lines.add_history(text);
}

void wr_lines_close(void) {
  if (!lines.edits || !lines.history) return;
  const int fd = open(lines.history, O_WRONLY | O_CREAT | O_CLOEXEC, 0600); /* before libedit does, for nobody else to read */
  if (fd < 0) return;
  close(fd);
  lines.write_history(lines.history);
}
