/* weir: chooses the command (commands.def) and hands over its parsed options (options.def). */
#include <signal.h>
#include <string.h>

#include "cli_i.h"

static const struct {
  const char *name;
  int (*run)(const wr_options *o);
} commands[] = {
#define COMMAND(id, name, fn, args, least, most, summary, examples) {name, fn},
#include "commands.def"
#undef COMMAND
};

/* WARN unless --log says otherwise; the library itself never prints. */
static void print_log(void *user, weir_log_level level, const char *message) {
  static const char *const names[] = {"", "error", "warning", "info", "debug"};
  (void)user;
  fprintf(stderr, "weir: %s: %s\n", names[level], message);
}

static weir_log_level log_level(const char *name) {
  static const struct {
    const char *name;
    weir_log_level level;
  } levels[] = {{"error", WEIR_LOG_ERROR}, {"warn", WEIR_LOG_WARN}, {"info", WEIR_LOG_INFO}, {"debug", WEIR_LOG_DEBUG}};
  for (size_t i = 0; name && i < sizeof levels / sizeof levels[0]; i++)
    if (strcmp(name, levels[i].name) == 0) return levels[i].level;
  return WEIR_LOG_WARN;
}

static int find_command(const char *name) {
  for (int i = 0; i < WR_CMD_COUNT; i++)
    if (strcmp(name, commands[i].name) == 0) return i;
  return -1;
}

static int unknown_command(const char *name) {
  const char *near = wr_closest_command(name);
  char shown[64];
  weir_escape(name, strlen(name), shown, sizeof shown);
  fprintf(stderr, "weir: unknown command '%s'; ", shown);
  fprintf(stderr, near ? "did you mean '%s'? 'weir --help' lists them\n" : "'weir --help' lists them\n", near);
  return weir_status_exit_code(WEIR_EUSAGE);
}

/* `weir help [COMMAND]`, `weir --version`: what is no command of the table. -1: it is none of these. */
static int run_builtin(int argc, char **argv) {
  static const wr_options self = {.command = "help"};
  const char *what = argv[1];
  if (strcmp(what, "--version") == 0 || strcmp(what, "version") == 0) {
    printf("weir %s\n", weir_version());
    return wr_done(&self);
  }
  if (strcmp(what, "--help") != 0 && strcmp(what, "-h") != 0 && strcmp(what, "help") != 0) return -1;
  if (argc > 2) {
    char *args[] = {argv[2], (char *)(uintptr_t) "--help", NULL};
    const int id = find_command(argv[2]);
    wr_options options;
    return id < 0 ? unknown_command(argv[2]) : wr_options_parse((enum wr_command)id, 2, args, &options) - 1;
  }
  wr_help_all(stdout);
  return wr_done(&self);
}

int main(int argc, char **argv) {
  if (argc < 2) {
    wr_help_all(stderr);
    return weir_status_exit_code(WEIR_EUSAGE);
  }
  const int code = run_builtin(argc, argv), id = find_command(argv[1]);
  if (code >= 0) return code;
  if (id < 0) return unknown_command(argv[1]);
  wr_options options;
  const int ended = wr_options_parse((enum wr_command)id, argc - 1, argv + 1, &options);
  if (ended) return ended - 1;
  signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is a sentence and an exit code, as a full disk is */
  weir_set_hooks(&(weir_hooks){.log = print_log, .log_level = log_level(options.log)});
  return commands[id].run(&options);
}
