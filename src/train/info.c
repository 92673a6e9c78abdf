/* info.c: what is said about a run before and while it goes on: the memory ledger, the time that a step should take, parameters and what
 * each of them gets.
 *
 * The ledger is what the plans took, by class, and what the process held before. The weights of it are certain, since every byte of a
 * plan is placed before it runs; memory that a checkpoint may need to copy tensors aside is a line of its own. Measured is the most
 * anonymous memory (RssAnon) that was seen, less copies aside.
 *
 * The predicted time is the sum over the instructions of a step of the longer of two: operations at the measured peak, bytes at the
 * measured bandwidth of a working set of that size.
 */
#include <math.h>

#include "train/train.h"

static const char *const kind_names[WR_PARAM_KIND_COUNT] = {"matrix", "embedding", "norm", "bias"};
static const char *const rule_names[] = {"adamw", "muon", "sgd"};

/* ------------------------------------------------------------------------------------------------------------------ prediction */

static double stage_seconds(const weir_trainer *t, const wr_stage *s) {
  double sum = 0;
  for (int i = 0; s->made && i < s->plan.list.n; i++) {
    wr_cost c;
    wr_plan_cost(&s->plan, i, s->plan.regs_host, &c);
    const double bytes = c.read_bytes + c.write_bytes;
    sum += fmax(c.flop / t->peak_flop_s, bytes / wr_bandwidth(t, bytes));
  }
  return sum;
}

double wr_bandwidth(const weir_trainer *t, double bytes) {
  const double speed = 1e9 * weir_machine_gb_s(&t->machine, (uint64_t)bytes, t->ctx->device->n_threads);
  return speed > 0 ? speed : 1e10;
}

static void predict(weir_trainer *t) {
  if (!(t->peak_flop_s > 0)) return;
  t->predicted_s =
      (double)t->set.o.accumulate * stage_seconds(t, &t->micro) + stage_seconds(t, &t->norm) + stage_seconds(t, &t->rules);
}

void wr_machine_open(weir_trainer *t) {
  const weir_machine_options o = {.quick = true};
  snprintf(t->machine.cpu, sizeof t->machine.cpu, "unknown CPU");
  if (t->set.o.no_machine) return;
  if (weir_machine_measure(&o, &t->machine) == WEIR_OK)
    t->peak_flop_s = 1e9 * weir_machine_gop_s(&t->machine, "fp32", t->ctx->device->n_threads);
  else
    wr_log(WEIR_LOG_WARN, "the machine could not be measured: %s", weir_last_error());
}

/* ---------------------------------------------------------------------------------------------------------------------- ledger */

static void put_line(weir_trainer *t, const char *what, size_t bytes) {
  if (!bytes) return;
  t->ledger[t->n_ledger++] = (weir_train_bytes){what, bytes};
  t->planned_bytes += bytes;
}

static void make_ledger(weir_trainer *t) {
  const size_t grads = t->grads.bytes, active = t->ctx->mem.used_bytes[WR_MEM_ACTIVATIONS] - t->used_before[WR_MEM_ACTIVATIONS];
  size_t in_arena = 0; /* gradients that lie among the activations */
  for (int i = 0; i < t->n_slots && !grads; i++) in_arena += t->slots[i].bytes;
  put_line(t, "weights", t->weight_bytes);
  put_line(t, "gradients", grads + in_arena);
  put_line(t, "moments", t->moment_bytes);
  put_line(t, "activations", active - WR_MIN(in_arena, active));
  put_line(t, "program, data, plans", t->base_bytes);
}

