/* Options: one table (options.def) parsed, checked, explained, completed. A command's table is commands.def. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli_i.h"

typedef enum option_kind { FLAG, COUNT, TEXT, LIST, SAMPLE, SEED, SETTING } option_kind;

typedef struct option_row {
  const char *field;
  uint64_t commands;
  const char *long_name;
  char short_name;
  option_kind kind;
  const char *metavar;
  int64_t otherwise, least, most;
  const char *help;
  size_t at;       /* offset within wr_options; 0 for SAMPLE and SETTING, which live in `sampling` and `train` */
  const char *def; /* SETTING: its default as text; else NULL */
} option_row;

#define C(id) (1ull << WR_CMD_##id)
#define ALL (~0ull)
#define AT_FLAG(f) offsetof(wr_options, f)
#define AT_COUNT(f) offsetof(wr_options, f)
#define AT_TEXT(f) offsetof(wr_options, f)
#define AT_LIST(f) offsetof(wr_options, f)
#define AT_SEED(f) offsetof(wr_options, f)
#define AT_SAMPLE(f) 0
static const option_row rows[] = {
#define OPTION(field, commands, lname, sname, kind, metavar, otherwise, least, most, help) \
  {#field, commands, lname, sname, kind, metavar, otherwise, least, most, help, AT_##kind(field), NULL},
#include "options.def"
#undef OPTION
/* the settings of training: names, defaults and checks are the library's */
#define METAVAR_INT "N"
#define METAVAR_FLOAT "X"
#define METAVAR_TIME "TIME"
#define METAVAR_TEXT "TEXT"
#define METAVAR_CHOICE "NAME"
#define X(field, kind, def, least, most, resume, choices, text) \
  {#field, C(TRAIN), #field, 0, SETTING, sizeof choices > 1 ? choices : METAVAR_##kind, 0, 0, 0, text, 0, def},
    WEIR_TRAIN_MAP(X)
#undef X
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

typedef struct command_row {
  const char *name, *args;
  int least, most;
  const char *summary, *examples;
} command_row;
static const command_row commands[] = {
#define COMMAND(id, name, fn, args, least, most, summary, examples) {name, args, least, most, summary, examples},
#include "commands.def"
#undef COMMAND
};

/* Settings are named as fields of C; on the command line '_' is '-'. Valid until the fourth call from here. */
static const char *shown_name(const option_row *r) {
  static char ring[4][32];
  static unsigned turn;
  char *out = ring[turn++ % 4];
  snprintf(out, sizeof ring[0], "%s", r->long_name);
  for (char *c = out; *c; c++)
    if (*c == '_') *c = '-';
  return out;
}

/* ---- help */

/* Words from column `at` on, in lines of HELP_COLUMNS; returns where it ended. */
static size_t help_words(FILE *to, const char *text, size_t at) {
  enum { HELP_COLUMNS = 120, INDENT = 31 };
  while (*text) {
    const size_t n = strcspn(text, " ");
    if (at > INDENT && at + 1 + n > HELP_COLUMNS) {
      fprintf(to, "\n%*s", INDENT, "");
      at = INDENT;
    } else if (at > INDENT) {
      fputc(' ', to);
      at++;
    }
    fwrite(text, 1, n, to);
    at += n;
    text += n + (text[n] == ' ');
  }
  return at;
}

static void help_option(FILE *to, const option_row *r) {
  char left[96];
  const int n = r->short_name ? snprintf(left, sizeof left, "-%c, --%s", r->short_name, shown_name(r))
                              : snprintf(left, sizeof left, "    --%s", shown_name(r));
  if (r->metavar) snprintf(left + n, sizeof left - (size_t)n, " %s", r->metavar);
  fprintf(to, "  %-28s %s%*s", left, strlen(left) > 28 ? "\n" : "", strlen(left) > 28 ? 31 : 0, "");
  const size_t at = help_words(to, r->help, 31);
  char def[64] = "";
  if (r->def && r->def[0] && strcmp(r->def, "0") != 0) snprintf(def, sizeof def, "(%s)", r->def);
  help_words(to, def, at);
  fputc('\n', to);
}

static void help_command(FILE *to, enum wr_command id) {
  const command_row *c = &commands[id];
  fprintf(to, "usage: weir %s %s%s[options]\n\n%c%s.\n\noptions:\n", c->name, c->args, c->args[0] ? " " : "",
          toupper(c->summary[0]), c->summary + 1);
  for (int i = 0; i < N_ROWS; i++)
    if (rows[i].commands != ALL && (rows[i].commands & 1ull << id)) help_option(to, &rows[i]);
  fprintf(to, "everywhere:\n");
  for (int i = 0; i < N_ROWS; i++)
    if (rows[i].commands == ALL) help_option(to, &rows[i]);
  fprintf(to, "\nexamples:\n");
  for (const char *line = c->examples; *line;) {
    const size_t n = strcspn(line, "\n");
    fprintf(to, "  %.*s\n", (int)n, line);
    line += n + (line[n] == '\n');
  }
}

void wr_help_all(FILE *to) {
  fprintf(to,
          "weir %s: trains and runs language models on this machine, and says how close to its limit\n\nusage: weir COMMAND "
          "...\n\n",
          weir_version());
  for (int i = 0; i < WR_CMD_COUNT; i++) fprintf(to, "  %-11s %s\n", commands[i].name, commands[i].summary);
  fprintf(to, "\n'weir COMMAND --help' has each command's options and examples; 'weir completion man' prints the manual page.\n"
              "exit status: 0 done, 1 failed, 2 wrong usage, 3 input refused, 4 no memory or disk, 5 device fault, 130 "
              "interrupted, 143 terminated\n");
}

/* ---- failure */

int wr_usage(const wr_options *o, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  fprintf(stderr, "weir %s: ", o->command);
  vfprintf(stderr, fmt, ap);
  va_end(ap);
  fprintf(stderr, "\ntry: weir %s --help\n", o->command);
  return weir_status_exit_code(WEIR_EUSAGE);
}

/* ---- parsing */

/* Of this command; else of another one, so that the refusal can say so. */
static const option_row *find_long(enum wr_command id, const char *name, size_t n) {
  const option_row *other = NULL;
  for (int i = 0; i < N_ROWS; i++) {
    const char *known = shown_name(&rows[i]);
    if (strlen(known) != n || memcmp(known, name, n) != 0) continue;
    if (rows[i].commands & 1ull << id) return &rows[i];
    other = &rows[i];
  }
  return other;
}

static const option_row *find_short(enum wr_command id, char c) {
  const option_row *other = NULL;
  for (int i = 0; i < N_ROWS; i++) {
    if (rows[i].short_name != c) continue;
    if (rows[i].commands & 1ull << id) return &rows[i];
    other = &rows[i];
  }
  return other;
}

/* How many letters must be put in, left out, changed or swapped with their neighbour to make b of a; 99 for long ones. */
static int distance(const char *a, size_t n, const char *b) {
  enum { MOST = 24 };
  int row[3][MOST + 1]; /* of the last two letters of a, and of this one */
  const size_t m = strlen(b);
  if (n > MOST || m > MOST) return 99;
  for (size_t i = 0; i <= n; i++) {
    int *now = row[i % 3], *last = row[(i + 2) % 3], *before = row[(i + 1) % 3];
    now[0] = (int)i;
    for (size_t k = 1; k <= m; k++) {
      if (i == 0) {
        now[k] = (int)k;
        continue;
      }
      int best = last[k - 1] + (a[i - 1] != b[k - 1]);
      if (last[k] + 1 < best) best = last[k] + 1;
      if (now[k - 1] + 1 < best) best = now[k - 1] + 1;
      if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1] && before[k - 2] + 1 < best) best = before[k - 2] + 1;
      now[k] = best;
    }
  }
  return row[n % 3][m];
}

/* Is `name` a slip of the pen for `known`? Then how bad a one; 99: it is another word. A word cut short counts as one letter ("--repeat"), a
 * longer one as two ("--temperature", "--n-predict"). */
static int slip(const char *name, size_t n, const char *known) {
  const size_t m = strlen(known);
  const int d = distance(name, n, known);
  if (n >= 2 && n < m && memcmp(name, known, n) == 0) return 1;
  if (m < n && memcmp(name, known, m) == 0 && (m >= 3 || name[m] == '-')) return d < 2 ? d : 2;
  return d <= 2 && 2 * (size_t)d < n + 1 ? d : 99;
}

static const char *closest_option(enum wr_command id, const char *name, size_t n) {
  const option_row *best = NULL;
  int least = 99;
  for (int i = 0; i < N_ROWS; i++) {
    const int d = rows[i].commands & 1ull << id ? slip(name, n, shown_name(&rows[i])) : 99;
    if (d >= least) continue;
    least = d;
    best = &rows[i];
  }
  return best ? shown_name(best) : NULL;
}

const char *wr_closest_command(const char *name) {
  const char *best = NULL;
  int least = 99;
  for (int i = 0; i < WR_CMD_COUNT; i++) {
    const int d = slip(name, strlen(name), commands[i].name);
    if (d >= least) continue;
    least = d;
    best = commands[i].name;
  }
  return best;
}

/* An integer with an optional k, m or g. false: not one, or out of 64 bits. */
static bool parse_count(const char *text, int64_t *out) {
  char *end;
  errno = 0;
  const long long v = strtoll(text, &end, 10);
  if (errno || end == text || isspace((unsigned char)*text)) return false;
  int shift = 0;
  switch (*end) {
  case 'k':
  case 'K': shift = 10; break;
  case 'm':
  case 'M': shift = 20; break;
  case 'g':
  case 'G': shift = 30; break;
  default: break;
  }
  if (shift) end++;
  return !*end && !__builtin_mul_overflow((int64_t)v, (int64_t)1 << shift, out);
}

static int take_value(const option_row *r, const char *text, wr_options *o) {
  char *field = (char *)o + r->at;
  if (r->kind == COUNT) {
    int64_t v;
    if (!parse_count(text, &v)) return wr_usage(o, "--%s wants a whole number, not '%s'", shown_name(r), text);
    if (v < r->least || v > r->most)
      return wr_usage(o, "--%s %s is out of range: %lld to %lld", shown_name(r), text, (long long)r->least, (long long)r->most);
    memcpy(field, &v, sizeof v);
  } else if (r->kind == SEED) {
    char *end;
    errno = 0;
    const unsigned long long v = strtoull(text, &end, 10);
    if (errno || end == text || *end || !isdigit((unsigned char)*text))
      return wr_usage(o, "--%s wants a whole number from 0 to 18446744073709551615, not '%s'", shown_name(r), text);
    const uint64_t seed = v;
    memcpy(field, &seed, sizeof seed);
    o->sampling.seed = seed;
  } else if (r->kind == SAMPLE) {
    char *end;
    const double v = strtod(text, &end);
    if (end == text || *end || isspace((unsigned char)*text) || strpbrk(text, "xX"))
      return wr_usage(o, "--%s wants a number, not '%s'", shown_name(r), text);
    if (weir_sampling_set(&o->sampling, r->field, v) != WEIR_OK)
      return wr_usage(o, "--%s: %s", shown_name(r), weir_last_error());
  } else if (r->kind == SETTING) {
    if (weir_train_set(&o->train, r->field, text) != WEIR_OK) return wr_usage(o, "%s", weir_last_error());
  } else if (r->kind == LIST) {
    wr_list_option *list = (wr_list_option *)(void *)field;
    if (list->n == WR_LIST_MAX) return wr_usage(o, "--%s can be given %d times at most", shown_name(r), WR_LIST_MAX);
    list->items[list->n++] = text;
  } else {
    memcpy(field, &text, sizeof text);
  }
  return 0;
}

static int take_option(enum wr_command id, const option_row *r, const char *inline_value, const char *next, bool *took_next,
                       wr_options *o) {
  *took_next = false;
  if (!(r->commands & 1ull << id)) return wr_usage(o, "--%s is not an option of this command", shown_name(r));
  if (r->kind == FLAG) {
    if (inline_value) return wr_usage(o, "--%s takes no value", shown_name(r));
    *((bool *)((char *)o + r->at)) = true;
    return 0;
  }
  if (!inline_value && !next) return wr_usage(o, "--%s wants a value: %s", shown_name(r), r->metavar);
  *took_next = !inline_value;
  return take_value(r, inline_value ? inline_value : next, o);
}

static int take_argument(enum wr_command id, char *text, wr_options *o) {
  if (o->n_args >= commands[id].most) return wr_usage(o, "unexpected argument '%s'", text);
  o->args[o->n_args++] = text;
  return 0;
}

static int parse_one(enum wr_command id, int argc, char **argv, int *i, wr_options *o) {
  const char *word = argv[*i], *next = *i + 1 < argc ? argv[*i + 1] : NULL;
  const option_row *r;
  const char *value = NULL;
  bool took_next;
  if (word[1] == '-') {
    const size_t n = strcspn(word + 2, "=");
    r = find_long(id, word + 2, n);
    if (!r) {
      const char *near = closest_option(id, word + 2, n);
      return near ? wr_usage(o, "unknown option '%s'; did you mean --%s?", word, near)
                  : wr_usage(o, "unknown option '%s'", word);
    }
    value = word[2 + n] == '=' ? word + 2 + n + 1 : NULL;
  } else {
    r = find_short(id, word[1]);
    if (!r) return wr_usage(o, "unknown option '%s'", word);
    value = word[2] ? word + 2 : NULL;
  }
  const int bad = take_option(id, r, value, next, &took_next, o);
  *i += took_next;
  return bad;
}

static int check_words(wr_options *o) {
  static const struct {
    const char *name;
    weir_kv_type type;
  } kinds[] = {{"f32", WEIR_KV_F32},
               {"f16", WEIR_KV_F16},
               {"bf16", WEIR_KV_BF16},
               {"q8_0", WEIR_KV_Q8_0},
               {"q4_0", WEIR_KV_Q4_0}};
  static const struct {
    const char *name;
    weir_log_level level;
  } levels[] = {{"error", WEIR_LOG_ERROR}, {"warn", WEIR_LOG_WARN}, {"info", WEIR_LOG_INFO}, {"debug", WEIR_LOG_DEBUG}};
  if (o->kv) {
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
      if (strcmp(o->kv, kinds[i].name) == 0) o->kv_type = kinds[i].type;
    if (o->kv_type == WEIR_KV_DEFAULT) return wr_usage(o, "--kv wants f32, f16, bf16, q8_0 or q4_0, not '%s'", o->kv);
  }
  if (o->pack && o->no_pack) return wr_usage(o, "--pack and --no-pack cannot both be given");
  if (!o->log) return 0;
  for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++)
    if (strcmp(o->log, levels[i].name) == 0) return 0;
  return wr_usage(o, "--log wants error, warn, info or debug, not '%s'", o->log);
}

