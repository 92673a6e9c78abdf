/* weir generate: a prompt in, an answer out as it grows, and on stderr how fast it was, what bounded it, and which share of the bound it reached. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli_i.h"

enum { MAX_PROMPT_BYTES = 64 << 20 };

int wr_print_piece(void *options, const char *piece, size_t bytes) {
  const wr_options *o = options;
  if (o->json) return 0;
  return fwrite(piece, 1, bytes, stdout) != bytes || fflush(stdout) != 0;
}

/* Caller frees *held; *text is it, or what --prompt gave. Exit code, 0 for success. */
static int read_prompt(const wr_options *o, char **held, const char **text, size_t *n) {
  *held = NULL;
  if (o->prompt && o->prompt_file) return wr_usage(o, "--prompt and --prompt-file cannot both be given");
  if (o->prompt) {
    *text = o->prompt;
    *n = strlen(o->prompt);
    return 0;
  }
  *held = wr_read_all(o, o->prompt_file, "the prompt", MAX_PROMPT_BYTES, n);
  *text = *held;
  return *held ? 0 : 1;
}

static void json_ids(wr_json *j, const char *key, const weir_token *ids, size_t n) {
  wr_json_key(j, key);
  wr_json_array(j);
  for (size_t i = 0; i < n; i++) wr_json_int(j, ids[i]);
  wr_json_end(j);
}

void wr_json_profile(wr_json *j, const weir_profile *p) {
  wr_json_key(j, "profile");
  wr_json_object(j);
  wr_json_number(j, "wall_ms", p->wall_ms);
  wr_json_number(j, "bytes", p->bytes);
  wr_json_number(j, "limit_gb_s", p->limit_gb_s);
  wr_json_key(j, "rows");
  wr_json_array(j);
  for (size_t i = 0; i < p->n_rows; i++) {
    const weir_profile_row *r = &p->rows[i];
    wr_json_object(j);
    wr_json_string(j, "op", r->op);
    wr_json_string(j, "kernel", r->kernel);
    wr_json_string(j, "what", r->what);
    wr_json_integer(j, "calls", r->calls);
    wr_json_number(j, "ms", r->ms);
    wr_json_number(j, "bytes", r->bytes);
    wr_json_number(j, "gb_s", r->gb_s);
    wr_json_number(j, "share", r->share);
    wr_json_number(j, "loss_ms", r->loss_ms);
    wr_json_end(j);
  }
  wr_json_end(j);
  wr_json_end(j);
}

void wr_json_result(wr_json *j, const weir_result *r) {
  wr_json_key(j, "text");
  wr_json_bytes(j, r->text, r->text_bytes);
  json_ids(j, "tokens", r->tokens, r->n_tokens);
  json_ids(j, "prompt_tokens", r->prompt_tokens, r->n_prompt_tokens);
  wr_json_string(j, "finish", weir_finish_name(r->finish));
  wr_json_count(j, "seed", r->seed);
  wr_json_integer(j, "context", r->context_tok);
  wr_json_key(j, "seconds");
  wr_json_object(j);
  wr_json_number(j, "queue", r->seconds.queue);
  wr_json_number(j, "load", r->seconds.load);
  wr_json_number(j, "prefill", r->seconds.prefill);
  wr_json_number(j, "decode", r->seconds.decode);
  wr_json_number(j, "limit", r->seconds.limit);
  wr_json_end(j);
  wr_json_number(j, "prefill_tok_s", r->prefill_tok_s);
  wr_json_number(j, "prefill_share", r->prefill_share);
  wr_json_number(j, "decode_tok_s", r->decode_tok_s);
  wr_json_number(j, "bytes_per_token", r->bytes_per_token);
  wr_json_number(j, "weight_bytes_per_token", r->weight_bytes_per_token);
  wr_json_number(j, "kv_bytes_per_token", r->kv_bytes_per_token);
  wr_json_number(j, "moved_bytes_per_token", r->moved_bytes_per_token);
  wr_json_number(j, "limit_tok_s", r->limit_tok_s);
  wr_json_number(j, "limit_gb_s", r->limit_gb_s);
  wr_json_number(j, "limit_gb_s_worst", r->limit_gb_s_worst);
  wr_json_integer(j, "limit_runs", r->limit_runs);
  wr_json_string(j, "limit_mode", r->limit_mode);
  wr_json_number(j, "share_of_limit", r->share_of_limit);
  wr_json_number(j, "huge_share", r->huge_share);
  if (r->profile) wr_json_profile(j, r->profile);
}

void wr_print_json_result(const weir_result *r) {
  wr_json j;
  wr_json_begin(&j, stdout);
  wr_json_object(&j);
  wr_json_result(&j, r);
  wr_json_end(&j);
  wr_json_done(&j);
}

void wr_print_limit(const wr_shown_limit *l) {
  char bar[3 * 20 + 1], read[16];
  wr_bar(bar, 20, l->share);
  wr_size(read, l->bytes);
  fprintf(stderr, "limit  %s bandwidth: %.1f GB/s (worst %.1f of %d plain reads of %s) = %.1f tok/s\n", l->mode, l->gb_s,
          l->gb_s_worst, l->runs, read, l->tok_s);
  fprintf(stderr, "share  %s %.0f %% of the limit%s\n", bar, l->share * 100,
          l->share > 1 ? ": a measuring error, nothing reads faster than a plain read" : "");
}

