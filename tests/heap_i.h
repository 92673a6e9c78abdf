/* heap_i.h: a heap that fails when a test wants it to. The counters are atomic, since threads of the library allocate too.
 *
 *   weir_set_hooks(&(weir_hooks){HEAP_HOOKS});
 *   for (long n = 1; ...; n++) { heap_fail(n); try(); CHECK_EQ_INT(heap.live, 0); if (!heap_failed()) break; }
 *   weir_set_hooks(NULL);
 *
 * Include it behind test.h. */
#ifndef HEAP_I_H
#define HEAP_I_H

#include "base/base.h"

static struct {
  _Atomic long calls, fail_at, live; /* calls so far; the one that fails, from 1, or 0; blocks that are not given back */
} heap;

/* The n-th call from here on fails; 0: none. */
static inline void heap_fail(long n) {
  heap.calls = 0;
  heap.live = 0;
  heap.fail_at = n;
}
static inline bool heap_failed(void) { return heap.fail_at && heap.calls >= heap.fail_at; }
/* Counts a call: does it fail? Hooks of other kinds may ask too. */
static inline bool heap_refuses(void) { return ++heap.calls == heap.fail_at; }

static inline void *heap_allocate(void *user, size_t bytes) {
  (void)user;
  void *p = heap_refuses() ? NULL : malloc(bytes);
  heap.live += p != NULL;
  return p;
}
static inline void *heap_reallocate(void *user, void *ptr, size_t bytes) {
  (void)user;
  void *p = heap_refuses() ? NULL : realloc(ptr, bytes);
  heap.live += p && !ptr;
  return p;
}
static inline void heap_release(void *user, void *ptr) {
  (void)user;
  heap.live -= ptr != NULL;
  free(ptr);
}
#define HEAP_HOOKS .allocate = heap_allocate, .reallocate = heap_reallocate, .release = heap_release

#endif
