#include "numerics_spec.h"

#include "tensor_convert.h"

#include <float.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

call_spec spec_plain(int32_t path)
{
    call_spec spec;
    memset(&spec, 0, sizeof spec);
    spec.path = path;
    spec_set_dtype(&spec, CLATTN_DTYPE_F32);
    spec.dtype_bias = CLATTN_DTYPE_F32;
    spec.heads_q = spec.heads_kv = 2;
    spec.head_dim_qk = spec.head_dim_v = 64;
    spec.batch = 1;
    spec.q_len = 65;
    spec.kv_len = 97;
    spec.features = CLATTN_FEATURE_LSE;
    spec.q_amplitude = 1;
    spec.bias_axes = BIAS_BATCH | BIAS_HEAD | BIAS_ROW | BIAS_KEY;
    spec.mask_axes = spec.bias_axes;
    spec.mask_percent = 50;
    spec.mask_block = 1;
    spec.tile_rows = spec.tile_keys = 16;
    spec.tiles_percent = 50;
    spec.seed = 1;
    return spec;
}

void spec_set_dtype(call_spec *spec, int32_t dtype)
{
    spec->dtype_q = spec->dtype_k = spec->dtype_v = spec->dtype_o = dtype;
}

clattn_plan_desc spec_plan_desc(const call_spec *spec)
{
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    desc.dtype_q = spec->dtype_q;
    desc.dtype_k = spec->dtype_k;
    desc.dtype_v = spec->dtype_v;
    desc.dtype_o = spec->dtype_o;
    desc.dtype_bias = spec->dtype_bias;
    desc.heads_q = spec->heads_q;
    desc.heads_kv = spec->heads_kv;
    desc.head_dim_qk = spec->head_dim_qk;
    desc.head_dim_v = spec->head_dim_v;
    desc.features = spec->features;
    desc.position_mode = spec->position_mode;
    desc.path = spec->path;
    if (spec_has(spec, CLATTN_FEATURE_KEY_TILES)) {
        desc.tile_rows = spec->tile_rows;
        desc.tile_keys = spec->tile_keys;
    }
    desc.score_mod = score_mod_text(spec->score_mod);
    desc.mask_mod = mask_mod_text(spec->mask_mod);
    return desc;
}

int spec_has(const call_spec *spec, uint32_t feature) { return (spec->features & feature) != 0; }

float lowest_of(int32_t dtype)
{
    return dtype == CLATTN_DTYPE_F16 ? -65504.0f : dtype == CLATTN_DTYPE_F32 ? -FLT_MAX : -0x1.fep127f;
}

static void add(char *text, size_t capacity, const char *format, ...)
{
    const size_t used = strlen(text);
    va_list values;
    va_start(values, format);
    vsnprintf(text + used, capacity - used, format, values);
    va_end(values);
}

void spec_describe(const call_spec *spec, char *text, size_t capacity)
{
    static const char *const positions[] = {"bottom-right", "top-left", "explicit"};
    static const char *const values[] = {"normal", "holes", "lowest"};
    static const char *const unread[] = {"", " unread zero", " unread inf", " unread -inf"};
    static const struct {
        uint32_t feature;
        const char *name;
    } flags[] = {{CLATTN_FEATURE_BIAS_HEAD_SCALE, "bias_head_scale"},
                 {CLATTN_FEATURE_ALIBI, "alibi"},
                 {CLATTN_FEATURE_SINKS, "sinks"},
                 {CLATTN_FEATURE_Q_LENS, "q_lens"},
                 {CLATTN_FEATURE_KV_LENS, "kv_lens"},
                 {CLATTN_FEATURE_Q_OFFSETS, "q_offsets"},
                 {CLATTN_FEATURE_LSE_BASE_2, "base-2"}};
    *text = '\0';
    add(text, capacity, "%s/%s/%s/%s heads %d/%d dims %d/%d batch %lld lengths %lld x %lld in %s out %s",
        dtype_name(spec->dtype_q), dtype_name(spec->dtype_k), dtype_name(spec->dtype_v),
        dtype_name(spec->dtype_o), (int)spec->heads_q, (int)spec->heads_kv, (int)spec->head_dim_qk,
        (int)spec->head_dim_v, (long long)spec->batch, (long long)spec->q_len, (long long)spec->kv_len,
        layout_name(spec->layout_in), layout_name(spec->layout_o));
    if (spec->features & CLATTN_FEATURE_CAUSAL)
        add(text, capacity, " causal");
    if (spec->features & CLATTN_FEATURE_WINDOW)
        add(text, capacity, " window (%lld, %lld)", (long long)spec->window_left,
            (long long)spec->window_right);
    add(text, capacity, " %s %lld", positions[spec->position_mode], (long long)spec->q_offset);
    if (spec->features & CLATTN_FEATURE_SOFTCAP)
        add(text, capacity, " softcap %g", (double)spec->softcap);
    if (spec->features & CLATTN_FEATURE_BIAS)
        add(text, capacity, " bias %s axes %d %s", dtype_name(spec->dtype_bias), spec->bias_axes,
            values[spec->bias_values]);
    if (spec->features & CLATTN_FEATURE_MASK)
        add(text, capacity, " mask axes %d %d%% blocks %lld", spec->mask_axes, spec->mask_percent,
            (long long)spec->mask_block);
    if (spec->features & CLATTN_FEATURE_KEY_TILES)
        add(text, capacity, " tiles %dx%d %d%% slack %lld", (int)spec->tile_rows, (int)spec->tile_keys,
            spec->tiles_percent, (long long)spec->tiles_slack);
    if (spec->score_mod != SCORE_MOD_NONE || spec->mask_mod != MASK_MOD_NONE)
        add(text, capacity, " mods %s/%s (%g, %g, %g, %g)", score_mod_name(spec->score_mod),
            mask_mod_name(spec->mask_mod), (double)spec->user_values[0], (double)spec->user_values[1],
            (double)spec->user_values[2], (double)spec->user_values[3]);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (spec->features & flags[i].feature)
            add(text, capacity, " %s", flags[i].name);
    if (spec->workspace == WORKSPACE_GIVEN)
        add(text, capacity, " workspace");
    add(text, capacity, "%s", unread[spec->unread]);
    if (spec->features & CLATTN_FEATURE_LSE)
        add(text, capacity, " lse %s", layout_name(spec->layout_lse));
    add(text, capacity, " scale %g q %g", (double)spec->scale, (double)spec->q_amplitude);
}
