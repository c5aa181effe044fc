/* bench_tiles.c: random block-sparse lists, and what they leave to compute. */
#include "bench.h"

#include "cli.h"
#include "random_values.h"

#include <stdlib.h>
#include <string.h>

static int64_t tiles_of(int64_t length) { return (length + BENCH_TILE - 1) / BENCH_TILE; }

/* The key tiles that some row of query tile t may see by its position: *first .. *past - 1. */
static void key_tiles_of(const reference_call *call, int64_t t, int64_t *first, int64_t *past)
{
    *first = tiles_of(call->kv_len);
    *past = 0;
    for (int64_t i = t * BENCH_TILE; i < (t + 1) * BENCH_TILE && i < call->q_len; i++) {
        int64_t begin, end;
        reference_keys_of_row(call, 0, i, &begin, &end);
        if (begin >= end)
            continue;
        if (begin / BENCH_TILE < *first)
            *first = begin / BENCH_TILE;
        if ((end - 1) / BENCH_TILE >= *past)
            *past = (end - 1) / BENCH_TILE + 1;
    }
}

/* Draws without putting back: a shuffle that stops when enough are drawn. */
static int32_t draw_tiles(int32_t *list, int64_t first, int64_t past, double density, random_state *random)
{
    const int64_t all = past > first ? past - first : 0;
    int64_t count = (int64_t)(density * (double)all + 0.5);
    if (count < 1 && all > 0)
        count = 1;
    for (int64_t i = 0; i < all; i++)
        list[i] = (int32_t)(first + i);
    for (int64_t i = 0; i < count; i++) {
        const int64_t j = i + random_below(random, all - i);
        const int32_t drawn = list[j];
        list[j] = list[i];
        list[i] = drawn;
    }
    return (int32_t)count;
}

int bench_tiles_make(bench_tiles *out, const attention_case *c, double density)
{
    const reference_call call = case_reference(c);
    const int64_t query_tiles = tiles_of(c->q_len), capacity = tiles_of(c->kv_len);
    const size_t lists = (size_t)(c->heads_q * query_tiles);
    random_state random = {2};
    memset(out, 0, sizeof *out);
    out->count = calloc(lists, sizeof *out->count);
    out->index = calloc(lists * (size_t)capacity, sizeof *out->index);
    if (!out->count || !out->index) {
        bench_tiles_release(out);
        return cli_fail(CLI_FAILED, "not enough memory for the key tiles");
    }
    for (size_t list = 0; list < lists; list++) {
        int64_t first, past;
        key_tiles_of(&call, (int64_t)list % query_tiles, &first, &past);
        out->count[list] = draw_tiles(out->index + list * (size_t)capacity, first, past, density, &random);
    }
    const safetensors_tensor tensors[2] = {
        {"tiles_count", "I32", 3, {1, c->heads_q, query_tiles}, out->count, lists * sizeof *out->count},
        {"tiles_index",
         "I32",
         4,
         {1, c->heads_q, query_tiles, capacity},
         out->index,
         lists * (size_t)capacity * sizeof *out->index},
    };
    memcpy(out->tensor, tensors, sizeof tensors);
    return CLI_OK;
}

void bench_tiles_release(bench_tiles *tiles)
{
    free(tiles->count);
    free(tiles->index);
    memset(tiles, 0, sizeof *tiles);
}

/* The keys begin .. end - 1 that are in listed tiles of head h. */
static int64_t listed_keys(const reference_tiles *t, int64_t h, int64_t i, int64_t begin, int64_t end)
{
    const int64_t list = i / t->rows;
    const int32_t *index = t->index + h * t->index_stride[1] + list * t->index_stride[2];
    int64_t keys = 0;
    for (int32_t n = 0; n < t->count[h * t->count_stride[1] + list * t->count_stride[2]]; n++) {
        const int64_t from = index[n] * t->keys > begin ? index[n] * t->keys : begin;
        const int64_t to = (index[n] + 1) * t->keys < end ? (index[n] + 1) * t->keys : end;
        keys += to > from ? to - from : 0;
    }
    return keys;
}

double bench_count_pairs(const attention_case *c)
{
    const reference_call call = case_reference(c);
    /* Heads are alike without lists, entries without lengths of their own. */
    const int64_t heads = call.tiles.count ? c->heads_q : 1;
    const int64_t batch = call.q_lens || call.kv_lens ? c->batch : 1;
    double pairs = 0;
    for (int64_t n = 0; n < batch * heads; n++)
        for (int64_t i = 0; i < reference_sequence_of(&call, n / heads).q_len; i++) {
            int64_t begin, end;
            reference_keys_of_row(&call, n / heads, i, &begin, &end);
            if (begin < end)
                pairs += (double)(call.tiles.count ? listed_keys(&call.tiles, n % heads, i, begin, end)
                                                   : end - begin);
        }
    return pairs * (double)(c->batch / batch * (c->heads_q / heads));
}
