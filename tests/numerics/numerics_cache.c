#include "numerics_cache.h"

#include "cache_types.h"
#include "clattn.h"

typedef struct cache_type {
    const char *name;
    size_t bytes;
    int elements;
    int is_plain, is_scaled;
} cache_type;

static const cache_type types[] = {
    [CLATTN_DTYPE_F32] = {"f32", 4, 1, 1, 0},         [CLATTN_DTYPE_F16] = {"f16", 2, 1, 1, 0},
    [CLATTN_DTYPE_BF16] = {"bf16", 2, 1, 1, 0},       [CLATTN_DTYPE_I8] = {"i8", 1, 1, 0, 1},
    [CLATTN_DTYPE_F8_E4M3] = {"f8_e4m3", 1, 1, 0, 1}, [CLATTN_DTYPE_F8_E5M2] = {"f8_e5m2", 1, 1, 0, 1},
    [CLATTN_DTYPE_Q8_0] = {"q8_0", 34, 32, 0, 0},     [CLATTN_DTYPE_Q4_0] = {"q4_0", 18, 32, 0, 0},
    [CLATTN_DTYPE_Q4_1] = {"q4_1", 20, 32, 0, 0},     [CLATTN_DTYPE_Q5_0] = {"q5_0", 22, 32, 0, 0},
    [CLATTN_DTYPE_Q5_1] = {"q5_1", 24, 32, 0, 0},     [CLATTN_DTYPE_IQ4_NL] = {"iq4_nl", 18, 32, 0, 0},
};

int64_t cache_unit_elements(int32_t dtype) { return types[dtype].elements; }
size_t cache_unit_bytes(int32_t dtype) { return types[dtype].bytes; }
const char *cache_type_name(int32_t dtype) { return types[dtype].name; }
int cache_is_plain(int32_t dtype) { return types[dtype].is_plain; }
int cache_is_scaled(int32_t dtype) { return types[dtype].is_scaled; }

void cache_store_row(const tensor_view *view, int64_t b, int64_t h, int64_t i, const float *row, int64_t dim,
                     float scale)
{
    cache_encode_row(view->dtype, row, dim, scale, view_element(view, b, h, i, 0), NULL);
}

void cache_load_row(const tensor_view *view, int64_t b, int64_t h, int64_t i, float *row, int64_t dim,
                    float scale)
{
    cache_decode_row(view->dtype, view_element(view, b, h, i, 0), dim, scale, row);
}
