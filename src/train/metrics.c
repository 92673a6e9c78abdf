/* metrics.c: RUN/metrics.jsonl. A line {"run": ...} each time that a run begins or goes on, a line for each step (design, section 9),
 * {"event": ...} for what went wrong, {"memory": ...} at checkpoints. report_i.h says what the report reads of it.
 *
 * Each step stands once: on going on from a checkpoint the lines of later steps are cut off. A line is one write; one that fails (a full
 * disk) is taken back, so that no half of it stays.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "train/train.h"

/* --------------------------------------------------------------------------------------------------------------------- JSON */

void wr_number_text(char out[32], double x) {
  for (int digits = 6;; digits = digits == 6 ? 9 : 17) {
    snprintf(out, 32, "%.*g", digits, x);
    if (digits == 17 || strtod(out, NULL) == x) return;
  }
}

void wr_put_json_number(wr_str *s, double x) {
  char text[32];
  wr_number_text(text, x);
  wr_str_puts(s, isfinite(x) ? text : "null");
}

static void put_figure(wr_str *s, double x) {
  if (isfinite(x))
    wr_str_printf(s, "%.9g", x); /* a float32 comes back from nine digits */
  else
    wr_str_puts(s, "null");
}

static void put_number(wr_str *s, const char *key, double x) {
  wr_str_printf(s, ", \"%s\": ", key);
  put_figure(s, x);
}

/* -------------------------------------------------------------------------------------------------------------------- files */

static weir_status append(int fd, const char *path, wr_str *line) {
  struct stat st;
  if (line->oom || fstat(fd, &st) != 0) return wr_fail_nomem(line->len, "a line of metrics");
  for (size_t done = 0; done < line->len;) {
    const ssize_t n = write(fd, line->ptr + done, line->len - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const int err = errno;
      if (ftruncate(fd, st.st_size) != 0) wr_log(WEIR_LOG_WARN, "%s: half a line could not be taken back", path);
      errno = err;
      return wr_fail_errno(wr_write_status(err), path, "append");
    }
    done += (size_t)n;
  }
  return WEIR_OK;
}

weir_status wr_append_line(const char *path, wr_str *line) {
  const int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return wr_fail_errno(wr_write_status(errno), path, "open");
  const weir_status s = append(fd, path, line);
  close(fd);
  return s;
}

/* The step that a line speaks of; -1: of none. */
static long long step_of(const char *line, size_t n) {
  static const char key[] = "\"step\": ";
  const char *at = memmem(line, n, key, sizeof key - 1);
  return at ? strtoll(at + sizeof key - 1, NULL, 10) : -1;
}

/* JSON lines of later steps go, and a last one that is torn. */
static weir_status cut_lines(const char *path, int64_t step) {
  wr_map m;
  if (access(path, F_OK) != 0) return WEIR_OK;
  WR_TRY(wr_map_open(path, false, &m));
  const char *text = (const char *)m.ptr;
  size_t keep = 0;
  while (keep < m.bytes) {
    const char *end = memchr(text + keep, '\n', m.bytes - keep);
    if (!end || step_of(text + keep, (size_t)(end - text) - keep) > step) break;
    keep = (size_t)(end - text) + 1;
  }
  const bool cut = keep < m.bytes;
  wr_map_close(&m);
  if (cut && truncate(path, (off_t)keep) != 0) return wr_fail_errno(WEIR_EIO, path, "cut");
  return WEIR_OK;
}

/* -------------------------------------------------------------------------------------------------------------------- lines */

static void put_line(weir_trainer *t) {
  if (t->metrics < 0) return;
  if (append(t->metrics, "metrics.jsonl", &t->line) != WEIR_OK) wr_log(WEIR_LOG_ERROR, "%s", weir_last_error());
  wr_str_clear(&t->line);
}

static void put_event(weir_trainer *t, const char *kind) {
  if (!t->event.len) return;
  wr_str_printf(&t->line, "{\"event\": \"%s\", \"step\": %lld, \"text\": ", kind, (long long)t->report.step);
  wr_str_json(&t->line, t->event.ptr, t->event.len);
  wr_str_puts(&t->line, "}\n");
}

static void put_samples(weir_trainer *t, const wr_sample *samples, int64_t n) {
  wr_str_puts(&t->line, ", \"samples\": [");
  for (int64_t i = 0; i < n; i++)
    wr_str_printf(&t->line, "%s[%d, %llu, %llu]", i ? ", " : "", samples[i].source, (unsigned long long)samples[i].epoch,
                  (unsigned long long)samples[i].id);
  wr_str_puts(&t->line, "]");
}

