/* From a planned call to what the kernels of the dialect are started with: launch_i.h. */
#include "device/launch_i.h"

_Static_assert(sizeof(wr_dev_regs) == sizeof(wr_regs) && offsetof(wr_dev_regs, found_inf) == offsetof(wr_regs, found_inf) &&
                   offsetof(wr_dev_regs, seed) == offsetof(wr_regs, seed),
               "kernels see the registers as they are");
_Static_assert((int)WR_DEV_ARGS == (int)WR_MAX_ARGS && (int)WR_DEV_NUMBERS == (int)WR_LAUNCH_NUMBERS, "one call");

void wr_launch_add(wr_launch *l, const wr_dev_kernel *k, int64_t x, int64_t y, int64_t z) {
  if (!x || !y || !z) return;
  if (l->n_kernels < WR_LAUNCH_KERNELS) {
    l->kernels[l->n_kernels].kernel = k;
    l->kernels[l->n_kernels].groups[0] = x;
    l->kernels[l->n_kernels].groups[1] = y;
    l->kernels[l->n_kernels].groups[2] = z;
  }
  l->n_kernels++;
}

weir_status wr_launch_make(const wr_step *step, wr_launch *out) {
  *out = (wr_launch){0};
  if (!step->launch) return wr_fail(WEIR_EFAIL, "%s is no kernel of the dialect", step->name);
  step->launch(&step->call, out);
  if (out->n_kernels > WR_LAUNCH_KERNELS)
    return wr_fail(WEIR_EFAIL, "%s starts %d kernels, a call takes %d", step->name, out->n_kernels, WR_LAUNCH_KERNELS);
  for (int i = 0; i < out->n_kernels; i++) {
    const wr_dev_kernel *k = out->kernels[i].kernel;
    const int64_t *groups = out->kernels[i].groups;
    if (k->items < 1 || k->items > WR_LAUNCH_ITEMS)
      return wr_fail(WEIR_EFAIL, "kernel %s has groups of %d items, a device takes %d", k->name, k->items, WR_LAUNCH_ITEMS);
    for (int d = 0; d < 3; d++)
      if (groups[d] < 1 || groups[d] > (d ? WR_LAUNCH_GROUPS_YZ : WR_LAUNCH_GROUPS))
        return wr_fail(WEIR_EFAIL, "kernel %s: a grid of %lld x %lld x %lld groups, a device takes %d x %d x %d", k->name,
                       (long long)groups[0], (long long)groups[1], (long long)groups[2], WR_LAUNCH_GROUPS, WR_LAUNCH_GROUPS_YZ,
                       WR_LAUNCH_GROUPS_YZ);
  }
  return WEIR_OK;
}

void wr_launch_block(const wr_step *step, const wr_launch *l, wr_dev_call *out) {
  *out = (wr_dev_call){.acc = step->call.acc};
  for (int i = 0; i < WR_MAX_ARGS; i++) {
    const wr_arg *a = &step->call.args[i];
    wr_dev_arg *to = &out->arg[i];
    *to = (wr_dev_arg){
        .stride = a->stride_bytes, .dtype = a->dtype, .layout = a->layout, .live = a->live, .present = a->data != NULL};
    memcpy(to->ext, a->ext, sizeof to->ext);
  }
  memcpy(out->n, l->n, sizeof out->n);
  memcpy(out->f, l->f, sizeof out->f);
}
