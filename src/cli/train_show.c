/* What `weir train` shows: see train_i.h. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "train_i.h"

#define DRAW_S 0.15 /* between two drawings of the progress line */
#define LINE_S 5.0  /* between two plain lines */
enum { PLOT_ROWS = 13, PLOT_COLUMNS = 100, MAX_KINDS = 64, NAME = 96 };

static double now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* 12345678 as "12.3M" */
static void short_count(char out[16], double n) {
  const char *unit = "";
  if (n >= 999.5e6)
    n /= 1e9, unit = "G";
  else if (n >= 999.5e3)
    n /= 1e6, unit = "M";
  else if (n >= 9999.5)
    n /= 1e3, unit = "k";
  snprintf(out, 16, *unit ? "%.3g%s" : "%.0f%s", n, unit);
}

/* ---- before the start */

/* "blk.3.attn_q.weight" as "blk.*.attn_q.weight" */
static void name_kind(const char *name, char out[NAME]) {
  size_t at = 0;
  for (const char *c = name; *c && at + 2 < NAME; c++) {
    const bool number = c > name && c[-1] == '.' && *c >= '0' && *c <= '9';
    if (!number) {
      out[at++] = *c;
      continue;
    }
    out[at++] = '*';
    while (c[1] >= '0' && c[1] <= '9') c++;
  }
  out[at] = 0;
}

/* The kinds of tensors that decay, or that do not, each once. */
static void print_decay(const weir_trainer_info *info, bool decays) {
  char seen[MAX_KINDS][NAME];
  int n = 0;
  size_t tensors = 0, line = 0;
  for (size_t i = 0; i < info->n_params; i++) {
    if (info->params[i].decays != decays) continue;
    char kind[NAME];
    name_kind(info->params[i].name, kind);
    tensors++;
    int k = 0;
    while (k < n && strcmp(seen[k], kind) != 0) k++;
    if (k == n && n < MAX_KINDS) strcpy(seen[n++], kind);
  }
  if (tensors == 0) return;
  fprintf(stderr, "%-10s %zu tensors: ", decays ? "decays" : "does not", tensors);
  for (int k = 0; k < n; k++) {
    const size_t width = strlen(seen[k]) + 2;
    if (line && line + width > 88) line = 0, fprintf(stderr, "\n%11s", "");
    fprintf(stderr, "%s%s", seen[k], k + 1 < n ? ", " : "\n");
    line += width;
  }
}

static void print_optimizers(const weir_trainer_info *info) {
  static const char *const names[] = {"adamw", "muon", "sgd"};
  fprintf(stderr, "%-10s", "optimiser");
  bool any = false;
  for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
    size_t n = 0;
    double elements = 0;
    for (size_t i = 0; i < info->n_params; i++) {
      if (strcmp(info->params[i].optimizer, names[k]) != 0) continue;
      n++;
      elements += (double)info->params[i].elements;
    }
    if (n == 0) continue;
    char count[16];
    short_count(count, elements);
    fprintf(stderr, "%s %s: %zu tensors, %s values", any ? ";" : "", names[k], n, count);
    any = true;
  }
  fprintf(stderr, "\n");
}

static void print_model(const weir_trainer_info *info) {
  char parameters[16], flop[16];
  short_count(parameters, (double)info->parameters);
  short_count(flop, info->flop_tok);
  fprintf(stderr, "%-10s %s: %lld layers, width %lld, %lld heads (%lld for keys and values), feed-forward %lld, %s embedding\n",
          "model", info->arch, (long long)info->layers, (long long)info->width, (long long)info->heads,
          (long long)info->kv_heads, (long long)info->ff, info->tied ? "one" : "its own output besides the");
  fprintf(stderr, "%-10s %s parameters, %sFLOP a token (forward and backward), %s\n", "", parameters, flop, info->precision);
  fprintf(stderr, "%-10s vocabulary of %lld (%s), context %lld\n", "text", (long long)info->vocab, info->tokenizer,
          (long long)info->ctx);
}

