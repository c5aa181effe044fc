/* mod_evaluate.cl: one work-item for each key, query, and head of a batch entry. Behind functions score_text and
 * mask_text, which hold the caller's texts. */
__kernel void mod_evaluate(__global float *score, __global uchar *allows, __global const int *sequences,
                           const __global void *user, const float4 values, const int heads_q,
                           const int heads_kv, const int q_len, const int kv_len)
{
    const int key = (int)get_global_id(0), query = (int)get_global_id(1);
    const int batch = (int)get_global_id(2) / heads_q, head_q = (int)get_global_id(2) % heads_q;
    const int head_kv = head_q / (heads_q / heads_kv);
    const __global int *sequence = sequences + 3 * batch; /* q_len, kv_len, offset */
    const size_t at = (get_global_id(2) * (size_t)q_len + (size_t)query) * (size_t)kv_len + (size_t)key;
    if (query >= sequence[0] || key >= sequence[1])
        return;
    const int position = query + sequence[2];
    score[at] = score_text(score[at], batch, head_q, head_kv, query, position, key, user, values);
    allows[at] = mask_text(batch, head_q, head_kv, query, position, key, user, values) != 0;
}
