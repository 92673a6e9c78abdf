/* trainer.c: the run itself: opening, the loop of a step, closing.
 *
 * A step: samples -> micro-steps -> norm -> judgement -> the way is made free for the optimiser (checkpoint under way) -> optimiser
 * -> validation, checkpoint, text sample where due -> a line of metrics. A checkpoint holds the state after a whole step, and only
 * wr_progress, weights and moments decide the next one; so where a run was interrupted leaves no trace in it.
 *
 * Gradients are of the mean loss over the step's tokens: each micro-batch's loss is scaled by its share of them. A loss that is not finite
 * changes nothing but counters. Until the optimiser runs so does the whole step: asked to stop between two micro-batches, it puts
 * wr_progress back and keeps its samples, in case the caller goes on.
 */
#include <math.h>

#include "train/train.h"

/* ----------------------------------------------------------------------------------------------------------------- open, close */

static weir_status open_all(weir_trainer *t, const char *folder, const weir_train_options *options) {
  if (!t->ctx->device->team)
    return wr_fail(WEIR_EUNSUPPORTED, "device %s plans only: training runs on the cpu", t->ctx->device->api->name);
  if (t->ctx->device->own_memory)
    return wr_fail(WEIR_EUNSUPPORTED, "training on a device with memory of its own (%s) is not supported yet: take the device cpu",
                   t->ctx->device->title);
  WR_TRY(wr_settings_resolve(options, folder, &t->set, &t->resumes));
  t->clock.trace = t->set.o.trace;
  if (folder) {
    WR_TRY(wr_mkdir_p(folder));
    t->folder = wr_arena_strdup(&t->arena, folder);
    if (!t->folder) return wr_fail_nomem(strlen(folder), "the name of a folder");
    for (size_t n = strlen(folder); n > 1 && t->folder[n - 1] == '/'; n--) t->folder[n - 1] = 0;
  }
  WR_TRY(wr_train_source_open(t));
  wr_machine_open(t);
  t->memory_left = weir_context_memory(t->ctx);
  memcpy(t->used_before, t->ctx->mem.used_bytes, sizeof t->used_before);
  WR_TRY(wr_train_weights_open(t));
  WR_TRY(wr_train_plans_open(t));
  WR_TRY(wr_info_open(t));
  WR_TRY(wr_restart_open(t));
  if (t->folder) WR_TRY(wr_settings_write(&t->set, t->folder));
  return wr_metrics_open(t);
}

weir_status weir_trainer_open(weir_context *ctx, const char *folder, const weir_train_options *options, weir_trainer **out) {
  weir_trainer *t = wr_calloc(1, sizeof *t);
  if (!t) return wr_fail_nomem(sizeof *t, "a trainer");
  t->ctx = ctx;
  t->layout = WR_PACK16;
  t->metrics = -1;
  t->saved_step = t->good_step = t->sampled_step = -1;
  t->now.warm_at = -1;
  t->now.best_val = t->val_at_step = NAN;
  const weir_status s = open_all(t, folder, options);
  if (s != WEIR_OK) {
    weir_trainer_close(t);
    return s;
  }
  *out = t;
  return WEIR_OK;
}

void weir_trainer_close(weir_trainer *t) {
  if (!t) return;
  wr_restart_close(t);
  wr_metrics_close(t);
  wr_train_plans_close(t);
  wr_train_weights_close(t);
  wr_train_source_close(t);
  wr_settings_free(&t->set);
  wr_arena_free(&t->arena);
  wr_free(t->clock.spans);
  wr_str_free(&t->event);
  wr_str_free(&t->line);
  wr_free(t);
}

void weir_trainer_stop(weir_trainer *t) { atomic_store(&t->stop, 1); }

const weir_span *weir_trainer_spans(const weir_trainer *t, size_t *n) {
  *n = t->clock.n_spans;
  return t->clock.spans;
}

/* ------------------------------------------------------------------------------------------------------------------- one step */

typedef struct zeroing {
  char *at;
  size_t bytes;
} zeroing;

static void zero_part(void *arg, int tid, int n_threads) {
  const zeroing *z = arg;
  const size_t lines = z->bytes / 64, begin = lines * (size_t)tid / (size_t)n_threads,
               end = lines * ((size_t)tid + 1) / (size_t)n_threads;
  memset(z->at + begin * 64, 0, (end - begin) * 64);
}

