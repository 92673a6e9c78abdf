/* Contexts: a device, its team, and the ledger of what was taken from it. Also how much memory there is left to take. */
#include "infer/infer_i.h"

void weir_free(void *ptr) { wr_free(ptr); }

weir_status weir_context_open(const weir_context_options *options, weir_context **out) {
  const weir_context_options o = options ? *options : (weir_context_options){0};
  if (o.threads < 0 || o.threads > 1024)
    return wr_fail(WEIR_EUSAGE, "threads is %d, but it must be from 0 (all physical cores) to 1024", o.threads);
  const char *name = o.device ? o.device : "cpu";
  const wr_device_api *api = wr_device_find(name);
  if (!api) return wr_fail(WEIR_EUSAGE, "there is no device '%s'", wr_escape(name, strlen(name)));
  weir_context *ctx = wr_calloc(1, sizeof *ctx);
  if (!ctx) return wr_fail_nomem(sizeof *ctx, "a context");
  const wr_device_options d = {.threads = o.threads, .pin = o.pin};
  weir_status s = api->open(&d, &ctx->device);
  if (s != WEIR_OK) {
    wr_free(ctx);
    return s;
  }
  wr_mem_init(&ctx->mem, ctx->device, (size_t)WR_MIN(o.memory_bytes, (uint64_t)SIZE_MAX));
  pthread_mutex_init(&ctx->lock, NULL);
  s = wr_context_tune_open(ctx);
  if (s != WEIR_OK) {
    weir_context_close(ctx);
    return s;
  }
  *out = ctx;
  return WEIR_OK;
}

void weir_context_close(weir_context *ctx) {
  if (!ctx) return;
  ctx->device->api->close(ctx->device);
  pthread_mutex_destroy(&ctx->lock);
  wr_tune_free(&ctx->tune);
  wr_free(ctx);
}

int weir_context_threads(const weir_context *ctx) { return ctx->device->n_threads; }

uint64_t wr_context_left(weir_context *ctx) {
  const uint64_t left = wr_memory_available();
  pthread_mutex_lock(&ctx->lock);
  const uint64_t limit = ctx->mem.limit_bytes, used = wr_mem_used(&ctx->mem);
  pthread_mutex_unlock(&ctx->lock);
  return limit ? WR_MIN(left, limit - WR_MIN(limit, used)) : left;
}

uint64_t weir_context_memory(const weir_context *ctx) {
  return wr_context_left((weir_context *)(uintptr_t)ctx); /* its lock only */
}

int weir_device_count(void) { return wr_devices_n; }

weir_status weir_device_at(int i, weir_device_info *out) {
  static _Thread_local char text[160];
  if (i < 0 || i >= wr_devices_n) return wr_fail(WEIR_EUSAGE, "device %d is none of the %d", i, wr_devices_n);
  const wr_device_api *api = wr_devices[i];
  uint32_t isa = 0;
  const bool cpu = strcmp(api->name, "cpu") == 0;
  if (cpu && wr_isa_detect(&isa) == WEIR_OK)
    snprintf(text, sizeof text, "%s: %s, %d threads", api->doc, wr_isa_name(isa), wr_default_threads());
  else
    snprintf(text, sizeof text, "%s", api->doc);
  *out = (weir_device_info){.name = api->name, .text = text, .usable = cpu};
  return WEIR_OK;
}