/* The lines after an answer. */
static void print_report(const weir_result *r, int threads) {
  char per_token[16], weights[16], kv[16];
  wr_size(per_token, r->bytes_per_token);
  wr_size(weights, r->weight_bytes_per_token);
  wr_size(kv, r->kv_bytes_per_token);
  fprintf(stderr, "\nprompt %5zu tokens  %7.1f tok/s", r->n_prompt_tokens, r->prefill_tok_s);
  if (r->prefill_share > 0) fprintf(stderr, "  %.0f %% of the peak", r->prefill_share * 100);
  if (r->n_reused) fprintf(stderr, "  (%zu were in the cache)", r->n_reused);
  if (r->seed) fprintf(stderr, "  seed %llu", (unsigned long long)r->seed);
  if (r->decode_tok_s <= 0) {
    fprintf(stderr, "\ndecode %5zu token%s, ended by %s: too short an answer for a speed\n", r->n_tokens,
            r->n_tokens == 1 ? "" : "s", weir_finish_name(r->finish));
    return;
  }
  fprintf(stderr, "\ndecode %5zu tokens  %7.1f tok/s  %d thread%s, %s a token (weights %s, %.0f %% in huge pages, KV %s), ended by %s\n",
          r->n_tokens, r->decode_tok_s, threads, threads == 1 ? "" : "s", per_token, weights, r->huge_share * 100, kv,
          weir_finish_name(r->finish));
  if (r->moved_bytes_per_token > 0) {
    char moved[16];
    wr_size(moved, r->moved_bytes_per_token);
    fprintf(stderr, "moved  %s a token between devices\n", moved);
  }
  if (r->limit_tok_s <= 0)
    fprintf(stderr, "limit  not measured: the answer was too short\n");
  else
    wr_print_limit(&(wr_shown_limit){r->limit_mode, r->limit_gb_s, r->limit_gb_s_worst, r->limit_bytes, r->limit_tok_s,
                                     r->share_of_limit, r->limit_runs});
}

void wr_print_why(const weir_model *m, const weir_profile *p) {
  weir_model_info info;
  weir_model_get_info(m, &info);
  char layout[512];
  weir_escape(info.layout, strlen(info.layout), layout, sizeof layout);
  fprintf(stderr, "\nweights: %s\n", layout);
  if (info.devices) fprintf(stderr, "devices: %s\n", info.devices);
  const size_t n = p ? weir_profile_print(p, NULL, 0) : 0;
  char *text = n ? malloc(n + 1) : NULL;
  if (text) {
    weir_profile_print(p, text, n + 1);
    fprintf(stderr, "\n%s", text);
  }
  free(text);
  wr_print_kernels(m);
}

weir_generate_options wr_generate_options(const wr_options *o, weir_text stops[WR_LIST_MAX]) {
  for (size_t i = 0; i < o->stop.n; i++) stops[i] = (weir_text){o->stop.items[i], strlen(o->stop.items[i])};
  return (weir_generate_options){.max_tok = o->n == WR_NOT_GIVEN ? 0 : o->n,
                                 .sampling = o->sampling,
                                 .stop = stops,
                                 .n_stop = o->stop.n,
                                 .ignore_eos = o->ignore_eos,
                                 .parse_special = o->parse_special,
                                 .show_special = o->show_special,
                                 .chat = o->chat,
                                 .system = o->system,
                                 .profile = o->why};
}

static int generate_one(const wr_options *o, const char *prompt, size_t prompt_bytes) {
  weir_context *ctx = NULL;
  weir_model *m = NULL;
  weir_session *session = NULL;
  weir_result *r = NULL;
  weir_status s = wr_open_model(o, o->args[0], &ctx, &m);
  if (s != WEIR_OK) return wr_failed(o, s);
  s = wr_open_session(o, m, &session);
  if (s == WEIR_OK) {
    weir_text stops[WR_LIST_MAX];
    const weir_generate_options options = wr_generate_options(o, stops);
    wr_stop_on_signal(session);
    s = weir_generate(session, prompt, prompt_bytes, &options, wr_print_piece, (void *)(uintptr_t)o, &r);
    wr_stop_on_signal(NULL);
  }
  if (s == WEIR_OK && o->json) wr_print_json_result(r);
  if (s == WEIR_OK && !o->json) {
    printf("\n");
    fflush(stdout);
    print_report(r, weir_context_threads(ctx));
  }
  if (s == WEIR_OK && o->why) wr_print_why(m, r->profile);
  const int code = s == WEIR_OK ? wr_done(o) : wr_failed(o, s);
  weir_result_free(r);
  weir_session_close(session);
  wr_close_model(ctx, m);
  return code;
}

int wr_cmd_generate(const wr_options *o) {
  char *held;
  const char *prompt = NULL;
  size_t prompt_bytes = 0;
  if (o->n == 0) return wr_usage(o, "-n wants at least 1 token, or -1 for all that fit (it is 256 when not given)");
  if (o->system && !o->chat) return wr_usage(o, "--system needs --chat");
  if (o->parallel) return wr_generate_parallel(o);
  if (o->slots || o->jsonl) return wr_usage(o, "--%s needs --parallel", o->slots ? "slots" : "jsonl");
  const int bad = read_prompt(o, &held, &prompt, &prompt_bytes);
  if (bad) return bad;
  const int code = generate_one(o, prompt, prompt_bytes);
  free(held);
  return code;
}
