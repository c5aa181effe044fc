// nvidia_wgmma.cl: forward attention for NVIDIA's compute capability 9.0, whose warpgroups (four warps)
// multiply tiles of 64 rows straight from local memory (wgmma). After FlashAttention-3 (Shah et al. 2024).
//
// A work-group stays on its multiprocessor and works through many query tiles. It has
//     CONSUMERS  warpgroups of 64 query rows each, which multiply and take the softmax,
//     1          warpgroup of producers, which copies K and V of block after block, and Q of the next tile: by the copy
//                engine (wgmma_engine.cl), or in chunks of 16 bytes (wgmma_chunks.cl),
// and rings of STAGES places for K and V in local memory between them. Each place has two barriers: it is
// full, it is empty. Consumers take turns in beginning their products, so that one's softmax runs beside
// another's products.
//
//     [ Q: Q_PLACES of BLOCK_Q rows ] [ K: STAGES of BLOCK_K rows ] [ V: likewise ] [ barriers ]
//
// Blocks are walked from the last key that the tile's rows may see down to the first; with ALiBi from the rows' own
// place down and then from the last one on, so that the largest scores come early. The softmax is lazy
// (lazy.cl says why that is exact): a block's weights are taken against the row's reference as it is, and
// only if a row of the warp outgrew it are they taken again, from the scores that are still in registers.

// ---- Scores --------------------------------------------------------------------------------------------

// A consumer's state is in few registers beside its matrices. What a work-item can tell from its number, it
// tells anew wherever it is needed: it has rows r and r + 8 of its warpgroup's 64, and columns 2t and 2t + 1
// of each piece.
inlined int row_of_item(void)
{
    const int id = (int)item();
    return id / 32 * 16 + id % 32 / 4;
}

inlined int column_of_item(void) { return (int)item() % 4 * 2; }

// One lane of each warp tells that its warp is done with a place.
inlined void release(uint barrier_address)
{
    if (is_leader())
        arrive(barrier_address);
}

// One row's softmax so far. The sum is of the work-item's own columns.
typedef struct row_state {
    float m; // the reference, in log2 units
    float sum;
} row_state;

// Products become scores in log2 units when they are multiplied by a number, which weigh does on the way: by the
// scale, or, where transform has made scores of them, by 1.
inlined float score_factor(const attention_args *a) { return SCORE_FORMULA ? 1.0f : a->scale_log2; }

#if SCORE_FORMULA

// What follows from it is worked out anew, where compilers would keep it and have no registers for that.
inlined int told_anew(int x)
{
    int y;
    __asm__ volatile("mov.b32 %0,%1;" : "=r"(y) : "r"(x));
    return y;
}

// The same with each of a piece's four.
#define FOUR(i, change)                    \
    s[4 * i] = change(s[4 * i]);           \
    s[4 * i + 1] = change(s[4 * i + 1]);   \
    s[4 * i + 2] = change(s[4 * i + 2]);   \
    s[4 * i + 3] = change(s[4 * i + 3]);

#define TO_CAP(x) ((x) * from)
#define CAP(x) capped(x, &cap)
#define FROM_CAP(x) ((x) * to)
#define EACH_TO_CAP(i)                                                                                   \
    FOUR(i, TO_CAP)                                                                                      \
    most = larger(larger(larger(most, fabs(s[4 * i])), fabs(s[4 * i + 1])),                              \
                  larger(fabs(s[4 * i + 2]), fabs(s[4 * i + 3])));
#define EACH_NEAR(i) FOUR(i, tanh_near)
#define EACH_CAP(i) FOUR(i, CAP)
#define EACH_FROM_CAP(i) FOUR(i, FROM_CAP)

// From products to capped scores. Mostly all are far below the cap.
inlined void cap_scores(float s[4 * S_PIECES], const attention_args *a)
{
    const float softcap = as_float(told_anew(as_int(a->softcap)));
    const float from = a->scale * reciprocal_of(softcap), to = softcap * LOG2_E;
    float most = 0.0f;
    EACH(S_PIECES, EACH_TO_CAP)
    if (__builtin_expect(any_in_warp(most > TANH_NEAR), 0)) {
        const capping cap = make_capping(1.0f, 1.0f);
        EACH(S_PIECES, EACH_CAP)
    } else {
        EACH(S_PIECES, EACH_NEAR)
    }
    EACH(S_PIECES, EACH_FROM_CAP)
}

