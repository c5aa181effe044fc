// merge.cl: partial states of the same rows, each over keys of its own, made one (parts.cl). A work-group
// takes one row of one head; its number counts heads first, then rows, then entries.

__kernel __attribute__((reqd_work_group_size(PARTS_ITEMS, 1, 1))) void
merge(const __global part_t *o_parts, const __global float *lse_parts, __global o_t *o, __global float *lse,
      const __global float *sinks, merge_args args)
{
    const merge_args *a = &args;
    if ((int)get_group_id(1) >= a->num_groups)
        return;
    const int group = (int)get_group_id(1) + a->first_group, id = (int)get_local_id(0);
    const int place = group / a->heads, head = group - place * a->heads;
    const int batch = place / a->rows, row = place - batch * a->rows;
    row_parts parts;
    parts.o = o_parts + head_base(&a->o_parts, batch, head) + row * a->o_parts.token;
    parts.max = lse_parts + head_base(&a->lse_parts, batch, head) + row * a->lse_parts.token;
    parts.o_step = a->o_step;
    parts.sum = 0;
    parts.step = a->lse_step;
    parts.count = a->num_parts;
    parts.to_log2 = M_LOG2E_F / a->lse_unit;
    parts.sink = (a->features & FEATURE_SINKS) != 0 ? sinks[number_at(&a->sinks, batch, head)] * a->lse_unit
                                                    : -INFINITY;
    const row_total total = total_of(&parts);
    merge_row(o + head_base(&a->o, batch, head) + row * a->o.token, a->head_dim_v, id, &parts, &total);
    if (id == 0 && (a->features & FEATURE_LSE) != 0)
        lse[head_base(&a->lse, batch, head) + row * a->lse.token] = lse_of(&total, &parts);
}
