/* The places of the arguments of this family's ops in wr_call.args. */
#ifndef WR_OPS_ATTENTION_I_H
#define WR_OPS_ATTENTION_I_H

#include "ops/attention/attention.h"

enum { ATTN_Q, ATTN_K, ATTN_V, ATTN_Y, ATTN_LSE };
enum { ATTN_BWD_DY, ATTN_BWD_Q, ATTN_BWD_K, ATTN_BWD_V, ATTN_BWD_Y, ATTN_BWD_LSE, ATTN_BWD_DQ, ATTN_BWD_DK, ATTN_BWD_DV };
enum { STORE_K, STORE_V, STORE_KCACHE, STORE_VCACHE, STORE_SLOT };
enum { PAGED_Q, PAGED_KCACHE, PAGED_VCACHE, PAGED_SEQ, PAGED_POS, PAGED_TABLE, PAGED_Y };

size_t attention_ref_scratch(const wr_call *c, int n_threads);
size_t attention_bwd_ref_scratch(const wr_call *c, int n_threads);
size_t attention_paged_ref_scratch(const wr_call *c, int n_threads);

/* Training form on the CPU: rows that share a turned tile of keys; scratch bytes of one thread of the gradient (turned tiles
 * of k, v, dk and dv, and a block's dq). */
enum { WR_ATTN_BLOCK = 32 };
static inline size_t wr_attn_bwd_scratch(int64_t Dqk, int64_t Dv, int64_t group) {
  return sizeof(float) * (size_t)(2 * (Dqk + Dv) * WR_KV_PAGE + WR_ATTN_BLOCK * group * Dqk);
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