#define SLOPE(i)                                                                   \
    s[4 * i] = fused(s[4 * i], factor, slope * fabs(upper - (8 * i)));             \
    s[4 * i + 1] = fused(s[4 * i + 1], factor, slope * fabs(upper - (8 * i + 1))); \
    s[4 * i + 2] = fused(s[4 * i + 2], factor, slope * fabs(lower - (8 * i)));     \
    s[4 * i + 3] = fused(s[4 * i + 3], factor, slope * fabs(lower - (8 * i + 1)));

#endif

// From products to scores.
inlined void transform(float s[4 * S_PIECES], const __local query_tile *tile, int block,
                       const attention_args *a)
{
#if SCORE_FORMULA & FORMULA_SOFTCAP
    cap_scores(s, a);
#endif
#if SCORE_FORMULA & FORMULA_ALIBI
    const int position = tile->first_row + row_of_item() + tile->offset;
    const int first = block * BLOCK_K + column_of_item();
    const float upper = (float)(position - first), lower = upper + 8.0f;
    const float slope = -tile->slope, factor = SCORE_FORMULA & FORMULA_SOFTCAP ? 1.0f : a->scale_log2;
    EACH(S_PIECES, SLOPE)
#endif
}

// A bit for each of the work-item's columns of a block, 8 i and 8 i + 1 from its first one, which lies before `end`.
inlined uint columns_before(int end)
{
    const int count = (end >> 3) * 2 + min(end & 7, 2);
    return count >= 32 ? ~0u : (1u << max(count, 0)) - 1;
}

// Those of a row's keys, of which the first column is number `first`.
inlined uint columns_of_row(int row, int first, const __local query_tile *tile)
{
    const key_range keys = keys_of_row(row, tile->kv_len, tile->band_begin, tile->band_end);
    return columns_before(keys.end - first) & ~columns_before(keys.begin - first);
}

#define FORBID(i)                                                        \
    s[4 * i] = upper & 1u << 2 * i ? s[4 * i] : forbidden;               \
    s[4 * i + 1] = upper & 1u << (2 * i + 1) ? s[4 * i + 1] : forbidden; \
    s[4 * i + 2] = lower & 1u << 2 * i ? s[4 * i + 2] : forbidden;       \
    s[4 * i + 3] = lower & 1u << (2 * i + 1) ? s[4 * i + 3] : forbidden;

// Whether a row of the consumer does not see all keys of a block.
inlined int needs_look(int block, const __local row_blocks *blocks)
{
    return block < blocks->full_begin || block >= blocks->full_end;
}

// Forbids keys beyond the band and the sequence.
inlined void forbid(float s[4 * S_PIECES], const __local query_tile *tile, int block, float c)
{
    const int row = tile->first_row + row_of_item(), first = block * BLOCK_K + column_of_item();
    const float forbidden = c < 0.0f ? INFINITY : -INFINITY; // becomes -inf
    const uint upper = columns_of_row(row, first, tile), lower = columns_of_row(row + 8, first, tile);
    EACH(S_PIECES, FORBID)
}

// ---- Softmax -------------------------------------------------------------------------------------------

// A work-item's weights of a row and block may add up to this before the reference moves: far from what
// float16 holds, and from what its row's other blocks would lose beside it.
#define MOST_WEIGHT 4096.0f

// References beyond this are so coarse that a difference from a score must be taken between rounded numbers:
// then equal scores have equal weights. It is also told from here that a row has seen no key yet (its
// reference is SCORE_FLOOR), or floor scores only.
#define COARSE 16777216.0f
#define FLOOR_LOG2 (SCORE_FLOOR * SCORE_TO_LOG2)

// Weights of a piece whose scores less their references are these.
#define WEIGH_THESE(i, x0, x1, x2, x3)                     \
    {                                                      \
        const float w0 = exp2_of(x0), w1 = exp2_of(x1);    \
        const float w2 = exp2_of(x2), w3 = exp2_of(x3);    \
        sum0 += w0;                                        \
        sum1 += w2;                                        \
        sum0 += w1;                                        \
        sum1 += w3;                                        \
        p[2 * i] = pack_two(w0, w1);                       \
        p[2 * i + 1] = pack_two(w2, w3);                   \
    }

