/* The paged cache on other devices than the CPU: see attention.h for the equations and the cache. The CPU's bits.
 *
 * A row's head goes over its context in splits of 128 positions at absolute places, an item a position: its score, ascending over d; softmax over the
 * split; then an item a column of the values, positions ascending. Splits are merged in ascending order.
 *   few rows    a group a split, its sums into scratch; a second kernel merges them
 *   many rows   a group goes over all splits of a row and head, and merges each into y
 * No place past a row's position is used. */
#include "device/dialect.h"
#include "ops/act_dev.h"
#include "ops/types_dev.h"

enum { ITEMS = 128, SPLIT = ITEMS, PAGE = 32, LANES = 16, STORE_ITEMS = 32 };

DEV i32 scaled(i32 t) { return t == DT_Q8_0 || t == DT_Q4_0; }
DEV i32 line_bytes(i32 t) { return t == DT_Q8_0 ? 32 : t == DT_Q4_0 ? 16 : 32 * float_bytes(t); } /* of 32 elements, without scales */
DEV i64 head_bytes(i32 t, i64 D) { return D * (line_bytes(t) + (scaled(t) ? 2 : 0)); }         /* of a page */

/* Element i of a line; quantised ones without their scale. */
DEV f32 in_line(i32 t, GLOBAL const u8 *line, i64 i) {
  if (t == DT_Q8_0) return (f32)(i8)line[i];
  if (t == DT_Q4_0) return (f32)((i32)(line[i % 16] >> (i < 16 ? 0 : 4) & 15) - 8);
  return float_at(t, line, i);
}
DEV f32 scale_at(GLOBAL const u8 *p) { return f16_f32(*(GLOBAL const u16 *)p); }

/* ---- store: k, v, kcache, vcache, slot. A group has 32 elements of a row and head. Two places of a page share the bytes of Q4_0's keys, so there are two
 * kernels, each for places that do not. */

/* Item's quant of a block x[32], and the block's scale. */
DEV u32 quantised(i32 t, GLOBAL const f32 *x, u16 *scale) {
  f32 extreme = 0; /* the element of largest magnitude, the first of equals */
  for (i32 i = 0; i < 32; i++)
    if (f32_abs(x[i]) > f32_abs(extreme)) extreme = x[i];
  const f32 d = t == DT_Q8_0 ? f32_abs(extreme) / 127.0f : extreme / -8.0f, by = d != 0.0f ? 1.0f / d : 0.0f, v = x[item()] * by;
  *scale = f32_f16(d);
  if (t == DT_Q8_0) return (u32)(i32)(v < 0.0f ? v - 0.49999997f : v + 0.49999997f) & 255u;
  const f32 level = f32_min(v + 8.5f, 15.0f);
  return level > 0.0f ? (u32)level : 0u;
}

#define STORE(name, t, first, past) \
  KERNEL(name, STORE_ITEMS, 5) { \
    SHARED u32 room[STORE_ITEMS]; \
    const i64 r = group(0), h = group(1), key_blocks = (EXT(0, 2) + 31) / 32; \
    const i32 keys = group(2) < key_blocks; \
    const i64 D = keys ? EXT(0, 2) : EXT(1, 2), places = keys ? EXT(2, 3) : EXT(3, 2), b = keys ? group(2) : group(2) - key_blocks; \
    if (r >= LIVE(0)) return; \
    const i64 slot = *ROW(const i32, 4, r), place = slot % places, d = 32 * b + item(); \
    if (slot < 0 || place < (first) || place >= (past)) return; \
    GLOBAL const f32 *x = (keys ? ROW(const f32, 0, r) : ROW(const f32, 1, r)) + h * D + 32 * b; \
    GLOBAL u8 *page = keys ? ROW(u8, 2, slot / places) : ROW(u8, 3, slot / places); \
    if (!scaled(t)) { \
      if (d < D) float_put(t, page + h * D * places * float_bytes(t), keys ? d * places + place : place * D + d, x[item()]); \
      return; \
    } \
    u16 scale; \
    const u32 q = quantised(t, x, &scale); \
    page += h * head_bytes(t, D); \
    if (keys) { \
      if (item() == 0) ((GLOBAL u16 *)page)[32 * b + place] = scale; \
      GLOBAL u8 *line = page + 2 * D + d * line_bytes(t); \
      if (t == DT_Q8_0) \
        line[place] = (u8)q; \
      else \
        line[place % 16] = (u8)(place < 16 ? (line[place % 16] & 0xf0u) | q : (line[place % 16] & 15u) | q << 4); \
      return; \
    } \
    room[item()] = q; \
    BARRIER(); \
    GLOBAL u8 *block = page + (place * D / 32 + b) * (line_bytes(t) + 2); \
    if (item() == 0) *(GLOBAL u16 *)block = scale; \
    if (t == DT_Q8_0) \
      block[2 + item()] = (u8)q; \
    else if (item() < 16) \
      block[2 + item()] = (u8)(q | room[item() + 16] << 4); \
  }
