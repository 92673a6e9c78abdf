/* Matmul and its gradients: shape, gradient and cost rules, fusion, builders, test cases. Equations: matmul.h. */
#include "ops/matmul/matmul.h"

#include "ops/cases.h"
#include "ops/matmul/matmul_i.h"
#include "ops/rule_i.h"

/* ------------------------------------------------------------------------------------------------------------- kernel rows */

/* Rows of quantised x in few's room on the stack. */
static const char *few_refuses(const wr_call *c) {
  const wr_arg *x = &c->args[WR_MM_X];
  if (x->ext[0] > WR_MM_FEW_ROWS) return "is for up to four rows";
  if (wr_inner(x) > WR_MM_FEW_K) return "quantises rows of up to 11,904 elements only";
  return NULL;
}

static const char *fused_refuses(const wr_call *c) {
  return c->args[WR_MM_NORM].rank || c->args[WR_MM_UP].rank ? "takes neither a fused norm nor a fused gate" : NULL;
}

/* Quantised x, and for each thread a row of x as its norm leaves it. */
static size_t many_scratch(const wr_call *c, int n_threads) {
  const wr_arg *x = &c->args[WR_MM_X];
  const size_t normal = c->args[WR_MM_NORM].rank ? (size_t)n_threads * wr_mm_normal_bytes(wr_inner(x)) : 0;
  return wr_mm_xq_area(x->ext[0], wr_inner(x)) + normal;
}

/* Quantised x. */
static size_t dev_scratch(const wr_call *c, int n_threads) {
  (void)n_threads;
  return wr_mm_xq_area(c->args[WR_MM_X].ext[0], wr_inner(&c->args[WR_MM_X]));
}

/* Fewer rows are not worth unpacking weights for. */
static const char *unpack_refuses(const wr_call *c) {
  return c->args[WR_MM_X].ext[0] < WR_MM_UNPACK_LEAST ? "is for 32 rows and more" : NULL;
}

static size_t unpack_scratch(const wr_call *c, int n_threads) {
  const int64_t K = wr_inner(&c->args[WR_MM_X]);
  return wr_mm_xq_area(c->args[WR_MM_X].ext[0] + WR_MM_UNPACK_ROWS - 1, K) + (size_t)n_threads * wr_mm_unpack_bytes(K);
}

static size_t codec_scratch(const wr_call *c, int n_threads) {
  return (size_t)n_threads * wr_mm_codec_bytes(wr_inner(&c->args[WR_MM_X]));
}

/* Few rows are no large product. The sums are the same. */
static const char *gemm_refuses(const wr_call *c) {
  if (c->args[WR_MM_X].ext[0] < WR_MM_GEMM_LEAST) return "is for 16 rows and more";
  return fused_refuses(c);
}

/* Fewer rows are not worth widening weights for. */
static const char *gemm_wide_refuses(const wr_call *c) {
  if (c->args[WR_MM_X].ext[0] < WR_MM_UNPACK_LEAST) return "is for 32 rows and more";
  return fused_refuses(c);
}

/* A row alone would take another way through the library. */
static const char *onednn_takes(const wr_arg *rows) {
  return rows->ext[0] < WR_MM_GEMM_LEAST ? "is for 16 rows and more" : wr_onednn_missing();
}
static const char *onednn_refuses(const wr_call *c) {
  const char *no = fused_refuses(c);
  return no ? no : onednn_takes(&c->args[WR_MM_X]);
}
static const char *onednn_dx_refuses(const wr_call *c) { return onednn_takes(&c->args[WR_MM_DX_DY]); }
static const char *onednn_dw_refuses(const wr_call *c) { return onednn_takes(&c->args[WR_MM_DW_DY]); }

static size_t gemm_scratch(const wr_call *c, int n_threads) {
  const bool parts = wr_inner(&c->args[WR_MM_X]) > WR_MM_GEMM_SUM;
  return parts ? (size_t)n_threads * WR_MM_GEMM_SUMS * sizeof(float) : 0;
}

static size_t gemm_wide_scratch(const wr_call *c, int n_threads) {
  (void)c;
  return (size_t)n_threads * (WR_MM_GEMM_SUMS + WR_MM_GEMM_WIDE) * sizeof(float);
}

