/* weir plan: will it fit, and what will bound it, on this machine or on devices of the built-in table. */
#include <stdlib.h>
#include <string.h>

#include "cli_i.h"

static void json_plan(wr_json *j, const weir_plan *p) {
  wr_json_object(j);
  wr_json_string(j, "model", p->model);
  wr_json_string(j, "arch", p->arch);
  wr_json_string(j, "types", p->types);
  wr_json_string(j, "device", p->device);
  wr_json_string(j, "source", p->source);
  wr_json_flag(j, "fits", p->fits);
  wr_json_integer(j, "context", p->context_tok);
  wr_json_integer(j, "batch", p->batch);
  wr_json_integer(j, "max_context", p->max_context_tok);
  wr_json_number(j, "memory_bytes", p->memory_bytes);
  wr_json_number(j, "weight_bytes", p->weight_bytes);
  wr_json_number(j, "kv_token_bytes", p->kv_token_bytes);
  wr_json_number(j, "kv_bytes", p->kv_bytes);
  wr_json_number(j, "work_bytes", p->work_bytes);
  wr_json_number(j, "total_bytes", p->total_bytes);
  wr_json_number(j, "bandwidth_gb_s", p->bandwidth_gb_s);
  wr_json_number(j, "token_bytes", p->token_bytes);
  wr_json_number(j, "token_flop", p->token_flop);
  wr_json_number(j, "bound_tok_s", p->bound_tok_s);
  wr_json_string(j, "bound_by", p->bound_by);
  wr_json_string(j, "advice", p->advice);
  wr_json_key(j, "ops");
  wr_json_array(j);
  for (size_t i = 0; i < p->n_ops; i++) {
    wr_json_object(j);
    wr_json_string(j, "op", p->ops[i].op);
    wr_json_string(j, "weights", p->ops[i].what);
    wr_json_integer(j, "calls", p->ops[i].calls);
    wr_json_number(j, "bytes", p->ops[i].bytes);
    wr_json_number(j, "flop", p->ops[i].flop);
    wr_json_number(j, "us", p->ops[i].us);
    wr_json_flag(j, "bound_by_bytes", p->ops[i].bound_by_bytes);
    wr_json_end(j);
  }
  wr_json_end(j);
  wr_json_end(j);
}

static weir_status plan_on(const wr_options *o, weir_context *ctx, const char *on, weir_plan **out) {
  const weir_plan_options options = {.on = on, .context_tok = o->ctx, .batch = (int)o->batch, .kv = o->kv_type};
  return weir_plan_model(ctx, o->args[0], &options, out);
}

/* One line a device of the table, this machine first; the bars compare the bounds. */
static int plan_all(const wr_options *o, weir_context *ctx) {
  const int n = weir_hardware_count();
  weir_plan **plans = calloc((size_t)n + 1, sizeof *plans);
  if (!plans) {
    fprintf(stderr, "weir plan: no memory for %d plans\n", n + 1);
    return weir_status_exit_code(WEIR_ENOMEM);
  }
  weir_status s = plan_on(o, ctx, NULL, &plans[0]);
  double best = 0;
  for (int i = 0; i < n && s == WEIR_OK; i++) {
    weir_hardware h;
    s = weir_hardware_at(i, &h);
    if (s == WEIR_OK) s = plan_on(o, ctx, h.device, &plans[i + 1]);
  }
  for (int i = 0; i <= n && s == WEIR_OK; i++) best = plans[i]->bound_tok_s > best ? plans[i]->bound_tok_s : best;
  if (s == WEIR_OK && o->json) {
    wr_json j;
    wr_json_begin(&j, stdout);
    wr_json_object(&j);
    wr_json_key(&j, "plans");
    wr_json_array(&j);
    for (int i = 0; i <= n; i++) json_plan(&j, plans[i]);
    wr_json_end(&j);
    wr_json_end(&j);
    wr_json_done(&j);
  } else if (s == WEIR_OK) {
    printf("%-34s %9s %9s  %-5s %12s  %-16s\n", "device", "memory", "GB/s", "fits", "bound tok/s", "bounded by");
    for (int i = 0; i <= n; i++) {
      char memory[16], bar[3 * 20 + 1];
      wr_size(memory, plans[i]->memory_bytes);
      wr_bar(bar, 20, best > 0 ? plans[i]->bound_tok_s / best : 0);
      printf("%-34.34s %9s %9.0f  %-5s %12.0f  %-16s  %s\n", plans[i]->device, memory, plans[i]->bandwidth_gb_s,
             plans[i]->fits ? "yes" : "no", plans[i]->bound_tok_s, plans[i]->bound_by, bar);
    }
  }
  for (int i = 0; i <= n; i++) weir_plan_free(plans[i]);
  free(plans);
  return s == WEIR_OK ? wr_done(o) : wr_failed(o, s);
}

static void print_text(const weir_plan *p, size_t (*print)(const weir_plan *p, char *out, size_t cap)) {
  const size_t n = print(p, NULL, 0);
  char *text = malloc(n + 1);
  if (text) {
    print(p, text, n + 1);
    fputs(text, stdout);
  }
  free(text);
}

static int plan_one(const wr_options *o, weir_context *ctx) {
  weir_plan *p = NULL;
  const weir_status s = plan_on(o, ctx, o->on, &p);
  if (s != WEIR_OK) {
    const int code = wr_failed(o, s);
    weir_hardware found;
    if (o->on && weir_hardware_find(o->on, &found) != WEIR_OK) fprintf(stderr, "try: weir plan %s --on all\n", o->args[0]);
    return code;
  }
  if (o->json) {
    wr_json j;
    wr_json_begin(&j, stdout);
    json_plan(&j, p);
    wr_json_done(&j);
  } else {
    print_text(p, weir_plan_print);
    if (o->why) printf("\n");
    if (o->why) print_text(p, weir_plan_print_ops);
  }
  weir_plan_free(p);
  return wr_done(o);
}

int wr_cmd_plan(const wr_options *o) {
  weir_context *ctx;
  const weir_status s = wr_open_context(o, &ctx);
  if (s != WEIR_OK) return wr_failed(o, s);
  const int code = o->on && strcmp(o->on, "all") == 0 ? plan_all(o, ctx) : plan_one(o, ctx);
  weir_context_close(ctx);
  return code;
}