STORE(kv_store_F32, DT_F32, 0, places)
STORE(kv_store_F16, DT_F16, 0, places)
STORE(kv_store_BF16, DT_BF16, 0, places)
STORE(kv_store_Q8_0, DT_Q8_0, 0, places)
STORE(kv_store_Q4_0, DT_Q4_0, 0, 16)
STORE(kv_store_upper_Q4_0, DT_Q4_0, 16, 32)

/* ---- attention */

/* What a row's head attends to: its query; pages of keys and values, from its key head on; positions [first, past). */
typedef struct context {
  GLOBAL const f32 *q;
  GLOBAL const u8 *keys, *values;
  GLOBAL const i32 *pages;
  i64 key_stride, value_stride, Dqk, Dv, first, past;
} context;

/* Maximum of the scores s of some positions; total of e^(s - maximum). */
typedef struct soft_sums {
  f32 max, total;
} soft_sums;

DEV f32 score(i32 t, context x, i64 j) {
  GLOBAL const u8 *page = x.keys + x.pages[j / PAGE] * x.key_stride, *lines = page + (scaled(t) ? 2 * x.Dqk : 0);
  const i64 place = j % PAGE;
  f32 sum = 0;
  for (i64 b = 0; b < x.Dqk; b += 32) {
    const f32 scale = scaled(t) ? scale_at(page + 2 * (b + place)) : 1.0f;
    for (i64 d = b; d < x.Dqk && d < b + 32; d++) {
      const f32 key = in_line(t, lines + d * line_bytes(t), place);
      sum = f32_fma(x.q[d], scaled(t) ? key * scale : key, sum);
    }
  }
  return sum;
}

DEV f32 value(i32 t, context x, i64 j, i64 d) {
  GLOBAL const u8 *page = x.values + x.pages[j / PAGE] * x.value_stride;
  const i64 at = j % PAGE * x.Dv + d;
  if (!scaled(t)) return float_at(t, page, at);
  GLOBAL const u8 *block = page + at / 32 * (line_bytes(t) + 2);
  return in_line(t, block + 2, at % 32) * scale_at(block);
}

/* Weights e^(s - max) of the split that begins at `start` into p[SPLIT]. They are added in sixteen lanes, and those as a tree. */
DEV soft_sums weights(i32 t, context x, i64 start, f32 scale, f32 cap, f32 uncap, LOCAL f32 *p, LOCAL f32 *room) {
  const i32 i = item();
  f32 s = bits_f32(0xff800000u), lanes[LANES];
  soft_sums out;
  if (start + i >= x.first && start + i < x.past) {
    s = score(t, x, start + i) * scale;
    if (cap != 0.0f) s = cap * act_tanh(s * uncap);
  }
  out.max = group_max(s, room, ITEMS);
  p[i] = act_exp(s - out.max);
  BARRIER();
  if (i < LANES) {
    room[i] = 0;
    for (i32 j = i; j < SPLIT; j += LANES) room[i] += p[j];
  }
  BARRIER();
  for (i32 j = 0; j < LANES; j++) lanes[j] = room[j];
  BARRIER(); /* the room may be used again */
  for (i32 step = LANES / 2; step > 0; step /= 2)
    for (i32 j = 0; j < step; j++) lanes[j] += lanes[j + step];
  out.total = lanes[0];
  return out;
}