static size_t gemm_grad_scratch(const wr_call *c, int n_threads) {
  (void)c;
  return (size_t)n_threads * WR_MM_GEMM_PANELS * sizeof(float);
}

#define WR_ROWS_FILE "ops/matmul/matmul.def"
#include "ops/rows_i.h"

/* ------------------------------------------------------------------------------------------------------------------- rules */

static bool same_type(const wr_vtype *a, const wr_vtype *b) {
  return a->dtype == b->dtype && a->layout == b->layout && a->rank == b->rank && a->live == b->live &&
         memcmp(a->ext, b->ext, sizeof a->ext) == 0;
}

static weir_status weights_rule(const char *arg, const wr_vtype *w) {
  WR_TRY(wr_rule_rank(arg, w, 2));
  if (wr_dtypes[w->dtype].kind == WR_INT || !wr_layout_ok((wr_layout)w->layout, (wr_dtype)w->dtype, wr_rule_inner(w)))
    return wr_fail(WEIR_EUSAGE, "%s is %s in layout %s with rows of %lld elements, which is no matrix of weights", arg,
                   wr_dtypes[w->dtype].name, wr_layout_name((wr_layout)w->layout), (long long)wr_rule_inner(w));
  return WEIR_OK;
}

static weir_status inner_rule(const char *arg, const wr_vtype *t, int64_t want, const char *of) {
  WR_TRY(wr_rule_float(arg, t));
  if (t->rank >= 2 && wr_rule_inner(t) == want) return WEIR_OK;
  return wr_fail(WEIR_EUSAGE, "%s has rows of %lld elements, but %s has %lld", arg, (long long)wr_rule_inner(t), of,
                 (long long)want);
}

/* Rows of `inner` elements, split into heads. */
static weir_status heads_rule(const char *arg, const void *params, const wr_vtype *rows, int64_t inner, wr_vtype *out) {
  const int64_t heads = ((const wr_matmul_params *)params)->heads;
  if (heads < 0 || (heads && inner % heads))
    return wr_fail(WEIR_EUSAGE, "the %lld elements of a row of %s cannot be split into %lld heads", (long long)inner, arg,
                   (long long)heads);
  *out = heads ? wr_rule_type(rows->dtype, rows->live, rows->ext[0], heads, inner / heads, 0)
               : wr_rule_type(rows->dtype, rows->live, rows->ext[0], inner, 0, 0);
  return WEIR_OK;
}

static weir_status matmul_shape(const void *params, wr_vtype *t) {
  const wr_vtype *x = &t[WR_MM_X], *w = &t[WR_MM_W], *bias = &t[WR_MM_BIAS], *res = &t[WR_MM_RES];
  WR_TRY(weights_rule("w", w));
  WR_TRY(inner_rule("x", x, wr_rule_inner(w), "a row of w"));
  if (bias->rank) {
    WR_TRY(wr_rule_float("bias", bias));
    WR_TRY(wr_rule_rank("bias", bias, 1));
    WR_TRY(wr_rule_ext("bias", bias, 0, w->ext[0], "the number of rows of w"));
  }
  if (t[WR_MM_NORM].rank) {
    WR_TRY(wr_rule_float("norm", &t[WR_MM_NORM]));
    WR_TRY(wr_rule_ext("norm", &t[WR_MM_NORM], 0, wr_rule_inner(w), "a row of w"));
  }
  if (t[WR_MM_UP].rank && (!same_type(&t[WR_MM_UP], w) || bias->rank || res->rank))
    return wr_fail(WEIR_EUSAGE, "a fused gate needs w and up of one type, no bias and no residual");
  WR_TRY(heads_rule("y", params, x, w->ext[0], &t[WR_MM_Y]));
  if (!res->rank) return WEIR_OK;
  WR_TRY(wr_rule_float("res", res));
  return wr_rule_like("res", res, "x times w", &t[WR_MM_Y]);
}