static void print_run(const weir_trainer_info *info) {
  char tokens[16], val[16], docs[16];
  short_count(tokens, (double)info->data_tokens);
  short_count(val, (double)info->val_tokens);
  short_count(docs, (double)info->data_docs);
  if (info->data_tokens)
    fprintf(stderr, "%-10s %s tokens in %s documents; for validation %s tokens\n", "data", tokens, docs, val);
  else
    fprintf(stderr, "%-10s text, tokenised as it is read\n", "data");
  const double step_tok = (double)(info->batch * info->accumulate * info->ctx);
  short_count(tokens, step_tok);
  fprintf(stderr, "%-10s ", "run");
  if (info->steps)
    fprintf(stderr, "%lld steps, each ", (long long)info->steps);
  else
    fprintf(stderr, "steps of ");
  fprintf(stderr, "%s tokens (%lld %s %lld", tokens, (long long)info->batch, wr_utf8() ? "×" : "x", (long long)info->ctx);
  if (info->accumulate > 1) fprintf(stderr, ", %lld times", (long long)info->accumulate);
  fprintf(stderr, ")");
  if (info->steps && info->data_tokens)
    fprintf(stderr, ", %.3g passes over the data", (double)info->steps * step_tok / (double)info->data_tokens);
  fprintf(stderr, "\n");
}

static void print_memory(const weir_trainer_info *info) {
  char size[16];
  wr_size(size, (double)info->planned_bytes);
  fprintf(stderr, "%-10s %s:", "memory", size);
  for (size_t i = 0; i < info->n_memory; i++) {
    wr_size(size, (double)info->memory[i].bytes);
    fprintf(stderr, "%s %s %s", i ? "," : "", info->memory[i].what, size);
  }
  fprintf(stderr, "; remat %s", info->remat);
  if (info->aside_bytes) {
    wr_size(size, (double)info->aside_bytes);
    fprintf(stderr, "; a checkpoint takes up to %s more while it is written", size);
  }
  fprintf(stderr, "\n");
}

static void print_time(const weir_trainer_info *info) {
  if (!(info->predicted_step_s > 0)) return;
  char all[24];
  const double step_tok = (double)(info->batch * info->accumulate * info->ctx);
  wr_duration(all, info->predicted_step_s * (double)(info->steps - info->step));
  fprintf(stderr, "%-10s about %.3g s a step, %.0f tok/s", "time", info->predicted_step_s, step_tok / info->predicted_step_s);
  if (info->steps) fprintf(stderr, ", %s in all", all);
  if (info->peak_gflop_s > 0) fprintf(stderr, " (peak measured here: %.0f GFLOP/s)", info->peak_gflop_s);
  fprintf(stderr, "\n");
}

