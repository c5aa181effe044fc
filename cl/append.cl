// append.cl: new keys and values into a cache, rotated (RoPE) where the plan says so; q is rotated beside them.
//
// A work-group takes one row of one token: of the heads of k, then those of v, then those of q. Its number is
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
        k_new, v_new, k, v, k_scale, v_scale, q, q_out, kv_lens, kv_lens_out, q_lens, cu_seqlens_q,      \
            block_table, slot_mapping, positions, rope_cos, rope_sin, status_words                       \
    }

#define WORD_BAD_PAGE 0 // of clattn_status_words
#define WORD_BAD_LENGTH 1
#define WORD_DROPPED 2

DEFINE_STORE_ROW(store_k, K_TYPE)
DEFINE_STORE_ROW(store_v, V_TYPE)

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
} new_token;

// Where the token goes; is_first: of the token's work-groups the one that notes what is wrong.
static inline void find_place(new_token *token, long natural, int is_first, const append_buffers *in,
                              const append_args *a)
{
    const int mapped = takes(a, FEATURE_SLOT_MAPPING), paged = takes(a, FEATURE_BLOCK_TABLE);
    const long place =
        mapped ? in->slot_mapping[number_at(&a->slot_mapping, token->batch, token->row)] : natural;
    token->plane = -1;
    if (place < 0)
        return;
    if (!(mapped && paged) && place >= a->kv_len) {
        if (is_first)
            note(WORD_DROPPED, token->batch, in, a);
        return;
    }
    const int page = paged ? (int)place / a->page_size : 0;
    token->place = (int)place - page * a->page_size;
    token->plane = !paged   ? token->batch
                   : mapped ? page
                            : in->block_table[a->block_table + token->batch * a->block_table_batch + page];
    if (paged && (token->plane < 0 || token->plane >= a->num_pages)) {
        token->plane = -1;
        if (is_first) {
            note(WORD_BAD_PAGE, token->batch, in, a);
            note(WORD_DROPPED, token->batch, in, a);
        }
    }
}

// Token `row` of all; 0: it is none of any entry's.
static inline int find_token(new_token *token, int row, int is_first, const append_buffers *in,
                             const append_args *a)
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
    find_place(token, natural, is_first, in, a);
    return 1;
}

// ---- Rows -------------------------------------------------------------------------------------------------

// Cosine and sine of pair c.
static inline float2 turn_of_pair(int c, int position, const append_buffers *in, const append_args *a)
{
    if (takes(a, FEATURE_ROPE_TABLES)) {
        const int row = clamp(position, 0, a->rope_len - 1);
        return (float2)(in->rope_cos[a->rope_cos + row * a->rope_cos_row + c],
                        in->rope_sin[a->rope_sin + row * a->rope_sin_row + c]);
    }
    const float angle = position * (a->rope_scale * exp2(c * a->rope_step));
    return (float2)(cos(angle), sin(angle));
}

static inline void rotate_row(__local float *row, int position, int id, const append_buffers *in,
                              const append_args *a)
{
    const int pairs = a->rotary_dim / 2;
    for (int c = id; c < pairs; c += ROW_ITEMS) {
        const int first = a->rope == ROPE_NEOX ? c : 2 * c, second = a->rope == ROPE_NEOX ? c + pairs : 2 * c + 1;
        const float2 turn = turn_of_pair(c, position, in, a);
        const float x = row[first], y = row[second];
        row[first] = x * turn.x - y * turn.y;
        row[second] = y * turn.x + x * turn.y;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

static inline long cache_base(const tensor_address *t, const new_token *token, int head)
{
    return head_base(t, token->plane, head) + token->place * t->token;
}

static inline void append_k(const new_token *token, int head, int id, const row_memory *memory,
                            const append_buffers *in, const append_args *a)
{
    __global float *scale = in->k_scale + cache_base(&a->k_scale, token, head);
    load_row(memory->row, in->k_new + head_base(&a->k_new, token->batch, head) + token->row * a->k_new.token,
             a->head_dim_qk, id);
    if (a->rope != ROPE_NONE)
        rotate_row(memory->row, token->position, id, in, a);
    const float inverse =
        inverse_scale_of_row(K_TYPE, takes(a, FEATURE_K_SCALE), scale, a->head_dim_qk, id, memory);
    store_k(in->k, cache_base(&a->k, token, head), memory->row, a->head_dim_qk, inverse, id);
}

static inline void append_v(const new_token *token, int head, int id, const row_memory *memory,
                            const append_buffers *in, const append_args *a)
{
    __global float *scale = in->v_scale + cache_base(&a->v_scale, token, head);
    load_row(memory->row, in->v_new + head_base(&a->v_new, token->batch, head) + token->row * a->v_new.token,
             a->head_dim_v, id);
    const float inverse =
        inverse_scale_of_row(V_TYPE, takes(a, FEATURE_V_SCALE), scale, a->head_dim_v, id, memory);
    store_v(in->v, cache_base(&a->v, token, head), memory->row, a->head_dim_v, inverse, id);
}

// All of the row is in local memory before any of it is written: q_out may be q.
static inline void rotate_q(const new_token *token, int head, int id, const row_memory *memory,
                            const append_buffers *in, const append_args *a)
{
    __global q_t *out = in->q_out + head_base(&a->q_out, token->batch, head) + token->row * a->q_out.token;
    load_row(memory->row, in->q + head_base(&a->q, token->batch, head) + token->row * a->q.token,
             a->head_dim_qk, id);
    rotate_row(memory->row, token->position, id, in, a);
    for (int c = id; c < a->head_dim_qk; c += ROW_ITEMS)
        STORE1(Q_TYPE)(out, c, memory->row[c]);
}

// ---- Kernels ----------------------------------------------------------------------------------------------

__kernel __attribute__((reqd_work_group_size(ROW_ITEMS, 1, 1))) void append(APPEND_BUFFERS, append_args args)
{
    __local float row[MAX_ROW], largest[ROW_ITEMS];
    const append_buffers buffers = GATHERED_APPEND_BUFFERS;
    const append_buffers *in = &buffers;
    const append_args *a = &args;
    const row_memory memory = {row, largest};
    if ((int)get_group_id(1) >= a->num_groups)
        return;
    const int group = (int)get_group_id(1) + a->first_group, id = (int)get_local_id(0);
    const int rows = a->heads_kv + a->rows_v + a->rows_q;
    const int head = group % rows;
    new_token token;
    if (!find_token(&token, group / rows, head == 0 && id == 0, in, a))
        return;
    if (head >= a->heads_kv + a->rows_v)
        rotate_q(&token, head - a->heads_kv - a->rows_v, id, &memory, in, a);
    else if (token.plane < 0)
        return;
    else if (head >= a->heads_kv)
        append_v(&token, head - a->heads_kv, id, &memory, in, a);
    else
        append_k(&token, head, id, &memory, in, a);
}

// What there is once for each entry: its length after the call, and whether its numbers make sense. Runs behind
// `append`, because kv_lens_out may be kv_lens.
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
