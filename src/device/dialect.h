/* dialect: the C that device kernels (the *_dev.c files) are written in. One source is OpenCL C 1.2, CUDA C, HIP and, for tests, host C.
 *
 * A kernel runs over a grid of groups; a group is a fixed number of work items in one dimension, which share SHARED memory and meet at
 * BARRIER(). A *_dev.c file holds kernels, and under `#if WR_DEV_HOST` the host's launch functions: which kernels a call takes, in which
 * grids, with which numbers.
 *
 *   KERNEL(name, items, n_args) { ... }      a kernel of groups of so many items, over the first n_args arguments of an op's call
 *   item() group(0..2) groups(0..2)          which item of the group, which group
 *   BARRIER()                                all items of the group, at the same line
 *   SHARED f32 room[64];                     at the top of a kernel's body; pointers to it are LOCAL
 *   ARG(T, i) ROW(T, i, r)                   argument i, its row r, as pointers to T in GLOBAL memory (i: a literal)
 *   HAS(i) EXT(i, d) STRIDE(i) LIVE(i) ADDS(i)    is it there, its extents, bytes between rows, its rows alive in this run, added to?
 *   c->n[k], c->f[k]                         the launch function's numbers;  regs: the registers;  scratch: what the row booked
 *
 * Rules, beside those of the kernel contract (design, 4):
 * - Pointers to device memory carry GLOBAL or LOCAL, functions DEV. No recursion, no variable arrays, no designated initialisers, no
 *   static data but `CONSTANT` tables; no implicit conversion between pointer types; literals in float carry an f.
 * - Items of a group exchange data through SHARED only, groups not at all: what depends on other groups is a kernel of its own.
 * - BARRIER() and whatever calls it stand in uniform control flow.
 * - Sums have an order that depends on positions only, so that neither company nor the size of the grid changes a bit.
 * - Rows past LIVE() are skipped, not left out of the grid: grids come from the bucket. The second and third extent of a grid are at
 *   most 65,535, a group's items 1,024.
 */
#ifndef WR_DIALECT_H
#define WR_DIALECT_H

#if defined(__OPENCL_C_VERSION__) /* ------------------------------------------------------------------------------ OpenCL C */
#pragma OPENCL FP_CONTRACT OFF
#define GLOBAL __global
#define SHARED __local
#define LOCAL __local
#define CONSTANT __constant
#define DEV static inline
typedef char i8;
typedef uchar u8;
typedef short i16;
typedef ushort u16;
typedef int i32;
typedef uint u32;
typedef long i64;
typedef ulong u64;
typedef float f32;
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
DEV i32 item(void) { return (i32)get_local_id(0); }
DEV i32 group(i32 d) { return (i32)get_group_id((u32)d); }
DEV i32 groups(i32 d) { return (i32)get_num_groups((u32)d); }
DEV f32 f32_fma(f32 a, f32 b, f32 c) { return fma(a, b, c); }
DEV f32 f32_exp(f32 x) { return exp(x); }
DEV f32 f32_log(f32 x) { return log(x); }
DEV f32 f32_tanh(f32 x) { return tanh(x); }
DEV f32 f32_sqrt(f32 x) { return sqrt(x); }
DEV f32 f32_pow(f32 x, f32 y) { return pow(x, y); }
DEV f32 f32_cos(f32 x) { return cos(x); }
DEV f32 f32_sin(f32 x) { return sin(x); }
DEV f32 f32_abs(f32 x) { return fabs(x); }
DEV f32 f32_rint(f32 x) { return rint(x); }
DEV u32 f32_bits(f32 x) { return as_uint(x); }
DEV f32 bits_f32(u32 x) { return as_float(x); }
DEV f32 f16_f32(u16 h) {
  u16 at = h;
  return vload_half(0, (const half *)&at);
}
DEV u16 f32_f16(f32 x) {
  u16 at;
  vstore_half_rte(x, 0, (half *)&at);
  return at;
}
DEV void atomic_add_u32(GLOBAL u32 *at, u32 x) { (void)atomic_add(at, x); }