static void json_facts(const weir_trainer_info *info) {
  wr_json j;
  wr_json_begin(&j, stdout);
  wr_json_object(&j);
  wr_json_key(&j, "run");
  wr_json_object(&j);
  wr_json_string(&j, "folder", info->folder);
  wr_json_string(&j, "arch", info->arch);
  wr_json_integer(&j, "layers", info->layers);
  wr_json_integer(&j, "width", info->width);
  wr_json_integer(&j, "heads", info->heads);
  wr_json_integer(&j, "kv_heads", info->kv_heads);
  wr_json_integer(&j, "ff", info->ff);
  wr_json_integer(&j, "vocab", info->vocab);
  wr_json_integer(&j, "ctx", info->ctx);
  wr_json_integer(&j, "batch", info->batch);
  wr_json_integer(&j, "accumulate", info->accumulate);
  wr_json_flag(&j, "tied", info->tied);
  wr_json_string(&j, "tokenizer", info->tokenizer);
  wr_json_string(&j, "precision", info->precision);
  wr_json_string(&j, "remat", info->remat);
  wr_json_integer(&j, "parameters", (int64_t)info->parameters);
  wr_json_number(&j, "flop_tok", info->flop_tok);
  wr_json_integer(&j, "step", info->step);
  wr_json_integer(&j, "steps", info->steps);
  wr_json_flag(&j, "resumed", info->resumed);
  wr_json_string(&j, "note", info->resumed_note);
  wr_json_integer(&j, "data_tokens", (int64_t)info->data_tokens);
  wr_json_integer(&j, "data_docs", (int64_t)info->data_docs);
  wr_json_integer(&j, "data_samples", (int64_t)info->data_samples);
  wr_json_integer(&j, "val_tokens", (int64_t)info->val_tokens);
  wr_json_number(&j, "peak_gflop_s", info->peak_gflop_s);
  wr_json_number(&j, "predicted_step_s", info->predicted_step_s);
  wr_json_key(&j, "memory");
  wr_json_object(&j);
  for (size_t i = 0; i < info->n_memory; i++) wr_json_integer(&j, info->memory[i].what, (int64_t)info->memory[i].bytes);
  wr_json_end(&j);
  wr_json_integer(&j, "planned_bytes", (int64_t)info->planned_bytes);
  wr_json_integer(&j, "aside_bytes", (int64_t)info->aside_bytes);
  wr_json_key(&j, "tensors");
  wr_json_array(&j);
  for (size_t i = 0; i < info->n_params; i++) {
    wr_json_object(&j);
    wr_json_string(&j, "name", info->params[i].name);
    wr_json_string(&j, "kind", info->params[i].kind);
    wr_json_string(&j, "optimizer", info->params[i].optimizer);
    wr_json_integer(&j, "elements", (int64_t)info->params[i].elements);
    wr_json_flag(&j, "decays", info->params[i].decays);
    wr_json_end(&j);
  }
  wr_json_end(&j);
  wr_json_end(&j);
  wr_json_end(&j);
  wr_json_done(&j);
}

void wr_train_facts(wr_train_show *show) {
  weir_trainer_info info;
  weir_trainer_get_info(show->trainer, &info);
  show->began_s = show->shown_s = now_s();
  show->last_step = -1;
  show->live = !show->o->json && wr_redraws(stderr);
  if (show->o->json) {
    json_facts(&info);
    return;
  }
  print_model(&info);
  print_run(&info);
  print_optimizers(&info);
  print_decay(&info, true);
  print_decay(&info, false);
  print_memory(&info);
  print_time(&info);
  if (info.resumed)
    fprintf(stderr, "%-10s %s goes on after step %lld, from its newest checkpoint%s%s\n", "resume", info.folder,
            (long long)info.step, info.resumed_note[0] ? ": " : "", info.resumed_note);
  fprintf(stderr, "\n");
}

/* ---- as it goes on */

void wr_train_line_ended(wr_train_show *show) {
  if (show->drawn) fputc('\n', stderr);
  show->drawn = false;
}

static void clear_line(wr_train_show *show) {
  if (show->drawn) fprintf(stderr, "\r\033[K");
  show->drawn = false;
}

void wr_train_note(wr_train_show *show, const char *fmt, ...) {
  if (show->o->json) return;
  va_list ap;
  va_start(ap, fmt);
  clear_line(show);
  vfprintf(stderr, fmt, ap);
  fputc('\n', stderr);
  va_end(ap);
}

/* What the line says after its bar, about the steps since the last one. */
static void progress_text(const wr_train_show *show, const weir_train_report *r, char out[256]) {
  weir_trainer_info info;
  weir_trainer_get_info(show->trainer, &info);
  const weir_train_seconds *s = &show->seconds;
  char of[32] = "", mfu[24] = "", eta[24], left[40] = "";
  if (info.steps) snprintf(of, sizeof of, "/%lld", (long long)info.steps);
  if (show->mfu_seconds > 0 && s->total > 0) snprintf(mfu, sizeof mfu, "  MFU %.0f %%", 100 * show->mfu_seconds / s->total);
  wr_duration(eta, r->eta_seconds);
  if (r->eta_seconds > 0 && isfinite(r->eta_seconds)) snprintf(left, sizeof left, "  %s left", eta);
  const double total = s->total > 0 ? s->total : 1;
  snprintf(out, 256, "step %lld%s  loss %.3f  %.0f tok/s%s%s  copy %.2g %%  data %.2g %%", (long long)r->step, of, r->loss,
           show->tokens / total, mfu, left, 100 * s->copy / total, 100 * s->data / total);
}

