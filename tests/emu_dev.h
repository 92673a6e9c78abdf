/* Kernels for tests/emu.c: of the dialect, but for the emulated device only. Those named planted_* have the fault of their name.
 * Arguments: x, y, vectors of FP32 (y of one group for another: see there); n[0]: a number that the compiler does not know. */
#ifndef EMU_DEV_H
#define EMU_DEV_H

#include "device/dialect_mma.h"

enum { ITEMS = 64 };

/* y[t] = x[t] + x[t + 1], around; by way of SHARED memory */
KERNEL(neighbours, ITEMS, 2) {
  SHARED f32 room[ITEMS];
  const i32 t = item();
  room[t] = ARG(const f32, 0)[t];
  BARRIER();
  ARG(f32, 1)[t] = room[t] + room[(t + 1) % ITEMS];
}
KERNEL(planted_missing_barrier, ITEMS, 2) {
  SHARED f32 room[ITEMS];
  const i32 t = item();
  room[t] = ARG(const f32, 0)[t];
  ARG(f32, 1)[t] = room[t] + room[(t + 1) % ITEMS];
}
KERNEL(planted_missing_second_barrier, ITEMS, 2) { /* the room is written again while others still read it */
  SHARED f32 room[ITEMS];
  const i32 t = item();
  room[t] = ARG(const f32, 0)[t];
  BARRIER();
  const f32 next = room[(t + 1) % ITEMS];
  room[t] = next;
  BARRIER();
  ARG(f32, 1)[t] = room[t];
}

KERNEL(planted_past_global, ITEMS, 2) { ARG(f32, 1)[item() + c->n[0]] = 1.0f; }
KERNEL(planted_past_shared, ITEMS, 2) {
  SHARED f32 room[ITEMS];
  room[item() + c->n[0]] = 1.0f;
  BARRIER();
  ARG(f32, 1)[item()] = room[item()];
}
__attribute__((noinline)) static void set(LOCAL f32 *room, i64 i) { room[i] = 1.0f; } /* UndefinedBehaviorSanitizer would see the size */
KERNEL(planted_past_shared_by_pointer, ITEMS, 2) {
  SHARED f32 room[ITEMS];
  set(room, item() + c->n[0]);
  BARRIER();
  ARG(f32, 1)[item()] = room[item()];
}
KERNEL(planted_unwritten_shared, ITEMS, 2) {
  SHARED f32 room[ITEMS];
  if (item()) room[item()] = 1.0f;
  BARRIER();
  ARG(f32, 1)[item()] = room[item()];
}
KERNEL(planted_large_stack, ITEMS, 2) { /* 256 KB of an item's own */
  volatile f32 own[65536];
  for (i32 i = 65535; i >= 0; i--) own[i] = 1.0f;
  ARG(f32, 1)[item()] = own[item() + c->n[0]];
}

enum { BARRIER_OF_LOW = __LINE__ + 4, BARRIER_OF_HIGH = __LINE__ + 6, BARRIER_OF_ALL_BUT_3 = __LINE__ + 12 };
KERNEL(planted_divergent_barrier, ITEMS, 2) {
  if (item() < 32) {
    ARG(f32, 1)[item()] = 1.0f;
    BARRIER();
  } else {
    BARRIER();
  }
}
KERNEL(planted_early_return, ITEMS, 2) {
  if (item() == 3) return;
  ARG(f32, 1)[item()] = 1.0f;
  BARRIER();
}

/* A group reads what the one before it writes. */
KERNEL(planted_group_conflict, ITEMS, 2) {
  const i32 g = group(0);
  if (item() == 0) ARG(f32, 1)[g] = (g ? ARG(f32, 1)[g - 1] : 0.0f) + 1.0f;
}

/* y[group] = sum of x */
KERNEL(largest, 1024, 2) {
  SHARED f32 room[1024];
  const f32 sum = group_sum(ARG(const f32, 0)[item()], room, 1024);
  if (item() == 0) ARG(f32, 1)[group(0)] = sum;
}
KERNEL(too_large, 1025, 2) { ARG(f32, 1)[0] = 1.0f; }

/* d[w] += a[w] b[w] for each warp w. a: [16, 16] rows of 16 bits, b: [8, 16], its columns as rows, d: [16, 8] of FP32; n[0]: F16? */
enum { MMA_ITEMS = 64 };
KERNEL(multiply, MMA_ITEMS, 3) {
  SHARED u32 room[MMA_ROOM(MMA_ITEMS)];
  const i32 w = item() / 32, g = item() % 32 / 4, t = item() % 4;
  GLOBAL const u32 *a = ARG(const u32, 0) + w * 128, *b = ARG(const u32, 1) + w * 64;
  GLOBAL f32 *d = ARG(f32, 2) + w * 128;
  u32 of_a[4], of_b[2];
  f32 of_d[4];
  for (i32 i = 0; i < 4; i++) of_a[i] = a[(g + i % 2 * 8) * 8 + t + i / 2 * 4];
  for (i32 i = 0; i < 2; i++) of_b[i] = b[g * 8 + t + i * 4];
  for (i32 i = 0; i < 4; i++) of_d[i] = d[(g + i / 2 * 8) * 8 + t * 2 + i % 2];
  if (c->n[0])
    mma_f16(of_d, of_a, of_b, room);
  else
    mma_bf16(of_d, of_a, of_b, room);
  for (i32 i = 0; i < 4; i++) d[(g + i / 2 * 8) * 8 + t * 2 + i % 2] = of_d[i];
}

#endif
