/* What the commands share: parsed options, how a failure ends, signals, and the terminal.
 *
 * Results go to stdout, everything else to stderr. With --json stdout holds JSON alone. Colour and progress bars only on a terminal, and
 * no colour with NO_COLOR. */
#ifndef WR_CLI_I_H
#define WR_CLI_I_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "json_i.h"
#include "weir/weir.h"

enum wr_command {
#define COMMAND(id, name, fn, args, least, most, summary, examples) WR_CMD_##id,
#include "commands.def"
#undef COMMAND
  WR_CMD_COUNT
};

enum { WR_LIST_MAX = 16 };
#define WR_NOT_GIVEN INT64_MIN
typedef struct wr_list_option { const char *items[WR_LIST_MAX]; size_t n; } wr_list_option;
typedef struct wr_options {
#define WR_FIELD_FLAG(f) bool f;
#define WR_FIELD_COUNT(f) int64_t f;
#define WR_FIELD_TEXT(f) const char *f;
#define WR_FIELD_LIST(f) wr_list_option f;
#define WR_FIELD_SAMPLE(f)
#define WR_FIELD_SEED(f) uint64_t f;
#define OPTION(field, commands, lname, sname, kind, metavar, otherwise, least, most, help) WR_FIELD_##kind(field)
#include "options.def"
#undef OPTION
  weir_sampling sampling;
  weir_kv_type kv_type;
  weir_train_options train; /* the settings of weir.h that were given */
  const char *command;
  char **args; /* [n_args]: what is not an option, gathered at the beginning of argv */
  int n_args;
} wr_options;

/* Take a command's arguments apart. 0: go on; else an exit code plus one (so that --help, which ends well, is told from going on). */
int wr_options_parse(enum wr_command command, int argc, char **argv, wr_options *out);
void wr_help_all(FILE *to);
const char *wr_closest_command(const char *name); /* that somebody meant who typed this; NULL: none */

#define COMMAND(id, name, fn, args, least, most, summary, examples) int fn(const wr_options *o);
#include "commands.def"
#undef COMMAND

int wr_failed(const wr_options *o, weir_status status);                     /* prints the library's sentence; the exit code */
int wr_failed_file(const wr_options *o, const char *name, int err);          /* prints what errno says of it; the exit code: 4 for a full disk, else 1 */
int wr_usage(const wr_options *o, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* prints it, points to --help; exit code 2 */
int wr_done(const wr_options *o);                                           /* 0, or 1 when stdout could not be written */

weir_status wr_open_context(const wr_options *o, weir_context **out);
weir_status wr_open_model(const wr_options *o, const char *path, weir_context **ctx, weir_model **out); /* opens both, or neither */
void wr_close_model(weir_context *ctx, weir_model *m);
weir_status wr_open_session(const wr_options *o, weir_model *m, weir_session **out);

void wr_print_kernels(const weir_model *m); /* --why: which were chosen, on stderr */

/* ---- of generate, for parallel.c and chat.c */
int wr_generate_parallel(const wr_options *o);
weir_generate_options wr_generate_options(const wr_options *o, weir_text stops[WR_LIST_MAX]); /* as the command line has them */
int wr_print_piece(void *options, const char *piece, size_t bytes); /* a weir_piece_fn: on stdout, at once; not with --json */
void wr_print_json_result(const weir_result *r);                    /* a line of its own */
void wr_json_result(wr_json *j, const weir_result *r);              /* keys of the object that is open */
void wr_json_profile(wr_json *j, const weir_profile *p);
void wr_print_why(const weir_model *m, const weir_profile *p); /* p may be NULL */
typedef struct wr_shown_limit {
  const char *mode;
  double gb_s, gb_s_worst, bytes, tok_s, share;
  int runs;
} wr_shown_limit;
void wr_print_limit(const wr_shown_limit *l); /* two lines on stderr */

/* Requests of a file, a line each (requests.c). */
typedef struct wr_request_line {
  int line;
  const char *prompt;
  size_t prompt_bytes;
  weir_generate_options options;
  weir_text stops[WR_LIST_MAX];
} wr_request_line;
typedef struct wr_request_file {
  const char *name;
  char *text;
  void *parsed; /* the JSON that lines point into */
  wr_request_line *lines;
  size_t n;
} wr_request_file;
int wr_requests_read(const wr_options *o, wr_request_file *out); /* 0, or an exit code: a sentence was printed. To be freed in any case */
void wr_requests_free(wr_request_file *f);

int wr_bench_data(const wr_options *o); /* bench_data.c */
int wr_bench_tune(const wr_options *o); /* bench_tune.c */
void wr_json_bench(wr_json *j, const weir_bench_row *r); /* opens an object with the keys of every bench; the caller may add, and ends it */

/* Ctrl-C, SIGTERM and SIGHUP make the session stop; a second one ends the process at once. wr_interrupted: 0, or 128 and its number. */
typedef void (*wr_stop_fn)(void *what);
void wr_on_signal(wr_stop_fn stop, void *what); /* stop(what), from the handler; NULL: nothing runs any more */
void wr_on_broken_pipe(void);                   /* also when nobody reads what is printed: for work that is worth saving */
void wr_stop_on_signal(weir_session *s);        /* the same for a session; NULL: no session any more */
void wr_stop_by_progress(void *what);           /* a stop for work whose progress function returns wr_interrupted() */
int wr_interrupted(void);

bool wr_terminal(FILE *f);
bool wr_redraws(FILE *f); /* a terminal on which a line can be drawn over */
bool wr_colours(FILE *f); /* the same, and NO_COLOR is not set */
int wr_columns(FILE *f); /* of the terminal; 80 where there is none */
bool wr_utf8(void);      /* does the locale want UTF-8? */
/* A bar on stderr that is drawn over itself, when stderr is a terminal and --json is not given; done outside [0, 1) ends the line. */
void wr_progress(const wr_options *o, const char *what, double done);
void wr_size(char out[16], double bytes);                                   /* "98.4 MB", powers of 1000 */
void wr_duration(char out[24], double seconds);                             /* "9.5 s", "4 min 05 s", "2 h 07 min" */
void wr_bar(char *out, size_t cells, double share);                         /* UTF-8 blocks; out holds 3 bytes a cell and a NUL */
/* All of a file, or of standard input (path NULL; on a terminal `what` is asked for, unless NULL), at most `most` bytes.
 * NULL: a sentence was printed. The caller frees. */
char *wr_read_all(const wr_options *o, const char *path, const char *what, size_t most, size_t *n);
/* Ids separated by commas and white space. false: a sentence was printed. *ids: free(). */
bool wr_parse_ids(const wr_options *o, const char *text, size_t len, weir_token **ids, size_t *n);

#endif