#elif defined(__CUDACC__) || defined(__HIPCC__) || defined(__HIPCC_RTC__) /* ----------------------------------- CUDA C, HIP */
#if defined(__HIPCC__) && !defined(__HIPCC_RTC__)
#include <hip/hip_runtime.h>
#endif
#define GLOBAL
#define SHARED __shared__
#define LOCAL
#define CONSTANT static __constant__
#define DEV static __device__ __forceinline__
typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
#define BARRIER() __syncthreads()
DEV i32 item(void) { return (i32)threadIdx.x; }
DEV i32 group(i32 d) { return (i32)(d == 0 ? blockIdx.x : d == 1 ? blockIdx.y : blockIdx.z); }
DEV i32 groups(i32 d) { return (i32)(d == 0 ? gridDim.x : d == 1 ? gridDim.y : gridDim.z); }
DEV f32 f32_fma(f32 a, f32 b, f32 c) { return fmaf(a, b, c); }
DEV f32 f32_exp(f32 x) { return expf(x); }
DEV f32 f32_log(f32 x) { return logf(x); }
DEV f32 f32_tanh(f32 x) { return tanhf(x); }
DEV f32 f32_sqrt(f32 x) { return sqrtf(x); }
DEV f32 f32_pow(f32 x, f32 y) { return powf(x, y); }
DEV f32 f32_cos(f32 x) { return cosf(x); }
DEV f32 f32_sin(f32 x) { return sinf(x); }
DEV f32 f32_abs(f32 x) { return fabsf(x); }
DEV f32 f32_rint(f32 x) { return rintf(x); }
DEV u32 f32_bits(f32 x) { return __float_as_uint(x); }
DEV f32 bits_f32(u32 x) { return __uint_as_float(x); }
#if defined(__HIPCC__) || defined(__HIPCC_RTC__)
DEV f32 f16_f32(u16 h) {
  _Float16 x;
  __builtin_memcpy(&x, &h, 2);
  return (f32)x;
}
DEV u16 f32_f16(f32 v) {
  const _Float16 x = (_Float16)v;
  u16 h;
  __builtin_memcpy(&h, &x, 2);
  return h;
}
#else
DEV f32 f16_f32(u16 h) {
  f32 x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
  return x;
}
DEV u16 f32_f16(f32 x) {
  u16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return h;
}
#endif
DEV void atomic_add_u32(GLOBAL u32 *at, u32 x) { atomicAdd(at, x); }

#else /* ------------------------------------------------------------------------------------- the host: device/emu runs it */
#define WR_DEV_HOST 1
#include <math.h>

#include "device/device.h"
#include "device/emu/emu.h"
#define GLOBAL
#define LOCAL
#define CONSTANT static const
#define DEV static inline __attribute__((unused))
/* SHARED memory is made NaN before a group begins; under AddressSanitizer it has guards instead, which compilers give to no section. */
#if WR_EMU_ASAN
#define SHARED static
#else
#define SHARED static __attribute__((section("wr_shared"), used))
#endif
typedef int8_t i8;
typedef uint8_t u8;
typedef int16_t i16;
typedef uint16_t u16;
typedef int32_t i32;
typedef uint32_t u32;
typedef int64_t i64;
typedef uint64_t u64;
typedef float f32;
#define BARRIER() wr_emu_barrier(__FILE__, __LINE__)
DEV i32 item(void) { return wr_emu_item(); }
DEV i32 group(i32 d) { return wr_emu_group(d); }
DEV i32 groups(i32 d) { return wr_emu_groups(d); }
DEV f32 f32_fma(f32 a, f32 b, f32 c) { return fmaf(a, b, c); }
DEV f32 f32_exp(f32 x) { return expf(x); }
DEV f32 f32_log(f32 x) { return logf(x); }
DEV f32 f32_tanh(f32 x) { return tanhf(x); }
DEV f32 f32_sqrt(f32 x) { return sqrtf(x); }
DEV f32 f32_pow(f32 x, f32 y) { return powf(x, y); }
DEV f32 f32_cos(f32 x) { return cosf(x); }
DEV f32 f32_sin(f32 x) { return sinf(x); }
DEV f32 f32_abs(f32 x) { return fabsf(x); }
DEV f32 f32_rint(f32 x) { return rintf(x); }
DEV u32 f32_bits(f32 x) {
  u32 u;
  memcpy(&u, &x, sizeof u);
  return u;
}
DEV f32 bits_f32(u32 u) {
  f32 x;
  memcpy(&x, &u, sizeof x);
  return x;
}
float wr_f16_to_float(uint16_t h); /* core's */
uint16_t wr_float_to_f16(float f);
DEV f32 f16_f32(u16 h) { return wr_f16_to_float(h); }
DEV u16 f32_f16(f32 x) { return wr_float_to_f16(x); }
DEV void atomic_add_u32(GLOBAL u32 *at, u32 x) { __atomic_fetch_add(at, x, __ATOMIC_RELAXED); }
#endif

