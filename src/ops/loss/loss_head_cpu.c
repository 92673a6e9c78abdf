/* Cross-entropy with the product before it, and its gradients, on the CPU: FP32, w in layout pack16, compiled once for each instruction
 * set; the same bits from each.
 *
 * Rows go through in pieces, as many as WR_HEAD_LOGITS bytes of logits are for. A piece passes four stages, a barrier between them:
 *   logits   units of groups of w                    logits = x w^T
 *   soften   units of rows                           lse and loss of a row; the logits become dlogits
 *   dw       units of groups of w                    dw += dlogits^T x
 *   dx       units of columns                        dx = dlogits w, w in panels, turned
 * All sums are the chains of ops/gemm_i.h, over rows and over the vocabulary ascending, so pieces and threads change no bit. Columns of
 * logits past the vocabulary, where w has rows of zeros, have dlogits of zero.
 */
#include <math.h>

#include "core/core.h"
#include "ops/arg_i.h"
#include "ops/gemm_i.h"
#include "ops/loss/loss.h"
#include "ops/loss/loss_i.h"
#include "ops/loss/loss_row_i.h"

WR_ROW_FN(WR_KERNEL(head_xent_f32_cpu));
WR_ROW_FN(WR_KERNEL(head_xent_bwd_f32_cpu));

/* What a call is about, however its arguments are numbered. */
typedef struct head {
  const wr_arg *x, *w, *targets, *loss, *dx, *dw;
  bool add_dx, add_dw;
  float slope; /* dloss over the rows that count */
  int64_t R, D, V, groups, columns, piece;
  wr_head_scratch *shared;
  double *row_loss;
  float *logits, *panels; /* [piece][columns]; of this thread */
} head;

static int64_t step_of(const wr_arg *a) { return a->stride_bytes / (int64_t)sizeof(float); }

static head head_of(const wr_call *c, const wr_worker *w, int x_arg, int w_arg) {
  head h = {.x = &c->args[x_arg], .w = &c->args[w_arg]};
  h.R = wr_live_rows(c, x_arg), h.D = h.x->ext[1], h.V = h.w->ext[0];
  h.groups = (h.V + 15) / 16, h.columns = h.groups * 16;
  h.piece = wr_head_piece(h.x->ext[0], h.V);
  h.shared = c->scratch;
  h.row_loss = (double *)(void *)(h.shared + 1);
  h.logits = (float *)(void *)((char *)h.row_loss + wr_head_loss_bytes(h.x->ext[0]));
  h.panels = h.logits + h.piece * h.columns + (int64_t)w->tid * WR_HEAD_PANELS * WR_HEAD_SUM * 16;
  return h;
}

/* Units of a stage, whoever comes first. */
static bool next_unit(atomic_llong *taken, int64_t n, int64_t *u) {
  *u = atomic_fetch_add_explicit(taken, 1, memory_order_relaxed);
  return *u < n;
}

static void make_logits(const head *h, int64_t r0, int64_t rows, int64_t g0, int64_t g1) {
  const int64_t stride = step_of(h->w);
  for (int64_t k = 0; k < h->D; k += WR_HEAD_SUM) {
    float *to = h->logits + 16 * g0;
    const wr_gemm g = {.a = wr_arg_f32(h->x, r0) + k,
                       .a_row = step_of(h->x),
                       .a_step = 1,
                       .b = (const float *)h->w->data + g0 * stride + 16 * k,
                       .b_step = 16,
                       .b_panel = stride,
                       .n = WR_MIN(h->D - k, (int64_t)WR_HEAD_SUM),
                       .from = k ? to : NULL,
                       .from_row = h->columns,
                       .from_panel = 16,
                       .to = to,
                       .to_row = h->columns,
                       .to_panel = 16,
                       .lanes = 16};
    wr_gemm_block(&g, rows, g1 - g0);
  }
}

/* Row r of the piece; row is its number in x. */
static void soften(const head *h, int64_t r, int64_t row) {
  float *x = h->logits + r * h->columns;
  const int64_t t = target_of(h->targets, row, h->V);
  const double ln = log_sum(x, h->V);
  h->row_loss[row] = t < 0 ? 0 : ln - (double)x[t];
  if (!h->dx && !h->dw) return;
  if (t < 0) {
    memset(x, 0, (size_t)h->columns * sizeof *x);
    return;
  }
  const v16 most = v16_set1((float)ln), slope = v16_set1(h->slope);
  float p[WR_LANES];
  v16_store(p, v16_exp(v16_sub(v16_set1(x[t]), most)));
  for (int64_t v = 0; v < h->columns; v += WR_LANES) v16_store(x + v, v16_mul(slope, v16_exp(v16_sub(v16_load(x + v), most))));
  x[t] = h->slope * (p[0] - 1);
  for (int64_t v = h->V; v < h->columns; v++) x[v] = 0;
}

static void make_dw(const head *h, int64_t r0, int64_t rows, int64_t g0, int64_t g1) {
  const int64_t stride = step_of(h->dw);
  float *to = (float *)h->dw->data + g0 * stride;
  for (int64_t r = 0; r < rows; r += WR_HEAD_SUM) {
    const int64_t n = WR_MIN(rows - r, (int64_t)WR_HEAD_SUM);
    const wr_gemm g = {.a = wr_arg_f32(h->x, r0 + r),
                       .a_row = 1,
                       .a_step = step_of(h->x),
                       .b = h->logits + r * h->columns + 16 * g0,
                       .b_step = h->columns,
                       .b_panel = 16,
                       .n = n,
                       .from = r0 + r || h->add_dw ? to : NULL,
                       .from_row = 16,
                       .from_panel = stride,
                       .to = to,
                       .to_row = 16,
                       .to_panel = stride,
                       .lanes = 16};
    wr_gemm_block(&g, h->D, g1 - g0);
  }
}

