/* Which device runs which instruction of a plan, and what is moved between devices before it can.
 *
 * An instruction runs where the PARAM and STATE values that are bound for it lie; one without such, where the instruction before it runs (the
 * first ones: where the first that has some does). So a model is split by where its weights were put, and whatever surrounds a product stays beside it. A
 * run of instructions of one place is a part. Before a part runs, the values that it reads and that another place has newer are moved. A value's
 * newest copy is at the place that wrote it last; copies made since are as good until then. */
#include "core/core.h"
#include "core/core_i.h"

static bool reads(const wr_op_arg *a) { return a->role != WR_OUT; }
static bool resides(const wr_value *v) { return v->kind == WR_PARAM || v->kind == WR_STATE; }

static weir_status find_place(wr_plan *plan, const wr_value *v, int *out) {
  for (int k = 0; k < plan->n_places; k++)
    if (plan->places[k].mem->device == v->buf.device) {
      *out = k;
      return WEIR_OK;
    }
  for (int i = 0; i < plan->options.n_others; i++) {
    if (plan->options.others[i]->device != v->buf.device || plan->n_places == WR_PLAN_DEVICES) continue;
    *out = plan->n_places;
    plan->places[plan->n_places++].mem = plan->options.others[i];
    return WEIR_OK;
  }
  return wr_fail(WEIR_EUSAGE, "value '%s' is on a device that the plan was not given", v->name);
}

/* The place that instruction i has to run at; -1: any. */
static weir_status place_of(wr_plan *plan, int i, int *out) {
  const wr_program *p = plan->program;
  const wr_instr *in = &p->instrs[i];
  const wr_value *first = NULL;
  *out = -1;
  for (int a = 0; in->op->args[a].role != WR_ARG_END; a++) {
    const wr_value *v = in->args[a] < 0 ? NULL : &p->values[in->args[a]];
    if (!v || !resides(v)) continue;
    int place = 0;
    if (v->bound) WR_TRY(find_place(plan, v, &place));
    if (*out >= 0 && place != *out)
      return wr_fail(WEIR_EUSAGE, "instruction %d (%s) takes '%s' of %s and '%s' of %s", i, in->op->name, first->name,
                     plan->places[*out].mem->device->api->name, v->name, plan->places[place].mem->device->api->name);
    *out = place;
    first = v;
  }
  return WEIR_OK;
}

static weir_status add_part(wr_plan *plan, size_t *cap, int place, int begin) {
  if (!wr_grow((void **)&plan->parts, cap, (size_t)plan->n_parts + 1, sizeof *plan->parts))
    return wr_fail_nomem(sizeof *plan->parts, "the parts of a plan");
  if (plan->n_parts) plan->parts[plan->n_parts - 1].end = begin;
  plan->parts[plan->n_parts++] = (wr_plan_part){.place = place, .begin = begin, .end = plan->program->n_instrs};
  return WEIR_OK;
}

static weir_status find_parts(wr_plan *plan) {
  size_t cap = 0;
  int now = -1;
  for (int i = 0; i < plan->program->n_instrs; i++) {
    int place;
    WR_TRY(place_of(plan, i, &place));
    if (place < 0) continue;
    if (place != now) WR_TRY(add_part(plan, &cap, place, now < 0 ? 0 : i));
    now = place;
  }
  return now < 0 ? add_part(plan, &cap, 0, 0) : WEIR_OK;
}

/* has[v]: bit k: place k has v as it was written last. */
static weir_status find_moves(wr_plan *plan, wr_plan_part *part, uint8_t *has) {
  const wr_program *p = plan->program;
  const uint8_t here = (uint8_t)(1 << part->place);
  size_t cap = 0;
  for (int i = part->begin; i < part->end; i++) {
    const wr_instr *in = &p->instrs[i];
    for (int a = 0; in->op->args[a].role != WR_ARG_END; a++) {
      const int v = in->args[a];
      if (v < 0) continue;
      plan->readers[v] |= here;
      if (resides(&p->values[v])) continue;
      const bool adds = in->acc >> a & 1;
      if ((reads(&in->op->args[a]) || adds) && has[v] && !(has[v] & here)) {
        if (!wr_grow((void **)&part->moves, &cap, (size_t)part->n_moves + 1, sizeof *part->moves))
          return wr_fail_nomem(sizeof *part->moves, "the moves of a plan");
        part->moves[part->n_moves++] = (struct wr_value_move){v, plan->home[v]};
        has[v] |= here;
      }
      if (in->op->args[a].role == WR_IN) continue;
      has[v] = here;
      plan->home[v] = (uint8_t)part->place;
    }
  }
  return WEIR_OK;
}

weir_status wr_plan_split(wr_plan *plan) {
  const size_t n = (size_t)WR_MAX(plan->program->n_values, 1);
  plan->home = wr_calloc(n, 1);
  plan->readers = wr_calloc(n, 1);
  uint8_t *has = wr_calloc(n, 1);
  weir_status s = plan->home && plan->readers && has ? WEIR_OK : wr_fail_nomem(n, "the places of values");
  if (s == WEIR_OK) s = find_parts(plan);
  for (int i = 0; i < plan->n_parts && s == WEIR_OK; i++) s = find_moves(plan, &plan->parts[i], has);
  wr_free(has);
  return s;
}

weir_status wr_move(wr_plan *plan, const wr_plan_part *to, const struct wr_value_move *m) {
  const wr_value *v = &plan->program->values[m->value];
  wr_plan_place *dst = &plan->places[to->place];
  const wr_plan_place *src = &plan->places[m->from];
  wr_device *d = dst->mem->device, *s = src->mem->device;
  const int64_t rows = v->t.live ? WR_MIN(plan->regs_host->live[v->t.live], v->t.ext[0]) : v->t.ext[0];
  const size_t bytes = v->t.layout == WR_PLAIN ? (size_t)(rows * v->stride_bytes) : wr_value_bytes(v);
  const char *host = s->api->host(s, &src->arena);
  char *there = host ? NULL : d->api->host(d, &dst->arena), *bounce = NULL;
  weir_status status = WEIR_OK;
  plan->moved_bytes += (double)bytes;
  if (there) return s->api->read(s, &src->arena, v->offset, there + v->offset, bytes);
  if (!host) {
    bounce = wr_malloc(bytes);
    status = bounce ? s->api->read(s, &src->arena, v->offset, bounce, bytes) : wr_fail_nomem(bytes, "a move between devices");
  }
  if (status == WEIR_OK) status = d->api->write(d, &dst->arena, v->offset, host ? host + v->offset : bounce, bytes);
  wr_free(bounce);
  return status;
}
