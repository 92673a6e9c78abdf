/* weir train: a model from text or token shards. The loop is the library's; here are its options, signals, exit codes and what people see. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trace_i.h"
#include "train_i.h"

static int open_progress(void *user, const char *what, double done) {
  wr_progress(user, what, done);
  return wr_interrupted();
}

static void stop_trainer(void *t) { weir_trainer_stop(t); }

/* "PATH=SHARE" or a path. The part before '=' is copied; free *held. */
static int take_data(const wr_options *o, const char *text, weir_train_data *out, char **held) {
  *held = NULL;
  *out = (weir_train_data){.path = text};
  const char *equals = strrchr(text, '=');
  if (!equals || access(text, F_OK) == 0) return 0;
  char *end;
  out->weight = strtod(equals + 1, &end);
  if (end == equals + 1 || *end || !(out->weight > 0) || !(out->weight < 1e9))
    return wr_usage(o, "--data %s: a share after '=' is a number above 0", text);
  *held = strndup(text, (size_t)(equals - text));
  out->path = *held;
  return 0;
}

static void print_why(const weir_trainer *t) {
  const size_t n = weir_trainer_why(t, NULL, 0);
  char *why = malloc(n + 1);
  if (!why) return;
  weir_trainer_why(t, why, n + 1);
  fprintf(stderr, "%s\n", why);
  free(why);
}

static int train(const wr_options *o, weir_trainer *t) {
  wr_train_show *show = calloc(1, sizeof *show);
  wr_trace trace;
  if (!show) {
    fprintf(stderr, "weir train: no memory\n");
    return weir_status_exit_code(WEIR_ENOMEM);
  }
  *show = (wr_train_show){.o = o, .trainer = t};
  wr_train_facts(show);
  if (o->why && !o->json) print_why(t);
  int code = o->dry_run ? 0 : wr_trace_open(o, &trace);
  if (o->dry_run || code) {
    free(show);
    return code;
  }
  weir_train_report r = {0};
  weir_status s = WEIR_OK;
  while (s == WEIR_OK && !r.done) {
    s = weir_trainer_step(t, &r);
    if (s != WEIR_OK) break;
    wr_trace_step(&trace, t, r.step);
    wr_train_step_done(show, &r);
  }
  if (s == WEIR_ESTOPPED)
    wr_train_note(show, "stopped after step %lld, which is saved", (long long)r.step);
  else if (s != WEIR_OK)
    wr_train_line_ended(show); /* the sentence stands below it */
  if (s != WEIR_OK) code = wr_failed(o, s);
  wr_train_end(show, &r, code);
  const int traced = wr_trace_close(o, &trace);
  free(show);
  return code ? code : traced;
}

int wr_cmd_train(const wr_options *o) {
  if (!o->out && !o->dry_run) return wr_usage(o, "where to? --out RUN names the run's folder");
  weir_train_data data[WR_LIST_MAX];
  char *held[WR_LIST_MAX] = {0};
  int code = 0;
  for (size_t i = 0; i < o->data.n && !code; i++) code = take_data(o, o->data.items[i], &data[i], &held[i]);
  weir_context *ctx = NULL;
  weir_trainer *t = NULL;
  if (!code) {
    weir_train_options options = o->train;
    options.data = data;
    options.n_data = o->data.n;
    options.config = o->config;
    options.trace = o->trace != NULL;
    options.progress = open_progress;
    options.user = (void *)(uintptr_t)o;
    wr_on_signal(wr_stop_by_progress, NULL);
    weir_status s = wr_open_context(o, &ctx);
    if (s == WEIR_OK) s = weir_trainer_open(ctx, o->dry_run ? NULL : o->out, &options, &t);
    wr_progress(o, "", 1);
    if (s != WEIR_OK) code = wr_failed(o, s);
  }
  if (!code) {
    wr_on_signal(stop_trainer, t);
    wr_on_broken_pipe();
    if (wr_interrupted()) weir_trainer_stop(t); /* a signal between the last look and here */
    code = train(o, t);
    wr_on_signal(wr_stop_by_progress, NULL);
  }
  weir_trainer_close(t);
  weir_context_close(ctx);
  for (size_t i = 0; i < WR_LIST_MAX; i++) free(held[i]);
  const int written = wr_done(o);
  return code ? code : written;
}
