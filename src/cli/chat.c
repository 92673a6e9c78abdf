/* weir chat: a conversation. Each message and all before it become a prompt in the model's chat format; the session keeps what it shares
 * with the last one. When the context is full, the oldest turns are left out.
 *
 * Ctrl-C ends the answer that is being given and nothing else; at the prompt it empties the line, and twice in a row it ends the chat, as
 * Ctrl-D does. Where no terminal is read it ends the chat at once. */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli_i.h"
#include "lines_i.h"

/* ---- signals */

static atomic_int interrupts; /* Ctrl-C, since they were last looked at */
static _Atomic(weir_session *) answering;

static void on_interrupt(int number) {
  (void)number;
  atomic_store(&interrupts, 1);
  weir_session *s = atomic_load(&answering);
  if (s) weir_stop(s);
}

static void stop_answer(void *session) { weir_stop(session); }

static bool interrupted(void) { return atomic_load(&interrupts) || wr_interrupted(); }

/* ---- the conversation */

typedef struct turns {
  weir_message *list; /* the texts are the turns' own; roles are constants */
  size_t n, cap;
} turns;

typedef struct chat {
  const wr_options *o;
  weir_session *session;
  const weir_tokenizer *tokenizer;
  turns turns;     /* the system message first, if there is one; then user and assistant by turns */
  size_t left_out; /* turns that are no longer in the prompt */
  weir_generate_options options;
  bool dim, done;
  int code;
} chat;

static bool put(chat *c, const char *role, const char *text, size_t n) {
  turns *t = &c->turns;
  if (t->n == t->cap) {
    const size_t cap = t->cap ? 2 * t->cap : 16;
    weir_message *more = realloc(t->list, cap * sizeof *more);
    if (!more) return false;
    t->list = more;
    t->cap = cap;
  }
  char *copy = malloc(n + 1);
  if (!copy) return false;
  memcpy(copy, text, n);
  copy[n] = 0;
  t->list[t->n++] = (weir_message){.role = role, .content = copy, .content_bytes = n};
  return true;
}

static void drop_last(chat *c) { free((void *)(uintptr_t)c->turns.list[--c->turns.n].content); }

static size_t system_turns(const chat *c) { return c->turns.n && strcmp(c->turns.list[0].role, "system") == 0; }

static void reset(chat *c, size_t keep) {
  while (c->turns.n > keep) drop_last(c);
  c->left_out = 0;
}

static int no_memory(const chat *c) { return wr_failed_file(c->o, "the conversation", ENOMEM); }

/* ---- an answer */

/* The system message and the turns that are not left out, as ids. Of those that are, the last one lends its place to the system message. */
static weir_status encode(chat *c, weir_token **tokens, size_t *n) {
  weir_message *first = c->turns.list + c->left_out, lent = *first;
  if (system_turns(c)) *first = c->turns.list[0];
  const weir_status s = weir_tokenizer_chat(c->tokenizer, first, c->turns.n - c->left_out, true, tokens, n);
  *first = lent;
  return s;
}

/* When an answer has no room beside the turns, the oldest are left out, by twos, to three quarters of the context: so that the next ones need
 * not be, and find what is cached. */
static weir_status make_prompt(chat *c, weir_token **tokens, size_t *n) {
  enum { ROOM = 256 };
  const size_t capacity = (size_t)weir_session_capacity(c->session), before = c->left_out;
  size_t room = capacity / 4 < ROOM ? capacity / 4 : ROOM, most = capacity;
  if (c->options.max_tok > 0 && (size_t)c->options.max_tok < room) room = (size_t)c->options.max_tok;
  for (;;) {
    const weir_status s = encode(c, tokens, n);
    if (s != WEIR_OK) return s;
    if (*n + room <= most || c->turns.n - system_turns(c) - c->left_out < 3) break;
    weir_free(*tokens);
    c->left_out += 2;
    most = capacity / 4 * 3;
  }
  if (c->left_out != before)
    fprintf(stderr, "(the context of %zu tokens is full: the oldest %zu messages are left out; /reset begins anew)\n", capacity,
            c->left_out);
  return WEIR_OK;
}

