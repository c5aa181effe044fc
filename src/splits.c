#include "splits.h"

#include <string.h>

/* Splits are worth their combining while work-groups are fewer than the device runs at a time, several to a
 * compute unit, and while each has a few steps of the main loop to do. */
static int64_t wanted_groups(const clattn_plan *plan, const clattn__program *program)
{
    return (int64_t)plan->context->device.compute_units * program->tile.groups_per_unit;
}

/* Where the last work-group of a tile combines them. */
static int combines_itself(const clattn__program *program)
{
    return program->recipe->is_decode && program->recipe->kernel[CLATTN__KERNEL_COMBINE] == NULL;
}

/* Three steps where no kernel of its own combines. (H200, 32 / 8 heads, D = 128, f16, GB/s with four steps
 * and three: keys 2048 603, 657; 4096 1151, 1218; in pages of 16 2048 551, 611; 4096 1037, 1117; 8192 1704,
 * 1795. With a combining kernel, portable, 8192: 827, 799.) */
static int64_t fewest_keys(const clattn__program *program)
{
    return (combines_itself(program) ? 3 : 4) * (int64_t)program->tile.block_k;
}

/* With a fixed size, keys of a split: a row's bits must not depend on how many there are. */
static int64_t fixed_keys(const clattn__program *program)
{
    enum { STEPS = 8 };
    return STEPS * (int64_t)program->tile.block_k;
}

static int is_packed(const clattn_plan *plan)
{
    return (plan->desc.features & CLATTN_FEATURE_CU_SEQLENS_Q) != 0;
}

static int is_invariant(const clattn_plan *plan)
{
    return (plan->desc.features & CLATTN_FEATURE_BATCH_INVARIANT) != 0;
}

static int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t clattn__query_tiles(const clattn_plan *plan, const clattn__program *program, int64_t batch,
                            int64_t q_len, int64_t total_q)
{
    const int64_t rows_per_query = program->recipe->is_decode ? plan->desc.heads_q / plan->desc.heads_kv : 1;
    const int64_t block_q = program->tile.block_q;
    if (is_packed(plan)) /* as first_tile_of in cl/address.cl counts them */
        return total_q * rows_per_query / block_q + batch;
    return ceil_divide(q_len * rows_per_query, block_q);
}

static uint64_t bytes_of(const clattn_plan *plan, uint64_t parts)
{
    const uint64_t size = ((uint64_t)plan->desc.head_dim_v + 2) * sizeof(float);
    return parts > UINT64_MAX / size ? UINT64_MAX : parts * size;
}

/* Kernels that combine themselves count the splits of a tile that have ended: at a multiple of 8. */
static uint64_t counter_bytes(const clattn__program *program, int64_t tiles)
{
    return combines_itself(program) ? ((uint64_t)tiles + 1) * sizeof(uint64_t) : 0;
}

static uint64_t sum_of(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

/* Groups run in waves, and the last one should be full too: the fewest splits with which 19 of 20
 * places in the waves are taken, or those that take most, in at most two waves. (H200: 768 of 792 places in
 * one wave 76% of the copy rate, 1152 60%, 1024 of 1584 in two 61%.) */
static int64_t chosen_splits(const clattn__program *program, int64_t places, int64_t groups, int64_t kv_len)
{
    const int64_t longest = ceil_divide(kv_len, fewest_keys(program));
    const int64_t most = longest < CLATTN_MAX_SPLITS ? longest : CLATTN_MAX_SPLITS;
    const int64_t most_groups = 2 * places > groups ? 2 * places : groups;
    int64_t best = 1;
    double best_share = 0;
    for (int64_t splits = 1; splits <= most && groups * splits <= most_groups; splits++) {
        const int64_t waves = ceil_divide(groups * splits, places);
        const double share = (double)(groups * splits) / (double)(waves * places);
        if (share > best_share) {
            best_share = share;
            best = splits;
        }
        if (share >= 0.95)
            break;
    }
    return best;
}

static int64_t count_splits(const clattn_plan *plan, const clattn__program *program, int64_t groups,
                            int64_t kv_len)
{
    if (kv_len == 0)
        return 1;
    if (is_invariant(plan)) { /* never one: results that are not combined are rounded otherwise */
        const int64_t fixed = ceil_divide(kv_len, fixed_keys(program));
        return fixed > 1 ? fixed : 2;
    }
    if (plan->desc.splits > 0)
        return plan->desc.splits;
    return chosen_splits(program, wanted_groups(plan, program), groups, kv_len);
}

clattn__splits clattn__splits_of(const clattn_plan *plan, int64_t batch, int64_t q_len, int64_t total_q,
                                 int64_t kv_len)
{
    clattn__splits splits;
    memset(&splits, 0, sizeof splits);
    splits.count = 1;
    splits.part_rows = is_packed(plan) ? total_q : batch * q_len;
    const clattn__program *program = clattn__program_of_call(plan, q_len);
    if (!program->recipe->is_decode)
        return splits;
    const int64_t tiles = clattn__query_tiles(plan, program, batch, q_len, total_q);
    const int64_t groups = tiles * plan->desc.heads_kv * (is_packed(plan) ? 1 : batch);
    splits.count = (int32_t)count_splits(plan, program, groups, kv_len);
    splits.split_keys = is_invariant(plan) ? (int32_t)fixed_keys(program) : 0;
    if (splits.count > 1)
        splits.bytes = sum_of(bytes_of(plan, (uint64_t)splits.part_rows * (uint64_t)plan->desc.heads_q *
                                                 (uint64_t)splits.count),
                              counter_bytes(program, groups));
    return splits;
}

/* Chosen splits are in two waves at most, and a group has at most block_q rows. */
static uint64_t bound_of(const clattn_plan *plan, const clattn__program *program, uint64_t rows,
                         int64_t kv_len)
{
    const int is_chosen = plan->desc.splits == 0 && !is_invariant(plan);
    const int64_t longest = ceil_divide(kv_len, fewest_keys(program));
    const uint64_t count = is_chosen ? (uint64_t)(longest < CLATTN_MAX_SPLITS ? longest : CLATTN_MAX_SPLITS)
                                     : (uint64_t)count_splits(plan, program, 1, kv_len);
    const uint64_t most = 2 * (uint64_t)wanted_groups(plan, program) * (uint64_t)program->tile.block_q;
    const uint64_t parts = count == 1 ? 0 : rows > UINT64_MAX / count ? UINT64_MAX : rows * count;
    return bytes_of(plan, is_chosen && parts > most ? most : parts);
}

uint64_t clattn__splits_bound(const clattn_plan *plan, int64_t batch, int64_t q_len, int64_t total_q,
                              int64_t kv_len)
{
    const uint64_t rows =
        (uint64_t)(is_packed(plan) ? total_q : batch * q_len) * (uint64_t)plan->desc.heads_q;
    uint64_t most = 0;
    for (int i = CLATTN__DECODE; i < CLATTN__PROGRAMS; i++) {
        const clattn__program *program = plan->program[i];
        if (program == NULL || kv_len == 0)
            continue;
        const int64_t tiles = clattn__query_tiles(plan, program, batch, q_len, total_q) *
                              plan->desc.heads_kv * (is_packed(plan) ? 1 : batch);
        const uint64_t parts = bound_of(plan, program, rows, kv_len);
        const uint64_t bytes = parts == 0 ? 0 : sum_of(parts, counter_bytes(program, tiles));
        if (bytes > most)
            most = bytes;
    }
    return most;
}
