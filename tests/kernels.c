/* kernels: every kernel row of every op on every line of src/ops/<family>/<family>.cases.
 *
 *   kernels [PATTERN]            test; PATTERN: part of "row | case line"
 *   kernels --perf [PATTERN]     time the rows over the cases marked perf=1 [--threads N] [--json] [--reps N];
 *                                the percentage is the share of what this machine allows, by its measured bandwidth and peaks
 *   kernels --list               the rows, their numeric class and how many cases take them
 *   kernels --only PATTERN       the same as PATTERN
 *   kernels --but PATTERN        leave out what has this in "row | case line"
 *   kernels --flop N             leave out the cases that take more operations (under an emulator)
 *   kernels --device NAME        which device runs the rows of the dialect (emu), say opencl:0
 *   kernels --bits               print a hash of each result of each class and case, to be compared with another build's
 *
 * For each row and case: the result against the op's reference row run on doubles, within the tolerance of the dtype table;
 * guard bands and padding whole, inputs unchanged, rows past `live` untouched; outputs and scratch full of NaN before; the
 * same bits on 1, 2 and 3 threads (of the dialect: in three orders of work items) and when repeated, from every row of one numeric class, for a row alone and in company, in
 * place, without the optional outputs; adding to an output where the op can. For each op with a gradient: the real gradient
 * pass against finite differences, in double. The program catches faults that are planted in rows of its own. A new row or op
 * needs no line here.
 */
#include <math.h>
#include <stdlib.h>

#include "ops/matmul/matmul_i.h"
#include "ops/ops.h"

enum { TEAMS = 3 };                   /* devices of 1, 2, 3 threads; */
static wr_device *cpus[TEAMS], *others[TEAMS]; /* emulated: forwards, backwards, shuffled; others: the same three times */
static wr_device *device_of(const wr_row *row, int team) {
  return strcmp(row->device, cpus[team]->api->rows) == 0 ? cpus[team] : others[team];
}
static int passed, failed, skipped;
static const char *only = "", *but = NULL;
static double flop_limit = INFINITY;
static int too_large; /* cases above it */
static bool print_bits;
static bool quiet; /* while a planted fault is looked for */
static char last_fault[512];

/* ---- one finding */
typedef struct about {
  const wr_case *kase;
  const wr_row *row;
} about;

static bool fault(const about *a, const char *fmt, ...) WR_PRINTF(2, 3);
static bool fault(const about *a, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  vsnprintf(last_fault, sizeof last_fault, fmt, args);
  va_end(args);
  if (!quiet)
    printf("FAIL %s %s, %s '%s': %s\n", a->kase->op->name, a->row ? a->row->name : "gradient", a->kase->file, a->kase->text,
           last_fault);
  return false;
}

/* ---- what a run left */
typedef struct result {
  uint8_t *data[WR_MAX_ARGS];
} result;

static void result_free(result *r) {
  for (int i = 0; i < WR_MAX_ARGS; i++) free(r->data[i]), r->data[i] = NULL;
}

static bool is_result(const wr_trial *t, int i) { return t->args[i].base && t->op->args[i].role != WR_IN; }

static void result_keep(const wr_trial *t, result *r) {
  for (int i = 0; i < WR_MAX_ARGS; i++) {
    if (!is_result(t, i)) continue;
    if (!r->data[i]) r->data[i] = malloc(t->args[i].bytes);
    if (!r->data[i]) abort();
    memcpy(r->data[i], t->args[i].base + WR_TRIAL_GUARD, t->args[i].bytes);
  }
}

static const uint8_t *row_of(const wr_trial *t, int i, const uint8_t *data, int64_t row) {
  return data + row * t->call.args[i].stride_bytes;
}

static bool same_row(const wr_trial *t, int i, int64_t row, const result *want, const about *a, const char *when) {
  const wr_arg *arg = &t->call.args[i];
  const uint8_t *got = row_of(t, i, t->args[i].base + WR_TRIAL_GUARD, row), *ref = row_of(t, i, want->data[i], row);
  if (memcmp(got, ref, t->args[i].row_bytes) == 0) return true;
  size_t size = (size_t)wr_dtypes[arg->dtype].block_bytes, at = 0;
  while (memcmp(got + at, ref + at, size) == 0) at += size;
  wr_arg whole = *arg, kept = *arg;
  whole.data = t->args[i].base + WR_TRIAL_GUARD;
  kept.data = want->data[i];
  int64_t col = (int64_t)(at / size);
  return fault(a, "%s[%lld, %lld] has other bits %s: got %.9g, want %.9g", t->op->args[i].name, (long long)row, (long long)col,
               when, wr_get(&whole, row, col), wr_get(&kept, row, col));
}

/* The same bits as before in every output that is there; `rows` < 0: all of them. */
static bool same_bits(const wr_trial *t, const result *want, const about *a, const char *when) {
  for (int i = 0; i < WR_MAX_ARGS; i++)
    if (is_result(t, i) && t->call.args[i].data)
      for (int64_t r = 0; r < (int64_t)t->args[i].rows; r++)
        if (!same_row(t, i, r, want, a, when)) return false;
  return true;
}

