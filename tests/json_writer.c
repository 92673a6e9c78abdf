/* The JSON writer of the command line: what it writes is valid whatever it is given. gguf_cases.py parses whole outputs. */
#include "cli/json.c"

#include "test.h"

static char *text;
static size_t text_bytes;
static FILE *out;
static wr_json j;

static void begin(void) {
  out = open_memstream(&text, &text_bytes);
  wr_json_begin(&j, out);
}
static bool done(void) {
  bool ok = wr_json_done(&j);
  fclose(out);
  return ok;
}

static void structure(void) {
  begin();
  wr_json_object(&j);
  wr_json_key(&j, "a");
  wr_json_array(&j);
  wr_json_int(&j, INT64_MIN);
  wr_json_uint(&j, UINT64_MAX);
  wr_json_array(&j);
  wr_json_end(&j);
  wr_json_object(&j);
  wr_json_end(&j);
  wr_json_end(&j);
  wr_json_key(&j, "b");
  wr_json_bool(&j, true);
  wr_json_key(&j, "c");
  wr_json_null(&j);
  wr_json_key(&j, "d");
  wr_json_text(&j, NULL);
  wr_json_end(&j);
  CHECK(done());
  CHECK_STR(text, "{\"a\": [-9223372036854775808, 18446744073709551615, [], {}], \"b\": true, \"c\": null, \"d\": null}\n");
  free(text);
}

static void numbers(void) {
  static const double values[] = {0.1, 1e300, -5e-324, 3, 1.0 / 3};
  begin();
  wr_json_array(&j);
  for (size_t i = 0; i < 5; i++) wr_json_double(&j, values[i]);
  wr_json_float(&j, 0.1f);
  wr_json_double(&j, (double)NAN);
  wr_json_double(&j, (double)-INFINITY);
  wr_json_float(&j, INFINITY);
  wr_json_end(&j);
  CHECK(done());
  char *at = text + 1;
  for (size_t i = 0; i < 5; i++, at += 2) CHECK(strtod(at, &at) == values[i]);
  CHECK_STR(at, "0.100000001, null, null, null]\n");
  free(text);
}

static void strings(void) {
  static const struct {
    const char *bytes;
    size_t n;
    const char *want;
  } rows[] = {
      {"plain", 5, "plain"},
      {"", 0, ""},
      {"q\" b\\ s/", 8, "q\\\" b\\\\ s/"},
      {"\b\f\n\r\t", 5, "\\b\\f\\n\\r\\t"},
      {"\0\x01\x1f\x7f", 4, "\\u0000\\u0001\\u001f\\u007f"},
      {"\xc2\x9b", 2, "\\u009b"}, /* a control that terminals obey */
      {"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", 9, "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"},
      {"\xff", 1, "\xef\xbf\xbd"},
      {"a\xc0\xaf", 3, "a\xef\xbf\xbd\xef\xbf\xbd"}, /* overlong */
      {"\xe0\x80\x80", 3, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
      {"\xed\xa0\x80", 3, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* a surrogate */
      {"\xf4\x90\x80\x80", 4, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
      {"\xe2\x82", 2, "\xef\xbf\xbd\xef\xbf\xbd"}, /* cut at the end */
      {"\xe2x", 2, "\xef\xbf\xbdx"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    char want[64];
    begin();
    wr_json_bytes(&j, rows[i].bytes, rows[i].n);
    CHECK(done());
    snprintf(want, sizeof want, "\"%s\"\n", rows[i].want);
    CHECK_STR(text, want);
    free(text);
  }
}

/* What would not be JSON is reported, not passed over. */
static void misuse(void) {
  begin();
  CHECK(!done()); /* nothing */
  free(text);
  begin();
  wr_json_array(&j);
  CHECK(!done());
  free(text);
  begin();
  wr_json_int(&j, 1);
  wr_json_int(&j, 2);
  CHECK(!done());
  free(text);
  begin();
  wr_json_object(&j);
  wr_json_int(&j, 1); /* without a key */
  wr_json_end(&j);
  CHECK(!done());
  free(text);
  begin();
  wr_json_object(&j);
  wr_json_key(&j, "k");
  wr_json_end(&j); /* without a value */
  CHECK(!done());
  free(text);
  begin();
  for (int i = 0; i < 40; i++) wr_json_array(&j);
  for (int i = 0; i < 40; i++) wr_json_end(&j);
  CHECK(!done());
  free(text);
  begin();
  for (int i = 0; i < 32; i++) wr_json_array(&j);
  for (int i = 0; i < 32; i++) wr_json_end(&j);
  CHECK(done());
  free(text);
  out = fopen("/dev/full", "w");
  if (!out) SKIP("/dev/full is not there");
  wr_json_begin(&j, out);
  wr_json_int(&j, 1);
  CHECK(!done());
}

TEST_MAIN("json_writer", TEST(structure), TEST(numbers), TEST(strings), TEST(misuse))
