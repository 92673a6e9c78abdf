/* A case in host memory: guarded arguments, a wr_call, and runs of single rows through a device's list. See cases.h.
 *
 * Memory of an argument: guard, then its rows, `pad` bytes after each but in packed layouts, then guard. Guards and padding
 * hold a pattern of their address, so a write past a row shows wherever it lands. */
#include "ops/cases.h"

enum { NAN_BYTE = 0xff };

static uint8_t guard_byte(size_t at) { return (uint8_t)(0xa5 ^ at * 7); }

static void set_guards(wr_trial_arg *t, int64_t stride) {
  size_t total = t->bytes + 2 * WR_TRIAL_GUARD;
  for (size_t i = 0; i < WR_TRIAL_GUARD; i++) t->base[i] = guard_byte(i);
  for (size_t r = 0; r < t->rows; r++)
    for (size_t i = WR_TRIAL_GUARD + r * (size_t)stride + t->row_bytes; i < WR_TRIAL_GUARD + (r + 1) * (size_t)stride; i++)
      t->base[i] = guard_byte(i);
  for (size_t i = WR_TRIAL_GUARD + t->bytes; i < total; i++) t->base[i] = guard_byte(i);
}

static weir_status place(wr_trial_arg *t, wr_arg *a, int64_t pad, bool keeps) {
  int64_t inner = wr_inner(a);
  t->row_bytes = wr_layout_row_bytes((wr_layout)a->layout, (wr_dtype)a->dtype, inner);
  t->rows = (size_t)(a->layout != WR_PACK16 ? a->ext[0] : (a->ext[0] + WR_PACK_ROWS - 1) / WR_PACK_ROWS);
  a->stride_bytes = (int64_t)t->row_bytes + (a->layout != WR_PACK16 && a->rank > 1 ? pad : 0);
  t->bytes = t->rows * (size_t)a->stride_bytes;
  t->base = wr_pages_alloc(t->bytes + 2 * WR_TRIAL_GUARD, t->bytes > (4u << 20));
  if (keeps) t->pristine = wr_malloc(t->bytes);
  if (!t->base || (keeps && !t->pristine)) return wr_fail_nomem(t->bytes, "a test case");
  a->data = t->base + WR_TRIAL_GUARD;
  set_guards(t, a->stride_bytes);
  return WEIR_OK;
}

static weir_status open_args(wr_case *c, wr_trial *t) {
  const wr_instr *in = &t->program.instrs[t->program.n_instrs - 1];
  t->call.params = in->params;
  t->call.regs = &c->regs;
  for (int i = 0; i < WR_MAX_ARGS; i++) {
    wr_arg *a = &t->call.args[i];
    *a = (wr_arg){.ext = {1, 1, 1, 1}};
    if (in->args[i] < 0) continue;
    const wr_value *v = &t->program.values[in->args[i]];
    memcpy(a->ext, v->t.ext, sizeof a->ext);
    a->rank = v->t.rank, a->dtype = v->t.dtype, a->layout = v->t.layout, a->live = v->t.live;
    bool out = t->op->args[i].role == WR_OUT;
    WR_TRY(place(&t->args[i], a, c->pad, !out));
    if (out) continue;
    WR_TRY(wr_case_fill(c, &t->program, in->args[i], a));
    memcpy(t->args[i].pristine, a->data, t->args[i].bytes);
  }
  if (t->op->cost) t->op->cost(&t->call, &t->cost);
  return WEIR_OK;
}

weir_status wr_trial_open(wr_case *c, wr_trial *out) {
  *out = (wr_trial){.kase = c, .op = c->op};
  wr_program_init(&out->program);
  weir_status s = wr_case_build(c, &out->program);
  if (s == WEIR_OK) s = open_args(c, out);
  if (s != WEIR_OK) wr_trial_close(out);
  return s;
}

void wr_trial_close(wr_trial *t) {
  for (int i = 0; i < WR_MAX_ARGS; i++) {
    wr_pages_free(t->args[i].base, t->args[i].base ? t->args[i].bytes + 2 * WR_TRIAL_GUARD : 0);
    wr_free(t->args[i].pristine);
    t->args[i] = (wr_trial_arg){0};
  }
  wr_pages_free(t->scratch, t->scratch ? t->scratch_total : 0);
  t->scratch = NULL;
  wr_program_free(&t->program);
}