/* Rows past the live ones hold what they held before. */
static bool dead_rows_untouched(const wr_trial *t, const about *a) {
  for (int i = 0; i < WR_MAX_ARGS; i++) {
    const wr_arg *arg = &t->call.args[i];
    if (!is_result(t, i) || !arg->live) continue;
    for (int64_t r = wr_live_rows(&t->call, i); r < arg->ext[0]; r++) {
      const uint8_t *got = row_of(t, i, t->args[i].base + WR_TRIAL_GUARD, r);
      for (size_t k = 0; k < t->args[i].row_bytes; k++)
        if (got[k] != (t->args[i].pristine ? row_of(t, i, t->args[i].pristine, r)[k] : 0xff))
          return fault(a, "wrote row %lld of %s, but only %lld rows are live", (long long)r, t->op->args[i].name,
                       (long long)wr_live_rows(&t->call, i));
    }
  }
  return true;
}

static double tolerance(const wr_trial *t) {
  double tol = 1e-12;
  for (int i = 0; i < WR_MAX_ARGS; i++)
    if (t->call.args[i].rank) tol = fmax(tol, wr_dtypes[t->call.args[i].dtype].tolerance);
  return tol * t->kase->tol;
}

/* Argument i against the reference's, plus `added[]` (NULL: nothing). The error is relative to the rms of what is wanted. */
static bool close_to(const wr_trial *t, const wr_trial *ref, int i, double (*added)(int64_t row, int64_t col), const about *a) {
  const wr_arg *got = &t->call.args[i], *want = &ref->call.args[i];
  int64_t rows = wr_live_rows(&t->call, i), cols = wr_inner(got), bad_row = -1, bad_col = 0;
  double sum = 0, worst = 0;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t k = 0; k < cols; k++) sum += pow(wr_get(want, r, k) + (added ? added(r, k) : 0), 2);
  double rms = sqrt(sum / fmax((double)(rows * cols), 1)), allowed = tolerance(t) * (rms > 0 ? rms : 1);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t k = 0; k < cols; k++) {
      double e = fabs(wr_get(got, r, k) - wr_get(want, r, k) - (added ? added(r, k) : 0));
      if (e <= worst) continue; /* a NaN is not */
      worst = e, bad_row = r, bad_col = k;
      if (isnan(e)) r = rows, k = cols;
    }
  if (bad_row < 0 || worst <= allowed) return true;
  return fault(a, "%s[%lld, %lld] got %.9g, want %.9g%s: off by %.2g of the rms, allowed are %.2g", t->op->args[i].name,
               (long long)bad_row, (long long)bad_col, wr_get(got, bad_row, bad_col),
               wr_get(want, bad_row, bad_col) + (added ? added(bad_row, bad_col) : 0), added ? " (added)" : "",
               worst / (rms > 0 ? rms : 1), tolerance(t));
}

static bool all_close(const wr_trial *t, const wr_trial *ref, const about *a) {
  for (int i = 0; i < WR_MAX_ARGS; i++)
    if (is_result(t, i) && t->call.args[i].data && !close_to(t, ref, i, NULL, a)) return false;
  return true;
}

static bool run_once(wr_trial *t, const wr_row *row, int team, const about *a) {
  char why[160];
  if (wr_trial_run(t, row, device_of(row, team), 1, NULL) != WEIR_OK) return fault(a, "%s", weir_last_error());
  return wr_trial_intact(t, why, sizeof why) || fault(a, "%s", why);
}

static bool reset(wr_trial *t, const wr_row *row, int team, const about *a) {
  return wr_trial_reset(t, row, device_of(row, team)->n_threads) == WEIR_OK || fault(a, "%s", weir_last_error());
}

static bool refused(const wr_trial *t, const wr_row *row) {
  char why[160];
  return wr_row_refuses(t->op, row, &t->call, device_of(row, 0), why, sizeof why) != NULL;
}

/* ---- the checks of one row on one case; each leaves t->call as it was */

static bool check_threads(wr_trial *t, const wr_row *row, const wr_trial *ref, result *out, const about *a) {
  static const int order[] = {0, 1, 2, 1, 0};
  for (int k = 0; k < (int)WR_ARRAY_LEN(order); k++) {
    char when[64];
    snprintf(when, sizeof when, "on %d threads, run %d", order[k] + 1, k + 1);
    if (!reset(t, row, order[k], a) || !run_once(t, row, order[k], a) || !dead_rows_untouched(t, a)) return false;
    if (k && !same_bits(t, out, a, when)) return false;
    if (k) continue;
    result_keep(t, out);
    if (!all_close(t, ref, a)) return false;
  }
  return true;
}

static double ramp(int64_t row, int64_t col) { return (double)((row * 7 + col * 3) % 11 - 5); }