int wr_options_parse(enum wr_command id, int argc, char **argv, wr_options *out) {
  const command_row *c = &commands[id];
  *out = (wr_options){.command = c->name, .args = argv};
  for (int i = 0; i < N_ROWS; i++)
    if (rows[i].kind == COUNT) memcpy((char *)out + rows[i].at, &rows[i].otherwise, sizeof rows[i].otherwise);
  bool only_arguments = false;
  for (int i = 1; i < argc; i++) {
    int bad = 0;
    if (!only_arguments && strcmp(argv[i], "--") == 0)
      only_arguments = true;
    else if (!only_arguments && argv[i][0] == '-' && argv[i][1])
      bad = parse_one(id, argc, argv, &i, out);
    else
      bad = take_argument(id, argv[i], out);
    if (bad) return bad + 1;
  }
  if (out->help) {
    help_command(stdout, id);
    return wr_done(out) + 1;
  }
  int bad = check_words(out);
  if (!bad && out->n_args < c->least) bad = wr_usage(out, "missing argument: %s", c->args);
  return bad ? bad + 1 : 0;
}

/* ---- completions and the manual page */

static void complete_bash(void) {
  printf("# bash completion of weir; made by: weir completion bash\n_weir() {\n  local cur=${COMP_WORDS[COMP_CWORD]}\n"
         "  if [ $COMP_CWORD = 1 ]; then COMPREPLY=($(compgen -W '");
  for (int i = 0; i < WR_CMD_COUNT; i++) printf("%s ", commands[i].name);
  printf("--help --version' -- \"$cur\")); return; fi\n  case \"$cur\" in -*) ;; *) COMPREPLY=($(compgen -f -- \"$cur\")); "
         "return ;; esac\n  case ${COMP_WORDS[1]} in\n");
  for (int id = 0; id < WR_CMD_COUNT; id++) {
    printf("    %s) COMPREPLY=($(compgen -W '", commands[id].name);
    for (int i = 0; i < N_ROWS; i++)
      if (rows[i].commands & 1ull << id) printf("--%s ", shown_name(&rows[i]));
    printf("' -- \"$cur\")) ;;\n");
  }
  printf("  esac\n}\ncomplete -o filenames -F _weir weir\n");
}

