/* restart.c: going on after a stop. Owns what a checkpoint holds of a run, besides how it lies on disk (format/checkpoint.h), the way
 * back to one, and copies in memory.
 *
 *   model.gguf      weights, hyper-parameters, tokenizer: a model like any other
 *   optimizer.gguf  "m.<weight>" and "v.<weight>"
 *   state.json      wr_progress, and the fingerprint of the plans
 *
 * Saving runs beside training; the trainer calls wr_saver_before_change before each optimiser step. A checkpoint never holds a weight that
 * is not finite: the weights are looked through before it is begun.
 *
 * A rollback takes weights, moments and counters from a checkpoint, but not the position in the data: the samples that
 * led to the trouble are passed over.
 */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#include "train/train.h"

/* --------------------------------------------------------------------------------------------------------------- state.json */

/* X(field of wr_progress, how it is written) */
#define WR_PROGRESS_MAP(X) \
  X(step, INT) \
  X(applied, INT) \
  X(skipped, INT) \
  X(troubles, INT) \
  X(trouble_at, INT) \
  X(micro, INT) \
  X(tokens, INT) X(seconds, FLOAT) X(warm_at, FLOAT) X(loss_mean, FLOAT) X(loss_n, INT) X(best_val, FLOAT) X(epoch, INT)