static weir_status list_params(weir_trainer *t) {
  t->public_params = wr_arena_alloc(&t->arena, (size_t)t->n_slots * sizeof *t->public_params);
  if (!t->public_params) return wr_fail_nomem((size_t)t->n_slots * sizeof *t->public_params, "the parameters of a run");
  for (int i = 0; i < t->n_slots; i++) {
    const wr_slot *s = &t->slots[i];
    t->public_params[i] = (weir_train_param){.name = s->name,
                                             .kind = kind_names[s->kind],
                                             .optimizer = rule_names[s->rule],
                                             .elements = (uint64_t)(s->t.ext[0] * s->t.ext[1]),
                                             .decays = s->decays};
    t->parameters += t->public_params[i].elements;
  }
  return WEIR_OK;
}

weir_status wr_info_open(weir_trainer *t) {
  WR_TRY(list_params(t));
  t->flop_tok = wr_spec_flop_tok(&t->spec);
  predict(t);
  t->base_bytes = wr_anonymous_bytes(); /* all but the tensors, which nobody has touched yet */
  make_ledger(t);
  return WEIR_OK;
}

void wr_see_memory(weir_trainer *t) {
  if (t->saving) return; /* how much of a save is copied aside is known at its end */
  const size_t now = wr_anonymous_bytes();
  t->seen_bytes = WR_MAX(t->seen_bytes, now - WR_MIN(now, t->aside_bytes));
}

void weir_trainer_get_info(const weir_trainer *t, weir_trainer_info *out) {
  const wr_spec *m = &t->spec;
  wr_length l;
  wr_length_of(t, &l);
  double s[WR_PART_COUNT];
  for (int i = 0; i < WR_PART_COUNT; i++) s[i] = t->totals[i] * 1e-9;
  *out = (weir_trainer_info){.folder = t->folder,
                             .arch = m->arch,
                             .tokenizer = wr_tokenizer_name(t->tokenizer),
                             .remat = wr_remat_names[t->remat],
                             .precision = "fp32",
                             .layers = m->layers,
                             .width = m->width,
                             .heads = m->heads,
                             .kv_heads = m->kv_heads,
                             .ff = m->ff,
                             .vocab = m->vocab,
                             .ctx = m->context_tok,
                             .batch = t->set.o.batch,
                             .accumulate = t->set.o.accumulate,
                             .tied = m->tied,
                             .parameters = t->parameters,
                             .flop_tok = t->flop_tok,
                             .step = t->now.step,
                             .steps = l.steps,
                             .resumed = t->resumed,
                             .resumed_note = t->note,
                             .data_tokens = t->data_info.tokens,
                             .data_docs = t->data_info.docs,
                             .data_samples = t->data_info.samples,
                             .val_tokens = t->val ? t->val_info.tokens : 0,
                             .peak_gflop_s = t->peak_flop_s * 1e-9,
                             .predicted_step_s = t->predicted_s,
                             .memory = t->ledger,
                             .n_memory = t->n_ledger,
                             .planned_bytes = t->planned_bytes,
                             .aside_bytes = t->aside.bytes,
                             .measured_bytes = t->seen_bytes,
                             .params = t->public_params,
                             .n_params = (size_t)t->n_slots,
                             .seconds = {t->total_ns * 1e-9, s[0], s[1], s[2], s[3], s[4], s[5], s[6]},
                             .tokens = t->total_tok,
                             .bytes_copied = t->total_copied};
}

size_t weir_trainer_why(const weir_trainer *t, char *out, size_t cap) {
  wr_str s = {0};
  wr_str_printf(&s, "tune file: %s\n", weir_context_tune(t->ctx));
  wr_str_puts(&s, "a micro-step:\n");
  wr_plan_why(&t->micro.plan, &s);
  wr_str_puts(&s, "the norm of the gradients:\n");
  wr_plan_why(&t->norm.plan, &s);
  wr_str_puts(&s, "the optimiser:\n");
  wr_plan_why(&t->rules.plan, &s);
  const size_t n = s.oom ? 0 : s.len;
  if (cap) {
    const size_t k = WR_MIN(n, cap - 1);
    if (k) memcpy(out, s.ptr, k);
    out[k] = 0;
  }
  wr_str_free(&s);
  return n;
}
