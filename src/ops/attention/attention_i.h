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

/* ---- paged form on the CPU */

static inline int64_t wr_whole16(int64_t n) { return (n + 15) / 16 * 16; }

/* A head's part of a page, keys or values; of it what holds the scales of quantised keys. */
static inline int64_t wr_kv_head_bytes(const wr_arg *cache) {
  return cache->ext[2] * cache->ext[3] / wr_dtypes[cache->dtype].block * wr_dtypes[cache->dtype].block_bytes;
}
static inline int64_t wr_keys_scale_bytes(int64_t Dqk) { return 2 * Dqk; }

/* Codes side by side go to places `step` elements apart. */
#define WR_KV_SPREAD(type) \
  for (int i = 0; i < n; i++) ((type *)to)[i * step] = ((const type *)code)[i]
static inline void wr_kv_spread(void *to, int64_t step, const void *code, int n, int elem_bytes) {
  if (elem_bytes == 1) WR_KV_SPREAD(uint8_t);
  if (elem_bytes == 2) WR_KV_SPREAD(uint16_t);
  if (elem_bytes == 4) WR_KV_SPREAD(uint32_t);
}
#undef WR_KV_SPREAD

/* A plain block of n elements (quantised types: 32) from d on, of one position, goes to where the cache has it. code: aligned for its
 * elements, the quants of Q8_0 and Q4_0 after the two bytes of their scale. */
static inline void wr_kv_put(const wr_arg *cache, bool keys, int64_t page, int64_t head, int64_t place, int64_t d, int n,
                             const uint8_t *code) {
  const wr_dtype_info *t = &wr_dtypes[cache->dtype];
  const int64_t D = cache->ext[keys ? 2 : 3], P = cache->ext[keys ? 3 : 2];
  uint8_t *at = (uint8_t *)cache->data + page * cache->stride_bytes + head * wr_kv_head_bytes(cache);
  if (!keys) {
    memcpy(at + (place * D + d) / t->block * t->block_bytes, code, (size_t)(n / t->block * t->block_bytes));
  } else if (t->kind == WR_FLOAT) {
    wr_kv_spread(at + (d * P + place) * t->block_bytes, P, code, n, t->block_bytes);
  } else {
    memcpy(at + 2 * (d + place), code, 2); /* layout keys32: core/dtype/layout.c */
    at += wr_keys_scale_bytes(D) + d * (t->block_bytes - 2);
    code += 2;
    if (cache->dtype == WR_Q8_0) {
      wr_kv_spread(at + place, P, code, n, 1);
      return;
    }
    const int shift = place < 16 ? 0 : 4;
    for (int i = 0; i < n; i++) {
      uint8_t *byte = at + i * 16 + place % 16;
      *byte = (uint8_t)((*byte & (0xf0 >> shift)) | (code[i % 16] >> (i < 16 ? 0 : 4) & 15) << shift);
    }
  }
}

/* Positions of a split: each is attended to from nothing, and they are merged in ascending order, so that few rows with long contexts can
 * be shared out among threads with the same bits. Part of the numeric class. Floats from a query's line of scores to the next one's.
 * Queries of a tile, whose scores then fit the second-level cache. Measured in doc/notes/0008-attention.md. */
enum { WR_ATTN_SPLIT = 128, WR_ATTN_SPLIT_LINE = WR_ATTN_SPLIT + 16, WR_ATTN_TILE = 48 };
static inline int64_t wr_attn_tile_rows(int64_t group) { return WR_MAX(WR_ATTN_TILE / group, (int64_t)1); }

/* Rows whose splits are shared out; scratch is booked for so many. More rows keep the threads busy as they are. */
static inline int64_t wr_attn_split_rows(int64_t rows, int64_t kv_heads, int n_threads) {
  return WR_MIN(rows, (4 * (int64_t)n_threads + kv_heads - 1) / kv_heads);
}

/* Of n queries: acc[n][Dv] = sum of e^(s - max) v, max[n], total[n] = sum of e^(s - max). */
typedef struct wr_attn_sums {
  float *acc, *max, *total;
} wr_attn_sums;
static inline wr_attn_sums wr_attn_sums_at(float *at, int64_t n, int64_t Dv) {
  return (wr_attn_sums){at, at + n * Dv, at + n * (Dv + 1)};
}

/* A thread's scratch: a split's keys, then its values, as floats; a tile's queries; their lines of scores; their sums over one split and
 * over all so far. Before all threads' own: the sums of rows whose splits are shared out. */
typedef struct wr_paged_room {
  float *pages, *q, *p, *slots;
  wr_attn_sums one, all;
  size_t bytes; /* of all threads */
} wr_paged_room;
static inline wr_paged_room wr_paged_room_of(const wr_call *c, int n_threads, int tid) {
  const wr_arg *q = &c->args[PAGED_Q], *kc = &c->args[PAGED_KCACHE];
  const int64_t Dqk = kc->ext[2], Dv = c->args[PAGED_VCACHE].ext[3], group = q->ext[1] / kc->ext[1];
  const int64_t splits = (c->args[PAGED_TABLE].ext[1] * kc->ext[3] + WR_ATTN_SPLIT - 1) / WR_ATTN_SPLIT;
  const int64_t n = wr_attn_tile_rows(group) * group, pages = WR_ATTN_SPLIT * WR_MAX(Dqk, wr_whole16(Dv)),
                queries = wr_whole16(n * Dqk), lines = n * WR_ATTN_SPLIT_LINE, sums = wr_whole16(n * (Dv + 2)),
                own = pages + queries + lines + 2 * sums,
                slots = wr_whole16(wr_attn_split_rows(q->ext[0], kc->ext[1], n_threads) * splits * q->ext[1] * (Dv + 2));
  wr_paged_room r = {.bytes = (size_t)(slots + n_threads * own) * sizeof(float)};
  if (!c->scratch) return r;
  r.slots = c->scratch;
  r.pages = r.slots + slots + tid * own;
  r.q = r.pages + pages;
  r.p = r.q + queries;
  r.one = wr_attn_sums_at(r.p + lines, n, Dv);
  r.all = wr_attn_sums_at(r.p + lines + sums, n, Dv);
  return r;
}
/* Where the sums of a split stand: of n queries, from those of `row` on, of one key head. */
static inline wr_attn_sums wr_attn_slot(const wr_call *c, const wr_paged_room *room, int64_t split, int64_t kv, int64_t row,
                                        int64_t n) {
  const wr_arg *q = &c->args[PAGED_Q];
  const int64_t Nkv = c->args[PAGED_KCACHE].ext[1], Dv = c->args[PAGED_VCACHE].ext[3], rows = wr_live_rows(c, PAGED_Q);
  return wr_attn_sums_at(room->slots + ((split * Nkv + kv) * rows + row) * (q->ext[1] / Nkv) * (Dv + 2), n, Dv);
}

/* ---- paged form on other devices */

/* Splits that have groups and scratch of their own; 0: rows are enough to keep a device busy. */
enum { WR_PAGED_DEV_FEW = 16 };
static inline int64_t wr_paged_dev_splits(const wr_call *c) {
  if (c->args[PAGED_Q].ext[0] > WR_PAGED_DEV_FEW) return 0;
  return (c->args[PAGED_TABLE].ext[1] * WR_KV_PAGE + WR_ATTN_SPLIT - 1) / WR_ATTN_SPLIT;
}

#endif
