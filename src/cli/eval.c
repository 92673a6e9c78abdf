/* weir eval: perplexity of a model over a text, by llama-perplexity's scheme or with a sliding window, and which of them it was. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli_i.h"

enum { MAX_TEXT_BYTES = 1 << 30 };

typedef struct watch {
  const wr_options *o;
  double shown_seconds;
  weir_eval_report last;
} watch;

static int show_progress(void *user, const weir_eval_report *r) {
  watch *w = user;
  w->last = *r;
  if (r->done < 1 && r->seconds - w->shown_seconds < 0.1) return wr_interrupted();
  w->shown_seconds = r->seconds;
  char text[96] = "";
  if (r->tokens)
    snprintf(text, sizeof text, "perplexity %.4f +/- %.4f after %llu tokens", r->perplexity, r->perplexity * r->nll_error,
             (unsigned long long)r->tokens);
  wr_progress(w->o, text, fmin(r->done, 0.999));
  return wr_interrupted();
}

/* The whole text; NULL: a sentence was printed. One newline at its end is left out, as llama-perplexity does. The caller frees. */
static char *read_text(const wr_options *o, size_t *n) {
  char *text = wr_read_all(o, strcmp(o->eval_data, "-") == 0 ? NULL : o->eval_data, "the text", MAX_TEXT_BYTES, n);
  if (text && *n && text[*n - 1] == '\n') --*n;
  return text;
}

static void print_json(const weir_eval_report *r) {
  wr_json j;
  wr_json_begin(&j, stdout);
  wr_json_object(&j);
  wr_json_count(&j, "tokens", r->tokens);
  wr_json_number(&j, "nll", r->nll);
  wr_json_number(&j, "nll_error", r->nll_error);
  wr_json_number(&j, "perplexity", r->perplexity);
  wr_json_number(&j, "perplexity_error", r->perplexity * r->nll_error);
  wr_json_number(&j, "seconds", r->seconds);
  wr_json_string(&j, "scheme", r->stride_tok ? "sliding" : "llama-perplexity");
  wr_json_integer(&j, "ctx", r->context_tok);
  wr_json_integer(&j, "stride", r->stride_tok);
  wr_json_integer(&j, "windows", r->windows);
  wr_json_count(&j, "text_tokens", r->text_tok);
  wr_json_flag(&j, "bos", r->bos);
  wr_json_end(&j);
  wr_json_done(&j);
}

static void print_result(const weir_eval_report *r) {
  char took[24];
  wr_duration(took, r->seconds);
  printf("perplexity %.4f +/- %.4f\n", r->perplexity, r->perplexity * r->nll_error);
  printf("nll        %.5f +/- %.5f a token (natural log), mean of %llu tokens of the text's %llu\n", r->nll, r->nll_error,
         (unsigned long long)r->tokens, (unsigned long long)r->text_tok);
  if (r->stride_tok)
    printf("scheme     sliding: %lld windows of %lld tokens, one every %lld, of which the last %lld count",
           (long long)r->windows, (long long)r->context_tok, (long long)r->stride_tok, (long long)r->stride_tok);
  else
    printf("scheme     llama-perplexity's: %lld chunks of %lld tokens, of which the second half counts", (long long)r->windows,
           (long long)r->context_tok);
  printf("%s\n", r->bos ? "; each begins with BOS" : "; no BOS, as the vocabulary asks for none");
  fflush(stdout);
  fprintf(stderr, "%s, %.1f tokens/s\n", took, (double)r->windows * (double)(r->context_tok - 1) / r->seconds);
}

static int run(const wr_options *o, const char *text, size_t n) {
  weir_context *ctx;
  weir_model *m;
  weir_status s = wr_open_model(o, o->args[0], &ctx, &m);
  if (s != WEIR_OK) return wr_failed(o, s);
  watch w = {.o = o};
  const weir_eval_options options = {
      .context_tok = o->eval_ctx, .stride_tok = o->stride, .kv = o->kv_type, .progress = show_progress, .user = &w};
  weir_eval_report r;
  wr_on_signal(wr_stop_by_progress, NULL);
  s = weir_eval(m, text, n, &options, &r);
  wr_on_signal(NULL, NULL);
  wr_progress(o, "", 1);
  if (s == WEIR_ESTOPPED && w.last.tokens)
    fprintf(stderr, "stopped: perplexity %.4f +/- %.4f after %llu tokens, %.0f %% of the text\n", w.last.perplexity,
            w.last.perplexity * w.last.nll_error, (unsigned long long)w.last.tokens, w.last.done * 100);
  int code;
  if (s != WEIR_OK) {
    code = wr_failed(o, s);
  } else {
    if (o->json)
      print_json(&r);
    else
      print_result(&r);
    code = wr_done(o);
  }
  if (s == WEIR_OK && o->why) wr_print_kernels(m);
  wr_close_model(ctx, m);
  return code;
}

int wr_cmd_eval(const wr_options *o) {
  if (!o->eval_data) return wr_usage(o, "--data is missing: the text, a file, or - for standard input");
  size_t n = 0;
  char *text = read_text(o, &n);
  if (!text) return 1;
  const int code = run(o, text, n);
  free(text);
  return code;
}