static void draw(wr_train_show *show, const weir_train_report *r) {
  enum { MOST = 40, LEAST = 8 };
  char text[256], bar[3 * MOST + 1];
  progress_text(show, r, text);
  const int columns = wr_columns(stderr), room = columns - 2 - (int)strlen(text);
  const int cells = room > MOST ? MOST : room;
  if (cells >= LEAST && wr_utf8()) {
    wr_bar(bar, (size_t)cells, r->progress);
    fprintf(stderr, "\r%s %s\033[K", bar, text);
  } else if (cells >= LEAST) {
    memset(bar, '.', (size_t)cells);
    memset(bar, '#', (size_t)(cells * fmin(fmax(r->progress, 0), 1)));
    bar[cells] = 0;
    fprintf(stderr, "\r%s %s\033[K", bar, text);
  } else {
    fprintf(stderr, "\r%.*s\033[K", columns - 1, text);
  }
  fflush(stderr);
  show->drawn = true;
}

static void json_step(const weir_train_report *r) {
  wr_json j;
  wr_json_begin(&j, stdout);
  wr_json_object(&j);
  wr_json_integer(&j, "step", r->step);
  wr_json_number(&j, "loss", r->loss);
  if (isfinite(r->val_loss)) wr_json_number(&j, "val_loss", r->val_loss);
  wr_json_number(&j, "lr", r->lr);
  wr_json_number(&j, "grad_norm", r->grad_norm);
  wr_json_integer(&j, "tokens", (int64_t)r->tokens);
  wr_json_number(&j, "epoch", r->epoch);
  wr_json_number(&j, "tok_s", r->tok_s);
  wr_json_number(&j, "mfu", r->mfu);
  wr_json_number(&j, "loss_scale", r->loss_scale);
  wr_json_integer(&j, "skipped", r->skipped);
  if (r->event && r->event[0]) wr_json_string(&j, "event", r->event);
  wr_json_key(&j, "seconds");
  wr_json_object(&j);
  wr_json_number(&j, "total", r->seconds.total);
  wr_json_number(&j, "data", r->seconds.data);
  wr_json_number(&j, "copy", r->seconds.copy);
  wr_json_number(&j, "forward", r->seconds.forward);
  wr_json_number(&j, "backward", r->seconds.backward);
  wr_json_number(&j, "optimizer", r->seconds.optimizer);
  wr_json_number(&j, "checkpoint", r->seconds.checkpoint);
  wr_json_number(&j, "other", r->seconds.other);
  wr_json_end(&j);
  wr_json_integer(&j, "payload_copied", (int64_t)r->payload_copied);
  wr_json_key(&j, "bytes_copied");
  wr_json_object(&j);
  for (size_t i = 0; i < r->n_copied; i++) wr_json_number(&j, r->copied[i].what, r->copied[i].bytes);
  wr_json_end(&j);
  wr_json_flag(&j, "saved", r->saved);
  wr_json_end(&j);
  wr_json_done(&j);
}

static void reset_window(wr_train_show *show, double now) {
  show->shown_s = now;
  show->seconds = (weir_train_seconds){0};
  show->tokens = show->mfu_seconds = 0;
}

void wr_train_step_done(wr_train_show *show, const weir_train_report *r) {
  if (show->o->json) {
    json_step(r);
    return;
  }
  if (r->step_tok == 0) { /* no step was left to make */
    if (show->loss.n == 0) wr_train_note(show, "the run has its length already: step %lld was its last", (long long)r->step);
    return;
  }
  wr_curve_add(&show->loss, (double)r->step, r->loss);
  wr_curve_add(&show->val, (double)r->step, r->val_loss);
  show->seconds.total += r->seconds.total;
  show->seconds.data += r->seconds.data;
  show->seconds.copy += r->seconds.copy;
  show->tokens += (double)r->step_tok;
  show->mfu_seconds += r->mfu * r->seconds.total;
  if (r->event && r->event[0]) wr_train_note(show, "%s", r->event);
  if (isfinite(r->val_loss)) wr_train_note(show, "step %lld: validation loss %.4f", (long long)r->step, r->val_loss);
  const double now = now_s(), since = now - show->shown_s;
  if (show->live && (since >= DRAW_S || r->done)) {
    draw(show, r);
    if (since >= 1) reset_window(show, now);
  } else if (!show->live && (since >= LINE_S || r->done || show->last_step < 0)) {
    char text[256];
    progress_text(show, r, text);
    fprintf(stderr, "%s\n", text);
    show->last_step = r->step;
    reset_window(show, now);
  }
}

