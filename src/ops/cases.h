/* cases: one line of a .cases file made into a call of an op, for the tests, the timings and `weir bench ops`.
 *
 * A line is   OP key=value ...   ; '#' begins a comment. An op's make_case asks for its keys with defaults, makes the inputs
 * with a rule that says how to fill them, and calls the builder; the op under test is the last instruction of the program. A
 * key that nobody asks for is an error. Keys that every op has:
 *   live=N live_out=N live_seqs=N  registers; all rows when absent. Input rows past them are filled with NaN, output rows
 *     must stay untouched
 *   pad=N      bytes between the rows of plain arguments of rank 2 and more
 *   perf=1     too large for the tests: timed only
 *   grad=0     no comparison with finite differences (reason in a comment beside it)
 *   alone=0    rows depend on each other (a mean over rows): a row alone is not compared with itself in company
 *   tol=X      factor on the tolerance of the dtype table (reason in a comment)
 *   seed=N     of the inputs
 *   step=N lr=X grad_scale=X found_inf=N  registers
 */
#ifndef WR_OPS_CASES_H
#define WR_OPS_CASES_H

#include "core/core.h"

/* tools/embed puts every src/ops/<family>/<family>.cases into the library. */
typedef struct wr_case_file {
  const char *family, *text;
} wr_case_file;
extern const wr_case_file wr_case_files[];
extern const int wr_case_files_n;

/* ---- filling inputs */
typedef enum wr_fill_kind { WR_FILL_NORMAL, WR_FILL_UNIFORM, WR_FILL_INTS, WR_FILL_CUSTOM } wr_fill_kind;
/* Writes a plain host argument. Rows past the live ones are overwritten afterwards. */
typedef void (*wr_fill_fn)(wr_case *c, const wr_arg *a, wr_rng *rng);
typedef struct wr_fill {
  wr_fill_kind kind;
  double a, b;
  wr_fill_fn fn;
} wr_fill;
static inline wr_fill wr_fill_normal(double mean, double sd) { return (wr_fill){WR_FILL_NORMAL, mean, sd, NULL}; }
static inline wr_fill wr_fill_uniform(double low, double high) { return (wr_fill){WR_FILL_UNIFORM, low, high, NULL}; }
static inline wr_fill wr_fill_ints(int64_t low, int64_t high) {
  return (wr_fill){WR_FILL_INTS, (double)low, (double)high, NULL};
} /* both included */
static inline wr_fill wr_fill_custom(wr_fill_fn fn) { return (wr_fill){WR_FILL_CUSTOM, 0, 0, fn}; }

/* ---- a case */
enum { WR_CASE_KEYS = 32 };
struct wr_case {
  const char *file; /* "norm.cases:12" */
  const char *text; /* the line, without its comment */
  const wr_op *op;
  bool as_double; /* build with F64 in place of every float and quantised type, layout plain: for finite differences */
  bool perf, grad, alone;
  double tol;
  int64_t pad, seed;
  wr_regs regs;
  struct {
    const char *key, *value;
    bool asked;
  } keys[WR_CASE_KEYS];
  int n_keys;
  struct {
    int value;
    wr_fill fill;
  } inputs[WR_MAX_ARGS * 2];
  int n_inputs;
  weir_status status; /* sticky: the first malformed value */
  wr_arena arena;
};

/* For make_case: typed look-ups. A malformed or out-of-range value makes the case fail. */
int64_t wr_case_int(wr_case *c, const char *key, int64_t otherwise);
double wr_case_float(wr_case *c, const char *key, double otherwise);
const char *wr_case_str(wr_case *c, const char *key, const char *otherwise);
int wr_case_dtype(wr_case *c, const char *key, wr_dtype otherwise);   /* F64 for floats and quantised types under as_double */
int wr_case_layout(wr_case *c, const char *key, wr_layout otherwise); /* plain under as_double */
/* A value that the case fills. kind INPUT, PARAM or STATE. */
int wr_case_input(wr_case *c, wr_program *p, wr_kind kind, const char *name, wr_vtype t, wr_fill fill);

/* Take a line apart. WEIR_EUSAGE names file, line and key. Free with wr_case_free also after a failure. */
weir_status wr_case_parse(const char *file, const char *line, wr_case *out);
weir_status wr_case_build(wr_case *c, wr_program *p); /* make_case, then: all keys asked for? the op is the last instruction? */
void wr_case_free(wr_case *c);
/* Write the values of input `value` into host memory laid out as `a`: the same bits for the same seed, whatever the dtype's
 * rounding does. */
