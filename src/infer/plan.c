/* Will it fit, and what will bound it.
 *
 * The model's step is built and planned on the null device, as it would be for a run, so weights, cache and activations are the
 * planner's own figures and not estimates beside it; no weight is read. Bytes and FLOPs of a decode step are the sums of its
 * instructions' cost rules, with the cache half full; the time of each is predicted from these and the device's figures. */
#include <stdlib.h>
#include <time.h>

#include "infer/infer_i.h"

typedef struct planning {
  weir_plan *r;
  wr_device *device; /* null */
  wr_mem mem;
  wr_model *m;
  double peak; /* operations a second; 0: unknown */
} planning;

static double larger(double a, double b) { return a > b ? a : b; }

static weir_plan_op *find_op(weir_plan *r, const char *op, const char *what) {
  for (size_t i = 0; i < r->n_ops; i++)
    if (strcmp(r->ops[i].op, op) == 0 && strcmp(r->ops[i].what, what) == 0) return &r->ops[i];
  return NULL;
}

/* Adds one call. r->ops has room for it. */
static weir_status add_op(planning *k, const wr_program *p, const wr_instr *in, const wr_cost *c) {
  weir_plan *r = k->r;
  char what[WR_GGUF_MAX_NAME + 1];
  const double bytes = c->read_bytes + c->write_bytes, by_bytes = bytes / (r->bandwidth_gb_s * 1e3),
               by_flop = k->peak > 0 ? c->flop / k->peak * 1e6 : 0;
  wr_weight_kind(p, in, what, sizeof what);
  weir_plan_op *o = find_op(r, in->op->name, what);
  if (!o) {
    char *copy = wr_strdup(what);
    if (!copy) return wr_fail_nomem(sizeof what, "a plan");
    o = &r->ops[r->n_ops++];
    *o = (weir_plan_op){.op = in->op->name, .what = copy};
  }
  o->bound_by_bytes = o->calls ? o->bound_by_bytes : by_bytes >= by_flop;
  o->calls++;
  o->bytes += bytes;
  o->flop += c->flop;
  o->us += larger(by_bytes, by_flop);
  return WEIR_OK;
}

static int by_time(const void *a, const void *b) {
  const weir_plan_op *x = a, *y = b;
  return x->us > y->us ? -1 : x->us < y->us;
}

/* One decode step of the batch: memory, bytes and FLOPs. */
static weir_status measure_step(planning *k, int rows, int out, int seqs, bool decode) {
  weir_plan *r = k->r;
  const int64_t pages = (r->context_tok + WR_KV_PAGE - 1) / WR_KV_PAGE;
  const wr_step_shape shape = {
      .rows = rows, .out = out, .seqs = seqs, .pages = pages * r->batch, .pages_a_seq = pages, .kv = wr_kv_dtype(r->kv)};
  wr_program p;
  wr_step_io io;
  wr_plan plan = {0};
  wr_program_init(&p);
  weir_status s = wr_step_build(&p, k->m, &shape, &io);
  if (s == WEIR_OK) s = wr_plan_make(&p, &k->mem, NULL, &plan);
  if (s == WEIR_OK) {
    r->work_bytes = larger(r->work_bytes, (double)plan.arena_bytes);
    wr_regs regs = {.live = {[WR_LIVE_ROWS] = rows, [WR_LIVE_OUT] = out, [WR_LIVE_SEQS] = seqs},
                    .kv_tok = WR_MAX(r->context_tok / 2, (int64_t)1) * rows};
    if (decode && !(r->ops = wr_calloc((size_t)WR_MAX(plan.list.n, 1), sizeof *r->ops)))
      s = wr_fail_nomem((size_t)plan.list.n * sizeof *r->ops, "a plan");
    for (int i = 0; decode && s == WEIR_OK && i < plan.list.n; i++) {
      wr_cost c;
      wr_plan_cost(&plan, i, &regs, &c);
      r->token_bytes += c.weight_bytes + c.kv_bytes;
      r->token_flop += c.flop / r->batch;
      s = add_op(k, &p, &p.instrs[i], &c);
    }
    if (decode && r->n_ops) qsort(r->ops, r->n_ops, sizeof *r->ops, by_time);
  }
  wr_plan_free(&plan);
  wr_program_free(&p);
  return s;
}

