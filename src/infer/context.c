/* Contexts: a device, its team, and the ledger of what was taken from it. Also how much memory there is left to take. */
#include "infer/infer_i.h"

void weir_free(void *ptr) { wr_free(ptr); }

/* The device of one name, n bytes, into *mem. */
static weir_status open_device(const char *name, size_t n, const weir_context_options *o, wr_mem *mem) {
  char text[64];
  wr_device_options d = {.threads = o->threads, .pin = o->pin, .progress = o->progress, .user = o->user};
  snprintf(text, sizeof text, "%.*s", (int)WR_MIN(n, sizeof text), name);
  const wr_device_api *api = n < sizeof text ? wr_device_find(text, &d.index) : NULL;
  if (!api) return wr_fail(WEIR_EUSAGE, "there is no device '%s' (weir devices lists them)", wr_escape(name, n));
  wr_device *device;
  WR_TRY(api->open(&d, &device));
  wr_mem_init(mem, device, (size_t)WR_MIN(o->memory_bytes, (uint64_t)SIZE_MAX));
  return WEIR_OK;
}

/* "cpu,opencl:0": the first, and the others. */
static weir_status open_devices(weir_context *ctx, const weir_context_options *o) {
  const char *name = o->device ? o->device : "cpu";
  for (int k = 0;; k++) {
    const size_t n = strcspn(name, ",");
    if (k == WR_PLAN_DEVICES) return wr_fail(WEIR_EUSAGE, "more than %d devices were named", WR_PLAN_DEVICES);
    WR_TRY(open_device(name, n, o, k ? &ctx->more[k - 1] : &ctx->mem));
    if (k) {
      ctx->others[k - 1] = &ctx->more[k - 1];
      ctx->n_others = k;
    }
    ctx->device = ctx->mem.device;
    if (!name[n]) break;
    name += n + 1;
  }
  for (int i = 0; i < ctx->n_others; i++)
    if (!ctx->device->api->rows || !ctx->more[i].device->api->rows)
      return wr_fail(WEIR_EUSAGE, "the device null runs nothing: it shares no model with others");
  return WEIR_OK;
}

weir_status weir_context_open(const weir_context_options *options, weir_context **out) {
  const weir_context_options o = options ? *options : (weir_context_options){0};
  if (o.threads < 0 || o.threads > 1024)
    return wr_fail(WEIR_EUSAGE, "threads is %d, but it must be from 0 (all physical cores) to 1024", o.threads);
  weir_context *ctx = wr_calloc(1, sizeof *ctx);
  if (!ctx) return wr_fail_nomem(sizeof *ctx, "a context");
  pthread_mutex_init(&ctx->lock, NULL);
  weir_status s = open_devices(ctx, &o);
  if (s == WEIR_OK) s = wr_context_tune_open(ctx);
  if (s != WEIR_OK) {
    weir_context_close(ctx);
    return s;
  }
  *out = ctx;
  return WEIR_OK;
}

void weir_context_close(weir_context *ctx) {
  if (!ctx) return;
  for (int i = 0; i < ctx->n_others; i++) ctx->more[i].device->api->close(ctx->more[i].device);
  if (ctx->device) ctx->device->api->close(ctx->device);
  pthread_mutex_destroy(&ctx->lock);
  wr_tune_free(&ctx->tune);
  wr_free(ctx);
}

int weir_context_threads(const weir_context *ctx) { return ctx->device->n_threads; }

int64_t weir_context_launches(const weir_context *ctx) {
  int64_t n = ctx->device->launches;
  for (int i = 0; i < ctx->n_others; i++) n += ctx->more[i].device->launches;
  return n;
}

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
