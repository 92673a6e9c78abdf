/* Cross-entropy on other devices than the CPU: see loss.h for the equations.
 *
 * A group a row of logits: item t has the elements t, t + 256, ..., the items' maxima and sums meet in a tree; then rows likewise for their
 * mean. With the product before it logits are made whole, in scratch, as a product in tiles (ops/tile_dev.h), and turned into their
 * gradient in place, which two more products take. Loops have one length for all items of a group: PoCL 3.1 compiles others wrongly here. */
#include "device/dialect.h"
#include "ops/tile_dev.h"

enum { ITEMS = 256, BWD_ITEMS = 128 };
#define F32_MOST 3.402823466e38f

/* The target of a row, -1 when it does not count. */
DEV i64 target_of(GLOBAL const u8 *targets, i64 stride, i64 row, i64 V) {
  const i32 t = *(GLOBAL const i32 *)(targets + row * stride);
  return t >= 0 && t < V ? t : -1;
}
#define TARGET(i, r, V) target_of(ARG(const u8, i), STRIDE(i), r, V)

/* How many of the first rows count; n items, room[n]. */
DEV f32 count_targets(GLOBAL const u8 *targets, i64 stride, i64 rows, i64 V, LOCAL f32 *room, i32 n) {
  f32 count = 0;
  for (i64 r = 0; r < rows; r += n)
    if (r + item() < rows && target_of(targets, stride, r + item(), V) >= 0) count += 1.0f;
  return group_sum(count, room, n);
}

/* The gradient of logit v of a row, p its probability. */
DEV f32 slope_of(i64 target, i64 v, f32 p, f32 scale) { return target < 0 ? 0.0f : scale * (p - (v == target ? 1.0f : 0.0f)); }

/* The maximum of a row, and the logarithm of the sum of its exponentials beside it; room[2 ITEMS]. An item takes its elements once, and
 * turns its sum whenever it meets a larger one; the first item puts the items' together, in their order. */
DEV f32 log_sum(GLOBAL const f32 *x, i64 V, LOCAL f32 *room, f32 *max) {
  f32 most = -F32_MOST, sum = 0;
  EACH(v, V, ITEMS) {
    const f32 more = f32_max(x[v], most);
    sum = sum * f32_exp(most - more) + f32_exp(x[v] - more);
    most = more;
  }
  room[item()] = most;
  room[ITEMS + item()] = sum;
  BARRIER();
  if (item() == 0) {
    for (i32 i = 1; i < ITEMS; i++) {
      const f32 more = f32_max(room[i], most);
      sum = sum * f32_exp(most - more) + room[ITEMS + i] * f32_exp(room[i] - more);
      most = more;
    }
    room[0] = most;
    room[1] = f32_log(sum);
  }
  BARRIER();
  *max = room[0];
  const f32 ln = room[1];
  BARRIER(); /* the room may be used again */
  return ln;
}

/* The mean of the row losses over the rows that count. */
DEV void put_mean(GLOBAL f32 *to, GLOBAL const f32 *row_loss, GLOBAL const u8 *targets, i64 stride, i64 rows, i64 V,
                  LOCAL f32 *room) {
  const f32 count = count_targets(targets, stride, rows, V, room, ITEMS);
  f32 sum = 0;
  for (i64 r = 0; r < rows; r += ITEMS)
    if (r + item() < rows) sum += row_loss[r + item()];
  sum = group_sum(sum, room, ITEMS);
  if (item() == 0) *to = count > 0 ? sum / count : 0.0f;
}

/* logits, targets, loss, lse; n: V. Row losses into the scratch. */
KERNEL(xent_rows_f32, ITEMS, 4) {
  SHARED f32 room[2 * ITEMS];
  const i64 r = group(0), V = c->n[0];
  if (r >= LIVE(0)) return;
  GLOBAL const f32 *x = ROW(const f32, 0, r);
  f32 max;
  const f32 ln = log_sum(x, V, room, &max);
  const i64 target = TARGET(1, r, V);
  if (item() == 0) {
    SCRATCH(f32)[r] = target < 0 ? 0.0f : max - x[target] + ln;
    if (HAS(3)) *ROW(f32, 3, r) = max + ln;
  }
}

KERNEL(xent_mean_f32, ITEMS, 3) {
  SHARED f32 room[ITEMS];
  put_mean(ARG(f32, 2), SCRATCH(const f32), ARG(const u8, 1), STRIDE(1), LIVE(0), c->n[0], room);
}

