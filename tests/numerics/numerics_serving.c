#include "numerics_serving.h"

#include "numerics_cache.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Where the storage says how long sequences are, lengths may still be given; the reference needs them always.
 */
static uint32_t features_of(const serving_spec *spec)
{
    uint32_t features = spec->call.features;
    if (spec->packed_q) {
        features |= CLATTN_FEATURE_CU_SEQLENS_Q;
        if (!spec->gives_q_lens)
            features &= ~CLATTN_FEATURE_Q_LENS;
    }
    if (spec->keys == KEYS_PACKED) {
        features |= CLATTN_FEATURE_CU_SEQLENS_K;
        if (!spec->gives_kv_lens)
            features &= ~CLATTN_FEATURE_KV_LENS;
    }
    if (spec->keys == KEYS_PAGED)
        features |= CLATTN_FEATURE_BLOCK_TABLE;
    if (spec->scale_k != SCALE_NONE)
        features |= CLATTN_FEATURE_K_SCALE;
    if (spec->scale_v != SCALE_NONE)
        features |= CLATTN_FEATURE_V_SCALE;
    if (spec->v_in_k)
        features |= CLATTN_FEATURE_V_IN_K;
    if (spec->has_status)
        features |= CLATTN_FEATURE_STATUS;
    if (spec->is_invariant)
        features |= CLATTN_FEATURE_BATCH_INVARIANT;
    return features;
}

clattn_plan_desc serving_plan_desc(const serving_spec *spec)
{
    clattn_plan_desc desc = spec_plan_desc(&spec->call);
    desc.features = features_of(spec);
    desc.dtype_k = spec->dtype_k;
    desc.dtype_v = spec->dtype_v;
    desc.phase = spec->phase;
    desc.splits = spec->splits;
    desc.page_size = spec->keys == KEYS_PAGED ? spec->page_size : 0;
    return desc;
}

static void add(char *text, size_t capacity, const char *format, ...)
{
    const size_t used = strlen(text);
    va_list values;
    va_start(values, format);
    vsnprintf(text + used, capacity - used, format, values);
    va_end(values);
}

void serving_describe(const serving_spec *spec, char *text, size_t capacity)
{
    static const char *const phases[] = {"prefill", "decode", "both"};
    static const char *const storages[] = {"padded", "packed", "paged"};
    static const char *const granularities[] = {"none", "tensor", "head", "batch", "token"};
    *text = '\0';
    add(text, capacity, "%s", phases[spec->phase]);
    if (spec->splits != 0)
        add(text, capacity, " splits %d", (int)spec->splits);
    if (spec->is_invariant)
        add(text, capacity, " batch-invariant");
    add(text, capacity, "; q %s %s; keys %s, k %s %s", spec->packed_q ? "packed" : "padded",
        layout_name(spec->layout_q), storages[spec->keys], cache_type_name(spec->dtype_k),
        layout_name(spec->layout_k));
    if (spec->v_in_k)
        add(text, capacity, ", v in k");
    else
        add(text, capacity, ", v %s %s", cache_type_name(spec->dtype_v), layout_name(spec->layout_v));
    if (spec->keys == KEYS_PAGED)
        add(text, capacity, ", pages of %d, %d%% shared%s", (int)spec->page_size, spec->shared_percent,
            spec->one_pool ? ", one pool" : "");
    if (spec->scale_k != SCALE_NONE || spec->scale_v != SCALE_NONE)
        add(text, capacity, ", scales %s/%s", granularities[spec->scale_k], granularities[spec->scale_v]);
    if (spec->append.takes_part)
        add(text, capacity, "; append rope %d of %d base %g scale %g%s%s%s", (int)spec->append.rope,
            (int)spec->append.rotary_dim, (double)spec->append.rope_base, (double)spec->append.rope_scale,
            spec->append.has_tables ? " tables" : "", spec->append.has_slots ? " slots" : "",
            spec->append.has_positions ? " positions" : "");
    if (spec->has_status)
        add(text, capacity, " status");
    add(text, capacity, "; slack %lld; ", (long long)spec->slack);
    const size_t used = strlen(text);
    spec_describe(&spec->call, text + used, capacity - used);
}
