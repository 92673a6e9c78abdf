/* Requests of a file, for generate --parallel: a prompt a line, or JSON lines, whose keys are named as the options and stand for them.
 *
 * The whole file is judged before anything runs: a bad line ends the command with the file's name, its number and what is wrong. JSON is
 * jansson's: strict UTF-8, bounded depth, no key twice. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli_i.h"

enum { MAX_FILE_BYTES = 1 << 30 };

static int bad_line(const wr_options *o, const char *name, int line, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static int bad_line(const wr_options *o, const char *name, int line, const char *fmt, ...) {
  char what[512], shown[640];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(what, sizeof what, fmt, ap);
  va_end(ap);
  weir_escape(what, strlen(what), shown, sizeof shown);
  fprintf(stderr, "weir %s: %s:%d: %s\n", o->command, name, line, shown);
  return weir_status_exit_code(WEIR_EFORMAT);
}

/* What a key does with its value. NULL: good; else what the value must be. */
typedef const char *take_fn(wr_request_line *l, const json_t *v);

static const char *take_prompt(wr_request_line *l, const json_t *v) {
  if (!json_is_string(v)) return "a string";
  l->prompt = json_string_value(v);
  l->prompt_bytes = json_string_length(v);
  return NULL;
}

static const char *take_n(wr_request_line *l, const json_t *v) {
  const json_int_t n = json_integer_value(v);
  if (!json_is_integer(v) || n == 0 || n < -1) return "a whole number from 1, or -1";
  l->options.max_tok = n;
  return NULL;
}

static const char *take_seed(wr_request_line *l, const json_t *v) {
  if (!json_is_integer(v) || json_integer_value(v) < 0) return "a whole number from 0 to 9223372036854775807";
  l->options.sampling.seed = (uint64_t)json_integer_value(v);
  return NULL;
}

static const char *take_stop(wr_request_line *l, const json_t *v) {
  const char *const wanted = "a string, or a list of at most 16";
  const size_t n = json_is_array(v) ? json_array_size(v) : 1;
  if (n > WR_LIST_MAX) return wanted;
  for (size_t i = 0; i < n; i++) {
    const json_t *text = json_is_array(v) ? json_array_get(v, i) : v;
    if (!json_is_string(text) || !json_string_length(text)) return wanted;
    l->stops[i] = (weir_text){json_string_value(text), json_string_length(text)};
  }
  l->options.n_stop = n;
  return NULL;
}

static const char *take_system(wr_request_line *l, const json_t *v) {
  if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v)) return "a string without NUL";
  l->options.system = json_string_value(v);
  return NULL;
}

static const char *take_flag(bool *flag, const json_t *v) {
  *flag = json_is_true(v);
  return json_is_boolean(v) ? NULL : "true or false";
}
static const char *take_chat(wr_request_line *l, const json_t *v) { return take_flag(&l->options.chat, v); }
static const char *take_ignore_eos(wr_request_line *l, const json_t *v) { return take_flag(&l->options.ignore_eos, v); }

static const struct {
  const char *key;
  take_fn *take; /* NULL: the field of weir_sampling */
  const char *field;
} keys[] = {{"prompt", take_prompt, NULL},
            {"n", take_n, NULL},
            {"temp", NULL, "temperature"},
            {"top_k", NULL, "top_k"},
            {"top_p", NULL, "top_p"},
            {"min_p", NULL, "min_p"},
            {"repeat_penalty", NULL, "repeat_penalty"},
            {"repeat_last_n", NULL, "repeat_last_n"},
            {"seed", take_seed, NULL},
            {"stop", take_stop, NULL},
            {"chat", take_chat, NULL},
            {"system", take_system, NULL},
            {"ignore_eos", take_ignore_eos, NULL}};
enum { N_KEYS = sizeof keys / sizeof keys[0] };

