/* alloc.c: owns the heap (through weir_hooks), anonymous pages, and the arena.
 *
 * Refuses sizes over PTRDIFF_MAX, so that a pointer difference inside any object is defined. Pages come from mmap and are no
 * part of the hooks: they are for tensors, which want alignment and zero pages that cost nothing until touched.
 */
#include "base/base_i.h"

#include <sys/mman.h>
#include <unistd.h>

#define HUGE_PAGE_BYTES ((size_t)2 << 20)
#define ARENA_BLOCK_MIN ((size_t)4 << 10)
#define ARENA_BLOCK_MAX ((size_t)1 << 20)

/* ---- heap */

void *wr_malloc(size_t bytes) {
  if (bytes > PTRDIFF_MAX) return NULL;
  const weir_hooks *h = wr_hooks();
  return h->allocate(h->user, bytes ? bytes : 1);
}

void *wr_calloc(size_t count, size_t size) {
  size_t bytes;
  if (!wr_mul_size(count, size, &bytes)) return NULL;
  void *ptr = wr_malloc(bytes);
  if (ptr) memset(ptr, 0, bytes);
  return ptr;
}

void *wr_realloc(void *ptr, size_t bytes) {
  if (bytes > PTRDIFF_MAX) return NULL;
  const weir_hooks *h = wr_hooks();
  return h->reallocate(h->user, ptr, bytes ? bytes : 1);
}

void wr_free(void *ptr) {
  if (!ptr) return;
  const weir_hooks *h = wr_hooks();
  h->release(h->user, ptr);
}

char *wr_strndup(const char *s, size_t n) {
  size_t bytes;
  if (!wr_add_size(n, 1, &bytes)) return NULL;
  char *copy = wr_malloc(bytes);
  if (!copy) return NULL;
  if (n) memcpy(copy, s, n);
  copy[n] = '\0';
  return copy;
}

char *wr_strdup(const char *s) { return wr_strndup(s, strlen(s)); }

bool wr_mul_size(size_t a, size_t b, size_t *out) {
  size_t product;
  if (__builtin_mul_overflow(a, b, &product)) return false;
  *out = product;
  return true;
}

bool wr_add_size(size_t a, size_t b, size_t *out) {
  size_t sum;
  if (__builtin_add_overflow(a, b, &sum)) return false;
  *out = sum;
  return true;
}

bool wr_grow(void **array, size_t *cap, size_t need, size_t elem_bytes) {
  if (need <= *cap) return true;
  size_t next = *cap ? *cap : 8, bytes;
  while (next < need)
    if (!wr_mul_size(next, 2, &next)) next = need;
  if (!wr_mul_size(next, elem_bytes, &bytes)) return false;
  void *grown = wr_realloc(*array, bytes);
  if (!grown) return false;
  *array = grown;
  *cap = next;
  return true;
}

/* ---- pages */

/* Whole pages, at least one; 0 when that does not fit. */
static size_t page_round(size_t bytes) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  if (bytes == 0) return page;
  return bytes > PTRDIFF_MAX - 2 * HUGE_PAGE_BYTES ? 0 : (bytes + page - 1) / page * page;
}

static void *map_anonymous(size_t bytes) {
  void *ptr = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return ptr == MAP_FAILED ? NULL : ptr;
}

void *wr_pages_alloc(size_t bytes, bool huge) {
  size_t length = page_round(bytes);
  if (length == 0) return NULL;
  if (!huge || length < HUGE_PAGE_BYTES) return map_anonymous(length);
  /* A huge page needs an address that is a multiple of its size: map more and give back both ends. */
  uint8_t *wide = map_anonymous(length + HUGE_PAGE_BYTES);
  if (!wide) return map_anonymous(length);
  size_t head = (HUGE_PAGE_BYTES - (uintptr_t)wide % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
  if (head) munmap(wide, head);
  munmap(wide + head + length, HUGE_PAGE_BYTES - head);
  madvise(wide + head, length, MADV_HUGEPAGE); /* advice: a kernel without huge pages may refuse */
  return wide + head;
}

void wr_pages_free(void *ptr, size_t bytes) {
  if (ptr) munmap(ptr, page_round(bytes));
}

/* ---- arena */

/* Blocks are linked newest first; only the newest is filled. */
struct wr_arena_block {
  struct wr_arena_block *next;
  size_t used, cap; /* bytes of `data` */
  _Alignas(16) uint8_t data[];
};

void *wr_arena_alloc(wr_arena *a, size_t bytes) {
  if (bytes > PTRDIFF_MAX / 2) return NULL;
  size_t need = bytes ? (bytes + 15) & ~(size_t)15 : 16;
  struct wr_arena_block *b = a->head;
  if (!b || b->cap - b->used < need) {
    size_t cap = b ? WR_MIN(b->cap * 2, ARENA_BLOCK_MAX) : ARENA_BLOCK_MIN;
    cap = WR_MAX(cap, need);
    b = wr_malloc(sizeof *b + cap);
    if (!b) return NULL;
    b->next = a->head;
    b->used = 0;
    b->cap = cap;
    a->head = b;
  }
  void *ptr = b->data + b->used;
  b->used += need;
  a->used_bytes += need;
  memset(ptr, 0, need);
  return ptr;
}

char *wr_arena_strndup(wr_arena *a, const char *s, size_t n) {
  if (n == SIZE_MAX) return NULL;
  char *copy = wr_arena_alloc(a, n + 1);
  if (copy && n) memcpy(copy, s, n);
  return copy;
}

char *wr_arena_strdup(wr_arena *a, const char *s) { return wr_arena_strndup(a, s, strlen(s)); }

char *wr_arena_printf(wr_arena *a, const char *fmt, ...) {
  va_list args, again;
  va_start(args, fmt);
  va_copy(again, args);
  int n = vsnprintf(NULL, 0, fmt, args);
  char *text = n < 0 ? NULL : wr_arena_alloc(a, (size_t)n + 1);
  if (text) vsnprintf(text, (size_t)n + 1, fmt, again);
  va_end(again);
  va_end(args);
  return text;
}

void wr_arena_free(wr_arena *a) {
  for (struct wr_arena_block *b = a->head, *next; b; b = next) {
    next = b->next;
    wr_free(b);
  }
  *a = (wr_arena){0};
}