/* Figures that are too low, because something else ran then, must be seen as such, and be put right. */
static void describe_measuring(const weir_machine *m, char *out, size_t cap) {
  const time_t at = (time_t)m->date;
  struct tm utc = {0};
  char date[32];
  gmtime_r(&at, &utc);
  strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", &utc);
  snprintf(out, cap, "measured %s; too low if other load ran then: weir bench machine --refresh", m->cached ? date : "now");
}

/* What the device can do: a row of the table, or this machine as it was measured. */
static weir_status describe_device(planning *k, weir_context *ctx, const weir_plan_options *o) {
  weir_plan *r = k->r;
  char name[128], when[128];
  const char *source;
  weir_hardware hw;
  weir_machine *machine = NULL;
  if (o->on) {
    WR_TRY(weir_hardware_find(o->on, &hw));
    snprintf(name, sizeof name, "%s %s", hw.vendor, hw.device);
    source = hw.source;
    r->memory_bytes = hw.memory_gb * 1e9;
    r->bandwidth_gb_s = hw.bandwidth_gb_s;
    k->peak = larger(larger(hw.fp16_tflops, hw.bf16_tflops), hw.fp32_tflops) * 1e12;
  } else {
    machine = wr_malloc(sizeof *machine);
    if (!machine) return wr_fail_nomem(sizeof *machine, "the machine's figures");
    const weir_machine_options mo = {.quick = true};
    const weir_status s = weir_machine_measure(&mo, machine);
    if (s != WEIR_OK) {
      wr_free(machine);
      return s;
    }
    const int threads = ctx->device->n_threads;
    snprintf(name, sizeof name, "this machine (%s, %d threads)", machine->cpu, threads);
    describe_measuring(machine, when, sizeof when);
    source = when;
    r->memory_bytes = (double)wr_context_left(ctx);
    r->bandwidth_gb_s = weir_machine_gb_s(machine, (uint64_t)larger(r->weight_bytes, 1), threads);
    k->peak = weir_machine_gop_s(machine, "fp32", threads) * 1e9;
  }
  r->device = wr_strdup(name);
  r->source = wr_strdup(source);
  wr_free(machine);
  return r->device && r->source ? WEIR_OK : wr_fail_nomem(sizeof name, "a plan");
}

static void size_text(char out[16], double bytes) {
  wr_size_text(out, bytes < 1.8e19 ? (uint64_t)larger(bytes, 0) : UINT64_MAX);
}

static weir_status advise(planning *k) {
  weir_plan *r = k->r;
  wr_str s = {0};
  char a[16], b[16];
  const double fixed = r->weight_bytes + r->work_bytes;
  if (r->memory_bytes <= 0) {
    wr_str_puts(&s, "the memory of this device is not in the table");
  } else if (!r->fits && !r->max_context_tok) {
    size_text(a, fixed);
    size_text(b, r->memory_bytes);
    wr_str_printf(
        &s, "the weights and one piece of work need %s of %s: take a type of fewer bits, or a device with more memory", a, b);
  } else if (!r->fits) {
    wr_str_printf(&s, "shorten the context to %lld tokens, or decode fewer sequences together", (long long)r->max_context_tok);
  } else if (strcmp(r->bound_by, "arithmetic") == 0) {
    wr_str_puts(&s, "arithmetic is the bound: more sequences together will not raise the sum of their speeds");
  } else if (k->peak > 0 && r->token_flop > 0) {
    /* Batch at which reading the weights takes as long as computing with them. */
    const double even = r->weight_bytes / (r->bandwidth_gb_s * 1e9) * k->peak / r->token_flop;
    if (even < 2)
      wr_str_puts(&s, "reading is the bound, arithmetic close behind: more sequences together gain little");
    else
      wr_str_printf(&s, "reading is the bound: up to about %.0f sequences together share one read of the weights", even);
  } else {
    wr_str_puts(&s, "reading is the bound: sequences that are decoded together share one read of the weights");
  }
  if (s.oom || !s.ptr || !(r->advice = wr_strdup(s.ptr))) {
    wr_str_free(&s);
    return wr_fail_nomem(s.len, "a plan");
  }
  wr_str_free(&s);
  return WEIR_OK;
}

