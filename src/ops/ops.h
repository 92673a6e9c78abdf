/* ops: the ~40 coarse operations, a folder a family. Core knows them only as the table wr_ops; builders of models call the
 * functions below.
 *
 * Owns: for each op its equations and parameters (<family>/<family>.h), its shape, gradient and cost rules and its builder
 * (<family>.c), its definition (<family>_ref.c), its kernels (<family>_cpu.c, listed best first in <family>.def) and its test
 * cases (<family>.cases). Refuses: choosing a kernel, placing memory, running; that is core.
 *
 * To add an op: a folder and a line in core/ops.def, and its header here if models are to build with it. To add a kernel: a
 * function and a line in the family's .def. Both are then tested and timed by tests/kernels.c without another line;
 * src/ops/norm is the example to copy.
 */
#ifndef WR_OPS_H
#define WR_OPS_H

#include "core/core.h"

#include "ops/cases.h"

#include "ops/attention/attention.h"
#include "ops/copy/copy.h"
#include "ops/elementwise/elementwise.h"
#include "ops/embed/embed.h"
#include "ops/loss/loss.h"
#include "ops/matmul/matmul.h"
#include "ops/norm/norm.h"
#include "ops/optim/optim.h"
#include "ops/quant/quant.h"
#include "ops/rnn/rnn.h"
#include "ops/rope/rope.h"
#include "ops/scan/scan.h"

#endif
