/* The CPU as a device: memory is the host's, imports are free, and a team of threads walks the list together.
 *
 * A list runs as one persistent kernel: every thread calls every step's kernel and takes its part of the work; a barrier stands only where the
 * plan found a dependency. Under profiling a barrier follows every step, so that its time is that of its slowest thread. */
#include "device/device.h"

static weir_status cpu_open(const wr_device_options *options, wr_device **out) {
  uint32_t isa;
  WR_TRY(wr_isa_detect(&isa));
  wr_device *d = wr_calloc(1, sizeof *d);
  if (!d) return wr_fail_nomem(sizeof *d, "a device");
  weir_status s = wr_team_open(options ? options->threads : 0, options && options->pin, &d->team);
  if (s != WEIR_OK) {
    wr_free(d);
    return s;
  }
  d->api = &wr_device_cpu;
  d->n_threads = wr_team_size(d->team);
  d->isa = isa;
  *out = d;
  return WEIR_OK;
}

static void cpu_close(wr_device *d) {
  wr_team_close(d->team);
  wr_free(d);
}

typedef struct walk {
  wr_device *device;
  wr_list *list;
  int take_stride;
} walk;

static void walk_list(void *arg, int tid, int n_threads) {
  const walk *k = arg;
  wr_list *list = k->list;
  wr_worker w = {.tid = tid, .n_threads = n_threads, .team = k->device->team, .take_stride = k->take_stride};
  uint64_t before = list->step_ns && tid == 0 ? wr_now_ns() : 0;
  for (int i = 0; i < list->n; i++) {
    const wr_step *step = &list->steps[i];
    if (step->barrier && !list->step_ns) wr_barrier(&w);
    w.take = list->take + i * WR_TAKE_PHASES;
    step->run(&step->call, &w);
    if (!list->step_ns) continue;
    wr_barrier(&w);
    if (tid == 0) {
      uint64_t now = wr_now_ns();
      list->step_ns[i] = now - before;
      before = now;
    }
  }
}

static weir_status cpu_run(wr_device *d, wr_list *list) {
  const int stride = wr_list_take_stride(list->n);
  memset(list->take, 0, sizeof *list->take * (size_t)stride * (size_t)d->n_threads);
  walk k = {d, list, stride};
  wr_team_run(d->team, walk_list, &k);
  return WEIR_OK;
}

const wr_device_api wr_device_cpu = {
    .name = "cpu",
    .rows = "cpu",
    .doc = "this machine's processor and memory",
    .open = cpu_open,
    .close = cpu_close,
    .alloc = wr_host_alloc,
    .free = wr_host_free,
    .import = wr_host_import,
    .write = wr_host_write,
    .read = wr_host_read,
    .host = wr_host_addr,
    .run = cpu_run,
};
