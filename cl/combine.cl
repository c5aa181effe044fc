// combine.cl: what the splits of a sequence's keys gave, from the workspace (address.cl) to o and lse.
//
// A work-group takes one row of one head; its number counts rows first, padded or packed, then heads:
//     group = row * heads_q + head,   part_rows * heads_q groups in all.
// A sink takes part in split 0 alone, as if it were a key of that split's, so nothing is added for it here.

// The sequence that a packed row may belong to: the last one that does not begin behind it.
static inline int batch_of_packed_row(int row, const attention_buffers *in, const attention_args *a)
{
    int begin = 0, end = a->batch;
    while (end - begin > 1) {
        const int middle = (begin + end) / 2;
        if (first_row_of(middle, in->cu_seqlens_q, a->cu_seqlens_q, a->total_q) <= row)
            begin = middle;
        else
            end = middle;
    }
    return begin;
}

__kernel __attribute__((reqd_work_group_size(PARTS_ITEMS, 1, 1))) void combine(ATTENTION_BUFFERS,
                                                                               attention_args args)
{
    const attention_buffers buffers = GATHERED_BUFFERS;
    const attention_buffers *in = &buffers;
    const attention_args *a = &args;
    if ((int)get_group_id(1) >= a->num_groups)
        return;
    const int group = (int)get_group_id(1) + a->first_group, id = (int)get_local_id(0);
    const int row = group / a->heads_q, head = group - row * a->heads_q;
    const int packed = has(a, FEATURE_CU_SEQLENS_Q);
    const int batch = packed ? batch_of_packed_row(row, in, a) : row / a->q_len;
    const sequence seq = sequence_of(batch, in, a);
    const int query = packed ? row - seq.first_q : row - batch * a->q_len;
    if (query < 0 || query >= seq.q_len)
        return;

    const long place = part_place(batch, query, head, 0, &seq, a);
    row_parts parts;
    parts.o = part_o(in->workspace, place, a);
    parts.max = part_state(in->workspace, place, a);
    parts.sum = parts.max + 1;
    parts.step = 2 * a->part_rows * a->heads_q;
    parts.o_step = a->part_rows * a->heads_q * a->head_dim_v;
    parts.count = a->num_splits;
    parts.to_log2 = SCORE_TO_LOG2;
    parts.sink = -INFINITY;
    const row_total total = total_of(&parts);
    merge_row(in->o + query_base(&a->o, batch, head, &seq) + query * a->o.token, a->head_dim_v, id, &parts,
              &total);
    if (id == 0 && has(a, FEATURE_LSE))
        in->lse[query_base(&a->lse, batch, head, &seq) + query * a->lse.token] =
            lse_of(&total, &parts) * (SCORE_TO_NATURAL * a->lse_unit);
}
