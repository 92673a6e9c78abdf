/* select + place + plan + run: from a checked program to a list that a device replays.
 *
 * In order: which values exist (liveness), which row runs each call and the scratch it books (select), where everything lives (offsets in one
 * arena; PARAM and STATE where the caller bound them, else in buffers of the plan), and before which steps a barrier must stand.
 *
 * Barriers: a step needs one when it touches memory that a step since the last barrier wrote, or writes memory that one read. That is decided on
 * addresses, so true dependencies and reuse of memory are one rule. */
#include <stdlib.h>

#include "core/core.h"
#include "core/core_i.h"

enum { NEXT_WITHIN = 12, /* instructions */ HUGE_ARENA_BYTES = 64 << 20 };

typedef struct touched {
  const char *begin, *end;
  bool written;
} touched;

static void describe_arg(const wr_value *v, bool absent, wr_arg *a) {
  *a = (wr_arg){.ext = {1, 1, 1, 1}};
  if (absent) return;
  memcpy(a->ext, v->t.ext, sizeof a->ext);
  a->stride_bytes = v->stride_bytes;
  a->rank = v->t.rank;
  a->dtype = v->t.dtype;
  a->layout = v->t.layout;
  a->live = v->t.live;
}

static void describe_call(const wr_program *p, const wr_memory_plan *m, int i, const wr_regs *regs, wr_call *c) {
  const wr_instr *in = &p->instrs[i];
  *c = (wr_call){.params = in->params, .regs = regs, .acc = in->acc};
  for (int a = 0; a < WR_MAX_ARGS; a++) {
    const int v = in->args[a];
    if (v < 0)
      c->args[a] = (wr_arg){.ext = {1, 1, 1, 1}};
    else
      describe_arg(&p->values[v], m->values[v].absent, &c->args[a]);
  }
}

static wr_regs full_bucket(const wr_program *p) {
  wr_regs r = {0};
  for (int v = 0; v < p->n_values; v++) {
    const wr_vtype *t = &p->values[v].t;
    if (t->live) r.live[t->live] = WR_MAX(r.live[t->live], t->ext[0]);
  }
  return r;
}

/* Memory of the PARAM or STATE values that the caller has not bound, one buffer a kind. */
static weir_status place_unbound(wr_plan *plan, wr_kind kind, wr_mem_class c, wr_buf *out) {
  wr_program *p = plan->program;
  size_t bytes = 0;
  for (int v = 0; v < p->n_values; v++) {
    if (p->values[v].kind != kind || p->values[v].bound) continue;
    p->values[v].offset = bytes;
    const size_t need = wr_value_bytes(&p->values[v]);
    if (!wr_add_size(bytes, (need + 63) / 64 * 64, &bytes)) return wr_fail_nomem(SIZE_MAX, "the values of a program");
  }
  if (!bytes) return WEIR_OK;
  return wr_mem_alloc(plan->mem, c, bytes, false, kind == WR_PARAM ? "parameters" : "state", out);
}

static void *value_addr(const wr_plan *plan, const wr_memory_plan *m, int place, int v) {
  const wr_value *val = &plan->program->values[v];
  if (val->bound) return (char *)val->buf.addr + val->offset;
  if (val->kind == WR_PARAM) return (char *)plan->params.addr + val->offset;
  if (val->kind == WR_STATE) return (char *)plan->states.addr + val->offset;
  return (char *)plan->places[place].arena.addr + m->values[v].offset;
}

/* Does a step that touches [begin, end) have to wait for what was touched since the last barrier? */
static bool conflicts(const touched *list, size_t n, const touched *t) {
  for (size_t i = 0; i < n; i++)
    if ((list[i].written || t->written) && list[i].begin < t->end && t->begin < list[i].end) return true;
  return false;
}

