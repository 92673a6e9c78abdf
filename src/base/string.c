/* string.c: owns byte strings that grow, UTF-8 (RFC 3629), text that is safe to show, and sizes as text.
 *
 * Text from a file or a user is hostile: shown raw, it could move the cursor of a terminal or turn the direction of a line.
 * What is not harmless is shown as the escape \xNN of each of its bytes.
 */
#include "base/base_i.h"

/* ---- growing string */

/* Room for n more bytes and a NUL. */
static bool str_reserve(wr_str *s, size_t n) {
  size_t need;
  if (s->oom) return false;
  if (!wr_add_size(s->len, n, &need) || !wr_add_size(need, 1, &need)) {
    s->oom = true;
    return false;
  }
  void *ptr = s->ptr;
  if (!wr_grow(&ptr, &s->cap, need, 1)) {
    s->oom = true;
    return false;
  }
  s->ptr = ptr;
  return true;
}

void wr_str_put(wr_str *s, const void *bytes, size_t n) {
  if (!str_reserve(s, n)) return;
  if (n) memcpy(s->ptr + s->len, bytes, n);
  s->len += n;
  s->ptr[s->len] = '\0';
}

void wr_str_puts(wr_str *s, const char *z) { wr_str_put(s, z, strlen(z)); }

void wr_str_printf(wr_str *s, const char *fmt, ...) {
  va_list args, again;
  va_start(args, fmt);
  va_copy(again, args);
  int n = vsnprintf(NULL, 0, fmt, args);
  if (n >= 0 && str_reserve(s, (size_t)n)) {
    vsnprintf(s->ptr + s->len, (size_t)n + 1, fmt, again);
    s->len += (size_t)n;
  }
  va_end(again);
  va_end(args);
}

void wr_str_clear(wr_str *s) {
  s->len = 0;
  if (s->ptr) s->ptr[0] = '\0';
}

void wr_str_free(wr_str *s) {
  wr_free(s->ptr);
  *s = (wr_str){0};
}

/* ---- UTF-8 */

/* What may follow a lead byte: the length of the sequence and the range of its second byte. The ranges of the second byte are
 * what shuts out overlong forms (E0, F0), surrogates (ED) and values above U+10FFFF (F4). Length 0: no lead byte. */
static int utf8_lead(uint8_t lead, uint8_t *low, uint8_t *high) {
  *low = 0x80;
  *high = 0xbf;
  if (lead < 0x80) return 1;
  if (lead < 0xc2) return 0;
  if (lead < 0xe0) return 2;
  if (lead < 0xf0) {
    if (lead == 0xe0) *low = 0xa0;
    if (lead == 0xed) *high = 0x9f;
    return 3;
  }
  if (lead < 0xf5) {
    if (lead == 0xf0) *low = 0x90;
    if (lead == 0xf4) *high = 0x8f;
    return 4;
  }
  return 0;
}

/* How the bytes begin: > 0: the length of a whole character; 0: nothing that can become one; < 0: -(bytes there) of a character
 * whose end is missing. n >= 1. */
static int utf8_at(const uint8_t *p, size_t n) {
  uint8_t low, high;
  int length = utf8_lead(p[0], &low, &high);
  for (int i = 1; i < length; i++) {
    if ((size_t)i == n) return -i;
    if (p[i] < low || p[i] > high) return 0;
    low = 0x80;
    high = 0xbf;
  }
  return length;
}

size_t wr_utf8_valid(const void *bytes, size_t n) {
  const uint8_t *p = bytes;
  size_t at = 0;
  while (at < n) {
    if (p[at] < 0x80) {
      at++;
      continue;
    }
    int length = utf8_at(p + at, n - at);
    if (length <= 0) break;
    at += (size_t)length;
  }
  return at;
}

size_t wr_utf8_partial(const void *bytes, size_t n) {
  const uint8_t *p = bytes;
  for (size_t back = 1; back <= 3 && back <= n; back++) {
    uint8_t byte = p[n - back];
    if ((byte & 0xc0) == 0x80) continue; /* a continuation byte: its lead is before it */
    return utf8_at(p + n - back, back) < 0 ? back : 0;
  }
  return 0;
}