/* Forward and backward over n samples; the gradients are those of the mean over all of them. ESTOPPED: given up on the way. */
static weir_status micro_steps(weir_trainer *t, int64_t n, double *loss) {
  wr_device *d = t->ctx->device;
  const int64_t B = t->set.o.batch, total = wr_samples_tok(t->samples, n);
  float *scale = wr_plan_host(&t->micro.plan, t->io.scale);
  double sum = 0;
  if (t->grads.addr) {
    zeroing z = {d->api->host(d, &t->grads), t->grads.bytes};
    wr_team_run(d->team, zero_part, &z);
    wr_lap(&t->clock, WR_PART_BACKWARD, "zero gradients");
  }
  for (int64_t at = 0; at < n; at += B) {
    int64_t rows;
    float mean;
    if (at && atomic_load(&t->stop)) return WEIR_ESTOPPED; /* the caller has its sentence */
    WR_TRY(wr_train_fill(t, &t->micro, &t->io, t->samples + at, n - at, &rows));
    *scale = (float)((double)rows / (double)total);
    t->micro.plan.regs_host->step = (int64_t)++t->now.micro;
    wr_lap(&t->clock, WR_PART_COPY, "widen");
    WR_TRY(wr_stage_run(t, &t->micro, WR_PART_FORWARD, WR_PART_BACKWARD));
    WR_TRY(wr_plan_read(&t->micro.plan, t->io.loss, 0, &mean, sizeof mean));
    sum += (double)mean * (double)rows;
  }
  *loss = sum / (double)total;
  return WEIR_OK;
}

static weir_status gradient_norm(weir_trainer *t, double *norm) {
  double sum = 0, squares;
  WR_TRY(wr_stage_run(t, &t->norm, WR_PART_OPTIMIZER, WR_PART_OPTIMIZER));
  for (int i = 0; i < t->n_slots; i++) {
    WR_TRY(wr_plan_read(&t->norm.plan, t->squares[i], 0, &squares, sizeof squares));
    sum += squares;
  }
  *norm = sqrt(sum);
  return WEIR_OK;
}

/* The learning rate's factor for the step that is being made. */
static double rate(weir_trainer *t) {
  wr_length l;
  wr_length_of(t, &l);
  if (l.steps) l.progress = fmin((double)(t->now.step + 1) / (double)l.steps, 1);
  return wr_rate_factor(&t->set.o, t->now.step + 1, &l, &t->now.warm_at);
}

static weir_status optimise(weir_trainer *t, double factor, double norm) {
  const weir_train_options *o = &t->set.o;
  uint64_t aside = 0;
  if (t->saver) {
    wr_saver_before_change(t->saver, t->ctx->device->team, &aside);
    wr_count_copy(&t->clock, "checkpoint", 2 * (double)aside);
    wr_lap(&t->clock, WR_PART_CHECKPOINT, "copy aside");
  }
  wr_regs *regs = t->rules.plan.regs_host;
  regs->step = ++t->now.applied;
  regs->lr = (float)(factor * o->lr);
  regs->grad_scale = o->clip > 0 && norm > o->clip ? (float)(o->clip / norm) : 1;
  WR_TRY(wr_stage_run(t, &t->rules, WR_PART_OPTIMIZER, WR_PART_OPTIMIZER));
  t->val_at_step = NAN;
  return WEIR_OK;
}

/* ------------------------------------------------------------------------------------------------------------ what follows it */

static weir_status evaluate(weir_trainer *t, bool due) {
  double loss;
  if (!t->val || !t->set.o.eval_every) return WEIR_OK;
  if (due && isnan(t->val_at_step)) WR_TRY(wr_validate(t, &loss));
  t->report.val_loss = t->val_at_step;
  wr_lap(&t->clock, WR_PART_OTHER, due ? "validation" : NULL);
  return WEIR_OK;
}

static bool save_is_due(const weir_trainer *t) {
  if (!t->saver || t->saved_step == t->now.step) return false;
  if (t->set.every_steps) return t->now.step % t->set.every_steps == 0;
  return t->set.every_seconds > 0 && t->now.seconds - t->saved_at >= t->set.every_seconds;
}

/* What became of the save before, and its text. A failure is an event: the run goes on, and tries again when the next one is due. */
static void look_at_save(weir_trainer *t) {
  const int64_t good = t->good_step;
  if (wr_save_poll(t, false) != WEIR_OK) {
    wr_log(WEIR_LOG_ERROR, "%s", weir_last_error());
    wr_str_printf(&t->event, "%s%s", t->event.len ? "; " : "", weir_last_error());
  }
  wr_lap(&t->clock, WR_PART_CHECKPOINT, NULL);
  if (t->good_step == good) return;
  wr_text_sample(t, t->good_step);
  wr_metrics_memory(t);
  wr_lap(&t->clock, WR_PART_OTHER, "text sample");
}

