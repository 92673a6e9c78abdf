/* schedule.c: how long a run is, how far it is, and the learning rate there.
 *
 * The length is `steps`, `epochs` or `time`; of several the one that ends first. Progress is in [0, 1]. The learning rate rises
 * linearly over the warm-up, then goes down with the progress that is left, x in [0, 1], to the share `lr_floor` of its highest:
 *   cosine    floor + (1 - floor) (1 + cos(pi x)) / 2
 *   linear    floor + (1 - floor) (1 - x)
 *   wsd       1 until the last `wsd_decay` of the run, then linear
 *   constant  1
 *
 * An epoch's last step takes the samples that are left, so that no sample is in two epochs' steps and none is dropped.
 */
#include <math.h>

#include "train/train.h"

static int64_t group(const weir_trainer *t) { return t->set.o.batch * t->set.o.accumulate; }

/* Steps of so many epochs: each epoch's last one may be short. */
static int64_t steps_of(const weir_trainer *t, double epochs) {
  const uint64_t samples = t->data_info.samples;
  const double whole = floor(epochs), part = (epochs - whole) * (double)samples, g = (double)group(t);
  const double n = whole * ceil((double)samples / g) + ceil(part / g);
  return n < 9e15 ? (int64_t)n : INT64_MAX;
}

void wr_length_of(const weir_trainer *t, wr_length *out) {
  const weir_train_options *o = &t->set.o;
  int64_t steps = o->steps;
  double progress = 0;
  if (o->epochs > 0 && t->data_info.samples) {
    const int64_t n = WR_MAX(steps_of(t, o->epochs), (int64_t)1);
    steps = steps ? WR_MIN(steps, n) : n;
  } else if (o->epochs > 0) {
    /* text whose length is not known yet: by the place of the group that samples come from */
    const double place = t->text_bytes ? (double)t->now.at.byte / (double)t->text_bytes : 0;
    progress = fmax((double)t->now.epoch, (double)t->now.at.epoch + fmin(place, 1)) / o->epochs;
  }
  if (steps) progress = fmax(progress, (double)t->now.step / (double)steps);
  if (o->time > 0) progress = fmax(progress, t->now.seconds / o->time);
  *out = (wr_length){o->time > 0 ? 0 : steps, fmin(progress, 1)};
}

int64_t wr_next_samples(const weir_trainer *t) {
  const uint64_t samples = t->data_info.samples;
  if (!samples) return group(t);
  const uint64_t left = samples - t->now.at.taken % samples;
  return (int64_t)WR_MIN(left, (uint64_t)group(t));
}

static double falling(const weir_train_options *o, double x) {
  const double floor_ = o->lr_floor;
  if (wr_is(o->schedule, "constant")) return 1;
  if (wr_is(o->schedule, "cosine")) return floor_ + (1 - floor_) * 0.5 * (1 + cos(M_PI * x));
  if (wr_is(o->schedule, "wsd")) x = o->wsd_decay > 0 ? fmax(0, 1 - (1 - x) / o->wsd_decay) : 0;
  return floor_ + (1 - floor_) * (1 - x);
}

/* `step` is the step that is about to be made, from 1; l->progress that after it as far as it is known: see trainer.c. */
double wr_rate_factor(const weir_train_options *o, int64_t step, const wr_length *l, double *warm_at) {
  double warm = o->warmup, factor = 1;
  if (warm > 0 && warm < 1 && l->steps) warm = ceil(warm * (double)l->steps); /* a share of known steps is steps */
  if (warm >= 1)
    factor = (double)step / warm;
  else if (warm > 0)
    factor = l->progress / warm;
  if (factor < 1) return fmax(factor, 1e-3); /* by time the first step has no progress yet */
  if (*warm_at < 0) *warm_at = l->progress;
  const double from = l->steps ? fmin(warm / (double)l->steps, 1) : *warm_at;
  const double x = from < 1 ? (l->progress - from) / (1 - from) : 1;
  return falling(o, fmin(fmax(x, 0), 1));
}