static void put_quoted(const char *text) {
  for (; *text; text++) printf(*text == '\'' ? "'\\''" : *text == '[' || *text == ']' || *text == ':' ? "\\%c" : "%c", *text);
}

static void complete_zsh(void) {
  printf("#compdef weir\n# zsh completion of weir; made by: weir completion zsh\n_weir() {\n  if (( CURRENT == 2 )); then\n    "
         "local -a c; c=(");
  for (int i = 0; i < WR_CMD_COUNT; i++) {
    printf("'%s:", commands[i].name);
    put_quoted(commands[i].summary);
    printf("' ");
  }
  printf(")\n    _describe command c; return\n  fi\n  case $words[2] in\n");
  for (int id = 0; id < WR_CMD_COUNT; id++) {
    printf("    %s) _arguments '*:file:_files'", commands[id].name);
    for (int i = 0; i < N_ROWS; i++) {
      if (!(rows[i].commands & 1ull << id)) continue;
      printf(" '--%s[", shown_name(&rows[i]));
      put_quoted(rows[i].help);
      printf("]%s%s%s'", rows[i].metavar ? ":" : "", rows[i].metavar ? rows[i].metavar : "", rows[i].metavar ? ":_files" : "");
    }
    printf(" ;;\n");
  }
  printf("  esac\n}\n_weir \"$@\"\n");
}