static weir_status dx_shape(const void *params, wr_vtype *t) {
  const wr_vtype *dy = &t[WR_MM_DX_DY], *w = &t[WR_MM_DX_W];
  WR_TRY(weights_rule("w", w));
  WR_TRY(inner_rule("dy", dy, w->ext[0], "w (its rows)"));
  return heads_rule("dx", params, dy, wr_rule_inner(w), &t[WR_MM_DX_DX]);
}

static weir_status dw_shape(const void *params, wr_vtype *t) {
  const wr_layout layout = ((const wr_matmul_dw_params *)params)->layout;
  const wr_vtype *dy = &t[WR_MM_DW_DY], *x = &t[WR_MM_DW_X];
  WR_TRY(wr_rule_float("x", x));
  WR_TRY(wr_rule_float("dy", dy));
  WR_TRY(wr_rule_ext("dy", dy, 0, x->ext[0], "that of x"));
  t[WR_MM_DW_DW] = wr_rule_type(wr_rule_stat_dtype(x), WR_LIVE_ALL, wr_rule_inner(dy), wr_rule_inner(x), 0, 0);
  if (!wr_layout_ok(layout, (wr_dtype)t[WR_MM_DW_DW].dtype, wr_rule_inner(x)))
    return wr_fail(WEIR_EUSAGE, "dw is %s, which has no layout %s", wr_dtypes[t[WR_MM_DW_DW].dtype].name,
                   wr_layout_name(layout));
  t[WR_MM_DW_DW].layout = (uint8_t)layout;
  t[WR_MM_DW_DBIAS] = wr_rule_type(wr_rule_stat_dtype(x), WR_LIVE_ALL, wr_rule_inner(dy), 0, 0, 0);
  return WEIR_OK;
}

static weir_status matmul_grad(wr_grad *g, const wr_instr *i) {
  wr_program *p = wr_grad_program(g);
  if (i->args[WR_MM_NORM] >= 0 || i->args[WR_MM_UP] >= 0)
    return wr_fail(WEIR_EUNSUPPORTED, "a fused matmul has no gradient: the gradient pass comes before fusion");
  const int dy = wr_grad_of(g, i->args[WR_MM_Y]), x = i->args[WR_MM_X], w = i->args[WR_MM_W], bias = i->args[WR_MM_BIAS];
  const wr_vtype *tx = wr_type(p, x);
  if (wr_grad_wanted(g, x)) wr_grad_add(g, x, wr_matmul_dx(p, dy, w, tx->rank == 3 ? tx->ext[1] : 0));
  const bool want_w = wr_grad_wanted(g, w), want_bias = wr_grad_wanted(g, bias);
  if (want_w || want_bias) {
    int args[WR_MAX_ARGS] = {dy, x, WR_NEW, want_bias ? WR_NEW : WR_NONE};
    const wr_matmul_dw_params params = {.layout = (wr_layout)wr_type(p, w)->layout};
    WR_TRY(wr_emit(p, &wr_op_matmul_dw, &params, args));
    if (want_w) wr_grad_add(g, w, args[WR_MM_DW_DW]);
    if (want_bias) wr_grad_add(g, bias, args[WR_MM_DW_DBIAS]);
  }
  wr_grad_add(g, i->args[WR_MM_RES], dy);
  return wr_program_status(p);
}

/* The bytes of an argument that is read whole, in its layout. */
static double whole_bytes(const wr_call *c, int arg) {
  const wr_arg *a = &c->args[arg];
  return a->rank ? (double)wr_layout_bytes((wr_layout)a->layout, (wr_dtype)a->dtype, a->ext[0], wr_inner(a)) : 0;
}

static void matmul_cost(const wr_call *c, wr_cost *out) {
  const double rows = (double)wr_live_rows(c, WR_MM_X);
  const wr_arg *w = &c->args[WR_MM_W];
  const int weights[] = {WR_MM_W, WR_MM_UP, WR_MM_BIAS, WR_MM_NORM};
  for (size_t i = 0; i < WR_ARRAY_LEN(weights) && rows > 0; i++) out->weight_bytes += whole_bytes(c, weights[i]);
  out->read_bytes = out->weight_bytes + wr_cost_bytes(c, WR_MM_X) + wr_cost_bytes(c, WR_MM_RES);
  out->write_bytes = wr_cost_bytes(c, WR_MM_Y);
  out->flop = 2 * rows * (double)w->ext[0] * (double)wr_inner(w) * (c->args[WR_MM_UP].rank ? 2 : 1);
}