/* Column d of the values of a split, weighted. All items of a group call it together: PoCL 3.1 adds barriers to loops of one length, and takes those
 * in a loop of several lengths for such. */
DEV f32 column(i32 t, context x, i64 start, LOCAL const f32 *p, i64 d) {
  f32 sum = 0;
  for (i64 j = x.first > start ? x.first : start; j < x.past && j < start + SPLIT; j++) sum = f32_fma(value(t, x, j, d), p[j - start], sum);
  return sum;
}

/* Those of `one` come after those of `all`: what each one's column is to be multiplied with. */
DEV void merge(soft_sums *all, soft_sums one, f32 *keep, f32 *take) {
  const f32 max = f32_max(all->max, one.max);
  *keep = act_exp(all->max - max);
  *take = act_exp(one.max - max);
  all->total = all->total * *keep + one.total * *take;
  all->max = max;
}
DEV soft_sums nothing(void) {
  soft_sums s;
  s.max = bits_f32(0xff800000u);
  s.total = 0;
  return s;
}

/* q, kcache, vcache, seq, pos, page_table, y; n: window, splits; f: scale, softcap, 1 / softcap. The context of row r and head h. */
#define CONTEXT(t) \
  const i64 r = group(0), h = group(1); \
  if (r >= LIVE(0)) return; \
  const i64 kv = h / (EXT(0, 1) / EXT(1, 1)), window = c->n[0]; \
  context x; \
  x.Dqk = EXT(1, 2); \
  x.Dv = EXT(2, 3); \
  x.past = (i64)*ROW(const i32, 4, r) + 1; \
  x.first = window != 0 && x.past > window ? x.past - window : 0; \
  x.q = ROW(const f32, 0, r) + h * x.Dqk; \
  x.keys = ARG(const u8, 1) + kv * head_bytes(t, x.Dqk); \
  x.values = ARG(const u8, 2) + kv * head_bytes(t, x.Dv); \
  x.key_stride = STRIDE(1); \
  x.value_stride = STRIDE(2); \
  x.pages = ROW(const i32, 5, *ROW(const i32, 3, r))
/* A split's slot in scratch: its sums and columns. */
#define SLOT(split) (SCRATCH(f32) + ((r * EXT(0, 1) + h) * c->n[1] + (split)) * (EXT(2, 3) + 2))

