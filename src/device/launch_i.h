/* What devices that run the kernels of the dialect share. */
#ifndef WR_LAUNCH_I_H
#define WR_LAUNCH_I_H

#include "device/dialect.h"

enum { WR_LAUNCH_ITEMS = 1024, WR_LAUNCH_GROUPS = INT32_MAX, WR_LAUNCH_GROUPS_YZ = 65535 }; /* at most: what CUDA takes */

/* Kernels, grids and numbers of a step. EFAIL: they are more than a device takes, or the row launches nothing. */
weir_status wr_launch_make(const wr_step *step, wr_launch *out);
/* What the kernels read of the call. The offsets of arguments and scratch are 0: a device that hands over other pointers sets them. */
void wr_launch_block(const wr_step *step, const wr_launch *l, wr_dev_call *out);

#endif
