/* jsonl.c: owns one line of JSONL: is it a JSON object (RFC 8259, to the last byte), and which text does its field hold?
 *
 * A scanner without a tree: it walks the line once, keeps one bit a level of nesting, and remembers where the field's string lies.
 * Nothing is copied unless the string has escapes. A line of a million brackets costs a walk to level MAX_DEPTH.
 * Refused, with rule and column: what is not JSON, not an object, not UTF-8; the field missing, there twice, or not a string; a
 * surrogate in it that has no partner, because it could not be written as UTF-8. */
#include "data/data_i.h"

#define MAX_DEPTH 512

typedef struct scan {
  const char *at, *begin, *end;
  const char *rule; /* of the first thing that is wrong; then `at` is where */
  uint64_t is_object[MAX_DEPTH / 64];
  unsigned depth;
} scan;

static bool wrong(scan *s, const char *rule) {
  if (!s->rule) s->rule = rule;
  return false;
}

static void skip_space(scan *s) {
  while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r')) s->at++;
}

static int hex(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char low = (char)(c | 32);
  return low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
}

/* at an escape's backslash */
static bool escape(scan *s) {
  if (s->end - s->at < 2) return wrong(s, "the line ends inside a string");
  const char c = s->at[1];
  if (c != 'u') {
    if (!c || !strchr("\"\\/bfnrt", c)) return wrong(s, "a backslash before a character that cannot be escaped");
    s->at += 2;
    return true;
  }
  for (int i = 2; i < 6; i++)
    if (s->end - s->at <= i || hex(s->at[i]) < 0) return wrong(s, "\\u without four hexadecimal digits");
  s->at += 6;
  return true;
}

/* at the opening quote; [*from, *to) is what lies between the quotes */
static bool string(scan *s, const char **from, const char **to, bool *escaped) {
  *from = ++s->at;
  *escaped = false;
  for (;;) {
    while (s->at < s->end && *s->at != '"' && *s->at != '\\' && (unsigned char)*s->at >= 0x20) s->at++;
    if (s->at == s->end) return wrong(s, "the line ends inside a string");
    if (*s->at == '"') break;
    if (*s->at != '\\') return wrong(s, "a control character inside a string");
    *escaped = true;
    if (!escape(s)) return false;
  }
  *to = s->at++;
  return true;
}

static bool digits(scan *s) {
  const char *from = s->at;
  while (s->at < s->end && *s->at >= '0' && *s->at <= '9') s->at++;
  return s->at > from || wrong(s, "a number that is not complete");
}

static bool number(scan *s) {
  if (*s->at == '-') s->at++;
  if (s->at < s->end && *s->at == '0')
    s->at++;
  else if (!digits(s))
    return false;
  if (s->at < s->end && *s->at == '.') {
    s->at++;
    if (!digits(s)) return false;
  }
  if (s->at < s->end && (*s->at | 32) == 'e') {
    s->at++;
    if (s->at < s->end && (*s->at == '+' || *s->at == '-')) s->at++;
    return digits(s);
  }
  return true;
}

static bool word(scan *s) {
  static const char *const words[] = {"true", "false", "null"};
  for (size_t i = 0; i < WR_ARRAY_LEN(words); i++) {
    const size_t n = strlen(words[i]);
    if ((size_t)(s->end - s->at) >= n && memcmp(s->at, words[i], n) == 0) {
      s->at += n;
      return true;
    }
  }
  return wrong(s, s->at == s->end ? "the line ends before the object does" : "not JSON");
}

static bool push(scan *s, bool object) {
  if (s->depth == MAX_DEPTH) return wrong(s, "nested more than 512 levels deep");
  const uint64_t bit = 1ull << s->depth % 64;
  if (object)
    s->is_object[s->depth / 64] |= bit;
  else
    s->is_object[s->depth / 64] &= ~bit;
  s->depth++;
  s->at++;
  return true;
}

static bool in_object(const scan *s) { return s->is_object[(s->depth - 1) / 64] >> (s->depth - 1) % 64 & 1; }

/* ---- unescaping */

static unsigned unit(const char *p) { /* of \uXXXX */
  return (unsigned)(hex(p[2]) << 12 | hex(p[3]) << 8 | hex(p[4]) << 4 | hex(p[5]));
}

static char *put_utf8(char *to, unsigned c) {
  if (c < 0x80) {
    *to++ = (char)c;
  } else if (c < 0x800) {
    *to++ = (char)(0xc0 | c >> 6);
    *to++ = (char)(0x80 | (c & 63));
  } else if (c < 0x10000) {
    *to++ = (char)(0xe0 | c >> 12);
    *to++ = (char)(0x80 | (c >> 6 & 63));
    *to++ = (char)(0x80 | (c & 63));
  } else {
    *to++ = (char)(0xf0 | c >> 18);
    *to++ = (char)(0x80 | (c >> 12 & 63));
    *to++ = (char)(0x80 | (c >> 6 & 63));
    *to++ = (char)(0x80 | (c & 63));
  }
  return to;
}

