/* Every kernel row over the cases marked perf=1: best of a few repeats, each long enough to be told from the clock. See
 * cases.h. */
#include "ops/cases.h"

#define SLOW_FLOP 1e9

static double seconds_of(uint64_t ns) { return (double)ns * 1e-9; }

weir_status wr_trial_time(wr_trial *t, const wr_row *row, wr_device *d, double least, int reps, double *best) {
  uint64_t ns;
  int n = 1;
  WR_TRY(wr_trial_reset(t, row, d->n_threads));
  for (;;) {
    WR_TRY(wr_trial_run(t, row, d, n, &ns));
    if (seconds_of(ns) >= least / 4 || n >= 4096) break;
    n *= 4;
  }
  n = (int)WR_MIN(4096.0, WR_MAX(1.0, (double)n * least / WR_MAX(seconds_of(ns), 1e-9)));
  *best = 0;
  for (int i = 0; i < reps; i++) {
    WR_TRY(wr_trial_run(t, row, d, n, &ns));
    double s = seconds_of(ns) / n;
    if (!i || s < *best) *best = s;
  }
  return WEIR_OK;
}

bool wr_row_slow(const wr_row *row, const wr_device *d) {
  return (row->isa & WR_ISA_LEVEL_MASK) < WR_MIN(d->isa & WR_ISA_LEVEL_MASK, (uint32_t)WR_ISA_AVX2);
}

static double working_set(const wr_trial *t) {
  double bytes = 0;
  for (int i = 0; i < WR_MAX_ARGS; i++) bytes += (double)t->args[i].bytes;
  return bytes;
}

const char *wr_row_factors(const wr_row *row) { return strncmp(row->klass, "q8", 2) == 0 ? "int8" : "fp32"; }

static weir_status bench_case(wr_case *c, wr_device *d, const wr_bench_ops_options *o,
                              void (*each)(void *user, const wr_bench_op *r), void *user) {
  wr_trial t = {0};
  weir_status s = WEIR_OK;
  bool open = false;
  for (int i = 0; i < c->op->n_rows && s == WEIR_OK; i++) {
    const wr_row *row = &c->op->rows[i];
    char text[512], why[160];
    snprintf(text, sizeof text, "%s | %s", row->name, c->text);
    if (o->only && !strstr(text, o->only)) continue;
    if (!open) {
      WR_TRY(wr_trial_open(c, &t));
      open = true;
    }
    if (wr_row_refuses(c->op, row, &t.call, d, why, sizeof why)) continue;
    if (t.cost.flop > SLOW_FLOP && wr_row_slow(row, d)) continue; /* minutes a call */
    double best = 0;
    s = wr_trial_time(&t, row, d, o->seconds > 0 ? o->seconds : 0.05, o->reps > 0 ? o->reps : 5, &best);
    const char *shape = c->text + strcspn(c->text, " ");
    wr_bench_op r = {.name = row->name,
                     .shape = shape + strspn(shape, " "),
                     .us = best * 1e6,
                     .bytes = t.cost.read_bytes + t.cost.write_bytes,
                     .flop = t.cost.flop,
                     .factors = wr_row_factors(row),
                     .working_set_bytes = working_set(&t)};
    if (s == WEIR_OK) each(user, &r);
  }
  if (open) wr_trial_close(&t);
  return s;
}

weir_status wr_bench_ops(wr_device *d, const wr_bench_ops_options *options, void (*each)(void *user, const wr_bench_op *r),
                         void *user) {
  static const wr_bench_ops_options defaults = {0};
  const wr_bench_ops_options *o = options ? options : &defaults;
  wr_case_walk walk = {0};
  wr_case c;
  weir_status s = WEIR_OK;
  while (s == WEIR_OK && wr_case_next(&walk, &c, &s)) {
    if (s == WEIR_OK && c.perf) s = bench_case(&c, d, o, each, user);
    wr_case_free(&c);
  }
  return s;
}
