/* source.c: what a run is trained on. Owns the tokenizer, the training and the validation data, and the way of samples into the
 * inputs of a batch.
 *
 * Tokenizer: shards have theirs; text takes the one that the settings name, or RUN/tokenizer.gguf, or one that is trained from
 * the text now, as large as the model's size suggests, and kept there. The model has a row for each of its tokens; more rows
 * (`vocab`) are padding, fewer are refused.
 *
 * Samples are views into mapped shards. The one copy on their way is widening u16 ids into the I32 tables that kernels read.
 */
#include <stdlib.h>
#include <unistd.h>

#include "train/train.h"

#define VAL_SHARE 0.01                       /* of text: what wr_data_options has by default */
#define TOKENIZER_BYTES ((uint64_t)64 << 20) /* of text that a vocabulary is made from: seconds, and more changes little */

/* ------------------------------------------------------------------------------------------------------------------ tokenizer */

/* A power of two from 512 to 32k: its table is at most a third of the other parameters, and there are 512 bytes of text for each token. */
static weir_status fitting_vocab(weir_trainer *t, uint64_t bytes, int64_t *out) {
  wr_spec s;
  WR_TRY(wr_train_spec(t, 512, &s));
  const double table = 512.0 * (double)s.width, rest = (double)wr_spec_parameters(&s) - table * (s.tied ? 1 : 2);
  int64_t vocab = 512;
  while (vocab < 32768 && 2 * (double)vocab * (double)s.width * 3 <= rest && 2 * (uint64_t)vocab * 512 <= bytes) vocab *= 2;
  *out = vocab;
  return WEIR_OK;
}

static weir_status keep_tokenizer(weir_trainer *t, const char *path) {
  wr_gguf_writer *w;
  WR_TRY(wr_gguf_writer_open(path, 0, &w));
  weir_status s = wr_gguf_put_text(w, "general.architecture", t->set.o.arch, strlen(t->set.o.arch));
  if (s == WEIR_OK) s = wr_vocab_put_gguf(t->tokenizer, w);
  if (s == WEIR_OK) s = wr_gguf_writer_finish(w);
  wr_gguf_writer_close(w);
  return s;
}

static weir_status open_text(weir_trainer *t, wr_text_input **out) {
  const char *paths[WR_TRAIN_SOURCES];
  for (size_t i = 0; i < t->set.o.n_data; i++) paths[i] = t->set.o.data[i].path;
  const wr_text_input_options o = {.paths = paths, .n_paths = (int)t->set.o.n_data, .val_share = VAL_SHARE};
  return wr_text_input_open(&o, out);
}

/* Bytes of the text, up to TOKENIZER_BYTES. */
static weir_status count_text(weir_trainer *t, uint64_t *bytes) {
  wr_text_input *in;
  wr_text_block block = {0};
  WR_TRY(open_text(t, &in));
  weir_status s = WEIR_OK;
  uint64_t sum = 0;
  while (sum < TOKENIZER_BYTES && (s = wr_text_input_read(in, &block)) == WEIR_OK && block.n) sum += block.n;
  wr_text_block_free(&block);
  wr_text_input_close(in);
  *bytes = sum;
  return s;
}

/* Where the text ends, counted as positions in it are, if the length of the run is told by that. */
static weir_status measure_text(weir_trainer *t) {
  wr_text_input *in;
  wr_text_block block = {0};
  if (!t->data_info.text || t->data_info.samples || !(t->set.o.epochs > 0)) return WEIR_OK;
  WR_TRY(open_text(t, &in));
  weir_status s = WEIR_OK;
  while ((s = wr_text_input_read(in, &block)) == WEIR_OK && block.n) t->text_bytes = block.byte + block.n;
  wr_text_block_free(&block);
  wr_text_input_close(in);
  return s;
}

static int tell(void *user, const weir_tokenizer_progress *p) {
  const weir_train_options *o = user;
  return o->progress ? o->progress(o->user, "training a vocabulary", p->done) : 0;
}

static weir_status train_tokenizer(weir_trainer *t) {
  weir_tokenizer_train_options o = {.vocab = t->set.o.vocab,
                                    .threads = t->ctx->device->n_threads,
                                    .val_share = VAL_SHARE,
                                    .most_bytes = TOKENIZER_BYTES,
                                    .progress = tell,
                                    .user = &t->set.o};
  const char *paths[WR_TRAIN_SOURCES];
  for (size_t i = 0; i < t->set.o.n_data; i++) paths[i] = t->set.o.data[i].path;
  if (!o.vocab) {
    uint64_t bytes;
    WR_TRY(count_text(t, &bytes));
    WR_TRY(fitting_vocab(t, bytes, &o.vocab));
  }
  return wr_data_train_tokenizer(paths, t->set.o.n_data, &o, NULL, &t->tokenizer);
}