void wr_metrics_put(weir_trainer *t, const wr_sample *samples, int64_t n_samples) {
  const weir_train_report *r = &t->report;
  wr_str *s = &t->line;
  if (t->metrics < 0) return;
  put_event(t, isfinite(r->loss) && isfinite(r->grad_norm) ? (r->spike ? "spike" : "save") : "nan");
  if (r->step > t->now.step) { /* the step was not made, or undone: it will stand here when it is */
    put_line(t);
    return;
  }
  wr_str_printf(s, "{\"step\": %lld", (long long)r->step);
  put_number(s, "loss", r->loss);
  if (isfinite(r->val_loss)) put_number(s, "val_loss", r->val_loss);
  put_number(s, "lr", r->lr);
  put_number(s, "grad_norm", r->grad_norm);
  wr_str_printf(s, ", \"tokens\": %llu, \"step_tok\": %lld", (unsigned long long)r->tokens, (long long)r->step_tok);
  put_number(s, "epoch", r->epoch);
  put_number(s, "tok_s", r->tok_s);
  put_number(s, "mfu", r->mfu);
  put_number(s, "loss_scale", r->loss_scale);
  wr_str_printf(s, ", \"skipped\": %d, \"seconds\": {\"total\": ", t->skipped_now);
  put_figure(s, r->seconds.total);
  const double parts[WR_PART_COUNT] = {r->seconds.data,      r->seconds.copy,       r->seconds.forward, r->seconds.backward,
                                       r->seconds.optimizer, r->seconds.checkpoint, r->seconds.other};
  for (int i = 0; i < WR_PART_COUNT; i++) put_number(s, wr_part_names[i], parts[i]);
  wr_str_printf(s, "}, \"payload_copied\": %llu, \"bytes_copied\": {", (unsigned long long)r->payload_copied);
  for (size_t i = 0; i < r->n_copied; i++) {
    wr_str_printf(s, "%s\"%s\": ", i ? ", " : "", r->copied[i].what);
    put_figure(s, r->copied[i].bytes);
  }
  wr_str_puts(s, "}");
  if (wr_is(t->set.o.log_sample_ids, "on")) put_samples(t, samples, n_samples);
  wr_str_puts(s, "}\n");
  put_line(t);
}

void wr_metrics_memory(weir_trainer *t) {
  wr_str *s = &t->line;
  if (t->metrics < 0) return;
  wr_str_printf(s, "{\"memory\": [");
  for (size_t i = 0; i < t->n_ledger; i++)
    wr_str_printf(s, "%s{\"what\": \"%s\", \"planned\": %llu, \"measured\": null}", i ? ", " : "", t->ledger[i].what,
                  (unsigned long long)t->ledger[i].bytes);
  wr_str_printf(s, ", {\"what\": \"all\", \"planned\": %llu, \"measured\": %llu}]}\n", (unsigned long long)t->planned_bytes,
                (unsigned long long)t->seen_bytes);
  put_line(t);
}

static void put_run(weir_trainer *t) {
  const wr_spec *m = &t->spec;
  wr_str *s = &t->line;
  wr_str_printf(
      s,
      "{\"run\": {\"weir\": \"%s\", \"arch\": \"%s\", \"parameters\": %llu, \"layers\": %lld, \"width\": %lld, "
      "\"heads\": %lld, \"kv_heads\": %lld, \"ff\": %lld, \"vocab\": %lld, \"tied\": %s, \"ctx\": %lld, \"batch\": %lld, "
      "\"accumulate\": %lld, \"optimizer\": \"%s\", \"remat\": \"%s\", \"threads\": %d, \"isa\": \"%s\", \"from_step\": %lld",
      weir_version(), m->arch, (unsigned long long)t->parameters, (long long)m->layers, (long long)m->width,
      (long long)m->heads, (long long)m->kv_heads, (long long)m->ff, (long long)m->vocab, m->tied ? "true" : "false",
      (long long)m->context_tok, (long long)t->set.o.batch, (long long)t->set.o.accumulate, t->set.o.optimizer,
      wr_remat_names[t->remat], t->ctx->device->n_threads, wr_isa_name(t->ctx->device->isa), (long long)t->now.step);
  wr_str_puts(s, ", \"cpu\": ");
  wr_str_json(s, t->machine.cpu, strlen(t->machine.cpu));
  wr_str_puts(s, ", \"tokenizer\": ");
  wr_str_json(s, wr_tokenizer_name(t->tokenizer), strlen(wr_tokenizer_name(t->tokenizer)));
  put_number(s, "flop_tok", t->flop_tok);
  put_number(s, "peak_gflop_s", t->peak_flop_s * 1e-9);
  put_number(s, "predicted_step_s", t->predicted_s);
  wr_str_printf(s, ", \"fingerprint\": \"%016llx\"}}\n", (unsigned long long)t->fingerprint);
}

weir_status wr_metrics_cut(weir_trainer *t) {
  static const char *const names[] = {"metrics.jsonl", "samples.jsonl"};
  for (size_t i = 0; t->folder && i < WR_ARRAY_LEN(names); i++) {
    const char *path = wr_arena_printf(&t->arena, "%s/%s", t->folder, names[i]);
    if (!path) return wr_fail_nomem(strlen(t->folder), "a path");
    if (t->now.step == 0 && truncate(path, 0) != 0 && errno != ENOENT) return wr_fail_errno(WEIR_EIO, path, "cut");
    WR_TRY(cut_lines(path, t->now.step));
  }
  return WEIR_OK;
}

weir_status wr_metrics_open(weir_trainer *t) {
  if (!t->folder) return WEIR_OK;
  const char *path = wr_arena_printf(&t->arena, "%s/metrics.jsonl", t->folder);
  if (!path) return wr_fail_nomem(strlen(t->folder), "a path");
  WR_TRY(wr_metrics_cut(t));
  t->metrics = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (t->metrics < 0) return wr_fail_errno(wr_write_status(errno), path, "open");
  put_run(t);
  if (t->resumed)
    wr_str_printf(&t->line,
                  "{\"event\": \"resume\", \"step\": %lld, \"text\": \"went on from the checkpoint of this step%s%s\"}\n",
                  (long long)t->now.step, t->note[0] ? "; " : "", t->note);
  put_line(t);
  wr_metrics_memory(t);
  return WEIR_OK;
}

void wr_metrics_close(weir_trainer *t) {
  if (t->metrics >= 0) close(t->metrics);
  t->metrics = -1;
}