static weir_status find_barriers(wr_plan *plan, const wr_plan_part *part) {
  const wr_program *p = plan->program;
  touched *list = NULL;
  size_t n = 0, cap = 0;
  for (int i = part->begin; i < part->end; i++) {
    wr_step *step = &plan->list.steps[i];
    const wr_instr *in = &p->instrs[i];
    touched now[WR_MAX_ARGS + 1];
    size_t k = 0;
    for (int a = 0; in->op->args[a].role != WR_ARG_END; a++) {
      if (!step->call.args[a].data) continue;
      const char *at = step->call.args[a].data;
      now[k++] = (touched){at, at + wr_value_bytes(&p->values[in->args[a]]), in->op->args[a].role != WR_IN};
    }
    if (step->call.scratch)
      now[k++] = (touched){step->call.scratch, (char *)step->call.scratch + step->call.scratch_bytes, true};
    for (size_t t = 0; t < k && !step->barrier; t++) step->barrier = conflicts(list, n, &now[t]);
    if (step->barrier) {
      n = 0;
      plan->n_barriers++;
    }
    if (!wr_grow((void **)&list, &cap, n + k, sizeof *list)) {
      wr_free(list);
      return wr_fail_nomem((n + k) * sizeof *list, "the barriers of a plan");
    }
    memcpy(list + n, now, k * sizeof *now);
    n += k;
  }
  wr_free(list);
  return WEIR_OK;
}

static weir_status select_rows(wr_plan *plan, wr_memory_plan *m, const wr_regs *full) {
  wr_program *p = plan->program;
  WR_TRY(wr_use_check(plan->options.use));
  for (int i = 0, part = 0; i < p->n_instrs; i++) {
    part += i == plan->parts[part].end;
    const wr_device *d = plan->places[plan->parts[part].place].mem->device;
    wr_call *c = &plan->list.steps[i].call;
    describe_call(p, m, i, full, c);
    const wr_row *row = wr_select(p->instrs[i].op, c, d, &plan->options, NULL);
    if (!row) return wr_fail_prefix(WEIR_EUNSUPPORTED, "instruction %d (%s): ", i, p->instrs[i].op->name);
    if (plan->options.classes && plan->options.classes->oom) {
      plan->options.classes->oom = false;
      return wr_fail_nomem(sizeof *plan->options.classes, "the classes of a plan");
    }
    p->instrs[i].row = row;
    m->scratch[i].bytes = row->scratch ? row->scratch(c, d->n_threads) : 0;
    plan->scratch_bytes = WR_MAX(plan->scratch_bytes, m->scratch[i].bytes);
  }
  return WEIR_OK;
}

static uint64_t fingerprint(const wr_plan *plan) {
  const wr_program *p = plan->program;
  uint64_t h = wr_hash64(&plan->mem->device->isa, sizeof(uint32_t), 1);
  for (int i = 0; i < p->n_instrs; i++) {
    const wr_instr *in = &p->instrs[i];
    h = wr_hash64(in->op->name, strlen(in->op->name), h);
    h = wr_hash64(in->row->klass, strlen(in->row->klass), h);
  }
  for (int v = 0; v < p->n_values; v++) h = wr_hash64(&p->values[v].t, offsetof(wr_vtype, ext), h);
  return h;
}

static void resolve(wr_plan *plan, const wr_memory_plan *m, const wr_plan_part *part) {
  const wr_program *p = plan->program;
  const wr_plan_place *place = &plan->places[part->place];
  for (int i = part->begin; i < part->end; i++) {
    const wr_instr *in = &p->instrs[i];
    wr_step *step = &plan->list.steps[i];
    wr_cost cost = {0};
    if (in->op->cost) in->op->cost(&step->call, &cost);
    *step = (wr_step){.run = in->row->run,
                      .launch = in->row->launch,
                      .name = in->row->name,
                      .bytes = cost.read_bytes + cost.write_bytes,
                      .flop = cost.flop,
                      .call = step->call};
    step->call.regs = place->io.addr;
    for (int a = 0; a < WR_MAX_ARGS; a++)
      if (in->args[a] >= 0 && step->call.args[a].rank) step->call.args[a].data = value_addr(plan, m, part->place, in->args[a]);
    if (m->scratch[i].bytes) {
      step->call.scratch = (char *)place->arena.addr + m->scratch[i].offset;
      step->call.scratch_bytes = m->scratch[i].bytes;
    }
    /* the call of the same op that follows soon, if any: what `next` hints at */
    for (int j = i + 1; j < WR_MIN(part->end, i + NEXT_WITHIN) && !step->call.next; j++)
      if (p->instrs[j].op == in->op) step->call.next = &plan->list.steps[j].call;
  }
}