static weir_status open_tokenizer(weir_trainer *t, bool shards) {
  const weir_train_options *o = &t->set.o;
  const char *kept = NULL;
  if (shards) {
    if (o->tokenizer[0])
      return wr_fail(WEIR_EUSAGE, "%s: shards have their own tokenizer; build them again to use %s", o->data[0].path,
                     o->tokenizer);
    const char *own = wr_arena_printf(&t->arena, "%s/tokenizer.gguf", o->data[0].path);
    return own ? wr_tokenizer_open_path(own, &t->tokenizer) : wr_fail_nomem(64, "a path");
  }
  if (t->folder && !(kept = wr_arena_printf(&t->arena, "%s/tokenizer.gguf", t->folder))) return wr_fail_nomem(64, "a path");
  if (kept && t->resumes && access(kept, F_OK) == 0) return wr_tokenizer_open_path(kept, &t->tokenizer);
  WR_TRY(o->tokenizer[0] ? wr_tokenizer_open_path(o->tokenizer, &t->tokenizer) : train_tokenizer(t));
  return kept ? keep_tokenizer(t, kept) : WEIR_OK;
}

/* ----------------------------------------------------------------------------------------------------------------------- data */

static weir_status open_data(weir_trainer *t, bool validation, wr_data **out, wr_data_info *info) {
  const weir_train_options *o = &t->set.o;
  wr_data_source sources[WR_TRAIN_SOURCES];
  for (size_t i = 0; i < o->n_data; i++) sources[i] = (wr_data_source){o->data[i].path, o->data[i].weight};
  const wr_data_options d = {.sources = sources,
                             .n_sources = (int)o->n_data,
                             .validation = validation,
                             .context_tok = o->ctx,
                             .seed = (uint64_t)o->seed,
                             .prefetch = WR_MAX(2 * o->batch * o->accumulate, (int64_t)64),
                             .tokenizer = t->tokenizer,
                             .workers = (int)o->workers,
                             .shuffle_window = WR_MAX(o->shuffle_window, o->batch * o->accumulate)};
  WR_TRY(wr_data_open(&d, out));
  wr_data_get_info(*out, info);
  return WEIR_OK;
}

weir_status wr_train_source_open(weir_trainer *t) {
  const weir_train_options *o = &t->set.o;
  bool shards = false, mixed = false;
  for (size_t i = 0; i < o->n_data; i++) {
    const bool is = wr_data_is_shards(o->data[i].path);
    mixed |= i > 0 && is != shards;
    shards = is;
  }
  if (mixed) return wr_fail(WEIR_EUSAGE, "the data is text and shards: build shards of the text, or train on one kind");
  WR_TRY(open_tokenizer(t, shards));
  WR_TRY(open_data(t, false, &t->data, &t->data_info));
  const int64_t vocab = t->data_info.vocab ? t->data_info.vocab : (int64_t)wr_tokenizer_size(t->tokenizer);
  if (o->vocab && o->vocab < vocab)
    return wr_fail(
        WEIR_EUSAGE,
        "the tokenizer has %lld entries, but the model would have %lld rows for them (vocab): more are padding, fewer are none",
        (long long)vocab, (long long)o->vocab);
  WR_TRY(measure_text(t));
  const weir_status val = open_data(t, true, &t->val, &t->val_info);
  if (val == WEIR_EUSAGE ||
      (val != WEIR_OK && !o->eval_every)) /* too little for it; or a split that is damaged, and not needed */
    wr_log(WEIR_LOG_INFO, "no validation: %s", weir_last_error());
  else
    WR_TRY(val);
  const size_t n = (size_t)(o->batch * o->accumulate);
  t->samples = wr_calloc(n, sizeof *t->samples);
  t->val_samples = wr_calloc((size_t)o->batch, sizeof *t->val_samples);
  if (!t->samples || !t->val_samples) return wr_fail_nomem(n * sizeof *t->samples, "the samples of a step");
  return wr_train_spec(t, WR_MAX(vocab, o->vocab), &t->spec);
}

void wr_train_source_close(weir_trainer *t) {
  wr_data_close(t->data);
  wr_data_close(t->val);
  wr_tokenizer_close(t->tokenizer);
  wr_free(t->samples);
  wr_free(t->val_samples);
}

/* -------------------------------------------------------------------------------------------------------------------- batches */

int64_t wr_samples_tok(const wr_sample *samples, int64_t n) {
  int64_t sum = 0;
  for (int64_t i = 0; i < n; i++) sum += samples[i].n_tok - 1;
  return sum;
}

weir_status wr_train_fill(weir_trainer *t, wr_stage *s, const wr_train_io *io, const wr_sample *samples, int64_t n,
                          int64_t *counted) {
  const weir_train_options *o = &t->set.o;
  wr_batch b = {.tokens = wr_plan_host(&s->plan, io->tokens),
                .targets = wr_plan_host(&s->plan, io->targets),
                .pos = wr_plan_host(&s->plan, io->pos),
                .first = wr_plan_host(&s->plan, io->first)};
  WR_TRY(wr_batch_fill(samples, WR_MIN(n, o->batch), o->batch, o->ctx, t->spec.vocab, wr_is(o->packing, "on"), &b));
  wr_count_copy(&t->clock, "widen", (double)b.bytes);
  *counted = b.counted;
  return WEIR_OK;
}
