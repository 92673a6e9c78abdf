/* settings.c: the settings of a run. Owns the table's meaning: text to values and back, bounds, config.json, and which
 * settings a resumed run may change.
 *
 * A field counts as given when its bit is set or it is not zero. What is not given comes from RUN/config.json, then from the
 * file that options->config names, then from the table.
 */
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "train/train.h"

enum { FIXED = 1, FREE = 0 };
enum { CONFIG_BYTES_MAX = 1 << 20 };
typedef struct row {
  weir_setting s;
  size_t at;
} row;
static const row rows[] = {
#define X(field, kind, def, least, most, resume, choices, text) \
  {{#field, WEIR_SETTING_##kind, def, least, most, resume, choices, text}, offsetof(weir_train_options, field)},
    WEIR_TRAIN_MAP(X)
#undef X
};
_Static_assert(WEIR_TRAIN_SETTINGS <= 64, "`given` has a bit for each setting");

/* -------------------------------------------------------------------------------------------------------------- one setting */

static int64_t *int_of(weir_train_options *o, int i) { return (int64_t *)(void *)((char *)o + rows[i].at); }
static double *float_of(weir_train_options *o, int i) { return (double *)(void *)((char *)o + rows[i].at); }
static const char **text_of(weir_train_options *o, int i) { return (const char **)(void *)((char *)o + rows[i].at); }
static bool is_text(int i) { return rows[i].s.kind == WEIR_SETTING_TEXT || rows[i].s.kind == WEIR_SETTING_CHOICE; }
static bool is_int(int i) { return rows[i].s.kind == WEIR_SETTING_INT; }

static bool is_given(const weir_train_options *o, int i) {
  weir_train_options *z = (weir_train_options *)(uintptr_t)o; /* read only */
  if (o->given >> i & 1) return true;
  return is_text(i) ? *text_of(z, i) != NULL : is_int(i) ? *int_of(z, i) != 0 : *float_of(z, i) != 0;
}

weir_status weir_train_setting_at(int i, weir_setting *out) {
  if (i < 0 || i >= WEIR_TRAIN_SETTINGS)
    return wr_fail(WEIR_EUSAGE, "setting %d is none of the %d", i, (int)WEIR_TRAIN_SETTINGS);
  *out = rows[i].s;
  return WEIR_OK;
}

int weir_train_setting_find(const char *name) {
  for (int i = 0; i < WEIR_TRAIN_SETTINGS; i++) {
    const char *a = rows[i].s.name, *b = name;
    while (*a && (*a == *b || (*a == '_' && *b == '-'))) a++, b++;
    if (!*a && !*b) return i;
  }
  return -1;
}

static bool among(const char *choices, const char *value) {
  const size_t n = strlen(value);
  for (const char *at = choices; *at;) {
    const size_t len = strcspn(at, "|");
    if (len == n && memcmp(at, value, n) == 0) return true;
    at += len + (at[len] == '|');
  }
  return false;
}

/* "90", "90s", "1.5min", "2h", "1d" as seconds. NaN: none of these. */
static double parse_time(const char *text) {
  static const struct {
    const char *unit;
    double seconds;
  } units[] = {{"", 1}, {"s", 1}, {"min", 60}, {"h", 3600}, {"d", 86400}};
  char *end;
  const double x = strtod(text, &end);
  for (size_t i = 0; end != text && i < WR_ARRAY_LEN(units); i++)
    if (wr_is(end, units[i].unit)) return x * units[i].seconds;
  return NAN;
}

/* "4096", "64k": k, m, g are powers of 1024, as everywhere on the command line. */
static bool parse_int(const char *text, int64_t *out) {
  char *end;
  errno = 0;
  long long x = strtoll(text, &end, 10);
  if (end == text || errno) return false;
  int shift = 0;
  if (*end) {
    const char *units = "kmg", *u = strchr(units, *end | 0x20);
    if (!u || end[1]) return false;
    shift = 10 * (int)(u - units + 1);
  }
  if (__builtin_mul_overflow(x, 1ll << shift, &x)) return false;
  *out = x;
  return true;
}

static weir_status out_of_range(int i, double x) {
  const weir_setting *s = &rows[i].s;
  return wr_fail(WEIR_EUSAGE, "%s is %.17g, but it must be from %.10g to %.10g", s->name, x, s->least, s->most);
}

static weir_status check_value(weir_train_options *o, int i) {
  const weir_setting *s = &rows[i].s;
  if (is_text(i)) {
    const char *value = *text_of(o, i);
    if (s->kind == WEIR_SETTING_CHOICE && !among(s->choices, value))
      return wr_fail(WEIR_EUSAGE, "%s is '%s', but it must be one of %s", s->name, wr_escape(value, strlen(value)), s->choices);
    return WEIR_OK;
  }
  const double x = is_int(i) ? (double)*int_of(o, i) : *float_of(o, i);
  return x >= s->least && x <= s->most ? WEIR_OK : out_of_range(i, x); /* NaN too */
}

weir_status weir_train_set(weir_train_options *o, const char *name, const char *value) {
  const int i = weir_train_setting_find(name);
  if (i < 0) return wr_fail(WEIR_EUSAGE, "there is no setting '%s'", wr_escape(name, strlen(name)));
  weir_train_options changed = *o;
  char *end = NULL;
  bool ok = true;
  if (is_text(i)) {
    *text_of(&changed, i) = value;
  } else if (is_int(i)) {
    ok = parse_int(value, int_of(&changed, i));
  } else if (rows[i].s.kind == WEIR_SETTING_TIME) {
    *float_of(&changed, i) = parse_time(value);
    ok = isfinite(*float_of(&changed, i));
  } else {
    *float_of(&changed, i) = strtod(value, &end);
    ok = end != value && !*end;
  }
  if (!ok)
    return wr_fail(WEIR_EUSAGE, "%s is '%s', but it must be %s", rows[i].s.name, wr_escape(value, strlen(value)),
                   is_int(i)                             ? "a whole number, k, m and g allowed"
                   : rows[i].s.kind == WEIR_SETTING_TIME ? "a time such as 90s, 5min, 2h"
                                                         : "a number");
  WR_TRY(check_value(&changed, i));
  changed.given |= (uint64_t)1 << i;
  *o = changed;
  return WEIR_OK;
}

static void put_value(weir_train_options *o, int i, wr_str *s) {
  if (is_text(i))
    wr_str_puts(s, *text_of(o, i));
  else if (is_int(i))
    wr_str_printf(s, "%lld", (long long)*int_of(o, i));
  else
    wr_put_json_number(s, *float_of(o, i));
}

/* ------------------------------------------------------------------------------------------------------------ sets of them */

/* A row that is not given in `to` gets the table's default. */
static weir_status take_default(weir_train_options *to, int i) {
  const uint64_t given = to->given;
  WR_TRY(weir_train_set(to, rows[i].s.name, rows[i].s.def));
  to->given = given;
  return WEIR_OK;
}

size_t weir_train_get(const weir_train_options *o, const char *name, char *out, size_t cap) {
  const int i = weir_train_setting_find(name);
  weir_train_options copy = *o;
  wr_str s = {0};
  if (i < 0 || (!is_given(o, i) && take_default(&copy, i) != WEIR_OK)) return 0;
  put_value(&copy, i, &s);
  const size_t n = s.len;
  if (cap) {
    const size_t k = WR_MIN(n, cap - 1);
    if (k) memcpy(out, s.ptr, k);
    out[k] = 0;
  }
  wr_str_free(&s);
  return n;
}

/* One entry of a configuration file into the options, if its setting is not given there. `fixed`: it is a run's own file, so a given
 * fixed setting must not differ. */
static weir_status take_entry(wr_settings *set, const char *path, const char *key, json_t *value, bool fixed) {
  weir_train_options *o = &set->o;
  const int i = weir_train_setting_find(key);
  char number[32];
  const char *text = number;
  if (i < 0) return wr_fail(WEIR_EUSAGE, "%s: there is no setting '%s'", path, wr_escape(key, strlen(key)));
  if (json_is_string(value))
    text = json_string_value(value);
  else if (json_is_integer(value))
    snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
  else if (json_is_real(value))
    wr_number_text(number, json_real_value(value));
  else
    return wr_fail(WEIR_EFORMAT, "%s: %s must be a number or a text", path, key);
  text = wr_arena_strdup(&set->arena, text);
  if (!text) return wr_fail_nomem(64, "a setting");
  weir_train_options theirs = {0};
  const weir_status s = weir_train_set(&theirs, key, text);
  if (s != WEIR_OK) return wr_fail_prefix(s, "%s: ", path);
  const bool length = i == WEIR_TRAIN_AT_steps || i == WEIR_TRAIN_AT_epochs || i == WEIR_TRAIN_AT_time;
  if (length && set->length_given) return WEIR_OK;
  if (is_given(o, i)) {
    if (!fixed || !rows[i].s.fixed) return WEIR_OK;
    const bool same = is_text(i)  ? wr_is(*text_of(o, i), *text_of(&theirs, i))
                      : is_int(i) ? *int_of(o, i) == *int_of(&theirs, i)
                                  : *float_of(o, i) == *float_of(&theirs, i);
    if (same) return WEIR_OK;
    wr_str mine = {0};
    put_value(o, i, &mine);
    const weir_status differs =
        wr_fail(WEIR_EUSAGE, "%s says %s %s, but %s was asked for: a run that goes on keeps it; begin another run for a change",
                path, rows[i].s.name, text, mine.ptr ? mine.ptr : "");
    wr_str_free(&mine);
    return differs;
  }
  return weir_train_set(o, key, text);
}

/* With its path in full: a run goes on from whatever folder it is started in, and knows its text again. */
static weir_status put_source(wr_settings *set, size_t i, const char *path, double weight) {
  char full[PATH_MAX];
  set->sources[i] = (weir_train_data){wr_arena_strdup(&set->arena, realpath(path, full) ? full : path), weight};
  return set->sources[i].path ? WEIR_OK : wr_fail_nomem(strlen(path), "a setting");
}

static weir_status take_sources(wr_settings *set, const char *path, json_t *list) {
  if (set->o.n_data) return WEIR_OK;
  if (!json_is_array(list) || json_array_size(list) > WR_TRAIN_SOURCES)
    return wr_fail(WEIR_EFORMAT, "%s: data must be a list of at most %d sources", path, WR_TRAIN_SOURCES);
  for (size_t i = 0; i < json_array_size(list); i++) {
    json_t *item = json_array_get(list, i);
    const char *where = json_string_value(json_is_string(item) ? item : json_object_get(item, "path"));
    json_t *weight = json_object_get(item, "weight");
    if (!where) return wr_fail(WEIR_EFORMAT, "%s: data[%zu] has no path", path, i);
    WR_TRY(put_source(set, i, where, json_is_number(weight) ? json_number_value(weight) : 0));
  }
  set->o.n_data = json_array_size(list);
  return WEIR_OK;
}

static weir_status take_file(wr_settings *set, const char *path, bool fixed) {
  char *text;
  size_t n;
  WR_TRY(wr_file_read(path, CONFIG_BYTES_MAX, &text, &n));
  json_error_t e;
  json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
  wr_free(text);
  if (!root) return wr_fail(WEIR_EFORMAT, "%s:%d:%d: %s", path, e.line, e.column, e.text);
  weir_status s = json_is_object(root) ? WEIR_OK : wr_fail(WEIR_EFORMAT, "%s: must be a JSON object of settings", path);
  const char *key;
  json_t *value;
  json_object_foreach(root, key, value) {
    if (s != WEIR_OK) break;
    if (wr_is(key, "data"))
      s = take_sources(set, path, value);
    else if (!wr_is(key, "weir"))
      s = take_entry(set, path, key, value, fixed);
  }
  json_decref(root);
  return s;
}

/* ---------------------------------------------------------------------------------------------------------------- resolving */

/* Texts and sources of the caller become the arena's. */
static weir_status own_texts(wr_settings *set) {
  weir_train_options *o = &set->o;
  for (int i = 0; i < WEIR_TRAIN_SETTINGS; i++) {
    if (!is_text(i) || !*text_of(o, i)) continue;
    *text_of(o, i) = wr_arena_strdup(&set->arena, *text_of(o, i));
    if (!*text_of(o, i)) return wr_fail_nomem(64, "a setting");
  }
  if (o->n_data > WR_TRAIN_SOURCES || (o->n_data && !o->data))
    return wr_fail(WEIR_EUSAGE, "%zu sources of data are more than %d, or are not there", o->n_data, WR_TRAIN_SOURCES);
  for (size_t i = 0; i < o->n_data; i++) {
    if (!o->data[i].path) return wr_fail(WEIR_EUSAGE, "source %zu of the data has no path", i);
    WR_TRY(put_source(set, i, o->data[i].path, o->data[i].weight));
  }
  o->data = set->sources;
  return WEIR_OK;
}

static weir_status parse_every(wr_settings *set) {
  const char *every = set->o.every;
  if (parse_int(every, &set->every_steps) && set->every_steps >= 0) return WEIR_OK;
  set->every_steps = 0;
  set->every_seconds = parse_time(every);
  if (set->every_seconds >= 0 && set->every_seconds < 1e12) return WEIR_OK;
  return wr_fail(WEIR_EUSAGE, "every is '%s', but it must be a number of steps or a time such as 90s, 5min, 2h",
                 wr_escape(every, strlen(every)));
}

static weir_status parse_decay_kinds(wr_settings *set) {
  static const char *const names[WR_PARAM_KIND_COUNT] = {"matrix", "embedding", "norm", "bias"};
  const char *list = set->o.decay_kinds;
  for (const char *at = list; *at;) {
    const size_t n = strcspn(at, ",");
    int k = 0;
    while (k < WR_PARAM_KIND_COUNT && !(strlen(names[k]) == n && memcmp(names[k], at, n) == 0)) k++;
    if (k < WR_PARAM_KIND_COUNT)
      set->decays[k] = true;
    else if (n != 4 || memcmp(at, "none", 4) != 0)
      return wr_fail(WEIR_EUSAGE, "decay_kinds is '%s', but it must be a list of matrix, embedding, norm and bias, or none",
                     wr_escape(list, strlen(list)));
    at += n + (at[n] == ',');
  }
  return WEIR_OK;
}

static weir_status finish(wr_settings *set) {
  weir_train_options *o = &set->o;
  for (int i = 0; i < WEIR_TRAIN_SETTINGS; i++) {
    if (!is_given(o, i)) WR_TRY(take_default(o, i));
    WR_TRY(check_value(o, i));
  }
  if (!wr_is(o->precision, "fp32") && !wr_is(o->precision, "auto"))
    return wr_fail(WEIR_EUNSUPPORTED, "precision %s comes with the next version: this one trains in fp32", o->precision);
  if (!o->steps && !(o->epochs > 0) && !(o->time > 0)) o->steps = 1000;
  if (o->batch * o->ctx > INT32_MAX)
    return wr_fail(WEIR_EUSAGE, "batch %lld with ctx %lld is too much at once: their product must be below 2^31",
                   (long long)o->batch, (long long)o->ctx);
  if (!o->n_data) return wr_fail(WEIR_EUSAGE, "there is no data to train on: name a folder of shards or a text");
  for (size_t i = 0; i < o->n_data; i++)
    if (!(o->data[i].weight >= 0 && o->data[i].weight < INFINITY))
      return wr_fail(WEIR_EUSAGE, "the weight of %s is %g, but it must not be negative", o->data[i].path, o->data[i].weight);
  WR_TRY(parse_every(set));
  return parse_decay_kinds(set);
}

static weir_status resolve(const weir_train_options *given, const char *run, wr_settings *set, bool *resumes) {
  set->o = *given;
  set->length_given =
      is_given(given, WEIR_TRAIN_AT_steps) || is_given(given, WEIR_TRAIN_AT_epochs) || is_given(given, WEIR_TRAIN_AT_time);
  WR_TRY(own_texts(set));
  *resumes = false;
  if (run) {
    const char *path = wr_arena_printf(&set->arena, "%s/config.json", run);
    if (!path) return wr_fail_nomem(64, "a path");
    *resumes = access(path, F_OK) == 0;
    if (*resumes) WR_TRY(take_file(set, path, true));
  }
  if (given->config) WR_TRY(take_file(set, given->config, false));
  return finish(set);
}

weir_status wr_settings_resolve(const weir_train_options *given, const char *run, wr_settings *out, bool *resumes) {
  const weir_train_options none = {0};
  *out = (wr_settings){0};
  const weir_status s = resolve(given ? given : &none, run, out, resumes);
  if (s != WEIR_OK) wr_settings_free(out);
  return s;
}

void wr_settings_free(wr_settings *s) { wr_arena_free(&s->arena); }

/* --------------------------------------------------------------------------------------------------------------- config.json */

void wr_settings_json(const wr_settings *s, wr_str *out) {
  weir_train_options o = s->o;
  wr_str_printf(out, "{\n  \"weir\": \"%s\",\n  \"data\": [", weir_version());
  for (size_t i = 0; i < o.n_data; i++) {
    wr_str_puts(out, i ? ", {\"path\": " : "{\"path\": ");
    wr_str_json(out, s->sources[i].path, strlen(s->sources[i].path));
    wr_str_puts(out, ", \"weight\": ");
    wr_put_json_number(out, s->sources[i].weight);
    wr_str_puts(out, "}");
  }
  wr_str_puts(out, "]");
  for (int i = 0; i < WEIR_TRAIN_SETTINGS; i++) {
    wr_str_printf(out, ",\n  \"%s\": ", rows[i].s.name);
    if (is_text(i))
      wr_str_json(out, *text_of(&o, i), strlen(*text_of(&o, i)));
    else
      put_value(&o, i, out);
  }
  wr_str_puts(out, "\n}\n");
}

weir_status wr_settings_write(const wr_settings *s, const char *run) {
  wr_str text = {0}, path = {0};
  wr_settings_json(s, &text);
  wr_str_printf(&path, "%s/config.json", run);
  const weir_status st =
      text.oom || path.oom ? wr_fail_nomem(text.len, "config.json") : wr_file_write_atomic(path.ptr, text.ptr, text.len);
  wr_str_free(&text);
  wr_str_free(&path);
  return st;
}
