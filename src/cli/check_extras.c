/* check_extras.c: the optional tensors of a case of `clattn check`. */
#include "check_case.h"

#include "cli.h"
#include "tensor_convert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void *check_add(check_case *out, const char *name, const char *dtype, size_t size, int rank,
                const int64_t *shape)
{
    const size_t n = out->inputs.num_extra;
    safetensors_tensor *t = &out->extra[n];
    size_t count = 1;
    memset(t, 0, sizeof *t);
    t->name = name;
    t->dtype = dtype;
    t->rank = rank;
    for (int i = 0; i < rank; i++) {
        t->shape[i] = shape[i];
        count *= (size_t)shape[i];
    }
    t->bytes = count * size;
    t->data = out->extra_values[n] = malloc(t->bytes + 1);
    if (t->data)
        out->inputs.num_extra++;
    return out->extra_values[n];
}

/* The shape that bits of `axes` make of [B,Hq,Nq,Nk]; returns the number of elements. */
static int64_t broadcast_shape(const case_inputs *in, unsigned axes, int64_t shape[4])
{
    const int64_t full[4] = {in->batch, in->heads_q, in->q_len, in->kv_len};
    int64_t count = 1;
    for (int axis = 0; axis < 4; axis++) {
        shape[axis] = axes >> axis & 1 ? full[axis] : 1;
        count *= shape[axis];
    }
    return count;
}

static float lowest(int32_t dtype)
{
    return dtype == CLATTN_DTYPE_F16    ? -65504.0f
           : dtype == CLATTN_DTYPE_BF16 ? -0x1.fep127f
                                        : -0x1.fffffep127f;
}

static int add_bias(check_case *out, const check_variant *v, int32_t dtype, random_state *random)
{
    int64_t shape[4];
    const int64_t count = broadcast_shape(&out->inputs, v->bias_axes, shape);
    unsigned char *values =
        check_add(out, "bias", dtype_safetensors_name(dtype), dtype_size(dtype), 4, shape);
    for (int64_t i = 0; values && i < count; i++) {
        const int one_row = shape[2] > 1 && i / shape[3] % shape[2] == shape[2] / 2;
        float value = random_normal(random);
        if (v->flags & BIAS_FORBIDS && (one_row || random_below(random, 3) == 0))
            value = -INFINITY;
        if (v->flags & BIAS_LOWEST && one_row)
            value = lowest(dtype);
        tensor_store(values + (size_t)i * dtype_size(dtype), dtype, value);
    }
    return values != NULL;
}

static int add_mask(check_case *out, const check_variant *v, random_state *random)
{
    int64_t shape[4];
    const int64_t count = broadcast_shape(&out->inputs, v->mask_axes, shape);
    unsigned char *values = check_add(out, "mask", "U8", 1, 4, shape);
    for (int64_t i = 0; values && i < count; i++) {
        const int64_t row = i / shape[3] % shape[2], key = i % shape[3];
        int allows = v->flags & MASK_BLOCKS ? (row / 32 + key / 32) % 2 == 0 : (int)random_below(random, 2);
        if ((v->flags & MASK_EMPTY_ROW && row == shape[2] / 2) || (v->flags & MASK_HIDES && key % 3 == 1))
            allows = 0;
        values[i] = (unsigned char)(allows ? 1 + random_below(random, 255) : 0); /* any byte but 0 allows */
    }
    return values != NULL;
}

/* A number for each head (and batch entry, with rank 2). */
static float *add_by_head(check_case *out, const char *name, int rank, random_state *random)
{
    const int64_t shape[2] = {rank == 2 ? out->inputs.batch : out->inputs.heads_q, out->inputs.heads_q};
    const int64_t count = rank == 2 ? shape[0] * shape[1] : shape[0];
    float *values = check_add(out, name, "F32", sizeof *values, rank, shape);
    for (int64_t i = 0; values && i < count; i++)
        values[i] = random_normal(random);
    return values;
}

static int add_slopes(check_case *out, const check_variant *v, random_state *random)
{
    float *values = add_by_head(out, "alibi_slopes", v->flags & ALIBI_BATCH ? 2 : 1, random);
    const int64_t count =
        values ? (int64_t)(out->extra[out->inputs.num_extra - 1].bytes / sizeof *values) : 0;
    for (int64_t i = 0; i < count; i++)
        values[i] = i == 1 ? -0.03125f : fabsf(values[i]) * 0.25f;
    return values != NULL;
}

static int add_sinks(check_case *out, const check_variant *v, random_state *random)
{
    float *values = add_by_head(out, "sinks", 1, random);
    if (values && v->flags & SINKS_NONE)
        values[0] = -INFINITY;
    return values != NULL;
}

static int add_head_scale(check_case *out, random_state *random)
{
    float *values = add_by_head(out, "bias_head_scale", 1, random);
    if (values)
        values[0] = 0; /* -inf has to stay -inf all the same */
    return values != NULL;
}

