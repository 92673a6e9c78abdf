/* weir data build | check | stats: text to token shards, and what is in them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli_i.h"

typedef unsigned long long ull;

static int show_progress(void *user, const weir_data_progress *p) {
  char what[96], size[16];
  wr_size(size, (double)p->bytes);
  if (p->tokens)
    snprintf(what, sizeof what, "%s of text, %.4g M tokens, %.1f MB/s", size, (double)p->tokens * 1e-6,
             p->seconds > 0 ? (double)p->bytes * 1e-6 / p->seconds : 0);
  else
    snprintf(what, sizeof what, "%s", size);
  wr_progress(user, what, fmin(p->done, 0.999));
  return wr_interrupted();
}

/* "0.01" or "1%", 0 to 1. NaN: neither. */
static double share(const char *text) {
  char *end;
  double v = strtod(text, &end);
  if (end == text) return NAN;
  if (*end == '%') {
    v /= 100;
    end++;
  }
  return *end || !(v >= 0 && v <= 1) ? NAN : v;
}

/* ------------------------------------------------------------------------------------------------------------------ build */

static void json_report(const weir_data_build_report *r, const char *folder) {
  const struct {
    const char *key;
    uint64_t v;
  } counts[] = {{"docs", r->docs},
                {"val_docs", r->val_docs},
                {"tokens", r->tokens},
                {"val_tokens", r->val_tokens},
                {"bytes", r->bytes},
                {"records", r->records},
                {"bad", r->bad},
                {"empty", r->empty},
                {"not_utf8", r->not_utf8},
                {"nul", r->nul},
                {"binary_files", r->binary_files},
                {"resumed_tokens", r->resumed_tokens},
                {"shards", (uint64_t)r->shards},
                {"token_bytes", (uint64_t)r->token_bytes}};
  wr_json j;
  wr_json_begin(&j, stdout);
  wr_json_object(&j);
  wr_json_string(&j, "out", folder);
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
    wr_json_count(&j, counts[i].key, counts[i].v);
  }
  wr_json_number(&j, "seconds", r->seconds);
  wr_json_number(&j, "mb_s", r->mb_s);
  wr_json_number(&j, "bytes_per_token", r->bytes_per_token);
  wr_json_string(&j, "note", r->note);
  wr_json_key(&j, "bad_records");
  wr_json_array(&j);
  for (size_t i = 0; i < r->n_shown; i++) {
    wr_json_object(&j);
    wr_json_string(&j, "where", r->shown[i].where);
    wr_json_string(&j, "rule", r->shown[i].rule);
    wr_json_end(&j);
  }
  wr_json_end(&j);
  wr_json_end(&j);
  wr_json_done(&j);
}

static void print_bad(const weir_data_build_report *r) {
  for (size_t i = 0; i < r->n_shown; i++) fprintf(stderr, "  %s: %s\n", r->shown[i].where, r->shown[i].rule);
  if (r->bad > r->n_shown && r->n_shown) fprintf(stderr, "  and %llu more\n", (ull)(r->bad - r->n_shown));
}

static void print_report(const weir_data_build_report *r, const char *folder) {
  char size[16];
  wr_size(size, (double)r->bytes);
  if (r->bad) {
    fprintf(stderr, "%llu bad records of %llu were left out:\n", (ull)r->bad, (ull)r->records);
    print_bad(r);
  }
  printf("%s\n", folder);
  printf("  text      %s in %llu documents", size, (ull)(r->docs + r->val_docs));
  if (r->empty) printf(", and %llu without text", (ull)r->empty);
  printf("\n  training  %llu tokens, %llu documents\n  validation %llu tokens, %llu documents\n", (ull)r->tokens, (ull)r->docs,
         (ull)r->val_tokens, (ull)r->val_docs);
  printf("  shards    %d, %d bytes a token, %.2f bytes of text a token\n", r->shards, r->token_bytes, r->bytes_per_token);
  if (r->not_utf8 || r->nul)
    printf("  odd       %llu blocks that are not all UTF-8, %llu NUL bytes: kept as bytes\n", (ull)r->not_utf8, (ull)r->nul);
  if (r->binary_files) printf("  left out  %llu binary files\n", (ull)r->binary_files);
  if (r->resumed_tokens) printf("  resumed   %llu tokens were there already\n", (ull)r->resumed_tokens);
  printf("  time      %.2f s, %.1f MB/s\n", r->seconds, r->mb_s);
  if (r->note[0]) fprintf(stderr, "weir data: note: %s\n", r->note);
}

