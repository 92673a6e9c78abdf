#!/usr/bin/env bash
# What a new op costs: in a copy of the sources this adds `toy` (y = factor x, with a gradient, a definition, a kernel for each
# instruction set, and cases), which must touch its own folder and one line of core/ops.def, and then has to be found,
# chosen, checked and differentiated by the kernel test, which knows nothing of it.
set -u
cd "$(dirname "$0")/.." || exit 1
[ "${WEIR_VARIANT:-asan}" = asan ] || { echo "SKIP toy_op: it builds a copy of its own, a minute's work, once in make test"; echo "toy_op: 0 passed, 0 failed, 1 skipped"; exit 0; }

tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT
passed=0 failed=0
ok() { passed=$((passed + 1)); }
no() { failed=$((failed + 1)); echo "FAIL toy_op: $*"; }

mkdir -p "$tmp/w/tests" "$tmp/w/src"
cp -r Makefile include tools "$tmp/w"
for folder in base device memory core ops; do cp -r "src/$folder" "$tmp/w/src"; done # what the kernel test stands on
cp tests/test.h tests/kernels.c "$tmp/w/tests"
cp -r "$tmp/w/src" "$tmp/before"
cd "$tmp/w" || exit 1

mkdir src/ops/toy
cat >src/ops/toy/toy.c <<'C'
/* toy: y = factor x. Shape, gradient and cost rules, the test case. */
#include "ops/cases.h"
#include "ops/rule_i.h"
#include "ops/toy/toy_i.h"

#define WR_ROWS_FILE "ops/toy/toy.def"
#include "ops/rows_i.h"

static weir_status toy_shape(const void *params, wr_vtype *t) {
  (void)params;
  WR_TRY(wr_rule_float("x", &t[TOY_X]));
  t[TOY_Y] = t[TOY_X];
  return WEIR_OK;
}

static weir_status toy_grad(wr_grad *g, const wr_instr *i) {
  int dy = wr_grad_of(g, i->args[TOY_Y]);
  if (dy < 0 || !wr_grad_wanted(g, i->args[TOY_X])) return WEIR_OK;
  int args[WR_MAX_ARGS] = {dy, WR_NEW};
  WR_TRY(wr_emit(wr_grad_program(g), &wr_op_toy, i->params, args));
  wr_grad_add(g, i->args[TOY_X], args[TOY_Y]);
  return WEIR_OK;
}

static void toy_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_toy, c, out);
  out->flop = wr_cost_elems(c, TOY_X);
}

static weir_status toy_case(wr_case *c, wr_program *p) {
  wr_toy_params params = {(float)wr_case_float(c, "factor", 2)};
  wr_vtype t = wr_rule_type(wr_case_dtype(c, "dtype", WR_F32), WR_LIVE_ROWS, wr_case_int(c, "rows", 3), wr_case_int(c, "d", 64), 0, 0);
  int args[WR_MAX_ARGS] = {wr_case_input(c, p, WR_INPUT, "x", t, wr_fill_normal(0, 1)), WR_NEW};
  return wr_emit(p, &wr_op_toy, &params, args);
}

const wr_op wr_op_toy = {
  .name = "toy",
  .doc = "y = factor x",
  .args = {{"x", WR_IN, WR_ARG_FLOAT, 0}, {"y", WR_OUT, WR_ARG_FLOAT, 1 + TOY_X}},
  .params_bytes = sizeof(wr_toy_params),
  .shape = toy_shape,
  .grad = toy_grad,
  .cost = toy_cost,
  .rows = toy_rows,
  .n_rows = WR_ARRAY_LEN(toy_rows),
  .make_case = toy_case,
};
C
cat >src/ops/toy/toy_i.h <<'C'
/* toy: its parameters and the places of its arguments. */
#ifndef WR_OPS_TOY_I_H
#define WR_OPS_TOY_I_H

#include "core/core.h"

typedef struct wr_toy_params { float factor; } wr_toy_params;
enum { TOY_X, TOY_Y };

