/* The choices of a tune file: which row was fastest here for a kind of call, among rows that give the same bits.
 *
 * Owns: the name of a kind of call, the text of the choices, looking one up. Refuses: measuring (ops/tune.c), and where the text is kept
 * (infer/tune.c).
 *
 *   rows 0123456789abcdef
 *   matmul q4_0/pack16 rows<=4 weights<=2M: matmul_q4_0_many_avx512 matmul_q4_0_few_avx512
 *
 * The first line is the hash of the table of kernels that was timed; then a kind of call a line, its rows best first. What is not named
 * keeps the order of the table. Select takes a choice only within the numeric class that the table's order leads to, so a tune file changes
 * times and no bit of a result. The text may come from anywhere: whatever it holds, it is taken or refused with a sentence.
 * Entries are sorted by the hash of their kind. */
#include <inttypes.h>
#include <stdlib.h>

#include "core/core.h"
#include "core/core_i.h"

enum { MOST_ROWS = 32 };

/* Weights of a call: none, in a core's caches, beyond. */
static const struct {
  double bytes;
  const char *name;
} weights[] = {{0, "=0"}, {256 << 10, "<=256K"}, {2 << 20, "<=2M"}, {1e300, ">2M"}};

/* The type of the call's first argument that is not plain F32 or a table, which is what tells kernels apart; else plain F32. */
static const wr_arg *typed(const wr_op *op, const wr_call *c) {
  static const wr_arg plain = {.dtype = WR_F32, .layout = WR_PLAIN};
  for (int a = 0; op->args[a].role != WR_ARG_END; a++) {
    const wr_arg *arg = &c->args[a];
    if (arg->rank && op->args[a].role != WR_OUT && (arg->layout != WR_PLAIN || (arg->dtype != WR_F32 && arg->dtype != WR_I32)))
      return arg;
  }
  return &plain;
}

void wr_tune_kind(const wr_op *op, const wr_call *c, char *buf, size_t cap) {
  wr_cost cost = {0};
  if (op->cost) op->cost(c, &cost);
  int64_t rows = 1;
  while (rows < c->args[0].ext[0] && rows < MOST_ROWS) rows *= 2;
  size_t w = 0;
  while (weights[w].bytes < cost.weight_bytes) w++;
  const wr_arg *t = typed(op, c);
  snprintf(buf, cap, "%s %s/%s rows%s%lld weights%s", op->name, wr_dtypes[t->dtype].name, wr_layout_name((wr_layout)t->layout),
           c->args[0].ext[0] > MOST_ROWS ? ">" : "<=", (long long)rows, weights[w].name);
}

static uint64_t rows_hash(void) {
  uint64_t h = wr_hash64(weir_version(), strlen(weir_version()), 0);
  for (int o = 0; o < wr_ops_n; o++)
    for (int i = 0; i < wr_ops[o]->n_rows; i++) {
      const wr_row *row = &wr_ops[o]->rows[i];
      h = wr_hash64(row->name, strlen(row->name), h);
      h = wr_hash64(row->klass, strlen(row->klass), h);
    }
  return h;
}

void wr_tune_head(wr_str *text) { wr_str_printf(text, "rows %016" PRIx64 "\n", rows_hash()); }

void wr_tune_add(wr_str *text, const char *kind, const wr_row *const *rows, int n) {
  wr_str_printf(text, "%s:", kind);
  for (int i = 0; i < n; i++) wr_str_printf(text, " %s", rows[i]->name);
  wr_str_puts(text, "\n");
}

static uint64_t hash_of(const char *kind, size_t n) { return wr_hash64(kind, n, 0); }

static const wr_row *row_called(const wr_op *op, const char *name, size_t n) {
  for (int i = 0; i < op->n_rows; i++)
    if (strlen(op->rows[i].name) == n && memcmp(op->rows[i].name, name, n) == 0) return &op->rows[i];
  return NULL;
}

/* One line without its end. */
static weir_status parse_line(const char *line, size_t n, wr_tune_entry *out) {
  const char *colon = memchr(line, ':', n);
  const size_t kind = colon ? (size_t)(colon - line) : 0;
  char name[32];
  snprintf(name, sizeof name, "%.*s", (int)WR_MIN(strcspn(line, " :\n"), sizeof name - 1), line);
  const wr_op *op = wr_op_find(name);
  if (!kind || !op) return wr_fail(WEIR_EFORMAT, "'%s' names no op and its rows", wr_escape(line, WR_MIN(n, (size_t)80)));
  *out = (wr_tune_entry){.kind = hash_of(line, kind)};
  for (size_t at = kind + 1; at < n;) {
    const char *word = line + at + 1;
    const size_t len = strcspn(word, " \n");
    const wr_row *row = line[at] == ' ' ? row_called(op, word, len) : NULL;
    if (!row || out->n_rows == WR_TUNE_ROWS)
      return wr_fail(WEIR_EFORMAT, "'%s' is no list of up to %d rows of %s", wr_escape(line, WR_MIN(n, (size_t)120)), WR_TUNE_ROWS,
                     op->name);
    out->rows[out->n_rows++] = row;
    at += 1 + len;
  }
  return out->n_rows ? WEIR_OK : wr_fail(WEIR_EFORMAT, "a line names no row");
}

static int by_kind(const void *a, const void *b) {
  const uint64_t x = ((const wr_tune_entry *)a)->kind, y = ((const wr_tune_entry *)b)->kind;
  return (x > y) - (x < y);
}

static weir_status parse(const char *text, wr_tune *t) {
  size_t cap = 0;
  wr_str head = {0};
  wr_tune_head(&head);
  const bool ours = !head.oom && strncmp(text, head.ptr, head.len) == 0;
  const size_t head_len = head.len;
  wr_str_free(&head);
  if (!ours) return wr_fail(WEIR_EFORMAT, "it was made with other kernels");
  for (const char *line = text + head_len; *line;) {
    const size_t n = strcspn(line, "\n");
    if (line[n] != '\n') return wr_fail(WEIR_EFORMAT, "it ends in the middle of a line");
    if (!wr_grow((void **)&t->entries, &cap, t->n + 1, sizeof *t->entries))
      return wr_fail_nomem((t->n + 1) * sizeof *t->entries, "the tune file");
    WR_TRY(parse_line(line, n, &t->entries[t->n]));
    t->n++;
    line += n + 1;
  }
  if (t->n) qsort(t->entries, t->n, sizeof *t->entries, by_kind);
  for (size_t i = 1; i < t->n; i++)
    if (t->entries[i].kind == t->entries[i - 1].kind) return wr_fail(WEIR_EFORMAT, "a kind of call stands twice");
  return WEIR_OK;
}

weir_status wr_tune_parse(const char *text, wr_tune *out) {
  wr_tune t = {0};
  const weir_status s = parse(text, &t);
  if (s == WEIR_OK)
    *out = t;
  else
    wr_tune_free(&t);
  return s;
}

void wr_tune_free(wr_tune *t) {
  wr_free(t->entries);
  *t = (wr_tune){0};
}

const wr_tune_entry *wr_tune_find(const wr_tune *t, const char *kind) {
  const wr_tune_entry key = {.kind = hash_of(kind, strlen(kind))};
  return t->n ? bsearch(&key, t->entries, t->n, sizeof key, by_kind) : NULL;
}
