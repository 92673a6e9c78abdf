/* weir: chooses the command and hands over. A command is a row of the table; its function gets its own name and what follows. */
#include <stdio.h>
#include <string.h>

#include "inspect_i.h"
#include "weir/weir.h"

static const struct {
  const char *name;
  int (*run)(int argc, char **argv);
  const char *what;
} commands[] = {
    {"inspect", wr_cmd_inspect, "what a model file holds"},
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

static void usage(FILE *to) {
  fprintf(to, "usage: weir COMMAND ...\n");
  for (size_t i = 0; i < N_COMMANDS; i++) fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].what);
}

int main(int argc, char **argv) {
  if (argc < 2) {
    usage(stderr);
    return 2;
  }
  if (strcmp(argv[1], "--version") == 0) return printf("weir %s\n", weir_version()) < 0;
  if (strcmp(argv[1], "--help") == 0) {
    usage(stdout);
    return 0;
  }
  for (size_t i = 0; i < N_COMMANDS; i++)
    if (strcmp(argv[1], commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
  fprintf(stderr, "weir: unknown command '%s'\n", argv[1]);
  usage(stderr);
  return 2;
}