/* ---- text that is safe to show */

/* Controls (C0, DEL, C1), line and paragraph separators, and the marks that turn the direction of what follows. */
static bool harmless(const uint8_t *p, int length) {
  if (length == 1) return p[0] >= 0x20 && p[0] != 0x7f;
  if (length == 2) return !(p[0] == 0xc2 && p[1] < 0xa0);
  if (length == 3 && p[0] == 0xe2 && p[1] == 0x80) return !(p[2] >= 0xa8 && p[2] <= 0xae) && p[2] != 0x8e && p[2] != 0x8f;
  if (length == 3 && p[0] == 0xe2 && p[1] == 0x81) return !(p[2] >= 0xa6 && p[2] <= 0xa9);
  return true;
}

/* The next character of `bytes` as it may be shown. Returns how many bytes it took; `out` is NUL-terminated. */
static size_t escape_next(const uint8_t *bytes, size_t n, char out[20]) {
  int length = utf8_at(bytes, n);
  if (length > 0 && harmless(bytes, length)) {
    memcpy(out, bytes, (size_t)length);
    out[length] = '\0';
    return (size_t)length;
  }
  int take = length > 0 ? length : 1;
  for (int i = 0; i < take; i++) snprintf(out + 4 * i, 5, "\\x%02X", bytes[i]);
  return (size_t)take;
}

void wr_str_escape(wr_str *s, const char *bytes, size_t n) {
  char shown[20];
  for (size_t at = 0; at < n;) {
    at += escape_next((const uint8_t *)bytes + at, n - at, shown);
    wr_str_puts(s, shown);
  }
}

void wr_str_json(wr_str *s, const char *bytes, size_t n) {
  wr_str_puts(s, "\"");
  for (size_t i = 0, len; i < n; i += len) {
    const unsigned char c = (unsigned char)bytes[i];
    const size_t valid = c < 0x80 ? 1 : wr_utf8_valid(bytes + i, WR_MIN(n - i, (size_t)4));
    len = 1; /* of the first character */
    while (len < valid && ((unsigned char)bytes[i + len] & 0xc0) == 0x80) len++;
    if (c == '"' || c == '\\')
      wr_str_printf(s, "\\%c", c);
    else if (c < 0x20 || c == 0x7f)
      wr_str_printf(s, "\\u%04x", c);
    else if (valid)
      wr_str_put(s, bytes + i, len);
    else
      wr_str_puts(s, "\\ufffd");
  }
  wr_str_puts(s, "\"");
}

#define ESCAPE_CHARS 120

bool wr_ends_with(const char *s, const char *end) {
  const size_t n = strlen(s), k = strlen(end);
  return n >= k && memcmp(s + n - k, end, k) == 0;
}

const char *wr_escape(const char *bytes, size_t n) {
  static _Thread_local char ring[4][4 * ESCAPE_CHARS + 4];
  static _Thread_local unsigned turn;
  char *out = ring[turn++ % 4], shown[20];
  size_t length = 0;
  int chars = 0;
  for (size_t at = 0; at < n;) {
    at += escape_next((const uint8_t *)bytes + at, n - at, shown);
    size_t width = strlen(shown);
    chars += shown[0] == '\\' ? (int)width : 1;
    if (chars > ESCAPE_CHARS) {
      memcpy(out + length, "...", 3);
      length += 3;
      break;
    }
    memcpy(out + length, shown, width);
    length += width;
  }
  out[length] = '\0';
  return out;
}

/* ---- sizes */

void wr_size_text(char out[16], uint64_t bytes) {
  static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  if (bytes < 1000) {
    snprintf(out, 16, "%u B", (unsigned)bytes);
    return;
  }
  double value = (double)bytes;
  size_t unit = 0;
  while (value >= 999.5) { /* what "%.0f" would show with four digits */
    value /= 1000;
    unit++;
  }
  int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  snprintf(out, 16, "%.*f %s", decimals, value, units[unit]);
}
