// address.cl: where a tile's rows are. A 64-bit base per (batch, head), 64-bit token strides; within a
// row 32 bits. This is the one place that knows how sequences are stored.

// What every kernel takes before attention_args, in the order of CLATTN__BUFFERS (src/emit.h).
#define ATTENTION_BUFFERS                                                                                \
    const __global q_t *restrict q, const __global k_t *restrict k, const __global v_t *restrict v,      \
        __global o_t *restrict o, __global float *restrict lse, const __global bias_t *restrict bias,    \
        const __global uchar *restrict mask, const __global float *restrict bias_head_scale,             \
        const __global float *restrict alibi_slopes, const __global float *restrict sinks,               \
        const __global int *restrict q_lens, const __global int *restrict kv_lens,                       \
        const __global int *restrict q_offsets, const __global int *restrict tiles_count,                \
        const __global int *restrict tiles_index, const __global uchar *restrict user,                   \
        __global uchar *restrict tile_map

typedef struct attention_buffers {
    const __global q_t *q;
    const __global k_t *k;
    const __global v_t *v;
    __global o_t *o;
    __global float *lse;
    const __global bias_t *bias;
    const __global uchar *mask;
    const __global float *bias_head_scale;
    const __global float *alibi_slopes;
    const __global float *sinks;
    const __global int *q_lens;
    const __global int *kv_lens;
    const __global int *q_offsets;
    const __global int *tiles_count;
    const __global int *tiles_index;
    const __global uchar *user;
    __global uchar *tile_map;
} attention_buffers;

// The parameters of a kernel as one struct.
#define GATHERED_BUFFERS                                                                                 \
    {                                                                                                    \
        q, k, v, o, lse, bias, mask, bias_head_scale, alibi_slopes, sinks, q_lens, kv_lens, q_offsets,   \
            tiles_count, tiles_index, user, tile_map                                                     \
    }

// Which query tile, head and sequence a work-group works on. Tiles of a head are neighbours, so that the
// groups running at one time share K and V.
typedef struct work_place {
    int q_tile;
    int head;
    int batch;
} work_place;

static inline work_place place_of_group(int group, const attention_args *a)
{
    work_place place;
    const int row = group / a->q_tiles;
    place.q_tile = group - row * a->q_tiles;
    place.batch = row / a->heads_q;
    place.head = row - place.batch * a->heads_q;
    return place;
}

static inline long head_base(const tensor_address *t, int batch, int head)
{
    return t->base + batch * t->batch + head * t->head;
}

static inline long number_at(const number_address *t, int batch, int head)
{
    return t->base + batch * t->batch + head * t->head;
}

// Lengths and positions of a batch entry; what lies in device memory is clamped to what the host knows.
static inline sequence sequence_of(int batch, const attention_buffers *in, const attention_args *a)
{
    const int q_len =
        a->has_q_lens ? clamp(in->q_lens[number_at(&a->q_lens, batch, 0)], 0, a->q_len) : a->q_len;
    const int kv_len =
        a->has_kv_lens ? clamp(in->kv_lens[number_at(&a->kv_lens, batch, 0)], 0, a->kv_len) : a->kv_len;
    const long offset =
        a->has_q_offsets ? in->q_offsets[number_at(&a->q_offsets, batch, 0)] : a->q_offset;
    return make_sequence(q_len, kv_len, a->position_mode, offset, a->window_begin, a->window_end);
}
