/* weir bench machine | ops | model MODEL: what this machine can do, what each kernel makes of it, what a model makes of it. */
#include <stdlib.h>
#include <string.h>

#include "cli_i.h"

/* One line of a result; keys as other programs rely on them. */
void wr_json_bench(wr_json *j, const weir_bench_row *r) {
  const struct {
    const char *key;
    double v;
  } numbers[] = {{"us", r->us},           {"bytes", r->bytes}, {"flop", r->flop},  {"gb_s", r->gb_s},
                 {"gflop_s", r->gflop_s}, {"peak", r->peak},   {"share", r->share}};
  wr_json_object(j);
  wr_json_string(j, "name", r->name);
  wr_json_string(j, "shape", r->shape);
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
    wr_json_number(j, numbers[i].key, numbers[i].v);
  }
}

static void json_row(wr_json *j, const weir_bench_row *r) {
  wr_json_bench(j, r);
  wr_json_end(j);
}

static int show_progress(void *user, const char *what, double done) {
  wr_progress(user, what, done);
  return 0;
}

static weir_status measure(const wr_options *o, bool refresh, weir_machine *m) {
  const weir_machine_options options = {.quick = o->quick,
                                        .refresh = refresh,
                                        .threads = (int)o->threads,
                                        .progress = show_progress,
                                        .user = (void *)(uintptr_t)o};
  const weir_status s = weir_machine_measure(&options, m);
  wr_progress(o, "", -1);
  return s;
}

/* ---- machine */

static void json_machine(const weir_machine *m) {
  wr_json j;
  char shape[64];
  wr_json_begin(&j, stdout);
  wr_json_array(&j);
  for (size_t i = 0; i < m->n_reads; i++) {
    const weir_machine_read *r = &m->reads[i];
    snprintf(shape, sizeof shape, "bytes=%llu threads=%d", (unsigned long long)r->bytes, r->threads);
    json_row(&j, &(weir_bench_row){.name = "read",
                                   .shape = shape,
                                   .us = (double)r->bytes / r->gb_s / 1e3,
                                   .bytes = (double)r->bytes,
                                   .gb_s = r->gb_s,
                                   .peak = r->gb_s,
                                   .share = 1});
  }
  for (size_t i = 0; i < m->n_peaks; i++) {
    const weir_machine_peak *p = &m->peaks[i];
    snprintf(shape, sizeof shape, "how=%s threads=%d", p->how, p->threads);
    json_row(&j, &(weir_bench_row){.name = p->type, .shape = shape, .gflop_s = p->gop_s, .peak = p->gop_s, .share = 1});
  }
  for (size_t i = 0; i < m->n_barriers; i++) {
    snprintf(shape, sizeof shape, "threads=%d", m->barriers[i].threads);
    json_row(&j, &(weir_bench_row){.name = "barrier", .shape = shape, .us = m->barriers[i].best_ns / 1e3, .share = 1});
  }
  if (m->disk_gb_s > 0)
    json_row(&j, &(weir_bench_row){
                     .name = "disk", .shape = "sequential read", .gb_s = m->disk_gb_s, .peak = m->disk_gb_s, .share = 1});
  wr_json_end(&j);
  wr_json_done(&j);
}

static int bench_machine(const wr_options *o) {
  weir_machine m;
  weir_context *ctx;
  weir_status s = measure(o, o->refresh, &m);
  if (s == WEIR_OK) s = wr_open_context(o, &ctx);
  if (s != WEIR_OK) return wr_failed(o, s);
  if (o->json) {
    json_machine(&m);
  } else {
    const size_t n = weir_machine_print(&m, NULL, 0);
    char *text = malloc(n + 1);
    if (text) {
      weir_machine_print(&m, text, n + 1);
      fputs(text, stdout);
    }
    free(text);
    printf("tune file: %s\n", weir_context_tune(ctx));
  }
  weir_context_close(ctx);
  return wr_done(o);
}

/* ---- ops */

typedef struct listing {
  const wr_options *o;
  wr_json j;
  size_t n;
} listing;

static int list_row(void *user, const weir_bench_row *r) {
  listing *l = user;
  if (l->o->json) {
    json_row(&l->j, r);
    return ferror(stdout);
  }
  if (!l->n++) printf("%-38s %-44s %10s %8s %9s  share of the bound\n", "kernel", "case", "us", "GB/s", "GFLOP/s");
  char bar[3 * 20 + 1];
  wr_bar(bar, 20, r->share);
  printf("%-38s %-44.44s %10.2f %8.2f %9.1f  %s %3.0f %% of %.0f %s\n", r->name, r->shape, r->us, r->gb_s, r->gflop_s, bar,
         r->share * 100, r->peak, r->bound_by_bytes ? "GB/s" : "GFLOP/s");
  fflush(stdout);
  return ferror(stdout);
}

static int bench_ops(const wr_options *o) {
  if (o->tune) return wr_bench_tune(o);
  weir_machine m;
  weir_context *ctx;
  weir_status s = measure(o, false, &m);
  if (s == WEIR_OK) s = wr_open_context(o, &ctx);
  if (s != WEIR_OK) return wr_failed(o, s);
  listing l = {.o = o};
  if (o->json) {
    wr_json_begin(&l.j, stdout);
    wr_json_array(&l.j);
  }
  const weir_bench_options options = {.only = o->only, .reps = (int)o->reps};
  s = weir_bench_ops(ctx, &m, &options, list_row, &l);
  weir_context_close(ctx);
  if (s != WEIR_OK) return wr_failed(o, s);
  if (o->json) {
    wr_json_end(&l.j);
    wr_json_done(&l.j);
  } else if (!l.n) {
    printf("no kernel and case contains '%s'\n", o->only ? o->only : "");
  }
  return wr_done(o);
}

