/* attention: softmax attention with grouped query heads, in the two forms that training and generation need.
 *
 * Query head h reads key/value head h / (Nq / Nkv). `allowed(t)` is 0..t (causal) or every position; with a window W, of
 * those the last W; with `first` none before first[row].
 *   s_j = scale q . k_j;  with a softcap C: s_j = C tanh(scale q . k_j / C)           j in allowed(t)
 *   y   = sum_j softmax(s)_j v_j;   lse = ln sum_j e^{s_j}
 *
 * attention        q[B*T, Nq, Dqk], k[B*T, Nkv, Dqk], v[B*T, Nkv, Dv] -> y[B*T, Nq, Dv]; lse[B*T, Nq] (saved for the gradient)
 *   first[B*T] (optional, not with bidirectional): for each row the first position, 0..t of its own sequence, that it attends to, so
 *   that several documents stand in one sequence without seeing each other.
 *   k and v absent: q is [B*T, Nq + 2 Nkv, D], the heads of queries, keys and values of a row one after another, as one product makes
 *   them; Nkv is params.kv_heads.
 * attention_bwd    dy, q, k, v, first, y, lse -> dq, dk, dv like q, k, v, each only if wanted, each may be added to
 *   p_tj  = e^{s_tj - lse_t};   ds_tj = p_tj (dy_t . v_j - dy_t . y_t) (1 - (s_tj / C)^2 with a softcap)
 *   dq_t  = scale sum_j ds_tj k_j;   dk_j = scale sum_{h, t} ds_tj q_t;   dv_j = sum_{h, t} p_tj dy_t
 *
 * kv_store         k[R, Nkv, Dqk], v[R, Nkv, Dv], slot[R] -> into kcache[pages, Nkv, Dqk, P], vcache[pages, Nkv, P, Dv]
 *   slot = page P + place in it; -1: the row is not stored. The caches are updated. A page is P positions of one sequence; keys
 *   stand with the positions side by side, so that a vector of scores needs no horizontal sum. The caches are floats, or Q8_0 and
 *   Q4_0, in blocks of 32 elements of one position and head: keys in layout keys32, with P 32 (core/dtype/layout.c).
 * attention_paged  q[R, Nq, Dqk], kcache, vcache, seq[R], pos[R], page_table[S, n] -> y[R, Nq, Dv]
 *   Row r attends to the positions 0..pos_r of sequence seq_r: position j is in page page_table[seq_r, j / P] at place j mod
 *   P. pos -1: y is 0. What a page holds past pos_r is never used. A row's result depends on its own positions only, not on
 *   the batch, the cut or the page numbers.
 *
 * References: Vaswani et al. 2017; Ainslie et al. 2023 (grouped queries); Dao et al. 2022 (softmax in blocks); Kwon et al.
 * 2023 (pages).
 */
#ifndef WR_OPS_ATTENTION_H
#define WR_OPS_ATTENTION_H

#include "core/core.h"

enum { WR_KV_PAGE = 32 }; /* P that the fast kernels take */
static inline wr_layout wr_keys_layout(wr_dtype t) { return wr_dtypes[t].kind == WR_QUANT ? WR_KEYS32 : WR_PLAIN; }

typedef struct wr_attention_params {
  int64_t B, T; /* attention and attention_bwd: row b*T + t is position t of sequence b */
  float scale;  /* 0: 1 / sqrt(Dqk) */
  bool bidirectional;
  int window;    /* 0: none */
  float softcap; /* 0: none */
  int64_t kv_heads; /* where k and v are part of q; else not looked at */
} wr_attention_params;

int wr_attention(wr_program *p, int q, int k, int v, int first, const wr_attention_params *params); /* k, v, first: WR_NONE without */
void wr_kv_store(wr_program *p, int k, int v, int kcache, int vcache, int slot);
int wr_attention_paged(wr_program *p, int q, int kcache, int vcache, int seq, int pos, int page_table,
                       const wr_attention_params *params);

#endif