static void dx_cost(const wr_call *c, wr_cost *out) {
  const wr_arg *w = &c->args[WR_MM_DX_W];
  out->weight_bytes = whole_bytes(c, WR_MM_DX_W);
  out->read_bytes = out->weight_bytes + wr_cost_bytes(c, WR_MM_DX_DY);
  out->write_bytes = wr_cost_bytes(c, WR_MM_DX_DX);
  if (c->acc >> WR_MM_DX_DX & 1) out->read_bytes += out->write_bytes;
  out->flop = 2 * (double)wr_live_rows(c, WR_MM_DX_DY) * (double)w->ext[0] * (double)wr_inner(w);
  /* packed weights are turned, for so many rows at a time */
  if (w->layout == WR_PACK16)
    out->copy_bytes = (double)wr_mm_parts(wr_live_rows(c, WR_MM_DX_DY), WR_MM_GEMM_REUSE) * out->weight_bytes;
}

static void dw_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_matmul_dw, c, out);
  const double N = (double)wr_inner(&c->args[WR_MM_DW_DY]), K = (double)wr_inner(&c->args[WR_MM_DW_X]);
  const wr_arg *dy = &c->args[WR_MM_DW_DY];
  /* for a packed dw, columns of dy past the last whole sixteen are packed */
  if (c->args[WR_MM_DW_DW].layout == WR_PACK16)
    out->copy_bytes = (double)wr_mm_parts(wr_inner(&c->args[WR_MM_DW_X]), WR_MM_GEMM_REUSE) *
                      (double)wr_live_rows(c, WR_MM_DW_DY) * (double)(wr_inner(dy) % 16) * sizeof(float);
  out->flop = 2 * (double)wr_live_rows(c, WR_MM_DW_X) * N * K;
}

/* --------------------------------------------------------------------------------------------------- builders and fusion */

int wr_matmul_heads(wr_program *p, int x, int w, int bias, int res, int64_t heads) {
  const wr_matmul_params params = {.heads = heads};
  int args[WR_MAX_ARGS] = {x, w, bias, res, WR_NONE, WR_NONE, WR_NEW};
  return wr_emit(p, &wr_op_matmul, &params, args) == WEIR_OK ? args[WR_MM_Y] : WR_NONE;
}

int wr_matmul(wr_program *p, int x, int w, int bias, int res) { return wr_matmul_heads(p, x, w, bias, res, 0); }

int wr_matmul_dx(wr_program *p, int dy, int w, int64_t heads) {
  const wr_matmul_params params = {.heads = heads};
  int args[WR_MAX_ARGS] = {dy, w, WR_NEW};
  return wr_emit(p, &wr_op_matmul_dx, &params, args) == WEIR_OK ? args[WR_MM_DX_DX] : WR_NONE;
}

int wr_matmul_dw(wr_program *p, int dy, int x, wr_layout layout) {
  const wr_matmul_dw_params params = {layout};
  int args[WR_MAX_ARGS] = {dy, x, WR_NEW, WR_NONE};
  return wr_emit(p, &wr_op_matmul_dw, &params, args) == WEIR_OK ? args[WR_MM_DW_DW] : WR_NONE;
}

/* Is `value` written by an instruction after `from` and before `to`? */
static bool written_between(const wr_program *p, int value, const wr_instr *from, const wr_instr *to) {
  for (const wr_instr *i = from + 1; i < to; i++)
    for (int a = 0; i->op && i->op->args[a].role != WR_ARG_END; a++)
      if (i->op->args[a].role != WR_IN && i->args[a] == value) return true;
  return value >= 0 && p->values[value].def > (int)(to - p->instrs);
}

/* a + x w^T: the sum becomes the matmul, with the other summand as its residual. It runs where the sum stood, so that the other
 * summand is there; what the matmul reads must still be what it was. */
