/* forward_args.c: a call as the kernels see it. */
#include "forward_call.h"
#include "low_cap.h"
#include "operation.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static_assert(sizeof(attention_args) == 12 * 32 + 6 * 24 + 18 * 8 + 38 * 4, "host and kernel must agree");

static int64_t clamp(int64_t value, int64_t limit)
{
    return value < -limit ? -limit : value > limit ? limit : value;
}

/* a + b, or the nearest number that there is. */
static int64_t saturating_add(int64_t a, int64_t b)
{
    if (b > 0 && a > INT64_MAX - b)
        return INT64_MAX;
    if (b < 0 && a < INT64_MIN - b)
        return INT64_MIN;
    return a + b;
}

/* Offset and window may be any numbers, so their sum is taken here as far as it is known: exactly. The kernel
 * adds the clamped offset again. What lies beyond any length stays so far beyond that no sum brings it back.
 */
static void set_positions(attention_args *out, const clattn_plan_desc *desc, const clattn_forward_args *args)
{
    const int64_t far = (int64_t)1 << 50, most_offset = (int64_t)1 << 40;
    const int window = (desc->features & CLATTN_FEATURE_WINDOW) != 0;
    const int causal = (desc->features & CLATTN_FEATURE_CAUSAL) != 0;
    const int64_t left = window ? args->window_left : -1;
    const int64_t right = causal ? 0 : window ? args->window_right : -1;
    const int64_t begin = left < 0 ? INT64_MIN : saturating_add(args->q_offset, -left);
    const int64_t end = right < 0 ? INT64_MAX : saturating_add(saturating_add(args->q_offset, right), 1);
    out->position_mode = desc->position_mode;
    out->q_offset = clamp(args->q_offset, most_offset);
    out->window_begin = clamp(begin, far) - out->q_offset;
    out->window_end = clamp(end, far) - out->q_offset;
}

static void set_tile_map(attention_args *out, const clattn__tile_map *map, const clattn_forward_args *args)
{
    const int64_t plane = map->height * map->width;
    if (map->bytes == 0)
        return;
    out->map_has_bias = map->looks_at_bias;
    out->map_rows = map->rows;
    out->map_keys = map->keys;
    out->map_heads = (cl_int)map->heads;
    out->map_height = (cl_int)map->height;
    out->map_width = (cl_int)map->width;
    out->tile_map.base = (cl_long)args->workspace.byte_offset;
    out->tile_map.batch = map->batches > 1 ? map->heads * plane : 0;
    out->tile_map.head = map->heads > 1 ? plane : 0;
    out->tile_map.token = map->width;
}

static void set_splits(attention_args *out, const clattn__forward_call *call)
{
    out->num_splits = call->splits.count;
    out->split_keys = call->splits.split_keys;
    out->part_rows = call->splits.part_rows;
    if (call->program->recipe->kernel[CLATTN__KERNEL_COMBINE] == NULL && call->splits.count > 1)
        out->ticket = (cl_long)clattn__context_ticket(call->plan->context);
    out->parts = (cl_long)((call->args.workspace.byte_offset + call->parts_begin) / sizeof(float));
}