#define WEIGH(i)                                                                     \
    WEIGH_THESE(i, fused(s[4 * i], c, -m0), fused(s[4 * i + 1], c, -m0),             \
                fused(s[4 * i + 2], c, -m1), fused(s[4 * i + 3], c, -m1))

// P = exp2(S - m). Returns the row sums.
inlined float2 weigh(uint p[2 * S_PIECES], const float s[4 * S_PIECES], float c, float m0, float m1)
{
    float sum0 = 0.0f, sum1 = 0.0f;
    EACH(S_PIECES, WEIGH)
    return (float2)(sum0, sum1);
}

#define SETTLE(i)                                 \
    s[4 * i] = settled(s[4 * i], c) - m0;         \
    s[4 * i + 1] = settled(s[4 * i + 1], c) - m0; \
    s[4 * i + 2] = settled(s[4 * i + 2], c) - m1; \
    s[4 * i + 3] = settled(s[4 * i + 3], c) - m1;

// In log2 units: finite scores end at the floor. (Fused, so that the compiler does not keep LARGEST's
// products.)
inlined float settled(float s, float c)
{
    const float score = fused(s, c, 0.0f);
    return score < FLOOR_LOG2 && score != -INFINITY ? FLOOR_LOG2 : score;
}

#define LARGEST(i)                                           \
    x0 = larger(x0, larger(s[4 * i] * c, s[4 * i + 1] * c)); \
    x1 = larger(x1, larger(s[4 * i + 2] * c, s[4 * i + 3] * c));

#define RESCALE(i)           \
    o[4 * i] *= shrink0;     \
    o[4 * i + 1] *= shrink0; \
    o[4 * i + 2] *= shrink1; \
    o[4 * i + 3] *= shrink1;

inlined float largest_of_row(float x)
{
    x = larger(x, across(x, 1));
    return larger(x, across(x, 2));
}

inlined int is_coarse(float m) { return !(fabs(m) <= COARSE); }

// The exact step: references move to the largest scores so far, and what was summed up shrinks accordingly. S
// is scratch afterwards.
inlined void weigh_exactly(uint p[2 * S_PIECES], float s[4 * S_PIECES], float o[4 * O_PIECES],
                           row_state rows[2], float c, int is_first)
{
    float x0 = -INFINITY, x1 = -INFINITY;
    EACH(S_PIECES, LARGEST)
    x0 = largest_of_row(x0);
    x1 = largest_of_row(x1);
    const float m0 = larger(rows[0].m, x0), m1 = larger(rows[1].m, x1);
    const float shrink0 = exp2_of(rows[0].m - m0), shrink1 = exp2_of(rows[1].m - m1);
    rows[0].m = m0;
    rows[1].m = m1;
    float2 sums;
    if (any_in_warp((x0 > -INFINITY && is_coarse(m0)) || (x1 > -INFINITY && is_coarse(m1)))) {
        EACH(S_PIECES, SETTLE)
        sums = weigh(p, s, 1.0f, 0.0f, 0.0f);
    } else
        sums = weigh(p, s, c, m0, m1);
    rows[0].sum = fused(rows[0].sum, shrink0, sums.x);
    rows[1].sum = fused(rows[1].sum, shrink1, sums.y);
    if (!is_first) {
        EACH(O_PIECES, RESCALE)
    }
}

// Whether a row has outgrown its reference; and that, or has one that weigh cannot take. (By |, as || would be a branch of
// single work-items, behind which the compiler takes nothing in the loop for uniform.)
inlined int are_too_large(float2 sums) { return !(sums.x <= MOST_WEIGHT) | !(sums.y <= MOST_WEIGHT); }

inlined int is_outgrown(float2 sums, float m0, float m1)
{
    return are_too_large(sums) | is_coarse(m0) | is_coarse(m1);
}

inlined void add_sums(row_state rows[2], float2 sums)
{
    rows[0].sum += sums.x;
    rows[1].sum += sums.y;
}

