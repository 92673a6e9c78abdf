/* matmul: products of rows with a matrix of weights, whose rows are the outputs, as GGUF and PyTorch store it.
 *
 *   matmul      y[m, n]  = sum_k x[m, k] w[n, k]  (+ bias[n]) (+ res[m, n])
 *               fused, only by the fuse pass: norm[K], x is RMSNorm(x) with this weight and eps instead; up[N, K] like w, and
 *               y = act(x w^T) * (x up^T)
 *   matmul_dx   dx[m, k] = sum_n dy[m, n] w[n, k]
 *   matmul_dw   dw[n, k] = sum_m dy[m, n] x[m, k]      dbias[n] = sum_m dy[m, n]
 *
 * M = rows of x, of which only the live ones count (in sums over m too), K = inner extent of x, N = rows of w. x, y and res are
 * plain floats of any rank >= 2; w is of any dtype and layout. y has x's dtype. y may take the memory of res.
 * dw has the layout that its parameter asks for: that of w, so that optimisers see equal bytes at equal places.
 */
#ifndef WR_OPS_MATMUL_H
#define WR_OPS_MATMUL_H

#include "core/core.h"
#include "ops/elementwise/elementwise.h" /* wr_act */

/* The output's rows are split into so many heads, [M, heads, N / heads]; 0: [M, N]. The same bytes, seen as the next op wants them. */
typedef struct wr_matmul_params { int64_t heads; float eps; wr_act act; } wr_matmul_params; /* eps: of norm; act: with up */

typedef struct wr_matmul_dw_params { wr_layout layout; } wr_matmul_dw_params; /* of dw */

int wr_matmul(wr_program *p, int x, int w, int bias, int res); /* [M, N]. bias, res: WR_NONE without */
int wr_matmul_heads(wr_program *p, int x, int w, int bias, int res, int64_t heads);
int wr_matmul_dx(wr_program *p, int dy, int w, int64_t heads); /* [M, K], or [M, heads, K / heads] */
int wr_matmul_dw(wr_program *p, int dy, int x, wr_layout layout); /* [N, K] in this layout, without dbias */

#endif