static weir_status fill(planning *k, weir_context *ctx, const char *path, const weir_plan_options *o) {
  weir_plan *r = k->r;
  const wr_device_options one = {.threads = 1};
  const wr_model_options mo = {.plan_only = true};
  WR_TRY(wr_device_null.open(&one, &k->device));
  wr_mem_init(&k->mem, k->device, 0);
  WR_TRY(wr_model_open(&k->mem, path, &mo, &k->m));
  const wr_hparams *h = &k->m->h;
  r->model = wr_strdup(path);
  r->arch = wr_strdup(h->arch->name);
  r->types = wr_strdup(k->m->types);
  if (!r->model || !r->arch || !r->types) return wr_fail_nomem(strlen(path), "a plan");
  WR_TRY(wr_context_check(h, o->context_tok));
  WR_TRY(wr_kv_check(h, o->kv));
  enum { USUAL = 8192 };
  r->kv = o->kv ? o->kv : WEIR_KV_F16;
  r->batch = o->batch ? o->batch : 1;
  r->context_tok = o->context_tok ? o->context_tok : WR_MIN(h->trained_tok, (int64_t)USUAL);
  r->weight_bytes = (double)k->m->weight_bytes;
  r->kv_token_bytes = (double)wr_kv_token_bytes(h, wr_kv_dtype(r->kv));
  WR_TRY(describe_device(k, ctx, o));
  WR_TRY(measure_step(k, r->batch, r->batch, r->batch, true));
  WR_TRY(measure_step(k, WR_ENGINE_ROWS, 1, 1, false));
  const double whole = (double)((r->context_tok + WR_KV_PAGE - 1) / WR_KV_PAGE * WR_KV_PAGE);
  r->kv_bytes = whole * r->kv_token_bytes * r->batch;
  r->total_bytes = r->weight_bytes + r->kv_bytes + r->work_bytes;
  r->fits = r->memory_bytes > 0 && r->total_bytes <= r->memory_bytes;
  const double rest = (r->memory_bytes - r->weight_bytes - r->work_bytes) / (r->kv_token_bytes * r->batch);
  r->max_context_tok = rest < WR_KV_PAGE ? 0 : (int64_t)WR_MIN(rest, 9e15) / WR_KV_PAGE * WR_KV_PAGE;
  const double by_bytes = r->batch * r->bandwidth_gb_s * 1e9 / larger(r->token_bytes, 1);
  const double by_flop = k->peak > 0 ? k->peak / larger(r->token_flop, 1) : by_bytes;
  r->bound_tok_s = WR_MIN(by_bytes, by_flop);
  r->bound_by = by_flop < by_bytes ? "arithmetic" : "memory bandwidth";
  return advise(k);
}