static void print_speed(const chat *c, const weir_result *r) {
  if (!wr_terminal(stderr) || c->o->json) return;
  fprintf(stderr, "%s%zu tokens", c->dim ? "\033[2m" : "", r->n_tokens);
  if (r->decode_tok_s > 0) fprintf(stderr, ", %.1f tok/s", r->decode_tok_s);
  fprintf(stderr, ", %lld of %lld in the context, %zu of them were there%s%s\n", (long long)weir_session_length(c->session),
          (long long)r->context_tok, r->n_reused,
          r->finish == WEIR_FINISH_STOPPED  ? "; stopped"
          : r->finish == WEIR_FINISH_LENGTH ? "; cut short by the limit"
                                            : "",
          c->dim ? "\033[0m" : "");
}

/* A stop that comes when an answer has just ended is taken for the next one's: then it is asked for again. */
static weir_status generate(chat *c, const weir_token *tokens, size_t n, weir_result **r) {
  weir_status s;
  atomic_store(&interrupts, 0);
  atomic_store(&answering, c->session);
  while ((s = weir_generate_tokens(c->session, tokens, n, &c->options, wr_print_piece, (void *)(uintptr_t)c->o, r)) == WEIR_OK && !(*r)->n_tokens &&
         !interrupted() && !ferror(stdout))
    weir_result_free(*r);
  atomic_store(&answering, NULL);
  return s;
}

/* Answers the last message, a user's. Without an answer that message goes, too. */
static void answer(chat *c) {
  weir_token *tokens = NULL;
  weir_result *r = NULL;
  size_t n = 0;
  weir_status s = make_prompt(c, &tokens, &n);
  if (s == WEIR_OK) s = generate(c, tokens, n, &r);
  weir_free(tokens);
  if (s != WEIR_OK) {
    c->code = wr_failed(c->o, s);
    drop_last(c);
    return;
  }
  if (c->o->json)
    wr_print_json_result(r);
  else
    printf("\n");
  fflush(stdout);
  print_speed(c, r);
  if (!put(c, "assistant", r->text, r->text_bytes)) {
    no_memory(c);
    drop_last(c);
  }
  weir_result_free(r);
  c->done = ferror(stdout) || wr_interrupted() || (atomic_load(&interrupts) && !wr_terminal(stdin));
}

/* ---- commands */

static void cmd_help(chat *c, const char *rest);

static void cmd_reset(chat *c, const char *rest) {
  (void)rest;
  reset(c, system_turns(c));
}

static void cmd_system(chat *c, const char *rest) {
  reset(c, 0);
  if (*rest && !put(c, "system", rest, strlen(rest))) no_memory(c);
}

static void cmd_regen(chat *c, const char *rest) {
  (void)rest;
  if (c->turns.n < system_turns(c) + 2) {
    fprintf(stderr, "there is no answer yet\n");
    return;
  }
  drop_last(c);
  if (system_turns(c) + c->left_out >= c->turns.n) c->left_out -= 2;
  if (c->options.sampling.seed) c->options.sampling.seed++;
  answer(c);
}

static void cmd_save(chat *c, const char *rest) {
  FILE *f = *rest ? fopen(rest, "wx") : NULL;
  if (!f) {
    if (*rest)
      wr_failed_file(c->o, rest, errno);
    else
      fprintf(stderr, "/save wants the name of a new file\n");
    return;
  }
  wr_json j;
  wr_json_begin(&j, f);
  wr_json_object(&j);
  wr_json_key(&j, "messages");
  wr_json_array(&j);
  for (size_t i = 0; i < c->turns.n; i++) {
    wr_json_object(&j);
    wr_json_string(&j, "role", c->turns.list[i].role);
    wr_json_key(&j, "content");
    wr_json_bytes(&j, c->turns.list[i].content, c->turns.list[i].content_bytes);
    wr_json_end(&j);
  }
  wr_json_end(&j);
  wr_json_end(&j);
  const bool written = wr_json_done(&j);
  if (fclose(f) != 0 || !written) wr_failed_file(c->o, rest, errno);
}

