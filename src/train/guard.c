/* guard.c: does a step deserve to change the weights? Owns the finding of what is not finite, by name, and of spikes.
 *
 * A loss or gradient that is not finite makes the norm of all gradients so, hence two numbers tell. Only then are the weights
 * looked through, and the gradients' own norms, in the order in which the forward pass uses the parameters.
 *
 * A spike is a loss above `spike` times the running mean (factor 0.95 a step, at least 20 losses old). A loss counts for the mean
 * with at most what would be a spike, so that a run that stays high is not one spike for ever.
 */
#include <math.h>

#include "train/train.h"

enum { SPIKE_FROM = 20 };

static bool finite_part(const float *x, size_t n) {
  uint32_t worst = 0;
  for (size_t i = 0; i < n; i++) {
    uint32_t bits;
    memcpy(&bits, &x[i], 4);
    bits &= 0x7fffffffu;
    worst = WR_MAX(worst, bits);
  }
  return worst < 0x7f800000u;
}

typedef struct search {
  const char *memory;
  const weir_trainer *t;
  atomic_int first;
} search;

static void note_first(atomic_int *first, int i) {
  int have = atomic_load(first);
  while (i < have && !atomic_compare_exchange_weak(first, &have, i)) {}
}

/* Each thread takes its part of every slot. */
static void look_through(void *arg, int tid, int n_threads) {
  search *k = arg;
  for (int i = 0; i < k->t->n_slots && i < atomic_load(&k->first); i++) {
    const wr_slot *slot = &k->t->slots[i];
    const size_t n = slot->bytes / sizeof(float), begin = n * (size_t)tid / (size_t)n_threads,
                 end = n * ((size_t)tid + 1) / (size_t)n_threads;
    if (!finite_part((const float *)(const void *)(k->memory + slot->at) + begin, end - begin)) note_first(&k->first, i);
  }
}

const char *wr_weights_not_finite(weir_trainer *t) {
  wr_device *d = t->ctx->device;
  search k = {.memory = d->api->host(d, &t->weights), .t = t};
  atomic_init(&k.first, t->n_slots);
  wr_team_run(d->team, look_through, &k);
  const int i = atomic_load(&k.first);
  return i < t->n_slots ? t->slots[i].name : NULL;
}

static const char *gradient_not_finite(weir_trainer *t) {
  double squares;
  for (int i = 0; i < t->n_slots; i++)
    if (wr_plan_read(&t->norm.plan, t->squares[i], 0, &squares, sizeof squares) == WEIR_OK && !isfinite(squares))
      return t->slots[i].name;
  return NULL;
}

static wr_verdict verdict_of(const char *setting) {
  return wr_is(setting, "skip")       ? WR_SKIP
         : wr_is(setting, "rollback") ? WR_ROLLBACK
         : wr_is(setting, "stop")     ? WR_STOP
                                      : WR_FINE;
}

static void describe(weir_trainer *t, double loss, double norm) {
  const char *weight = wr_weights_not_finite(t), *grad = weight ? NULL : gradient_not_finite(t);
  wr_str_printf(&t->event, "step %lld: ", (long long)t->now.step + 1);
  if (!isfinite(loss)) wr_str_printf(&t->event, "the loss is %g; ", loss);
  if (weight)
    wr_str_printf(&t->event, "the weights of %s are not finite", weight);
  else if (grad)
    wr_str_printf(&t->event, "the gradient of %s is not finite", grad);
  else
    wr_str_printf(&t->event, "the norm of the gradients is %g", norm);
}

wr_verdict wr_note_trouble(weir_trainer *t, wr_verdict v) {
  wr_progress *p = &t->now;
  if (v == WR_FINE) {
    if (p->step >= p->trouble_at) p->troubles = 0; /* after a rollback not before the step that had it is passed */
  } else if (v != WR_STOP) {
    p->trouble_at = WR_MAX(p->trouble_at, p->step + 1);
    if (++p->troubles <= t->set.o.max_skips) return v;
    wr_str_printf(&t->event, "; that is number %lld in a row", (long long)p->troubles);
    return WR_STOP;
  }
  return v;
}

wr_verdict wr_judge(weir_trainer *t, double loss, double norm, bool *spike) {
  const weir_train_options *o = &t->set.o;
  wr_progress *p = &t->now;
  wr_verdict v = WR_FINE;
  *spike = false;
  if (!isfinite(loss) || !isfinite(norm)) {
    describe(t, loss, norm);
    v = verdict_of(o->on_nan);
  } else {
    const double limit = o->spike * p->loss_mean;
    *spike = o->spike > 0 && p->loss_n >= SPIKE_FROM && loss > limit;
    if (*spike) {
      wr_str_printf(&t->event, "step %lld: the loss %.4g is a spike, %.3g times its running mean", (long long)p->step + 1, loss,
                    loss / p->loss_mean);
      v = verdict_of(o->on_spike);
    }
    const double counted = *spike ? limit : loss, keep = WR_MIN(0.95, (double)p->loss_n / (double)(p->loss_n + 1));
    p->loss_mean = keep * p->loss_mean + (1 - keep) * counted;
    p->loss_n++;
  }
  return wr_note_trouble(t, v);
}
