/* Among several devices: which layers each of them has.
 *
 * Devices run one after another, so a token's time is least where the fastest has all that fits into it; but who names several wants them
 * all used, and more layers fit. So each device gets layers in proportion to its speed: that of one product with this model's own weights,
 * measured here, on the device, with its kernels. No device gets more than fits, or none at all. What stands before the first layer is the
 * first device's, what stands behind the last the last one's. */
#include "model/model.h"
#include "model/model_i.h"
#include "ops/matmul/matmul.h"

enum { RUNS = 5, SPARE = 8 }; /* a part of a device's memory for what is not weights */

int wr_model_place(const wr_model *m, int layer) {
  int k = 0;
  while (k + 1 < m->n_mems && layer >= m->first_layer[k + 1]) k++;
  return k;
}

static uint64_t layer_bytes(const wr_model *m) {
  uint64_t sum = 0;
  for (int i = 0; i < m->n_weights; i++) sum += m->weights[i].layer >= 0 ? m->weights[i].bytes : 0;
  return sum / (uint64_t)m->h.layers;
}

static const wr_weight *largest_of_layer(const wr_model *m) {
  const wr_weight *best = NULL;
  for (int i = 0; i < m->n_weights; i++)
    if (m->weights[i].layer == 0 && (!best || m->weights[i].bytes > best->bytes)) best = &m->weights[i];
  return best;
}

static weir_status time_product(wr_mem *mem, const wr_weight *w, wr_program *p, const wr_buf *buf, double *seconds) {
  wr_plan plan;
  const wr_vtype t = {.dtype = (uint8_t)w->dtype, .layout = (uint8_t)w->layout, .rank = 2, .ext = {w->rows, w->cols, 1, 1}};
  const int x = wr_value_2d(p, WR_INPUT, "x", WR_F32, 1, w->cols), matrix = wr_value_new(p, WR_PARAM, w->name, &t);
  if (matrix >= 0) wr_bind(p, matrix, buf, 0);
  wr_mark_output(p, wr_matmul(p, x, matrix, WR_NONE, WR_NONE));
  WR_TRY(wr_program_status(p));
  WR_TRY(wr_plan_make(p, mem, NULL, &plan));
  weir_status s = WEIR_OK;
  for (int i = 0; i <= RUNS && s == WEIR_OK; i++) { /* the first only warms up */
    const uint64_t begin = wr_now_ns();
    s = wr_plan_run(&plan);
    const double took = (double)(wr_now_ns() - begin) * 1e-9;
    if (i == 1 || (i && took < *seconds)) *seconds = took;
  }
  wr_plan_free(&plan);
  return s;
}

/* Seconds that a layer's weights take on a device. */
static weir_status measure(const wr_model *m, wr_mem *mem, double *seconds) {
  const wr_weight *w = largest_of_layer(m);
  wr_buf buf;
  wr_program p;
  WR_TRY(wr_mem_import(mem, WR_MEM_WEIGHTS, w->host, w->bytes, "weights", &buf));
  wr_program_init(&p);
  const weir_status s = time_product(mem, w, &p, &buf, seconds);
  wr_program_free(&p);
  wr_mem_free(mem, WR_MEM_WEIGHTS, &buf);
  *seconds *= (double)layer_bytes(m) / (double)w->bytes;
  return s;
}

/* Layers that fit into a device's memory. */
static int layers_that_fit(const wr_model *m, const wr_mem *mem) {
  const uint64_t all = mem->device->memory_bytes, used = wr_mem_used(mem) + mem->imported_bytes, left = all - WR_MIN(all, used);
  return all ? (int)WR_MIN((left - left / SPARE) / layer_bytes(m), (uint64_t)m->h.layers) : (int)m->h.layers;
}

/* n[k] layers, in proportion to speed, at least one and no more than fit each. */
static weir_status share_out(const wr_model *m, const double *seconds, int *n) {
  const int layers = (int)m->h.layers;
  int fits[WR_PLAN_DEVICES], left = layers, room = 0;
  double speed = 0;
  for (int k = 0; k < m->n_mems; k++) {
    fits[k] = layers_that_fit(m, m->mems[k]);
    room += fits[k];
    speed += 1 / seconds[k];
    if (!fits[k])
      return wr_fail(WEIR_ENOMEM, "not one of the %d layers fits the device %s", layers, wr_device_title(m->mems[k]->device));
  }
  if (room < layers) return wr_fail(WEIR_ENOMEM, "only %d of the %d layers fit the devices together", room, layers);
  if (layers < m->n_mems) return wr_fail(WEIR_EUSAGE, "the model has %d layers: too few for %d devices", layers, m->n_mems);
  for (int k = 0; k < m->n_mems; k++) {
    const int fair = (int)((double)layers / seconds[k] / speed);
    n[k] = WR_MIN(WR_MAX(fair, 1), fits[k]);
    left -= n[k];
  }
  while (left) { /* to whom it costs least; rounding down leaves some, a device that had none of its own takes some */
    int best = -1;
    for (int k = 0; k < m->n_mems; k++) {
      if (left > 0 ? n[k] == fits[k] : n[k] == 1) continue;
      const bool better =
          best < 0 || (left > 0 ? n[k] * seconds[k] < n[best] * seconds[best] : n[k] * seconds[k] > n[best] * seconds[best]);
      if (better) best = k;
    }
    n[best] += left > 0 ? 1 : -1;
    left += left > 0 ? -1 : 1;
  }
  return WEIR_OK;
}

weir_status wr_model_split(wr_model *m) {
  double seconds[WR_PLAN_DEVICES] = {0};
  int n[WR_PLAN_DEVICES] = {(int)m->h.layers};
  for (int k = 0; k < m->n_mems && m->n_mems > 1; k++) WR_TRY(measure(m, m->mems[k], &seconds[k]));
  if (m->n_mems > 1) WR_TRY(share_out(m, seconds, n));
  wr_str s = {0};
  for (int k = 0; k < m->n_mems; k++) {
    m->first_layer[k + 1] = m->first_layer[k] + n[k];
    wr_str_printf(&s, "%s%s has layers %d to %d (%.3g ms a layer)", k ? ", " : "", wr_device_title(m->mems[k]->device),
                  m->first_layer[k], m->first_layer[k + 1] - 1, 1e3 * seconds[k]);
  }
  if (m->n_mems > 1 && !s.oom) m->split = s.ptr;
  if (m->n_mems == 1 || s.oom) wr_str_free(&s);
  return m->n_mems > 1 && !m->split ? wr_fail_nomem(s.len, "the names of devices") : WEIR_OK;
}