bool wr_fuse_matmul_add(wr_program *p, wr_instr *producer, wr_instr *consumer);
bool wr_fuse_matmul_add(wr_program *p, wr_instr *producer, wr_instr *consumer) {
  const int product = producer->args[WR_MM_Y], sum = consumer->args[2];
  const int other = consumer->args[0] == product ? consumer->args[1] : consumer->args[0];
  if (other == product || producer->args[WR_MM_RES] >= 0 || producer->args[WR_MM_UP] >= 0) return false;
  if (!same_type(wr_type(p, product), wr_type(p, sum)) || !same_type(wr_type(p, product), wr_type(p, other))) return false;
  for (int a = WR_MM_X; a <= WR_MM_BIAS; a++)
    if (producer->args[a] >= 0 && written_between(p, producer->args[a], producer, consumer)) return false;
  const int args[] = {producer->args[WR_MM_X],
                      producer->args[WR_MM_W],
                      producer->args[WR_MM_BIAS],
                      other,
                      producer->args[WR_MM_NORM],
                      WR_NONE,
                      sum};
  for (int a = 0; a < WR_MAX_ARGS; a++) consumer->args[a] = a <= WR_MM_Y ? args[a] : WR_NONE;
  consumer->op = producer->op;
  consumer->params = producer->params;
  producer->op = NULL;
  return true;
}

/* Do the quantising kernels take this matmul? They look at each row of x anyway, so a norm costs them little; others would have to keep
 * the normal rows somewhere. */
static bool quantises_x(const wr_program *p, const wr_instr *i) {
  const wr_vtype *w = wr_type(p, i->args[WR_MM_W]);
  return wr_dtypes[w->dtype].kind == WR_QUANT && w->layout == WR_PACK16 && wr_type(p, i->args[WR_MM_X])->dtype == WR_F32;
}

/* RMSNorm in front of matmuls: each prepares its rows of x for itself. */
bool wr_fuse_rmsnorm_matmul(wr_program *p, wr_instr *producer, wr_instr *consumer);
bool wr_fuse_rmsnorm_matmul(wr_program *p, wr_instr *producer, wr_instr *consumer) {
  const int x = producer->args[0], weight = producer->args[1], rows = producer->args[2];
  if (weight < 0 || wr_type(p, x)->rank != 2 || wr_type(p, weight)->dtype != WR_F32) return false;
  if (consumer->args[WR_MM_X] != rows || consumer->args[WR_MM_NORM] >= 0 || consumer->args[WR_MM_RES] == rows) return false;
  if (!quantises_x(p, consumer)) return false;
  wr_matmul_params *params = wr_arena_alloc(&p->arena, sizeof *params);
  if (!params) return false;
  *params = *(const wr_matmul_params *)consumer->params;
  params->eps = *(const float *)producer->params;
  consumer->params = params;
  consumer->args[WR_MM_X] = x;
  consumer->args[WR_MM_NORM] = weight;
  return true;
}

/* act(x w^T) * (x up^T): the two products of a gated feed-forward and the gate itself. The producer is the product that is gated. */
bool wr_fuse_matmul_glu(wr_program *p, wr_instr *producer, wr_instr *consumer);
bool wr_fuse_matmul_glu(wr_program *p, wr_instr *producer, wr_instr *consumer) {
  const int gate = consumer->args[0], up = consumer->args[1], y = consumer->args[2];
  if (producer->args[WR_MM_Y] != gate || up == gate || p->values[up].def < 0 || p->values[up].kind != WR_TEMP) return false;
  wr_instr *other = &p->instrs[p->values[up].def];
  if (other->op != producer->op || !quantises_x(p, producer) || wr_value_readers(p, up) != 1) return false;
  static const int same[] = {WR_MM_X, WR_MM_NORM}, none[] = {WR_MM_BIAS, WR_MM_RES, WR_MM_UP};
  for (size_t a = 0; a < WR_ARRAY_LEN(same); a++)
    if (producer->args[same[a]] != other->args[same[a]]) return false;
  for (size_t a = 0; a < WR_ARRAY_LEN(none); a++)
    if (producer->args[none[a]] >= 0 || other->args[none[a]] >= 0) return false;
  if (!same_type(wr_type(p, producer->args[WR_MM_W]), wr_type(p, other->args[WR_MM_W])) ||
      !same_type(wr_type(p, gate), wr_type(p, y)))
    return false;
  for (int a = WR_MM_X; a <= WR_MM_NORM; a++)
    if (producer->args[a] >= 0 && written_between(p, producer->args[a], producer, consumer)) return false;
  wr_matmul_params *params = wr_arena_alloc(&p->arena, sizeof *params);
  if (!params) return false;
  *params = *(const wr_matmul_params *)producer->params;
  params->act = ((const wr_glu_params *)consumer->params)->act;
  const int args[] = {producer->args[WR_MM_X],    producer->args[WR_MM_W], WR_NONE, WR_NONE,
                      producer->args[WR_MM_NORM], other->args[WR_MM_W],    y};
  for (int a = 0; a < WR_MAX_ARGS; a++) consumer->args[a] = a <= WR_MM_Y ? args[a] : WR_NONE;
  consumer->op = producer->op;
  consumer->params = params;
  producer->op = other->op = NULL;
  return true;
}

