/* A program as text: what a person reads with --why, and what tests compare. One instruction a line:
 *
 *   %7: f32[8@rows,576] = matmul(x=%6, w=blk.0.attn_q.weight: q4_0/pack16[576,576])
 */
#include "core/core.h"

static const char *const kind_names[] = {"input", "output", "param", "state", "temp", "saved"};
static const char *const live_names[] = {"", "@rows", "@out", "@seqs"};

static void put_value(const wr_program *p, int v, wr_str *s) {
  if (p->values[v].name[0])
    wr_str_puts(s, p->values[v].name);
  else
    wr_str_printf(s, "%%%d", v);
}

static void put_type(const wr_vtype *t, wr_str *s) {
  wr_str_puts(s, wr_dtypes[t->dtype].name);
  if (t->layout != WR_PLAIN) wr_str_printf(s, "/%s", wr_layout_name((wr_layout)t->layout));
  for (int d = 0; d < t->rank; d++)
    wr_str_printf(s, "%s%lld%s", d ? "," : "[", (long long)t->ext[d], d == 0 ? live_names[t->live] : "");
  wr_str_puts(s, "]");
}

static void put_instr(const wr_program *p, const wr_instr *in, wr_str *s) {
  const wr_op_arg *args = in->op->args;
  int outs = 0, ins = 0;
  for (int a = 0; args[a].role != WR_ARG_END; a++) {
    if (args[a].role != WR_OUT || in->args[a] < 0) continue;
    if (outs++) wr_str_puts(s, ", ");
    put_value(p, in->args[a], s);
    wr_str_puts(s, in->acc >> a & 1 ? " += " : ": ");
    put_type(&p->values[in->args[a]].t, s);
  }
  wr_str_printf(s, "%s%s(", outs ? " = " : "", in->op->name);
  for (int a = 0; args[a].role != WR_ARG_END; a++) {
    if (args[a].role == WR_OUT || in->args[a] < 0) continue;
    wr_str_printf(s, "%s%s%s=", ins++ ? ", " : "", args[a].role == WR_UPDATE ? "&" : "", args[a].name);
    put_value(p, in->args[a], s);
    if (p->values[in->args[a]].kind != WR_TEMP && p->values[in->args[a]].kind != WR_SAVED) {
      wr_str_puts(s, ": ");
      put_type(&p->values[in->args[a]].t, s);
    }
  }
  if (in->op->print) {
    wr_str_puts(s, ins ? "; " : "");
    in->op->print(in->params, s);
  }
  wr_str_puts(s, ")");
}

void wr_print(const wr_program *p, wr_str *s) {
  for (int i = 0; i < p->n_instrs; i++) {
    if (!p->instrs[i].op) continue;
    put_instr(p, &p->instrs[i], s);
    if (p->instrs[i].row) wr_str_printf(s, "  by %s", p->instrs[i].row->name);
    wr_str_puts(s, "\n");
  }
  for (int v = 0; v < p->n_values; v++) {
    if (p->values[v].kind == WR_TEMP || p->values[v].kind == WR_SAVED) continue;
    wr_str_printf(s, "%s ", kind_names[p->values[v].kind]);
    put_value(p, v, s);
    wr_str_puts(s, ": ");
    put_type(&p->values[v].t, s);
    wr_str_puts(s, "\n");
  }
}