/* ---- model */

enum { MAX_REPS = 1000 };

static int by_size(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

typedef struct runs {
  double prefill[MAX_REPS], decode[MAX_REPS], share[MAX_REPS];
  weir_result *last;
} runs;

/* One repeat: a prompt of these ids into an empty session, at most half of its context, then -n tokens. */
static weir_status run_once(const wr_options *o, weir_model *m, const weir_token *prompt, int rep, runs *r) {
  weir_session *s;
  weir_status status = wr_open_session(o, m, &s);
  if (status != WEIR_OK) return status;
  const int64_t half = weir_session_capacity(s) / 2;
  const size_t n = (size_t)(half < o->prompt_tok ? (half > 0 ? half : 1) : o->prompt_tok);
  const weir_generate_options options = {.max_tok = o->n == WR_NOT_GIVEN ? 128 : o->n, .ignore_eos = true};
  weir_result *result = NULL;
  wr_stop_on_signal(s);
  status = weir_generate_tokens(s, prompt, n, &options, NULL, NULL, &result);
  wr_stop_on_signal(NULL);
  weir_session_close(s);
  if (status != WEIR_OK) return status;
  r->prefill[rep] = result->prefill_tok_s;
  r->decode[rep] = result->decode_tok_s;
  r->share[rep] = result->share_of_limit;
  weir_result_free(r->last);
  r->last = result;
  return WEIR_OK;
}

static void print_runs(const wr_options *o, const weir_model_info *info, runs *r, size_t reps) {
  qsort(r->prefill, reps, sizeof *r->prefill, by_size);
  qsort(r->decode, reps, sizeof *r->decode, by_size);
  qsort(r->share, reps, sizeof *r->share, by_size);
  const weir_result *last = r->last;
  const double prefill = r->prefill[reps - 1], decode = r->decode[reps - 1];
  char shape[96];
  if (o->json) {
    wr_json j;
    wr_json_begin(&j, stdout);
    wr_json_array(&j);
    snprintf(shape, sizeof shape, "tokens=%zu", last->n_prompt_tokens);
    json_row(&j, &(weir_bench_row){.name = "prefill", .shape = shape, .us = prefill > 0 ? 1e6 / prefill : 0});
    snprintf(shape, sizeof shape, "tokens=%zu", last->n_tokens);
    json_row(&j, &(weir_bench_row){.name = "decode",
                                   .shape = shape,
                                   .us = decode > 0 ? 1e6 / decode : 0,
                                   .bytes = last->bytes_per_token,
                                   .gb_s = last->bytes_per_token * decode / 1e9,
                                   .peak = last->limit_gb_s,
                                   .share = r->share[reps - 1]});
    wr_json_end(&j);
    wr_json_done(&j);
    return;
  }
  char path[128];
  weir_escape(info->path, strlen(info->path), path, sizeof path);
  printf("%s (%s), %zu repeats                best    median\n", info->name[0] ? info->name : path, info->types, reps);
  printf("prompt %4zu tokens            %8.1f  %8.1f tok/s\n", last->n_prompt_tokens, prefill, r->prefill[reps / 2]);
  printf("decode %4zu tokens            %8.1f  %8.1f tok/s\n", last->n_tokens, decode, r->decode[reps / 2]);
  printf("share of the limit            %8.0f  %8.0f %%   (last: %.1f GB/s by a plain read, %s)\n", r->share[reps - 1] * 100,
         r->share[reps / 2] * 100, last->limit_gb_s, last->limit_mode);
}

static int bench_model(const wr_options *o) {
  if (o->n_args < 2) return wr_usage(o, "missing argument: the model to measure");
  if (o->n == 0) return wr_usage(o, "-n wants at least 1 token, or -1 for all that fit (it is 128 when not given)");
  weir_context *ctx;
  weir_model *m;
  weir_status s = wr_open_model(o, o->args[1], &ctx, &m);
  if (s != WEIR_OK) return wr_failed(o, s);
  runs r = {.last = NULL};
  const int reps = (int)o->reps;
  weir_model_info info;
  weir_model_get_info(m, &info);
  weir_token *prompt = malloc((size_t)o->prompt_tok * sizeof *prompt);
  if (!prompt) s = WEIR_ENOMEM;
  for (int64_t i = 0; prompt && i < o->prompt_tok; i++) prompt[i] = (weir_token)((i * 7 + 11) % info.vocab);
  for (int i = 0; i < reps && s == WEIR_OK && !wr_interrupted(); i++) {
    s = run_once(o, m, prompt, i, &r);
    wr_progress(o, "repeats", (double)(i + 1) / reps);
  }
  if (s == WEIR_OK && r.last) print_runs(o, &info, &r, (size_t)reps);
  free(prompt);
  const int code = s == WEIR_OK ? wr_done(o) : wr_failed(o, s);
  weir_result_free(r.last);
  wr_close_model(ctx, m);
  return code;
}

int wr_cmd_bench(const wr_options *o) {
  static const struct {
    const char *name;
    int (*run)(const wr_options *o);
  } kinds[] = {{"machine", bench_machine}, {"ops", bench_ops}, {"model", bench_model}, {"data", wr_bench_data}};
  const char *what = o->n_args ? o->args[0] : "machine";
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
    if (strcmp(what, kinds[i].name) == 0) return kinds[i].run(o);
  return wr_usage(o, "'%s' is none of machine, ops, model, data", what);
}
