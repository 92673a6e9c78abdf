/* dtype.c: dtypes by name, and single elements for code that wants any dtype and no speed (references, tests). */
#include "core/core.h"

int wr_dtype_find(const char *name) {
  for (int i = 0; i < WR_DTYPE_COUNT; i++)
    if (strcmp(wr_dtypes[i].name, name) == 0) return i;
  return -1;
}

/* Of types whose block is one element. */
static uint8_t *element(const wr_arg *a, int64_t row, int64_t col) {
  const int64_t bytes = wr_dtypes[a->dtype].block_bytes;
  if (a->layout == WR_PLAIN) return (uint8_t *)a->data + row * a->stride_bytes + col * bytes;
  return (uint8_t *)a->data + row / WR_PACK_ROWS * a->stride_bytes + (WR_PACK_ROWS * col + row % WR_PACK_ROWS) * bytes;
}

double wr_get(const wr_arg *a, int64_t row, int64_t col) {
  if (wr_dtypes[a->dtype].block == 1) {
    const uint8_t *p = element(a, row, col);
    float f;
    double d;
    int32_t i;
    switch (a->dtype) {
    case WR_F32: memcpy(&f, p, sizeof f); return (double)f;
    case WR_F64: memcpy(&d, p, sizeof d); return d;
    case WR_I32: memcpy(&i, p, sizeof i); return i;
    default: wr_dtypes[a->dtype].to_float(p, &f, 1); return (double)f;
    }
  }
  float block[256];
  int64_t n = wr_dtypes[a->dtype].block, first = col / n * n;
  wr_row_to_float(a, row, first, n, block);
  return (double)block[col - first];
}

void wr_set(const wr_arg *a, int64_t row, int64_t col, double value) {
  uint8_t *p = element(a, row, col);
  float f = (float)value;
  int32_t i;
  switch (a->dtype) {
  case WR_F64: memcpy(p, &value, sizeof value); break;
  case WR_I32: i = (int32_t)value, memcpy(p, &i, sizeof i); break;
  default: wr_dtypes[a->dtype].from_float(&f, p, 1);
  }
}