static void cmd_quit(chat *c, const char *rest) {
  (void)rest;
  c->done = true;
}

static const struct {
  const char *name, *args;
  void (*run)(chat *c, const char *rest);
  const char *help;
} commands[] = {{"help", "", cmd_help, "this list"},
                {"reset", "", cmd_reset, "forget the conversation; the system message stays"},
                {"system", "TEXT", cmd_system, "another system message, or none, and a new conversation"},
                {"regen", "", cmd_regen, "another answer to the last message (with --temp above 0)"},
                {"save", "FILE", cmd_save, "write the conversation as JSON into a new file"},
                {"quit", "", cmd_quit, "end, as Ctrl-D does"}};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void cmd_help(chat *c, const char *rest) {
  (void)c, (void)rest;
  for (size_t i = 0; i < N_COMMANDS; i++)
    fprintf(stderr, "/%-6s %-5s %s\n", commands[i].name, commands[i].args, commands[i].help);
  fprintf(stderr,
          "A line that ends in \\ goes on in the next one; \"\"\" alone on a line begins and ends a message of several lines;\n"
          "//... is a message that begins with /. Ctrl-C stops an answer.\n");
}

static void run_command(chat *c, const char *line) {
  const size_t n = strcspn(line, " \t");
  const char *rest = line + n + strspn(line + n, " \t");
  for (size_t i = 0; i < N_COMMANDS; i++)
    if (strlen(commands[i].name) == n && memcmp(commands[i].name, line, n) == 0) {
      commands[i].run(c, rest);
      return;
    }
  char shown[64];
  weir_escape(line, n, shown, sizeof shown);
  fprintf(stderr, "there is no command /%s; /help lists them\n", shown);
}

/* ---- messages */

typedef struct message {
  char *text;
  size_t n;
} message;

static bool add_text(message *m, const char *text, size_t n) {
  char *more = realloc(m->text, m->n + n + 1);
  if (!more) return false;
  memcpy(more + m->n, text, n);
  m->text = more;
  m->n += n;
  m->text[m->n] = 0;
  return true;
}

/* One message, of one line or several. A file that ends inside of one ends it. */
static wr_line read_message(message *m) {
  static const char fence[] = "\"\"\"";
  bool fenced = false, goes_on = false;
  *m = (message){0};
  do {
    char *line;
    size_t n;
    const wr_line got = wr_lines_read(m->text || fenced ? ". " : "> ", &line, &n);
    if (got == WR_LINE_END && (m->text || fenced)) return add_text(m, "", 0) ? WR_LINE_READ : WR_LINE_FAILED;
    if (got != WR_LINE_READ) {
      free(m->text);
      m->text = NULL;
      return got;
    }
    if (n) wr_lines_remember(line);
    const bool is_fence = n == 3 && memcmp(line, fence, 3) == 0 && (fenced || !m->text);
    if (is_fence) {
      fenced = !fenced;
      goes_on = fenced;
    } else {
      goes_on = fenced || (n && line[n - 1] == '\\');
      if (!fenced && goes_on) n--;
      if ((m->text && !add_text(m, "\n", 1)) || !add_text(m, line, n)) goes_on = false;
    }
    free(line);
  } while (goes_on);
  return m->text || add_text(m, "", 0) ? WR_LINE_READ : WR_LINE_FAILED;
}

static void take_message(chat *c, const message *m) {
  if (m->text[strspn(m->text, " \t\r\n")] == 0 && strlen(m->text) == m->n) return;
  const bool escaped = m->n >= 2 && m->text[0] == '/' && m->text[1] == '/';
  if (m->text[0] == '/' && !escaped) {
    run_command(c, m->text + 1);
    return;
  }
  if (put(c, "user", m->text + escaped, m->n - escaped))
    answer(c);
  else
    no_memory(c);
}

