/* The null device: allocates nothing, runs nothing, counts everything. Programs of any size can be planned and 'run' on it, which is how the
 * passes and the memory plan of a 70B model are tested on a small machine. Its addresses are made up, distinct, and never followed. */
#include "device/device.h"

typedef struct null_state {
  wr_null_counts counts;
  uintptr_t next;
} null_state;
static const uintptr_t NULL_BASE = 4096, NULL_ALIGN = 4096;

static weir_status null_open(const wr_device_options *options, wr_device **out) {
  wr_device *d = wr_calloc(1, sizeof *d);
  null_state *s = wr_calloc(1, sizeof *s);
  if (!d || !s) {
    wr_free(d);
    wr_free(s);
    return wr_fail_nomem(sizeof *d, "a device");
  }
  s->next = NULL_BASE;
  d->api = &wr_device_null;
  d->n_threads = options && options->threads > 0 ? options->threads : 1;
  d->isa = WR_ISA_AVX512;
  d->priv = s;
  *out = d;
  return WEIR_OK;
}

static void null_close(wr_device *d) {
  wr_free(d->priv);
  wr_free(d);
}

static weir_status null_alloc(wr_device *d, size_t bytes, bool huge, const char *what, wr_buf *out) {
  (void)huge;
  null_state *s = d->priv;
  size_t span;
  if (!wr_add_size(bytes, NULL_ALIGN, &span) || span > UINTPTR_MAX - s->next) return wr_fail_nomem(bytes, what);
  *out = (wr_buf){.device = d, .addr = (void *)s->next, .bytes = bytes};
  s->next += (span + NULL_ALIGN - 1) / NULL_ALIGN * NULL_ALIGN;
  s->counts.allocated_bytes += bytes;
  d->used_bytes += bytes;
  d->peak_bytes = WR_MAX(d->peak_bytes, d->used_bytes);
  return WEIR_OK;
}

static void null_free(wr_device *d, wr_buf *b) {
  if (b->addr && !b->imported) d->used_bytes -= b->bytes;
  *b = (wr_buf){0};
}

static weir_status null_import(wr_device *d, const void *host, size_t bytes, wr_buf *out) {
  (void)host;
  weir_status s = null_alloc(d, bytes, false, "an import", out);
  if (s == WEIR_OK) {
    out->imported = true;
    d->used_bytes -= bytes;
  }
  return s;
}

static weir_status null_write(wr_device *d, wr_buf *dst, size_t offset, const void *src, size_t n) {
  (void)d, (void)dst, (void)offset, (void)src, (void)n;
  return WEIR_OK;
}

static weir_status null_read(wr_device *d, const wr_buf *src, size_t offset, void *dst, size_t n) {
  (void)d, (void)src, (void)offset;
  memset(dst, 0, n);
  return WEIR_OK;
}

static void *null_host(wr_device *d, const wr_buf *b) {
  (void)d, (void)b;
  return NULL;
}

static weir_status null_run(wr_device *d, wr_list *list) {
  null_state *s = d->priv;
  s->counts.runs++;
  for (int i = 0; i < list->n; i++) {
    s->counts.calls++;
    s->counts.bytes += list->steps[i].bytes;
    s->counts.flop += list->steps[i].flop;
    if (list->step_ns) list->step_ns[i] = 0;
  }
  return WEIR_OK;
}

wr_null_counts wr_null_device_counts(const wr_device *d) { return ((const null_state *)d->priv)->counts; }

const wr_device_api wr_device_null = {
    .name = "null",
    .doc = "allocates nothing and runs nothing: counts calls, bytes and FLOPs of a plan",
    .open = null_open,
    .close = null_close,
    .alloc = null_alloc,
    .free = null_free,
    .import = null_import,
    .write = null_write,
    .read = null_read,
    .host = null_host,
    .run = null_run,
};
