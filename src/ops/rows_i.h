/* Turns a family's table of kernels into declarations and into one `static const wr_row <op>_rows[]` an op. In <family>.c:
 *
 *   #define WR_ROWS_FILE "ops/norm/norm.def"
 *   #include "ops/rows_i.h"
 *   const wr_op wr_op_rmsnorm = {..., .rows = rmsnorm_rows, .n_rows = WR_ARRAY_LEN(rmsnorm_rows), ...};
 *
 * The file holds, for each op, its rows, best first, the reference last:
 *
 *   ROWS(rmsnorm,
 *     ROW_ISAS(rmsnorm_f32_cpu, "x:f32 w:f32 y:f32", "f32", NULL, NULL)
 *     ROW(cpu, GENERIC, rmsnorm_ref, "x:f32|f64 ...", "ref", NULL, NULL))
 *
 * ROW(device, isa, name, types, klass, refuse, scratch): one kernel; `name` is the function, the row and the bench line.
 * ROW_ISAS(name, types, klass, refuse, scratch): a kernel of <family>_cpu.c, which is compiled once for each instruction set:
 * the rows name_avx512, name_avx2, name_generic (WR_EACH_ISA), all of the same numeric class.
 * ROW_X86(isa, name, types, klass, refuse, scratch): a kernel of <family>_cpu_avx512.c or _avx2.c, which only x86 has.
 * ROW_DEV(name, types, klass, refuse, scratch): kernels of <family>_dev.c, which the launch function `name` starts. They stand before the
 * reference and after the CPU's.
 */
#define ROW_ISA(LEVEL, isa, name, ...) ROW(cpu, LEVEL, name##_##isa, __VA_ARGS__)
#define ROW_ISAS(name, ...) WR_EACH_ISA(ROW_ISA, name, __VA_ARGS__)
#if defined(__x86_64__)
#define ROW_X86(isa, name, types, klass, refuse, scratch) ROW(cpu, isa, name, types, klass, refuse, scratch)
#else
#define ROW_X86(isa, name, types, klass, refuse, scratch)
#endif

#define ROWS(op, ...) __VA_ARGS__
#define ROW(device, isa, name, types, klass, refuse, scratch) WR_ROW_FN(name);
#define ROW_DEV(name, types, klass, refuse, scratch) wr_launch_fn name;
#include WR_ROWS_FILE
#undef ROWS
#undef ROW
#undef ROW_DEV

#define ROWS(op, ...) static const wr_row op##_rows[] = {__VA_ARGS__};
#define ROW(device, isa, name, types, klass, refuse, scratch) \
  {#name, #device, WR_ISA_##isa, types, klass, refuse, scratch, name, NULL},
#define ROW_DEV(name, types, klass, refuse, scratch) {#name, "dev", 0, types, klass, refuse, scratch, NULL, name},
#include WR_ROWS_FILE
#undef ROWS
#undef ROW
#undef ROW_DEV
#undef ROW_ISAS
#undef ROW_X86
#undef ROW_ISA
