// check.cl: what lies in device memory against what the host knows. Kernels clamp it and go on; this notes it.

#if HAS_STATUS

// As clattn_status_words.
#define STATUS_BAD_PAGE 0
#define STATUS_BAD_LENGTH 1

static inline int is_outside(int number, int least, int most) { return number < least || number > most; }

// Whether packed sequence b is one: its rows within the whole, no more than there may be.
static inline int rows_are_bad(int b, const __global int *cu_seqlens, long base, int total, int longest)
{
    const int begin = cu_seqlens[base + b], end = cu_seqlens[base + b + 1];
    return is_outside(begin, 0, total) || is_outside(end, begin, total) || end - begin > longest;
}

static inline int lengths_are_bad(int batch, const attention_buffers *in, const attention_args *a)
{
    int bad = 0;
    if (has(a, FEATURE_CU_SEQLENS_Q))
        bad |= rows_are_bad(batch, in->cu_seqlens_q, a->cu_seqlens_q, a->total_q, a->q_len);
    if (has(a, FEATURE_CU_SEQLENS_K))
        bad |= rows_are_bad(batch, in->cu_seqlens_k, a->cu_seqlens_k, a->total_k, a->kv_len);
    if (has(a, FEATURE_Q_LENS))
        bad |= is_outside(in->q_lens[number_at(&a->q_lens, batch, 0)], 0, a->q_len);
    if (has(a, FEATURE_KV_LENS))
        bad |= is_outside(in->kv_lens[number_at(&a->kv_lens, batch, 0)], 0, a->kv_len);
    return bad;
}

static inline int pages_are_bad(int batch, const attention_buffers *in, const attention_args *a)
{
#if PAGE_SIZE > 0
    const int kv_len = sequence_of(batch, in, a).kv_len;
    const __global int *table = in->block_table + a->block_table + batch * a->block_table_batch;
    for (int page = 0; page < (kv_len + PAGE_SIZE - 1) / PAGE_SIZE; page++)
        if (is_outside(table[page], 0, a->num_pages - 1))
            return 1;
#endif
    return 0;
}

// A work-item for each batch entry.
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void check_sequences(ATTENTION_BUFFERS,
                                                                              attention_args args)
{
    const attention_buffers buffers = GATHERED_BUFFERS;
    const attention_buffers *in = &buffers;
    const attention_args *a = &args;
    const int batch = ((int)get_group_id(1) + a->first_group) * 64 + (int)get_local_id(0);
    if ((int)get_group_id(1) >= a->num_groups || batch >= a->batch)
        return;
    if (pages_are_bad(batch, in, a))
        atomic_max(in->status_words + a->status_words + STATUS_BAD_PAGE, batch + 1);
    if (lengths_are_bad(batch, in, a))
        atomic_max(in->status_words + a->status_words + STATUS_BAD_LENGTH, batch + 1);
}

#endif