static void tell_values(wr_plan *plan, const wr_memory_plan *m) {
  for (int v = 0; v < plan->program->n_values; v++) {
    wr_value *val = &plan->program->values[v];
    val->first = m->values[v].first;
    val->last = m->values[v].last;
    if (val->kind == WR_PARAM || val->kind == WR_STATE) continue;
    val->buf = plan->places[plan->home[v]].arena;
    val->offset = m->values[v].absent ? SIZE_MAX : m->values[v].offset;
  }
}

static weir_status take_place(wr_plan *plan, int k) {
  wr_plan_place *place = &plan->places[k];
  const wr_plan *lender = plan->options.lender;
  const wr_plan_place *lent = lender && k < lender->n_places ? &lender->places[k] : NULL;
  if (lent && lent->mem == place->mem && lent->arena.bytes >= plan->arena_bytes) {
    place->arena = lent->arena;
    place->borrowed_arena = true;
  } else {
    /* huge pages where a step walks through more than the smaller ones' tables hold */
    const bool huge = plan->arena_bytes >= HUGE_ARENA_BYTES;
    WR_TRY(wr_mem_alloc(place->mem, WR_MEM_ACTIVATIONS, WR_MAX(plan->arena_bytes, (size_t)64), huge, "activations",
                        &place->arena));
  }
  return wr_mem_alloc(place->mem, WR_MEM_IO, sizeof(wr_regs), false, "registers", &place->io);
}

/* The part of the whole list that a device runs. */
static weir_status make_list(wr_plan *plan, wr_plan_part *part) {
  wr_device *d = plan->places[part->place].mem->device;
  wr_list *l = &part->list;
  l->steps = plan->list.steps + part->begin;
  l->n = part->end - part->begin;
  if (plan->list.step_ns) l->step_ns = plan->list.step_ns + part->begin;
  const size_t takes = (size_t)wr_list_take_stride(l->n) * (size_t)d->n_threads;
  l->take = wr_calloc(WR_MAX(takes, (size_t)1), sizeof *l->take);
  if (!l->take) return wr_fail_nomem(takes * sizeof *l->take, "a plan");
  return d->api->prepare ? d->api->prepare(d, l) : WEIR_OK;
}

static weir_status make(wr_plan *plan, wr_memory_plan *m) {
  wr_program *p = plan->program;
  const size_t n = (size_t)WR_MAX(p->n_instrs, 1);
  const wr_regs full = full_bucket(p);
  m->values = wr_calloc((size_t)WR_MAX(p->n_values, 1), sizeof *m->values);
  m->scratch = wr_calloc(n, sizeof *m->scratch);
  plan->list.steps = wr_calloc(n, sizeof *plan->list.steps);
  plan->regs_host = wr_calloc(1, sizeof *plan->regs_host);
  if (plan->options.profile) plan->list.step_ns = wr_calloc(n, sizeof *plan->list.step_ns);
  if (!m->values || !m->scratch || !plan->list.steps || !plan->regs_host || (plan->options.profile && !plan->list.step_ns))
    return wr_fail_nomem(n * sizeof *plan->list.steps, "a plan");
  plan->list.n = p->n_instrs;
  *plan->regs_host = full;
  WR_TRY(wr_plan_split(plan));
  WR_TRY(wr_liveness(p, m));
  WR_TRY(select_rows(plan, m, &full));
  WR_TRY(wr_place_arena(p, m));
  plan->arena_bytes = m->arena_bytes;
  for (int k = 0; k < plan->n_places; k++) WR_TRY(take_place(plan, k));
  WR_TRY(place_unbound(plan, WR_PARAM, WR_MEM_WEIGHTS, &plan->params));
  WR_TRY(place_unbound(plan, WR_STATE, WR_MEM_STATE, &plan->states));
  for (int i = 0; i < plan->n_parts; i++) resolve(plan, m, &plan->parts[i]);
  tell_values(plan, m);
  for (int i = 0; i < plan->n_parts; i++) {
    WR_TRY(find_barriers(plan, &plan->parts[i]));
    WR_TRY(make_list(plan, &plan->parts[i]));
  }
  plan->fingerprint = fingerprint(plan);
  return WEIR_OK;
}