/* ---------------------------------------------------------------------------------------------- what the host hands over */

enum { WR_DEV_ARGS = 20, WR_DEV_NUMBERS = 12 };
typedef struct wr_dev_arg {
  i64 offset; /* bytes from the pointer that the kernel gets for it */
  i64 stride; /* bytes between rows of ext[0]; pack16: between groups of sixteen */
  i64 ext[4];
  u32 dtype, layout, live, present;
} wr_dev_arg;
typedef struct wr_dev_call {
  wr_dev_arg arg[WR_DEV_ARGS];
  i64 n[WR_DEV_NUMBERS];
  f32 f[WR_DEV_NUMBERS];
  i64 scratch_offset;
  u32 acc, unused;
} wr_dev_call;
/* wr_regs, as kernels see it */
typedef struct wr_dev_regs {
  i64 live[4], kv_tok, step;
  u64 seed;
  f32 lr, loss_scale, grad_scale;
  i32 found_inf;
} wr_dev_regs;

#define ARG_(T, i) ((GLOBAL T *)(a##i + c->arg[i].offset))
#define ARG(T, i) ARG_(T, i)
#define ROW_(T, i, r) ((GLOBAL T *)(a##i + c->arg[i].offset + (i64)(r) * c->arg[i].stride))
#define ROW(T, i, r) ROW_(T, i, r)
#define SCRATCH(T) ((GLOBAL T *)(scratch + c->scratch_offset))
#define HAS(i) (c->arg[i].present != 0)
#define EXT(i, d) (c->arg[i].ext[d])
#define STRIDE(i) (c->arg[i].stride)
#define INNER(i) (c->arg[i].ext[1] * c->arg[i].ext[2] * c->arg[i].ext[3])
#define LIVE(i) wr_dev_live(c, regs, i)
#define ADDS(i) ((c->acc >> (i)&1u) != 0)

DEV i64 wr_dev_live(GLOBAL const wr_dev_call *c, GLOBAL const wr_dev_regs *regs, i32 i) {
  const i64 rows = c->arg[i].ext[0];
  const u32 which = c->arg[i].live;
  if (!which) return rows;
  const i64 live = regs->live[which];
  return live < rows ? live : rows;
}

