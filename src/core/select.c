/* Which kernel row runs a call: the first that does not refuse, in the order of the op's table; or the first of the same numeric class
 * in the order of this machine's tune file.
 *
 * Every refusal is a sentence that --why prints. $WEIR_USE=op:row,op:row forces rows (a row's whole name, or its last words: "ref"), so that
 * bisecting a wrong number is a command. A ledger keeps one numeric class for each kind of call over all plans of a model. */
#include <stdlib.h>

#include "core/core.h"
#include "core/core_i.h"

void wr_class_ledger_free(wr_class_ledger *l) {
  wr_arena_free(&l->arena);
  *l = (wr_class_ledger){0};
}

static bool word_is(const char *word, size_t n, const char *name) { return strlen(name) == n && memcmp(word, name, n) == 0; }

/* Does one of the alternatives "a|b|c" (up to n bytes), or an asterisk, name this? */
static bool listed(const char *alternatives, size_t n, const char *name) {
  for (size_t at = 0; at < n;) {
    const char *bar = memchr(alternatives + at, '|', n - at);
    const size_t len = bar ? (size_t)(bar - alternatives) - at : n - at;
    if (word_is(alternatives + at, len, "*") || word_is(alternatives + at, len, name)) return true;
    at += len + 1;
  }
  return false;
}

/* The constraint "arg:dtypes[/layouts]" of this argument within a row's types, NULL: not named. */
static const char *constraint(const char *types, const char *arg, size_t *len) {
  const size_t n = strlen(arg);
  for (const char *w = types; w && *w;) {
    while (*w == ' ') w++;
    const size_t word = strcspn(w, " ");
    if (word > n && w[n] == ':' && memcmp(w, arg, n) == 0) {
      *len = word - n - 1;
      return w + n + 1;
    }
    w += word;
  }
  return NULL;
}

static bool types_match(const char *types, const wr_op_arg *arg, const wr_arg *a) {
  size_t len = 0;
  const char *c = constraint(types, arg->name, &len);
  const char *dtype = wr_dtypes[a->dtype].name, *layout = wr_layout_name((wr_layout)a->layout);
  if (!c) return a->layout == WR_PLAIN && (a->dtype == WR_F32 || a->dtype == WR_I32);
  const char *slash = memchr(c, '/', len);
  const size_t dtypes = slash ? (size_t)(slash - c) : len;
  if (!listed(c, dtypes, dtype)) return false;
  return slash ? listed(slash + 1, len - dtypes - 1, layout) : a->layout == WR_PLAIN;
}

const char *wr_row_refuses(const wr_op *op, const wr_row *row, const wr_call *c, const wr_device *d, char *buf, size_t cap) {
  if (d->api->rows && strcmp(row->device, d->api->rows) != 0) {
    snprintf(buf, cap, "is for %s", strcmp(row->device, "cpu") == 0 ? "the CPU" : "other devices");
    return buf;
  }
  const char *missing = wr_isa_missing(row->isa, d->isa);
  if (missing) {
    snprintf(buf, cap, "needs %s, this device has %s", missing, wr_isa_name(d->isa));
    return buf;
  }
  for (int a = 0; op->args[a].role != WR_ARG_END; a++) {
    const wr_arg *arg = &c->args[a];
    if (!arg->rank || types_match(row->types, &op->args[a], arg)) continue;
    snprintf(buf, cap, "does not take %s/%s for '%s'", wr_dtypes[arg->dtype].name, wr_layout_name((wr_layout)arg->layout),
             op->args[a].name);
    return buf;
  }
  return row->refuse ? row->refuse(c) : NULL;
}

/* "matmul x=f32 w=q4_0/pack16 y=f32": calls of one key keep one class, on all devices that run the same rows. */
static void class_key(const wr_op *op, const wr_call *c, const wr_device *d, char *buf, size_t cap) {
  size_t n = (size_t)snprintf(buf, cap, "%s%s", op->name, d->api == &wr_device_cpu ? "" : " beside the CPU");
  for (int a = 0; op->args[a].role != WR_ARG_END && n < cap; a++)
    if (c->args[a].rank && op->args[a].role != WR_OUT)
      n += (size_t)snprintf(buf + n, cap - n, " %s=%s/%s", op->args[a].name, wr_dtypes[c->args[a].dtype].name,
                            wr_layout_name((wr_layout)c->args[a].layout));
}

static const char *ledger_class(const wr_class_ledger *l, const char *key) {
  for (int i = 0; i < l->n; i++)
    if (strcmp(l->entry[i].key, key) == 0) return l->entry[i].klass;
  return NULL;
}

static void ledger_note(wr_class_ledger *l, const char *key, const char *klass) {
  if (ledger_class(l, key) || l->n == (int)WR_ARRAY_LEN(l->entry)) return;
  const char *copy = wr_arena_strdup(&l->arena, key);
  if (!copy) {
    l->oom = true;
    return;
  }
  l->entry[l->n].key = copy;
  l->entry[l->n++].klass = klass;
}

