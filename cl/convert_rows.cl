// convert_rows.cl: rows of floats stored in a cache's type. A work-group takes one row; its number counts
// tokens first, then heads, then entries.

DEFINE_STORE_ROW(store_row, K_TYPE)

__kernel __attribute__((reqd_work_group_size(ROW_ITEMS, 1, 1))) void
convert_rows(const __global q_t *from, __global k_t *to, __global float *scale, convert_args args)
{
    __local float row[MAX_ROW], work[2 * ROW_ITEMS];
    const convert_args *a = &args;
    if ((int)get_group_id(1) >= a->num_groups)
        return;
    const int group = (int)get_group_id(1) + a->first_group, id = (int)get_local_id(0);
    const int plane = group / a->len, token = group - plane * a->len;
    const int batch = plane / a->heads, head = plane - batch * a->heads;
    const __global q_t *source = from + head_base(&a->from, batch, head) + token * a->from.token;
    FOR_STEPS_OF_ROW(first, a->head_dim, ROW_ITEMS)
        row[first + id] = element_of_row(source, first + id, a->head_dim);
    barrier(CLK_LOCAL_MEM_FENCE);
    const float largest = K_TYPE == TYPE_I8 ? largest_of_row(row, a->head_dim, work, id) : 0.0f;
    const float inverse =
        inverse_scale_of_row(K_TYPE, (a->features & FEATURE_K_SCALE) != 0,
                             scale + head_base(&a->scale, batch, head) + token * a->scale.token, largest, id);
    store_row((__global k_t *)LED(K_TYPE, to, a->to_lead), head_base(&a->to, batch, head) + token * a->to.token, row, a->head_dim, inverse, id);
}
