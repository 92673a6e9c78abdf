/* The tune file of a context: found by the identity of the machine, the instruction set and the number of threads; read when the context is
 * opened, written by weir_tune. What it says is core/tune.c's; a file that cannot be used is as if it were not there, and why is said. */
#include "infer/infer_i.h"

#include <stdlib.h>
#include <unistd.h>

#include "device/cpu/cpu.h"
#include "ops/ops.h"

#define KIND "tune"

/* The machine as this context uses it, and where its file is. The caller frees *m. */
static weir_status find(const weir_context *ctx, weir_machine **m, char *path, size_t cap) {
  weir_machine *id = wr_calloc(1, sizeof *id); /* too large for a small stack */
  if (!id) return wr_fail_nomem(sizeof *id, "the identity of the machine");
  wr_machine_identify(id);
  wr_machine_set_isa(id, ctx->device->isa);
  id->threads = ctx->device->n_threads;
  const weir_status s = wr_kept_path(KIND, id, path, cap);
  if (s != WEIR_OK) {
    wr_free(id);
    return s;
  }
  *m = id;
  return WEIR_OK;
}

/* Without a file *text stays NULL. */
static weir_status load(weir_context *ctx, char *path, size_t cap, char **text) {
  weir_machine *id;
  WR_TRY(find(ctx, &id, path, cap));
  weir_status s = access(path, F_OK) == 0 ? wr_kept_load(path, KIND, id, text) : WEIR_OK;
  wr_free(id);
  return s == WEIR_OK && *text ? wr_tune_parse(*text, &ctx->tune) : s;
}

weir_status wr_context_tune_open(weir_context *ctx) {
  const char *set = getenv("WEIR_TUNE");
  char path[640], *text = NULL, *out = ctx->tune_text;
  const size_t cap = sizeof ctx->tune_text;
  const int threads = ctx->device->n_threads;
  if (!ctx->device->team) {
    snprintf(out, cap, "none: device %s runs no kernels", ctx->device->api->name);
    return WEIR_OK;
  }
  if (ctx->device->api != &wr_device_cpu) {
    snprintf(out, cap, "none: it is for the CPU's kernels, not for those of device %s", ctx->device->api->name);
    return WEIR_OK;
  }
  if (set && strcmp(set, "off") == 0) {
    snprintf(out, cap, "none: WEIR_TUNE is off");
    return WEIR_OK;
  }
  const weir_status s = load(ctx, path, sizeof path, &text);
  if (s != WEIR_OK)
    snprintf(out, cap, "not used: %s (weir bench ops --tune makes a new one)", weir_last_error());
  else if (text)
    snprintf(out, cap, "%s: %zu choices", wr_escape(path, strlen(path)), ctx->tune.n);
  else
    snprintf(out, cap, "none for %d thread%s (weir bench ops --tune makes one)", threads, threads == 1 ? "" : "s");
  wr_free(text);
  return s == WEIR_ENOMEM ? s : WEIR_OK;
}

const char *weir_context_tune(const weir_context *ctx) { return ctx->tune_text; }

typedef struct telling {
  weir_tune_fn fn;
  void *user;
} telling;

static bool tell(void *user, const wr_tuned *r) {
  const telling *t = user;
  const weir_tune_row row = {.kind = r->kind,
                             .first = r->first->name,
                             .best = r->best->name,
                             .first_us = r->first_s * 1e6,
                             .best_us = r->best_s * 1e6,
                             .done = r->done};
  return t->fn(t->user, &row) == 0;
}

static weir_status tune(weir_context *ctx, telling *t, const weir_machine *id, const char *path, wr_str *text) {
  char folder[512];
  WR_TRY(wr_cache_dir(folder, sizeof folder));
  WR_TRY(wr_mkdir_p(folder));
  wr_tune_head(text);
  WR_TRY(wr_tune_ops(ctx->device, tell, t, text));
  return wr_kept_save(path, KIND, id, text);
}

weir_status weir_tune(weir_context *ctx, weir_tune_fn fn, void *user) {
  char path[640];
  weir_machine *id;
  wr_str text = {0};
  telling t = {fn, user};
  if (ctx->device->api != &wr_device_cpu)
    return wr_fail(WEIR_EUNSUPPORTED, "kernels are tuned on the CPU only, not on device %s", ctx->device->api->name);
  WR_TRY(find(ctx, &id, path, sizeof path));
  const weir_status s = tune(ctx, &t, id, path, &text);
  wr_str_free(&text);
  wr_free(id);
  return s;
}