weir_status wr_case_fill(wr_case *c, const wr_program *p, int value, const wr_arg *a);

/* Walk over all cases in the library: *next is 0 at the start. false: no more. A line that does not parse gives its status. */
typedef struct wr_case_walk {
  int file, line;
  const char *at;
  char where[64];
} wr_case_walk;
bool wr_case_next(wr_case_walk *walk, wr_case *out, weir_status *status);

/* ---- a trial: a case in host memory, ready to be run by any row: trial.c */
enum { WR_TRIAL_GUARD = 256 }; /* bytes of guard on each side of every argument */
typedef struct wr_trial_arg {
  uint8_t *base;          /* guard, rows with the padding between them, guard */
  uint8_t *pristine;      /* what an input or an updated argument holds before each run; NULL for outputs */
  size_t bytes;           /* between the guards */
  size_t row_bytes, rows; /* of the memory's rows (groups of sixteen in pack16) */
} wr_trial_arg;
typedef struct wr_trial {
  wr_case *kase;
  wr_program program;
  const wr_op *op;
  wr_call call;
  wr_trial_arg args[WR_MAX_ARGS];
  void *scratch; /* with its guards; the call may be changed between resets, these two not */
  size_t scratch_total;
  wr_cost cost;
} wr_trial;

weir_status wr_trial_open(wr_case *c, wr_trial *out); /* the case outlives the trial */
void wr_trial_close(wr_trial *t);
/* Before a run: guards and padding as at first, inputs as at first, outputs all bits one (NaN), scratch booked for the row
 * and NaN. */
weir_status wr_trial_reset(wr_trial *t, const wr_row *row, int n_threads);
/* Run it n times in one walk of the device's list. ns may be NULL: else the time of the whole. */
weir_status wr_trial_run(wr_trial *t, const wr_row *row, wr_device *d, int n, uint64_t *ns);
/* Are guards, padding and inputs as they were? false: `why` says which argument and byte. */
bool wr_trial_intact(const wr_trial *t, char *why, size_t cap);
/* Best time of one call in seconds. A first run decides how many calls a repeat has, so that it takes `least` seconds: bench.c. */
weir_status wr_trial_time(wr_trial *t, const wr_row *row, wr_device *d, double least, int reps, double *best);
/* References, and portable code on a processor that can do better. */
bool wr_row_slow(const wr_row *row, const wr_device *d);
/* What its products are of, as the machine's peaks call it: "int8" in the classes that quantise rows to bytes, else "fp32". */
const char *wr_row_factors(const wr_row *row);
/* The same case with every plain float argument as F64, holding the same numbers. */
weir_status wr_trial_as_double(const wr_trial *t, wr_trial *out);

/* ---- every row over the perf cases: bench.c, for `weir bench ops` and `tests/kernels --perf` */
typedef struct wr_bench_ops_options {
  const char *only; /* part of "row | case line"; NULL: all */
  int reps;         /* 0: 5; the best counts */
  double seconds;   /* 0: 0.05; least time of one repeat */
} wr_bench_ops_options;
typedef struct wr_bench_op {
  const char *name, *shape; /* row, and the case's keys */
  double us, bytes, flop;   /* of one call */
  const char *factors;      /* wr_row_factors of the row */
  double working_set_bytes; /* all arguments together: says which level of cache to hold it against */
} wr_bench_op;
weir_status wr_bench_ops(wr_device *d, const wr_bench_ops_options *o, void (*each)(void *user, const wr_bench_op *r),
                         void *user);

/* ---- tune.c: the rows of one class that do not refuse, by turns, over the kinds of calls that models make (wr_tune_kind) */
typedef struct wr_tuned {
  const char *kind;
  const wr_row *first, *best; /* of the table's order, and what goes before it; the same: the table is right, or nothing is gained */
  double first_s, best_s;     /* of one call */
  double done;                /* share of the work, 0 … 1 */
} wr_tuned;
/* Adds to `text` (begun by wr_tune_head) a line for each kind where another row than the table's is faster by more than the noise. each:
 * false ends it with ESTOPPED. A kind of which only one row is left is not told. */
weir_status wr_tune_ops(wr_device *d, bool (*each)(void *user, const wr_tuned *r), void *user, wr_str *text);

#endif