static bool check_adding(wr_trial *t, const wr_row *row, const wr_trial *ref, const about *a) {
  const wr_call saved = t->call;
  bool ok = true;
  for (int i = 0; ok && i < WR_MAX_ARGS && t->op->args[i].role != WR_ARG_END; i++) {
    if (!(t->op->args[i].flags & WR_ARG_ACC) || !saved.args[i].rank) continue;
    t->call.acc = 1u << i;
    if (!refused(t, row)) {
      ok = reset(t, row, 1, a);
      for (int64_t r = 0; ok && r < wr_live_rows(&t->call, i); r++)
        for (int64_t k = 0; k < wr_inner(&t->call.args[i]); k++) wr_set(&t->call.args[i], r, k, ramp(r, k));
      ok = ok && run_once(t, row, 1, a) && dead_rows_untouched(t, a) && close_to(t, ref, i, ramp, a);
    }
    t->call.acc = saved.acc;
  }
  return ok;
}

static bool check_in_place(wr_trial *t, const wr_row *row, const result *want, const about *a) {
  const wr_call saved = t->call;
  bool ok = true;
  for (int i = 0; ok && i < WR_MAX_ARGS && t->op->args[i].role != WR_ARG_END; i++) {
    int in = t->op->args[i].inplace - 1;
    if (in < 0 || !saved.args[i].rank || !saved.args[in].rank || t->args[i].bytes != t->args[in].bytes) continue;
    ok = reset(t, row, 1, a);
    if (ok) memcpy(saved.args[i].data, t->args[in].pristine, t->args[in].bytes);
    t->call.args[in].data = saved.args[i].data;
    ok = ok && run_once(t, row, 1, a);
    t->call.args[in].data = saved.args[in].data;
    for (int64_t r = 0; ok && r < wr_live_rows(&t->call, i); r++) ok = same_row(t, i, r, want, a, "in place");
  }
  return ok;
}

static bool check_without_optional(wr_trial *t, const wr_row *row, const result *want, const about *a) {
  const wr_call saved = t->call;
  bool ok = true;
  for (int i = 0; ok && i < WR_MAX_ARGS && t->op->args[i].role != WR_ARG_END; i++) {
    if (t->op->args[i].role != WR_OUT || !(t->op->args[i].flags & WR_ARG_OPTIONAL) || !saved.args[i].rank) continue;
    t->call.args[i] = (wr_arg){.ext = {1, 1, 1, 1}, .stride_bytes = saved.args[i].stride_bytes};
    if (!refused(t, row))
      ok = reset(t, row, 1, a) && run_once(t, row, 1, a) && same_bits(t, want, a, "without an optional output");
    t->call.args[i] = saved.args[i];
  }
  return ok;
}

/* Leave only row r of everything that counts its rows by register `live`; other optional outputs are dropped. false: cannot
 * be done. */
static bool cut_to_row(wr_trial *t, const wr_call *whole, int live, int64_t r) {
  t->call = *whole;
  for (int i = 0; i < WR_MAX_ARGS && t->op->args[i].role != WR_ARG_END; i++) {
    wr_arg *arg = &t->call.args[i];
    if (!arg->rank) continue;
    if (arg->live == live) {
      arg->data = (char *)arg->data + r * arg->stride_bytes;
      arg->ext[0] = 1;
      arg->live = WR_LIVE_ALL;
    } else if (t->op->args[i].role == WR_UPDATE)
      return false;
    else if (t->op->args[i].role == WR_OUT) {
      if (!(t->op->args[i].flags & WR_ARG_OPTIONAL)) return false;
      *arg = (wr_arg){.ext = {1, 1, 1, 1}, .stride_bytes = arg->stride_bytes};
    }
  }
  return true;
}

/* A row of the batch alone gives the bits that it gave in company, whichever row of the class takes that call. */
static bool check_alone(wr_trial *t, const wr_row *row, const result *want, const about *a) {
  const wr_call saved = t->call;
  int live = 0, first = -1;
  for (int i = 0; i < WR_MAX_ARGS && t->op->args[i].role != WR_ARG_END && first < 0; i++)
    if (t->op->args[i].role == WR_OUT && saved.args[i].rank) first = i, live = saved.args[i].live;
  if (!t->kase->alone || first < 0 || !live) return true;
  bool ok = true;
  int64_t rows = wr_live_rows(&saved, first), step = WR_MAX((int64_t)1, (rows - 1) / 3);
  for (int64_t r = 0; ok && r < rows; r += step) {
    ok = cut_to_row(t, &saved, live, r);
    if (!ok || refused(t, row)) {
      t->call = saved;
      return true;
    }
    ok = reset(t, row, 1, a) && run_once(t, row, 1, a);
    wr_call cut = t->call;
    t->call = saved;
    for (int i = 0; ok && i < WR_MAX_ARGS; i++)
      if (is_result(t, i) && saved.args[i].live == live && cut.args[i].data) ok = same_row(t, i, r, want, a, "alone");
  }
  t->call = saved;
  return ok;
}

static bool check_row(wr_trial *t, const wr_row *row, const wr_trial *ref, result *out) {
  about a = {t->kase, row};
  return check_threads(t, row, ref, out, &a) && check_adding(t, row, ref, &a) && check_in_place(t, row, out, &a) &&
         check_without_optional(t, row, out, &a) && check_alone(t, row, out, &a);
}