/* ------------------------------------------------------------------------------------------------------------------- cases */

/* m n k w=dtype layout bias res x=dtype heads norm up gelu=1: the gate's */
static weir_status matmul_case(wr_case *c, wr_program *p) {
  const wr_matmul_params params = {wr_case_int(c, "heads", 0), 1e-5f, wr_case_int(c, "gelu", 0) ? WR_GELU : WR_SILU};
  const int64_t m = wr_case_int(c, "m", 1), n = wr_case_int(c, "n", 16), k = wr_case_int(c, "k", 64);
  const int float_type = wr_case_dtype(c, "x", WR_F32);
  wr_vtype w = wr_rule_type(wr_case_dtype(c, "w", WR_F32), WR_LIVE_ALL, n, k, 0, 0);
  w.layout = (uint8_t)wr_case_layout(c, "layout", WR_PLAIN);
  int args[WR_MAX_ARGS] = {0, 0, WR_NONE, WR_NONE, WR_NONE, WR_NONE, WR_NEW};
  const int64_t heads = params.heads;
  const wr_vtype x = wr_rule_type(float_type, WR_LIVE_ROWS, m, k, 0, 0);
  const wr_vtype y = wr_rule_type(float_type, WR_LIVE_ROWS, m, heads ? heads : n, heads ? n / heads : 0, 0);
  const wr_vtype bias = wr_rule_type(float_type, WR_LIVE_ALL, n, 0, 0, 0);
  args[WR_MM_X] = wr_case_input(c, p, WR_INPUT, "x", x, wr_fill_normal(0, 1));
  args[WR_MM_W] = wr_case_input(c, p, WR_PARAM, "w", w, wr_fill_normal(0, 0.05));
  if (wr_case_int(c, "bias", 0)) args[WR_MM_BIAS] = wr_case_input(c, p, WR_PARAM, "bias", bias, wr_fill_normal(0, 1));
  const wr_vtype norm = wr_rule_type(float_type, WR_LIVE_ALL, k, 0, 0, 0);
  if (wr_case_int(c, "norm", 0)) args[WR_MM_NORM] = wr_case_input(c, p, WR_PARAM, "norm", norm, wr_fill_normal(1, 0.3));
  if (wr_case_int(c, "up", 0)) args[WR_MM_UP] = wr_case_input(c, p, WR_PARAM, "up", w, wr_fill_normal(0, 0.05));
  if (wr_case_int(c, "res", 0)) args[WR_MM_RES] = wr_case_input(c, p, WR_INPUT, "res", y, wr_fill_normal(0, 1));
  return wr_emit(p, c->op, &params, args);
}

static weir_status dx_case(wr_case *c, wr_program *p) {
  const wr_matmul_params params = {.heads = wr_case_int(c, "heads", 0)};
  const int64_t m = wr_case_int(c, "m", 1), n = wr_case_int(c, "n", 16), k = wr_case_int(c, "k", 64);
  wr_vtype w = wr_rule_type(wr_case_dtype(c, "w", WR_F32), WR_LIVE_ALL, n, k, 0, 0);
  w.layout = (uint8_t)wr_case_layout(c, "layout", WR_PLAIN);
  int args[WR_MAX_ARGS] = {0, 0, WR_NEW};
  const wr_vtype dy = wr_rule_type(wr_case_dtype(c, "dy", WR_F32), WR_LIVE_ROWS, m, n, 0, 0);
  args[WR_MM_DX_DY] = wr_case_input(c, p, WR_INPUT, "dy", dy, wr_fill_normal(0, 1));
  args[WR_MM_DX_W] = wr_case_input(c, p, WR_PARAM, "w", w, wr_fill_normal(0, 0.05));
  return wr_emit(p, c->op, &params, args);
}