// P, and the rows' sums with it.
inlined void soften(uint p[2 * S_PIECES], float s[4 * S_PIECES], float o[4 * O_PIECES], row_state rows[2],
                    float c)
{
    const float2 sums = weigh(p, s, c, rows[0].m, rows[1].m);
    if (__builtin_expect(any_in_warp(is_outgrown(sums, rows[0].m, rows[1].m)), 0))
        weigh_exactly(p, s, o, rows, c, 0);
    else
        add_sums(rows, sums);
}

// Likewise of a tile's first block, for which O and the sums are still those of rows without keys. Their largest score
// of a few columns is mostly reference enough; to look at all takes long.
inlined void soften_first(uint p[2 * S_PIECES], float s[4 * S_PIECES], float o[4 * O_PIECES], row_state rows[2],
                          float c)
{
#if !SCORE_FORMULA // ALiBi's scores differ too much for that
    float x0 = -INFINITY, x1 = -INFINITY;
    EACH_2(LARGEST)
    const float m0 = larger(rows[0].m, largest_of_row(x0)), m1 = larger(rows[1].m, largest_of_row(x1));
    const float2 sums = weigh(p, s, c, m0, m1);
    if (__builtin_expect(!any_in_warp(is_outgrown(sums, m0, m1)), 1)) {
        rows[0].sum = fused(rows[0].sum, exp2_of(rows[0].m - m0), sums.x);
        rows[1].sum = fused(rows[1].sum, exp2_of(rows[1].m - m1), sums.y);
        rows[0].m = m0;
        rows[1].m = m1;
        return;
    }
#endif
    weigh_exactly(p, s, o, rows, c, 1);
}

// The short way from products to weights, in which scores need no operations of their own. It serves for blocks that every
// row sees whole,
//     of plain scores,
//     with softcap, while rows' references are low, as low scores are far below the cap,
//     with ALiBi, while all keys are on one side of the warp's rows;
// with both of them for none. S stays as it is for transform and soften, should it not do.
typedef struct short_way {
    int blocks; // of those that follow, for which it serves
    float own, rise; // ALiBi's: the first key's distance from the upper row, and what scores rise by from column to column
} short_way;

inlined short_way look_for_way(const row_state rows[2], int block, const __local query_tile *tile,
                               const __local row_blocks *seen, const attention_args *a)
{
    const int last = tile->end_block;
    const int begin = max(seen->full_begin, block >= last ? last : 0), end = seen->full_end;
    short_way way = {block <= end ? block - begin : 0, 0.0f, 0.0f};
    int serves = !(is_coarse(rows[0].m) | is_coarse(rows[1].m));
#if SCORE_FORMULA == FORMULA_SOFTCAP
    const float m = larger(rows[0].m, rows[1].m) * reciprocal_of(a->low_cap[1]);
    serves &= m * m < a->low_cap[0];
#elif SCORE_FORMULA == FORMULA_ALIBI
    const int position = tile->first_row + tile->offset + row_of_item();
    const int first = position - (int)item() % 32 / 4; // of the warp's 16 rows
    const int left_end = max(first + 1, 0) / BLOCK_K, right_begin = ceil_divide(max(first + 15, 0), BLOCK_K);
    if (block > left_end)
        way.blocks = block <= end ? block - max(begin, right_begin) : 0;
    way.own = (float)(position - block * BLOCK_K - column_of_item());
    way.rise = block > left_end ? -tile->slope : tile->slope;
#endif
    if (SCORE_FORMULA == (FORMULA_SOFTCAP | FORMULA_ALIBI) || any_in_warp(!serves))
        way.blocks = 0;
    return way;
}

#if SCORE_FORMULA

// Softcap as src/low_cap.h has it, wherever SQUARE is negative.
#define SQUARE(x) fused(x, x, -a->low_cap[0])
#define CAP_LESS(x, u, m) fused(x, fused(a->low_cap[2], u, a->low_cap[1]), -(m))
#define WEIGH_CAPPED(i)                                                                          \
    {                                                                                            \
        const float u0 = SQUARE(s[4 * i]), u1 = SQUARE(s[4 * i + 1]);                            \
        const float u2 = SQUARE(s[4 * i + 2]), u3 = SQUARE(s[4 * i + 3]);                        \
        signs &= as_int(u0) & as_int(u1);                                                        \
        signs &= as_int(u2) & as_int(u3);                                                        \
        WEIGH_THESE(i, CAP_LESS(s[4 * i], u0, m0), CAP_LESS(s[4 * i + 1], u1, m0),               \
                    CAP_LESS(s[4 * i + 2], u2, m1), CAP_LESS(s[4 * i + 3], u3, m1))              \
    }

