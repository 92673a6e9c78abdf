/* Contexts: a device, its team, and the ledger of what was taken from it. Also how much memory there is left to take. */
#include "infer/infer_i.h"

void weir_free(void *ptr) { wr_free(ptr); }

weir_status weir_context_open(const weir_context_options *options, weir_context **out) {
  const weir_context_options o = options ? *options : (weir_context_options){0};
  if (o.threads < 0 || o.threads > 1024)
    return wr_fail(WEIR_EUSAGE, "threads is %d, but it must be from 0 (all physical cores) to 1024", o.threads);
  const char *name = o.device ? o.device : "cpu";
  wr_device_options d = {.threads = o.threads, .pin = o.pin, .progress = o.progress, .user = o.user};
  if (strchr(name, ','))
    return wr_fail(WEIR_EUNSUPPORTED, "several devices at once ('%s') are not supported yet: name one",
                   wr_escape(name, strlen(name)));
  const wr_device_api *api = wr_device_find(name, &d.index);
  if (!api) return wr_fail(WEIR_EUSAGE, "there is no device '%s' (weir devices lists them)", wr_escape(name, strlen(name)));
  weir_context *ctx = wr_calloc(1, sizeof *ctx);
  if (!ctx) return wr_fail_nomem(sizeof *ctx, "a context");
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

int64_t weir_context_launches(const weir_context *ctx) { return ctx->device->launches; }

uint64_t wr_context_left(weir_context *ctx) {
  const uint64_t device = ctx->device->memory_bytes;
  pthread_mutex_lock(&ctx->lock);
  const uint64_t limit = ctx->mem.limit_bytes, used = wr_mem_used(&ctx->mem), all = used + ctx->mem.imported_bytes;
  pthread_mutex_unlock(&ctx->lock);
  uint64_t left = ctx->device->own_memory ? UINT64_MAX : wr_memory_available();
  if (device) left = WR_MIN(left, device - WR_MIN(device, all));
  return limit ? WR_MIN(left, limit - WR_MIN(limit, used)) : left;
}

uint64_t weir_context_memory(const weir_context *ctx) {
  return wr_context_left((weir_context *)(uintptr_t)ctx); /* its lock only */
}

typedef struct telling {
  void (*each)(void *user, const weir_device_info *d);
  void *user;
} telling;

static void tell(void *user, const wr_device_facts *f) {
  const telling *t = user;
  const weir_device_info info = {.name = f->name,
                                 .text = f->text,
                                 .driver = f->driver,
                                 .platform = f->platform,
                                 .memory_bytes = f->memory_bytes,
                                 .usable = f->usable};
  t->each(t->user, &info);
}

weir_status weir_device_list(void (*each)(void *user, const weir_device_info *d), void *user) {
  telling t = {each, user};
  for (int i = 0; i < wr_devices_n; i++) {
    const wr_device_api *api = wr_devices[i];
    char text[160];
    uint32_t isa = 0;
    if (api->list) {
      WR_TRY(api->list(tell, &t));
      continue;
    }
    if (api == &wr_device_cpu && wr_isa_detect(&isa) == WEIR_OK)
      snprintf(text, sizeof text, "%s: %s, %d threads", api->doc, wr_isa_name(isa), wr_default_threads());
    else
      snprintf(text, sizeof text, "%s", api->doc);
    tell(&t, &(wr_device_facts){.name = api->name, .text = text, .usable = api->rows != NULL});
  }
  return WEIR_OK;
}