/* Escapes that were checked already. The result is never longer. NULL: a surrogate without a partner, at *bad_at. */
static char *unescape(const char *from, const char *end, char *to, const char **bad_at) {
  static const char names[] = "bfnrt", values[] = "\b\f\n\r\t";
  while (from < end) {
    const char *stop = memchr(from, '\\', (size_t)(end - from));
    const size_t n = (size_t)((stop ? stop : end) - from);
    memmove(to, from, n);
    to += n;
    from += n;
    if (!stop) break;
    if (from[1] != 'u') {
      const char *name = strchr(names, from[1]);
      *to++ = name ? values[name - names] : from[1];
      from += 2;
      continue;
    }
    unsigned c = unit(from);
    *bad_at = from;
    from += 6;
    if (c >= 0xdc00 && c < 0xe000) return NULL;
    if (c >= 0xd800 && c < 0xdc00) {
      const bool pair = end - from >= 6 && from[0] == '\\' && from[1] == 'u' && unit(from) >= 0xdc00 && unit(from) < 0xe000;
      if (!pair) return NULL;
      c = 0x10000 + ((c - 0xd800) << 10) + (unit(from) - 0xdc00);
      from += 6;
    }
    to = put_utf8(to, c);
  }
  return to;
}

/* ---- the line */

typedef struct found {
  const char *name;
  size_t name_len;
  const char *from, *to; /* of the string */
  bool there, escaped;
} found;

static bool is_field(const found *f, const char *from, const char *to, bool escaped) {
  char key[256];
  const char *bad_at, *end = to;
  if (escaped) {
    if (to - from > (ptrdiff_t)sizeof key) return false;
    end = unescape(from, to, key, &bad_at);
    if (!end) return false;
    from = key;
  }
  return (size_t)(end - from) == f->name_len && memcmp(from, f->name, f->name_len) == 0;
}

/* key and colon; at the value afterwards. *wanted: the value is the field's. */
static bool key(scan *s, found *f, bool *wanted) {
  const char *from, *to, *at = s->at;
  bool escaped;
  if (s->at == s->end) return wrong(s, "the line ends before the object does");
  if (*s->at != '"') return wrong(s, "a key of an object must be a string");
  if (!string(s, &from, &to, &escaped)) return false;
  *wanted = s->depth == 1 && is_field(f, from, to, escaped);
  if (*wanted && f->there) {
    s->at = at;
    return wrong(s, "the field is there twice");
  }
  skip_space(s);
  if (s->at == s->end || *s->at != ':')
    return wrong(s, s->at == s->end ? "the line ends before the object does" : "no ':' after a key");
  s->at++;
  skip_space(s);
  return true;
}

/* One value that is neither object nor array. */
static bool leaf(scan *s, found *f, bool wanted) {
  const char *from, *to;
  bool escaped;
  if (s->at < s->end && *s->at == '"') {
    if (!string(s, &from, &to, &escaped)) return false;
    if (wanted) *f = (found){f->name, f->name_len, from, to, true, escaped};
    return true;
  }
  return s->at < s->end && (*s->at == '-' || (*s->at >= '0' && *s->at <= '9')) ? number(s) : word(s);
}

static bool object(scan *s, found *f) {
  bool wanted = false, value_next = true;
  const char *bad_type = NULL; /* the field has a value that is not a string; told only when the line is JSON at all */
  do {
    skip_space(s);
    if (value_next) {
      const char c = s->at < s->end ? *s->at : 0, *at = s->at;
      if (wanted && c != '"') bad_type = at;
      if (c == '{' || c == '[') {
        if (wanted) f->there = true;
        if (!push(s, c == '{')) return false;
        skip_space(s);
        wanted = false;
        if (s->at < s->end && *s->at == (c == '{' ? '}' : ']'))
          value_next = false;
        else if (c == '{' && !key(s, f, &wanted))
          return false;
        continue;
      }
      if (!leaf(s, f, wanted)) return false;
      if (wanted) f->there = true;
      wanted = value_next = false;
      continue;
    }
    if (s->at == s->end) return wrong(s, "the line ends before the object does");
    const bool in = in_object(s);
    const char c = *s->at;
    if (c == (in ? '}' : ']')) {
      s->at++;
      s->depth--;
    } else if (c == ',') {
      s->at++;
      skip_space(s);
      wanted = false;
      if (in && !key(s, f, &wanted)) return false;
      value_next = true;
    } else {
      return wrong(s, in ? "no ',' or '}' after a value" : "no ',' or ']' after a value");
    }
  } while (s->depth);
  skip_space(s);
  if (s->at < s->end) return wrong(s, "something follows the object");
  if (bad_type) {
    s->at = bad_type;
    return wrong(s, "the field is not a string");
  }
  s->at = s->begin;
  return f->from || wrong(s, "the field is missing");
}

wr_record wr_jsonl_field(const char *line, size_t len, const char *field, char **scratch, size_t *scratch_cap,
                         const char **text, size_t *n, size_t *column, const char **rule) {
  scan s = {.at = line, .begin = line, .end = line + len};
  found f = {.name = field, .name_len = strlen(field)};
  const char *bad_at = NULL;
  const size_t valid = wr_utf8_valid(line, len);
  skip_space(&s);
  bool ok;
  if (valid < len) {
    s.at = line + valid;
    ok = wrong(&s, "not UTF-8");
  } else if (s.at == s.end || *s.at != '{') {
    ok = wrong(&s, "not a JSON object");
  } else {
    ok = object(&s, &f);
  }
  if (ok && f.escaped) {
    if (!wr_grow((void **)scratch, scratch_cap, (size_t)(f.to - f.from), 1)) return WR_RECORD_NOMEM;
    const char *end = unescape(f.from, f.to, *scratch, &bad_at);
    if (end) {
      *text = *scratch;
      *n = (size_t)(end - *scratch);
      return WR_RECORD_OK;
    }
    s.at = bad_at;
    ok = wrong(&s, "half of a surrogate pair in the field");
  }
  if (!ok) {
    *column = (size_t)(s.at - line) + 1;
    *rule = s.rule;
    return WR_RECORD_BAD;
  }
  *text = f.from;
  *n = (size_t)(f.to - f.from);
  return WR_RECORD_OK;
}