static void complete_fish(void) {
  printf("# fish completion of weir; made by: weir completion fish\n");
  for (int id = 0; id < WR_CMD_COUNT; id++) {
    printf("complete -c weir -n __fish_use_subcommand -a %s -d \"%s\"\n", commands[id].name, commands[id].summary);
    for (int i = 0; i < N_ROWS; i++) {
      if (!(rows[i].commands & 1ull << id)) continue;
      printf("complete -c weir -n '__fish_seen_subcommand_from %s' -l %s", commands[id].name, shown_name(&rows[i]));
      if (rows[i].short_name) printf(" -s %c", rows[i].short_name);
      printf("%s -d \"%s\"\n", rows[i].metavar ? " -r" : "", rows[i].help);
    }
  }
}

static void man_text(const char *text) {
  for (; *text; text++) printf(*text == '-' ? "\\-" : *text == '\\' ? "\\e" : "%c", *text);
}

static void man_option(const option_row *r) {
  printf(".TP\n.B ");
  if (r->short_name) printf("\\-%c, ", r->short_name);
  printf("\\-\\-");
  man_text(shown_name(r));
  printf("%s%s%s\n", r->metavar ? " \\fI" : "", r->metavar ? r->metavar : "", r->metavar ? "\\fR" : "");
  man_text(r->help);
  printf("\n");
}

