/* serving_options.c: options of decode, of caches and of appending to them, from and to text. */
#include "serving_options.h"

#include "clattn.h"
#include "option_words.h"
#include "tensor_convert.h"

#include <inttypes.h>
#include <string.h>

/* Up to this many rows a batch-invariant call takes decode kernels, whatever else is in the batch. */
#define INVARIANT_DECODE_ROWS 16

const option_row serving_rows[] = {
    {OPTION_PHASE, "phase", 0, ARGUMENT_REQUIRED, "NAME",
     "prefill or decode kernels, or both: then the q length decides (default)"},
    {OPTION_SPLITS, "splits", 0, ARGUMENT_REQUIRED, "N",
     "decode kernels cut the keys of a sequence into N splits"},
    {OPTION_BATCH_INVARIANT, "batch-invariant", 0, ARGUMENT_NONE, NULL,
     "a row's bits do not depend on the rest of the batch"},
    {OPTION_KV_DTYPE, "kv-dtype", 0, ARGUMENT_REQUIRED, "T|K,V",
     "store k and v as f32, f16, bf16, i8, f8_e4m3, f8_e5m2, q8_0, q4_0, q4_1, q5_0, q5_1 or iq4_nl"},
    {OPTION_EMIT_CACHE, "emit-cache", 0, ARGUMENT_NONE, NULL,
     "also write k and v (and their scales) as they are after the run"},
    {OPTION_V_IN_K, "v-in-k", 0, ARGUMENT_REQUIRED, "DV", "v is the first DV columns of k (MLA)"},
    {OPTION_ROPE, "rope", 0, ARGUMENT_REQUIRED, "neox|interleaved",
     "rotate q and k_new at their positions; which columns make a pair"},
    {OPTION_ROPE_BASE, "rope-base", 0, ARGUMENT_REQUIRED, "X",
     "without rope_cos and rope_sin; default: 10000"},
    {OPTION_ROPE_SCALE, "rope-scale", 0, ARGUMENT_REQUIRED, "X", "likewise: factor of positions; default: 1"},
    {OPTION_ROTARY_DIM, "rotary-dim", 0, ARGUMENT_REQUIRED, "N",
     "columns that are rotated; default: the head dim"},
    {OPTION_END, NULL, 0, 0, NULL, NULL},
};

/* ---- Values ------------------------------------------------------------------------------------- */

static const char *const phases[] = {"prefill", "decode", "both"};  /* as CLATTN_PHASE_* count */
static const char *const ropes[] = {"none", "neox", "interleaved"}; /* as CLATTN_ROPE_* */

int option_phase(const char *name, const char *value, int32_t *out)
{
    for (int32_t phase = CLATTN_PHASE_PREFILL; phase <= CLATTN_PHASE_BOTH; phase++)
        if (strcmp(phases[phase], value) == 0) {
            *out = phase;
            return CLI_OK;
        }
    return cli_fail(CLI_USAGE, "--%s '%.60s': expected prefill, decode or both", name, value);
}

int option_rope(const char *name, const char *value, int32_t *out)
{
    for (int32_t rope = CLATTN_ROPE_NEOX; rope <= CLATTN_ROPE_INTERLEAVED; rope++)
        if (strcmp(ropes[rope], value) == 0) {
            *out = rope;
            return CLI_OK;
        }
    return cli_fail(CLI_USAGE, "--%s '%.60s': expected neox or interleaved", name, value);
}

int option_kv_dtypes(const char *name, const char *value, int32_t dtype[2])
{
    const size_t first = strcspn(value, ",");
    char k[16], v[16];
    cli_format(k, sizeof k, "%.*s", (int)(first < sizeof k ? first : sizeof k - 1), value);
    cli_format(v, sizeof v, "%s", value[first] ? value + first + 1 : k);
    const int32_t of_k = dtype_from_name(k), of_v = dtype_from_name(v);
    if (!of_k || !of_v)
        return cli_fail(
            CLI_USAGE,
            "--%s '%.60s': expected f32, f16, bf16, i8, f8_e4m3, f8_e5m2, q8_0, q4_0, q4_1, q5_0, "
            "q5_1 or iq4_nl, or two of them (k,v)",
            name, value);
    dtype[0] = of_k;
    dtype[1] = of_v;
    return CLI_OK;
}

/* ---- Options ------------------------------------------------------------------------------------ */

static int apply_count(const char *name, const char *value, int64_t most, int64_t *out)
{
    const int status = option_integer(name, value, out);
    if (status == CLI_OK && (*out < 1 || *out > most))
        return cli_fail(CLI_USAGE, "--%s '%.60s': expected 1 to %" PRId64, name, value, most);
    return status;
}