static int build(const wr_options *o) {
  weir_data_build_options options = {.field = o->field,
                                     .jsonl = o->jsonl,
                                     .strict = o->strict,
                                     .shard_tok = o->shard_size,
                                     .threads = (int)o->threads,
                                     .progress = show_progress,
                                     .user = (void *)(uintptr_t)o};
  if (o->n_args < 2) return wr_usage(o, "build: which text? A file, a folder, or - for standard input");
  if (!o->tokenizer) return wr_usage(o, "build: --tokenizer is missing: a model, a tokenizer.json, or 'bytes'");
  if (!o->out) return wr_usage(o, "build: --out DIR is missing");
  if (o->val) {
    options.val_share = share(o->val);
    if (isnan(options.val_share) || options.val_share >= 1)
      return wr_usage(o, "--val wants a share below 1, as 0.01 or 1%%, not '%s'", o->val);
    if (options.val_share == 0) options.val_share = -1;
  }
  if (o->max_bad) {
    options.max_bad = share(o->max_bad);
    if (isnan(options.max_bad)) return wr_usage(o, "--max-bad wants a share, as 0.01 or 1%%, not '%s'", o->max_bad);
    if (options.max_bad == 0) options.strict = true;
  }
  weir_tokenizer *t;
  weir_status s = weir_tokenizer_open(o->tokenizer, &t);
  if (s != WEIR_OK) return wr_failed(o, s);
  static weir_data_build_report report;
  wr_on_signal(wr_stop_by_progress, NULL);
  s = weir_data_build(t, (const char *const *)(o->args + 1), (size_t)o->n_args - 1, o->out, &options, &report);
  wr_on_signal(NULL, NULL);
  wr_progress(o, "", -1);
  weir_tokenizer_close(t);
  if (s != WEIR_OK) {
    if (!options.strict) print_bad(&report);
    return wr_failed(o, s);
  }
  if (o->json)
    json_report(&report, o->out);
  else
    print_report(&report, o->out);
  return wr_done(o);
}

/* ---------------------------------------------------------------------------------------------------------- check, stats */

static void json_info(const weir_data_info *d, bool stats) {
  const struct {
    const char *key;
    uint64_t v;
  } counts[] = {{"vocab", (uint64_t)d->vocab},   {"token_bytes", (uint64_t)d->token_bytes},
                {"shards", (uint64_t)d->shards}, {"docs", d->docs},
                {"val_docs", d->val_docs},       {"tokens", d->tokens},
                {"val_tokens", d->val_tokens},   {"bytes", d->bytes}};
  char hash[20];
  snprintf(hash, sizeof hash, "%016llx", (ull)d->tokenizer_hash);
  wr_json j;
  wr_json_begin(&j, stdout);
  wr_json_object(&j);
  wr_json_string(&j, "tokenizer", d->tokenizer);
  wr_json_string(&j, "tokenizer_hash", hash);
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
    wr_json_count(&j, counts[i].key, counts[i].v);
  }
  wr_json_number(&j, "bytes_per_token", d->bytes_per_token);
  if (stats) {
    wr_json_count(&j, "unused", d->unused);
    wr_json_key(&j, "doc_tokens");
    wr_json_object(&j);
    wr_json_count(&j, "least", d->least_tok);
    wr_json_number(&j, "mean", d->mean_tok);
    wr_json_count(&j, "most", d->most_tok);
    wr_json_key(&j, "by_power_of_2");
    wr_json_array(&j);
    for (int i = 0; i < WEIR_DATA_LENGTHS; i++) wr_json_uint(&j, d->lengths[i]);
    wr_json_end(&j);
    wr_json_end(&j);
    wr_json_key(&j, "frequent");
    wr_json_array(&j);
    for (size_t i = 0; i < d->n_frequent; i++) {
      wr_json_object(&j);
      wr_json_integer(&j, "id", d->frequent[i].id);
      wr_json_count(&j, "count", d->frequent[i].count);
      wr_json_string(&j, "text", d->frequent[i].text);
      wr_json_end(&j);
    }
    wr_json_end(&j);
  }
  wr_json_end(&j);
  wr_json_done(&j);
}

