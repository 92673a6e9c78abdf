/* The ledger of device memory: one place that takes, refuses and counts. */
#include "memory/memory.h"

void wr_mem_init(wr_mem *m, wr_device *d, size_t limit_bytes) { *m = (wr_mem){.device = d, .limit_bytes = limit_bytes}; }

size_t wr_mem_used(const wr_mem *m) {
  size_t sum = 0;
  for (int c = 0; c < WR_MEM_CLASS_COUNT; c++) sum += m->used_bytes[c];
  return sum;
}

weir_status wr_mem_alloc(wr_mem *m, wr_mem_class c, size_t bytes, bool huge, const char *what, wr_buf *out) {
  const size_t used = wr_mem_used(m);
  if (m->limit_bytes && (used > m->limit_bytes || bytes > m->limit_bytes - used)) {
    char need[16], have[16], limit[16];
    wr_size_text(need, bytes);
    wr_size_text(have, used);
    wr_size_text(limit, m->limit_bytes);
    return wr_fail(WEIR_ENOMEM, "%s (%s) does not fit: %s of %s of memory are in use", what, need, have, limit);
  }
  WR_TRY(m->device->api->alloc(m->device, bytes, huge, what, out));
  m->used_bytes[c] += bytes;
  m->peak_bytes = WR_MAX(m->peak_bytes, used + bytes);
  return WEIR_OK;
}

weir_status wr_mem_import(wr_mem *m, wr_mem_class c, const void *host, size_t bytes, const char *what, wr_buf *out) {
  const weir_status s = m->device->api->import(m->device, host, bytes, out);
  if (s == WEIR_OK) m->imported_bytes += bytes;
  if (s != WEIR_EUNSUPPORTED) return s;
  WR_TRY(wr_mem_alloc(m, c, bytes, true, what, out));
  return m->device->api->write(m->device, out, 0, host, bytes);
}

void wr_mem_free(wr_mem *m, wr_mem_class c, wr_buf *b) {
  if (!b->addr) return;
  if (b->imported)
    m->imported_bytes -= b->bytes;
  else
    m->used_bytes[c] -= b->bytes;
  m->device->api->free(m->device, b);
}
