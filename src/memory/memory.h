/* memory: who holds which bytes of which tier. One tier, the device's own memory, at this stage.
 *
 * Owns: the ledger. Every byte that a plan, a model or a session takes from a device goes through a wr_mem, so that 'planned' can be
 * held against 'taken', class by class, and a limit can refuse in one place.
 */
#ifndef WR_MEMORY_H
#define WR_MEMORY_H

#include "device/device.h"

typedef enum wr_mem_class {
  WR_MEM_WEIGHTS,
  WR_MEM_STATE,       /* KV cache and other state */
  WR_MEM_GRADS,
  WR_MEM_ACTIVATIONS, /* and scratch */
  WR_MEM_IO,          /* inputs, outputs, registers */
  WR_MEM_CLASS_COUNT
} wr_mem_class;

typedef struct wr_mem {
  wr_device *device;
  size_t limit_bytes; /* 0: none but the machine's */
  size_t used_bytes[WR_MEM_CLASS_COUNT], peak_bytes;
  size_t imported_bytes; /* host memory used in place: mapped files */
} wr_mem;

void wr_mem_init(wr_mem *m, wr_device *d, size_t limit_bytes);
/* ENOMEM names `what`, the bytes, what is in use and the limit. huge: advise huge pages. */
weir_status wr_mem_alloc(wr_mem *m, wr_mem_class c, size_t bytes, bool huge, const char *what, wr_buf *out);
/* Memory of the host, which must stay: used in place where the device can, else copied, and then it counts as alloc's does. */
weir_status wr_mem_import(wr_mem *m, wr_mem_class c, const void *host, size_t bytes, const char *what, wr_buf *out);
void wr_mem_free(wr_mem *m, wr_mem_class c, wr_buf *b); /* an empty wr_buf is allowed */
size_t wr_mem_used(const wr_mem *m);

#endif
