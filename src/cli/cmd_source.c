/* cmd_source.c: the OpenCL C and the build options that a configuration compiles. */
#include "cli.h"
#include "cli_device.h"
#include "plan_options.h"
#include "serving_options.h"

#include <stdio.h>
#include <string.h>

enum {
    SOURCE_DTYPE = OPTION_COMMAND,
    SOURCE_HEAD_DIM,
    SOURCE_HEADS,
    SOURCE_BIAS,
    SOURCE_OPERATION,
    SOURCE_PAGE_SIZE,
    SOURCE_FEATURE /* and on: plan_features[id - SOURCE_FEATURE] */
};

static const option_row source_rows[] = {
    {SOURCE_DTYPE, "dtype", 0, ARGUMENT_REQUIRED, "TYPE", "f32 (default), f16 or bf16; or q,k,v,o apart"},
    {SOURCE_HEAD_DIM, "head-dim", 0, ARGUMENT_REQUIRED, "D", "default 64; or QK,V apart: 192,128"},
    {SOURCE_HEADS, "heads", 0, ARGUMENT_REQUIRED, "N", "query heads, or query,KV heads: 32,8"},
    {OPTION_PATH, "path", 0, ARGUMENT_REQUIRED, "NAME", "auto, portable, cpu, nvidia_mma or nvidia_wgmma"},
    {SOURCE_BIAS, "bias", 0, ARGUMENT_OPTIONAL, "TYPE", "a bias takes part; its type: f32 if none is named"},
    {SOURCE_OPERATION, "operation", 0, ARGUMENT_REQUIRED, "NAME",
     "forward (default), append, merge or convert"},
    {OPTION_PHASE, "phase", 0, ARGUMENT_REQUIRED, "NAME", "prefill (default), decode or both"},
    {OPTION_KV_DTYPE, "kv-dtype", 0, ARGUMENT_REQUIRED, "T|K,V",
     "of the caches, where they are not of --dtype: i8, f8_e4m3, q8_0, ..."},
    {SOURCE_PAGE_SIZE, "page-size", 0, ARGUMENT_REQUIRED, "N", "with --block-table; default: 16"},
    {OPTION_ROPE, "rope", 0, ARGUMENT_REQUIRED, "neox|interleaved", "with --operation append"},
    {OPTION_SCORE_MOD, "score-mod", 0, ARGUMENT_REQUIRED, "TEXT", "OpenCL C that gives a new score"},
    {OPTION_MASK_MOD, "mask-mod", 0, ARGUMENT_REQUIRED, "TEXT", "OpenCL C that is 0 for a forbidden key"},
    {OPTION_END, NULL, 0, 0, NULL, NULL},
};

enum { MAX_FEATURE_ROWS = 32 };

/* A row for each feature but the bias, whose type is told as well. */
static void make_feature_rows(option_row rows[MAX_FEATURE_ROWS])
{
    int count = 0;
    for (int i = 0; i < num_plan_features && count < MAX_FEATURE_ROWS - 1; i++) {
        const plan_feature *f = &plan_features[i];
        const option_row row = {SOURCE_FEATURE + i, f->name, 0, ARGUMENT_NONE, NULL, f->help};
        if (f->bit != CLATTN_FEATURE_BIAS)
            rows[count++] = row;
    }
    const option_row end = {OPTION_END, NULL, 0, 0, NULL, NULL};
    rows[count] = end;
}

static const command_text source_text = {
    "source [options]",
    "Prints the OpenCL C that a configuration compiles on the chosen device, after a first line\n"
    "  // options: <build options>",
};

typedef struct source_options {
    clattn_plan_desc desc;
    int32_t kv_dtype[2];
} source_options;

static int apply_heads(clattn_plan_desc *desc, const char *value)
{
    int64_t heads[2];
    int count;
    const int status = option_integers("heads", value, ',', heads, 1, 2, &count);
    if (status != CLI_OK)
        return status;
    for (int i = 0; i < count; i++)
        if (heads[i] < 1 || heads[i] > INT32_MAX)
            return cli_fail(CLI_USAGE, "--heads '%.60s': expected numbers >= 1", value);
    desc->heads_q = (int32_t)heads[0];
    desc->heads_kv = (int32_t)heads[count - 1];
    return CLI_OK;
}

static int apply_operation(clattn_plan_desc *desc, const char *value)
{
    static const char *const names[] = {"forward", "append", "merge", "convert"}; /* as CLATTN_OPERATION_* */
    for (int32_t i = 0; i < (int32_t)(sizeof names / sizeof names[0]); i++)
        if (strcmp(names[i], value) == 0) {
            desc->operation = i;
            return CLI_OK;
        }
    return cli_fail(CLI_USAGE, "--operation '%.60s': expected forward, append, merge or convert", value);
}

static int apply_page_size(clattn_plan_desc *desc, const char *value)
{
    int64_t size;
    const int status = option_integer("page-size", value, &size);
    if (status == CLI_OK && (size < 1 || size > CLATTN_MAX_LENGTH))
        return cli_fail(CLI_USAGE, "--page-size '%.60s': expected 1 to %d", value, CLATTN_MAX_LENGTH);
    desc->page_size = (int32_t)size;
    return status;
}