weir_status wr_trial_reset(wr_trial *t, const wr_row *row, int n_threads) {
  for (int i = 0; i < WR_MAX_ARGS; i++) {
    wr_trial_arg *a = &t->args[i];
    if (!a->base) continue;
    if (a->pristine)
      memcpy(a->base + WR_TRIAL_GUARD, a->pristine, a->bytes);
    else
      memset(a->base + WR_TRIAL_GUARD, NAN_BYTE, a->bytes);
    set_guards(a, t->call.args[i].stride_bytes);
  }
  wr_pages_free(t->scratch, t->scratch ? t->scratch_total : 0);
  t->scratch = NULL;
  t->call.scratch = NULL;
  t->call.scratch_bytes = row->scratch ? row->scratch(&t->call, n_threads) : 0;
  if (!t->call.scratch_bytes) return WEIR_OK;
  size_t total = t->scratch_total = t->call.scratch_bytes + 2 * WR_TRIAL_GUARD;
  t->scratch = wr_pages_alloc(total, false);
  if (!t->scratch) return wr_fail_nomem(total, "scratch of a test case");
  for (size_t i = 0; i < total; i++) ((uint8_t *)t->scratch)[i] = guard_byte(i);
  t->call.scratch = (uint8_t *)t->scratch + WR_TRIAL_GUARD;
  memset(t->call.scratch, NAN_BYTE, t->call.scratch_bytes);
  return WEIR_OK;
}

/* What a call touches, as a device has it that follows no addresses but its own: whole areas, guards and all. */
enum { AREAS = WR_MAX_ARGS + 2 };
typedef struct staging {
  struct {
    uint8_t *host;
    wr_buf buf;
  } areas[AREAS];
  int n;
} staging;

static weir_status stage_area(staging *g, wr_device *d, void *host, size_t bytes) {
  if (!host) return WEIR_OK;
  wr_buf *buf = &g->areas[g->n].buf;
  WR_TRY(d->api->alloc(d, bytes, false, "a test case", buf));
  g->areas[g->n++].host = host;
  return d->api->write(d, buf, 0, host, bytes);
}

static void *staged(const staging *g, const void *host) {
  const uint8_t *at = host;
  for (int i = 0; i < g->n; i++)
    if (at >= g->areas[i].host && at < g->areas[i].host + g->areas[i].buf.bytes)
      return (char *)g->areas[i].buf.addr + (at - g->areas[i].host);
  return NULL;
}

static weir_status stage(staging *g, const wr_trial *t, wr_device *d, wr_call *c) {
  WR_TRY(stage_area(g, d, (void *)(uintptr_t)c->regs, sizeof *c->regs)); /* the first: not read back */
  for (int i = 0; i < WR_MAX_ARGS; i++) WR_TRY(stage_area(g, d, t->args[i].base, t->args[i].bytes + 2 * WR_TRIAL_GUARD));
  WR_TRY(stage_area(g, d, t->scratch, t->scratch_total));
  c->regs = staged(g, c->regs);
  c->scratch = staged(g, c->scratch);
  for (int i = 0; i < WR_MAX_ARGS; i++) c->args[i].data = staged(g, c->args[i].data);
  return WEIR_OK;
}

static weir_status unstage(staging *g, wr_device *d, weir_status s) {
  for (int i = 0; i < g->n; i++) {
    wr_buf *buf = &g->areas[i].buf;
    if (i && s == WEIR_OK) s = d->api->read(d, buf, 0, g->areas[i].host, buf->bytes);
    d->api->free(d, buf);
  }
  return s;
}

static weir_status run_list(wr_device *d, wr_list *list, uint64_t *ns) {
  if (d->api->prepare) WR_TRY(d->api->prepare(d, list));
  const uint64_t before = wr_now_ns();
  const weir_status s = d->api->run(d, list);
  if (ns) *ns = wr_now_ns() - before;
  if (list->prepared) d->api->release(d, list);
  return s;
}