static void man_page(void) {
  printf(".TH WEIR 1 \"\" \"weir %s\" \"User Commands\"\n.SH NAME\nweir \\- train and run language models at the speed of the "
         "machine\n.SH SYNOPSIS\n"
         ".B weir\n.I COMMAND\n.RI [ options ]\n.SH DESCRIPTION\nweir trains generative language models and runs them (GGUF "
         "files, or the folder of a run) on this "
         "machine, and says after each "
         "answer and each training how fast that was, what bounded it, and which share of the bound it reached. Results go to "
         "standard output, "
         "everything else to standard "
         "error.\n.SH COMMANDS\n",
         weir_version());
  for (int id = 0; id < WR_CMD_COUNT; id++) {
    printf(".SS weir %s %s\n%c%s.\n.PP\n", commands[id].name, commands[id].args, toupper(commands[id].summary[0]),
           commands[id].summary + 1);
    for (int i = 0; i < N_ROWS; i++) {
      if (rows[i].commands == ALL || !(rows[i].commands & 1ull << id)) continue;
      man_option(&rows[i]);
    }
    printf(".PP\nExamples:\n.PP\n.nf\n");
    man_text(commands[id].examples);
    printf(".fi\n");
  }
  printf(".SH OPTIONS OF ALL COMMANDS\n");
  for (int i = 0; i < N_ROWS; i++) {
    if (rows[i].commands != ALL) continue;
    man_option(&rows[i]);
  }
  printf(".SH EXIT STATUS\n0 done; 1 the work failed; 2 wrong usage; 3 input refused; 4 not enough memory or disk; 5 device "
         "fault; 130 interrupted; 143 "
         "terminated.\n.SH ENVIRONMENT\n.TP\n.B WEIR_CACHE\nfolder of packed weights and measurements (~/.cache/weir)\n.TP\n.B "
         "WEIR_ISA\ngeneric, avx2, "
         "avx512 or neon: use no newer instructions\n.TP\n.B WEIR_USE\nop:row,op:row: force kernels\n.TP\n.B WEIR_TUNE\noff: ignore the tune "
         "file\n.TP\n.B NO_COLOR\nno colour\n");
}

int wr_cmd_completion(const wr_options *o) {
  static const struct {
    const char *kind;
    void (*print)(void);
  } kinds[] = {{"bash", complete_bash}, {"zsh", complete_zsh}, {"fish", complete_fish}, {"man", man_page}};
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    if (strcmp(o->args[0], kinds[i].kind) != 0) continue;
    kinds[i].print();
    return wr_done(o);
  }
  return wr_usage(o, "completion for '%s' is not known: bash, zsh, fish or man", o->args[0]);
}
