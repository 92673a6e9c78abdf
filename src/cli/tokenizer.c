/* weir tokenizer train: a vocabulary of text. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli_i.h"

typedef unsigned long long ull;

static int show_progress(void *user, const weir_tokenizer_progress *p) {
  char what[96], size[16];
  wr_size(size, (double)p->bytes);
  if (p->vocab)
    snprintf(what, sizeof what, "%s of text, %lld tokens", size, (long long)p->vocab);
  else
    snprintf(what, sizeof what, "%s of text, %.1f MB/s", size, p->seconds > 0 ? (double)p->bytes * 1e-6 / p->seconds : 0);
  wr_progress(user, what, fmin(p->done, 0.999));
  return wr_interrupted();
}

static void json_report(const weir_tokenizer_train_report *r, const char *out) {
  const struct {
    const char *key;
    uint64_t v;
  } counts[] = {{"vocab", (uint64_t)r->vocab}, {"bytes", r->bytes},  {"docs", r->docs},
                {"records", r->records},       {"bad", r->bad},      {"words", r->words},
                {"distinct", r->distinct},     {"tokens", r->tokens}};
  wr_json j;
  wr_json_begin(&j, stdout);
  wr_json_object(&j);
  wr_json_string(&j, "out", out);
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
    wr_json_count(&j, counts[i].key, counts[i].v);
  }
  wr_json_number(&j, "seconds", r->seconds);
  wr_json_number(&j, "mb_s", r->mb_s);
  wr_json_number(&j, "tokens_per_byte", r->tokens_per_byte);
  wr_json_end(&j);
  wr_json_done(&j);
}

static void print_report(const weir_tokenizer_train_report *r, const char *out, int64_t wanted) {
  char size[16];
  wr_size(size, (double)r->bytes);
  if (r->bad) fprintf(stderr, "%llu bad records of %llu were left out\n", (ull)r->bad, (ull)r->records);
  printf("%s\n", out);
  printf("  text      %s in %llu documents: %llu words, %llu different ones\n", size, (ull)r->docs, (ull)r->words,
         (ull)r->distinct);
  printf("  tokens    %lld", (long long)r->vocab);
  if (r->vocab < wanted) printf(", not %lld: no other pair of tokens is frequent enough", (long long)wanted);
  printf("\n  in use    %.3f tokens a byte, %.2f bytes a token, on this text\n", r->tokens_per_byte,
         r->tokens ? (double)r->bytes / (double)r->tokens : 0);
  printf("  time      %.2f s, %.1f MB/s\n", r->seconds, r->mb_s);
}

static bool ends_with(const char *s, const char *end) {
  const size_t n = strlen(s), m = strlen(end);
  return n > m && strcmp(s + n - m, end) == 0;
}

int wr_cmd_tokenizer(const wr_options *o) {
  const weir_tokenizer_train_options options = {.vocab = o->vocab,
                                                .pre = o->pre,
                                                .min_count = (uint64_t)o->min_count,
                                                .field = o->field,
                                                .jsonl = o->jsonl,
                                                .strict = o->strict,
                                                .threads = (int)o->threads,
                                                .progress = show_progress,
                                                .user = (void *)(uintptr_t)o};
  if (strcmp(o->args[0], "train") != 0) return wr_usage(o, "'%s' is nothing that it does; it does: train", o->args[0]);
  if (o->n_args < 2) return wr_usage(o, "train: on which text? A file, a folder, or - for standard input");
  if (!o->out) return wr_usage(o, "train: --out FILE is missing, a .json or .gguf");
  if (!ends_with(o->out, ".json") && !ends_with(o->out, ".gguf"))
    return wr_usage(o, "--out wants a name that ends in .json or .gguf, not '%s'", o->out);
  weir_tokenizer *t = NULL;
  weir_tokenizer_train_report report;
  wr_on_signal(wr_stop_by_progress, NULL);
  weir_status s = weir_tokenizer_train((const char *const *)(o->args + 1), (size_t)o->n_args - 1, &options, &report, &t);
  wr_on_signal(NULL, NULL);
  wr_progress(o, "", -1);
  if (s == WEIR_OK) s = weir_tokenizer_save(t, o->out);
  weir_tokenizer_close(t);
  if (s != WEIR_OK) return wr_failed(o, s);
  if (o->json)
    json_report(&report, o->out);
  else
    print_report(&report, o->out, o->vocab);
  return wr_done(o);
}
