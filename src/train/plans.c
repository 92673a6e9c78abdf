/* plans.c: the programs of a step, bound to the trainer's memory, and what their instructions only move.
 *
 *   micro   B samples forward and backward           valid   forward alone; it shares micro's activations
 *   norm    sum of squares of each gradient          rules   the optimiser's step of each parameter
 */
#include "ops/ops.h"
#include "train/train.h"

/* --------------------------------------------------------------------------------------------------- what instructions move */

/* The name that the report has for what an op moves. */
static const char *moved_by(const char *op) {
  static const struct {
    const char *op, *what;
  } names[] = {{"embed", "gather"},   {"gather", "gather"},      {"copy", "cast"},      {"matmul_dx", "pack"},
               {"matmul_dw", "pack"}, {"head_xent_bwd", "pack"}, {"attention", "pack"}, {"attention_bwd", "pack"}};
  for (size_t i = 0; i < WR_ARRAY_LEN(names); i++)
    if (wr_is(names[i].op, op)) return names[i].what;
  return op;
}

/* The time that moving takes of an instruction: its bytes' share, where all its operations and bytes take what they would alone. */
static double moving_share(const weir_trainer *t, const wr_cost *c) {
  const double bytes = c->read_bytes + c->write_bytes, speed = wr_bandwidth(t, bytes);
  const double flop_bytes =
      c->flop / (t->peak_flop_s > 0 ? t->peak_flop_s : 1e11) * speed; /* bytes that could pass meanwhile */
  return bytes > 0 ? WR_MIN(c->copy_bytes / (bytes + flop_bytes), 1) : 0;
}

static weir_status find_moved(const weir_trainer *t, wr_stage *s) {
  const int n = s->plan.list.n;
  s->moved = wr_calloc((size_t)WR_MAX(n, 1), sizeof *s->moved);
  if (!s->moved) return wr_fail_nomem((size_t)n * sizeof *s->moved, "the copies of a plan");
  for (int i = 0; i < n; i++) {
    wr_cost c;
    wr_plan_cost(&s->plan, i, s->plan.regs_host, &c);
    s->moved[i] = (wr_moved){moved_by(s->program.instrs[i].op->name), c.copy_bytes, moving_share(t, &c)};
  }
  return WEIR_OK;
}

/* ------------------------------------------------------------------------------------------------------------------- planning */

static weir_status make_stage(weir_trainer *t, wr_stage *s, const wr_plan *lender) {
  const wr_plan_options options = {.tune = &t->ctx->tune, .use = t->set.o.use, .profile = true, .lender = lender};
  WR_TRY(wr_program_status(&s->program));
  pthread_mutex_lock(&t->ctx->lock);
  const weir_status st = wr_plan_make(&s->program, &t->ctx->mem, &options, &s->plan);
  pthread_mutex_unlock(&t->ctx->lock);
  WR_TRY(st);
  s->made = true;
  s->plan.regs_host->seed = (uint64_t)t->set.o.seed;
  return find_moved(t, s);
}

static void free_stage(weir_trainer *t, wr_stage *s) {
  pthread_mutex_lock(&t->ctx->lock);
  wr_plan_free(&s->plan);
  pthread_mutex_unlock(&t->ctx->lock);
  wr_program_free(&s->program);
  wr_free(s->moved);
  *s = (wr_stage){0};
}

static weir_status build_pass(weir_trainer *t, wr_stage *s, wr_train_io *io, wr_remat remat, bool forward_only,
                              const wr_plan *lender) {
  const wr_train_shape shape = {.B = t->set.o.batch,
                                .T = t->set.o.ctx,
                                .layout = t->layout,
                                .remat = remat,
                                .accumulate = !forward_only && t->set.o.accumulate > 1,
                                .forward_only = forward_only};
  wr_program_init(&s->program);
  WR_TRY(wr_train_build(&s->program, &t->spec, &shape, io));
  for (int i = 0; i < t->n_slots; i++) {
    const int value = io->params[i].value;
    wr_bind(&s->program, value, &t->weights, t->slots[i].at);
    if (shape.accumulate) wr_bind(&s->program, s->program.values[value].grad, &t->grads, t->slots[i].at);
  }
  s->split = io->first_backward;
  return make_stage(t, s, lender);
}

/* A value like slot i's weight, bound; `prefix` before the parameter's name. */
static int like(wr_program *p, wr_kind kind, const wr_slot *slot, const char *prefix, const wr_buf *buf, size_t at) {
  char name[96];
  snprintf(name, sizeof name, "%s%s", prefix, slot->name);
  const int v = wr_value_new(p, kind, name, &slot->t);
  wr_bind(p, v, buf, at);
  return v;
}