static weir_status dw_case(wr_case *c, wr_program *p) {
  const int64_t m = wr_case_int(c, "m", 1), n = wr_case_int(c, "n", 16), k = wr_case_int(c, "k", 64);
  const int t = wr_case_dtype(c, "x", WR_F32);
  int args[WR_MAX_ARGS] = {0, 0, WR_NEW, wr_case_int(c, "bias", 1) ? WR_NEW : WR_NONE};
  const wr_vtype dy = wr_rule_type(t, WR_LIVE_ROWS, m, n, 0, 0), x = wr_rule_type(t, WR_LIVE_ROWS, m, k, 0, 0);
  args[WR_MM_DW_DY] = wr_case_input(c, p, WR_INPUT, "dy", dy, wr_fill_normal(0, 1));
  args[WR_MM_DW_X] = wr_case_input(c, p, WR_INPUT, "x", x, wr_fill_normal(0, 1));
  const wr_matmul_dw_params params = {.layout = (wr_layout)wr_case_layout(c, "layout", WR_PLAIN)};
  return wr_emit(p, c->op, &params, args);
}

/* --------------------------------------------------------------------------------------------------------------------- ops */

const wr_op wr_op_matmul = {
    .name = "matmul",
    .doc = "y = x w^T (+ bias) (+ res)",
    .args = {{"x", WR_IN, WR_ARG_FLOAT, 0},
             {"w", WR_IN, 0, 0},
             {"bias", WR_IN, WR_ARG_OPTIONAL, 0},
             {"res", WR_IN, WR_ARG_OPTIONAL | WR_ARG_FLOAT, 0},
             {"norm", WR_IN, WR_ARG_OPTIONAL, 0},
             {"up", WR_IN, WR_ARG_OPTIONAL, 0},
             {"y", WR_OUT, WR_ARG_FLOAT, 1 + WR_MM_RES}},
    .params_bytes = sizeof(wr_matmul_params),
    .shape = matmul_shape,
    .grad = matmul_grad,
    .cost = matmul_cost,
    .rows = matmul_rows,
    .n_rows = WR_ARRAY_LEN(matmul_rows),
    .make_case = matmul_case,
};

const wr_op wr_op_matmul_dx = {
    .name = "matmul_dx",
    .doc = "gradient of matmul with respect to x: dy w",
    .args = {{"dy", WR_IN, WR_ARG_FLOAT, 0}, {"w", WR_IN, 0, 0}, {"dx", WR_OUT, WR_ARG_FLOAT | WR_ARG_ACC, 0}},
    .params_bytes = sizeof(wr_matmul_params),
    .shape = dx_shape,
    .cost = dx_cost,
    .rows = matmul_dx_rows,
    .n_rows = WR_ARRAY_LEN(matmul_dx_rows),
    .make_case = dx_case,
};

const wr_op wr_op_matmul_dw = {
    .name = "matmul_dw",
    .doc = "gradient of matmul with respect to w, dy^T x, and to bias, the sum of dy's rows",
    .args = {{"dy", WR_IN, WR_ARG_FLOAT, 0},
             {"x", WR_IN, WR_ARG_FLOAT, 0},
             {"dw", WR_OUT, WR_ARG_ACC, 0},
             {"dbias", WR_OUT, WR_ARG_OPTIONAL | WR_ARG_ACC, 0}},
    .params_bytes = sizeof(wr_matmul_dw_params),
    .shape = dw_shape,
    .cost = dw_cost,
    .rows = matmul_dw_rows,
    .n_rows = WR_ARRAY_LEN(matmul_dw_rows),
    .make_case = dw_case,
};
