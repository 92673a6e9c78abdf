/* test.h: the harness of the tests. One program a file, many small functions in it.
 *
 *   #include "test.h"
 *   static void adds(void) { CHECK_EQ_INT(1 + 1, 2); }
 *   static void reads_model(void) {
 *     const char *path = getenv("WEIR_TEST_MODEL");
 *     if (!path) SKIP("WEIR_TEST_MODEL is not set");
 *     ...
 *   }
 *   TEST_MAIN("sums", TEST(adds), TEST(reads_model))
 *
 * A failed check is printed with its place and both values; the test goes on, except after REQUIRE, and counts as one failure.
 * Last line: "NAME: N passed, N failed, N skipped"; exit status 1 if anything failed. `program PATTERN` runs the tests whose
 * names contain PATTERN. Checks may be made from any thread; SKIP and REQUIRE return from the function they stand in.
 */
#ifndef TEST_H
#define TEST_H

#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct test_row {
  const char *name;
  void (*run)(void);
} test_row;

static atomic_int test_bad;          /* failed checks of the test that runs */
static const char *test_skip_reason; /* why it was skipped */

__attribute__((unused, format(printf, 3, 4))) static bool test_expect(bool ok, const char *where, const char *fmt, ...) {
  if (ok) return true;
  __builtin_va_list args;
  __builtin_va_start(args, fmt);
  if (atomic_fetch_add(&test_bad, 1) < 20) { /* a loop that fails a million times need not say so a million times */
    char text[1024];
    vsnprintf(text, sizeof text, fmt, args);
    printf("  %s: %s\n", where, text);
  }
  __builtin_va_end(args);
  return false;
}

#define TEST_STR2(x) #x
#define TEST_STR(x) TEST_STR2(x)
#define TEST_WHERE __FILE__ ":" TEST_STR(__LINE__)

#define CHECK(cond) test_expect((cond), TEST_WHERE, "%s", #cond)
/* a condition and what to say about it: CHECK_MSG(n > 0, "row %d: n = %d", i, n) */
#define CHECK_MSG(cond, ...) test_expect((cond), TEST_WHERE, __VA_ARGS__)
#define REQUIRE(cond) \
  do { \
    if (!test_expect((cond), TEST_WHERE, "%s (the rest of this test is left out)", #cond)) return; \
  } while (0)
#define CHECK_EQ_INT(got, want) \
  do { \
    long long test_g = (long long)(got), test_w = (long long)(want); \
    test_expect(test_g == test_w, TEST_WHERE, "%s is %lld, not %lld", #got, test_g, test_w); \
  } while (0)
/* |got - want| <= tol; NaN fails, equal infinities pass */
#define CHECK_NEAR(got, want, tol) \
  do { \
    double test_g = (double)(got), test_w = (double)(want), test_t = (double)(tol); \
    test_expect(fabs(test_g - test_w) <= test_t || (isinf(test_w) && signbit(test_g) == signbit(test_w) && isinf(test_g)), \
                TEST_WHERE, "%s is %.9g, not %.9g within %.3g", #got, test_g, test_w, test_t); \
  } while (0)
#define CHECK_STR(got, want) \
  do { \
    const char *test_g = (got), *test_w = (want); \
    test_expect(test_g && test_w && strcmp(test_g, test_w) == 0, TEST_WHERE, "%s is \"%s\", not \"%s\"", #got, \
                test_g ? test_g : "(null)", test_w ? test_w : "(null)"); \
  } while (0)
/* the string contains the part: for messages, whose exact words may change */
#define CHECK_HAS(got, part) \
  do { \
    const char *test_g = (got), *test_w = (part); \
    test_expect(test_g && strstr(test_g, test_w), TEST_WHERE, "%s is \"%s\", which does not say \"%s\"", #got, \
                test_g ? test_g : "(null)", test_w); \
  } while (0)
#define SKIP(why) \
  do { \
    test_skip_reason = (why); \
    return; \
  } while (0)

#define TEST(function) {#function, function}
#define TEST_MAIN(name, ...) \
  int main(int argc, char **argv) { \
    static const test_row rows[] = {__VA_ARGS__}; \
    return test_run_all(name, rows, (int)(sizeof rows / sizeof rows[0]), argc > 1 ? argv[1] : ""); \
  }

__attribute__((unused)) static int test_run_all(const char *name, const test_row *rows, int n, const char *only) {
  int passed = 0, failed = 0, skipped = 0;
  setvbuf(stdout, NULL, _IOLBF, 0);
  for (int i = 0; i < n; i++) {
    if (!strstr(rows[i].name, only)) continue;
    atomic_store(&test_bad, 0);
    test_skip_reason = NULL;
    rows[i].run();
    int bad = atomic_load(&test_bad);
    if (bad) failed++, printf("FAIL %s.%s: %d failed checks\n", name, rows[i].name, bad);
    else if (test_skip_reason) skipped++, printf("SKIP %s.%s: %s\n", name, rows[i].name, test_skip_reason);
    else passed++;
  }
  printf("%s: %d passed, %d failed, %d skipped\n", name, passed, failed, skipped);
  return failed ? 1 : 0;
}

#endif