weir_status wr_plan_make(wr_program *p, wr_mem *mem, const wr_plan_options *options, wr_plan *out) {
  WR_TRY(wr_check(p));
  wr_plan plan = {.program = p, .mem = mem, .options = options ? *options : (wr_plan_options){0}};
  plan.places[plan.n_places++].mem = mem;
  wr_memory_plan m = {0};
  const weir_status s = make(&plan, &m);
  wr_free(m.values);
  wr_free(m.scratch);
  if (s != WEIR_OK) {
    wr_plan_free(&plan);
    return s;
  }
  *out = plan;
  return WEIR_OK;
}

void wr_plan_free(wr_plan *plan) {
  if (!plan->mem) return;
  for (int i = 0; i < plan->n_parts; i++) {
    wr_plan_part *part = &plan->parts[i];
    wr_device *d = plan->places[part->place].mem->device;
    if (part->list.prepared) d->api->release(d, &part->list);
    wr_free(part->list.take);
    wr_free(part->moves);
  }
  for (int k = 0; k < plan->n_places; k++) {
    wr_plan_place *place = &plan->places[k];
    if (!place->borrowed_arena) wr_mem_free(place->mem, WR_MEM_ACTIVATIONS, &place->arena);
    wr_mem_free(place->mem, WR_MEM_IO, &place->io);
  }
  wr_mem_free(plan->mem, WR_MEM_WEIGHTS, &plan->params);
  wr_mem_free(plan->mem, WR_MEM_STATE, &plan->states);
  wr_free(plan->list.steps);
  wr_free(plan->list.step_ns);
  wr_free(plan->parts);
  wr_free(plan->home);
  wr_free(plan->readers);
  wr_free(plan->regs_host);
  *plan = (wr_plan){0};
}

/* The buffer and offset of a value that has memory. */
static weir_status locate(const wr_plan *plan, int value, const wr_buf **buf, size_t *offset) {
  const wr_program *p = plan->program;
  if (value < 0 || value >= p->n_values)
    return wr_fail(WEIR_EUSAGE, "value %d is not one of the program's %d", value, p->n_values);
  const wr_value *v = &p->values[value];
  *buf = v->bound              ? &v->buf
         : v->kind == WR_PARAM ? &plan->params
         : v->kind == WR_STATE ? &plan->states
                               : &plan->places[plan->home[value]].arena;
  *offset = v->offset;
  if (v->offset == SIZE_MAX || v->kind == WR_TEMP || v->kind == WR_SAVED)
    return wr_fail(WEIR_EUSAGE, "value '%s' is a temporary: mark it as an output to read it", v->name);
  return WEIR_OK;
}

static weir_status in_bounds(const wr_plan *plan, int value, size_t offset, size_t n) {
  const size_t bytes = wr_value_bytes(&plan->program->values[value]);
  if (offset <= bytes && n <= bytes - offset) return WEIR_OK;
  return wr_fail(WEIR_EUSAGE, "%zu bytes at %zu are past the end of value '%s' (%zu bytes)", n, offset,
                 plan->program->values[value].name, bytes);
}

static weir_status write_to(wr_plan *plan, const wr_buf *buf, size_t at, const void *src, size_t n) {
  wr_buf writable = *buf;
  if (buf->device->api != &wr_device_cpu) plan->moved_bytes += (double)n;
  return buf->device->api->write(buf->device, &writable, at, src, n);
}

weir_status wr_plan_write(wr_plan *plan, int value, size_t offset, const void *src, size_t n) {
  const wr_buf *buf;
  size_t at;
  WR_TRY(locate(plan, value, &buf, &at));
  WR_TRY(in_bounds(plan, value, offset, n));
  if (plan->program->values[value].kind != WR_INPUT) return write_to(plan, buf, at + offset, src, n);
  for (int k = 0; k < plan->n_places; k++)
    if (plan->readers[value] >> k & 1) WR_TRY(write_to(plan, &plan->places[k].arena, at + offset, src, n));
  return WEIR_OK;
}

