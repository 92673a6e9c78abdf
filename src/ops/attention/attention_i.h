/* The places of the arguments of this family's ops in wr_call.args. */
#ifndef WR_OPS_ATTENTION_I_H
#define WR_OPS_ATTENTION_I_H

#include "ops/attention/attention.h"

enum { ATTN_Q, ATTN_K, ATTN_V, ATTN_FIRST, ATTN_Y, ATTN_LSE };
enum {
  ATTN_BWD_DY, ATTN_BWD_Q, ATTN_BWD_K, ATTN_BWD_V, ATTN_BWD_FIRST, ATTN_BWD_Y, ATTN_BWD_LSE,
  ATTN_BWD_DQ, ATTN_BWD_DK, ATTN_BWD_DV
};
enum { STORE_K, STORE_V, STORE_KCACHE, STORE_VCACHE, STORE_SLOT };
enum { PAGED_Q, PAGED_KCACHE, PAGED_VCACHE, PAGED_SEQ, PAGED_POS, PAGED_TABLE, PAGED_Y };

size_t attention_ref_scratch(const wr_call *c, int n_threads);
size_t attention_bwd_ref_scratch(const wr_call *c, int n_threads);
size_t attention_paged_ref_scratch(const wr_call *c, int n_threads);

/* Arguments at, at + 1, at + 2 are q, k, v, or the first is all three (k absent): then each becomes the view that it is of the first. */
static inline void wr_attn_split_arg(wr_call *c, int at, int64_t kv_heads) {
  const wr_arg all = c->args[at];
  if (!all.rank) return;
  const int64_t heads[] = {all.ext[1] - 2 * kv_heads, kv_heads, kv_heads};
  const int64_t head_bytes = all.ext[2] * wr_dtypes[all.dtype].block_bytes;
  for (int64_t i = 0, before = 0; i < 3; before += heads[i++]) {
    c->args[at + i] = all;
    c->args[at + i].ext[1] = heads[i];
    if (all.data) c->args[at + i].data = (char *)all.data + before * head_bytes;
  }
}

/* The call as kernels and rules want it: q, k and v apart. Returns c itself where they are, else *view. */
static inline const wr_call *wr_attn_apart(const wr_call *c, wr_call *view) {
  if (c->args[ATTN_K].rank) return c;
  *view = *c;
  wr_attn_split_arg(view, ATTN_Q, ((const wr_attention_params *)c->params)->kv_heads);
  return view;
}
static inline const wr_call *wr_attn_bwd_apart(const wr_call *c, wr_call *view) {
  if (c->args[ATTN_BWD_K].rank) return c;
  const int64_t kv_heads = ((const wr_attention_params *)c->params)->kv_heads;
  *view = *c;
  wr_attn_split_arg(view, ATTN_BWD_Q, kv_heads);
  wr_attn_split_arg(view, ATTN_BWD_DQ, kv_heads);
  if (c->acc >> ATTN_BWD_DQ & 1) view->acc |= 1u << ATTN_BWD_DK | 1u << ATTN_BWD_DV;
  return view;
}

/* The first position of its sequence that row b0 + t attends to. Tables come from outside: what is no position before t counts as the
 * nearest one. */
static inline int64_t wr_attn_first(const wr_attention_params *p, const wr_arg *first, int64_t b0, int64_t t) {
  int64_t from = p->window && t + 1 > p->window ? t + 1 - p->window : 0;
  if (first->data) {
    const int64_t own = *(const int32_t *)(const void *)((const char *)first->data + (b0 + t) * first->stride_bytes);
    from = WR_MAX(from, WR_MIN(own, t));
  }
  return from;
}

/* Training form on the CPU: keys that are taken together; rows of a forward unit, of a block of the gradient, and of a strip of
 * either; floats from a strip's line to the next, which no cache maps to one place. Each divides the one before. */
enum { WR_ATTN_KEYS = 256, WR_ATTN_ROWS = 256, WR_ATTN_BLOCK = 128, WR_ATTN_STRIP = 16, WR_ATTN_LINE = WR_ATTN_KEYS + 16 };
/* A thread's scratch. Panels of a block of keys, turned, and plain where heads are no whole panels; the same of a block of rows; lines of
 * p and ds; of each query head and row the maximum and the sum so far. The gradient has no use for the last two. */
typedef struct wr_attn_room {
  float *k, *v, *k_plain, *q, *dy, *p, *ds, *max, *total;
  size_t bytes;
} wr_attn_room;
/* One part after another; no table of their sizes, which gcc 12 would put misaligned on the stack of -fsanitize=address (its bug 110027). */
static inline wr_attn_room wr_attn_room_of(void *scratch, int tid, int64_t Dqk, int64_t Dv, int64_t group) {
  const int64_t Q = (Dqk + 15) / 16 * 16, V = (Dv + 15) / 16 * 16;
  const int64_t keys = WR_ATTN_KEYS * (2 * Q + V), rows = WR_ATTN_BLOCK * (Q + V), lines = 2 * WR_ATTN_BLOCK * WR_ATTN_LINE,
                sums = 2 * group * WR_ATTN_ROWS, all = keys + rows + lines + sums;
  wr_attn_room r = {.bytes = (size_t)all * sizeof(float)};
  if (!scratch) return r;
  r.k = (float *)scratch + tid * all;
  r.v = r.k + WR_ATTN_KEYS * Q;
  r.k_plain = r.v + WR_ATTN_KEYS * V;
  r.q = r.k_plain + WR_ATTN_KEYS * Q;
  r.dy = r.q + WR_ATTN_BLOCK * Q;
  r.p = r.dy + WR_ATTN_BLOCK * V;
  r.ds = r.p + WR_ATTN_BLOCK * WR_ATTN_LINE;
  r.max = r.ds + WR_ATTN_BLOCK * WR_ATTN_LINE;
  r.total = r.max + group * WR_ATTN_ROWS;
  return r;
}

/* A row's positions are attended to in splits of this many pages, each from nothing, merged in ascending order: so few rows
 * with long contexts can be shared out among threads with the same bits. Part of the numeric class paged32. The number is a
 * choice that no record backs yet: two threads have not been timed on a machine that did nothing else. */
enum { WR_ATTN_SPLIT_PAGES = 4 };
/* Rows whose splits are shared out; scratch is booked for so many. More rows keep the threads busy as they are. */
static inline int64_t wr_attn_split_rows(int64_t rows, int64_t kv_heads, int n_threads) {
  int64_t few = (4 * (int64_t)n_threads + kv_heads - 1) / kv_heads;
  return rows < few ? rows : few;
}

#endif
