// append.cl: new keys and values into a cache, rotated (RoPE) where the plan says so; q is rotated beside
// them.
//
// A work-group takes one row of one token: of the heads of k, then those of v, then those of q. Its
// number is
//     group = token * (heads_kv + rows_v + rows_q) + row,
// tokens being counted through all entries, padded or packed.

#define APPEND_BUFFERS                                                                                   \
    const __global q_t *k_new, const __global q_t *v_new, __global k_t *k, __global v_t *v,              \
        __global float *k_scale, __global float *v_scale, const __global q_t *q, __global q_t *q_out,    \
        const __global int *kv_lens, __global int *kv_lens_out, const __global int *q_lens,              \
        const __global int *cu_seqlens_q, const __global int *block_table,                               \
        const __global int *slot_mapping, const __global int *positions, const __global float *rope_cos, \
        const __global float *rope_sin, __global int *status_words

typedef struct append_buffers {
    const __global q_t *k_new;
    const __global q_t *v_new;
    __global k_t *k;
    __global v_t *v;
    __global float *k_scale;
    __global float *v_scale;
    const __global q_t *q;
    __global q_t *q_out; // may be q
    const __global int *kv_lens;
    __global int *kv_lens_out; // may be kv_lens
    const __global int *q_lens;
    const __global int *cu_seqlens_q;
    const __global int *block_table;
    const __global int *slot_mapping;
    const __global int *positions;
    const __global float *rope_cos;
    const __global float *rope_sin;
    __global int *status_words;
} append_buffers;

#define GATHERED_APPEND_BUFFERS                                                                          \
    {                                                                                                    \
        k_new, v_new, (__global k_t *)LED(K_TYPE, k, args.k_lead),                                       \
            (__global v_t *)LED(V_TYPE, v, args.v_lead), k_scale, v_scale, q, q_out,            \
            kv_lens, kv_lens_out, q_lens, cu_seqlens_q, block_table, slot_mapping, positions, rope_cos,  \
            rope_sin, status_words                                                                       \
    }

#define WORD_BAD_PAGE 0 // of clattn_status_words
#define WORD_BAD_LENGTH 1
#define WORD_DROPPED 2

#define FINDS_SCALES ((K_TYPE == TYPE_I8) | (V_TYPE == TYPE_I8))

DEFINE_STORE_ROW(store_k, K_TYPE)
DEFINE_STORE_ROW(store_v, V_TYPE)
DEFINE_STORE_ROW(store_row_q, Q_TYPE)

static inline int takes(const append_args *a, int feature) { return (a->features & feature) != 0; }

static inline void note(int word, int batch, const append_buffers *in, const append_args *a)
{
    if (takes(a, FEATURE_STATUS))
        atomic_max((volatile __global int *)in->status_words + a->status_words + word, batch + 1);
}

// ---- Entries: what device memory says of them, clamped to what the host knows -----------------------------

typedef struct append_entry {
    int first; // row of its first token among packed ones; otherwise 0
    int count; // of new tokens
    int kv_len; // keys before the call
    int is_bad; // some number was outside its bounds
} append_entry;

static inline int cu_seqlen(int b, const append_buffers *in, const append_args *a)
{
    return in->cu_seqlens_q[a->cu_seqlens_q + b];
}

// The number within 0 .. most, and whether it was not.
static inline int bounded(int number, int most, int *is_bad)
{
    *is_bad |= number < 0 || number > most;
    return clamp(number, 0, most);
}

static inline append_entry entry_of(int batch, const append_buffers *in, const append_args *a)
{
    append_entry entry;
    entry.first = 0;
    entry.count = a->new_len;
    entry.kv_len = 0;
    entry.is_bad = 0;
    if (takes(a, FEATURE_CU_SEQLENS_Q)) {
        entry.first = bounded(cu_seqlen(batch, in, a), a->total_new, &entry.is_bad);
        const int end = bounded(cu_seqlen(batch + 1, in, a), a->total_new, &entry.is_bad);
        entry.count = bounded(end - entry.first, a->new_len, &entry.is_bad);
    }
    if (takes(a, FEATURE_Q_LENS))
        entry.count = bounded(in->q_lens[number_at(&a->q_lens, batch, 0)], entry.count, &entry.is_bad);
    if (a->has_kv_lens)
        entry.kv_len = bounded(in->kv_lens[number_at(&a->kv_lens, batch, 0)], a->kv_len, &entry.is_bad);
    return entry;
}