/* ---- the end */

static void json_end(const weir_trainer_info *info, const weir_train_report *last, int code) {
  wr_json j;
  wr_json_begin(&j, stdout);
  wr_json_object(&j);
  wr_json_key(&j, "end");
  wr_json_object(&j);
  wr_json_integer(&j, "exit", code);
  wr_json_integer(&j, "step", info->step);
  wr_json_number(&j, "loss", last->step ? last->loss : NAN);
  wr_json_number(&j, "seconds", info->seconds.total);
  wr_json_integer(&j, "tokens", (int64_t)info->tokens);
  wr_json_number(&j, "copy_share", info->seconds.total > 0 ? info->seconds.copy / info->seconds.total : NAN);
  wr_json_number(&j, "data_share", info->seconds.total > 0 ? info->seconds.data / info->seconds.total : NAN);
  wr_json_number(&j, "copied_bytes_tok", info->tokens ? info->bytes_copied / (double)info->tokens : NAN);
  wr_json_integer(&j, "planned_bytes", (int64_t)info->planned_bytes);
  wr_json_integer(&j, "measured_bytes", (int64_t)info->measured_bytes);
  wr_json_end(&j);
  wr_json_end(&j);
  wr_json_done(&j);
}

static void print_end(const wr_train_show *show, const weir_trainer_info *info) {
  const weir_train_seconds *s = &info->seconds;
  const int columns = wr_terminal(stdout) ? wr_columns(stdout) : PLOT_COLUMNS;
  char wall[24], planned[16], measured[16];
  wr_plot(stdout, &show->loss, &show->val, "loss", "validation", columns, PLOT_ROWS, wr_utf8());
  if (!(s->total > 0) || info->tokens == 0) return;
  wr_duration(wall, s->total);
  wr_size(planned, (double)info->planned_bytes);
  wr_size(measured, (double)info->measured_bytes);
  printf("\n%llu tokens in %s: %.0f tok/s", (unsigned long long)info->tokens, wall, (double)info->tokens / s->total);
  if (info->peak_gflop_s > 0)
    printf(", %.0f %% of the machine's %.0f GFLOP/s",
           100 * info->flop_tok * (double)info->tokens / s->total / info->peak_gflop_s / 1e9, info->peak_gflop_s);
  printf("\nforward %.1f %%, backward %.1f %%, optimiser %.1f %%, checkpoints %.1f %%, other %.1f %%; memory %s planned",
         100 * s->forward / s->total, 100 * s->backward / s->total, 100 * s->optimizer / s->total,
         100 * s->checkpoint / s->total, 100 * s->other / s->total, planned);
  printf(info->measured_bytes ? ", %s measured\n" : "\n", measured);
  printf("copying %.2g %%, waiting for data %.2g %%, %.0f bytes a token\n", 100 * s->copy / s->total, 100 * s->data / s->total,
         info->bytes_copied / (double)info->tokens);
}

void wr_train_end(wr_train_show *show, const weir_train_report *last, int code) {
  weir_trainer_info info;
  weir_trainer_get_info(show->trainer, &info);
  clear_line(show);
  if (show->o->json) {
    json_end(&info, last, code);
    return;
  }
  print_end(show, &info);
  if (!info.folder) return;
  const char *prompt = show->o->train.sample_prompt;
  printf("\nreport       %s/report.html\ncheckpoints  %s/checkpoints\n", info.folder, info.folder);
  if (code)
    printf("go on with   weir train --out %s\n", info.folder);
  else
    printf("try          weir generate %s -p \"%s\" -n 100 --temp 0.8\n", info.folder, prompt && prompt[0] ? prompt : "The");
}