/* Neighbouring entries get lengths of different kinds: none, all, one, any. */
static int add_lens(check_case *out, const char *name, int64_t most, random_state *random)
{
    const int64_t first = random_below(random, 4);
    int32_t *values = check_add(out, name, "I32", sizeof *values, 1, &out->inputs.batch);
    for (int64_t b = 0; values && b < out->inputs.batch; b++) {
        const int64_t of_kind[4] = {0, most, most < 1 ? most : 1, random_below(random, most + 1)};
        values[b] = (int32_t)of_kind[(first + b) % 4];
    }
    return values != NULL;
}

static int add_offsets(check_case *out, random_state *random)
{
    const int64_t q_len = out->inputs.q_len, kv_len = out->inputs.kv_len;
    int32_t *values = check_add(out, "offsets", "I32", sizeof *values, 1, &out->inputs.batch);
    for (int64_t b = 0; values && b < out->inputs.batch; b++) /* some rows before all keys, some behind */
        values[b] = (int32_t)(random_below(random, q_len + kv_len + 9) - q_len - 4);
    return values != NULL;
}

/* One list: a random half of the key tiles, or none; with `wild`, in any order and with entries that name no
 * tile or one once more. Entries beyond the count name tiles that must not be taken for listed. */
static int32_t fill_list(int32_t *list, int64_t capacity, int64_t key_tiles, int wild, random_state *random)
{
    const int32_t nowhere[4] = {-1, INT32_MIN, INT32_MAX, (int32_t)key_tiles};
    int32_t count = 0;
    const int empty = random_below(random, 4) == 0;
    for (int64_t tile = 0; !empty && tile < key_tiles; tile++)
        if (random_below(random, 2))
            list[count++] = (int32_t)tile;
    if (wild && !empty) {
        list[count++] = nowhere[random_below(random, 4)];
        list[count] = list[random_below(random, count)];
        count++;
        for (int32_t i = count - 1; i > 0; i--) {
            const int64_t j = random_below(random, i + 1);
            const int32_t moved = list[i];
            list[i] = list[j];
            list[j] = moved;
        }
    }
    for (int64_t i = count; i < capacity; i++)
        list[i] = (int32_t)(key_tiles > 0 ? random_below(random, key_tiles) : 0);
    return count;
}

static int add_tiles(check_case *out, const check_variant *v, const call_options *o, random_state *random)
{
    const case_inputs *in = &out->inputs;
    const int64_t query_tiles = (in->q_len + o->tile_rows - 1) / o->tile_rows;
    const int64_t key_tiles = (in->kv_len + o->tile_keys - 1) / o->tile_keys;
    const int64_t capacity = key_tiles + 3;
    const int64_t shape[4] = {random_below(random, 2) ? in->batch : 1,
                              random_below(random, 2) ? in->heads_q : 1, query_tiles, capacity};
    const int64_t lists = shape[0] * shape[1] * shape[2];
    int32_t *count = check_add(out, "tiles_count", "I32", sizeof *count, 3, shape);
    int32_t *index = check_add(out, "tiles_index", "I32", sizeof *index, 4, shape);
    for (int64_t i = 0; count && index && i < lists; i++)
        count[i] = fill_list(index + i * capacity, capacity, key_tiles, (v->flags & TILES_WILD) != 0, random);
    return count && index;
}

static int add_table(check_case *out)
{
    const int64_t shape[1] = {CHECK_TABLE};
    float *values = check_add(out, "user", "F32", sizeof *values, 1, shape);
    if (values)
        memcpy(values, check_table, sizeof check_table);
    return values != NULL;
}

int check_add_extras(check_case *out, const check_group *group, const check_variant *v,
                     const call_options *options, random_state *random)
{
    int enough = 1;
    if (v->flags & BIAS)
        enough = add_bias(out, v, group->dtype_bias, random);
    if (enough && v->flags & HEAD_SCALE)
        enough = add_head_scale(out, random);
    if (enough && v->flags & MASK)
        enough = add_mask(out, v, random);
    if (enough && v->flags & ALIBI)
        enough = add_slopes(out, v, random);
    if (enough && v->flags & SINKS)
        enough = add_sinks(out, v, random);
    if (enough && v->flags & Q_LENS)
        enough = add_lens(out, "q_lens", out->inputs.q_len, random);
    if (enough && v->flags & KV_LENS)
        enough = add_lens(out, "kv_lens", out->inputs.kv_len, random);
    if (enough && v->flags & OFFSETS)
        enough = add_offsets(out, random);
    if (enough && v->flags & TILES)
        enough = add_tiles(out, v, options, random);
    if (enough && group->variants == CHECK_MODS && check_mods[group->mod].has_table)
        enough = add_table(out);
    return enough ? CLI_OK : cli_fail(CLI_FAILED, "out of memory");
}
