/* What a run could have reached, and where its time went.
 *
 * The limit: a plain read of the very pages that a token reads, in the mapping and by the team that the decode uses, in the
 * same process and between its tokens. So it sees the same caches, pages, clocks and neighbours. The best of several is the
 * limit, because everything that disturbs a read makes it slower. It is a limit of reading only: arithmetic may be the tighter
 * one.
 *
 * The op table: time of each step of the plan, summed over tokens and joined by op, kernel and kind of weight; then what is not
 * an op. The lines add up to the wall time by construction: "other" is what is left of it. */
#include <stdlib.h>

#include "device/cpu/cpu.h"
#include "infer/infer_i.h"
#include "ops/ops.h"

static const double LIMIT_BYTES = 256e6;

weir_status wr_limit_init(wr_limit *l, const weir_model *m) {
  const wr_model *w = m->m;
  *l = (wr_limit){.m = m};
  l->ranges = wr_calloc((size_t)WR_MAX(w->n_weights, 1), sizeof *l->ranges);
  if (!l->ranges) return wr_fail_nomem((size_t)w->n_weights * sizeof *l->ranges, "the limit's ranges");
  /* memory that the host does not see has no limit that could be read here */
  for (int i = 0; i < w->n_weights && l->bytes < LIMIT_BYTES && !m->ctx->device->own_memory; i++) {
    const wr_weight *x = &w->weights[i];
    if (wr_weight_is_looked_up(w, x)) continue;
    const size_t bytes = (size_t)WR_MIN((double)x->bytes, LIMIT_BYTES - l->bytes);
    l->ranges[l->n_ranges++] = (wr_range){x->host, bytes};
    l->bytes += (double)bytes;
  }
  return WEIR_OK;
}

void wr_limit_free(wr_limit *l) {
  wr_free(l->ranges);
  *l = (wr_limit){0};
}

void wr_limit_run(wr_limit *l) {
  const uint64_t begin = wr_now_ns();
  const double got = wr_read_bandwidth(l->m->ctx->device->team, l->ranges, l->n_ranges, 1);
  l->seconds += (double)(wr_now_ns() - begin) * 1e-9;
  if (got <= 0) return;
  l->best = WR_MAX(l->best, got);
  l->worst = l->runs ? WR_MIN(l->worst, got) : got;
  l->runs++;
}

const char *wr_limit_mode(const wr_limit *l) {
  if (!l->runs) return "";
  wr_cpu_facts facts;
  wr_cpu_facts_get(&facts);
  const double cache = (double)(facts.l3_bytes ? facts.l3_bytes : facts.l2_bytes);
  return l->bytes <= cache ? "cache" : "memory";
}

/* Operations of a replay of n rows whose first is at `position`, at the peaks, in seconds. */
static double seconds_at_peak(const wr_plan *plan, int64_t position, int n, double int8_op_s, double fp32_op_s) {
  const wr_regs regs = {.live = {[WR_LIVE_ROWS] = n, [WR_LIVE_OUT] = 1, [WR_LIVE_SEQS] = 1},
                        .kv_tok = n * position + (int64_t)n * (n + 1) / 2};
  double int8 = 0, fp32 = 0;
  for (int i = 0; i < plan->list.n; i++) {
    wr_cost c;
    wr_plan_cost(plan, i, &regs, &c);
    *(strcmp(wr_row_factors(plan->program->instrs[i].row), "int8") == 0 ? &int8 : &fp32) += c.flop;
  }
  return int8 / int8_op_s + fp32 / fp32_op_s;
}

static void look_up_peaks(weir_context *ctx) {
  weir_machine *m = wr_malloc(sizeof *m); /* too large for a small stack */
  const int threads = ctx->device->n_threads;
  ctx->peaks.looked_up = true;
  if (m && weir_machine_measure(&(weir_machine_options){.kept = true}, m) == WEIR_OK) {
    ctx->peaks.fp32_op_s = 1e9 * weir_machine_gop_s(m, "fp32", threads);
    ctx->peaks.int8_op_s = 1e9 * weir_machine_gop_s(m, "int8", threads);
  }
  wr_free(m);
}