/* ---- gradients */

typedef struct probe {
  wr_plan *plan;
  const wr_program *program;
  int *y, *dy;
  int n;
} probe;

static double *host_of(const probe *k, int value) { return wr_plan_host(k->plan, value); }

static int64_t live_count(const probe *k, int value) {
  const wr_vtype *t = wr_type(k->program, value);
  int64_t rows = t->live ? WR_MIN(t->ext[0], k->plan->regs_host->live[t->live]) : t->ext[0];
  return rows * t->ext[1] * t->ext[2] * t->ext[3];
}

/* sum of <y, dy> over live rows: what the gradient pass differentiates. */
static double objective(const probe *k) {
  double sum = 0;
  if (wr_plan_run(k->plan) != WEIR_OK) return NAN;
  for (int i = 0; i < k->n; i++)
    for (int64_t j = 0; j < live_count(k, k->y[i]); j++) sum += host_of(k, k->y[i])[j] * host_of(k, k->dy[i])[j];
  return sum;
}

/* Central differences of fourth order: with h = 1e-3 both errors are near 1e-12. */
static double slope(const probe *k, double *x) {
  const double at = *x, h = 1e-3;
  double f[4];
  static const int steps[4] = {1, -1, 2, -2};
  for (int i = 0; i < 4; i++) {
    *x = at + steps[i] * h;
    f[i] = objective(k);
  }
  *x = at;
  return (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * h);
}

static bool check_slopes(const probe *k, int x, const double *grads, const about *a) {
  int64_t n = live_count(k, x), step = WR_MAX((int64_t)1, n / 12);
  double norm = 0;
  for (int64_t j = 0; j < n; j++) norm += grads[j] * grads[j];
  norm = sqrt(norm / (double)WR_MAX(n, (int64_t)1));
  for (int64_t j = 0; j < n; j += step) {
    double want = slope(k, &host_of(k, x)[j]);
    if (!(fabs(grads[j] - want) <= 1e-7 * (fabs(want) + norm) + 1e-9))
      return fault(a, "gradient of %s, element %lld: got %.12g, finite differences give %.12g",
                   wr_type(k->program, x) ? k->program->values[x].name : "", (long long)j, grads[j], want);
  }
  return true;
}

static bool fill_input(wr_case *c, probe *k, int value) {
  const wr_vtype *t = wr_type(k->program, value);
  wr_arg arg = {.data = wr_plan_host(k->plan, value),
                .rank = t->rank,
                .dtype = t->dtype,
                .live = t->live,
                .stride_bytes = k->program->values[value].stride_bytes};
  memcpy(arg.ext, t->ext, sizeof arg.ext);
  return arg.data && wr_case_fill(c, k->program, value, &arg) == WEIR_OK;
}

static bool check_gradient_of(wr_case *c, wr_program *p, const about *a) {
  wr_mem mem;
  wr_plan plan = {0};
  int y[WR_MAX_ARGS], dy[WR_MAX_ARGS], wrt[WR_MAX_ARGS * 2], n = 0, n_wrt = 0;
  if (wr_case_build(c, p) != WEIR_OK) return fault(a, "%s", weir_last_error());
  const wr_instr in = p->instrs[p->n_instrs - 1];
  int n_inputs = c->n_inputs;
  for (int i = 0; i < WR_MAX_ARGS && c->op->args[i].role != WR_ARG_END; i++) {
    if (c->op->args[i].role != WR_OUT || in.args[i] < 0 || (c->op->args[i].flags & WR_ARG_SAVED)) continue;
    if (wr_dtypes[wr_type(p, in.args[i])->dtype].kind != WR_FLOAT) continue;
    y[n] = in.args[i];
    wr_mark_output(p, y[n]);
    dy[n] = wr_case_input(c, p, WR_INPUT, "dy", *wr_type(p, y[n]), wr_fill_normal(0, 1));
    n++;
  }
  for (int i = 0; i < n_inputs; i++)
    if (wr_type(p, c->inputs[i].value)->dtype == WR_F64 && p->values[c->inputs[i].value].kind != WR_STATE)
      wrt[n_wrt++] = c->inputs[i].value;
  if (!n || !n_wrt) return fault(a, "nothing to differentiate; say grad=0");
  wr_mem_init(&mem, cpus[1], 0);
  wr_plan_options options = {.poison = true};
  if (wr_pass_grad(p, y, dy, n, wrt, n_wrt) != WEIR_OK || wr_check(p) != WEIR_OK ||
      wr_plan_make(p, &mem, &options, &plan) != WEIR_OK)
    return fault(a, "%s", weir_last_error());
  probe k = {&plan, p, y, dy, n};
  *plan.regs_host = c->regs;
  bool ok = true;
  for (int i = 0; ok && i < c->n_inputs; i++) ok = fill_input(c, &k, c->inputs[i].value) || fault(a, "%s", weir_last_error());
  if (ok && isnan(objective(&k))) ok = fault(a, "the result has NaN in it");
  double *grads[WR_MAX_ARGS * 2] = {0};
  for (int i = 0; ok && i < n_wrt; i++) {
    int g = p->values[wrt[i]].grad;
    size_t bytes = g < 0 ? 0 : wr_value_bytes(&p->values[g]);
    if (g < 0) continue; /* does not depend on it */
    grads[i] = malloc(bytes);
    ok = grads[i] && wr_plan_read(&plan, g, 0, grads[i], bytes) == WEIR_OK ? true : fault(a, "%s", weir_last_error());
  }
  for (int i = 0; ok && i < n_wrt; i++) ok = !grads[i] || check_slopes(&k, wrt[i], grads[i], a);
  for (int i = 0; i < n_wrt; i++) free(grads[i]);
  wr_plan_free(&plan);
  return ok;
}

