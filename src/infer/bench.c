/* weir_bench_ops: the kernels' own timing cases (ops/bench.c) held against this machine's measured limits. */
#include "infer/infer.h"
#include "ops/ops.h"

typedef struct bench {
  const weir_machine *machine;
  int threads;
  weir_bench_fn fn;
  void *user;
  bool stopped;
} bench;

static void each(void *user, const wr_bench_op *r) {
  bench *b = user;
  if (b->stopped) return;
  const double bandwidth = weir_machine_gb_s(b->machine, (uint64_t)r->working_set_bytes, b->threads),
               of_type = weir_machine_gop_s(b->machine, r->factors, b->threads),
               peak = of_type > 0 ? of_type : weir_machine_gop_s(b->machine, "fp32", b->threads);
  const double bytes_us = bandwidth > 0 ? r->bytes / bandwidth / 1e3 : 0, flop_us = peak > 0 ? r->flop / peak / 1e3 : 0;
  const bool by_bytes = bytes_us >= flop_us;
  const weir_bench_row row = {.name = r->name,
                              .shape = r->shape,
                              .us = r->us,
                              .bytes = r->bytes,
                              .flop = r->flop,
                              .gb_s = r->bytes / r->us / 1e3,
                              .gflop_s = r->flop / r->us / 1e3,
                              .peak = by_bytes ? bandwidth : peak,
                              .bound_by_bytes = by_bytes,
                              .share = WR_MAX(bytes_us, flop_us) / r->us};
  b->stopped = b->fn(b->user, &row) != 0;
}

weir_status weir_bench_ops(weir_context *ctx, const weir_machine *machine, const weir_bench_options *options, weir_bench_fn fn,
                           void *user) {
  const weir_bench_options defaults = {0}, *o = options ? options : &defaults;
  if (!ctx->device->team)
    return wr_fail(WEIR_EUNSUPPORTED, "device %s runs no kernels: nothing can be timed on it", ctx->device->api->name);
  const wr_bench_ops_options inner = {.only = o->only, .reps = o->reps, .seconds = o->seconds};
  bench b = {machine, ctx->device->n_threads, fn, user, false};
  const weir_status s = wr_bench_ops(ctx->device, &inner, each, &b);
  if (s != WEIR_OK) return s;
  return b.stopped ? wr_fail(WEIR_ESTOPPED, "stopped by the callback") : WEIR_OK;
}
