/* weir generate --parallel: many prompts at once. Answers in the file's order, or, as JSON lines, as they come; then how fast it was.
 *
 * All requests are put into the queue before the first step, so one that cannot run is told before anything is printed. Ctrl-C ends the
 * running ones with what they have; those that had not begun are left out. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli_i.h"

typedef struct job {
  struct run *run;
  const wr_request_line *line;
  weir_result *r; /* ended, not yet printed */
  bool ended;
} job;

typedef struct run {
  const wr_options *o;
  wr_request_file file;
  job *jobs;          /* [file.n] */
  size_t next, ended; /* to be printed; of all */
  weir_batch *b;
  int code; /* of the first one that failed */
} run;

static void print_json_line(const run *g, const job *j) {
  wr_json json;
  wr_json_begin(&json, stdout);
  wr_json_object(&json);
  wr_json_integer(&json, "index", j - g->jobs + 1);
  wr_json_integer(&json, "line", j->line->line);
  wr_json_result(&json, j->r);
  wr_json_end(&json);
  wr_json_done(&json);
}

static void print_text(const run *g, const job *j) {
  char prompt[80];
  weir_escape(j->line->prompt, j->line->prompt_bytes, prompt, sizeof prompt);
  printf("[%zu] %s%s\n", (size_t)(j - g->jobs) + 1, prompt, j->line->prompt_bytes >= sizeof prompt ? " ..." : "");
  fwrite(j->r->text, 1, j->r->text_bytes, stdout);
  printf("\n\n");
}

/* Text comes in the file's order, so what has ended early waits. */
static void print_ended(run *g) {
  for (; g->next < g->file.n && g->jobs[g->next].ended; g->next++) {
    job *j = &g->jobs[g->next];
    if (j->r) print_text(g, j);
    weir_result_free(j->r);
    j->r = NULL;
  }
  fflush(stdout);
}

static void take_result(void *user, uint64_t id, weir_status status, weir_result *r) {
  job *j = user;
  run *g = j->run;
  (void)id;
  j->ended = true;
  if (status != WEIR_OK) {
    wr_progress(g->o, "", 1);
    fprintf(stderr, "weir %s: %s:%d: %s\n", g->o->command, g->file.name, j->line->line, weir_last_error());
    if (!g->code) g->code = weir_status_exit_code(status);
  }
  const bool begun = r && (r->n_tokens || r->finish != WEIR_FINISH_STOPPED);
  g->ended += begun || status != WEIR_OK;
  j->r = r;
  if (begun && g->o->json) print_json_line(g, j);
  if (begun && !g->o->json) return;
  weir_result_free(r);
  j->r = NULL;
}

static weir_status add_all(run *g) {
  for (size_t i = 0; i < g->file.n; i++) {
    const wr_request_line *l = &g->file.lines[i];
    g->jobs[i] = (job){.run = g, .line = l};
    const weir_request q = {
        .prompt = l->prompt, .prompt_bytes = l->prompt_bytes, .options = &l->options, .done = take_result, .user = &g->jobs[i]};
    const weir_status s = weir_batch_add(g->b, &q, NULL);
    if (s == WEIR_OK) continue;
    fprintf(stderr, "weir %s: %s:%d: %s\n", g->o->command, g->file.name, l->line, weir_last_error());
    g->code = weir_status_exit_code(s);
    return s;
  }
  return WEIR_OK;
}

static void show_progress(const run *g) {
  weir_batch_report r;
  char text[96];
  if (weir_batch_get_report(g->b, &r) != WEIR_OK) return;
  snprintf(text, sizeof text, "%zu of %zu prompts, %llu tokens, %.0f tok/s", g->ended, g->file.n, (unsigned long long)r.tokens,
           r.tok_s);
  wr_progress(g->o, text, 0.999 * (double)g->ended / (double)g->file.n);
}

static weir_status run_all(run *g) {
  const bool shows = !g->o->json && wr_redraws(stderr);
  bool stopping = false;
  for (size_t left = 1; left;) {
    if (wr_interrupted() && !stopping) {
      stopping = true;
      weir_batch_cancel(g->b, 0);
    }
    const size_t before = g->ended;
    const weir_status s = weir_batch_step(g->b, &left);
    if (s != WEIR_OK) return s;
    if (g->ended != before && !g->o->json) {
      if (shows) wr_progress(g->o, "", 1);
      print_ended(g);
    }
    if (shows) show_progress(g);
    if (ferror(stdout)) return WEIR_OK; /* nobody reads; wr_done says so */
  }
  return WEIR_OK;
}