static int talk(chat *c) {
  bool asked = false; /* Ctrl-C at the prompt, and nothing since */
  while (!c->done) {
    message m;
    atomic_store(&interrupts, 0);
    const wr_line got = read_message(&m);
    if (got == WR_LINE_READ) {
      take_message(c, &m);
      free(m.text);
      asked = false;
      continue;
    }
    if (got == WR_LINE_FAILED) no_memory(c);
    if (got != WR_LINE_INTERRUPTED || asked || wr_interrupted() || !wr_terminal(stdin)) {
      if (wr_terminal(stdin)) fprintf(stderr, "\n");
      if (got == WR_LINE_INTERRUPTED && !wr_interrupted()) return 128 + SIGINT;
      break;
    }
    asked = true;
    fprintf(stderr, "\n(Ctrl-C again, or Ctrl-D, ends the chat)\n");
  }
  if (atomic_load(&interrupts) && !wr_terminal(stdin)) return 128 + SIGINT;
  const int code = wr_done(c->o);
  return code ? code : wr_terminal(stdin) ? 0 : c->code;
}

/* Where the history is kept: made if missing, for its owner only. NULL: nowhere. The caller frees. */
static char *history_path(void) {
  const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
  const bool own = state && state[0] == '/';
  if (!own && !(home && *home)) return NULL;
  char *path = NULL;
  if (asprintf(&path, "%s%s/weir/chat_history", own ? state : home, own ? "" : "/.local/state") < 0) return NULL;
  for (char *slash = path + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
    *slash = 0;
    mkdir(path, 0700); /* what cannot be made is told by the history that is not there */
  }
  return path;
}

static weir_status open_chat(chat *c, weir_model *m) {
  const weir_message hello = {.role = "user", .content = "hello"};
  weir_token *tokens;
  size_t n;
  c->tokenizer = weir_model_tokenizer(m);
  const weir_status s =
      weir_tokenizer_chat(c->tokenizer, &hello, 1, true, &tokens, &n); /* does the model have a chat format? */
  if (s != WEIR_OK) return s;
  weir_free(tokens);
  return wr_open_session(c->o, m, &c->session);
}

int wr_cmd_chat(const wr_options *o) {
  weir_context *ctx;
  weir_model *m;
  weir_text stops[WR_LIST_MAX];
  chat c = {.o = o, .options = wr_generate_options(o, stops), .dim = wr_colours(stderr)};
  if (o->n == 0) return wr_usage(o, "-n wants at least 1 token, or -1 for all that fit, which it is when not given");
  c.options.max_tok = o->n == WR_NOT_GIVEN ? -1 : o->n;
  c.options.profile = false;
  c.options.no_limit = !o->json;
  weir_status s = wr_open_model(o, o->args[0], &ctx, &m);
  if (s != WEIR_OK) return wr_failed(o, s);
  s = open_chat(&c, m);
  const bool begun = s == WEIR_OK && (!o->system || put(&c, "system", o->system, strlen(o->system)));
  int code;
  if (begun) {
    char *history = history_path();
    struct sigaction action = {.sa_handler = on_interrupt};
    wr_on_signal(stop_answer, c.session);
    sigaction(SIGINT, &action, NULL);
    wr_lines_open(o->json, history, interrupted);
    if (wr_lines_edited()) fprintf(stderr, "/help lists the commands; Ctrl-D ends\n");
    code = talk(&c);
    wr_lines_close();
    wr_stop_on_signal(NULL);
    free(history);
  } else {
    code = s == WEIR_OK ? no_memory(&c) : wr_failed(o, s);
  }
  reset(&c, 0);
  free(c.turns.list);
  if (o->why && begun) wr_print_kernels(m);
  weir_session_close(c.session);
  wr_close_model(ctx, m);
  return code;
}
