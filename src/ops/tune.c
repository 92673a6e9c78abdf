/* Timing for the tune file: for each kind of call that models make, the rows of one numeric class against each other.
 *
 * Kinds of matmul come from a grid of weight types, sizes of weights and numbers of rows, laid out as models have them (packed where the type
 * can be); those of other ops from the timing cases (perf=1). Rows take turns in rounds, so that all meet the same weather, and
 * the best time counts. A row goes before the table's first only if it is faster by MARGIN, and is again when both are timed for longer, in
 * every round: what noise decides stays as the table has it. */
#include "ops/cases.h"

enum { MOST_CANDIDATES = 12, ROUNDS = 3, CONFIRM_ROUNDS = 6, GRID_ROWS = 64, GRID_K = 1024 };
#define MARGIN 0.05
#define SHORT_S 0.002
#define LONG_S 0.01

/* Bytes of weights, one for each class of wr_tune_kind that a model's matrices fall into; ops without weights are timed with the first. */
static const int64_t grid_bytes[] = {1536 << 10, 192 << 10, 8 << 20};

static const struct {
  const char *op, *line;
  bool any_type; /* of weights; else F32 only */
} grid[] = {
    {"matmul", "matmul m=%d n=%lld k=%d w=%s layout=%s", true},
    {"matmul_dx", "matmul_dx m=%d n=%lld k=%d w=%s layout=%s", false},
    {"matmul_dw", "matmul_dw m=%d n=%lld k=%d x=%s layout=%s bias=0", false},
};

typedef struct tuning {
  wr_device *device;
  bool (*each)(void *user, const wr_tuned *r);
  void *user;
  wr_str *text;
  double at, total; /* cases done, of so many */
  uint64_t *seen;   /* [n_seen] hashes of the kinds that were timed */
  size_t n_seen, cap_seen;
} tuning;

/* Is this the first call of its kind? */
static weir_status first_of_kind(tuning *k, const char *kind, bool *first) {
  const uint64_t h = wr_hash64(kind, strlen(kind), 0);
  *first = true;
  for (size_t i = 0; i < k->n_seen && *first; i++) *first = k->seen[i] != h;
  if (!*first) return WEIR_OK;
  if (!wr_grow((void **)&k->seen, &k->cap_seen, k->n_seen + 1, sizeof *k->seen))
    return wr_fail_nomem((k->n_seen + 1) * sizeof *k->seen, "the kinds of calls");
  k->seen[k->n_seen++] = h;
  return WEIR_OK;
}

typedef struct candidate {
  const wr_row *row;
  double last, best; /* seconds of a call, in the last round and in all */
} candidate;

/* The rows of the class that the table's order leads to, in that order. */
static int candidates(const tuning *k, const wr_trial *t, candidate *out) {
  char why[160];
  int n = 0;
  for (int i = 0; i < t->op->n_rows && n < MOST_CANDIDATES; i++) {
    const wr_row *row = &t->op->rows[i];
    if (wr_row_slow(row, k->device) || wr_row_refuses(t->op, row, &t->call, k->device, why, sizeof why)) continue;
    if (!n || strcmp(row->klass, out[0].row->klass) == 0) out[n++] = (candidate){row, 0, 1e300};
  }
  return n;
}

/* One time of each. */
static weir_status time_round(tuning *k, wr_trial *t, candidate *c, int n, double least) {
  for (int i = 0; i < n; i++) {
    WR_TRY(wr_trial_time(t, c[i].row, k->device, least, 1, &c[i].last));
    c[i].best = WR_MIN(c[i].best, c[i].last);
  }
  return WEIR_OK;
}

/* By time, the fastest first. */
static void sort(candidate *c, int n) {
  for (int i = 1; i < n; i++)
    for (int j = i; j > 0 && c[j].best < c[j - 1].best; j--) {
      const candidate swapped = c[j];
      c[j] = c[j - 1];
      c[j - 1] = swapped;
    }
}

static bool gains(double best, double first) { return best < first * (1 - MARGIN); }

/* Is pair[1] faster than pair[0], the table's first, in every round? */
static weir_status confirm(tuning *k, wr_trial *t, candidate pair[2], bool *gained) {
  pair[0].best = pair[1].best = 1e300;
  *gained = true;
  for (int r = 0; r < CONFIRM_ROUNDS && *gained; r++) {
    WR_TRY(time_round(k, t, pair, 2, LONG_S));
    *gained = gains(pair[1].last, pair[0].last) && gains(pair[1].best, pair[0].best);
  }
  return WEIR_OK;
}

