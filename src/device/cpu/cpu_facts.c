/* cpu_facts.c: owns what the CPU says about itself: name, instruction sets that CPU and OS both allow, caches, and the lowering
 * of the instruction set by WEIR_ISA.
 *
 * A feature counts only when the OS saves its registers (XCR0), else the first use would be an illegal instruction. AMX needs
 * one thing more, Linux's leave to enlarge every signal frame by its tiles: it is asked for here, for the whole process.
 * References: Intel 64 SDM vol. 1 §13 (XCR0), vol. 2 CPUID; Linux, Documentation/arch/x86/xstate.rst; arm64/elf_hwcaps.rst,
 * arm64/cpu-feature-registers.rst.
 */
#include "device/cpu/cpu.h"

#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#if defined(__x86_64__)
  #include <cpuid.h>
#elif defined(__aarch64__)
  #include <sys/auxv.h>
#endif

#define LEVEL_NAME(LEVEL, isa, _) [WR_ISA_##LEVEL] = #isa,
static const char *const level_names[] = {WR_EACH_ISA(LEVEL_NAME, )};
static const struct {
  uint32_t bit;
  const char *name;
} features[] = {{WR_ISA_AVX512_FP16, "fp16"}, {WR_ISA_AVX512_BF16, "bf16"}, {WR_ISA_AMX_INT8, "amx"}};

#if defined(__x86_64__)

enum { XCR0_AVX = 0x6, XCR0_AVX512 = 0xe6, XCR0_AMX = 0x60000 };

static uint64_t xcr0(void) {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
}

static bool all_bits(uint32_t reg, uint32_t bits) { return (reg & bits) == bits; }

static bool amx_allowed(void) {
  enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static uint32_t isa_of_machine(void) {
  uint32_t a, b, c, d, a7, b7, c7, d7, sub_a = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return WR_ISA_GENERIC;
  if (!all_bits(c, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C)) return WR_ISA_GENERIC;
  uint64_t saved = xcr0();
  if (!__get_cpuid_count(7, 0, &a7, &b7, &c7, &d7)) return WR_ISA_GENERIC;
  if (!all_bits(b7, bit_AVX2) || (saved & XCR0_AVX) != XCR0_AVX) return WR_ISA_GENERIC;
  uint32_t isa = WR_ISA_AVX2;
  if (a7 >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) sub_a = a;
  if ((saved & XCR0_AVX512) == XCR0_AVX512 && all_bits(b7, bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ) &&
      all_bits(c7, bit_AVX512VNNI)) {
    isa = WR_ISA_AVX512;
    if (d7 & 1u << 23) isa |= WR_ISA_AVX512_FP16;
    if (sub_a & 1u << 5) isa |= WR_ISA_AVX512_BF16;
    if (all_bits(d7, 1u << 24 | 1u << 25) && (saved & XCR0_AMX) == XCR0_AMX && amx_allowed()) isa |= WR_ISA_AMX_INT8;
  }
  return isa;
}

static void model_name(char out[64]) {
  uint32_t words[12], a, b, c, d;
  char brand[sizeof words + 1] = "";
  if (__get_cpuid(0x80000000, &a, &b, &c, &d) && a >= 0x80000004)
    for (uint32_t i = 0; i < 3; i++)
      __get_cpuid(0x80000002 + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2], &words[4 * i + 3]);
  else
    memset(words, 0, sizeof words);
  memcpy(brand, words, sizeof words);
  /* padded with blanks on either side or inside; and a hypervisor may write anything */
  size_t n = 0;
  for (const char *p = brand; *p; p++) {
    char ch = *p > ' ' && *p < 0x7f ? *p : ' ';
    if (ch != ' ' || (n && out[n - 1] != ' ')) out[n++] = ch;
  }
  while (n && out[n - 1] == ' ') n--;
  out[n] = '\0';
}

#elif defined(__aarch64__)

enum { NEON_HWCAPS = HWCAP_ASIMD | HWCAP_ASIMDDP };

static uint32_t isa_of_machine(void) {
  return (getauxval(AT_HWCAP) & NEON_HWCAPS) == NEON_HWCAPS ? WR_ISA_NEON : WR_ISA_GENERIC;
}

/* There are no names in the CPU, only numbers, which the kernel lets everyone read. Arm's own (MIDR_EL1; their reference manuals): */
static void model_name(char out[64]) {
  static const struct {
    uint32_t part;
    const char *name;
  } parts[] = {{0xd03, "Cortex-A53"}, {0xd05, "Cortex-A55"},   {0xd08, "Cortex-A72"},   {0xd0b, "Cortex-A76"}, {0xd0c, "Neoverse N1"},
               {0xd40, "Neoverse V1"}, {0xd49, "Neoverse N2"}, {0xd4f, "Neoverse V2"}};
  enum { ARM = 0x41 };
  uint64_t midr;
  out[0] = '\0';
  if (!(getauxval(AT_HWCAP) & HWCAP_CPUID)) return;
  __asm__("mrs %0, MIDR_EL1" : "=r"(midr));
  const uint32_t maker = (uint32_t)(midr >> 24) & 0xff, part = (uint32_t)(midr >> 4) & 0xfff;
  snprintf(out, 64, "Arm CPU, maker 0x%02x, part 0x%03x", maker, part);
  for (size_t i = 0; maker == ARM && i < WR_ARRAY_LEN(parts); i++)
    if (parts[i].part == part) snprintf(out, 64, "Arm %s", parts[i].name);
}

