/* The table of devices, hardware.def. */
#include <ctype.h>
#include <strings.h>

#include "infer/infer_i.h"

static const weir_hardware table[] = {
#define HW(vendor, device, memory, bandwidth, fp32, fp16, bf16, int8, onchip, sure, unsure, source) \
  {vendor, device, source, unsure, sure, memory, bandwidth, fp32, fp16, bf16, int8, onchip},
#include "infer/hardware.def"
#undef HW
};

int weir_hardware_count(void) { return (int)WR_ARRAY_LEN(table); }

weir_status weir_hardware_at(int i, weir_hardware *out) {
  if (i < 0 || i >= weir_hardware_count()) return wr_fail(WEIR_EUSAGE, "device %d is none of the %d", i, weir_hardware_count());
  *out = table[i];
  return WEIR_OK;
}

/* How well a part fits a name: 3 equal, 2 at the beginning of a word, 1 somewhere, 0 not at all. */
static int fit(const char *name, const char *part) {
  const size_t n = strlen(part);
  int best = 0;
  if (strcasecmp(name, part) == 0) return 3;
  for (const char *at = name; *at && best < 2; at++)
    if (n && strncasecmp(at, part, n) == 0) best = at == name || !isalnum((unsigned char)at[-1]) ? 2 : 1;
  return best;
}

weir_status weir_hardware_find(const char *part, weir_hardware *out) {
  int best = 0, matches = 0;
  const weir_hardware *found = NULL;
  for (size_t i = 0; i < WR_ARRAY_LEN(table); i++) {
    const int f = fit(table[i].device, part);
    if (!f || f < best) continue;
    matches = f > best ? 1 : matches + 1;
    best = f;
    found = &table[i];
  }
  if (!matches) return wr_fail(WEIR_EUSAGE, "no device of the table is called like '%s'", wr_escape(part, strlen(part)));
  if (matches == 1) {
    *out = *found;
    return WEIR_OK;
  }
  wr_str names = {0};
  for (size_t i = 0; i < WR_ARRAY_LEN(table); i++)
    if (fit(table[i].device, part) == best) wr_str_printf(&names, "%s%s", names.len ? ", " : "", table[i].device);
  const weir_status s =
      wr_fail(WEIR_EUSAGE, "'%s' may be any of: %s", wr_escape(part, strlen(part)), names.ptr ? names.ptr : "");
  wr_str_free(&names);
  return s;
}
