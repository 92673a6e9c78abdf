/* The JSON writer: see json_i.h. Reference: RFC 8259; UTF-8 by RFC 3629 (no surrogates, no overlong forms, up to U+10FFFF). */
#include "json_i.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define MAX_DEPTH 32

void wr_json_begin(wr_json *j, FILE *out) { *j = (wr_json){.out = out}; }

static bool level_bit(uint32_t bits, int depth) { return depth > 0 && (bits >> (depth - 1) & 1) != 0; }

/* Before anything that is an item of an array, a key, a value after its key, or the one value at the top. */
static void separate(wr_json *j, bool key) {
  bool in_object = level_bit(j->is_object, j->depth);
  if (in_object != (key || j->after_key) || (key && j->after_key) || (j->depth == 0 && j->any)) j->bad = true;
  if (!j->after_key && level_bit(j->has_items, j->depth)) fputs(", ", j->out);
  if (j->depth > 0) j->has_items |= 1u << (j->depth - 1);
  j->after_key = false;
  j->any = true;
}

static void open_level(wr_json *j, bool object) {
  separate(j, false);
  if (j->depth == MAX_DEPTH) {
    j->bad = true;
    return;
  }
  uint32_t bit = 1u << j->depth++;
  j->is_object = object ? j->is_object | bit : j->is_object & ~bit;
  j->has_items &= ~bit;
  fputc(object ? '{' : '[', j->out);
}

void wr_json_object(wr_json *j) { open_level(j, true); }
void wr_json_array(wr_json *j) { open_level(j, false); }

void wr_json_end(wr_json *j) {
  if (j->depth == 0 || j->after_key) {
    j->bad = true;
    return;
  }
  fputc(level_bit(j->is_object, j->depth) ? '}' : ']', j->out);
  j->depth--;
}

/* Bytes of the UTF-8 sequence at p[0..n), 0 if there is none. */
static size_t sequence(const unsigned char *p, size_t n) {
  size_t len = p[0] < 0x80 ? 1 : p[0] < 0xC2 ? 0 : p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : p[0] < 0xF5 ? 4 : 0;
  if (len == 0 || len > n) return 0;
  for (size_t i = 1; i < len; i++)
    if ((p[i] & 0xC0) != 0x80) return 0;
  if (p[0] == 0xE0 && p[1] < 0xA0) return 0; /* overlong */
  if (p[0] == 0xED && p[1] > 0x9F) return 0; /* surrogates */
  if (p[0] == 0xF0 && p[1] < 0x90) return 0; /* overlong */
  if (p[0] == 0xF4 && p[1] > 0x8F) return 0; /* above U+10FFFF */
  return len;
}

static void put_string(wr_json *j, const char *text, size_t n) {
  static const char plain[] = "\b\f\n\r\t\"\\", letter[] = "bfnrt\"\\";
  const unsigned char *p = (const unsigned char *)text;
  fputc('"', j->out);
  for (size_t at = 0; at < n;) {
    size_t len = sequence(p + at, n - at);
    const char *known = p[at] ? strchr(plain, p[at]) : NULL;
    if (len == 0)
      fputs("\xEF\xBF\xBD", j->out), len = 1;
    else if (known)
      fputc('\\', j->out), fputc(letter[known - plain], j->out);
    else if (p[at] < 0x20 || p[at] == 0x7F)
      fprintf(j->out, "\\u%04x", p[at]);
    else if (p[at] == 0xC2 && p[at + 1] < 0xA0)
      fprintf(j->out, "\\u%04x", p[at + 1]); /* C1 controls, which terminals obey */
    else
      fwrite(p + at, 1, len, j->out);
    at += len;
  }
  fputc('"', j->out);
}

void wr_json_key_bytes(wr_json *j, const char *key, size_t n) {
  separate(j, true);
  put_string(j, key, n);
  fputs(": ", j->out);
  j->after_key = true;
}

void wr_json_key(wr_json *j, const char *key) { wr_json_key_bytes(j, key, strlen(key)); }

void wr_json_bytes(wr_json *j, const char *text, size_t n) {
  separate(j, false);
  put_string(j, text, n);
}

void wr_json_text(wr_json *j, const char *text) {
  if (text)
    wr_json_bytes(j, text, strlen(text));
  else
    wr_json_null(j);
}

static void put_number(wr_json *j, double v, int digits) {
  separate(j, false);
  if (isfinite(v))
    fprintf(j->out, "%.*g", digits, v);
  else
    fputs("null", j->out);
}

void wr_json_double(wr_json *j, double v) { put_number(j, v, 17); }
void wr_json_float(wr_json *j, float v) { put_number(j, (double)v, 9); }

void wr_json_int(wr_json *j, int64_t v) {
  separate(j, false);
  fprintf(j->out, "%" PRId64, v);
}

void wr_json_uint(wr_json *j, uint64_t v) {
  separate(j, false);
  fprintf(j->out, "%" PRIu64, v);
}

void wr_json_bool(wr_json *j, bool v) {
  separate(j, false);
  fputs(v ? "true" : "false", j->out);
}

void wr_json_null(wr_json *j) {
  separate(j, false);
  fputs("null", j->out);
}

void wr_json_number(wr_json *j, const char *key, double v) {
  wr_json_key(j, key);
  wr_json_double(j, v);
}

void wr_json_integer(wr_json *j, const char *key, int64_t v) {
  wr_json_key(j, key);
  wr_json_int(j, v);
}

void wr_json_count(wr_json *j, const char *key, uint64_t v) {
  wr_json_key(j, key);
  wr_json_uint(j, v);
}

void wr_json_flag(wr_json *j, const char *key, bool v) {
  wr_json_key(j, key);
  wr_json_bool(j, v);
}

void wr_json_string(wr_json *j, const char *key, const char *text) {
  wr_json_key(j, key);
  wr_json_text(j, text);
}

bool wr_json_done(wr_json *j) {
  fputc('\n', j->out);
  return fflush(j->out) == 0 && !ferror(j->out) && !j->bad && j->depth == 0 && j->any;
}