static bool check_gradient(const wr_case *kase) {
  wr_case c;
  wr_program p;
  about a = {kase, NULL};
  if (wr_case_parse(kase->file, kase->text, &c) != WEIR_OK) return fault(&a, "%s", weir_last_error());
  c.as_double = true;
  wr_program_init(&p);
  bool ok = check_gradient_of(&c, &p, &a);
  wr_program_free(&p);
  wr_case_free(&c);
  return ok;
}

/* ---- all rows on one case */

enum { MAX_ROWS = 128 };
static int taken[512][MAX_ROWS]; /* [op][row]: cases that it took */

static int op_index(const wr_op *op) {
  for (int i = 0; i < wr_ops_n; i++)
    if (wr_ops[i] == op) return i;
  return 0;
}

static bool named(const wr_row *row, const wr_case *c) {
  char text[512];
  snprintf(text, sizeof text, "%s | %s", row ? row->name : "gradient", c->text);
  return strstr(text, only) && !(but && strstr(text, but));
}

static void count(bool ok) {
  if (ok)
    passed++;
  else
    failed++;
}

/* The first row of a class that took this case, and its result: others of the class must give the same bits. */
typedef struct class_result {
  const char *klass;
  result out;
} class_result;

/* What other builds must get too. Not the references, which take libm as it is, as the dialect's do, nor what a library computes. */
static void bits_of(const wr_trial *t, const wr_row *row, const result *out) {
  if (strcmp(row->klass, "ref") == 0 || strcmp(row->klass, "onednn") == 0 || row->launch) return;
  uint64_t h = 0;
  for (int k = 0; k < WR_MAX_ARGS; k++)
    for (int64_t r = 0; out->data[k] && r < (int64_t)t->args[k].rows; r++)
      h = wr_hash64(row_of(t, k, out->data[k], r), t->args[k].row_bytes, h);
  printf("%016llx %s %s | %s\n", (unsigned long long)h, t->op->name, row->klass, t->kase->text);
}

static bool check_class(const wr_trial *t, const wr_row *row, class_result *classes, int *n, result *out) {
  about a = {t->kase, row};
  for (int i = 0; i < *n; i++) {
    if (strcmp(classes[i].klass, row->klass) != 0) continue;
    bool ok = true;
    for (int k = 0; ok && k < WR_MAX_ARGS; k++)
      for (int64_t r = 0; ok && classes[i].out.data[k] && r < (int64_t)t->args[k].rows; r++)
        if (memcmp(row_of(t, k, out->data[k], r), row_of(t, k, classes[i].out.data[k], r), t->args[k].row_bytes) != 0)
          ok = fault(&a, "row %lld of %s has other bits than a better row of class %s", (long long)r, t->op->args[k].name,
                     row->klass);
    result_free(out);
    return ok;
  }
  if (print_bits) bits_of(t, row, out);
  classes[*n].klass = row->klass;
  classes[(*n)++].out = *out;
  *out = (result){0};
  return true;
}

static void test_case(wr_case *c) {
  wr_trial t, ref;
  about a = {c, NULL};
  bool any = false;
  for (int i = 0; i < c->op->n_rows; i++) any |= named(&c->op->rows[i], c);
  if (!any && !named(NULL, c)) return;
  if (wr_trial_open(c, &t) != WEIR_OK) {
    count(fault(&a, "%s", weir_last_error()));
    return;
  }
  if (t.cost.flop > flop_limit) {
    too_large++;
    wr_trial_close(&t);
    return;
  }
  const wr_row *definition = &c->op->rows[c->op->n_rows - 1];
  a.row = definition;
  if (wr_trial_as_double(&t, &ref) != WEIR_OK || refused(&ref, definition)) {
    count(fault(&a, "the reference, the last row, does not take doubles"));
    wr_trial_close(&t);
    return;
  }
  bool ok = reset(&ref, definition, 0, &a) && run_once(&ref, definition, 0, &a);
  if (!ok) count(false);
  class_result classes[MAX_ROWS];
  int n_classes = 0;
  for (int i = 0; ok && i < c->op->n_rows; i++) {
    const wr_row *row = &c->op->rows[i];
    result out = {0};
    if (refused(&t, row)) continue;
    taken[op_index(c->op)][i]++;
    if (!named(row, c)) continue;
    bool good = check_row(&t, row, &ref, &out);
    count(good && check_class(&t, row, classes, &n_classes, &out));
    result_free(&out);
  }
  for (int i = 0; i < n_classes; i++) result_free(&classes[i].out);
  wr_trial_close(&ref);
  wr_trial_close(&t);
  if (ok && c->op->grad && c->grad && named(NULL, c)) count(check_gradient(c));
}