// The sums are no numbers if a product of the work-item was too large.
inlined float2 weigh_capped(uint p[2 * S_PIECES], const float s[4 * S_PIECES], float m0, float m1,
                            const attention_args *a)
{
    float sum0 = 0.0f, sum1 = 0.0f;
    int signs = -1;
    EACH(S_PIECES, WEIGH_CAPPED)
    return (float2)(signs < 0 ? sum0 : NAN, sum1);
}

// ALiBi on one side: scores rise by as much from each column to the next.
#define WEIGH_SLOPED(i)                                                                                  \
    WEIGH_THESE(i, fused(s[4 * i], c, fused(rise, 8 * i, from0)),                                        \
                fused(s[4 * i + 1], c, fused(rise, 8 * i + 1, from0)),                                   \
                fused(s[4 * i + 2], c, fused(rise, 8 * i, from1)),                                       \
                fused(s[4 * i + 3], c, fused(rise, 8 * i + 1, from1)))

inlined float2 weigh_sloped(uint p[2 * S_PIECES], const float s[4 * S_PIECES], float c, float m0, float m1,
                            float own, float rise)
{
    const float from0 = fused(-rise, own, -m0), from1 = fused(-rise, own + 8.0f, -m1);
    float sum0 = 0.0f, sum1 = 0.0f;
    EACH(S_PIECES, WEIGH_SLOPED)
    return (float2)(sum0, sum1);
}

#endif

// A block's weights, the short way; returns their sums. If they are too large in a work-item of the warp it did not do.
inlined float2 weigh_products(uint p[2 * S_PIECES], const float s[4 * S_PIECES], const row_state rows[2], short_way *way,
                              const attention_args *a)
{
#if SCORE_FORMULA == FORMULA_SOFTCAP
    return weigh_capped(p, s, rows[0].m, rows[1].m, a);
#elif SCORE_FORMULA // (Of both too, where no block comes here: without the loop compilers spill.)
    way->own += BLOCK_K;
    return weigh_sloped(p, s, a->scale_log2, rows[0].m, rows[1].m, way->own, way->rise);
#else
    return weigh(p, s, a->scale_log2, rows[0].m, rows[1].m);
#endif
}

// ---- Results -------------------------------------------------------------------------------------------

#define PACKED(i, r) pack_two(o[4 * i + 2 * r] * inverse, o[4 * i + 2 * r + 1] * inverse)

// A row's 16 columns of two pieces are with four lanes, two of each piece. Neighbours change places so that a lane has
// four columns of one of them.
inlined uint2 columns_of_lane(uint w0, uint w1, int odd)
{
    const uint other = bits_across(odd ? w0 : w1, 1);
    return (uint2)(odd ? other : w0, odd ? w1 : other);
}

inlined void store_pair(__global ushort *row, int column, int head_dim, uint pair)
{
    if (column < head_dim)
        row[column] = (ushort)pair;
    if (column + 1 < head_dim)
        row[column + 1] = (ushort)(pair >> 16);
}

