/* plan_options.c: readers of values that stand for several tensors. */
#include "plan_options.h"

#include "clattn.h"
#include "cli.h"
#include "options.h"
#include "tensor_convert.h"

#include <string.h>

const plan_feature plan_features[] = {
    {CLATTN_FEATURE_CAUSAL, 0, "causal", "a causal bound takes part"},
    {CLATTN_FEATURE_WINDOW, 0, "window", "a window takes part"},
    {CLATTN_FEATURE_SOFTCAP, 0, "softcap", "softcap takes part"},
    {CLATTN_FEATURE_BIAS, 0, "bias", "a bias takes part"},
    {CLATTN_FEATURE_BIAS_HEAD_SCALE, CLATTN_FEATURE_BIAS, "bias-head-scale", "and a factor for each head"},
    {CLATTN_FEATURE_MASK, 0, "mask", "a bool mask takes part"},
    {CLATTN_FEATURE_ALIBI, 0, "alibi", "ALiBi slopes take part"},
    {CLATTN_FEATURE_SINKS, 0, "sinks", "sinks take part"},
    {CLATTN_FEATURE_Q_LENS, 0, "q-lens", "a q length for each batch entry"},
    {CLATTN_FEATURE_KV_LENS, 0, "kv-lens", "a kv length for each batch entry"},
    {CLATTN_FEATURE_Q_OFFSETS, 0, "q-offsets", "an offset for each batch entry"},
    {CLATTN_FEATURE_KEY_TILES, 0, "key-tiles", "block-sparse lists take part"},
    {CLATTN_FEATURE_LSE, 0, "lse", "the log-sum-exp is wanted"},
    {CLATTN_FEATURE_LSE_BASE_2, CLATTN_FEATURE_LSE, "lse-base-2", "in base 2"},
    {CLATTN_FEATURE_CU_SEQLENS_Q, 0, "cu-seqlens-q", "q, o and lse are packed"},
    {CLATTN_FEATURE_CU_SEQLENS_K, 0, "cu-seqlens-k", "k and v are packed"},
    {CLATTN_FEATURE_BLOCK_TABLE, CLATTN_FEATURE_KV_LENS, "block-table", "k and v lie in pages"},
    {CLATTN_FEATURE_K_SCALE, 0, "k-scale", "k has scales"},
    {CLATTN_FEATURE_V_SCALE, 0, "v-scale", "v has scales"},
    {CLATTN_FEATURE_V_IN_K, 0, "v-in-k", "v is the first columns of k"},
    {CLATTN_FEATURE_STATUS, 0, "status", "what the device finds wrong is noted"},
    {CLATTN_FEATURE_BATCH_INVARIANT, 0, "batch-invariant", "rows do not depend on the batch"},
};

const int num_plan_features = (int)(sizeof plan_features / sizeof plan_features[0]);

int option_dtypes(const char *name, const char *value, int32_t dtype[4])
{
    int count = 0;
    for (const char *text = value;;) {
        char word[8];
        const size_t length = strcspn(text, ",");
        cli_format(word, sizeof word, "%.*s", (int)(length < 8 ? length : 7), text);
        if (count == 4 || !dtype_is_plain(dtype_from_name(word)))
            break;
        dtype[count++] = dtype_from_name(word);
        text += length;
        if (!*text) {
            if (count == 2)
                break;
            for (int i = count; i < 3; i++)
                dtype[i] = dtype[0];
            if (count < 4)
                dtype[3] = dtype[0];
            return CLI_OK;
        }
        text++;
    }
    return cli_fail(CLI_USAGE,
                    "--%s '%.60s': expected f32, f16 or bf16, or three (q,k,v) or four "
                    "(q,k,v,o) of them",
                    name, value);
}

int option_head_dims(const char *name, const char *value, int32_t *head_dim_qk, int32_t *head_dim_v)
{
    int64_t dim[2];
    int count;
    const char separator = strchr(value, ':') ? ':' : ',';
    const int status = option_integers(name, value, separator, dim, 1, 2, &count);
    if (status != CLI_OK)
        return status;
    for (int i = 0; i < count; i++)
        if (dim[i] < 1 || dim[i] > CLATTN_MAX_HEAD_DIM)
            return cli_fail(CLI_USAGE, "--%s '%.60s': expected 1 to %d", name, value, CLATTN_MAX_HEAD_DIM);
    *head_dim_qk = (int32_t)dim[0];
    *head_dim_v = (int32_t)dim[count - 1];
    return CLI_OK;
}