weir_status wr_plan_read(wr_plan *plan, int value, size_t offset, void *dst, size_t n) {
  const wr_buf *buf;
  size_t at;
  WR_TRY(locate(plan, value, &buf, &at));
  WR_TRY(in_bounds(plan, value, offset, n));
  if (buf->device->api != &wr_device_cpu) plan->moved_bytes += (double)n;
  return buf->device->api->read(buf->device, buf, at + offset, dst, n);
}

void *wr_plan_host(wr_plan *plan, int value) {
  const wr_buf *buf;
  size_t at;
  if (locate(plan, value, &buf, &at) != WEIR_OK) return NULL;
  char *host = buf->device->api->host(buf->device, buf);
  return host ? host + at : NULL;
}

/* NaN in everything that a run is supposed to write: whoever reads it before shows. */
static void poison(wr_plan *plan, const wr_plan_place *place) {
  char *arena = place->mem->device->api->host(place->mem->device, &place->arena);
  if (!arena) return;
  const wr_program *p = plan->program;
  size_t at = 0;
  /* INPUT values lie first in the arena, each aligned to 64 bytes, in the order of the table: skip them. */
  for (int v = 0; v < p->n_values; v++)
    if (p->values[v].kind == WR_INPUT) at = WR_MAX(at, p->values[v].offset + wr_value_bytes(&p->values[v]));
  if (plan->arena_bytes > at) memset(arena + at, 0xff, plan->arena_bytes - at);
}

weir_status wr_plan_run(wr_plan *plan) {
  for (int k = 0; k < plan->n_places; k++) {
    wr_plan_place *place = &plan->places[k];
    if (plan->options.poison) poison(plan, place);
    WR_TRY(place->mem->device->api->write(place->mem->device, &place->io, 0, plan->regs_host, sizeof *plan->regs_host));
  }
  for (int i = 0; i < plan->n_parts; i++) {
    wr_plan_part *part = &plan->parts[i];
    wr_device *d = plan->places[part->place].mem->device;
    for (int k = 0; k < part->n_moves; k++) WR_TRY(wr_move(plan, part, &part->moves[k]));
    WR_TRY(d->api->run(d, &part->list));
  }
  return WEIR_OK;
}

void wr_plan_cost(const wr_plan *plan, int step, const wr_regs *regs, wr_cost *out) {
  const wr_op *op = plan->program->instrs[step].op;
  wr_call c = plan->list.steps[step].call;
  c.regs = regs;
  *out = (wr_cost){0};
  if (op->cost) op->cost(&c, out);
}

void wr_plan_why(const wr_plan *plan, wr_str *s) {
  enum { KINDS = 128 };
  const wr_program *p = plan->program;
  wr_str one = {0};
  size_t begin[KINDS], end[KINDS]; /* in s: what was told */
  int n = 0;
  const wr_regs full = full_bucket(p);
  const wr_plan_options options = {.tune = plan->options.tune, .use = plan->options.use};
  for (int i = 0, part = 0; i < plan->list.n; i++) {
    part += i == plan->parts[part].end;
    const wr_op *op = p->instrs[i].op;
    wr_call call = plan->list.steps[i].call;
    call.regs = &full;
    wr_str_clear(&one);
    wr_str_printf(&one, "%s\n", op->name);
    (void)wr_select(op, &call, plan->places[plan->parts[part].place].mem->device, &options, &one);
    if (one.oom || s->oom) break;
    int k = 0;
    while (k < n && (end[k] - begin[k] != one.len || memcmp(s->ptr + begin[k], one.ptr, one.len) != 0)) k++;
    if (k < n) continue;
    if (n < KINDS) begin[n] = s->len, end[n++] = s->len + one.len;
    wr_str_put(s, one.ptr, one.len);
  }
  if (one.oom) s->oom = true;
  wr_str_free(&one);
}
