/* dialect_mma: products of small matrices by the 32 items of a warp together, for tensor cores.
 *
 *   mma_bf16(d, a, b, room), mma_f16(d, a, b, room)      D[16, 8] += A[16, 16] B[16, 8];  A and B in BF16 or F16, sums in FP32
 *
 * A warp is items 32 w to 32 w + 31 of a group, and all warps of the group come to it together, as to BARRIER(). An item holds parts of the
 * matrices as PTX's mma.sync.m16n8k16 wants them; with g = item / 4 mod 8 and t = item mod 4, two elements a word, the lower half first:
 *
 *   a[0], a[1]    A[g][2t, 2t + 1],   A[g + 8][2t, 2t + 1]        b[0]    B[2t, 2t + 1][g]        d[0], d[1]    D[g][2t], D[g][2t + 1]
 *   a[2], a[3]    A[g][2t + 8, 2t + 9],   A[g + 8][2t + 8, 2t + 9]     b[1]    B[2t + 8, 2t + 9][g]     d[2], d[3]    D[g + 8][2t], D[g + 8][2t + 1]
 *
 * NVIDIA's devices from sm_80 on have the instruction. Elsewhere a twin does the same through SHARED memory: products are exact there and added
 * one after another, k ascending, where tensor cores add in an order and a precision of their own.
 * room: SHARED u32 room[MMA_ROOM(items)], items of the group; what a kernel does not otherwise touch. */
#ifndef WR_DIALECT_MMA_H
#define WR_DIALECT_MMA_H

#include "device/dialect.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define MMA_ROOM(items) 1
#define MMA_(type) \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
DEV void mma_bf16(f32 *d, const u32 *a, const u32 *b, LOCAL u32 *room) { MMA_("bf16"); }
DEV void mma_f16(f32 *d, const u32 *a, const u32 *b, LOCAL u32 *room) { MMA_("f16"); }
#else

enum { MMA_WARP = 32, MMA_WORDS = 6 }; /* words of an item in the room: its a and its b */
#define MMA_ROOM(items) ((items) * MMA_WORDS)

DEV f32 mma_element(u32 word, i32 high, i32 f16) {
  const u16 h = (u16)(high ? word >> 16 : word & 0xffffu);
  return f16 ? f16_f32(h) : bf16_f32(h);
}
/* D[row][column], before and after; own: the room of this warp. */
DEV f32 mma_dot(f32 d, LOCAL const u32 *own, i32 row, i32 column, i32 f16) {
  for (i32 k = 0; k < 16; k++) {
    const i32 t = k % 8 / 2;
    const u32 a = own[(row % 8 * 4 + t) * MMA_WORDS + row / 8 + k / 8 * 2], b = own[(column * 4 + t) * MMA_WORDS + 4 + k / 8];
    d = f32_fma(mma_element(a, k % 2, f16), mma_element(b, k % 2, f16), d);
  }
  return d;
}
DEV void mma_twin(f32 *d, const u32 *a, const u32 *b, LOCAL u32 *room, i32 f16) {
  const i32 lane = item() % MMA_WARP, g = lane / 4, t = lane % 4;
  LOCAL u32 *own = room + item() / MMA_WARP * MMA_WARP * MMA_WORDS;
  BARRIER(); /* the room may still be read */
  for (i32 i = 0; i < 4; i++) own[lane * MMA_WORDS + i] = a[i];
  for (i32 i = 0; i < 2; i++) own[lane * MMA_WORDS + 4 + i] = b[i];
  BARRIER();
  for (i32 i = 0; i < 4; i++) d[i] = mma_dot(d[i], own, g + i / 2 * 8, t * 2 + i % 2, f16);
}
DEV void mma_bf16(f32 *d, const u32 *a, const u32 *b, LOCAL u32 *room) { mma_twin(d, a, b, room, 0); }
DEV void mma_f16(f32 *d, const u32 *a, const u32 *b, LOCAL u32 *room) { mma_twin(d, a, b, room, 1); }
#endif

#endif
