/* tile_dev.h: matrices of FP32 in kernels of the dialect, and their products.
 *
 * A group makes a tile of TILE x TILE elements of a product in slices of TILE_SLICE summands that pass through SHARED memory; an item has
 * four rows by four columns of it, sixteen apart. Each element is one chain of fused products, the summands ascending, whatever the
 * tile's place. */
#ifndef WR_OPS_TILE_DEV_H
#define WR_OPS_TILE_DEV_H

#include "device/dialect.h"

enum { TILE = 64, TILE_ITEMS = 256, TILE_SLICE = 16, TILE_LINE = TILE + 1, TILE_ROOM = TILE_SLICE * TILE_LINE, TILE_OWN = 4 };

/* A matrix in layout plain or pack16: element (r, c) at base + r / 2^shift * group + r mod 2^shift + c * column, in floats. */
typedef struct matrix {
  GLOBAL f32 *base;
  i64 group, column;
  i32 shift;
} matrix;

DEV matrix matrix_of(GLOBAL f32 *base, i64 stride_bytes, u32 layout) {
  matrix m;
  m.base = base;
  m.group = stride_bytes / 4;
  m.column = layout == 0 ? 1 : 16;
  m.shift = layout == 0 ? 0 : 4;
  return m;
}
#define MATRIX(i) matrix_of(ARG(f32, i), STRIDE(i), c->arg[i].layout)

DEV GLOBAL f32 *matrix_at(matrix m, i64 row, i64 column) {
  return m.base + (row >> m.shift) * m.group + (row & (((i64)1 << m.shift) - 1)) + column * m.column;
}
/* Rows that its memory has: whole groups. */
DEV i64 matrix_rows(matrix m, i64 rows) { return ((rows + ((i64)1 << m.shift) - 1) >> m.shift) << m.shift; }

/* Summands k0.. of lines first.. of an operand with `lines` lines of `n` summands, as [summand][line]; what lies outside is 0. Line l's
 * summand k is element (l, k), turned: (k, l). Neighbouring items take neighbouring floats. */
DEV void tile_load(LOCAL f32 *room, matrix m, i32 turned, i64 first, i64 lines, i64 k0, i64 n) {
  const i32 t = item(), along = turned == (m.shift != 0);
  for (i32 p = 0; p < TILE * TILE_SLICE / TILE_ITEMS; p++) {
    const i32 k = along ? t % TILE_SLICE : t / TILE + p * (TILE_ITEMS / TILE);
    const i32 l = along ? t / TILE_SLICE + p * (TILE_ITEMS / TILE_SLICE) : t % TILE;
    const i64 line = first + l, at = k0 + k;
    room[k * TILE_LINE + l] = line < lines && at < n ? *(turned ? matrix_at(m, at, line) : matrix_at(m, line, at)) : 0.0f;
  }
}

/* sum[u][v] = sum over k < n of a's line i0 + item / 16 + 16 u and b's line j0 + item mod 16 + 16 v. */
DEV void tile_product(LOCAL f32 *a_room, LOCAL f32 *b_room, matrix a, i32 a_turned, i64 i0, i64 a_lines, matrix b, i32 b_turned,
                      i64 j0, i64 b_lines, i64 n, f32 sum[TILE_OWN][TILE_OWN]) {
  const i32 i = item() / 16, j = item() % 16;
  for (i32 u = 0; u < TILE_OWN; u++)
    for (i32 v = 0; v < TILE_OWN; v++) sum[u][v] = 0.0f;
  for (i64 k0 = 0; k0 < n; k0 += TILE_SLICE) {
    tile_load(a_room, a, a_turned, i0, a_lines, k0, n);
    tile_load(b_room, b, b_turned, j0, b_lines, k0, n);
    BARRIER();
    for (i32 k = 0; k < TILE_SLICE; k++) {
      f32 x[TILE_OWN], y[TILE_OWN];
      for (i32 u = 0; u < TILE_OWN; u++) x[u] = a_room[k * TILE_LINE + i + 16 * u];
      for (i32 v = 0; v < TILE_OWN; v++) y[v] = b_room[k * TILE_LINE + j + 16 * v];
      for (i32 u = 0; u < TILE_OWN; u++)
        for (i32 v = 0; v < TILE_OWN; v++) sum[u][v] = f32_fma(x[u], y[v], sum[u][v]);
    }
    BARRIER();
  }
}

/* The tile into rows < rows, columns < columns of m. */
DEV void tile_put(matrix m, i64 i0, i64 rows, i64 j0, i64 columns, f32 sum[TILE_OWN][TILE_OWN], i32 adds) {
  for (i32 u = 0; u < TILE_OWN; u++)
    for (i32 v = 0; v < TILE_OWN; v++) {
      const i64 r = i0 + item() / 16 + 16 * u, k = j0 + item() % 16 + 16 * v;
      if (r < rows && k < columns) put(matrix_at(m, r, k), sum[u][v], adds);
    }
}

#endif
