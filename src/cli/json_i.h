/* A small JSON writer for the --json outputs: streams to a FILE, keeps no tree, never writes invalid JSON.
 *
 * Text may be any bytes: what is not UTF-8 becomes U+FFFD, controls are escaped. NaN and infinities become null. Commas and
 * brackets are the writer's; the caller alternates key and value inside objects. Nesting to 32 levels. A caller that breaks
 * these rules, or a stream that fails, is reported by wr_json_done.
 *
 *   wr_json j;
 *   wr_json_begin(&j, stdout);
 *   wr_json_object(&j);
 *   wr_json_key(&j, "tokens");
 *   wr_json_array(&j);
 *   wr_json_int(&j, 42);
 *   wr_json_end(&j);
 *   wr_json_end(&j);
 *   if (!wr_json_done(&j)) …      {"tokens": [42]} and a newline
 *
 * To memory: a FILE from open_memstream.
 */
#ifndef WR_CLI_JSON_I_H
#define WR_CLI_JSON_I_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct wr_json {
  FILE *out;
  int depth;
  uint32_t is_object, has_items; /* a bit a level */
  bool after_key, any, bad;
} wr_json;

void wr_json_begin(wr_json *j, FILE *out);
void wr_json_object(wr_json *j);
void wr_json_array(wr_json *j);
void wr_json_end(wr_json *j);                                     /* of the innermost object or array */
void wr_json_key(wr_json *j, const char *key);
void wr_json_key_bytes(wr_json *j, const char *key, size_t n);
void wr_json_text(wr_json *j, const char *text);                  /* NULL: null */
void wr_json_bytes(wr_json *j, const char *text, size_t n);
void wr_json_int(wr_json *j, int64_t v);
void wr_json_uint(wr_json *j, uint64_t v);
void wr_json_double(wr_json *j, double v);                        /* 17 significant digits: the same double comes back */
void wr_json_float(wr_json *j, float v);                          /* 9 */
void wr_json_bool(wr_json *j, bool v);
void wr_json_null(wr_json *j);
/* Key and value at once, as they mostly come: of a double, int, uint, bool and text. */
void wr_json_number(wr_json *j, const char *key, double v);
void wr_json_integer(wr_json *j, const char *key, int64_t v);
void wr_json_count(wr_json *j, const char *key, uint64_t v);
void wr_json_flag(wr_json *j, const char *key, bool v);
void wr_json_string(wr_json *j, const char *key, const char *text);
bool wr_json_done(wr_json *j); /* newline, flush. false: writing failed, or the brackets do not match */

#endif