static weir_status save(weir_trainer *t) {
  WR_TRY(wr_save_begin(t));
  t->report.saved = true;
  wr_lap(&t->clock, WR_PART_CHECKPOINT, "checkpoint");
  return WEIR_OK;
}

/* The last checkpoint must be on disk, else the run has failed. */
static weir_status finish(weir_trainer *t) {
  t->done = true;
  if (!t->saver) return WEIR_OK;
  if (t->saved_step != t->now.step) WR_TRY(save(t));
  WR_TRY(wr_save_poll(t, true));
  wr_lap(&t->clock, WR_PART_CHECKPOINT, "last checkpoint");
  wr_text_sample(t, t->now.step);
  wr_metrics_memory(t);
  wr_lap(&t->clock, WR_PART_OTHER, "text sample");
  return WEIR_OK;
}

static void fill_report(weir_trainer *t) {
  weir_train_report *r = &t->report;
  wr_clock *c = &t->clock;
  const double total = (double)(c->mark - c->begin);
  double *ns = c->ns;
  wr_length l;
  t->now.seconds += total * 1e-9;
  wr_length_of(t, &l);
  r->seconds = (weir_train_seconds){total * 1e-9,
                                    ns[WR_PART_DATA] * 1e-9,
                                    ns[WR_PART_COPY] * 1e-9,
                                    ns[WR_PART_FORWARD] * 1e-9,
                                    ns[WR_PART_BACKWARD] * 1e-9,
                                    ns[WR_PART_OPTIMIZER] * 1e-9,
                                    ns[WR_PART_CHECKPOINT] * 1e-9,
                                    ns[WR_PART_OTHER] * 1e-9};
  r->tok_s = total > 0 ? (double)r->step_tok / (total * 1e-9) : 0;
  r->mfu = t->peak_flop_s > 0 ? r->tok_s * t->flop_tok / t->peak_flop_s : 0;
  memcpy(r->copied, c->copied, sizeof r->copied);
  r->n_copied = c->n_copied;
  r->bytes_copied = 0;
  for (size_t i = 0; i < c->n_copied; i++) r->bytes_copied += c->copied[i].bytes;
  r->progress = l.progress;
  r->eta_seconds = l.progress > 0 ? t->now.seconds / l.progress * (1 - l.progress) : 0;
  r->event = t->event.ptr ? t->event.ptr : "";
  r->done = t->done;
  for (int i = 0; i < WR_PART_COUNT; i++) t->totals[i] += ns[i];
  t->total_ns += total;
  t->total_tok += (uint64_t)r->step_tok;
  t->total_copied += r->bytes_copied;
}

static weir_status stopped(weir_trainer *t) {
  atomic_store(&t->stop, 0);
  if (t->saver) {
    if (t->saved_step != t->now.step) WR_TRY(wr_save_begin(t));
    WR_TRY(wr_save_poll(t, true));
    wr_report_page_write(t, true);
  }
  return wr_fail(WEIR_ESTOPPED, "training was stopped after step %lld", (long long)t->now.step);
}

/* What is left to do when the run has its length: nothing, or what an interrupted end left undone. */
static weir_status nothing_left(weir_trainer *t, weir_train_report *out) {
  t->report = (weir_train_report){
      .step = t->now.step, .loss = NAN, .val_loss = NAN, .loss_scale = 1, .tokens = t->now.tokens, .event = ""};
  WR_TRY(finish(t));
  t->report.progress = 1;
  t->report.done = true;
  wr_report_page_write(t, true);
  *out = t->report;
  return WEIR_OK;
}

static weir_status take_samples(weir_trainer *t, int64_t *n) {
  *n = t->untrained;
  t->untrained = 0;
  if (!*n) WR_TRY(wr_data_next(t->data, wr_next_samples(t), t->samples, n));
  wr_lap(&t->clock, WR_PART_DATA, "data");
  if (*n < 1) return wr_fail(WEIR_EFAIL, "the data gave no sample");
  wr_data_tell(t->data, &t->now.at);
  wr_data_get_info(t->data, &t->data_info); /* text: its length is known after an epoch */
  t->now.epoch = t->samples[*n - 1].epoch;
  return WEIR_OK;
}

