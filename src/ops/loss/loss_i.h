/* The places of the arguments of this family's ops in wr_call.args: the same order as in their tables in loss.c. */
#ifndef WR_OPS_LOSS_I_H
#define WR_OPS_LOSS_I_H

#include "device/device.h"

enum { XENT_LOGITS, XENT_TARGETS, XENT_LOSS, XENT_LSE };
enum { XENT_BWD_DLOSS, XENT_BWD_LOGITS, XENT_BWD_TARGETS, XENT_BWD_LSE, XENT_BWD_DLOGITS };
enum { HEAD_X, HEAD_W, HEAD_TARGETS, HEAD_LOSS };
enum { HEAD_BWD_DLOSS, HEAD_BWD_X, HEAD_BWD_W, HEAD_BWD_TARGETS, HEAD_BWD_LOSS, HEAD_BWD_DX, HEAD_BWD_DW };

/* Fast rows of the product with its loss, loss_head_cpu.c. Scratch: counters, a loss for each row, a piece of logits, panels of each
 * thread. */
enum {
  WR_HEAD_LOGITS = 32 << 20, /* bytes of a piece of logits, ... */
  WR_HEAD_ROWS = 1024,       /* ... of at most so many rows */
  WR_HEAD_SUM = 384,         /* summands at a time */
  WR_HEAD_GROUPS = 9,        /* of w in a unit of logits */
  WR_HEAD_PANELS = 6,        /* of sixteen columns in a unit of a gradient */
  WR_HEAD_STAGES = 4
};
typedef struct wr_head_scratch { _Alignas(64) atomic_llong taken[2][WR_HEAD_STAGES]; } wr_head_scratch; /* units; pieces take turns */
/* Rows of a piece: multiples of a tile's, all pieces about the same. */
static inline int64_t wr_head_piece(int64_t R, int64_t V) {
  const int64_t room = WR_HEAD_LOGITS / ((V + 15) / 16 * 64) / 8 * 8;
  const int64_t most = WR_MIN(WR_MAX(room, (int64_t)8), (int64_t)WR_HEAD_ROWS), pieces = (R + most - 1) / most;
  return WR_MIN(((R + pieces - 1) / pieces + 7) / 8 * 8, R);
}
static inline size_t wr_head_loss_bytes(int64_t R) { return ((size_t)R * sizeof(double) + 63) / 64 * 64; }
static inline size_t wr_head_scratch_bytes(int64_t R, int64_t V, int n_threads) {
  const size_t logits = (size_t)wr_head_piece(R, V) * (size_t)((V + 15) / 16 * 64);
  return sizeof(wr_head_scratch) + wr_head_loss_bytes(R) + logits + (size_t)n_threads * WR_HEAD_PANELS * WR_HEAD_SUM * 64;
}

/* Of other devices than the CPU: a loss for each row, and whole logits. */
static inline size_t wr_head_whole_bytes(int64_t R, int64_t V) { return (size_t)R * (size_t)(V + 1) * sizeof(float); }

#endif