double wr_prompt_share(wr_engine *e, const weir_model *m, int64_t first, int64_t n, int piece, double seconds) {
  weir_context *ctx = m->ctx;
  pthread_mutex_lock(&ctx->lock);
  if (!ctx->peaks.looked_up) look_up_peaks(ctx);
  const double fp32 = ctx->peaks.fp32_op_s, int8 = ctx->peaks.int8_op_s;
  pthread_mutex_unlock(&ctx->lock);
  if (seconds <= 0 || !(fp32 > 0)) return 0;
  double at_peak = 0;
  for (int64_t at = 0; at < n; at += piece) {
    const int k = (int)WR_MIN(n - at, (int64_t)piece);
    const wr_plan *plan;
    if (wr_engine_plan(e, k, 1, false, &plan) != WEIR_OK) return 0;
    at_peak += seconds_at_peak(plan, first + at, k, int8 > 0 ? int8 : fp32, fp32);
  }
  return at_peak / seconds;
}

/* -------------------------------------------------------------------------------------------------- the op table */

weir_status wr_profile_init(wr_profile_sums *p, const wr_plan *plan) {
  const size_t n = (size_t)WR_MAX(plan->list.n, 1);
  *p = (wr_profile_sums){.plan = plan, .ns = wr_calloc(n, sizeof *p->ns)};
  return p->ns ? WEIR_OK : wr_fail_nomem(n * sizeof *p->ns, "a profile");
}

void wr_profile_free(wr_profile_sums *p) {
  wr_free(p->ns);
  *p = (wr_profile_sums){0};
}

/* Between two tokens: no more than what cannot wait. */
void wr_profile_add(wr_profile_sums *p) {
  for (int i = 0; i < p->plan->list.n; i++) p->ns[i] += (double)p->plan->list.step_ns[i];
  if (!p->tokens++) p->first = *p->plan->regs_host;
  p->last = *p->plan->regs_host;
}

/* Bytes of a step over all replays. They grow linearly with the position, so the mean is that of the first and the last. */
static double step_bytes(const wr_profile_sums *p, int step) {
  wr_cost a, b;
  wr_plan_cost(p->plan, step, &p->first, &a);
  wr_plan_cost(p->plan, step, &p->last, &b);
  return (a.read_bytes + a.write_bytes + b.read_bytes + b.write_bytes) / 2 * (double)p->tokens;
}

void wr_weight_kind(const wr_program *p, const wr_instr *in, char *out, size_t cap) {
  out[0] = 0;
  for (int a = 0; a < WR_MAX_ARGS && in->op->args[a].role != WR_ARG_END; a++) {
    if (in->args[a] < 0 || p->values[in->args[a]].kind != WR_PARAM) continue;
    const char *name = p->values[in->args[a]].name;
    if (strncmp(name, "blk.", 4) == 0) {
      const char *dot = strchr(name + 4, '.');
      if (dot) name = dot + 1;
    }
    const char *end = strrchr(name, '.');
    snprintf(out, cap, "%.*s", (int)(end ? end - name : (long)strlen(name)), name);
    return;
  }
}

static weir_profile_row *find_row(weir_profile *p, const char *op, const char *kernel, const char *what) {
  for (size_t i = 0; i < p->n_rows; i++)
    if (strcmp(p->rows[i].op, op) == 0 && strcmp(p->rows[i].kernel, kernel) == 0 && strcmp(p->rows[i].what, what) == 0)
      return &p->rows[i];
  return NULL;
}

/* rows[] has room for one more. */
static weir_status new_row(weir_profile *p, const char *op, const char *kernel, const char *what, weir_profile_row **out) {
  char *copy = wr_strdup(what);
  if (!copy) return wr_fail_nomem(strlen(what), "a profile");
  weir_profile_row *r = &p->rows[p->n_rows++];
  *r = (weir_profile_row){.op = op, .kernel = kernel, .what = copy};
  *out = r;
  return WEIR_OK;
}

static int by_loss(const void *a, const void *b) {
  const weir_profile_row *x = a, *y = b;
  return x->loss_ms > y->loss_ms ? -1 : x->loss_ms < y->loss_ms;
}

