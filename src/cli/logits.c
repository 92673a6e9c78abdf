/* weir logits: what the model says of each token of the vocabulary after a list of ids. --cut feeds them in pieces, --all shows every position. */
#include <stdlib.h>
#include <string.h>

#include "cli_i.h"

typedef struct ranked {
  weir_token id;
  float logit;
} ranked;

static int by_logit(const void *a, const void *b) {
  const ranked *x = a, *y = b;
  if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
  return x->id < y->id ? -1 : 1;
}

/* The n largest, largest first; of equal ones the lower id. NULL: no memory. */
static ranked *largest(const float *logits, int vocab, int64_t n) {
  ranked *all = malloc((size_t)vocab * sizeof *all);
  for (int i = 0; all && i < vocab; i++) all[i] = (ranked){i, logits[i]};
  if (all && n) qsort(all, (size_t)vocab, sizeof *all, by_logit);
  return all;
}

typedef struct report {
  const wr_options *o;
  const weir_tokenizer *tokenizer;
  wr_json j;
  bool begun; /* JSON begins with the first result, so that a refusal leaves stdout empty */
} report;

static void begin(report *p) {
  if (p->begun || !p->o->json) return;
  p->begun = true;
  wr_json_begin(&p->j, stdout);
  wr_json_object(&p->j);
  if (!p->o->all) return;
  wr_json_key(&p->j, "positions");
  wr_json_array(&p->j);
}

static void json_position(report *p, const float *logits, int vocab) {
  wr_json *j = &p->j;
  char hash[24];
  snprintf(hash, sizeof hash, "%016llx", (unsigned long long)weir_logits_hash(logits, (size_t)vocab));
  const int64_t n = p->o->top < vocab ? p->o->top : vocab;
  ranked *best = largest(logits, vocab, n);
  wr_json_key(j, "logits");
  wr_json_array(j);
  for (int i = 0; i < vocab; i++) wr_json_float(j, logits[i]);
  wr_json_end(j);
  wr_json_key(j, "top");
  wr_json_array(j);
  for (int64_t i = 0; best && i < n; i++) {
    wr_json_object(j);
    wr_json_integer(j, "id", best[i].id);
    wr_json_key(j, "logit");
    wr_json_float(j, best[i].logit);
    wr_json_end(j);
  }
  wr_json_end(j);
  wr_json_string(j, "hash", hash);
  free(best);
}

static void print_position(report *p, int64_t position, const float *logits, int vocab) {
  const int64_t n = p->o->top < vocab ? p->o->top : vocab;
  ranked *best = largest(logits, vocab, n);
  printf("position %lld, hash %016llx\n", (long long)position, (unsigned long long)weir_logits_hash(logits, (size_t)vocab));
  for (int64_t i = 0; best && i < n; i++) {
    char *text = NULL, shown[96];
    size_t bytes = 0;
    if (weir_tokenizer_decode(p->tokenizer, &best[i].id, 1, WEIR_TEXT_SHOW_SPECIAL | WEIR_TEXT_CONTINUES, &text, &bytes) ==
        WEIR_OK)
      weir_escape(text, bytes, shown, sizeof shown);
    else
      shown[0] = 0;
    weir_free(text);
    printf("  %8d  %10.5f  \"%s\"\n", best[i].id, (double)best[i].logit, shown);
  }
  free(best);
}

static int each_position(void *user, int64_t position, const float *logits, int vocab) {
  report *p = user;
  begin(p);
  if (!p->o->json) {
    print_position(p, position, logits, vocab);
    return 0;
  }
  wr_json_object(&p->j);
  wr_json_key(&p->j, "position");
  wr_json_int(&p->j, position);
  json_position(p, logits, vocab);
  wr_json_end(&p->j);
  return ferror(stdout);
}

/* Feeds the ids in pieces of --cut. */
static weir_status feed(const wr_options *o, weir_session *s, const weir_token *ids, size_t n, report *p) {
  const size_t cut = o->cut > 0 ? (size_t)o->cut : n;
  for (size_t at = 0; at < n; at += cut) {
    const weir_status status = weir_session_eval(s, ids + at, n - at < cut ? n - at : cut, o->all ? each_position : NULL, p);
    if (status != WEIR_OK) return status;
  }
  return WEIR_OK;
}

static int run(const wr_options *o, weir_model *m, const weir_token *ids, size_t n) {
  report p = {.o = o, .tokenizer = weir_model_tokenizer(m)};
  weir_session *session = NULL;
  weir_status s = wr_open_session(o, m, &session);
  if (s != WEIR_OK) return wr_failed(o, s);
  wr_stop_on_signal(session);
  s = feed(o, session, ids, n, &p);
  wr_stop_on_signal(NULL);
  const float *logits = NULL;
  int vocab = 0;
  if (s == WEIR_OK) s = weir_session_logits(session, &logits, &vocab);
  int code = s == WEIR_OK ? 0 : wr_failed(o, s);
  if (!code && o->json) {
    begin(&p);
    if (o->all) wr_json_end(&p.j);
    json_position(&p, logits, vocab);
    wr_json_end(&p.j);
    wr_json_done(&p.j);
  } else if (!code && !o->all) {
    print_position(&p, (int64_t)n - 1, logits, vocab);
  }
  weir_session_close(session);
  return code ? code : wr_done(o);
}

int wr_cmd_logits(const wr_options *o) {
  weir_token *ids = NULL;
  size_t n = 0;
  if (!o->tokens) return wr_usage(o, "--tokens is missing: the ids to evaluate");
  if (!wr_parse_ids(o, o->tokens, strlen(o->tokens), &ids, &n)) return 2;
  if (!n) {
    free(ids);
    return wr_usage(o, "--tokens holds no id");
  }
  weir_context *ctx;
  weir_model *m;
  const weir_status s = wr_open_model(o, o->args[0], &ctx, &m);
  int code;
  if (s == WEIR_OK) {
    code = run(o, m, ids, n);
    wr_close_model(ctx, m);
  } else {
    code = wr_failed(o, s);
  }
  free(ids);
  return code;
}