weir_status wr_trial_run(wr_trial *t, const wr_row *row, wr_device *d, int n, uint64_t *ns) {
  size_t takes = (size_t)wr_list_take_stride(n) * (size_t)d->n_threads;
  wr_list list = {.n = n};
  wr_call call = t->call;
  staging g = {.n = 0};
  list.steps = wr_calloc((size_t)n, sizeof *list.steps);
  list.take = wr_calloc(takes, sizeof *list.take);
  weir_status s = list.steps && list.take ? WEIR_OK : wr_fail_nomem((size_t)n * sizeof *list.steps, "a list of test calls");
  if (s == WEIR_OK && d->api->host != wr_host_addr) s = stage(&g, t, d, &call);
  for (int i = 0; i < n && s == WEIR_OK; i++)
    list.steps[i] = (wr_step){.run = row->run, .launch = row->launch, .name = row->name, .barrier = true, .call = call};
  if (s == WEIR_OK) s = run_list(d, &list, ns);
  s = unstage(&g, d, s);
  wr_free(list.steps);
  wr_free(list.take);
  return s;
}

static bool guards_hold(const char *name, const uint8_t *base, size_t bytes, size_t rows, size_t stride, size_t row_bytes,
                        char *why, size_t cap) {
  size_t total = bytes + 2 * WR_TRIAL_GUARD, at = total;
  for (size_t i = 0; i < WR_TRIAL_GUARD && at == total; i++) {
    if (base[i] != guard_byte(i))
      at = i;
    else if (base[WR_TRIAL_GUARD + bytes + i] != guard_byte(WR_TRIAL_GUARD + bytes + i))
      at = WR_TRIAL_GUARD + bytes + i;
  }
  for (size_t r = 0; r < rows && at == total; r++)
    for (size_t i = WR_TRIAL_GUARD + r * stride + row_bytes; i < WR_TRIAL_GUARD + (r + 1) * stride; i++)
      if (base[i] != guard_byte(i)) at = i;
  if (at == total) return true;
  snprintf(why, cap, "wrote out of bounds of %s, at byte %lld of its %zu", name, (long long)at - WR_TRIAL_GUARD, bytes);
  return false;
}

bool wr_trial_intact(const wr_trial *t, char *why, size_t cap) {
  for (int i = 0; i < WR_MAX_ARGS; i++) {
    const wr_trial_arg *a = &t->args[i];
    const wr_op_arg *arg = &t->op->args[i];
    if (!a->base) continue;
    size_t stride = (size_t)t->call.args[i].stride_bytes;
    if (!guards_hold(arg->name, a->base, a->bytes, a->rows, stride, a->row_bytes, why, cap)) return false;
    for (size_t r = 0; arg->role == WR_IN && r < a->rows; r++)
      if (memcmp(a->base + WR_TRIAL_GUARD + r * stride, a->pristine + r * stride, a->row_bytes) != 0) {
        snprintf(why, cap, "changed its input %s, row %zu", arg->name, r);
        return false;
      }
  }
  return !t->scratch || guards_hold("scratch", t->scratch, t->scratch_total - 2 * WR_TRIAL_GUARD, 0, 0, 0, why, cap);
}

static bool widens(const wr_arg *a) { return a->rank && a->layout == WR_PLAIN && wr_dtypes[a->dtype].kind == WR_FLOAT; }

weir_status wr_trial_as_double(const wr_trial *t, wr_trial *out) {
  *out = (wr_trial){.kase = t->kase, .op = t->op, .call = t->call, .cost = t->cost};
  wr_program_init(&out->program); /* none: the parameters stay with `t`, which must live on */
  out->call.scratch = NULL;
  out->call.scratch_bytes = 0;
  for (int i = 0; i < WR_MAX_ARGS; i++) {
    const wr_arg *from = &t->call.args[i];
    wr_arg *to = &out->call.args[i];
    if (!from->rank) continue;
    if (widens(from)) to->dtype = WR_F64;
    weir_status s = place(&out->args[i], to, 0, t->args[i].pristine);
    if (s != WEIR_OK) {
      wr_trial_close(out);
      return s;
    }
    if (!t->args[i].pristine) continue;
    wr_arg held = *from;
    held.data = t->args[i].pristine;
    for (int64_t r = 0; r < from->ext[0] && widens(from); r++)
      for (int64_t k = 0; k < wr_inner(from); k++) wr_set(to, r, k, wr_get(&held, r, k));
    for (size_t r = 0; r < t->args[i].rows && !widens(from); r++)
      memcpy((char *)to->data + r * (size_t)to->stride_bytes, (char *)held.data + r * (size_t)held.stride_bytes,
             t->args[i].row_bytes);
    memcpy(out->args[i].pristine, to->data, out->args[i].bytes);
  }
  return WEIR_OK;
}
