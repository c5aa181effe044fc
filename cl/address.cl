// address.cl: where a tile's rows are. A 64-bit base per (batch, head), 64-bit token strides; within a
// row 32 bits. This is the one place that knows how sequences are stored.

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