/* The row that `use` ("op:row,op:row") forces for this op; len 0: none. */
static const char *forced_row(const char *use, const wr_op *op, size_t *len) {
  const size_t n = strlen(op->name);
  for (const char *w = use; w && *w;) {
    const size_t word = strcspn(w, ",");
    if (word > n + 1 && w[n] == ':' && memcmp(w, op->name, n) == 0) {
      *len = word - n - 1;
      return w + n + 1;
    }
    w += word + (w[word] == ',');
  }
  *len = 0;
  return NULL;
}

static bool row_named(const wr_row *row, const char *name, size_t len) {
  const size_t whole = strlen(row->name);
  if (word_is(name, len, row->name)) return true;
  return whole > len && row->name[whole - len - 1] == '_' && memcmp(row->name + whole - len, name, len) == 0;
}

weir_status wr_use_check(const char *use) {
  if (!use) use = getenv("WEIR_USE");
  for (const char *w = use; w && *w;) {
    const size_t word = strcspn(w, ","), n = strcspn(w, ":,");
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)WR_MIN(n, sizeof name - 1), w);
    const wr_op *op = n < sizeof name ? wr_op_find(name) : NULL;
    if (n + 1 >= word)
      return wr_fail(WEIR_EUSAGE, "WEIR_USE holds '%s', wanted op:row,op:row", wr_escape(w, WR_MIN(word, (size_t)80)));
    if (!op)
      return wr_fail(WEIR_EUSAGE, "WEIR_USE names an op '%s', which does not exist", wr_escape(w, WR_MIN(n, (size_t)80)));
    int i = 0;
    while (i < op->n_rows && !row_named(&op->rows[i], w + n + 1, word - n - 1)) i++;
    if (i == op->n_rows)
      return wr_fail(WEIR_EUSAGE, "WEIR_USE names row '%s' of op %s, which has no such row",
                     wr_escape(w + n + 1, WR_MIN(word - n - 1, (size_t)80)), op->name);
    w += word + (w[word] == ',');
  }
  return WEIR_OK;
}

/* The row that the tune file puts before `first`, which the order of the table leads to; NULL: none. */
static const wr_row *tuned_row(const wr_op *op, const wr_call *c, const wr_device *d, const wr_tune *tune, const wr_row *first) {
  char kind[160], reason[160];
  if (!tune || !tune->n) return NULL;
  wr_tune_kind(op, c, kind, sizeof kind);
  const wr_tune_entry *e = wr_tune_find(tune, kind);
  for (int i = 0; e && i < e->n_rows && e->rows[i] != first; i++)
    if (strcmp(e->rows[i]->klass, first->klass) == 0 && !wr_row_refuses(op, e->rows[i], c, d, reason, sizeof reason)) return e->rows[i];
  return NULL;
}

const wr_row *wr_select(const wr_op *op, const wr_call *c, const wr_device *d, const wr_plan_options *o, wr_str *why) {
  char key[512], reason[160];
  size_t forced_len = 0;
  const char *use = o->use ? o->use : getenv("WEIR_USE");
  const char *forced = use ? forced_row(use, op, &forced_len) : NULL;
  class_key(op, c, d, key, sizeof key);
  const char *kept = o->classes && !forced ? ledger_class(o->classes, key) : NULL;
  for (int i = 0; i < op->n_rows; i++) {
    const wr_row *row = &op->rows[i];
    const char *no = NULL;
    if (forced && !row_named(row, forced, forced_len))
      no = "another row is forced";
    else
      no = wr_row_refuses(op, row, c, d, reason, sizeof reason);
    if (!no && kept && strcmp(row->klass, kept) != 0) {
      snprintf(reason, sizeof reason, "computes in class %s, this model keeps class %s", row->klass, kept);
      no = reason;
    }
    if (!no) {
      const wr_row *tuned = forced ? NULL : tuned_row(op, c, d, o->tune, row);
      if (o->classes) ledger_note(o->classes, key, row->klass);
      if (why && tuned) wr_str_printf(why, "  %s: slower here by the tune file\n", row->name);
      if (tuned) row = tuned;
      if (why)
        wr_str_printf(why, "  %s: chosen, class %s%s\n", row->name, row->klass, forced ? ", forced" : tuned ? ", from the tune file" : "");
      return row;
    }
    if (why) wr_str_printf(why, "  %s: %s\n", row->name, no);
    if (forced && row_named(row, forced, forced_len))
      wr_fail(WEIR_EUNSUPPORTED, "WEIR_USE forces %s for %s: it %s", row->name, op->name, no);
  }
  if (!forced) wr_fail(WEIR_EUNSUPPORTED, "no kernel of device %s takes this call: %s", d->api->name, key);
  return NULL;
}