void clattn__forward_args_of(attention_args *out, const clattn__forward_call *call)
{
    const clattn_plan *plan = call->plan;
    const clattn_forward_args *args = &call->args;
    const clattn__operand *operands = call->operands;
    const clattn_plan_desc *desc = &plan->desc;
    const uint32_t features = desc->features;
    const double scale = args->scale != 0.0f ? (double)args->scale : 1.0 / sqrt((double)desc->head_dim_qk);
    memset(out, 0, sizeof *out);
    out->q = clattn__tensor_address_of(&operands[CLATTN__BUFFER_Q]);
    out->k = clattn__tensor_address_of(&operands[CLATTN__BUFFER_K]);
    out->v = clattn__tensor_address_of(&operands[CLATTN__BUFFER_V]);
    out->o = clattn__tensor_address_of(&operands[CLATTN__BUFFER_O]);
    out->lse = clattn__tensor_address_of(&operands[CLATTN__BUFFER_LSE]);
    out->bias = clattn__tensor_address_of(&operands[CLATTN__BUFFER_BIAS]);
    out->mask = clattn__tensor_address_of(&operands[CLATTN__BUFFER_MASK]);
    out->tiles_count = clattn__tensor_address_of(&operands[CLATTN__BUFFER_TILES_COUNT]);
    out->tiles_index = clattn__tensor_address_of(&operands[CLATTN__BUFFER_TILES_INDEX]);
    out->k_scale = clattn__tensor_address_of(&operands[CLATTN__BUFFER_K_SCALE]);
    out->v_scale = clattn__tensor_address_of(&operands[CLATTN__BUFFER_V_SCALE]);
    out->bias_head_scale = clattn__number_address_of(&operands[CLATTN__BUFFER_BIAS_HEAD_SCALE]);
    out->alibi_slopes = clattn__number_address_of(&operands[CLATTN__BUFFER_ALIBI_SLOPES]);
    out->sinks = clattn__number_address_of(&operands[CLATTN__BUFFER_SINKS]);
    out->q_lens = clattn__number_address_of(&operands[CLATTN__BUFFER_Q_LENS]);
    out->kv_lens = clattn__number_address_of(&operands[CLATTN__BUFFER_KV_LENS]);
    out->q_offsets = clattn__number_address_of(&operands[CLATTN__BUFFER_Q_OFFSETS]);
    out->cu_seqlens_q = (cl_long)(args->cu_seqlens_q.byte_offset / 4);
    out->cu_seqlens_k = (cl_long)(args->cu_seqlens_k.byte_offset / 4);
    out->block_table = (cl_long)(args->block_table.byte_offset / 4);
    out->block_table_batch = args->block_table.stride[0];
    out->status_words = (cl_long)(args->status_words.byte_offset / 4);
    out->k_lead = clattn__lead_of(&operands[CLATTN__BUFFER_K]);
    out->v_lead = clattn__lead_of(&operands[CLATTN__BUFFER_V]);
    out->batch = (cl_int)args->batch;
    out->total_q = (cl_int)args->total_q;
    out->total_k = (cl_int)args->total_k;
    out->num_pages = (cl_int)args->num_pages;
    out->bias_key = args->bias.stride[3];
    out->mask_key = args->mask.stride[3];
    out->tiles_entry = args->tiles_index.stride[3];
    out->tiles_capacity = args->tiles_capacity;
    out->user = (cl_long)args->user.byte_offset;
    set_positions(out, desc, args);
    set_tile_map(out, &call->map, args);
    set_splits(out, call);
    out->q_tiles = (cl_int)clattn__query_tiles(plan, call->program, args->batch, args->q_len, args->total_q);
    out->heads_q = desc->heads_q;
    out->heads_per_kv = desc->heads_q / desc->heads_kv;
    out->q_len = (cl_int)args->q_len;
    out->kv_len = (cl_int)args->kv_len;
    out->head_dim_qk = desc->head_dim_qk;
    out->head_dim_v = desc->head_dim_v;
    out->features = (cl_int)features;
    out->transforms = plan->has_score_mod ||
                      (features & (CLATTN_FEATURE_SOFTCAP | CLATTN_FEATURE_BIAS | CLATTN_FEATURE_ALIBI)) != 0;
    out->tile_rows = desc->tile_rows;
    out->tile_keys = desc->tile_keys;
    out->scale = (float)scale;
    out->scale_log2 = (float)(scale * 1.4426950408889634);
    out->softcap = args->softcap;
    clattn__low_cap(out->low_cap, scale, (double)args->softcap);
    out->lse_unit = (features & CLATTN_FEATURE_LSE_BASE_2) != 0 ? 1.44269504f : 1.0f;
    memcpy(out->user_values, args->user_values, sizeof out->user_values);
}