/* ---- planted faults: rows of the op `add` that are wrong in one way each */

static void right_sum(const wr_call *c, const wr_worker *w, int64_t rows) {
  int64_t inner = wr_inner(&c->args[0]), begin, end;
  while (wr_take(w, 0, rows, 1, &begin, &end))
    for (int64_t r = begin; r < end; r++)
      for (int64_t i = 0; i < inner; i++) wr_set(&c->args[2], r, i, wr_get(&c->args[0], r, i) + wr_get(&c->args[1], r, i));
}
static float *element(const wr_call *c, int arg, int64_t row, int64_t col) {
  return (float *)((char *)c->args[arg].data + row * c->args[arg].stride_bytes) + col;
}
static void plant_none(const wr_call *c, const wr_worker *w) { right_sum(c, w, wr_live_rows(c, 0)); }
static void plant_past_end(const wr_call *c, const wr_worker *w) {
  right_sum(c, w, wr_live_rows(c, 0));
  if (w->tid == 0) *element(c, 2, c->args[2].ext[0] - 1, wr_inner(&c->args[2]) + 3) = 0;
}
static void plant_before_start(const wr_call *c, const wr_worker *w) {
  right_sum(c, w, wr_live_rows(c, 0));
  if (w->tid == 0) *element(c, 2, 0, -1) = 0;
}
static void plant_missing(const wr_call *c, const wr_worker *w) { right_sum(c, w, wr_live_rows(c, 0) - 1); }
static void plant_dead_row(const wr_call *c, const wr_worker *w) { right_sum(c, w, c->args[0].ext[0]); }
static void plant_wrong(const wr_call *c, const wr_worker *w) {
  right_sum(c, w, wr_live_rows(c, 0));
  wr_barrier(w);
  if (w->tid == 0) *element(c, 2, 0, 1) *= 1.0001f;
}
static void plant_thread(const wr_call *c, const wr_worker *w) {
  right_sum(c, w, wr_live_rows(c, 0));
  wr_barrier(w);
  if (w->tid == w->n_threads - 1) *element(c, 2, 0, 2) *= 1 + 1.2e-7f * (float)w->tid;
}
static void plant_input(const wr_call *c, const wr_worker *w) {
  right_sum(c, w, wr_live_rows(c, 0));
  wr_barrier(w);
  if (w->tid == 0) *element(c, 1, 0, 0) = 1;
}
static void plant_in_place(const wr_call *c, const wr_worker *w) {
  int64_t inner = wr_inner(&c->args[0]);
  if (w->tid != 0) return;
  for (int64_t r = 0; r < wr_live_rows(c, 0); r++) { /* writes an element before the last read of it */
    *element(c, 2, r, 0) = 0;
    for (int64_t i = 0; i < inner; i++) *element(c, 2, r, i) = *element(c, 0, r, i) + *element(c, 1, r, i);
  }
}
static void plant_company(const wr_call *c, const wr_worker *w) {
  right_sum(c, w, wr_live_rows(c, 0));
  wr_barrier(w);
  if (w->tid == 0 && c->args[0].ext[0] > 1) *element(c, 2, 0, 0) = nextafterf(*element(c, 2, 0, 0), INFINITY);
}

static const struct {
  wr_row row;
  const char *says;
} plants[] = {
    {{"planted_none", "cpu", 0, "", "x", NULL, NULL, plant_none, NULL}, NULL},
    {{"planted_write_past_the_end", "cpu", 0, "", "x", NULL, NULL, plant_past_end, NULL}, "out of bounds of y"},
    {{"planted_write_before_the_start", "cpu", 0, "", "x", NULL, NULL, plant_before_start, NULL}, "out of bounds of y"},
    {{"planted_missing_write", "cpu", 0, "", "x", NULL, NULL, plant_missing, NULL}, "got"},
    {{"planted_write_to_a_dead_row", "cpu", 0, "", "x", NULL, NULL, plant_dead_row, NULL}, "are live"},
    {{"planted_wrong_value", "cpu", 0, "", "x", NULL, NULL, plant_wrong, NULL}, "of the rms"},
    {{"planted_thread_dependence", "cpu", 0, "", "x", NULL, NULL, plant_thread, NULL}, "threads"},
    {{"planted_changed_input", "cpu", 0, "", "x", NULL, NULL, plant_input, NULL}, "input b"},
    {{"planted_not_in_place", "cpu", 0, "", "x", NULL, NULL, plant_in_place, NULL}, "in place"},
    {{"planted_company_dependence", "cpu", 0, "", "x", NULL, NULL, plant_company, NULL}, "alone"},
};

