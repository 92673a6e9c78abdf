/* eval.c: how good the model is. Owns validation, and the text samples that show it.
 *
 * Validation loss is the sum of the losses of the tokens / their number: the mean of a batch is weighted by the rows that count in it,
 * so the batch's size changes nothing but the order of a sum.
 *
 * A text sample is made from a checkpoint by the inference engine, as anyone would use it, after the checkpoint is on disk. That takes
 * the time of a few dozen tokens on the training thread ('other'), and no memory once it is done.
 */
#include <math.h>
#include <sys/stat.h>

#include "train/train.h"

weir_status wr_validate(weir_trainer *t, double *loss) {
  const int64_t B = t->set.o.batch, limit = t->set.o.eval_batches;
  const wr_data_position beginning = {0};
  double sum = 0, rows = 0;
  if (!t->val) return wr_fail(WEIR_EUSAGE, "there is no validation data: build the shards with a validation split");
  WR_TRY(wr_data_seek(t->val, &beginning));
  for (int64_t i = 0; !limit || i < limit; i++) {
    int64_t n = 0;
    float mean = 0;
    WR_TRY(wr_data_next(t->val, B, t->val_samples, &n));
    if (!n) break;
    int64_t count;
    WR_TRY(wr_train_fill(t, &t->valid, &t->valid_io, t->val_samples, n, &count));
    *(float *)wr_plan_host(&t->valid.plan, t->valid_io.scale) = 1;
    WR_TRY(wr_plan_run(&t->valid.plan));
    WR_TRY(wr_plan_read(&t->valid.plan, t->valid_io.loss, 0, &mean, sizeof mean));
    sum += (double)mean * (double)count;
    rows += (double)count;
    if (n < B) break;
  }
  if (!(rows > 0)) return wr_fail(WEIR_EUSAGE, "the validation split is empty");
  *loss = sum / rows;
  t->val_at_step = *loss;
  if (!(t->now.best_val <= *loss)) t->now.best_val = *loss; /* also from NaN */
  return WEIR_OK;
}

weir_status weir_trainer_eval(weir_trainer *t, double *loss) {
  double x;
  WR_TRY(wr_validate(t, &x));
  *loss = x;
  return WEIR_OK;
}

/* ----------------------------------------------------------------------------------------------------------------- text samples */

static weir_status generate(weir_trainer *t, const char *model, const char *prompt, weir_result **out) {
  const weir_model_options mo = {.no_pack = true};
  const weir_session_options so = {.context_tok = t->set.o.ctx};
  weir_generate_options go = {.max_tok = t->set.o.sample_tok, .no_limit = true};
  weir_model *m;
  weir_session *s = NULL;
  WR_TRY(weir_sampling_set(&go.sampling, "temperature", 0.8));
  WR_TRY(weir_sampling_set(&go.sampling, "top_k", 50));
  WR_TRY(weir_sampling_set(&go.sampling, "seed", 1));
  WR_TRY(weir_model_open(t->ctx, model, &mo, &m));
  weir_status st = weir_session_open(m, &so, &s);
  if (st == WEIR_OK) st = weir_generate(s, prompt, strlen(prompt), &go, NULL, NULL, out);
  weir_session_close(s);
  weir_model_close(m);
  return st;
}

void wr_text_sample(weir_trainer *t, int64_t step) {
  wr_str path = {0}, line = {0};
  const char *prompt = t->set.o.sample_prompt;
  weir_result *r = NULL;
  if (!t->folder || !t->set.o.sample_tok || step <= t->sampled_step) return;
  t->sampled_step = step;
  wr_str_printf(&path, "%s/checkpoints/step-%lld/model.gguf", t->folder, (long long)step);
  weir_status s = path.oom ? wr_fail_nomem(64, "a path") : generate(t, path.ptr, prompt, &r);
  if (s == WEIR_OK) {
    wr_str_printf(&line, "{\"step\": %lld, \"prompt\": ", (long long)step);
    wr_str_json(&line, prompt, strlen(prompt));
    wr_str_puts(&line, ", \"text\": ");
    wr_str_json(&line, r->text, r->text_bytes);
    wr_str_puts(&line, "}\n");
    wr_str_clear(&path);
    wr_str_printf(&path, "%s/samples.jsonl", t->folder);
    s = path.oom ? wr_fail_nomem(64, "a path") : wr_append_line(path.ptr, &line);
  }
  if (s != WEIR_OK) wr_log(WEIR_LOG_WARN, "no text sample of step %lld: %s", (long long)step, weir_last_error());
  weir_result_free(r);
  wr_str_free(&path);
  wr_str_free(&line);
}

/* At most every half minute, and at most a hundredth of the time: reading the metrics of a million steps takes seconds. */
void wr_report_page_write(weir_trainer *t, bool always) {
  const uint64_t begin = wr_now_ns(), least = WR_MAX(t->page_took_ns * 100, (uint64_t)30 * 1000000000u);
  if (!t->folder || (!always && begin - t->page_ns < least)) return;
  if (weir_report_write(t->folder) != WEIR_OK) wr_log(WEIR_LOG_WARN, "%s", weir_last_error());
  t->page_ns = wr_now_ns();
  t->page_took_ns = t->page_ns - begin;
}