static void print_info(const weir_data_info *d, const char *folder) {
  char size[16];
  wr_size(size, (double)d->bytes);
  printf("%s\n  tokenizer  %s, %d tokens, %016llx\n", folder, d->tokenizer, d->vocab, (ull)d->tokenizer_hash);
  printf("  training   %llu tokens, %llu documents\n  validation %llu tokens, %llu documents\n", (ull)d->tokens, (ull)d->docs,
         (ull)d->val_tokens, (ull)d->val_docs);
  printf("  shards     %d, %d bytes a token; made of %s of text, %.2f bytes a token\n", d->shards, d->token_bytes, size,
         d->bytes_per_token);
}

static void print_lengths(const weir_data_info *d) {
  uint64_t most = 1;
  int first = WEIR_DATA_LENGTHS, last = -1;
  for (int i = 0; i < WEIR_DATA_LENGTHS; i++) {
    if (!d->lengths[i]) continue;
    if (first == WEIR_DATA_LENGTHS) first = i;
    last = i;
    if (d->lengths[i] > most) most = d->lengths[i];
  }
  printf("\ndocuments by tokens (%llu to %llu, mean %.1f)\n", (ull)d->least_tok, (ull)d->most_tok, d->mean_tok);
  for (int i = first; i <= last; i++) {
    char bar[3 * 40 + 1];
    wr_bar(bar, 40, (double)d->lengths[i] / (double)most);
    printf("  %10llu …  %s %llu\n", 1ull << i, bar, (ull)d->lengths[i]);
  }
}

static void print_frequent(const weir_data_info *d) {
  const double all = (double)(d->tokens + d->val_tokens);
  printf("\nmost frequent tokens\n");
  for (size_t i = 0; i < d->n_frequent && i < 16; i++) {
    char bar[3 * 20 + 1];
    wr_bar(bar, 20, (double)d->frequent[i].count / (double)d->frequent[0].count);
    printf("  %6d  %s %5.2f %%  '%s'\n", d->frequent[i].id, bar, 100 * (double)d->frequent[i].count / all, d->frequent[i].text);
  }
  printf("\n%llu of %d tokens of the vocabulary do not occur\n", (ull)d->unused, d->vocab);
}

static int read_through(const wr_options *o, bool stats) {
  if (o->n_args != 2) return wr_usage(o, "%s: one folder of shards", o->args[0]);
  static weir_data_info info;
  void *user = (void *)(uintptr_t)o;
  wr_on_signal(wr_stop_by_progress, NULL);
  const weir_status s =
      stats ? weir_data_stats(o->args[1], show_progress, user, &info) : weir_data_check(o->args[1], show_progress, user, &info);
  wr_on_signal(NULL, NULL);
  wr_progress(o, "", -1);
  if (s != WEIR_OK) return wr_failed(o, s);
  if (o->json) {
    json_info(&info, stats);
    return wr_done(o);
  }
  print_info(&info, o->args[1]);
  if (!stats) printf("  every checksum, id, document end and count is right\n");
  if (stats && info.docs + info.val_docs) {
    print_lengths(&info);
    print_frequent(&info);
  }
  return wr_done(o);
}

int wr_cmd_data(const wr_options *o) {
  if (strcmp(o->args[0], "build") == 0) return build(o);
  if (strcmp(o->args[0], "check") == 0) return read_through(o, false);
  if (strcmp(o->args[0], "stats") == 0) return read_through(o, true);
  return wr_usage(o, "'%s' is none of build, check, stats", o->args[0]);
}