// The entry that a packed row may belong to: the last one that does not begin behind it.
static inline int batch_of_packed_token(int row, const append_buffers *in, const append_args *a)
{
    int begin = 0, end = a->batch;
    while (end - begin > 1) {
        const int middle = (begin + end) / 2;
        if (clamp(cu_seqlen(middle, in, a), 0, a->total_new) <= row)
            begin = middle;
        else
            end = middle;
    }
    return begin;
}

// ---- Tokens -----------------------------------------------------------------------------------------------

typedef struct new_token {
    int batch;
    int row; // among the entry's rows of k_new, or all packed ones
    int position; // for RoPE
    int plane; // of the cache: the entry, or a page; -1: there is no place for the token
    int place; // within the plane
    int is_bad_page; // why there is no place
    int is_dropped; // likewise; a token that its slot leaves out is not
} new_token;

// Where the token goes: `natural`, or where its slot says.
static inline void find_place(new_token *token, long natural, const append_buffers *in, const append_args *a)
{
    const int mapped = takes(a, FEATURE_SLOT_MAPPING), paged = takes(a, FEATURE_BLOCK_TABLE);
    const long place =
        mapped ? in->slot_mapping[number_at(&a->slot_mapping, token->batch, token->row)] : natural;
    const int is_inside = place >= 0 && ((mapped && paged) || place < a->kv_len);
    const int page = is_inside && paged ? (int)place / a->page_size : 0;
    int plane = token->batch;
    if (paged)
        plane = mapped || !is_inside
                    ? page
                    : in->block_table[a->block_table + token->batch * a->block_table_batch + page];
    token->is_bad_page = is_inside && paged && (plane < 0 || plane >= a->num_pages);
    token->is_dropped = token->is_bad_page || (!is_inside && place >= 0);
    token->plane = is_inside && !token->is_bad_page ? plane : -1;
    token->place = (int)place - page * a->page_size;
}

// Token `row` of all; 0: it is none of any entry's.
static inline int find_token(new_token *token, int row, const append_buffers *in, const append_args *a)
{
    const int packed = takes(a, FEATURE_CU_SEQLENS_Q);
    token->batch = packed ? batch_of_packed_token(row, in, a) : row / a->new_len;
    token->row = packed ? row : row - token->batch * a->new_len;
    const append_entry entry = entry_of(token->batch, in, a);
    const int number = token->row - entry.first;
    if (number < 0 || number >= entry.count)
        return 0;
    const long natural = (long)entry.kv_len + number;
    token->position = a->has_positions ? in->positions[number_at(&a->positions, token->batch, token->row)]
                                       : (int)min(natural, (long)INT_MAX);
    find_place(token, natural, in, a);
    return 1;
}

static inline void note_token(const new_token *token, const append_buffers *in, const append_args *a)
{
    if (token->is_bad_page)
        note(WORD_BAD_PAGE, token->batch, in, a);
    if (token->is_dropped)
        note(WORD_DROPPED, token->batch, in, a);
}

// ---- Rows -------------------------------------------------------------------------------------------------

// The whole number nearest to x, within +-2^22: what float32 rounds to beside 1.5 * 2^23.
static inline float nearest_whole(float x) { return (x + 12582912.0f) - 12582912.0f; }