/* dloss, logits, targets, lse, dlogits; n: V */
KERNEL(xent_bwd_f32, BWD_ITEMS, 5) {
  SHARED f32 room[BWD_ITEMS];
  const i64 r = group(0), V = c->n[0], rows = LIVE(1);
  if (r >= rows) return;
  const i64 target = TARGET(2, r, V);
  const f32 count = count_targets(ARG(const u8, 2), STRIDE(2), rows, V, room, BWD_ITEMS);
  const f32 scale = *ARG(const f32, 0) / count, lse = *ROW(const f32, 3, r);
  for (i64 v0 = 0; v0 < V; v0 += BWD_ITEMS) {
    const i64 v = v0 + item();
    if (v < V) put(&ROW(f32, 4, r)[v], slope_of(target, v, f32_exp(ROW(const f32, 1, r)[v] - lse), scale), ADDS(4));
  }
}

/* ---- with the product before. Scratch: row losses, then the logits. */

#define LOGITS(R) (SCRATCH(f32) + (R))
DEV matrix logits_of(GLOBAL f32 *at, i64 V) { return matrix_of(at, V * 4, 0); }

/* x, w; n: R, D, V */
DEV void head_logits(LOCAL f32 *a_room, LOCAL f32 *b_room, matrix x, i64 rows, matrix w, GLOBAL f32 *logits, i64 D, i64 V) {
  const i64 r0 = (i64)group(1) * TILE, v0 = (i64)group(0) * TILE;
  f32 sum[TILE_OWN][TILE_OWN];
  if (r0 >= rows) return;
  tile_product(a_room, b_room, x, 0, r0, rows, w, 0, v0, V, D, sum);
  tile_put(logits_of(logits, V), r0, rows, v0, V, sum, 0);
}

/* x, w, targets, loss; n: R, D, V */
KERNEL(head_logits_f32, TILE_ITEMS, 2) {
  SHARED f32 a_room[TILE_ROOM], b_room[TILE_ROOM];
  head_logits(a_room, b_room, MATRIX(0), LIVE(0), MATRIX(1), LOGITS(c->n[0]), c->n[1], c->n[2]);
}

KERNEL(head_rows_f32, ITEMS, 3) {
  SHARED f32 room[2 * ITEMS];
  const i64 r = group(0), V = c->n[2];
  if (r >= LIVE(0)) return;
  GLOBAL const f32 *x = LOGITS(c->n[0]) + r * V;
  f32 max;
  const f32 ln = log_sum(x, V, room, &max);
  const i64 target = TARGET(2, r, V);
  if (item() == 0) SCRATCH(f32)[r] = target < 0 ? 0.0f : max - x[target] + ln;
}

KERNEL(head_mean_f32, ITEMS, 4) {
  SHARED f32 room[ITEMS];
  put_mean(ARG(f32, 3), SCRATCH(const f32), ARG(const u8, 2), STRIDE(2), LIVE(0), c->n[2], room);
}

/* dloss, x, w, targets, loss, dx, dw; n: R, D, V */
KERNEL(head_bwd_logits_f32, TILE_ITEMS, 3) {
  SHARED f32 a_room[TILE_ROOM], b_room[TILE_ROOM];
  head_logits(a_room, b_room, MATRIX(1), LIVE(1), MATRIX(2), LOGITS(c->n[0]), c->n[1], c->n[2]);
}

/* The loss of a row; its logits become their gradient. */
KERNEL(head_bwd_rows_f32, ITEMS, 4) {
  SHARED f32 room[2 * ITEMS];
  const i64 r = group(0), V = c->n[2], rows = LIVE(1);
  if (r >= rows) return;
  GLOBAL f32 *x = LOGITS(c->n[0]) + r * V;
  f32 max;
  const f32 ln = log_sum(x, V, room, &max);
  const i64 target = TARGET(3, r, V);
  const f32 count = count_targets(ARG(const u8, 3), STRIDE(3), rows, V, room, ITEMS);
  const f32 scale = *ARG(const f32, 0) / count;
  if (target < 0 && item() == 0) SCRATCH(f32)[r] = 0.0f;
  for (i64 v0 = 0; v0 < V; v0 += ITEMS) {
    const i64 v = v0 + item();
    if (v == target) SCRATCH(f32)[r] = max - x[v] + ln;
    if (v < V) x[v] = slope_of(target, v, f32_exp(x[v] - max - ln), scale);
  }
}

