/* Gradients of matmul over FP32 in any layout on other devices than the CPU: see matmul.h for the equations.
 *
 * dx and dw are products in tiles (ops/tile_dev.h); dbias: an item a column, rows ascending. */
#include "device/dialect.h"
#include "ops/tile_dev.h"

enum { ITEMS = 64 };

/* dy, w, dx; n: N, K */
KERNEL(matmul_dx_f32, TILE_ITEMS, 3) {
  SHARED f32 a_room[TILE_ROOM], b_room[TILE_ROOM];
  const i64 m0 = (i64)group(1) * TILE, k0 = (i64)group(0) * TILE, rows = LIVE(0);
  f32 sum[TILE_OWN][TILE_OWN];
  if (m0 >= rows) return;
  tile_product(a_room, b_room, MATRIX(0), 0, m0, rows, MATRIX(1), 1, k0, c->n[1], c->n[0], sum);
  tile_put(MATRIX(2), m0, rows, k0, c->n[1], sum, ADDS(2));
}

/* dy, x, dw; n: N, K. The rows that dw's last group lacks become 0. */
KERNEL(matmul_dw_f32, TILE_ITEMS, 3) {
  SHARED f32 a_room[TILE_ROOM], b_room[TILE_ROOM];
  const i64 n0 = (i64)group(1) * TILE, k0 = (i64)group(0) * TILE;
  f32 sum[TILE_OWN][TILE_OWN];
  tile_product(a_room, b_room, MATRIX(0), 1, n0, c->n[0], MATRIX(1), 1, k0, c->n[1], LIVE(1), sum);
  tile_put(MATRIX(2), n0, matrix_rows(MATRIX(2), c->n[0]), k0, c->n[1], sum, ADDS(2));
}

/* dy, x, dw, dbias; n: N */
KERNEL(matmul_dbias_f32, ITEMS, 4) {
  const i64 n = (i64)group(0) * ITEMS + item(), rows = LIVE(1);
  f32 sum = 0;
  if (n >= c->n[0]) return;
  for (i64 m = 0; m < rows; m++) sum += ROW(const f32, 0, m)[n];
  put(ROW(f32, 3, n), sum, ADDS(3));
}

#if WR_DEV_HOST
#include "ops/matmul/matmul_i.h"

wr_launch_fn matmul_dx_f32_dev, matmul_dw_f32_dev;

void matmul_dx_f32_dev(const wr_call *c, wr_launch *out) {
  const int64_t K = out->n[1] = wr_inner(&c->args[WR_MM_DX_W]);
  out->n[0] = c->args[WR_MM_DX_W].ext[0];
  wr_launch_add(out, &matmul_dx_f32, wr_mm_parts(K, TILE), wr_mm_parts(c->args[WR_MM_DX_DY].ext[0], TILE), 1);
}

void matmul_dw_f32_dev(const wr_call *c, wr_launch *out) {
  const int64_t N = out->n[0] = wr_inner(&c->args[WR_MM_DW_DY]), K = out->n[1] = wr_inner(&c->args[WR_MM_DW_X]);
  wr_launch_add(out, &matmul_dw_f32, wr_mm_parts(K, TILE), wr_mm_parts(N, TILE), 1);
  if (c->args[WR_MM_DW_DBIAS].data) wr_launch_add(out, &matmul_dbias_f32, wr_mm_parts(N, ITEMS), 1, 1);
}
#endif