static void print_summary_json(const run *g, const weir_batch_report *r) {
  wr_json j;
  wr_json_begin(&j, stdout);
  wr_json_object(&j);
  wr_json_key(&j, "summary");
  wr_json_object(&j);
  wr_json_count(&j, "prompts", g->file.n);
  wr_json_count(&j, "ended", g->ended);
  wr_json_count(&j, "failed", r->failed);
  wr_json_count(&j, "tokens", r->tokens);
  wr_json_count(&j, "prompt_tokens", r->prompt_tok);
  wr_json_count(&j, "reused_tokens", r->reused_tok);
  wr_json_count(&j, "preempted", r->preempted);
  wr_json_count(&j, "steps", r->steps);
  wr_json_number(&j, "seconds", r->seconds);
  wr_json_number(&j, "tok_s", r->tok_s);
  wr_json_count(&j, "decode_steps", r->decode_steps);
  wr_json_count(&j, "decode_tokens", r->decode_tok);
  wr_json_number(&j, "decode_seconds", r->decode_seconds);
  wr_json_number(&j, "decode_tok_s", r->decode_tok_s);
  wr_json_number(&j, "bytes_per_step", r->bytes_per_step);
  wr_json_number(&j, "weight_bytes_per_step", r->weight_bytes_per_step);
  wr_json_number(&j, "kv_bytes_per_step", r->kv_bytes_per_step);
  wr_json_number(&j, "limit_tok_s", r->limit_tok_s);
  wr_json_number(&j, "limit_gb_s", r->limit_gb_s);
  wr_json_string(&j, "limit_mode", r->limit_mode);
  wr_json_number(&j, "share_of_limit", r->share_of_limit);
  if (r->profile) wr_json_profile(&j, r->profile);
  wr_json_end(&j);
  wr_json_end(&j);
  wr_json_done(&j);
}

static void print_summary(const run *g, const weir_batch_report *r, int threads) {
  char took[24], per_step[16], weights[16], kv[16];
  wr_duration(took, r->seconds);
  fprintf(stderr, "prompt %5zu of %zu   %llu tokens read", g->ended, g->file.n, (unsigned long long)r->prompt_tok);
  if (r->reused_tok) fprintf(stderr, ", %llu more were in the cache", (unsigned long long)r->reused_tok);
  if (r->preempted) fprintf(stderr, "; %llu times a sequence had to wait for room", (unsigned long long)r->preempted);
  fprintf(stderr, "\nall    %5llu tokens in %s: %.1f tok/s, prompts included\n", (unsigned long long)r->tokens, took, r->tok_s);
  if (!r->decode_steps) return;
  wr_size(per_step, r->bytes_per_step);
  wr_size(weights, r->weight_bytes_per_step);
  wr_size(kv, r->kv_bytes_per_step);
  fprintf(stderr, "decode %5llu tokens  %7.1f tok/s  %d thread%s, %.1f sequences and %s a step (weights %s, KV %s)\n",
          (unsigned long long)r->decode_tok, r->decode_tok_s, threads, threads == 1 ? "" : "s",
          (double)r->decode_tok / (double)r->decode_steps, per_step, weights, kv);
  if (r->limit_tok_s > 0)
    wr_print_limit(&(wr_shown_limit){r->limit_mode, r->limit_gb_s, r->limit_gb_s_worst, r->limit_bytes, r->limit_tok_s,
                                     r->share_of_limit, r->limit_runs});
}

static weir_status report(run *g, const weir_model *m, int threads) {
  weir_batch_report r;
  const weir_status s = weir_batch_get_report(g->b, &r);
  if (s != WEIR_OK) return s;
  if (g->o->json)
    print_summary_json(g, &r);
  else
    print_summary(g, &r, threads);
  if (g->o->why) wr_print_why(m, r.profile);
  return WEIR_OK;
}

static int run_file(run *g) {
  weir_context *ctx;
  weir_model *m;
  const wr_options *o = g->o;
  weir_status s = wr_open_model(o, o->args[0], &ctx, &m);
  if (s != WEIR_OK) return wr_failed(o, s);
  const weir_batch_options options = {.slots = (int)o->slots, .context_tok = o->ctx, .kv = o->kv_type, .profile = o->why};
  s = weir_batch_open(m, &options, &g->b);
  if (s == WEIR_OK && add_all(g) == WEIR_OK) {
    wr_on_signal(wr_stop_by_progress, NULL);
    s = run_all(g);
    wr_on_signal(NULL, NULL);
    wr_progress(o, "", 1);
    if (!o->json) print_ended(g);
    if (s == WEIR_OK) s = report(g, m, weir_context_threads(ctx));
  }
  const int code = s == WEIR_OK ? wr_done(o) : wr_failed(o, s);
  weir_batch_close(g->b);
  wr_close_model(ctx, m);
  return code ? code : g->code;
}

int wr_generate_parallel(const wr_options *o) {
  run g = {.o = o};
  if (o->prompt || o->prompt_file)
    return wr_usage(o, "--parallel takes its prompts from a file: --prompt and --prompt-file cannot be given");
  int code = wr_requests_read(o, &g.file);
  if (!code) {
    g.jobs = calloc(g.file.n, sizeof *g.jobs);
    code = g.jobs ? run_file(&g) : wr_failed_file(o, g.file.name, ENOMEM);
  }
  for (size_t i = 0; g.jobs && i < g.file.n; i++) weir_result_free(g.jobs[i].r);
  free(g.jobs);
  wr_requests_free(&g.file);
  return code;
}