// O / sum and ln(sum exp) of the work-item's rows.
inlined void write_rows(float o[4 * O_PIECES], const row_state rows[2], const __local query_tile *tile,
                        const attention_buffers *in, const attention_args *a)
{
    const int column = column_of_item(), odd = column & 2, first_of_four = odd ? 6 + column : column;
    const int is_aligned = is_chunked(in->o, &a->o) && a->head_dim_v % (CHUNK / 2) == 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = rows[r].sum;
        sum += across(sum, 1);
        sum += across(sum, 2);
        const int is_empty = sum == 0.0f; // no key was allowed
        const float inverse = is_empty ? 0.0f : reciprocal_of(sum);
        const int row = row_of_item() + 8 * r;
        const int exists = tile->first_row + row < tile->q_len;
        if (exists && column == 0 && has(a, FEATURE_LSE)) {
            const float lse = is_empty ? -INFINITY : (rows[r].m + log2_fast(sum)) * LN_2;
            in->lse[tile->lse + row * a->lse.token] = lse * a->lse_unit;
        }
        __global ushort *to = (__global ushort *)in->o + tile->o + row * a->o.token;
        if (is_aligned) {
#pragma unroll
            for (int i = 0; i < O_PIECES; i += 2) {
                const uint2 four = columns_of_lane(PACKED(i, r), PACKED((i + 1), r), odd);
                if (exists && 8 * i + first_of_four < a->head_dim_v)
                    *(__global uint2 *)(to + 8 * i + first_of_four) = four;
            }
        } else if (exists) {
#pragma unroll
            for (int i = 0; i < O_PIECES; i++)
                store_pair(to, 8 * i + column, a->head_dim_v, PACKED(i, r));
        }
    }
}

// ---- Consumers -----------------------------------------------------------------------------------------

inlined void begin_rows(row_state rows[2], const __local query_tile *tile)
{
    rows[0].m = rows[1].m = tile->start_max;
    rows[0].sum = rows[1].sum = column_of_item() == 0 ? tile->start_sum : 0.0f;
}

// Matrices in local memory, as the products find them: Q of a place, and K and V of the first place, from which it is
// so far to the others.
inlined uint q_matrix(uint memory, uint number, uint place)
{
    return matrix_at(memory + place * Q_BYTES + number * Q_CONSUMER_BYTES, CHUNK);
}

#define K_STEP (K_BYTES / 16)
#define V_STEP (V_BYTES / 16)
inlined uint k_matrix(uint memory) { return matrix_at(memory + K_BEGIN, CHUNK); }

inlined uint v_matrix(uint memory) { return matrix_at(memory + V_BEGIN, KV_PANEL_BYTES); }

// Computed here, not in the turn, which others wait for.
inlined uint ready(uint x)
{
    uint y;
    __asm__ volatile("mov.b32 %0,%1;" : "=r"(y) : "r"(x));
    return y;
}

// What P has: weights that await their product with V, with which O begins, or to which it is added.
#define NO_WEIGHTS 0
#define FIRST_WEIGHTS 1
#define MORE_WEIGHTS 2

// Where a consumer is in local memory.
typedef struct place {
    uint memory;
    uint number; // of the consumer
    int is_by_chunks; // what the copy engine has written the products see; this they must be shown
    uint q; // the matrix
} place;

inlined void begin_turn(const place *my) { WAIT_AT(TURN_OF(my->number), TWO_WARPGROUPS); }

inlined void end_turn(const place *my)
{
    ARRIVE_AT(TURN_OF(my->number + 1 == CONSUMERS ? 0 : my->number + 1), TWO_WARPGROUPS);
}

inlined void wait_for_keys(const place *my, uint full, uint parity)
{
    wait_for(full, parity);
    if (my->is_by_chunks)
        show_to_products();
}

// Lets a block go by, in its turn.
inlined void skip(const place *my, ring at)
{
    wait_for(my->memory + K_FULL(at.stage), at.parity);
    begin_turn(my);
    end_turn(my);
    release(my->memory + K_EMPTY(at.stage));
    wait_for(my->memory + V_FULL(at.stage), at.parity);
    release(my->memory + V_EMPTY(at.stage));
}

// S = Q K^T of the block at `at`, in the consumer's turn.
inlined void multiply_first(float s[4 * S_PIECES], const place *my, ring at)
{
    wait_for_keys(my, my->memory + K_FULL(at.stage), at.parity);
    begin_turn(my);
    begin_qk(s, my->q, k_matrix(my->memory) + at.stage * K_STEP);
    end_turn(my);
    end_qk(s);
    release(my->memory + K_EMPTY(at.stage));
}