#endif
C
cat >src/ops/toy/toy_ref.c <<'C'
/* The definition of toy. */
#include "ops/ref_i.h"
#include "ops/toy/toy_i.h"

WR_ROW_FN(toy_ref);
WR_ROW_FN(toy_ref) {
  const wr_toy_params *p = c->params;
  int64_t begin, end, D = wr_inner(&c->args[TOY_X]);
  while (wr_take(w, 0, wr_live_rows(c, TOY_X), 1, &begin, &end))
    for (int64_t r = begin; r < end; r++)
      for (int64_t d = 0; d < D; d++) wr_ref_put(c, TOY_Y, r, d, (double)p->factor * wr_get(&c->args[TOY_X], r, d));
}
C
cat >src/ops/toy/toy_cpu.c <<'C'
/* toy on the CPU, FP32. */
#include "ops/arg_i.h"
#include "ops/simd_i.h"
#include "ops/toy/toy_i.h"

WR_ROW_FN(WR_KERNEL(toy_f32_cpu));
WR_ROW_FN(WR_KERNEL(toy_f32_cpu)) {
  v16 factor = v16_set1(((const wr_toy_params *)c->params)->factor);
  int64_t begin, end, D = wr_inner(&c->args[TOY_X]);
  while (wr_take(w, 0, wr_live_rows(c, TOY_X), 1, &begin, &end))
    for (int64_t r = begin; r < end; r++)
      for (int64_t d = 0; d < D; d += WR_LANES) {
        int n = D - d < WR_LANES ? (int)(D - d) : WR_LANES;
        v16_store_n(wr_arg_f32(&c->args[TOY_Y], r) + d, v16_mul(v16_load_n(wr_arg_f32(&c->args[TOY_X], r) + d, n), factor), n);
      }
}
C
cat >src/ops/toy/toy.def <<'C'
ROWS(toy,
  ROW_ISAS(toy_f32_cpu, "", "f32", NULL, NULL)
  ROW(cpu, GENERIC, toy_ref, "x:f32|f64|f16|bf16 y:f32|f64|f16|bf16", "ref", NULL, NULL))
C
cat >src/ops/toy/toy.cases <<'C'
toy rows=1 d=1
toy rows=3 d=65 live=2 factor=-0.5
toy rows=5 d=33 pad=12
toy rows=4 d=40 dtype=f16
C
echo 'OP(toy)' >>src/core/ops.def

changed=$(diff -rq "$tmp/before" src | sort)
expected=$(printf '%s\n' "Files $tmp/before/core/ops.def and src/core/ops.def differ" "Only in src/ops: toy")
[ "$changed" = "$expected" ] && ok || no "it touched more than its folder and ops.def: $changed"
[ "$(diff "$tmp/before/core/ops.def" src/core/ops.def | grep -c '^[<>]')" = 1 ] && ok || no "it took more than one line of ops.def"
tools/check-includes >"$tmp/log" 2>&1 && ok || no "an include arrow points the wrong way: $(cat "$tmp/log")"

run_kernels() { env -u MAKEFLAGS -u MAKELEVEL make --no-print-directory VARIANT=debug build/debug/tests/kernels >"$tmp/log" 2>&1 && build/debug/tests/kernels toy >"$tmp/log" 2>&1; }
if run_kernels; then
  ok
  # one trial at least for each kernel and each case
  grep -Eq '^[a-z-]+: [1-9][0-9]* passed, 0 failed' "$tmp/log" && ok || no "the kernel test did not find it: $(tail -n 3 "$tmp/log")"
else
  no "it does not build, or the kernel test refuses it: $(tail -n 30 "$tmp/log")"
fi

# the same test must notice a kernel that is wrong
sed -i 's/v16_mul(v16_load_n/v16_add(v16_load_n/' src/ops/toy/toy_cpu.c
if run_kernels; then no "a kernel with a wrong sum passes the kernel test"; else grep -q 'toy_f32_cpu' "$tmp/log" && ok || no "the wrong kernel is not named"; fi

echo "toy_op: $passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