KERNEL(head_bwd_mean_f32, ITEMS, 5) {
  SHARED f32 room[ITEMS];
  put_mean(ARG(f32, 4), SCRATCH(const f32), ARG(const u8, 3), STRIDE(3), LIVE(1), c->n[2], room);
}

/* dx[r, d] = sum_v dlogits[r, v] w[v, d] */
KERNEL(head_dx_f32, TILE_ITEMS, 6) {
  SHARED f32 a_room[TILE_ROOM], b_room[TILE_ROOM];
  const i64 r0 = (i64)group(1) * TILE, d0 = (i64)group(0) * TILE, rows = LIVE(1), D = c->n[1], V = c->n[2];
  f32 sum[TILE_OWN][TILE_OWN];
  if (r0 >= rows) return;
  tile_product(a_room, b_room, logits_of(LOGITS(c->n[0]), V), 0, r0, rows, MATRIX(2), 1, d0, D, V, sum);
  tile_put(MATRIX(5), r0, rows, d0, D, sum, ADDS(5));
}

/* dw[v, d] = sum_r dlogits[r, v] x[r, d]. The rows that dw's last group lacks become 0. */
KERNEL(head_dw_f32, TILE_ITEMS, 7) {
  SHARED f32 a_room[TILE_ROOM], b_room[TILE_ROOM];
  const i64 v0 = (i64)group(1) * TILE, d0 = (i64)group(0) * TILE, D = c->n[1], V = c->n[2];
  f32 sum[TILE_OWN][TILE_OWN];
  tile_product(a_room, b_room, logits_of(LOGITS(c->n[0]), V), 1, v0, V, MATRIX(1), 1, d0, D, LIVE(1), sum);
  tile_put(MATRIX(6), v0, matrix_rows(MATRIX(6), V), d0, D, sum, ADDS(6));
}

#if WR_DEV_HOST
#include "ops/loss/loss.h"
#include "ops/loss/loss_i.h"

wr_launch_fn xent_f32_dev, xent_bwd_f32_dev, head_xent_f32_dev, head_xent_bwd_f32_dev;

static int64_t parts(int64_t n, int64_t most) { return (n + most - 1) / most; }

void xent_f32_dev(const wr_call *c, wr_launch *out) {
  out->n[0] = c->args[XENT_LOGITS].ext[1];
  wr_launch_add(out, &xent_rows_f32, c->args[XENT_LOGITS].ext[0], 1, 1);
  wr_launch_add(out, &xent_mean_f32, 1, 1, 1);
}

void xent_bwd_f32_dev(const wr_call *c, wr_launch *out) {
  out->n[0] = c->args[XENT_BWD_LOGITS].ext[1];
  wr_launch_add(out, &xent_bwd_f32, c->args[XENT_BWD_LOGITS].ext[0], 1, 1);
}

void head_xent_f32_dev(const wr_call *c, wr_launch *out) {
  const int64_t R = out->n[0] = c->args[HEAD_X].ext[0], V = out->n[2] = c->args[HEAD_W].ext[0];
  out->n[1] = c->args[HEAD_X].ext[1];
  wr_launch_add(out, &head_logits_f32, parts(V, TILE), parts(R, TILE), 1);
  wr_launch_add(out, &head_rows_f32, R, 1, 1);
  wr_launch_add(out, &head_mean_f32, 1, 1, 1);
}

void head_xent_bwd_f32_dev(const wr_call *c, wr_launch *out) {
  const int64_t R = out->n[0] = c->args[HEAD_BWD_X].ext[0], D = out->n[1] = c->args[HEAD_BWD_X].ext[1];
  const int64_t V = out->n[2] = c->args[HEAD_BWD_W].ext[0];
  wr_launch_add(out, &head_bwd_logits_f32, parts(V, TILE), parts(R, TILE), 1);
  wr_launch_add(out, &head_bwd_rows_f32, R, 1, 1);
  if (c->args[HEAD_BWD_LOSS].data) wr_launch_add(out, &head_bwd_mean_f32, 1, 1, 1);
  if (c->args[HEAD_BWD_DX].data) wr_launch_add(out, &head_dx_f32, parts(D, TILE), parts(R, TILE), 1);
  if (c->args[HEAD_BWD_DW].data) wr_launch_add(out, &head_dw_f32, parts(D, TILE), parts(V, TILE), 1);
}
#endif