// Cosine and sine to 2^-22 or so: of what is left of the angle after quarters of a turn, by Moshier's
// polynomials (1989, "Methods and Programs for Mathematical Functions"). Their number is 4096 k + n, and
// a quarter comes in three parts whose products with k and n are exact (Cody and Waite 1980, "Software
// Manual for the Elementary Functions", chapter 8), for angles up to 10^7. From 2^24 on floats are
// further apart than angles: they count as 0. Built-in functions cost CPUs several times as much.
#define QUARTER_1 1.5703125f
#define QUARTER_2 4.837512969970703125e-4f
#define QUARTER_3 7.54978995489188e-8f
#define QUARTERS 0.63661977236758134308f // of a turn in an angle of 1
static inline float2 turn_of(float any_angle)
{
    const float angle = fabs(any_angle) < 16777216.0f ? any_angle : 0.0f;
    const float k = nearest_whole(angle * (QUARTERS / 4096.0f));
    const float behind_k = angle - k * (4096.0f * QUARTER_1);
    const float n = nearest_whole((behind_k - k * (4096.0f * QUARTER_2)) * QUARTERS);
    const float rest = behind_k - n * QUARTER_1 - k * (4096.0f * QUARTER_2) - n * QUARTER_2 -
                       k * (4096.0f * QUARTER_3) - n * QUARTER_3;
    const float square = rest * rest;
    const float sine =
        rest + rest * square * (-1.6666654611e-1f + square * (8.3321608736e-3f - square * 1.9515295891e-4f));
    const float cosine =
        1.0f - 0.5f * square +
        square * square *
            (4.166664568298827e-2f + square * (square * 2.443315711809948e-5f - 1.388731625493765e-3f));
    const int quarter = (int)n;
    const float x = quarter & 1 ? sine : cosine, y = quarter & 1 ? cosine : sine;
    return (float2)((quarter + 1) & 2 ? -x : x, quarter & 2 ? -y : y);
}

// 2^x to 2^-22 or so, by its series around the nearest whole number.
static inline float power_of_2(float x)
{
    const float within = x < -126.0f ? -126.0f : x > 127.0f ? 127.0f : x;
    const float whole = nearest_whole(within), rest = within - whole;
    const float series =
        1.0f +
        rest * (0.6931471805599453f +
                rest * (0.2402265069591007f +
                        rest * (0.05550410866482158f +
                                rest * (0.009618129107628477f +
                                        rest * (0.001333355814642844f + rest * 0.0001540353039338161f)))));
    return series * as_float(((int)whole + 127) << 23);
}

// Cosine and sine of pair c.
static inline float2 turn_of_pair(int c, int position, const append_buffers *in, const append_args *a)
{
    if (takes(a, FEATURE_ROPE_TABLES)) {
        const int row = clamp(position, 0, a->rope_len - 1);
        return (float2)(in->rope_cos[a->rope_cos + row * a->rope_cos_row + c],
                        in->rope_sin[a->rope_sin + row * a->rope_sin_row + c]);
    }
    return turn_of(position * (a->rope_scale * power_of_2(c * a->rope_step)));
}

// Element c after RoPE: a pair is turned by both of its columns, each for itself.
static inline float rotated_element(const __global q_t *source, int c, int columns, int position,
                                    const append_buffers *in, const append_args *a)
{
    const int pairs = a->rotary_dim / 2, is_neox = a->rope == ROPE_NEOX;
    const int is_rotated = c < a->rotary_dim, own = is_rotated ? c : 0;
    const int is_second = is_neox ? own >= pairs : own % 2;
    const int distance = is_neox ? pairs : 1;
    const int pair = is_neox ? own - (is_second ? pairs : 0) : own / 2;
    const float2 turn = turn_of_pair(pair, position, in, a);
    const float x = element_of_row(source, c, columns);
    const float other = LOAD1(Q_TYPE)(source, is_second ? own - distance : own + distance);
    const float rotated = x * turn.x + (is_second ? other : -other) * turn.y;
    return is_rotated ? rotated : x;
}

static inline void load_row(__local float *row, const __global q_t *source, int columns, int rotates,
                            int position, int id, const append_buffers *in, const append_args *a)
{
    FOR_STEPS_OF_ROW(first, columns, ROW_ITEMS)
        row[first + id] = rotates ? rotated_element(source, first + id, columns, position, in, a)
                                  : element_of_row(source, first + id, columns);
    barrier(CLK_LOCAL_MEM_FENCE);
}

static inline long new_base(const tensor_address *t, const new_token *token, int head)
{
    return head_base(t, token->batch, head) + token->row * t->token;
}

static inline long cache_base(const tensor_address *t, const new_token *token, int head)
{
    return head_base(t, token->plane, head) + token->place * t->token;
}