static weir_status change(weir_trainer *t, wr_verdict v, double factor, double norm) {
  if (v == WR_STOP)
    return wr_fail(WEIR_EFAIL, "%s; the run stops%s", t->event.ptr, t->good_step < 0 ? "" : ", the last checkpoint is kept");
  if (v == WR_FINE) {
    WR_TRY(optimise(t, factor, norm));
  } else {
    t->now.skipped++;
    t->skipped_now = 1;
    if (v == WR_SKIP) wr_str_puts(&t->event, ": step skipped");
  }
  t->now.step++;
  return v == WR_ROLLBACK ? wr_rollback(t) : WEIR_OK;
}

/* A checkpoint was due and the weights are no numbers: a rollback is the only way on. */
static weir_status weights_not_finite(weir_trainer *t) {
  wr_str_printf(&t->event, "%s%s", t->event.len ? "; " : "", weir_last_error());
  const wr_verdict v = wr_is(t->set.o.on_nan, "rollback") ? wr_note_trouble(t, WR_ROLLBACK) : WR_STOP;
  return v == WR_ROLLBACK ? wr_rollback(t) : wr_fail(WEIR_EFAIL, "%s; the run stops", t->event.ptr);
}

weir_status weir_trainer_step(weir_trainer *t, weir_train_report *out) {
  const weir_train_options *o = &t->set.o;
  const wr_progress before = t->now;
  wr_length l;
  int64_t n = 0;
  double loss, norm;
  bool spike;
  if (atomic_load(&t->stop)) return stopped(t);
  wr_length_of(t, &l);
  wr_clock_start(&t->clock);
  wr_lap(&t->clock, WR_PART_OTHER, NULL); /* what the caller did since the last step */
  wr_str_clear(&t->event);
  t->skipped_now = 0;
  if (l.progress >= 1 || t->done) return nothing_left(t, out);
  WR_TRY(take_samples(t, &n));
  const double factor = rate(t);
  const weir_status made = micro_steps(t, n, &loss);
  if (made == WEIR_ESTOPPED) {
    t->now = before;
    t->untrained = n;
    return stopped(t);
  }
  WR_TRY(made);
  WR_TRY(gradient_norm(t, &norm));
  const wr_verdict v = wr_judge(t, loss, norm, &spike);
  t->report = (weir_train_report){.step = t->now.step + 1,
                                  .loss = loss,
                                  .val_loss = NAN,
                                  .lr = factor * o->lr,
                                  .grad_norm = norm,
                                  .step_tok = wr_samples_tok(t->samples, n),
                                  .loss_scale = 1,
                                  .spike = spike};
  t->now.tokens += (uint64_t)t->report.step_tok;
  wr_lap(&t->clock, WR_PART_OTHER, NULL);
  const weir_status changed = change(t, v, factor, norm);
  if (changed != WEIR_OK) {
    char said[1024]; /* the page may have a sentence of its own */
    snprintf(said, sizeof said, "%s", weir_last_error());
    wr_metrics_put(t, t->samples, n);
    if (v == WR_STOP) t->now = before; /* the step was not made: what is saved now goes on with its samples */
    wr_report_page_write(t, true);
    return wr_fail(changed, "%s", said);
  }
  t->report.tokens = t->now.tokens;
  t->report.skipped = t->now.skipped;
  if (t->data_info.samples) t->report.epoch = (double)t->now.at.taken / (double)t->data_info.samples;
  wr_length_of(t, &l);
  const double spent =
      t->now.seconds + (double)(t->clock.mark - t->clock.begin) * 1e-9; /* this step's time is not counted yet */
  const bool last = l.progress >= 1 || (o->time > 0 && spent >= o->time), due = save_is_due(t);
  if (v != WR_ROLLBACK) WR_TRY(evaluate(t, last || due || (o->eval_every && t->now.step % o->eval_every == 0)));
  look_at_save(t);
  if (due && !last) {
    const weir_status s = save(t);
    if (s == WEIR_EFAIL)
      WR_TRY(weights_not_finite(t));
    else if (s != WEIR_OK)
      wr_str_printf(&t->event, "%s%s", t->event.len ? "; " : "", weir_last_error());
  }
  if (last) WR_TRY(finish(t));
  wr_see_memory(t);
  wr_lap(&t->clock, WR_PART_OTHER, NULL);
  fill_report(t);
  wr_metrics_put(t, t->samples, n);
  if (!isnan(t->report.val_loss) || last) wr_report_page_write(t, last);
  *out = t->report;
  return WEIR_OK;
}