static int apply_rotary_dim(serving_options *o, const char *value)
{
    const int status = apply_count("rotary-dim", value, CLATTN_MAX_HEAD_DIM, &o->rotary_dim);
    if (status == CLI_OK && o->rotary_dim % 2 != 0)
        return cli_fail(CLI_USAGE, "--rotary-dim '%.60s': expected an even number", value);
    return status;
}

static int apply_positive(const char *name, const char *value, float *out)
{
    const int status = option_number(name, value, out);
    if (status == CLI_OK && !(*out > 0))
        return cli_fail(CLI_USAGE, "--%s '%.60s': expected a number > 0", name, value);
    return status;
}

int serving_option_apply(serving_options *o, int id, const char *name, const char *value)
{
    switch (id) {
    case OPTION_PHASE: {
        int32_t phase = 0;
        const int status = option_phase(name, value, &phase);
        o->phase = PHASE_GIVEN(phase);
        return status;
    }
    case OPTION_SPLITS:
        return apply_count(name, value, CLATTN_MAX_SPLITS, &o->splits);
    case OPTION_BATCH_INVARIANT:
        o->batch_invariant = 1;
        return CLI_OK;
    case OPTION_KV_DTYPE:
        return option_kv_dtypes(name, value, o->kv_dtype);
    case OPTION_EMIT_CACHE:
        o->emit_cache = 1;
        return CLI_OK;
    case OPTION_V_IN_K:
        return apply_count(name, value, CLATTN_MAX_HEAD_DIM, &o->v_in_k);
    case OPTION_ROPE:
        return option_rope(name, value, &o->rope);
    case OPTION_ROPE_BASE:
        return apply_positive(name, value, &o->rope_base);
    case OPTION_ROPE_SCALE:
        return apply_positive(name, value, &o->rope_scale);
    case OPTION_ROTARY_DIM:
        return apply_rotary_dim(o, value);
    default:
        return -1;
    }
}

int serving_options_check(const serving_options *o)
{
    if (o->batch_invariant && o->splits)
        return cli_fail(CLI_USAGE, "--splits: expected without --batch-invariant, whose splits have a fixed "
                                   "number of keys");
    if (o->batch_invariant && o->phase == PHASE_GIVEN(CLATTN_PHASE_BOTH))
        return cli_fail(CLI_USAGE, "--phase both: expected prefill or decode with --batch-invariant");
    if (o->splits && o->phase == PHASE_GIVEN(CLATTN_PHASE_PREFILL))
        return cli_fail(CLI_USAGE, "--splits: expected with decode kernels, not with --phase prefill");
    if (!o->rope && (o->rope_base != 0 || o->rope_scale != 0 || o->rotary_dim))
        return cli_fail(CLI_USAGE, "--%s: expected with --rope",
                        o->rope_base != 0    ? "rope-base"
                        : o->rope_scale != 0 ? "rope-scale"
                                             : "rotary-dim");
    return CLI_OK;
}

int32_t serving_phase(const serving_options *o, int64_t q_len)
{
    if (o->phase)
        return o->phase - PHASE_GIVEN(0);
    if (o->splits)
        return CLATTN_PHASE_DECODE;
    if (o->batch_invariant)
        return q_len <= INVARIANT_DECODE_ROWS ? CLATTN_PHASE_DECODE : CLATTN_PHASE_PREFILL;
    return CLATTN_PHASE_BOTH;
}

void serving_options_to_words(cJSON *words, const serving_options *o)
{
    if (o->phase)
        option_add_word(words, "--phase=%s", phases[o->phase - PHASE_GIVEN(0)]);
    if (o->splits)
        option_add_word(words, "--splits=%" PRId64, o->splits);
    if (o->batch_invariant)
        option_add_word(words, "--batch-invariant");
    if (o->kv_dtype[0])
        option_add_word(words, "--kv-dtype=%s,%s", dtype_name(o->kv_dtype[0]), dtype_name(o->kv_dtype[1]));
    if (o->emit_cache)
        option_add_word(words, "--emit-cache");
    if (o->v_in_k)
        option_add_word(words, "--v-in-k=%" PRId64, o->v_in_k);
    if (o->rope)
        option_add_word(words, "--rope=%s", ropes[o->rope]);
    if (o->rope_base != 0)
        option_add_numbers(words, "rope-base", &o->rope_base, 1);
    if (o->rope_scale != 0)
        option_add_numbers(words, "rope-scale", &o->rope_scale, 1);
    if (o->rotary_dim)
        option_add_word(words, "--rotary-dim=%" PRId64, o->rotary_dim);
}
