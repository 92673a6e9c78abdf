/* weir: chooses the command (commands.def) and hands over its parsed options (options.def). */
#include <string.h>

#include "cli_i.h"

static const struct { const char *name; int (*run)(const wr_options *o); } commands[] = {
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
  static const struct { const char *name; weir_log_level level; } levels[] = {
      {"error", WEIR_LOG_ERROR}, {"warn", WEIR_LOG_WARN}, {"info", WEIR_LOG_INFO}, {"debug", WEIR_LOG_DEBUG}};
  for (size_t i = 0; name && i < sizeof levels / sizeof levels[0]; i++)
    if (strcmp(name, levels[i].name) == 0) return levels[i].level;
  return WEIR_LOG_WARN;
}

int main(int argc, char **argv) {
  if (argc < 2) {
    wr_help_all(stderr);
    return weir_status_exit_code(WEIR_EUSAGE);
  }
  if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "version") == 0) return printf("weir %s\n", weir_version()) < 0;
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
    wr_help_all(stdout);
    return 0;
  }
  for (int i = 0; i < WR_CMD_COUNT; i++) {
    if (strcmp(argv[1], commands[i].name) != 0) continue;
    wr_options options;
    const int ended = wr_options_parse((enum wr_command)i, argc - 1, argv + 1, &options);
    if (ended) return ended - 1;
    weir_set_hooks(&(weir_hooks){.log = print_log, .log_level = log_level(options.log)});
    return commands[i].run(&options);
  }
  fprintf(stderr, "weir: unknown command '%s'; 'weir --help' lists them\n", argv[1]);
  return weir_status_exit_code(WEIR_EUSAGE);
}