static weir_status fill(weir_profile *p, const wr_profile_sums *s) {
  const wr_program *program = s->plan->program;
  double ops_ns = 0;
  for (int i = 0; i < s->plan->list.n; i++) {
    const wr_instr *in = &program->instrs[i];
    char what[WR_GGUF_MAX_NAME + 1];
    wr_weight_kind(program, in, what, sizeof what);
    weir_profile_row *r = find_row(p, in->op->name, in->row->name, what);
    if (!r) WR_TRY(new_row(p, in->op->name, in->row->name, what, &r));
    r->calls += (int64_t)s->tokens;
    r->ms += s->ns[i] * 1e-6;
    const double bytes = step_bytes(s, i);
    r->bytes += bytes;
    p->bytes += bytes;
    ops_ns += s->ns[i];
  }
  const struct {
    const char *name;
    double ns;
  } rest[] = {{"sample", s->sample_ns}, {"text", s->text_ns}, {"other", p->wall_ms * 1e6 - ops_ns - s->sample_ns - s->text_ns}};
  for (size_t i = 0; i < WR_ARRAY_LEN(rest); i++) {
    weir_profile_row *r;
    WR_TRY(new_row(p, rest[i].name, "", "", &r));
    r->calls = (int64_t)s->tokens;
    r->ms = rest[i].ns * 1e-6;
  }
  for (size_t i = 0; i < p->n_rows; i++) {
    weir_profile_row *r = &p->rows[i];
    r->gb_s = r->ms > 0 ? r->bytes / r->ms * 1e-6 : 0;
    r->share = p->wall_ms > 0 ? r->ms / p->wall_ms : 0;
    r->loss_ms = r->ms - (p->limit_gb_s > 0 ? r->bytes / p->limit_gb_s * 1e-6 : 0);
  }
  qsort(p->rows, p->n_rows, sizeof *p->rows, by_loss);
  return WEIR_OK;
}

weir_status wr_profile_make(const wr_profile_sums *s, double wall_ns, double limit_gb_s, weir_profile **out) {
  weir_profile *p = wr_calloc(1, sizeof *p);
  const size_t n = (size_t)s->plan->list.n + 3;
  if (!p) return wr_fail_nomem(sizeof *p, "a profile");
  p->n_tokens = s->tokens;
  p->wall_ms = wall_ns * 1e-6;
  p->limit_gb_s = limit_gb_s;
  p->rows = wr_calloc(n, sizeof *p->rows);
  const weir_status status = p->rows ? fill(p, s) : wr_fail_nomem(n * sizeof *p->rows, "a profile");
  if (status != WEIR_OK) {
    wr_profile_drop(p);
    return status;
  }
  *out = p;
  return WEIR_OK;
}

void wr_profile_drop(weir_profile *p) {
  if (!p) return;
  for (size_t i = 0; i < p->n_rows; i++) wr_free((char *)(uintptr_t)p->rows[i].what);
  wr_free(p->rows);
  wr_free(p);
}

size_t weir_profile_print(const weir_profile *p, char *out, size_t cap) {
  wr_str s = {0};
  const double tokens = (double)WR_MAX(p->n_tokens, (size_t)1);
  wr_str_printf(&s, "%-15s %-12s %-34s %7s %9s %8s %7s %9s\n", "op", "weights", "kernel", "calls", "ms/token", "GB/s", "time",
                "loss ms");
  for (size_t i = 0; i < p->n_rows; i++) {
    const weir_profile_row *r = &p->rows[i];
    char rate[16] = "-";
    if (r->bytes > 0) snprintf(rate, sizeof rate, "%.2f", r->gb_s);
    wr_str_printf(&s, "%-15s %-12s %-34s %7.0f %9.4f %8s %6.1f%% %9.4f\n", r->op, r->what, r->kernel, (double)r->calls / tokens,
                  r->ms / tokens, rate, 100 * r->share, r->loss_ms / tokens);
  }
  wr_str_printf(&s, "%-15s %-12s %-34s %7s %9.4f %8.2f %6.1f%%\n", "all", "", "", "", p->wall_ms / tokens,
                p->wall_ms > 0 ? p->bytes / p->wall_ms * 1e-6 : 0, 100.0);
  if (p->n_rows) {
    const weir_profile_row *r = &p->rows[0];
    wr_str_printf(&s, "largest loss: %s%s%s%s%s, %.4f ms a token beyond what its bytes take at %.1f GB/s\n", r->op,
                  r->what[0] ? " of " : "", r->what, r->kernel[0] ? " in " : "", r->kernel, r->loss_ms / tokens, p->limit_gb_s);
  }
  return wr_give_text(&s, out, cap);
}
