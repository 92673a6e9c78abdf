/* matmul_i.h: what the files of this folder share. */
#ifndef WR_OPS_MATMUL_I_H
#define WR_OPS_MATMUL_I_H

#include "core/core.h"

/* arguments of matmul, matmul_dx, matmul_dw, in their order */
enum { WR_MM_X, WR_MM_W, WR_MM_BIAS, WR_MM_RES, WR_MM_NORM, WR_MM_UP, WR_MM_Y };
enum { WR_MM_DX_DY, WR_MM_DX_W, WR_MM_DX_DX };
enum { WR_MM_DW_DY, WR_MM_DW_X, WR_MM_DW_DW, WR_MM_DW_DBIAS };

enum {
  WR_MM_MAX_ROWS = 12, WR_MM_MAX_GROUPS = 4, /* the largest tile of any packed kernel */
  WR_MM_FEW_ROWS = 4,                        /* rows of x up to which every thread quantises them for itself */
  WR_MM_FEW_BYTES = 64 * 1024,               /* and where: on its stack */
  WR_MM_FEW_K = 11904,                       /* the longest row of which four fit there */
  WR_MM_XQ_BLOCK = 44,                       /* bytes of 32 elements of quantised x */
  WR_MM_UNPACK_LEAST = 32,                   /* rows of x from which weights are unpacked for all of them together */
  WR_MM_UNPACK_ROWS = 16,                    /* the highest tile of those that then multiply */
  WR_MM_CODEC_ROWS = 4,                      /* rows of weights that the codec kernel decodes at a time */
};

/* Large FP32 products, matmul_gemm_cpu.c: parts that fit the second-level cache together. */
enum {
  WR_MM_GEMM_LEAST = 16,  /* fewer rows than this are another kernel's */
  WR_MM_GEMM_SUM = 384,   /* summands at a time */
  WR_MM_GEMM_ROWS = 120,  /* forward: a unit is so many rows of x, a multiple of the tile's, ... */
  WR_MM_GEMM_GROUPS = 9,  /* ... against so many groups of weights */
  WR_MM_GEMM_PACKED = 6,  /* gradients: panels that are packed at a time ... */
  WR_MM_GEMM_REUSE = 1024 /* ... for so many rows or columns, a multiple of the tile's */
};
/* Into how many parts of at most `most` is n cut? */
static inline int64_t wr_mm_parts(int64_t n, int64_t most) { return WR_MAX((n + most - 1) / most, (int64_t)1); }
/* Floats of scratch of a thread: sums between parts; widened weights; packed panels. */
enum { WR_MM_GEMM_WIDE = WR_MM_GEMM_GROUPS * WR_MM_GEMM_SUM * 16, WR_MM_GEMM_SUMS = WR_MM_GEMM_ROWS * WR_MM_GEMM_GROUPS * 16, WR_MM_GEMM_PANELS = WR_MM_GEMM_PACKED * WR_MM_GEMM_SUM * 16 };

const char *wr_onednn_missing(void); /* NULL: oneDNN is there */

/* A quantised row of x, K a multiple of 32: a byte an element, and twelve more for each 32. */
static inline size_t wr_mm_xq_bytes(int64_t K) { return (size_t)K / 32 * WR_MM_XQ_BLOCK; }
/* All rows of quantised x, and where a thread's row of normal x may begin after them. */
static inline size_t wr_mm_xq_area(int64_t rows, int64_t K) { return ((size_t)rows * wr_mm_xq_bytes(K) + 63) & ~(size_t)63; }
static inline size_t wr_mm_normal_bytes(int64_t K) { return ((size_t)K * sizeof(float) + 63) & ~(size_t)63; }
/* A thread's unpacked group of weights, twice, since a fused gate has two: sixteen rows of bytes, and a scale and a minimum for each 16 elements. */
static inline size_t wr_mm_unpack_bytes(int64_t K) { return 2 * (size_t)K * (16 + 2 * sizeof(float)); }
/* A thread's decoded rows of weights. */
static inline size_t wr_mm_codec_bytes(int64_t K) {
  return WR_MM_CODEC_ROWS * (((size_t)K * sizeof(float) + 63) & ~(size_t)63);
}

#endif
