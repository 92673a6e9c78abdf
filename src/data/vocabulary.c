/* vocabulary.c: a vocabulary out of text as it comes: reads the inputs and hands every document to the trainer of text/.
 *
 * A piece of a long document counts as a text of its own: pieces end between words (cut.c), so the words are those of the whole.
 * Bad records are borne or not as in a build (input.c).
 */
#include "data/data_i.h"

#define DEFAULT_VOCAB 8192
#define READING_SHARE 0.7  /* of the progress; merging is the rest */
#define LOOK_NS 100000000u /* between two calls of the progress function */

typedef struct learner {
  const weir_tokenizer_train_options *o;
  wr_bpe_trainer *trainer;
  wr_text_input *input;
  uint64_t begin_ns, told_ns;
  uint64_t bytes;
} learner;

static weir_status tell(learner *l, double done, int64_t vocab) {
  if (!l->o->progress || wr_now_ns() - l->told_ns < LOOK_NS) return WEIR_OK;
  l->told_ns = wr_now_ns();
  const weir_tokenizer_progress p = {
      .done = done, .seconds = (double)(l->told_ns - l->begin_ns) * 1e-9, .bytes = l->bytes, .vocab = vocab};
  return l->o->progress(l->o->user, &p) ? wr_fail(WEIR_ESTOPPED, "training the tokenizer was stopped") : WEIR_OK;
}

static weir_status learn_piece(void *user, const wr_text_piece *p) {
  learner *l = user;
  if (p->validation) return WEIR_OK;
  l->bytes += p->n;
  return wr_bpe_trainer_add(l->trainer, p->text, p->n);
}

static weir_status read_all(learner *l, wr_text_block *block) {
  for (;;) {
    WR_TRY(wr_text_input_read(l->input, block));
    if (!block->n) return wr_text_input_end(l->input);
    WR_TRY(wr_text_block_each(l->input, block, learn_piece, l));
    WR_TRY(wr_text_input_settle(l->input, block));
    if (l->o->most_bytes && l->bytes >= l->o->most_bytes) return WEIR_OK;
    WR_TRY(tell(l, READING_SHARE * wr_text_input_done(l->input), 0));
  }
}

static int merging(void *user, int64_t vocab, int64_t wanted) {
  learner *l = user;
  return tell(l, READING_SHARE + (1 - READING_SHARE) * (double)vocab / (double)wanted, vocab) != WEIR_OK;
}

static weir_status learn(learner *l, wr_tokenizer **out) {
  wr_text_block block = {0};
  weir_status s = read_all(l, &block);
  wr_text_block_free(&block);
  return s == WEIR_OK ? wr_bpe_trainer_finish(l->trainer, merging, l, out) : s;
}

static void fill_report(const learner *l, weir_tokenizer_train_report *r) {
  wr_text_counts c;
  wr_bpe_report b;
  wr_text_input_counts(l->input, &c);
  wr_bpe_trainer_get_report(l->trainer, &b);
  const double seconds = (double)(wr_now_ns() - l->begin_ns) * 1e-9;
  *r = (weir_tokenizer_train_report){.bytes = b.bytes,
                                     .docs = c.docs,
                                     .records = c.records,
                                     .bad = c.bad,
                                     .words = b.words,
                                     .distinct = b.distinct,
                                     .tokens = b.tokens,
                                     .vocab = b.vocab,
                                     .seconds = seconds,
                                     .mb_s = (double)b.bytes * 1e-6 / seconds,
                                     .tokens_per_byte = b.bytes ? (double)b.tokens / (double)b.bytes : 0};
}

weir_status wr_data_train_tokenizer(const char *const *inputs, size_t n_inputs, const weir_tokenizer_train_options *options,
                                    weir_tokenizer_train_report *out, wr_tokenizer **tokenizer) {
  static const weir_tokenizer_train_options defaults;
  learner l = {.o = options ? options : &defaults, .begin_ns = wr_now_ns()};
  if (!n_inputs || n_inputs > INT32_MAX) return wr_fail(WEIR_EUSAGE, "a tokenizer is trained on text: name a file or a folder");
  const wr_bpe_options bpe = {
      .vocab = l.o->vocab ? l.o->vocab : DEFAULT_VOCAB, .pre = l.o->pre, .min_count = l.o->min_count, .threads = l.o->threads};
  const wr_text_input_options input = {.paths = inputs,
                                       .n_paths = (int)n_inputs,
                                       .field = l.o->field,
                                       .jsonl = l.o->jsonl,
                                       .val_share = l.o->val_share,
                                       .strict = l.o->strict,
                                       .max_bad = l.o->max_bad};
  weir_status s = wr_bpe_trainer_open(&bpe, &l.trainer);
  if (s == WEIR_OK) s = wr_text_input_open(&input, &l.input);
  if (s == WEIR_OK) s = learn(&l, tokenizer);
  if (s == WEIR_OK && out) fill_report(&l, out);
  wr_text_input_close(l.input);
  wr_bpe_trainer_close(l.trainer);
  return s;
}