weir_status weir_plan_model(weir_context *ctx, const char *path, const weir_plan_options *options, weir_plan **out) {
  enum { MAX_BATCH = 4096 };
  const weir_plan_options o = options ? *options : (weir_plan_options){0};
  if (!path) return wr_fail(WEIR_EUSAGE, "no model file was named");
  if (o.batch < 0 || o.batch > MAX_BATCH)
    return wr_fail(WEIR_EUSAGE, "batch is %d, but it must be from 1 to %d", o.batch, MAX_BATCH);
  if (o.context_tok < 0 || o.context_tok > INT32_MAX / MAX_BATCH * 64)
    return wr_fail(WEIR_EUSAGE, "context_tok (--ctx) is %lld, but it must be from 1 to %d", (long long)o.context_tok,
                   INT32_MAX / MAX_BATCH * 64);
  planning k = {.r = wr_calloc(1, sizeof *k.r)};
  if (!k.r) return wr_fail_nomem(sizeof *k.r, "a plan");
  const weir_status s = fill(&k, ctx, path, &o);
  wr_model_close(k.m);
  if (k.device) k.device->api->close(k.device);
  if (s != WEIR_OK) {
    weir_plan_free(k.r);
    return s;
  }
  *out = k.r;
  return WEIR_OK;
}

void weir_plan_free(weir_plan *p) {
  if (!p) return;
  wr_free(p->model);
  wr_free(p->arch);
  wr_free(p->types);
  wr_free(p->device);
  wr_free(p->source);
  wr_free(p->advice);
  for (size_t i = 0; i < p->n_ops; i++) wr_free(p->ops[i].what);
  wr_free(p->ops);
  wr_free(p);
}

size_t weir_plan_print(const weir_plan *p, char *out, size_t cap) {
  wr_str s = {0};
  char t[16], u[16];
  wr_str_printf(&s, "model      %s (%s; %s)\n", wr_escape(p->model, strlen(p->model)), p->arch, p->types);
  wr_str_printf(&s, "device     %s (%s)\n", p->device, p->source);
  size_text(t, p->weight_bytes);
  wr_str_printf(&s, "weights    %s\n", t);
  size_text(t, p->kv_bytes);
  size_text(u, p->kv_token_bytes);
  wr_str_printf(&s, "kv cache   %s: %s a token, %lld tokens, %d sequence%s\n", t, u, (long long)p->context_tok, p->batch,
                p->batch == 1 ? "" : "s");
  size_text(t, p->work_bytes);
  wr_str_printf(&s, "work       %s\n", t);
  size_text(t, p->total_bytes);
  size_text(u, p->memory_bytes);
  wr_str_printf(&s, "total      %s of %s: %s", t, p->memory_bytes > 0 ? u : "unknown memory",
                p->fits ? "fits" : "does not fit");
  wr_str_printf(&s, ", the longest context is %lld tokens\n", (long long)p->max_context_tok);
  size_text(t, p->token_bytes);
  wr_str_printf(&s, "decode     at most %.1f tok/s, bound by %s: %s a step at %.1f GB/s, %.2f GFLOP a token, cache half full\n",
                p->bound_tok_s, p->bound_by, t, p->bandwidth_gb_s, p->token_flop * 1e-9);
  wr_str_printf(&s, "advice     %s\n", p->advice);
  return wr_give_text(&s, out, cap);
}

size_t weir_plan_print_ops(const weir_plan *p, char *out, size_t cap) {
  wr_str s = {0};
  double all_us = 0;
  for (size_t i = 0; i < p->n_ops; i++) all_us += p->ops[i].us;
  wr_str_printf(&s, "%-15s %-12s %6s %10s %10s %9s %7s  %s\n", "op", "weights", "calls", "MB", "MFLOP", "us", "time",
                "bound by");
  for (size_t i = 0; i < p->n_ops; i++) {
    const weir_plan_op *o = &p->ops[i];
    wr_str_printf(&s, "%-15s %-12s %6lld %10.3f %10.2f %9.3f %6.1f%%  %s\n", o->op, o->what, (long long)o->calls,
                  o->bytes * 1e-6, o->flop * 1e-6, o->us, all_us > 0 ? 100 * o->us / all_us : 0,
                  o->bound_by_bytes ? "memory bandwidth" : "arithmetic");
  }
  wr_str_printf(&s, "%-15s %-12s %6s %10s %10s %9.3f  at least, of one step; predicted from bytes and FLOPs, not run\n", "all",
                "", "", "", "", all_us);
  return wr_give_text(&s, out, cap);
}
