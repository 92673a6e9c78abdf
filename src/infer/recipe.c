/* Recipes: the file types that people know by name, and which type each tensor of a file gets by them.
 *
 * Owns: the table of recipes. The mixes are those of llama.cpp, so that a file of one name has the bytes a weight that people
 * expect: the output matrix (the embedding, where that is both) keeps six bits, and in the mixes called M so do attn_v and
 * ffn_down of every third layer and of the first and last eighth. What llama.cpp leaves in F32 stays so: vectors (norms,
 * biases), the table of positions.
 * A row that is not whole blocks of a type cannot have it: the K types, with blocks of 256, then give way to the type of 32 that
 * has at least their bits, and where that does not fit either, to F16. */
#include <strings.h>

#include "infer/infer_i.h"

static const wr_recipe recipes[] = {
    /* name    file_type  matrix         output         attn_qkv       more: attn_v and ffn_down of some layers */
    {"f32", 0, WR_GGUF_F32, WR_GGUF_F32, WR_GGUF_F32, WR_GGUF_F32},
    {"f16", 1, WR_GGUF_F16, WR_GGUF_F16, WR_GGUF_F16, WR_GGUF_F16},
    {"bf16", 32, WR_GGUF_BF16, WR_GGUF_BF16, WR_GGUF_BF16, WR_GGUF_BF16},
    {"q8_0", 7, WR_GGUF_Q8_0, WR_GGUF_Q8_0, WR_GGUF_Q8_0, WR_GGUF_Q8_0},
    {"q4_0", 2, WR_GGUF_Q4_0, WR_GGUF_Q6_K, WR_GGUF_Q4_0, WR_GGUF_Q4_0},
    {"q4_1", 3, WR_GGUF_Q4_1, WR_GGUF_Q6_K, WR_GGUF_Q4_1, WR_GGUF_Q4_1},
    {"q5_0", 8, WR_GGUF_Q5_0, WR_GGUF_Q6_K, WR_GGUF_Q5_0, WR_GGUF_Q5_0},
    {"q5_1", 9, WR_GGUF_Q5_1, WR_GGUF_Q6_K, WR_GGUF_Q5_1, WR_GGUF_Q5_1},
    {"q4_k_m", 15, WR_GGUF_Q4_K, WR_GGUF_Q6_K, WR_GGUF_Q5_K, WR_GGUF_Q6_K},
    {"q4_k", 15, WR_GGUF_Q4_K, WR_GGUF_Q6_K, WR_GGUF_Q5_K, WR_GGUF_Q6_K},
    {"q5_k_m", 17, WR_GGUF_Q5_K, WR_GGUF_Q6_K, WR_GGUF_Q6_K, WR_GGUF_Q6_K},
    {"q5_k", 17, WR_GGUF_Q5_K, WR_GGUF_Q6_K, WR_GGUF_Q6_K, WR_GGUF_Q6_K},
    {"q6_k", 18, WR_GGUF_Q6_K, WR_GGUF_Q6_K, WR_GGUF_Q6_K, WR_GGUF_Q6_K},
};

static const struct {
  wr_gguf_type type, instead;
} fallbacks[] = {{WR_GGUF_Q4_K, WR_GGUF_Q5_0}, {WR_GGUF_Q5_K, WR_GGUF_Q5_1}, {WR_GGUF_Q6_K, WR_GGUF_Q8_0}};

weir_status wr_recipe_find(const char *name, const wr_recipe **out) {
  wr_str names = {0};
  for (size_t i = 0; i < WR_ARRAY_LEN(recipes); i++) {
    if (strcasecmp(recipes[i].name, name) == 0) {
      wr_str_free(&names);
      *out = &recipes[i];
      return WEIR_OK;
    }
    wr_str_printf(&names, "%s%s", i ? ", " : "", recipes[i].name);
  }
  wr_fail(WEIR_EUSAGE, "the type is '%s', but it must be one of %s", wr_escape(name, strlen(name)), names.ptr ? names.ptr : "those of --help");
  wr_str_free(&names);
  return WEIR_EUSAGE;
}

/* blk.N.…: N; -1: of no layer */
static int layer_of(const wr_gguf_tensor *t) {
  int layer;
  return sscanf(t->name, "blk.%9d.", &layer) == 1 && layer >= 0 ? layer : -1;
}

int wr_recipe_layers(const wr_gguf *g) {
  int n = 0;
  for (size_t i = 0; i < wr_gguf_n_tensors(g); i++) n = WR_MAX(n, layer_of(wr_gguf_tensor_at(g, i)) + 1);
  return n;
}

static bool has_more(int layer, int n) { return layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2; }

static wr_gguf_type wanted(const wr_recipe *r, const wr_gguf *g, const wr_gguf_tensor *t, int n_layers) {
  if (t->n_dims < 2 || strcmp(t->name, "position_embd.weight") == 0) return WR_GGUF_F32;
  const char *head = wr_gguf_tensor_find(g, "output.weight") ? "output.weight" : "token_embd.weight";
  if (strcmp(t->name, head) == 0) return r->output;
  if (wr_ends_with(t->name, ".attn_qkv.weight")) return r->qkv;
  if (wr_ends_with(t->name, ".attn_v.weight") || wr_ends_with(t->name, ".ffn_down.weight"))
    return has_more(layer_of(t), n_layers) ? r->more : r->matrix;
  return r->matrix;
}

static bool fits(const wr_gguf_type_info *type, const wr_gguf_tensor *t) { return t->dim[0] % type->block_elems == 0; }

const wr_gguf_type_info *wr_recipe_type(const wr_recipe *r, bool pure, const wr_gguf *g, const wr_gguf_tensor *t, int n_layers,
                                        const wr_gguf_type_info **instead_of) {
  wr_gguf_type want = wanted(r, g, t, n_layers);
  if (pure && want != WR_GGUF_F32) want = r->matrix;
  const wr_gguf_type_info *type = wr_gguf_type_find((uint32_t)want);
  *instead_of = fits(type, t) ? NULL : type;
  for (size_t i = 0; i < WR_ARRAY_LEN(fallbacks) && *instead_of; i++)
    if (fallbacks[i].type == want) type = wr_gguf_type_find((uint32_t)fallbacks[i].instead);
  return fits(type, t) ? type : wr_gguf_type_find(WR_GGUF_F16);
}
