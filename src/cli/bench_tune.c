/* weir bench ops --tune: writes this machine's tune file, and says what it gains, by op and type of weights. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli_i.h"

enum { MOST_GROUPS = 128 };

/* "matmul q4_0/pack16": the kinds of calls of one op and type. */
typedef struct group {
  char name[48];
  int kinds, changed;
  double log_gain, best_gain; /* of the changed ones: sum of logarithms, and the largest */
  char best_kind[96], best_kernel[64];
} group;

typedef struct tuning {
  const wr_options *o;
  wr_json j;
  group groups[MOST_GROUPS];
  int n;
} tuning;

static group *group_of(tuning *t, const char *kind) {
  const char *type = strchr(kind, ' ');
  const size_t n = type ? (size_t)(type - kind) + 1 + strcspn(type + 1, " ") : strlen(kind);
  for (int i = 0; i < t->n; i++)
    if (strlen(t->groups[i].name) == n && memcmp(t->groups[i].name, kind, n) == 0) return &t->groups[i];
  if (t->n == MOST_GROUPS || n >= sizeof t->groups[0].name) return NULL;
  group *g = &t->groups[t->n++];
  memcpy(g->name, kind, n);
  return g;
}

static void json_tuned(wr_json *j, const weir_tune_row *r) {
  wr_json_object(j);
  wr_json_string(j, "kind", r->kind);
  wr_json_string(j, "kernel", r->best);
  wr_json_string(j, "table_kernel", r->first);
  wr_json_number(j, "us", r->best_us);
  wr_json_number(j, "table_us", r->first_us);
  wr_json_end(j);
}

static int take(void *user, const weir_tune_row *r) {
  tuning *t = user;
  group *g = group_of(t, r->kind);
  wr_progress(t->o, r->kind, r->done);
  if (t->o->json) json_tuned(&t->j, r);
  if (g) {
    const double gain = r->first_us / r->best_us;
    g->kinds++;
    if (strcmp(r->first, r->best) != 0) {
      g->changed++;
      g->log_gain += log(gain);
      if (gain > g->best_gain) {
        g->best_gain = gain;
        snprintf(g->best_kind, sizeof g->best_kind, "%s", r->kind + strlen(g->name) + 1);
        snprintf(g->best_kernel, sizeof g->best_kernel, "%s", r->best);
      }
    }
  }
  return wr_interrupted() || ferror(stdout);
}

static void print_groups(const tuning *t) {
  int kinds = 0, changed = 0;
  printf("%-28s %7s %8s %10s  %s\n", "op and type", "kinds", "changed", "mean gain", "largest gain");
  for (int i = 0; i < t->n; i++) {
    const group *g = &t->groups[i];
    kinds += g->kinds;
    changed += g->changed;
    printf("%-28s %7d %8d ", g->name, g->kinds, g->changed);
    if (g->changed)
      printf("%9.2fx  %.2fx: %s, %s\n", exp(g->log_gain / g->changed), g->best_gain, g->best_kernel, g->best_kind);
    else
      printf("%10s\n", "");
  }
  printf("%-28s %7d %8d\n", "all", kinds, changed);
}

int wr_bench_tune(const wr_options *o) {
  static tuning t;
  weir_context *ctx;
  weir_status s = wr_open_context(o, &ctx);
  if (s != WEIR_OK) return wr_failed(o, s);
  double load = 0;
  if (getloadavg(&load, 1) == 1 && load > 1)
    fprintf(stderr, "weir: note: the load is %.1f; what is chosen while other programs run may be noise\n", load);
  t.o = o;
  if (o->json) {
    wr_json_begin(&t.j, stdout);
    wr_json_array(&t.j);
  }
  wr_on_signal(wr_stop_by_progress, NULL);
  s = weir_tune(ctx, take, &t);
  wr_on_signal(NULL, NULL);
  wr_progress(o, "", -1);
  weir_context_close(ctx);
  if (s != WEIR_OK) return wr_failed(o, s);
  if (o->json) {
    wr_json_end(&t.j);
    wr_json_done(&t.j);
    return wr_done(o);
  }
  print_groups(&t);
  s = wr_open_context(o, &ctx); /* what the next run will find */
  if (s != WEIR_OK) return wr_failed(o, s);
  printf("\ntune file: %s\n", weir_context_tune(ctx));
  weir_context_close(ctx);
  return wr_done(o);
}