/* One kind of call, in the trial as it stands. */
static weir_status tune_call(tuning *k, wr_trial *t) {
  candidate c[MOST_CANDIDATES];
  char kind[160];
  bool is_first, gained = false;
  wr_tune_kind(t->op, &t->call, kind, sizeof kind);
  WR_TRY(first_of_kind(k, kind, &is_first));
  const int n = candidates(k, t, c);
  if (n < 2 || !is_first) return WEIR_OK;
  const wr_row *first = c[0].row;
  for (int r = 0; r < ROUNDS; r++) WR_TRY(time_round(k, t, c, n, SHORT_S));
  candidate pair[2] = {c[0]};
  sort(c, n);
  pair[1] = c[0];
  if (gains(pair[1].best, pair[0].best)) WR_TRY(confirm(k, t, pair, &gained));
  if (gained) {
    const wr_row *rows[WR_TUNE_ROWS];
    const int keep = WR_MIN(n, WR_TUNE_ROWS);
    for (int i = 0; i < keep; i++) rows[i] = c[i].row;
    wr_tune_add(k->text, kind, rows, keep);
  }
  const candidate *best = gained ? &pair[1] : &pair[0];
  const wr_tuned r = {.kind = kind,
                      .first = first,
                      .best = best->row,
                      .first_s = pair[0].best,
                      .best_s = best->best,
                      .done = k->at / k->total};
  return k->each(k->user, &r) ? WEIR_OK : wr_fail(WEIR_ESTOPPED, "stopped by the callback");
}

/* The grid's case is laid out for GRID_ROWS rows and called with fewer, so that its weights are made once. */
static weir_status tune_rows(tuning *k, wr_trial *t) {
  const wr_call whole = t->call;
  weir_status s = WEIR_OK;
  for (int64_t rows = 1; rows <= GRID_ROWS && s == WEIR_OK; rows *= 2) {
    for (int a = 0; a < WR_MAX_ARGS; a++)
      if (whole.args[a].rank && whole.args[a].ext[0] == GRID_ROWS) t->call.args[a].ext[0] = rows;
    s = tune_call(k, t);
  }
  t->call = whole;
  return s;
}

static weir_status tune_line(tuning *k, const char *line, weir_status (*tune)(tuning *k, wr_trial *t)) {
  wr_case c;
  wr_trial t;
  weir_status s = wr_case_parse("the grid of tune.c", line, &c);
  if (s == WEIR_OK) s = wr_trial_open(&c, &t);
  if (s == WEIR_OK) {
    s = tune(k, &t);
    wr_trial_close(&t);
  }
  wr_case_free(&c);
  k->at++;
  return s;
}

static bool is_weight_type(int dtype, bool any) {
  return any ? dtype != WR_F64 && wr_dtypes[dtype].kind != WR_INT : dtype == WR_F32;
}

/* Every line of the grid; tune NULL: only counts them. */
static weir_status walk_grid(tuning *k, weir_status (*tune)(tuning *k, wr_trial *t)) {
  char line[160];
  for (size_t g = 0; g < WR_ARRAY_LEN(grid); g++)
    for (int d = 0; d < WR_DTYPE_COUNT; d++)
      for (size_t b = 0; b < WR_ARRAY_LEN(grid_bytes) && is_weight_type(d, grid[g].any_type); b++) {
        const wr_layout layout = wr_layout_ok(WR_PACK16, (wr_dtype)d, GRID_K) ? WR_PACK16 : WR_PLAIN;
        const int64_t n = grid_bytes[b] / (int64_t)wr_layout_row_bytes(WR_PLAIN, (wr_dtype)d, GRID_K) / WR_PACK_ROWS * WR_PACK_ROWS;
        snprintf(line, sizeof line, grid[g].line, GRID_ROWS, (long long)n, GRID_K, wr_dtypes[d].name, wr_layout_name(layout));
        if (tune)
          WR_TRY(tune_line(k, line, tune));
        else
          k->total++;
      }
  return WEIR_OK;
}

static bool in_grid(const wr_op *op) {
  for (size_t g = 0; g < WR_ARRAY_LEN(grid); g++)
    if (strcmp(op->name, grid[g].op) == 0) return true;
  return false;
}

/* The timing cases of the other ops. */
static weir_status walk_cases(tuning *k, weir_status (*tune)(tuning *k, wr_trial *t)) {
  wr_case_walk walk = {0};
  wr_case c;
  weir_status s = WEIR_OK;
  while (s == WEIR_OK && wr_case_next(&walk, &c, &s)) {
    if (s == WEIR_OK && c.perf && !in_grid(c.op)) {
      if (tune)
        s = tune_line(k, c.text, tune);
      else
        k->total++;
    }
    wr_case_free(&c);
  }
  return s;
}

weir_status wr_tune_ops(wr_device *d, bool (*each)(void *user, const wr_tuned *r), void *user, wr_str *text) {
  tuning k = {.device = d, .each = each, .user = user, .text = text};
  WR_TRY(walk_grid(&k, NULL));
  WR_TRY(walk_cases(&k, NULL));
  weir_status s = walk_grid(&k, tune_rows);
  if (s == WEIR_OK) s = walk_cases(&k, tune_call);
  wr_free(k.seen);
  return s;
}