static int take_key(const wr_options *o, const char *name, wr_request_line *l, const char *key, const json_t *v) {
  size_t i = 0;
  while (i < N_KEYS && strcmp(keys[i].key, key) != 0) i++;
  if (i == N_KEYS) {
    char known[256] = "";
    for (size_t k = 0; k < N_KEYS; k++)
      snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", k ? ", " : "", keys[k].key);
    return bad_line(o, name, l->line, "there is no key '%.60s' (there are: %s)", key, known);
  }
  const char *wanted = NULL;
  if (keys[i].take)
    wanted = keys[i].take(l, v);
  else if (!json_is_number(v))
    wanted = "a number";
  else if (weir_sampling_set(&l->options.sampling, keys[i].field, json_number_value(v)) != WEIR_OK)
    return bad_line(o, name, l->line, "\"%s\": %s", key, weir_last_error());
  return wanted ? bad_line(o, name, l->line, "\"%s\" must be %s", key, wanted) : 0;
}

static int read_json(const wr_options *o, const char *name, wr_request_line *l, json_t *all, const char *text, size_t n) {
  json_error_t e;
  json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
  if (!root) return bad_line(o, name, l->line, "column %d: %s", e.column, e.text);
  if (json_array_append_new(all, root) != 0) return bad_line(o, name, l->line, "no memory to read it");
  if (!json_is_object(root)) return bad_line(o, name, l->line, "not a JSON object");
  const char *key;
  json_t *v;
  json_object_foreach(root, key, v) {
    const int code = take_key(o, name, l, key, v);
    if (code) return code;
  }
  if (!l->prompt) return bad_line(o, name, l->line, "\"prompt\" is missing");
  if (l->options.system && !l->options.chat) return bad_line(o, name, l->line, "\"system\" needs \"chat\": true, or --chat");
  return 0;
}

static bool is_json(const wr_options *o) {
  const char *dot = strrchr(o->parallel, '.');
  return o->jsonl || (dot && (strcmp(dot, ".jsonl") == 0 || strcmp(dot, ".ndjson") == 0));
}

static bool is_blank(const char *text, size_t n) {
  while (n && (text[n - 1] == ' ' || text[n - 1] == '\t' || text[n - 1] == '\r')) n--;
  return n == 0;
}

int wr_requests_read(const wr_options *o, wr_request_file *out) {
  const bool from_stdin = strcmp(o->parallel, "-") == 0, json = is_json(o);
  size_t bytes = 0, cap = 0;
  *out = (wr_request_file){.name = from_stdin ? "standard input" : o->parallel, .parsed = json_array()};
  out->text = wr_read_all(o, from_stdin ? NULL : o->parallel, "prompts, one a line", MAX_FILE_BYTES, &bytes);
  if (!out->text) return 1;
  int number = 0;
  for (const char *at = out->text, *end = at + bytes, *next; at < end; at = next) {
    const char *stop = memchr(at, '\n', (size_t)(end - at));
    next = stop ? stop + 1 : end;
    size_t n = (size_t)((stop ? stop : end) - at);
    number++;
    if (is_blank(at, n)) continue;
    if (at[n - 1] == '\r') n--;
    if (out->n == cap) {
      cap = cap ? 2 * cap : 64;
      wr_request_line *more = realloc(out->lines, cap * sizeof *more);
      if (!more) return wr_failed_file(o, out->name, ENOMEM);
      out->lines = more;
    }
    wr_request_line *l = &out->lines[out->n++];
    *l = (wr_request_line){.line = number, .prompt = json ? NULL : at, .prompt_bytes = json ? 0 : n};
    l->options = wr_generate_options(o, l->stops);
    const int code = json ? read_json(o, out->name, l, out->parsed, at, n) : 0;
    if (code) return code;
  }
  if (!out->n) {
    fprintf(stderr, "weir %s: %s: there is no prompt in it\n", o->command, out->name);
    return weir_status_exit_code(WEIR_EFORMAT);
  }
  for (size_t i = 0; i < out->n; i++) out->lines[i].options.stop = out->lines[i].stops; /* the array no longer moves */
  return 0;
}

void wr_requests_free(wr_request_file *f) {
  json_decref(f->parsed);
  free(f->lines);
  free(f->text);
}