static void write_state(const weir_trainer *t, wr_str *s) {
  const wr_progress *p = &t->now;
  wr_str_printf(s, "{\"version\": 1, \"weir\": \"%s\", \"fingerprint\": \"%016" PRIx64 "\", \"parameters\": %" PRIu64,
                weir_version(), t->fingerprint, t->parameters);
  wr_str_printf(s,
                ", \"data\": {\"tokens\": %" PRIu64 ", \"samples\": %" PRIu64 ", \"tokenizer\": \"%016" PRIx64
                "\", \"text\": \"%016" PRIx64 "\"}",
                t->data_info.tokens, t->data_info.samples, wr_tokenizer_hash(t->tokenizer), t->data_info.id);
#define INT(x) wr_str_printf(s, "%lld", (long long)(x))
#define FLOAT(x) wr_put_json_number(s, x)
#define X(field, how) \
  wr_str_puts(s, ", \"" #field "\": "); \
  how(p->field);
  WR_PROGRESS_MAP(X)
#undef X
#undef INT
#undef FLOAT
  wr_str_puts(s, ", \"position\": {\"version\": 1");
#define X(field) wr_str_printf(s, ", \"" #field "\": %" PRIu64, p->at.field);
  WR_DATA_POSITION_MAP(X)
#undef X
  wr_str_puts(s, "}}\n");
}

/* A counter, with room to count on. */
static bool is_count(const json_t *v) {
  return json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < (json_int_t)1 << 53;
}

static weir_status read_state(weir_trainer *t, const wr_checkpoint *c, wr_progress *out) {
  json_error_t e;
  json_t *root = json_loadb(c->state, c->state_bytes, 0, &e);
  if (!root) return wr_fail(WEIR_EFORMAT, "%s/state.json:%d:%d: %s", c->path, e.line, e.column, e.text);
  const char *missing = NULL;
  wr_progress p = {0};
#define INT(x, v) ok = is_count(v), x = (__typeof__(x))json_integer_value(v)
#define FLOAT(x, v) ok = json_is_number(v) || json_is_null(v), x = json_is_null(v) ? NAN : json_number_value(v)
#define X(field, how) \
  { \
    json_t *v = json_object_get(root, #field); \
    bool ok; \
    how(p.field, v); \
    if (!ok && !missing) missing = #field; \
  }
  WR_PROGRESS_MAP(X)
#undef X
#undef INT
#undef FLOAT
  const json_t *at = json_object_get(root, "position"), *data = json_object_get(root, "data");
#define X(field) \
  if (!is_count(json_object_get(at, #field)) && !missing) missing = "position." #field; \
  p.at.field = (uint64_t)json_integer_value(json_object_get(at, #field));
  WR_DATA_POSITION_MAP(X)
#undef X
  const char *print = json_string_value(json_object_get(root, "fingerprint")),
             *hash = json_string_value(json_object_get(data, "tokenizer")),
             *text = json_string_value(json_object_get(data, "text")); /* or the shards */
  const uint64_t tokens = (uint64_t)json_integer_value(json_object_get(data, "tokens")), now = wr_tokenizer_hash(t->tokenizer);
  weir_status s = WEIR_OK;
  if (missing || !print || !hash || !text)
    s = wr_fail(WEIR_EFORMAT, "%s/state.json: %s is missing, or no number that it can be", c->path,
                missing ? missing : "fingerprint or data");
  else if (p.step != c->step || p.applied > p.step)
    s = wr_fail(WEIR_EFORMAT, "%s/state.json: step %lld with %lld changes of the weights is not the state of this checkpoint",
                c->path, (long long)p.step, (long long)p.applied);
  else if (strtoull(hash, NULL, 16) != now)
    s = wr_fail(WEIR_EFORMAT,
                "the data's tokenizer has hash %016" PRIx64 ", but the run was trained with %s: its ids mean other tokens", now,
                hash);
  else if (tokens && t->data_info.tokens && tokens != t->data_info.tokens)
    s = wr_fail(WEIR_EFORMAT,
                "the data has %" PRIu64 " tokens, but the run was trained on %" PRIu64 ": it cannot go on where it was",
                t->data_info.tokens, tokens);
  else {
    *out = p;
    t->note = strtoull(text, NULL, 16) != t->data_info.id ? "the data has changed since, or the text's files have moved: "
                                                            "goes on at the same place, perhaps with other samples"
              : strtoull(print, NULL, 16) == t->fingerprint
                  ? ""
                  : "another machine, build, number of threads or batch than before: goes on within tolerance, not bit for bit";
  }
  json_decref(root);
  return s;
}

/* ------------------------------------------------------------------------------------------------------------------- tensors */

static wr_save_tensor tensor_of(const wr_slot *slot, const char *name, char *data) {
  wr_save_tensor s = {
      .name = name, .n_dims = slot->t.rank, .data = data, .lanes = slot->t.layout == WR_PACK16 ? WR_PACK_ROWS : 0};
  for (int d = 0; d < slot->t.rank; d++) s.dim[d] = (uint64_t)slot->t.ext[slot->t.rank - 1 - d];
  return s;
}

/* Weights, then moments, in the trainer's memory. Both arrays are the arena's. */
static weir_status list_tensors(weir_trainer *t) {
  wr_device *d = t->ctx->device;
  char *weights = d->api->host(d, &t->weights), *moments = d->api->host(d, &t->moments);
  t->weight_tensors = wr_arena_alloc(&t->arena, (size_t)t->n_slots * sizeof *t->weight_tensors);
  t->moment_tensors = wr_arena_alloc(&t->arena, (size_t)t->n_slots * 2 * sizeof *t->moment_tensors);
  if (!t->weight_tensors || !t->moment_tensors) return wr_fail_nomem(4096, "the tensors of a checkpoint");
  for (int i = 0; i < t->n_slots; i++) {
    const wr_slot *slot = &t->slots[i];
    t->weight_tensors[i] = tensor_of(slot, slot->name, weights + slot->at);
    const size_t at[] = {slot->m_at, slot->v_at};
    for (int k = 0; k < 2; k++) {
      if (at[k] == SIZE_MAX) continue;
      const char *name = wr_arena_printf(&t->arena, "%c.%s", "mv"[k], slot -> name);
      if (!name) return wr_fail_nomem(64, "the tensors of a checkpoint");
      t->moment_tensors[t->n_moments++] = tensor_of(slot, name, moments + at[k]);
    }
  }
  return WEIR_OK;
}

static weir_status put_model_meta(void *user, wr_gguf_writer *w) {
  const weir_trainer *t = user;
  const char *slash = strrchr(t->folder, '/');
  WR_TRY(wr_spec_put_meta(&t->spec, slash && slash[1] ? slash + 1 : t->folder, w));
  return wr_vocab_put_gguf(t->tokenizer, w);
}

static weir_status put_optimizer_meta(void *user, wr_gguf_writer *w) {
  const weir_trainer *t = user;
  WR_TRY(wr_gguf_put_text(w, "general.type", "optimizer", 9));
  return wr_gguf_put_text(w, "weir.optimizer", t->set.o.optimizer, strlen(t->set.o.optimizer));
}

/* --------------------------------------------------------------------------------------------------------------------- saving */

weir_status wr_save_begin(weir_trainer *t) {
  if (!t->saver) return wr_fail(WEIR_EUSAGE, "the run has no folder: nothing can be saved");
  const char *bad = wr_weights_not_finite(t);
  if (bad)
    return wr_fail(WEIR_EFAIL, "the weights of %s are not finite after step %lld: they are not saved", bad,
                   (long long)t->now.step);
  wr_str state = {0};
  write_state(t, &state);
  const wr_save_file files[] = {
      {"model.gguf", put_model_meta, t, t->weight_tensors, (size_t)t->n_slots},
      {"optimizer.gguf", put_optimizer_meta, t, t->moment_tensors, (size_t)t->n_moments},
  };
  const wr_save save = {.step = t->now.step,
                        .val_loss = t->val_at_step,
                        .files = files,
                        .n_files = (int)WR_ARRAY_LEN(files),
                        .state = state.ptr,
                        .state_bytes = state.len};
  const weir_status s = state.oom ? wr_fail_nomem(state.len, "state.json") : wr_saver_begin(t->saver, &save);
  wr_str_free(&state);
  t->saved_at = t->now.seconds; /* a failed save is tried again when the next one is due */
  if (s != WEIR_OK) return s;
  t->saving = true;
  t->saved_step = t->now.step;
  return WEIR_OK;
}

weir_status wr_save_poll(weir_trainer *t, bool wait) {
  wr_save_result r = {0};
  if (!t->saver || !t->saving) return WEIR_OK;
  if (wait) {
    const weir_status s = wr_saver_wait(t->saver, &r);
    if (s != WEIR_OK && r.status == WEIR_OK) r.status = s;
  } else if (!wr_saver_poll(t->saver, &r)) {
    return WEIR_OK;
  }
  t->saving = false;
  t->aside_bytes = WR_MAX(t->aside_bytes, (size_t)r.aside_bytes);
  if (r.status == WEIR_OK) {
    t->good_step = r.step;
    return WEIR_OK;
  }
  t->saved_step = t->good_step;
  return wr_fail(r.status, "%s", r.sentence[0] ? r.sentence : "a checkpoint could not be written");
}

weir_status weir_trainer_save(weir_trainer *t) {
  const weir_status s = wr_save_poll(t, false);
  if (s != WEIR_OK) wr_log(WEIR_LOG_ERROR, "%s", weir_last_error());
  return wr_save_begin(t);
}

weir_status weir_trainer_wait(weir_trainer *t) { return wr_save_poll(t, true); }

/* -------------------------------------------------------------------------------------------------------------------- loading */

static weir_status load(weir_trainer *t, const wr_checkpoint *c) {
  wr_progress p;
  WR_TRY(read_state(t, c, &p));
  WR_TRY(wr_checkpoint_load(c, "model.gguf", t->weight_tensors, (size_t)t->n_slots));
  WR_TRY(wr_checkpoint_load(c, "optimizer.gguf", t->moment_tensors, (size_t)t->n_moments));
  t->now = p;
  t->saved_step = t->good_step = c->step;
  t->saved_at = p.seconds;
  t->sampled_step = c->step;
  t->val_at_step = c->val_loss;
  return WEIR_OK;
}

/* Memory for tensors that change before they were written: all of them where there is plenty, else what can be spared. */
static weir_status open_aside(weir_trainer *t) {
  const uint64_t want = t->weight_bytes + t->moment_bytes, taken = wr_train_taken(t);
  const uint64_t spare = t->memory_left > taken ? (t->memory_left - taken) / 4 : 0;
  const size_t bytes = (size_t)WR_MIN(want, spare);
  if (!bytes) return WEIR_OK;
  pthread_mutex_lock(&t->ctx->lock);
  const weir_status s = wr_mem_alloc(&t->ctx->mem, WR_MEM_STATE, bytes, true, "copies aside for checkpoints", &t->aside);
  pthread_mutex_unlock(&t->ctx->lock);
  return s;
}

weir_status wr_restart_open(weir_trainer *t) {
  t->note = "";
  WR_TRY(list_tensors(t));
  if (!t->folder) return wr_train_weights_init(t);
  WR_TRY(open_aside(t));
  wr_device *d = t->ctx->device;
  const wr_saver_options so = {
      .keep = (int)t->set.o.keep, .aside = t->aside.addr ? d->api->host(d, &t->aside) : NULL, .aside_bytes = t->aside.bytes};
  WR_TRY(wr_saver_open(t->folder, &so, &t->saver));
  wr_checkpoint *c;
  WR_TRY(wr_checkpoint_newest(t->folder, &c));
  if (!c) return wr_train_weights_init(t);
  weir_status s = load(t, c);
  if (s == WEIR_OK) s = wr_data_seek(t->data, &t->now.at);
  if (s == WEIR_OK) s = wr_checkpoint_rollback(t->folder, t->now.step);
  t->resumed = true;
  wr_checkpoint_close(c);
  return s;
}

weir_status wr_rollback(weir_trainer *t) {
  wr_checkpoint *c = NULL;
  if (!t->saver) return wr_fail(WEIR_EFAIL, "%s: there is no folder with a checkpoint to go back to", t->event.ptr);
  if (wr_save_poll(t, true) != WEIR_OK) wr_log(WEIR_LOG_ERROR, "%s", weir_last_error());
  WR_TRY(wr_checkpoint_before(t->folder, t->now.step, &c));
  if (!c) return wr_fail(WEIR_EFAIL, "%s: there is no checkpoint to go back to", t->event.ptr);
  const wr_progress before = t->now;
  weir_status s = load(t, c);
  t->now.at = before.at;
  t->now.epoch = before.epoch;
  t->now.micro = before.micro;
  t->now.troubles = before.troubles;
  t->now.trouble_at = before.trouble_at;
  t->now.seconds = before.seconds;
  t->saved_at = before.seconds;
  if (s == WEIR_OK) s = wr_checkpoint_rollback(t->folder, t->now.step);
  if (s == WEIR_OK) s = wr_metrics_cut(t);
  wr_str_printf(&t->event, "; rolled back to the checkpoint of step %lld", (long long)t->now.step);
  wr_checkpoint_close(c);
  return s;
}

void wr_restart_close(weir_trainer *t) {
  wr_saver_close(t->saver);
  pthread_mutex_lock(&t->ctx->lock);
  wr_mem_free(&t->ctx->mem, WR_MEM_STATE, &t->aside);
  pthread_mutex_unlock(&t->ctx->lock);
}

/* ----------------------------------------------------------------------------------------------------------------- snapshots */

struct weir_snapshot {
  const weir_trainer *of;
  wr_progress now;
  double val_at_step;
  char *bytes; /* weights, then moments */
};

weir_status weir_trainer_snapshot(weir_trainer *t, weir_snapshot **out) {
  weir_snapshot *s = wr_calloc(1, sizeof *s);
  wr_device *d = t->ctx->device;
  if (s) s->bytes = wr_malloc(t->weight_bytes + t->moment_bytes);
  if (!s || !s->bytes) {
    wr_free(s);
    return wr_fail_nomem(t->weight_bytes + t->moment_bytes, "a snapshot");
  }
  s->of = t;
  s->now = t->now;
  s->val_at_step = t->val_at_step;
  weir_status st = d->api->read(d, &t->weights, 0, s->bytes, t->weight_bytes);
  if (st == WEIR_OK) st = d->api->read(d, &t->moments, 0, s->bytes + t->weight_bytes, t->moment_bytes);
  if (st == WEIR_OK)
    *out = s;
  else
    weir_snapshot_free(s);
  return st;
}

weir_status weir_trainer_restore(weir_trainer *t, const weir_snapshot *s) {
  wr_device *d = t->ctx->device;
  if (s->of != t) return wr_fail(WEIR_EUSAGE, "the snapshot is of another trainer");
  WR_TRY(wr_data_seek(t->data, &s->now.at));
  if (t->saver) wr_saver_before_change(t->saver, d->team, NULL);
  WR_TRY(d->api->write(d, &t->weights, 0, s->bytes, t->weight_bytes));
  WR_TRY(d->api->write(d, &t->moments, 0, s->bytes + t->weight_bytes, t->moment_bytes));
  t->now = s->now;
  t->val_at_step = s->val_at_step;
  t->untrained = 0;
  t->done = false;
  return wr_metrics_cut(t);
}

void weir_snapshot_free(weir_snapshot *s) {
  if (!s) return;
  wr_free(s->bytes);
  wr_free(s);
}
