/* The table of devices, and how a step's work is shared out among the threads of a team. */
#include "device/device.h"

const wr_device_api *const wr_devices[] = {&wr_device_cpu, &wr_device_null};
const int wr_devices_n = (int)WR_ARRAY_LEN(wr_devices);

const wr_device_api *wr_device_find(const char *name) {
  for (int i = 0; i < wr_devices_n; i++)
    if (strcmp(wr_devices[i]->name, name) == 0) return wr_devices[i];
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