// Begins, in the consumer's turn, S = Q K^T of the block at `next` and O += P V of the one before it (O = P V, if
// they are the tile's first weights); waits for S.
inlined void multiply(float s[4 * S_PIECES], float o[4 * O_PIECES], const uint p[2 * S_PIECES], int weights,
                      const place *my, ring at, ring next)
{
    const uint k = ready(k_matrix(my->memory) + next.stage * K_STEP);
    const uint v = ready(v_matrix(my->memory) + at.stage * V_STEP);
    wait_for_keys(my, my->memory + K_FULL(next.stage), next.parity);
    begin_turn(my);
    begin_qk(s, my->q, k);
    wait_for_keys(my, my->memory + V_FULL(at.stage), at.parity);
    begin_pv(o, p, v, weights == MORE_WEIGHTS);
    end_turn(my);
    end_qk_before_pv(s);
    release(my->memory + K_EMPTY(next.stage));
}

// Begins O += P V of a consumer's last block (O = P V, likewise).
inlined void multiply_last(float o[4 * O_PIECES], const uint p[2 * S_PIECES], int weights, const place *my, ring at)
{
    wait_for_keys(my, my->memory + V_FULL(at.stage), at.parity);
    begin_pv(o, p, v_matrix(my->memory) + at.stage * V_STEP, weights == MORE_WEIGHTS);
}

inlined void end_block(float o[4 * O_PIECES], const place *my, ring at)
{
    end_pv(o);
    release(my->memory + V_EMPTY(at.stage));
}

// The blocks of a tile behind its first one.
inlined void consume_rest(float s[4 * S_PIECES], float o[4 * O_PIECES], uint p[2 * S_PIECES], row_state rows[2],
                          int *weights, const place *my, ring *at, int block,
                          const __local query_tile *tile, const attention_args *a)
{
    const __local row_blocks *seen = &tile->blocks[my->number];
    for (;;) {
        short_way way = look_for_way(rows, block, tile, seen, a);
        float2 sums = (float2)(0.0f, 0.0f); // not yet with the rows': they may be too large
        // (One vote ends it: behind a second the compiler would keep nothing in uniform registers.)
        while (!any_in_warp(are_too_large(sums) | (way.blocks <= 0))) {
            add_sums(rows, sums);
            ring next = *at;
            advance(&next);
            block--;
            way.blocks--;
            multiply(s, o, p, *weights, my, *at, next);
            end_block(o, my, *at);
            *weights = MORE_WEIGHTS;
            *at = next;
            sums = weigh_products(p, s, rows, &way, a);
        }
        // One that needs a look, or for which the short way did not do.
        if (!any_in_warp(are_too_large(sums))) {
            add_sums(rows, sums);
            if (block == tile->end_block)
                return;
            block = block_after(block, tile);
            ring next = *at;
            advance(&next);
            multiply(s, o, p, *weights, my, *at, next);
            end_block(o, my, *at);
            *weights = MORE_WEIGHTS;
            *at = next;
        }
        transform(s, tile, block, a);
        const float c = score_factor(a);
        if (any_in_warp(needs_look(block, seen)))
            forbid(s, tile, block, c);
        soften(p, s, o, rows, c);
    }
}

