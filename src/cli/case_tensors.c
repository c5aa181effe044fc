/* case_tensors.c: which names a file may hold, and the types that its tensors may have. */
#include "case_tensors.h"

#include "cli.h"
#include "tensor_convert.h"

#include <stdlib.h>
#include <string.h>

static const char *const known_later[] = {"dout", "dlse"};

int case_check_names(const safetensors_file *file, const char *name)
{
    for (size_t i = 0; i < file->count; i++) {
        const char *tensor = file->tensor[i].name;
        int known = 0;
        for (int t = 0; t < NUM_INPUTS; t++)
            known |= strcmp(tensor, tensor_names[t]) == 0;
        for (size_t k = 0; k < sizeof known_later / sizeof known_later[0]; k++)
            if (strcmp(tensor, known_later[k]) == 0)
                return cli_fail(CLI_USAGE, "%.200s: tensor '%.64s' is not offered by this version", name,
                                tensor);
        if (!known)
            return cli_fail(CLI_USAGE,
                            "%.200s: unknown tensor '%.64s'; expected q, k, v and others that "
                            "`clattn run --help` names",
                            name, tensor);
    }
    return CLI_OK;
}

static void set_values(case_tensor *t, const safetensors_tensor *source)
{
    t->present = 1;
    t->dtype = dtype_from_safetensors_name(source->dtype);
    t->file_dtype = source->dtype;
    t->values = source->data;
    t->value_bytes = source->bytes;
    t->rank = source->rank;
    memcpy(t->shape, source->shape, sizeof t->shape);
}

int case_read_floats(case_tensor *t, const safetensors_tensor *source, const char *name)
{
    set_values(t, source);
    t->element = dtype_size(t->dtype);
    return dtype_is_plain(t->dtype)
               ? CLI_OK
               : cli_fail(CLI_USAGE, "%.200s: tensor '%s' is %s; expected F32, F16 or BF16", name,
                          source->name, source->dtype);
}

int case_read_f32(case_tensor *t, const safetensors_tensor *source, const char *name)
{
    set_values(t, source);
    t->element = 4;
    return t->dtype == CLATTN_DTYPE_F32 ? CLI_OK
                                        : cli_fail(CLI_USAGE, "%.200s: tensor '%s' is %s; expected F32", name,
                                                   source->name, source->dtype);
}

int case_read_bools(case_tensor *t, const safetensors_tensor *source, const char *name)
{
    set_values(t, source);
    t->element = 1;
    return strcmp(source->dtype, "BOOL") == 0 || strcmp(source->dtype, "U8") == 0
               ? CLI_OK
               : cli_fail(CLI_USAGE, "%.200s: tensor '%s' is %s; expected BOOL or U8", name, source->name,
                          source->dtype);
}

/* Integers get a copy, because in a file they may lie at any address. */
int case_read_integers(case_tensor *t, const safetensors_tensor *source, const char *name)
{
    set_values(t, source);
    t->element = sizeof(int32_t);
    if (strcmp(source->dtype, "I32") != 0)
        return cli_fail(CLI_USAGE, "%.200s: tensor '%s' is %s; expected I32", name, source->name,
                        source->dtype);
    t->owned = malloc(source->bytes + 1);
    if (!t->owned)
        return cli_fail(CLI_FAILED, "not enough memory for '%s'", source->name);
    if (source->bytes > 0)
        memcpy(t->owned, source->data, source->bytes);
    t->values = t->owned;
    return CLI_OK;
}

int case_read_raw(case_tensor *t, const safetensors_tensor *source, const char *name)
{
    (void)name;
    set_values(t, source);
    t->dtype = 0;
    t->element = source->bytes;
    return CLI_OK;
}