#define PAGED(name) \
  KERNEL(paged_rows_##name, ITEMS, 7) { \
    SHARED f32 p[SPLIT], room[ITEMS]; \
    CONTEXT(DT_##name); \
    GLOBAL f32 *y = ROW(f32, 6, r) + h * x.Dv; \
    soft_sums all = nothing(); \
    for (i64 d = item(); d < x.Dv; d += ITEMS) y[d] = 0; \
    for (i64 start = x.first / SPLIT * SPLIT; start < x.past; start += SPLIT) { \
      f32 keep, take; \
      merge(&all, weights(DT_##name, x, start, c->f[0], c->f[1], c->f[2], p, room), &keep, &take); \
      for (i64 at = 0; at < x.Dv; at += ITEMS) { \
        const i64 d = at + item(); \
        const f32 sum = column(DT_##name, x, start, p, d < x.Dv ? d : 0); \
        if (d < x.Dv) y[d] = f32_fma(sum, take, y[d] * keep); \
      } \
    } \
    for (i64 d = item(); d < x.Dv && all.total != 0.0f; d += ITEMS) y[d] /= all.total; \
  } \
  KERNEL(paged_splits_##name, ITEMS, 7) { \
    SHARED f32 p[SPLIT], room[ITEMS]; \
    CONTEXT(DT_##name); \
    const i64 start = (i64)group(2) * SPLIT; \
    if (start + SPLIT <= x.first || start >= x.past) return; \
    const soft_sums one = weights(DT_##name, x, start, c->f[0], c->f[1], c->f[2], p, room); \
    GLOBAL f32 *slot = SLOT(group(2)); \
    if (item() == 0) { \
      slot[0] = one.max; \
      slot[1] = one.total; \
    } \
    for (i64 at = 0; at < x.Dv; at += ITEMS) { \
      const i64 d = at + item(); \
      const f32 sum = column(DT_##name, x, start, p, d < x.Dv ? d : 0); \
      if (d < x.Dv) slot[2 + d] = sum; \
    } \
  }
PAGED(F32)
PAGED(F16)
PAGED(BF16)
PAGED(Q8_0)
PAGED(Q4_0)

KERNEL(paged_merge, ITEMS, 7) {
  CONTEXT(DT_F32);
  GLOBAL f32 *y = ROW(f32, 6, r) + h * x.Dv;
  soft_sums all = nothing();
  for (i64 d = item(); d < x.Dv; d += ITEMS) y[d] = 0;
  for (i64 split = x.first / SPLIT; split * SPLIT < x.past; split++) {
    GLOBAL const f32 *slot = SLOT(split);
    soft_sums one;
    f32 keep, take;
    one.max = slot[0];
    one.total = slot[1];
    merge(&all, one, &keep, &take);
    for (i64 d = item(); d < x.Dv; d += ITEMS) y[d] = f32_fma(slot[2 + d], take, y[d] * keep);
  }
  for (i64 d = item(); d < x.Dv && all.total != 0.0f; d += ITEMS) y[d] /= all.total;
}

#if WR_DEV_HOST
#include "ops/attention/attention.h"
#include "ops/attention/attention_i.h"

_Static_assert((int)SPLIT == (int)WR_ATTN_SPLIT && (int)PAGE == (int)WR_KV_PAGE, "the class's splits");

wr_launch_fn kv_store_dev, attention_paged_dev;

#define EACH_TYPE(prefix) \
  { [WR_F32] = &prefix##_F32, [WR_F16] = &prefix##_F16, [WR_BF16] = &prefix##_BF16, [WR_Q8_0] = &prefix##_Q8_0, [WR_Q4_0] = &prefix##_Q4_0 }

void kv_store_dev(const wr_call *c, wr_launch *out) {
  static const wr_dev_kernel *const kernels[WR_DTYPE_COUNT] = EACH_TYPE(kv_store);
  const wr_arg *k = &c->args[STORE_K], *v = &c->args[STORE_V];
  const int t = c->args[STORE_KCACHE].dtype;
  const int64_t blocks = (k->ext[2] + 31) / 32 + (v->ext[2] + 31) / 32;
  wr_launch_add(out, kernels[t], k->ext[0], k->ext[1], blocks);
  if (t == WR_Q4_0) wr_launch_add(out, &kv_store_upper_Q4_0, k->ext[0], k->ext[1], blocks);
}

void attention_paged_dev(const wr_call *c, wr_launch *out) {
  static const wr_dev_kernel *const rows[WR_DTYPE_COUNT] = EACH_TYPE(paged_rows), *const splits[WR_DTYPE_COUNT] = EACH_TYPE(paged_splits);
  const wr_attention_params *p = c->params;
  const wr_arg *q = &c->args[PAGED_Q];
  const int t = c->args[PAGED_KCACHE].dtype;
  out->n[0] = p->window;
  out->n[1] = wr_paged_dev_splits(c);
  out->f[0] = p->scale;
  out->f[1] = p->softcap;
  out->f[2] = p->softcap != 0 ? 1 / p->softcap : 0;
  if (!out->n[1]) {
    wr_launch_add(out, rows[t], q->ext[0], q->ext[1], 1);
    return;
  }
  wr_launch_add(out, splits[t], q->ext[0], q->ext[1], out->n[1]);
  wr_launch_add(out, &paged_merge, q->ext[0], q->ext[1], 1);
}
#endif
