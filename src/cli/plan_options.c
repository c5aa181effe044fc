/* plan_options.c: readers of values that stand for several tensors. */
#include "plan_options.h"

#include "clattn.h"
#include "cli.h"
#include "options.h"
#include "tensor_convert.h"

#include <string.h>

int option_dtypes(const char *name, const char *value, int32_t dtype[4])
{
    int count = 0;
    for (const char *text = value;;) {
        char word[8];
        const size_t length = strcspn(text, ",");
        cli_format(word, sizeof word, "%.*s", (int)(length < 8 ? length : 7), text);
        if (count == 4 || !dtype_from_name(word))
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
