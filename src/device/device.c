/* The table of devices, memory of the host as devices have it, and how a step's work is shared out among the threads of a team. */
#include "device/device.h"

#include <stdlib.h>

const wr_device_api *const wr_devices[] = {&wr_device_cpu, &wr_device_opencl, &wr_device_emu, &wr_device_null};
const int wr_devices_n = (int)WR_ARRAY_LEN(wr_devices);

/* false: what follows the name is no ":N", or N is not for this device. */
static bool index_of(const wr_device_api *api, const char *rest, int *index) {
  char *end;
  if (index) *index = 0;
  if (!*rest) return true;
  if (!index || !api->list || rest[0] != ':' || rest[1] < '0' || rest[1] > '9') return false;
  const long n = strtol(rest + 1, &end, 10);
  *index = (int)WR_MIN(n, INT32_MAX - 1) + 1;
  return !*end;
}

const wr_device_api *wr_device_find(const char *name, int *index) {
  for (int i = 0; i < wr_devices_n; i++) {
    const size_t n = strlen(wr_devices[i]->name);
    if (strncmp(wr_devices[i]->name, name, n) == 0 && index_of(wr_devices[i], name + n, index)) return wr_devices[i];
  }
  return NULL;
}

bool wr_take(const wr_worker *w, int phase, int64_t n, int64_t grain, int64_t *begin, int64_t *end) {
  const int threads = w->n_threads;
  for (int k = 0; k < threads; k++) {
    const int owner = (w->tid + k) % threads;
    const int64_t lo = n * owner / threads, len = n * (owner + 1) / threads - lo;
    atomic_int *taken = &w->take[(size_t)owner * (size_t)w->take_stride + (size_t)phase];
    /* The plain look first keeps finished parts from being written again and again. Relaxed is enough: what is shared out is read-only,
     * and results are published by the barrier after the step. */
    if (atomic_load_explicit(taken, memory_order_relaxed) >= len) continue;
    const int64_t at = atomic_fetch_add_explicit(taken, (int)grain, memory_order_relaxed);
    if (at >= len) continue;
    *begin = lo + at;
    *end = lo + WR_MIN(at + grain, len);
    return true;
  }
  return false;
}

/* ------------------------------------------------------------------------------------------------- memory of the host */

weir_status wr_host_alloc(wr_device *d, size_t bytes, bool huge, const char *what, wr_buf *out) {
  void *p = wr_pages_alloc(WR_MAX(bytes, (size_t)1), huge);
  if (!p) return wr_fail_nomem(bytes, what);
  *out = (wr_buf){.device = d, .addr = p, .bytes = bytes};
  d->used_bytes += bytes;
  d->peak_bytes = WR_MAX(d->peak_bytes, d->used_bytes);
  return WEIR_OK;
}

void wr_host_free(wr_device *d, wr_buf *b) {
  if (b->addr && !b->imported) {
    wr_pages_free(b->addr, WR_MAX(b->bytes, (size_t)1));
    d->used_bytes -= b->bytes;
  }
  *b = (wr_buf){0};
}

weir_status wr_host_import(wr_device *d, const void *host, size_t bytes, wr_buf *out) {
  *out = (wr_buf){.device = d, .addr = (void *)(uintptr_t)host, .bytes = bytes, .imported = true};
  return WEIR_OK;
}

weir_status wr_host_write(wr_device *d, wr_buf *dst, size_t offset, const void *src, size_t n) {
  (void)d;
  if (offset > dst->bytes || n > dst->bytes - offset)
    return wr_fail(WEIR_EUSAGE, "write of %zu bytes at %zu is past the end of a buffer of %zu bytes", n, offset, dst->bytes);
  if (n) memcpy((char *)dst->addr + offset, src, n);
  return WEIR_OK;
}

weir_status wr_host_read(wr_device *d, const wr_buf *src, size_t offset, void *dst, size_t n) {
  (void)d;
  if (offset > src->bytes || n > src->bytes - offset)
    return wr_fail(WEIR_EUSAGE, "read of %zu bytes at %zu is past the end of a buffer of %zu bytes", n, offset, src->bytes);
  if (n) memcpy(dst, (const char *)src->addr + offset, n);
  return WEIR_OK;
}

void *wr_host_addr(wr_device *d, const wr_buf *b) {
  (void)d;
  return b->addr;
}