// for each query tile:
//     let blocks go by that no row of the consumer sees
//     for each block of keys:
//         begin S = Q K^T, and O += P V of the block before, which may be the last one of the tile before
//         if it was: write O / l and m + ln l, and begin anew
//         S = -inf where a row may not see a key
//         P = exp(S - m);  l += row sums of P;  if they outgrow m: m = row maximum, rescale l and O, P again
inlined void consume(uint memory, uint number, const __local query_tile *tiles, const attention_buffers *in,
                     const attention_args *a)
{
    float s[4 * S_PIECES], o[4 * O_PIECES];
    uint p[2 * S_PIECES];
    row_state rows[2];
    ring at = {STAGES - 1, 1}; // before the first
    int weights = NO_WEIGHTS;
    place my = {memory, number, 1, 0};
    if (number == 0)
        ARRIVE_AT(TURN_OF(0), TWO_WARPGROUPS);
    for (uint count = 0;; count++) {
        wait_for(memory + Q_FULL(count % Q_PLACES), count / Q_PLACES & 1);
        const __local query_tile *tile = &tiles[count % DESCRIPTIONS];
        const __local query_tile *tile_before = &tiles[(count - 1) % DESCRIPTIONS];
        const int exists = tile->first_row != NO_TILE;
        const int skipped = tile->blocks[number].skipped;
        if (weights != NO_WEIGHTS && (!exists || any_in_warp(skipped > 0))) {
            multiply_last(o, p, weights, &my, at);
            end_block(o, &my, at);
            write_rows(o, rows, tile_before, in, a);
            weights = NO_WEIGHTS;
        }
        if (!exists)
            break;
        my.is_by_chunks = !COPY_ENGINE || tile->is_by_chunks;
        my.q = ready(q_matrix(memory, number, count % Q_PLACES));
        int block = tile->start_block;
        for (int i = 0; any_in_warp(i < skipped); i++, block--) {
            advance(&at);
            skip(&my, at);
        }
        if (block >= tile->first_block) {
            ring next = at;
            advance(&next);
            if (weights != NO_WEIGHTS) {
                multiply(s, o, p, weights, &my, at, next);
                end_block(o, &my, at);
                write_rows(o, rows, tile_before, in, a);
            } else
                multiply_first(s, &my, next);
            transform(s, tile, block, a);
            const float c = score_factor(a);
            if (any_in_warp(needs_look(block, &tile->blocks[number])))
                forbid(s, tile, block, c);
            begin_rows(rows, tile);
            soften_first(p, s, o, rows, c);
            at = next;
            weights = FIRST_WEIGHTS;
            consume_rest(s, o, p, rows, &weights, &my, &at, block, tile, a);
        }
        release(memory + Q_EMPTY(count % Q_PLACES));
    }
}

// ---- The whole -----------------------------------------------------------------------------------------

inlined void begin_barriers(uint memory)
{
#pragma unroll
    for (int i = 0; i < Q_PLACES; i++) {
        barrier_begin(memory + Q_FULL(i), WARPGROUP);
        barrier_begin(memory + Q_EMPTY(i), CONSUMERS * 4);
    }
#pragma unroll
    for (int i = 0; i < STAGES; i++) {
        barrier_begin(memory + K_FULL(i), WARPGROUP);
        barrier_begin(memory + K_EMPTY(i), CONSUMERS * 4);
        barrier_begin(memory + V_FULL(i), WARPGROUP);
        barrier_begin(memory + V_EMPTY(i), CONSUMERS * 4);
    }
#pragma unroll
    for (int i = 0; i < DESCRIPTIONS; i++)
        barrier_begin(memory + TILE_FOUND(i), 1);
    barrier_begin(memory + V_COPIED, 1);
    barriers_begun();
}

__kernel __attribute__((reqd_work_group_size(WORK_ITEMS, 1, 1))) void forward(ATTENTION_BUFFERS,
                                                                              attention_args args)
{
    __local __attribute__((aligned(1024))) uchar memory_bytes[MEMORY_BYTES];
    __local query_tile tiles[DESCRIPTIONS];
#if COPY_ENGINE
    __local __attribute__((aligned(128))) ulong scratch[MAPS * MAP_WORDS];
#endif
    __local tile_search search;
    const attention_buffers buffers = GATHERED_BUFFERS;
    if (args.num_groups == 0)
        return;
    const uint memory = local_address(memory_bytes);
    const uint warpgroup = warp_uniform((uint)get_local_id(0) / WARPGROUP);
    if (get_local_id(0) == 0)
        begin_barriers(memory);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (warpgroup == CONSUMERS) {
        ulong maps = 0;
#if COPY_ENGINE
        maps = make_maps(scratch, &buffers, &args);
#endif
        if (is_finder()) {
            begin_search(&search, maps == 0, &buffers, &args);
            find_tile(&tiles[0], &search, &buffers, &args);
        }
        meet_warp();
        __asm__ volatile("//@setmaxnreg.dec.sync.aligned.u32 " QUOTED(PRODUCER_REGISTERS) ";\n");
#if COPY_ENGINE
        if (maps != 0) {
            produce_by_engine(memory, maps, tiles, &search, &buffers, &args);
            return;
        }
#endif
        produce_by_chunks(memory, tiles, &search, &buffers, &args);
    } else {
        __asm__ volatile("//@setmaxnreg.inc.sync.aligned.u32 " QUOTED(CONSUMER_REGISTERS) ";\n");
        consume(memory, warpgroup, tiles, &buffers, &args);
    }
}