static void test_plants(void) {
  for (size_t i = 0; i < WR_ARRAY_LEN(plants); i++) {
    wr_case c;
    wr_trial t, ref;
    result out = {0};
    if (!strstr(plants[i].row.name, only)) continue;
    if (wr_case_parse("planted", "add rows=4 d=65 live=3 pad=8", &c) != WEIR_OK || wr_trial_open(&c, &t) != WEIR_OK ||
        wr_trial_as_double(&t, &ref) != WEIR_OK) {
      printf("FAIL %s: %s\n", plants[i].row.name, weir_last_error());
      count(false);
      wr_case_free(&c);
      continue;
    }
    about a = {&c, &plants[i].row};
    const wr_row *definition = &c.op->rows[c.op->n_rows - 1];
    quiet = true;
    last_fault[0] = 0;
    bool ok = reset(&ref, definition, 0, &a) && run_once(&ref, definition, 0, &a) && check_row(&t, &plants[i].row, &ref, &out);
    quiet = false;
    bool caught = plants[i].says ? !ok && strstr(last_fault, plants[i].says) : ok;
    if (!caught) printf("FAIL %s: the test program said: %s\n", plants[i].row.name, ok ? "all is well" : last_fault);
    count(caught);
    result_free(&out);
    wr_trial_close(&ref);
    wr_trial_close(&t);
    wr_case_free(&c);
  }
}

/* ---- lines that are no cases: refused, with a sentence that says what is wrong */

static void test_bad_lines(void) {
  static const struct {
    const char *line, *says;
  } bad[] = {{"nonsense rows=1", "no op is called nonsense"},
             {"add rows=1 d=2 width=3", "no key width"},
             {"add rows=1 rows=2", "rows stands twice"},
             {"add rows=x", "rows=x"},
             {"add rows", "not key=value"},
             {"add dtype=f31", "f31"},
             {"add rows=0", "extents"},
             {"add pad=99999", "pad"},
             {"kv_store nkv=4 dqk=32 page=16 cache=q8_0", "layout keys32"},
             {"attention_paged nq=4 nkv=4 dqk=32 page=64 cache=q4_0", "layout keys32"}};
  for (size_t i = 0; i < WR_ARRAY_LEN(bad); i++) {
    wr_case c;
    wr_program p;
    wr_program_init(&p);
    bool refuses = wr_case_parse("bad", bad[i].line, &c) != WEIR_OK || wr_case_build(&c, &p) != WEIR_OK;
    bool ok = refuses && strstr(weir_last_error(), bad[i].says);
    if (!ok) printf("FAIL '%s' is %s: %s\n", bad[i].line, refuses ? "refused" : "accepted", weir_last_error());
    count(ok);
    wr_program_free(&p);
    wr_case_free(&c);
  }
}

/* ---- programs */

static void for_all_cases(void (*fn)(wr_case *c)) {
  wr_case_walk walk = {0};
  wr_case c;
  weir_status s;
  while (wr_case_next(&walk, &c, &s)) {
    if (s != WEIR_OK) {
      printf("FAIL %s\n", weir_last_error());
      count(false);
    } else if (!c.perf)
      fn(&c);
    wr_case_free(&c);
  }
}

static void count_case(wr_case *c) {
  wr_trial t;
  if (wr_trial_open(c, &t) != WEIR_OK) return;
  for (int i = 0; i < c->op->n_rows; i++) taken[op_index(c->op)][i] += !refused(&t, &c->op->rows[i]);
  wr_trial_close(&t);
}

static const char *isa_missing(const wr_row *row) {
  return wr_isa_missing(row->isa, cpus[0]->isa);
}

/* A row that no case takes is a row that nobody tests. */
static void test_coverage(void) {
  for (int o = 0; o < wr_ops_n; o++)
    for (int i = 0; i < wr_ops[o]->n_rows; i++) {
      const wr_row *row = &wr_ops[o]->rows[i];
      if (taken[o][i]) continue;
      if (isa_missing(row)) {
        printf("SKIP kernels.%s: needs %s\n", row->name, isa_missing(row));
        skipped++;
      } else if (strcmp(row->klass, "onednn") == 0 && wr_onednn_missing()) {
        printf("SKIP kernels.%s: %s\n", row->name, wr_onednn_missing());
        skipped++;
      } else if (too_large) {
        printf("SKIP kernels.%s: no case of at most %g operations is taken by it\n", row->name, flop_limit);
        skipped++;
      } else {
        printf("FAIL %s: no line of a .cases file is taken by it\n", row->name);
        count(false);
      }
    }
}

static int list(void) {
  for_all_cases(count_case);
  for (int o = 0; o < wr_ops_n; o++)
    for (int i = 0; i < wr_ops[o]->n_rows; i++) {
      const wr_row *row = &wr_ops[o]->rows[i];
      printf("%-14s %-36s class %-10s %3d cases%s\n", wr_ops[o]->name, row->name, row->klass, taken[o][i],
             isa_missing(row) ? " (not on this machine)" : "");
    }
  return 0;
}

typedef struct perf_print {
  bool json, some;
  const weir_machine *machine;
  int threads;
} perf_print;