static void make_dx(const head *h, int64_t r0, int64_t rows, int64_t p0, int64_t p1) {
  const int64_t stride = step_of(h->w);
  for (int64_t g0 = 0; g0 < h->groups; g0 += WR_HEAD_SUM / 16) {
    const int64_t groups = WR_MIN(h->groups - g0, (int64_t)WR_HEAD_SUM / 16);
    wr_gemm_pack_turned((const float *)h->w->data + g0 * stride, stride, groups, 16 * p0, h->D, p1 - p0, h->panels);
    float *to = wr_arg_f32(h->dx, r0) + 16 * p0;
    const wr_gemm g = {.a = h->logits + 16 * g0,
                       .a_row = h->columns,
                       .a_step = 1,
                       .b = h->panels,
                       .b_step = 16,
                       .b_panel = groups * 256,
                       .n = WR_MIN(h->V - 16 * g0, groups * 16),
                       .from = g0 || h->add_dx ? to : NULL,
                       .from_row = step_of(h->dx),
                       .from_panel = 16,
                       .to = to,
                       .to_row = step_of(h->dx),
                       .to_panel = 16,
                       .lanes = (int)WR_MIN(h->D - 16 * (p1 - 1), (int64_t)16)};
    wr_gemm_block(&g, rows, p1 - p0);
  }
}

static void run(const head *h, const wr_worker *w) {
  const int64_t vs = (h->groups + WR_HEAD_GROUPS - 1) / WR_HEAD_GROUPS, panels = (h->D + 15) / 16;
  const int64_t gs = (h->groups + WR_HEAD_PANELS - 1) / WR_HEAD_PANELS;
  /* columns: narrower units where threads would go without one */
  const int64_t wide = panels / WR_HEAD_PANELS >= 2 * w->n_threads ? WR_HEAD_PANELS : WR_GEMM_PANELS,
                ds = (panels + wide - 1) / wide;
  if (!w->tid) *h->shared = (wr_head_scratch){0};
  wr_barrier(w);
  for (int64_t r0 = 0, piece = 0; r0 < h->R; r0 += h->piece, piece++) {
    const int64_t rows = WR_MIN(h->R - r0, h->piece);
    atomic_llong *taken = h->shared->taken[piece % 2], *later = h->shared->taken[(piece + 1) % 2];
    int64_t u;
    while (next_unit(&taken[0], vs, &u))
      make_logits(h, r0, rows, u * WR_HEAD_GROUPS, WR_MIN((u + 1) * WR_HEAD_GROUPS, h->groups));
    wr_barrier(w);
    while (next_unit(&taken[1], rows, &u)) soften(h, u, r0 + u);
    wr_barrier(w);
    for (int i = 0; !w->tid && i < WR_HEAD_STAGES; i++) later[i] = 0;
    while (h->dw && next_unit(&taken[2], gs, &u))
      make_dw(h, r0, rows, u * WR_HEAD_PANELS, WR_MIN((u + 1) * WR_HEAD_PANELS, h->groups));
    while (h->dx && next_unit(&taken[3], ds, &u)) make_dx(h, r0, rows, u * wide, WR_MIN((u + 1) * wide, panels));
    wr_barrier(w);
  }
  if (w->tid) return;
  /* nothing counts, nothing is added: the gradients are zero all the same */
  if (!h->R && h->dw && !h->add_dw) memset(h->dw->data, 0, wr_layout_bytes(WR_PACK16, WR_F32, h->V, h->D));
  const int64_t n = count_targets(h->targets, h->R, h->V);
  double total = 0;
  for (int64_t r = 0; r < h->R; r++) total += h->row_loss[r];
  if (h->loss) *(float *)h->loss->data = n ? (float)(total / (double)n) : 0;
}

static const wr_arg *wanted(const wr_call *c, int arg) { return c->args[arg].data ? &c->args[arg] : NULL; }

WR_ROW_FN(WR_KERNEL(head_xent_f32_cpu)) {
  head h = head_of(c, w, HEAD_X, HEAD_W);
  h.targets = &c->args[HEAD_TARGETS];
  h.loss = &c->args[HEAD_LOSS];
  run(&h, w);
}

WR_ROW_FN(WR_KERNEL(head_xent_bwd_f32_cpu)) {
  head h = head_of(c, w, HEAD_BWD_X, HEAD_BWD_W);
  h.targets = &c->args[HEAD_BWD_TARGETS];
  h.loss = wanted(c, HEAD_BWD_LOSS);
  h.dx = wanted(c, HEAD_BWD_DX);
  h.dw = wanted(c, HEAD_BWD_DW);
  h.add_dx = c->acc >> HEAD_BWD_DX & 1;
  h.add_dw = c->acc >> HEAD_BWD_DW & 1;
  const int64_t n = count_targets(h.targets, h.R, h.V);
  h.slope = n ? (float)((double)*(const float *)c->args[HEAD_BWD_DLOSS].data / (double)n) : 0;
  run(&h, w);
}