DEV f32 bf16_f32(u16 h) { return bits_f32((u32)h << 16); }
DEV u16 f32_bf16(f32 x) { /* to nearest even; NaN stays NaN */
  const u32 u = f32_bits(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (u16)((u >> 16) | 64u);
  return (u16)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
#define F32_INFINITY bits_f32(0x7f800000u)
DEV f32 f32_max(f32 a, f32 b) { return a > b ? a : b; } /* b when a is NaN */
DEV f32 f32_min(f32 a, f32 b) { return a < b ? a : b; }

/* An element written, or added to what is there: an output's, as its argument asks. */
DEV void put(GLOBAL f32 *at, f32 x, i32 adds) { *at = adds ? *at + x : x; }

/* The elements of a row of n, one item each in turn: for (i = item(); i < n; i += items) with equally many turns for all items, which PoCL 3.1
 * needs to compile it rightly. */
#define EACH(i, n, items) for (i64 i##0 = 0, i = item(); i##0 < (n); i##0 += (items), i += (items)) if (i < (n))

/* Sum, maximum over the items of a group, given to all of them; room[n], n the items of the group, a power of two. Added as a tree. */
DEV f32 group_sum(f32 x, LOCAL f32 *room, i32 n) {
  const i32 t = item();
  room[t] = x;
  BARRIER();
  for (i32 step = n / 2; step > 0; step /= 2) {
    if (t < step) room[t] += room[t + step];
    BARRIER();
  }
  const f32 sum = room[0];
  BARRIER(); /* here, before the room is used again, and not at the head: PoCL 3.1 gets a barrier wrong that follows a loop at once */
  return sum;
}
DEV f32 group_max(f32 x, LOCAL f32 *room, i32 n) {
  const i32 t = item();
  room[t] = x;
  BARRIER();
  for (i32 step = n / 2; step > 0; step /= 2) {
    if (t < step) room[t] = f32_max(room[t], room[t + step]);
    BARRIER();
  }
  const f32 most = room[0];
  BARRIER();
  return most;
}

/* KERNEL(name, items, n): the pointers a0..a(n-1) are the arguments' memory. */
#if defined(WR_DEV_HOST)
#define WR_DEV_UNUSED __attribute__((unused))
#else
#define WR_DEV_UNUSED
#endif
#define WR_DEV_P(i) , GLOBAL u8 *a##i WR_DEV_UNUSED
#define WR_DEV_A1 WR_DEV_P(0)
#define WR_DEV_A2 WR_DEV_A1 WR_DEV_P(1)
#define WR_DEV_A3 WR_DEV_A2 WR_DEV_P(2)
#define WR_DEV_A4 WR_DEV_A3 WR_DEV_P(3)
#define WR_DEV_A5 WR_DEV_A4 WR_DEV_P(4)
#define WR_DEV_A6 WR_DEV_A5 WR_DEV_P(5)
#define WR_DEV_A7 WR_DEV_A6 WR_DEV_P(6)
#define WR_DEV_A8 WR_DEV_A7 WR_DEV_P(7)
#define WR_DEV_A9 WR_DEV_A8 WR_DEV_P(8)
#define WR_DEV_A10 WR_DEV_A9 WR_DEV_P(9)
#define WR_DEV_A11 WR_DEV_A10 WR_DEV_P(10)
#define WR_DEV_A12 WR_DEV_A11 WR_DEV_P(11)
#define WR_DEV_A13 WR_DEV_A12 WR_DEV_P(12)
#define WR_DEV_A14 WR_DEV_A13 WR_DEV_P(13)
#define WR_DEV_A15 WR_DEV_A14 WR_DEV_P(14)
#define WR_DEV_A16 WR_DEV_A15 WR_DEV_P(15)
#define WR_DEV_A17 WR_DEV_A16 WR_DEV_P(16)
#define WR_DEV_PARAMS(n) \
  (GLOBAL const wr_dev_call *c WR_DEV_UNUSED, GLOBAL const wr_dev_regs *regs WR_DEV_UNUSED, GLOBAL u8 *scratch WR_DEV_UNUSED WR_DEV_A##n)

#if defined(__OPENCL_C_VERSION__)
#define KERNEL(name, items, n) __kernel __attribute__((reqd_work_group_size(items, 1, 1))) void name WR_DEV_PARAMS(n)
#elif !defined(WR_DEV_HOST)
#define KERNEL(name, items, n) extern "C" __global__ void __launch_bounds__(items) name WR_DEV_PARAMS(n)
#else
#define WR_DEV_V1 , v[3]
#define WR_DEV_V2 WR_DEV_V1, v[4]
#define WR_DEV_V3 WR_DEV_V2, v[5]
#define WR_DEV_V4 WR_DEV_V3, v[6]
#define WR_DEV_V5 WR_DEV_V4, v[7]
#define WR_DEV_V6 WR_DEV_V5, v[8]
#define WR_DEV_V7 WR_DEV_V6, v[9]
#define WR_DEV_V8 WR_DEV_V7, v[10]
#define WR_DEV_V9 WR_DEV_V8, v[11]
#define WR_DEV_V10 WR_DEV_V9, v[12]
#define WR_DEV_V11 WR_DEV_V10, v[13]
#define WR_DEV_V12 WR_DEV_V11, v[14]
#define WR_DEV_V13 WR_DEV_V12, v[15]
#define WR_DEV_V14 WR_DEV_V13, v[16]
#define WR_DEV_V15 WR_DEV_V14, v[17]
#define WR_DEV_V16 WR_DEV_V15, v[18]
#define WR_DEV_V17 WR_DEV_V16, v[19]
#define KERNEL(name, items, n)                                                             \
  static void name##_body WR_DEV_PARAMS(n);                                                \
  static void name##_emulate(void **v) { name##_body(v[0], v[1], v[2] WR_DEV_V##n); }      \
  static const wr_dev_kernel name = {#name, __BASE_FILE__, (items), (n), name##_emulate};       \
  static void name##_body WR_DEV_PARAMS(n)
#endif

#endif