/* The time that the machine needs at least: bytes at the bandwidth of that working set, operations at the peak. 0: not known.
 * */
static double bound_us(const perf_print *k, const wr_bench_op *r) {
  double gb_s = weir_machine_gb_s(k->machine, (uint64_t)r->working_set_bytes, k->threads),
         gop_s = weir_machine_gop_s(k->machine, r->factors, k->threads);
  return fmax(gb_s > 0 ? r->bytes / gb_s * 1e-3 : 0, gop_s > 0 ? r->flop / gop_s * 1e-3 : 0);
}

static void print_timing(void *user, const wr_bench_op *r) {
  perf_print *k = user;
  double gb_s = r->bytes / r->us * 1e-3, gflop_s = r->flop / r->us * 1e-3, share = bound_us(k, r) / r->us;
  if (k->json)
    printf("%s{\"name\": \"%s\", \"shape\": \"%s\", \"us\": %.3f, \"bytes\": %.0f, \"flop\": %.0f, \"gb_s\": %.3f, "
           "\"gflop_s\": %.3f, \"share\": %.4f}",
           k->some ? ",\n " : "[", r->name, r->shape, r->us, r->bytes, r->flop, gb_s, gflop_s, share);
  else
    printf("%-34s %10.2f us %8.2f GB/s %8.2f GFLOP/s %4.0f%%  %s\n", r->name, r->us, gb_s, gflop_s, 100 * share, r->shape);
  k->some = true;
}

static int perf(const char *pattern, int threads, int reps, bool json) {
  wr_device *d;
  wr_device_options options = {.threads = threads};
  wr_bench_ops_options bench = {.only = pattern, .reps = reps};
  weir_machine machine;
  perf_print k = {.json = json, .machine = &machine};
  if (weir_machine_measure(&(weir_machine_options){.quick = true}, &machine) != WEIR_OK ||
      wr_device_cpu.open(&options, &d) != WEIR_OK) {
    fprintf(stderr, "kernels: %s\n", weir_last_error());
    return 1;
  }
  k.threads = d->n_threads;
  if (wr_bench_ops(d, &bench, print_timing, &k) != WEIR_OK) {
    fprintf(stderr, "kernels: %s\n", weir_last_error());
    d->api->close(d);
    return 1;
  }
  if (json) printf(k.some ? "]\n" : "[]\n");
  d->api->close(d);
  return 0;
}

int main(int argc, char **argv) {
  const wr_device_api *api = &wr_device_emu;
  bool is_perf = false, is_list = false, json = false;
  int threads = 0, reps = 0, index = 0;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--perf") == 0)
      is_perf = true;
    else if (strcmp(argv[i], "--list") == 0)
      is_list = true;
    else if (strcmp(argv[i], "--json") == 0)
      json = true;
    else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
      threads = atoi(argv[++i]);
    else if (strcmp(argv[i], "--reps") == 0 && i + 1 < argc)
      reps = atoi(argv[++i]);
    else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
      only = argv[++i];
    else if (strcmp(argv[i], "--but") == 0 && i + 1 < argc)
      but = argv[++i];
    else if (strcmp(argv[i], "--flop") == 0 && i + 1 < argc)
      flop_limit = atof(argv[++i]);
    else if (strcmp(argv[i], "--bits") == 0)
      print_bits = true;
    else if (strcmp(argv[i], "--device") == 0 && i + 1 < argc && wr_device_find(argv[i + 1], &index))
      api = wr_device_find(argv[++i], &index);
    else if (argv[i][0] != '-')
      only = argv[i];
    else {
      fprintf(stderr, "kernels: unknown option %s\n", argv[i]);
      return 2;
    }
  }
  if (is_perf) return perf(only, threads, reps, json);
  setvbuf(stdout, NULL, _IOLBF, 0);
  for (int i = 0; i < TEAMS; i++)
    if (wr_device_cpu.open(&(wr_device_options){.threads = i + 1}, &cpus[i]) != WEIR_OK ||
        api->open(&(wr_device_options){.threads = 1, .order = i, .index = index}, &others[i]) != WEIR_OK) {
      fprintf(stderr, "kernels: %s\n", weir_last_error());
      return 1;
    }
  if (is_list) return list();
  for (int o = 0; o < wr_ops_n; o++)
    if (wr_ops[o]->n_rows > MAX_ROWS) {
      fprintf(stderr, "kernels: %s has %d rows, MAX_ROWS is %d\n", wr_ops[o]->name, wr_ops[o]->n_rows, MAX_ROWS);
      return 1;
    }
  for_all_cases(test_case);
  test_plants();
  if (!*only) test_bad_lines();
  if (!*only) test_coverage();
  if (too_large) {
    printf("SKIP kernels.large: %d cases of more than %g operations\n", too_large, flop_limit);
    skipped++;
  }
  for (int i = 0; i < TEAMS; i++) {
    cpus[i]->api->close(cpus[i]);
    api->close(others[i]);
  }
  printf("kernels: %d passed, %d failed, %d skipped\n", passed, failed, skipped);
  return failed ? 1 : 0;
}