/* What the options leave open. Scales of I8 are no choice, and converted rows are told by the type of k. */
static void complete(clattn_plan_desc *desc, const int32_t kv_dtype[2])
{
    if (kv_dtype[0]) {
        desc->dtype_k = kv_dtype[0];
        desc->dtype_v = desc->operation == CLATTN_OPERATION_CONVERT ? 0 : kv_dtype[1];
    }
    if (desc->dtype_k == CLATTN_DTYPE_I8)
        desc->features |= CLATTN_FEATURE_K_SCALE;
    if (desc->dtype_v == CLATTN_DTYPE_I8)
        desc->features |= CLATTN_FEATURE_V_SCALE;
    if (desc->operation == CLATTN_OPERATION_KV_APPEND) /* has them always */
        desc->features &= ~CLATTN_FEATURE_KV_LENS;
    if (desc->features & CLATTN_FEATURE_BLOCK_TABLE && !desc->page_size)
        desc->page_size = 16;
}

static int apply(void *user, int id, const char *name, const char *value)
{
    source_options *o = user;
    clattn_plan_desc *desc = &o->desc;
    int32_t dtype[4];
    int status = CLI_OK;
    switch (id) {
    case SOURCE_DTYPE:
        status = option_dtypes(name, value, dtype);
        if (status == CLI_OK) {
            desc->dtype_q = dtype[0];
            desc->dtype_k = dtype[1];
            desc->dtype_v = dtype[2];
            desc->dtype_o = dtype[3];
        }
        break;
    case SOURCE_HEAD_DIM:
        status = option_head_dims(name, value, &desc->head_dim_qk, &desc->head_dim_v);
        break;
    case SOURCE_HEADS:
        status = apply_heads(desc, value);
        break;
    case SOURCE_OPERATION:
        status = apply_operation(desc, value);
        break;
    case SOURCE_PAGE_SIZE:
        status = apply_page_size(desc, value);
        break;
    case OPTION_PHASE:
        status = option_phase(name, value, &desc->phase);
        break;
    case OPTION_KV_DTYPE:
        status = option_kv_dtypes(name, value, o->kv_dtype);
        break;
    case OPTION_ROPE:
        status = option_rope(name, value, &desc->rope);
        break;
    case SOURCE_BIAS:
        desc->features |= CLATTN_FEATURE_BIAS;
        if (value)
            status = option_dtype(name, value, &desc->dtype_bias);
        break;
    case OPTION_SCORE_MOD:
        status = option_program_text(name, value, &desc->score_mod);
        break;
    case OPTION_MASK_MOD:
        status = option_program_text(name, value, &desc->mask_mod);
        break;
    case OPTION_PATH:
        status = option_path(name, value, &desc->path);
        break;
    default:
        desc->features |= plan_features[id - SOURCE_FEATURE].bit | plan_features[id - SOURCE_FEATURE].needs;
        if (plan_features[id - SOURCE_FEATURE].bit == CLATTN_FEATURE_Q_OFFSETS)
            desc->position_mode = CLATTN_POSITION_EXPLICIT;
        if (plan_features[id - SOURCE_FEATURE].bit == CLATTN_FEATURE_KEY_TILES)
            desc->tile_rows = desc->tile_keys = 128;
        break;
    }
    return status;
}

static int print_source(cli_device *device, const clattn_plan_desc *desc)
{
    clattn_plan *plan;
    const char *source, *options;
    clattn_status status = clattn_plan_create(&plan, device->clattn, desc);
    if (status != CLATTN_SUCCESS)
        return cli_library_fail(device, status, "clattn_plan_create");
    status = clattn_plan_source(plan, &source, &options);
    int result = CLI_OK;
    if (status != CLATTN_SUCCESS)
        result = cli_library_fail(device, status, "clattn_plan_source");
    else if (printf("// options: %s\n%s", options, source) < 0 || fflush(stdout) != 0)
        result = cli_fail(CLI_FAILED, "the source cannot be written");
    clattn_plan_release(plan);
    return result;
}

int cmd_source(int argc, char **argv)
{
    source_options o = {CLATTN_PLAN_DESC_INIT, {0, 0}};
    common_options common = {0};
    option_row feature_rows[MAX_FEATURE_ROWS];
    const option_set set = {{source_rows, feature_rows}, apply, &o};
    int operands;
    make_feature_rows(feature_rows);
    o.desc.heads_q = 1;
    o.desc.head_dim_qk = 64;
    int status = options_parse(&set, &common, argc, argv, &operands);
    if (status != CLI_OK)
        return status;
    if (common.help) {
        options_print_help(&set, &source_text);
        return CLI_OK;
    }
    if (operands > 0)
        return cli_fail(CLI_USAGE, "unexpected argument '%.100s'", argv[0]);
    complete(&o.desc, o.kv_dtype);
    cli_device device;
    status = cli_device_open(&device, &common);
    if (status != CLI_OK)
        return status;
    status = print_source(&device, &o.desc);
    cli_device_close(&device);
    return status;
}