#else

static uint32_t isa_of_machine(void) { return WR_ISA_GENERIC; }

static void model_name(char out[64]) { out[0] = '\0'; }

#endif

const char *wr_isa_name(uint32_t isa) {
  uint32_t level = isa & WR_ISA_LEVEL_MASK;
  return level < WR_ARRAY_LEN(level_names) ? level_names[level] : "unknown";
}

const char *wr_isa_missing(uint32_t needed, uint32_t have) {
  if ((needed & WR_ISA_LEVEL_MASK) > (have & WR_ISA_LEVEL_MASK)) return wr_isa_name(needed);
  for (size_t i = 0; i < WR_ARRAY_LEN(features); i++)
    if (needed & ~have & features[i].bit) return features[i].name;
  return NULL;
}

void wr_machine_set_isa(weir_machine *m, uint32_t isa) {
  size_t n = 0;
  snprintf(m->isa, sizeof m->isa, "%s", wr_isa_name(isa));
  m->features[0] = '\0';
  for (size_t i = 0; i < WR_ARRAY_LEN(features); i++)
    if (isa & features[i].bit) n += (size_t)snprintf(m->features + n, sizeof m->features - n, "%s%s", n ? " " : "", features[i].name);
}

weir_status wr_isa_detect(uint32_t *out) {
  uint32_t isa = isa_of_machine(), best = isa & WR_ISA_LEVEL_MASK;
  const char *wanted = getenv("WEIR_ISA");
  if (!wanted || !*wanted) {
    *out = isa;
    return WEIR_OK;
  }
  for (uint32_t level = 0; level <= best; level++)
    if (strcmp(wanted, level_names[level]) == 0) {
      *out = level; /* the plain level: no features on top, so that a result can be traced to it */
      return WEIR_OK;
    }
  char choices[64];
  size_t n = 0;
  for (uint32_t level = 0; level <= best; level++)
    n += (size_t)snprintf(choices + n, sizeof choices - n, "%s%s", level ? ", " : "", level_names[level]);
  return wr_fail(WEIR_EUSAGE, "WEIR_ISA is \"%s\"; this machine can do: %s", wr_escape(wanted, strlen(wanted)), choices);
}

/* The first line of a file of /sys as a string. */
static bool read_line(const char *path, char *out, int cap) {
  FILE *f = fopen(path, "re");
  if (!f) return false;
  bool got = fgets(out, cap, f) != NULL;
  fclose(f);
  return got;
}

/* "48K", "2M" */
static size_t cache_bytes(const char *text) {
  char *unit;
  unsigned long n = strtoul(text, &unit, 10);
  if (n > 1u << 30) return 0;
  return *unit == 'K' ? n << 10 : *unit == 'M' ? n << 20 : n;
}

static void caches(wr_cpu_facts *f) {
  for (int i = 0; i < 16; i++) {
    char path[96], text[64];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/type", i);
    if (!read_line(path, text, sizeof text)) break;
    if (text[0] == 'I') continue; /* Instruction */
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/level", i);
    if (!read_line(path, text, sizeof text)) continue;
    size_t *into = text[0] == '1' ? &f->l1d_bytes : text[0] == '2' ? &f->l2_bytes : text[0] == '3' ? &f->l3_bytes : NULL;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
    if (into && read_line(path, text, sizeof text)) *into = cache_bytes(text);
  }
  /* where /sys has no caches, the C library may still know them from the CPU */
  if (!f->l1d_bytes) f->l1d_bytes = (size_t)WR_MAX(sysconf(_SC_LEVEL1_DCACHE_SIZE), 0);
  if (!f->l2_bytes) f->l2_bytes = (size_t)WR_MAX(sysconf(_SC_LEVEL2_CACHE_SIZE), 0);
  if (!f->l3_bytes) f->l3_bytes = (size_t)WR_MAX(sysconf(_SC_LEVEL3_CACHE_SIZE), 0);
}

void wr_cpu_facts_get(wr_cpu_facts *out) {
  wr_cpu_facts f = {0};
  struct utsname name;
  model_name(f.model);
  if (!f.model[0]) strcpy(f.model, "unknown CPU");
  if (uname(&name) == 0) snprintf(f.kernel, sizeof f.kernel, "%.12s %.64s", name.sysname, name.release);
  f.isa = isa_of_machine();
  f.n_cpus = (int)WR_MAX(sysconf(_SC_NPROCESSORS_ONLN), 1);
  f.threads = wr_default_threads();
  f.memory_bytes = (uint64_t)WR_MAX(sysconf(_SC_PHYS_PAGES), 0) * (uint64_t)sysconf(_SC_PAGESIZE);
  caches(&f);
  *out = f;
}
