/* oneDNN's single-precision product as rows of matmul, matmul_dx and matmul_dw over plain FP32: what the own rows are held against
 * (`weir bench ops --only matmul`), and what WEIR_USE can force. They stand behind the own rows, which are as fast and need no copies of
 * packed weights: doc/notes/0004-training-products.md.
 *
 * The library is opened when a plan first asks (libdnnl.so.2 or .3); without it the rows refuse with a sentence. Each thread of the team takes units of its own
 * and tells OpenMP that it is alone. Units are the same for any number of threads, so results are, too. oneDNN may allocate memory.
 *
 * Row-major sgemm: C[M, N] = alpha op(A) op(B) + beta C, Intel 2018, oneDNN Developer Guide, "BLAS functions". */
#include <dlfcn.h>
#include <pthread.h>

#include "core/core.h"
#include "ops/arg_i.h"
#include "ops/matmul/matmul.h"
#include "ops/matmul/matmul_i.h"

WR_ROW_FN(matmul_f32_onednn);
WR_ROW_FN(matmul_dx_f32_onednn);
WR_ROW_FN(matmul_dw_f32_onednn);

enum { UNIT = 384 }; /* rows and columns of a unit: large enough for the library's own parts */

typedef int sgemm_fn(char a_form, char b_form, int64_t M, int64_t N, int64_t K, float alpha, const float *a, int64_t a_row,
                     const float *b, int64_t b_row, float beta, float *c, int64_t c_row);
static sgemm_fn *sgemm;
static void (*set_threads)(int n);
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void) {
  static const char *const names[] = {"libdnnl.so.3", "libdnnl.so.2"};
  void *library = NULL;
  for (size_t i = 0; i < WR_ARRAY_LEN(names) && !library; i++) library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
  if (!library) return;
  void *product = dlsym(library, "dnnl_sgemm"), *threads = dlsym(library, "omp_set_num_threads");
  memcpy(&set_threads, &threads, sizeof threads);
  memcpy(&sgemm, &product, sizeof product);
}

const char *wr_onednn_missing(void) {
  pthread_once(&once, load);
  return sgemm ? NULL : "needs oneDNN (libdnnl.so.2 or .3, in Debian libdnnl2), which is not installed";
}

static int64_t step_of(const wr_arg *a) { return a->stride_bytes / (int64_t)sizeof(float); }

/* The result [rows, columns] in units. */
typedef struct units {
  int64_t rows, columns, across;
} units;
static units units_of(int64_t rows, int64_t columns) { return (units){rows, columns, (columns + UNIT - 1) / UNIT}; }
static int64_t count(const units *u) { return (u->rows + UNIT - 1) / UNIT * u->across; }
typedef struct unit {
  int64_t row, rows, column, columns;
} unit;
static unit unit_of(const units *u, int64_t i) {
  const int64_t r = i / u->across * UNIT, c = i % u->across * UNIT;
  return (unit){r, WR_MIN(u->rows - r, (int64_t)UNIT), c, WR_MIN(u->columns - c, (int64_t)UNIT)};
}

WR_ROW_FN(matmul_f32_onednn) {
  const wr_arg *x = &c->args[WR_MM_X], *wt = &c->args[WR_MM_W], *y = &c->args[WR_MM_Y];
  const wr_arg *bias = &c->args[WR_MM_BIAS], *res = &c->args[WR_MM_RES];
  const units all = units_of(wr_live_rows(c, WR_MM_X), wt->ext[0]);
  int64_t begin, end;
  if (set_threads) set_threads(1);
  while (wr_take(w, 0, count(&all), 1, &begin, &end))
    for (int64_t i = begin; i < end; i++) {
      const unit u = unit_of(&all, i);
      for (int64_t r = u.row; r < u.row + u.rows; r++)
        for (int64_t k = u.column; k < u.column + u.columns; k++)
          wr_arg_f32(y, r)[k] = (res->data ? wr_arg_f32(res, r)[k] : 0) + (bias->data ? ((const float *)bias->data)[k] : 0);
      sgemm('N', 'T', u.rows, u.columns, wr_inner(x), 1, wr_arg_f32(x, u.row), step_of(x), wr_arg_f32(wt, u.column),
            step_of(wt), 1, wr_arg_f32(y, u.row) + u.column, step_of(y));
    }
}

WR_ROW_FN(matmul_dx_f32_onednn) {
  const wr_arg *dy = &c->args[WR_MM_DX_DY], *wt = &c->args[WR_MM_DX_W], *dx = &c->args[WR_MM_DX_DX];
  const units all = units_of(wr_live_rows(c, WR_MM_DX_DY), wr_inner(dx));
  const float beta = c->acc >> WR_MM_DX_DX & 1 ? 1.0f : 0.0f;
  int64_t begin, end;
  if (set_threads) set_threads(1);
  while (wr_take(w, 0, count(&all), 1, &begin, &end))
    for (int64_t i = begin; i < end; i++) {
      const unit u = unit_of(&all, i);
      sgemm('N', 'N', u.rows, u.columns, wt->ext[0], 1, wr_arg_f32(dy, u.row), step_of(dy), (const float *)wt->data + u.column,
            step_of(wt), beta, wr_arg_f32(dx, u.row) + u.column, step_of(dx));
    }
}

WR_ROW_FN(matmul_dw_f32_onednn) {
  const wr_arg *dy = &c->args[WR_MM_DW_DY], *x = &c->args[WR_MM_DW_X];
  const wr_arg *dw = &c->args[WR_MM_DW_DW], *dbias = &c->args[WR_MM_DW_DBIAS];
  const int64_t M = wr_live_rows(c, WR_MM_DW_X);
  const units all = units_of(wr_inner(dy), wr_inner(x));
  const float beta = c->acc >> WR_MM_DW_DW & 1 ? 1.0f : 0.0f;
  int64_t begin, end;
  if (set_threads) set_threads(1);
  while (wr_take(w, 0, count(&all), 1, &begin, &end))
    for (int64_t i = begin; i < end; i++) {
      const unit u = unit_of(&all, i);
      sgemm('T', 'N', u.rows, u.columns, M, 1, (const float *)dy->data + u.row, step_of(dy), (const float *)x->data + u.column,
            step_of(x), beta, wr_arg_f32(dw, u.row) + u.column, step_of(dw));
      for (int64_t n = u.row; dbias->data && u.column == 0 && n < u.row + u.rows; n++) {
        float sum = 0, *to = wr_arg_f32(dbias, n);
        for (int64_t m = 0; m < M; m++) sum += wr_arg_f32(dy, m)[n];
        *to = c->acc >> WR_MM_DW_DBIAS & 1 ? *to + sum : sum;
      }
    }
}