static int gradient(weir_trainer *t, wr_program *p, int i) {
  const wr_program *micro = &t->micro.program;
  const wr_value *grad = &micro->values[micro->values[t->io.params[i].value].grad];
  if (t->grads.addr) return like(p, WR_STATE, &t->slots[i], "grad.", &t->grads, t->slots[i].at);
  return like(p, WR_STATE, &t->slots[i], "grad.", &t->micro.plan.places[0].arena, grad->offset);
}

static weir_status build_norm(weir_trainer *t) {
  wr_program *p = &t->norm.program;
  t->squares = wr_arena_alloc(&t->arena, (size_t)t->n_slots * sizeof *t->squares);
  if (!t->squares) return wr_fail_nomem((size_t)t->n_slots * sizeof *t->squares, "the norms of a step");
  wr_program_init(p);
  for (int i = 0; i < t->n_slots; i++) {
    t->squares[i] = wr_sumsq(p, gradient(t, p, i));
    wr_mark_output(p, t->squares[i]);
  }
  return make_stage(t, &t->norm, NULL);
}

static void emit_rule(weir_trainer *t, wr_program *p, int i) {
  const weir_train_options *o = &t->set.o;
  const wr_slot *slot = &t->slots[i];
  const double decay = slot->decays ? o->weight_decay : 0;
  const int param = like(p, WR_PARAM, slot, "", &t->weights, slot->at), grad = gradient(t, p, i);
  const int m = like(p, WR_STATE, slot, "m.", &t->moments, slot->m_at);
  if (slot->rule == WR_RULE_MUON) {
    wr_muon(p, param, grad, m, &(wr_muon_params){.momentum = o->momentum, .weight_decay = decay});
  } else if (slot->rule == WR_RULE_SGD) {
    wr_sgd(p, param, grad, m, &(wr_sgd_params){.momentum = o->momentum, .weight_decay = decay});
  } else {
    const int v = like(p, WR_STATE, slot, "v.", &t->moments, slot->v_at);
    wr_adamw(p, param, grad, m, v, &(wr_adamw_params){o->beta1, o->beta2, o->eps, decay});
  }
}

static weir_status build_rules(weir_trainer *t) {
  wr_program_init(&t->rules.program);
  for (int i = 0; i < t->n_slots; i++) emit_rule(t, &t->rules.program, i);
  return make_stage(t, &t->rules, NULL);
}

/* ----------------------------------------------------------------------------------------------------------------- choosing */

const char *const wr_remat_names[] = {"none", "attention", "block"};

uint64_t wr_train_taken(const weir_trainer *t) {
  uint64_t sum = 0;
  for (int c = 0; c < WR_MEM_CLASS_COUNT; c++) sum += t->ctx->mem.used_bytes[c] - t->used_before[c];
  return sum;
}

static weir_status does_not_fit(const weir_trainer *t, uint64_t need) {
  char a[16], b[16];
  wr_size_text(a, need);
  wr_size_text(b, t->memory_left);
  return wr_fail(WEIR_ENOMEM,
                 "a step takes %s (remat %s), but only %s of memory are left: ask for a smaller batch (and more accumulate), a "
                 "shorter ctx%s or a smaller model",
                 a, wr_remat_names[t->remat], b, t->remat == WR_REMAT_BLOCK ? "" : ", remat block");
}

/* The first form of recomputation that leaves a tenth of the memory. */
static weir_status choose_remat(weir_trainer *t) {
  const char *asked = t->set.o.remat;
  const bool any = wr_is(asked, "auto");
  for (int r = WR_REMAT_NONE; r <= WR_REMAT_BLOCK; r++) {
    if (!any && !wr_is(asked, wr_remat_names[r])) continue;
    t->remat = (wr_remat)r;
    const weir_status s = build_pass(t, &t->micro, &t->io, t->remat, false, NULL);
    const bool last = !any || r == WR_REMAT_BLOCK;
    if (s != WEIR_OK && (s != WEIR_ENOMEM || last)) return s;
    if (s == WEIR_OK && wr_train_taken(t) <= t->memory_left / 10 * 9) return WEIR_OK;
    if (last) return does_not_fit(t, wr_train_taken(t));
    free_stage(t, &t->micro);
  }
  return WEIR_OK;
}

weir_status wr_train_plans_open(weir_trainer *t) {
  WR_TRY(choose_remat(t));
  WR_TRY(build_pass(t, &t->valid, &t->valid_io, WR_REMAT_NONE, true, &t->micro.plan));
  WR_TRY(build_norm(t));
  WR_TRY(build_rules(t));
  const uint64_t prints[] = {t->micro.plan.fingerprint, t->norm.plan.fingerprint, t->rules.plan.fingerprint};
  const int threads = t->ctx->device->n_threads;
  t->fingerprint = wr_hash64(prints, sizeof prints, (uint64_t)threads);
  return WEIR_OK;
}

void wr_train_plans_close(weir_trainer *t) {
  free_stage(t, &t->valid);
  free_stage(t, &t->norm);
  free_stage(t, &t->rules);
  free_stage(t, &t->micro);
}