static inline void append_k(const new_token *token, int head, const __local float *row, float largest, int id,
                            const append_buffers *in, const append_args *a)
{
    const float inverse =
        inverse_scale_of_row(K_TYPE, takes(a, FEATURE_K_SCALE),
                             in->k_scale + cache_base(&a->k_scale, token, head), largest, id);
    store_k(in->k, cache_base(&a->k, token, head), row, a->head_dim_qk, inverse, id);
}

static inline void append_v(const new_token *token, int head, const __local float *row, float largest, int id,
                            const append_buffers *in, const append_args *a)
{
    const float inverse =
        inverse_scale_of_row(V_TYPE, takes(a, FEATURE_V_SCALE),
                             in->v_scale + cache_base(&a->v_scale, token, head), largest, id);
    store_v(in->v, cache_base(&a->v, token, head), row, a->head_dim_v, inverse, id);
}

static inline void store_q(const new_token *token, int head, const __local float *row, int id,
                           const append_buffers *in, const append_args *a)
{
    store_row_q(in->q_out, new_base(&a->q_out, token, head), row, a->head_dim_qk, 1.0f, id);
}

// ---- Kernels ----------------------------------------------------------------------------------------------

// All of a row is in local memory before any of it is stored: q_out may be q.
__kernel __attribute__((reqd_work_group_size(ROW_ITEMS, 1, 1))) void append(APPEND_BUFFERS, append_args args)
{
    __local float row[MAX_ROW], work[2 * ROW_ITEMS];
    const append_buffers buffers = GATHERED_APPEND_BUFFERS;
    const append_buffers *in = &buffers;
    const append_args *a = &args;
    if ((int)get_group_id(1) >= a->num_groups)
        return;
    const int group = (int)get_group_id(1) + a->first_group, id = (int)get_local_id(0);
    const int rows = a->heads_kv + a->rows_v + a->rows_q, number = group % rows;
    const int is_q = number >= a->heads_kv + a->rows_v, is_v = !is_q && number >= a->heads_kv;
    const int head = number - (is_q ? a->heads_kv + a->rows_v : is_v ? a->heads_kv : 0);
    const int columns = is_v ? a->head_dim_v : a->head_dim_qk;
    new_token token;
    if (!find_token(&token, group / rows, in, a))
        return;
    if (token.plane < 0 && !is_q) {
        if (number == 0 && id == 0)
            note_token(&token, in, a);
        return;
    }
    const __global q_t *source = is_q   ? in->q + new_base(&a->q, &token, head)
                                 : is_v ? in->v_new + new_base(&a->v_new, &token, head)
                                        : in->k_new + new_base(&a->k_new, &token, head);
    float largest = 0.0f;
    load_row(row, source, columns, a->rope != ROPE_NONE && !is_v, token.position, id, in, a);
    if (FINDS_SCALES)
        largest = largest_of_row(row, columns, work, id);
    if (is_q)
        store_q(&token, head, row, id, in, a);
    else if (is_v)
        append_v(&token, head, row, largest, id, in, a);
    else
        append_k(&token, head, row, largest, id, in, a);
}

// What there is once for each entry: its length after the call, and whether its numbers make sense. Runs
// behind `append`, because kv_lens_out may be kv_lens.
__kernel __attribute__((reqd_work_group_size(ROW_ITEMS, 1, 1))) void append_lengths(APPEND_BUFFERS,
                                                                                   append_args args)
{
    const append_buffers buffers = GATHERED_APPEND_BUFFERS;
    const append_buffers *in = &buffers;
    const append_args *a = &args;
    const int group = (int)get_group_id(1) + a->first_group;
    const int batch = group * ROW_ITEMS + (int)get_local_id(0);
    if ((int)get_group_id(1) >= a->num_groups || batch >= a->batch)
        return;
    const append_entry entry = entry_of(batch, in, a);
    if (entry.is_bad)
        note(WORD_BAD_LENGTH, batch, in, a);
    if (a->has_kv_lens_out)
        in->kv_lens_out[number_at(&a->kv_lens_out, batch, 0)] =
            (int)min((long)entry.kv_len + entry.count, (long)a->kv_len);
}
