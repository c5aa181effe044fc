#include "plan.h"

#include "dtype.h"
#include "mods.h"
#include "tuning.h"

#include <stdio.h>
#include <string.h>

/* What each operation knows. */
#define APPEND_ONLY_FEATURES (CLATTN_FEATURE_SLOT_MAPPING | CLATTN_FEATURE_ROPE_TABLES)
#define FORWARD_FEATURES ((CLATTN_FEATURE_ROPE_TABLES << 1) - 1 - APPEND_ONLY_FEATURES)
#define APPEND_FEATURES                                                                                \
    (CLATTN_FEATURE_CU_SEQLENS_Q | CLATTN_FEATURE_Q_LENS | CLATTN_FEATURE_BLOCK_TABLE |                \
     CLATTN_FEATURE_K_SCALE | CLATTN_FEATURE_V_SCALE | CLATTN_FEATURE_V_IN_K | CLATTN_FEATURE_STATUS | \
     APPEND_ONLY_FEATURES)
#define MERGE_FEATURES \
    (CLATTN_FEATURE_CU_SEQLENS_Q | CLATTN_FEATURE_LSE | CLATTN_FEATURE_LSE_BASE_2 | CLATTN_FEATURE_SINKS)
#define CONVERT_FEATURES CLATTN_FEATURE_K_SCALE

static const struct {
    const char *name;
    uint32_t features;
} operations[] = {
    [CLATTN_OPERATION_FORWARD] = {"forward", FORWARD_FEATURES},
    [CLATTN_OPERATION_KV_APPEND] = {"append", APPEND_FEATURES},
    [CLATTN_OPERATION_MERGE] = {"merge", MERGE_FEATURES},
    [CLATTN_OPERATION_CONVERT] = {"convert", CONVERT_FEATURES},
};

/* Those that change single scores. */
#define SCORE_FEATURES                                                                           \
    (CLATTN_FEATURE_SOFTCAP | CLATTN_FEATURE_BIAS | CLATTN_FEATURE_MASK | CLATTN_FEATURE_ALIBI | \
     CLATTN_FEATURE_KEY_TILES)
/* Of these, what reads nothing that has a score's place. */
#define FORMULA_FEATURES (CLATTN_FEATURE_SOFTCAP | CLATTN_FEATURE_ALIBI)

/* ---- Description ---- */

static void fill_defaults(clattn_plan_desc *desc)
{
#define DEFAULT(member, value) \
    if (desc->member == 0)     \
        desc->member = (value);
    DEFAULT(dtype_q, CLATTN_DTYPE_F32)
    DEFAULT(dtype_k, desc->dtype_q)
    DEFAULT(dtype_v, desc->dtype_k)
    DEFAULT(dtype_o, desc->dtype_q)
    DEFAULT(dtype_bias, CLATTN_DTYPE_F32)
    if (desc->operation == CLATTN_OPERATION_CONVERT)
        DEFAULT(heads_q, desc->heads_kv)
    DEFAULT(heads_kv, desc->heads_q)
    if (desc->operation == CLATTN_OPERATION_MERGE)
        DEFAULT(head_dim_qk, desc->head_dim_v)
    DEFAULT(head_dim_v, desc->head_dim_qk)
    if (desc->rope != CLATTN_ROPE_NONE)
        DEFAULT(rotary_dim, desc->head_dim_qk)
#undef DEFAULT
}

static clattn_status check_dtype(const clattn__log *log, const char *where, const char *name, int32_t dtype,
                                 int may_be_cache)
{
    const clattn__dtype *type = clattn__dtype_of(dtype);
    RETURN_ERROR_IF(type->name == NULL, log, CLATTN_INVALID_ARGUMENT,
                    "%s: %s = %d; expected one of CLATTN_DTYPE_*", where, name, (int)dtype);
    RETURN_ERROR_IF(type->is_cache && !may_be_cache, log, CLATTN_INVALID_ARGUMENT,
                    "%s: %s = %d (%s); expected CLATTN_DTYPE_F32 (1), F16 (2) or BF16 (3)", where, name,
                    (int)dtype, type->name);
    return CLATTN_SUCCESS;
}

static clattn_status check_range(const clattn__log *log, const char *where, const char *name, int32_t value,
                                 int32_t least, int32_t most)
{
    RETURN_ERROR_IF(value < least || value > most, log, CLATTN_INVALID_ARGUMENT,
                    "%s: %s = %d; expected %d to %d", where, name, (int)value, (int)least, (int)most);
    return CLATTN_SUCCESS;
}

/* Largest head counts: group numbers of one launch stay in 32 bits, and buffers end before that. */
enum { MAX_HEADS = 1 << 20 };

/* A feature that means something only beside another one. */
static clattn_status check_needs(const clattn__log *log, const char *where, const clattn_plan_desc *desc,
                                 uint32_t feature, const char *name, int is_there, const char *what)
{
    RETURN_ERROR_IF((desc->features & feature) != 0 && !is_there, log, CLATTN_INVALID_ARGUMENT,
                    "%s: features = 0x%x has CLATTN_FEATURE_%s; expected %s with it", where,
                    (unsigned)desc->features, name, what);
    return CLATTN_SUCCESS;
}

static clattn_status check_parts(const clattn__log *log, const char *where, const clattn_plan_desc *desc)
{
    const int has_bias = (desc->features & CLATTN_FEATURE_BIAS) != 0;
    const int has_lse = (desc->features & CLATTN_FEATURE_LSE) != 0;
    FORWARD_IF_ERROR(check_needs(log, where, desc, CLATTN_FEATURE_BIAS_HEAD_SCALE, "BIAS_HEAD_SCALE",
                                 has_bias, "CLATTN_FEATURE_BIAS"));
    FORWARD_IF_ERROR(check_needs(log, where, desc, CLATTN_FEATURE_LSE_BASE_2, "LSE_BASE_2",
                                 has_lse || desc->operation == CLATTN_OPERATION_MERGE, "CLATTN_FEATURE_LSE"));
    FORWARD_IF_ERROR(check_needs(log, where, desc, CLATTN_FEATURE_Q_OFFSETS, "Q_OFFSETS",
                                 desc->position_mode == CLATTN_POSITION_EXPLICIT,
                                 "position_mode = CLATTN_POSITION_EXPLICIT"));
    const int32_t most = (desc->features & CLATTN_FEATURE_KEY_TILES) != 0 ? CLATTN_MAX_LENGTH : 0;
    FORWARD_IF_ERROR(check_range(log, where, "tile_rows", desc->tile_rows, most > 0, most));
    FORWARD_IF_ERROR(check_range(log, where, "tile_keys", desc->tile_keys, most > 0, most));
    const int is_empty = desc->score_mod != NULL && desc->score_mod[0] == '\0';
    RETURN_ERROR_IF(is_empty || (desc->mask_mod != NULL && desc->mask_mod[0] == '\0'), log,
                    CLATTN_INVALID_ARGUMENT, "%s: %s is \"\"; expected OpenCL C, or NULL", where,
                    is_empty ? "score_mod" : "mask_mod");
    return CLATTN_SUCCESS;
}

/* A cache type asks for whole blocks of the head dim, and some for a scale. */
static clattn_status check_cache_type(const clattn__log *log, const char *where, const clattn_plan_desc *desc,
                                      const char *name, int32_t dtype, const char *dim_name, int32_t dim,
                                      uint32_t scale, const char *scale_name)
{
    const clattn__dtype *type = clattn__dtype_of(dtype);
    const int has_scale = (desc->features & scale) != 0;
    RETURN_ERROR_IF(dim % type->elements != 0, log, CLATTN_INVALID_ARGUMENT,
                    "%s: %s = %d; expected a multiple of %d, %s is %s", where, dim_name, (int)dim,
                    (int)type->elements, name, type->name);
    RETURN_ERROR_IF(has_scale && !type->is_scaled, log, CLATTN_INVALID_ARGUMENT,
                    "%s: features = 0x%x has CLATTN_FEATURE_%s; expected %s of I8 or F8, not %s", where,
                    (unsigned)desc->features, scale_name, name, type->name);
    RETURN_ERROR_IF(!has_scale && dtype == CLATTN_DTYPE_I8, log, CLATTN_INVALID_ARGUMENT,
                    "%s: features = 0x%x; expected CLATTN_FEATURE_%s, %s is i8", where,
                    (unsigned)desc->features, scale_name, name);
    return CLATTN_SUCCESS;
}

static clattn_status check_v_in_k(const clattn__log *log, const char *where, const clattn_plan_desc *desc)
{
    if ((desc->features & CLATTN_FEATURE_V_IN_K) == 0)
        return CLATTN_SUCCESS;
    FORWARD_IF_ERROR(check_range(log, where, "head_dim_v", desc->head_dim_v, 1, desc->head_dim_qk));
    RETURN_ERROR_IF(desc->dtype_v != desc->dtype_k, log, CLATTN_INVALID_ARGUMENT,
                    "%s: dtype_v = %d; expected dtype_k = %d, or 0, with CLATTN_FEATURE_V_IN_K", where,
                    (int)desc->dtype_v, (int)desc->dtype_k);
    RETURN_ERROR_IF((desc->features & CLATTN_FEATURE_V_SCALE) != 0, log, CLATTN_INVALID_ARGUMENT,
                    "%s: features = 0x%x has CLATTN_FEATURE_V_SCALE; expected K_SCALE alone with "
                    "CLATTN_FEATURE_V_IN_K",
                    where, (unsigned)desc->features);
    return CLATTN_SUCCESS;
}

/* How sequences are stored, and in what. */
static clattn_status check_storage(const clattn__log *log, const char *where, const clattn_plan_desc *desc)
{
    const int is_paged = (desc->features & CLATTN_FEATURE_BLOCK_TABLE) != 0;
    const int is_forward = desc->operation == CLATTN_OPERATION_FORWARD;
    FORWARD_IF_ERROR(
        check_range(log, where, "page_size", desc->page_size, is_paged, is_paged ? CLATTN_MAX_LENGTH : 0));
    RETURN_ERROR_IF(is_paged && (desc->features & CLATTN_FEATURE_CU_SEQLENS_K) != 0, log,
                    CLATTN_INVALID_ARGUMENT,
                    "%s: features = 0x%x has both CLATTN_FEATURE_BLOCK_TABLE and CU_SEQLENS_K; expected one",
                    where, (unsigned)desc->features);
    if (is_forward)
        FORWARD_IF_ERROR(check_needs(log, where, desc, CLATTN_FEATURE_BLOCK_TABLE, "BLOCK_TABLE",
                                     (desc->features & CLATTN_FEATURE_KV_LENS) != 0,
                                     "CLATTN_FEATURE_KV_LENS"));
    FORWARD_IF_ERROR(check_v_in_k(log, where, desc));
    if (desc->operation == CLATTN_OPERATION_MERGE)
        return CLATTN_SUCCESS;
    FORWARD_IF_ERROR(check_cache_type(log, where, desc, "dtype_k", desc->dtype_k, "head_dim_qk",
                                      desc->head_dim_qk, CLATTN_FEATURE_K_SCALE, "K_SCALE"));
    if (desc->operation == CLATTN_OPERATION_CONVERT || (desc->features & CLATTN_FEATURE_V_IN_K) != 0)
        return CLATTN_SUCCESS;
    return check_cache_type(log, where, desc, "dtype_v", desc->dtype_v, "head_dim_v", desc->head_dim_v,
                            CLATTN_FEATURE_V_SCALE, "V_SCALE");
}

/* What only one operation, or only one phase, knows. */
static clattn_status check_operation(const clattn__log *log, const char *where, const clattn_plan_desc *desc)
{
    const int is_forward = desc->operation == CLATTN_OPERATION_FORWARD;
    const int is_invariant = (desc->features & CLATTN_FEATURE_BATCH_INVARIANT) != 0;
    const int has_splits = is_forward && desc->phase != CLATTN_PHASE_PREFILL && !is_invariant;
    const int can_rope = desc->operation == CLATTN_OPERATION_KV_APPEND;
    const int has_rope = desc->rope != CLATTN_ROPE_NONE;
    FORWARD_IF_ERROR(check_range(log, where, "phase", desc->phase, CLATTN_PHASE_PREFILL,
                                 is_forward ? CLATTN_PHASE_BOTH : CLATTN_PHASE_PREFILL));
    RETURN_ERROR_IF(is_invariant && desc->phase == CLATTN_PHASE_BOTH, log, CLATTN_INVALID_ARGUMENT,
                    "%s: phase = %d; expected CLATTN_PHASE_PREFILL (0) or DECODE (1) with "
                    "CLATTN_FEATURE_BATCH_INVARIANT",
                    where, (int)desc->phase);
    RETURN_ERROR_IF(!has_splits && desc->splits != 0, log, CLATTN_INVALID_ARGUMENT,
                    "%s: splits = %d; expected 0 %s", where, (int)desc->splits,
                    is_invariant ? "with CLATTN_FEATURE_BATCH_INVARIANT" : "without decode kernels");
    FORWARD_IF_ERROR(check_range(log, where, "splits", desc->splits, 0, CLATTN_MAX_SPLITS));
    FORWARD_IF_ERROR(check_range(log, where, "rope", desc->rope, CLATTN_ROPE_NONE,
                                 can_rope ? CLATTN_ROPE_INTERLEAVED : CLATTN_ROPE_NONE));
    FORWARD_IF_ERROR(check_range(log, where, "rotary_dim", desc->rotary_dim, has_rope ? 2 : 0,
                                 has_rope ? desc->head_dim_qk : 0));
    RETURN_ERROR_IF(desc->rotary_dim % 2 != 0, log, CLATTN_INVALID_ARGUMENT,
                    "%s: rotary_dim = %d; expected an even number", where, (int)desc->rotary_dim);
    FORWARD_IF_ERROR(
        check_needs(log, where, desc, CLATTN_FEATURE_ROPE_TABLES, "ROPE_TABLES", has_rope, "rope"));
    RETURN_ERROR_IF(!is_forward && (desc->score_mod != NULL || desc->mask_mod != NULL), log,
                    CLATTN_INVALID_ARGUMENT, "%s: %s is set; expected NULL, %s computes no scores", where,
                    desc->score_mod != NULL ? "score_mod" : "mask_mod", operations[desc->operation].name);
    RETURN_ERROR_IF(desc->reserved != 0, log, CLATTN_INVALID_ARGUMENT, "%s: reserved = %d; expected 0", where,
                    (int)desc->reserved);
    return CLATTN_SUCCESS;
}

static clattn_status read_desc(clattn_plan_desc *out, const clattn_plan_desc *given, const clattn__log *log,
                               const char *where)
{
    RETURN_ERROR_IF(given == NULL, log, CLATTN_INVALID_ARGUMENT, "%s: desc is NULL", where);
    FORWARD_IF_ERROR(clattn__read_struct(
        out, sizeof *out, given, offsetof(clattn_plan_desc, path) + sizeof out->path, where, "desc", log));
    FORWARD_IF_ERROR(check_range(log, where, "operation", out->operation, CLATTN_OPERATION_FORWARD,
                                 CLATTN_OPERATION_CONVERT));
    fill_defaults(out);
    const int is_merge = out->operation == CLATTN_OPERATION_MERGE;
    FORWARD_IF_ERROR(check_dtype(log, where, "dtype_q", out->dtype_q, 0));
    FORWARD_IF_ERROR(check_dtype(log, where, "dtype_k", out->dtype_k, !is_merge));
    FORWARD_IF_ERROR(check_dtype(log, where, "dtype_v", out->dtype_v, !is_merge));
    FORWARD_IF_ERROR(check_dtype(log, where, "dtype_o", out->dtype_o, 0));
    FORWARD_IF_ERROR(check_dtype(log, where, "dtype_bias", out->dtype_bias, 0));
    FORWARD_IF_ERROR(check_range(log, where, "heads_q", out->heads_q, 1, MAX_HEADS));
    FORWARD_IF_ERROR(check_range(log, where, "heads_kv", out->heads_kv, 1, out->heads_q));
    RETURN_ERROR_IF(out->heads_q % out->heads_kv != 0, log, CLATTN_INVALID_ARGUMENT,
                    "%s: heads_q = %d; expected a multiple of heads_kv = %d", where, (int)out->heads_q,
                    (int)out->heads_kv);
    FORWARD_IF_ERROR(check_range(log, where, "head_dim_qk", out->head_dim_qk, 1, CLATTN_MAX_HEAD_DIM));
    FORWARD_IF_ERROR(check_range(log, where, "head_dim_v", out->head_dim_v, 1, CLATTN_MAX_HEAD_DIM));
    const uint32_t unknown = out->features & ~operations[out->operation].features;
    RETURN_ERROR_IF(unknown != 0, log, CLATTN_UNSUPPORTED,
                    "%s: features = 0x%x; bits 0x%x are not offered by this version for operation %s", where,
                    (unsigned)out->features, (unsigned)unknown, operations[out->operation].name);
    FORWARD_IF_ERROR(check_range(log, where, "position_mode", out->position_mode,
                                 CLATTN_POSITION_BOTTOM_RIGHT, CLATTN_POSITION_EXPLICIT));
    FORWARD_IF_ERROR(check_range(log, where, "path", out->path, CLATTN_PATH_AUTO, CLATTN_PATH_NVIDIA_WGMMA));
    FORWARD_IF_ERROR(check_storage(log, where, out));
    FORWARD_IF_ERROR(check_operation(log, where, out));
    return check_parts(log, where, out);
}

static clattn__kernel_shape shape_of(const clattn_plan_desc *desc)
{
    const int has_mods = desc->score_mod != NULL || desc->mask_mod != NULL;
    const int full = (desc->features & SCORE_FEATURES) != 0 || has_mods;
    const int by_formula = (desc->features & SCORE_FEATURES & ~FORMULA_FEATURES) == 0 && !has_mods;
    const int formula = ((desc->features & CLATTN_FEATURE_SOFTCAP) != 0 ? CLATTN__FORMULA_SOFTCAP : 0) |
                        ((desc->features & CLATTN_FEATURE_ALIBI) != 0 ? CLATTN__FORMULA_ALIBI : 0);
    const clattn__kernel_shape shape = {
        .dtype_q = desc->dtype_q,
        .dtype_k = desc->dtype_k,
        .dtype_v = desc->dtype_v,
        .dtype_o = desc->dtype_o,
        .dtype_bias = (desc->features & CLATTN_FEATURE_BIAS) != 0 ? desc->dtype_bias : CLATTN_DTYPE_F32,
        .dim_qk_class = clattn__head_dim_class(desc->head_dim_qk),
        .dim_v_class = clattn__head_dim_class(desc->head_dim_v),
        .score_full = full,
        .score_formula = by_formula ? formula : 0,
        .page_size = desc->page_size,
        .v_in_k = (desc->features & CLATTN_FEATURE_V_IN_K) != 0,
        .has_status = (desc->features & CLATTN_FEATURE_STATUS) != 0,
        .heads_per_kv = desc->heads_q / desc->heads_kv,
        .is_causal = (desc->features & CLATTN_FEATURE_CAUSAL) != 0,
        .score_mod = desc->score_mod,
        .mask_mod = desc->mask_mod,
    };
    /* Rows are copied whatever their lengths: only types are compiled. */
    const clattn__kernel_shape types = {
        .dtype_q = desc->dtype_q,
        .dtype_k = desc->dtype_k,
        .dtype_v = desc->dtype_v,
        .dtype_o = desc->dtype_o,
        .dtype_bias = CLATTN_DTYPE_F32,
        .heads_per_kv = 1,
    };
    return desc->operation == CLATTN_OPERATION_FORWARD ? shape : types;
}

/* ---- Choice of path ---- */

int clattn__plan_wants(const clattn_plan_desc *desc, int program)
{
    return desc->phase == CLATTN_PHASE_BOTH ||
           desc->phase == (program == CLATTN__PREFILL ? CLATTN_PHASE_PREFILL : CLATTN_PHASE_DECODE);
}

/* The candidates of the plan's operation; NULL at their end. */
static const clattn__path *path_at(const clattn_plan_desc *desc, int index)
{
    if (desc->operation == CLATTN_OPERATION_FORWARD)
        return clattn__path_at(index);
    return index == 0 ? clattn__path_of_operation(desc->operation) : NULL;
}

/* Whether the path has a program for each phase that the plan asks for, with a tile that fits. */
static int has_tiles(const clattn__path *path, const clattn_context *context, const clattn_plan_desc *desc,
                     const clattn__kernel_shape *shape)
{
    clattn__tile tile;
    for (int i = CLATTN__PREFILL; i <= CLATTN__DECODE; i++) {
        const clattn__recipe *recipe = &path->recipe[i];
        if (clattn__plan_wants(desc, i) &&
            (recipe->tile == NULL || !recipe->tile(&tile, &context->device, shape, 0)))
            return 0;
    }
    return 1;
}

/* Whether the path is asked for or free to be chosen, runs on the device and has a tile that fits; otherwise
 * *why. */
static int path_fits(const clattn__path *path, const clattn_context *context, const clattn_plan_desc *desc,
                     const clattn__kernel_shape *shape, const char **why)
{
    if (desc->path != CLATTN_PATH_AUTO && desc->path != path->id) {
        *why = "another one was asked for";
        return 0;
    }
    if (!path->applies(&context->device, why))
        return 0;
    if (path->takes != NULL && !path->takes(desc, why))
        return 0;
    *why = "no tile fits the device's local memory and work-group size";
    return has_tiles(path, context, desc, shape);
}

static clattn_status check_supported(const clattn_context *context, const clattn_plan_desc *desc,
                                     const clattn__kernel_shape *shape, const clattn__log *log,
                                     const char *where)
{
    const char *why = "";
    for (int i = 0; path_at(desc, i) != NULL; i++)
        if (path_fits(path_at(desc, i), context, desc, shape, &why))
            return CLATTN_SUCCESS;
        else if (desc->path == path_at(desc, i)->id)
            return clattn__fail(log, CLATTN_UNSUPPORTED, "%s: path %s does not apply: %s", where,
                                path_at(desc, i)->name, why);
    return clattn__fail(log, CLATTN_UNSUPPORTED,
                        "%s: no path applies to %s (%llu bytes of local memory, work-groups of %llu)", where,
                        context->device.name, (unsigned long long)context->device.local_bytes,
                        (unsigned long long)context->device.max_work_group);
}

clattn_status clattn__plan_path(const clattn__path **path, clattn_plan_desc *desc,
                                clattn__kernel_shape *shape, const clattn_context *context,
                                const clattn_plan_desc *given, const char *where)
{
    const char *why;
    FORWARD_IF_ERROR(read_desc(desc, given, &context->log, where));
    *shape = shape_of(desc);
    FORWARD_IF_ERROR(check_supported(context, desc, shape, &context->log, where));
    int i = 0;
    while (!path_fits(path_at(desc, i), context, desc, shape, &why))
        i++;
    *path = path_at(desc, i);
    return CLATTN_SUCCESS;
}

typedef struct text_sink {
    char *text;
    size_t capacity;
} text_sink;

static void write_to_sink(void *user, int32_t level, const char *message)
{
    text_sink *sink = user;
    (void)level;
    if (sink->text != NULL && sink->capacity > 0)
        snprintf(sink->text, sink->capacity, "%s", message);
}

clattn_status clattn_plan_supported(clattn_context *context, const clattn_plan_desc *given, char *why,
                                    size_t capacity)
{
    text_sink sink = {why, capacity};
    const clattn__log log = {write_to_sink, &sink, CLATTN_LOG_ERROR};
    clattn_plan_desc desc;
    write_to_sink(&sink, 0, "");
    RETURN_ERROR_IF(context == NULL, &log, CLATTN_INVALID_ARGUMENT, "clattn_plan_supported: context is NULL");
    FORWARD_IF_ERROR(read_desc(&desc, given, &log, "clattn_plan_supported"));
    const clattn__kernel_shape shape = shape_of(&desc);
    return check_supported(context, &desc, &shape, &log, "clattn_plan_supported");
}

/* ---- Creation ---- */

static void append(char *text, size_t capacity, const char *more)
{
    const size_t used = strlen(text);
    snprintf(text + used, capacity - used, "%s", more);
}

/* "append: f16 to k q8_0, v q4_0; head dims 128/128; pages of 16". */
static void describe_operation(clattn_plan *plan)
{
    const clattn_plan_desc *desc = &plan->desc;
    const char *const name = operations[desc->operation].name;
    const char *const q = clattn__dtype_of(desc->dtype_q)->name, *const k =
                                                                     clattn__dtype_of(desc->dtype_k)->name;
    char *const text = plan->description;
    const size_t capacity = sizeof plan->description;
    char part[80];
    if (desc->operation == CLATTN_OPERATION_MERGE) {
        snprintf(text, capacity, "%s: %s to %s; head dim %d", name, q, clattn__dtype_of(desc->dtype_o)->name,
                 (int)desc->head_dim_v);
        return;
    }
    if (desc->operation == CLATTN_OPERATION_CONVERT) {
        snprintf(text, capacity, "%s: %s to %s; head dim %d", name, q, k, (int)desc->head_dim_qk);
        return;
    }
    if ((desc->features & CLATTN_FEATURE_V_IN_K) != 0)
        snprintf(text, capacity, "%s: %s to k %s with v in it; head dims %d/%d", name, q, k,
                 (int)desc->head_dim_qk, (int)desc->head_dim_v);
    else
        snprintf(text, capacity, "%s: %s to k %s, v %s; head dims %d/%d", name, q, k,
                 clattn__dtype_of(desc->dtype_v)->name, (int)desc->head_dim_qk, (int)desc->head_dim_v);
    if (desc->rope != CLATTN_ROPE_NONE) {
        snprintf(part, sizeof part, "; rope %s over %d columns",
                 desc->rope == CLATTN_ROPE_NEOX ? "neox" : "interleaved", (int)desc->rotary_dim);
        append(text, capacity, part);
    }
    if (desc->page_size > 0) {
        snprintf(part, sizeof part, "; pages of %d", (int)desc->page_size);
        append(text, capacity, part);
    }
}

static int is_by_formula(const clattn_plan *plan)
{
    const clattn__program *program = plan->program[CLATTN__PREFILL];
    return program != NULL && clattn__formula(program->recipe, &plan->shape);
}

/* "portable: tiles 64x32, ...; decode tiles 8x64, ...; q f16, ..." */
static void describe(clattn_plan *plan, const char *passed_over)
{
    const clattn_plan_desc *desc = &plan->desc;
    char *const text = plan->description;
    const size_t capacity = sizeof plan->description;
    const char *scores = plan->has_score_mod && plan->has_mask_mod ? "full with score_mod and mask_mod"
                         : plan->has_score_mod                     ? "full with score_mod"
                         : plan->has_mask_mod                      ? "full with mask_mod"
                         : is_by_formula(plan)                     ? "by formula"
                         : plan->shape.score_full                  ? "full"
                                                                   : "lean";
    static const char *const names[CLATTN__PROGRAMS] = {"", "decode ", "decode of few rows "};
    char part[480];
    const char *separator = ": ";
    text[0] = '\0';
    for (int i = 0; i < CLATTN__PROGRAMS; i++) {
        const clattn__program *program = plan->program[i];
        if (program == NULL)
            continue;
        const clattn__tile *tile = &program->tile;
        snprintf(part, sizeof part, "%s%s%s%stiles %s, %d work-item%s, %.1f KiB local memory",
                 text[0] == '\0' ? program->path : "", separator, plan->is_tuned[i] ? "tuned " : "", names[i],
                 tile->label, (int)tile->work_items, tile->work_items == 1 ? "" : "s",
                 (double)tile->local_bytes / 1024.0);
        append(text, capacity, part);
        separator = "; ";
    }
    snprintf(part, sizeof part, "; q %s, k %s, v %s, o %s; head dims %d/%d compiled as %d/%d; scores %s%s",
             clattn__dtype_of(desc->dtype_q)->name, clattn__dtype_of(desc->dtype_k)->name,
             clattn__dtype_of(desc->dtype_v)->name, clattn__dtype_of(desc->dtype_o)->name,
             (int)desc->head_dim_qk, (int)desc->head_dim_v, (int)plan->shape.dim_qk_class,
             (int)plan->shape.dim_v_class, scores,
             (desc->features & CLATTN_FEATURE_BATCH_INVARIANT) != 0 ? "; batch-invariant" : "");
    append(text, capacity, part);
    if (desc->page_size > 0) {
        snprintf(part, sizeof part, "; pages of %d", (int)desc->page_size);
        append(text, capacity, part);
    }
    append(text, capacity, passed_over);
}

/* Why candidates were passed over, for the description and the log. */
typedef struct search_notes {
    char passed_over[600];
    const char *build_log; /* of the last that did not build; NULL: none */
    int is_final;          /* no other path will do either, and the reason has been said */
} search_notes;

/* Builds one tile for one of the path's programs; COMPILE_FAILED if it does not build or fit. */
static clattn_status try_tile(clattn_plan *plan, const clattn__path *path, const clattn__recipe *recipe,
                              int which, const clattn__tile *tile, search_notes *notes)
{
    clattn__program *program;
    const clattn_status status =
        clattn__program_get(&program, plan->context, path->name, recipe, tile, &plan->shape);
    if (status == CLATTN_SUCCESS)
        plan->program[which] = program;
    if (status != CLATTN_COMPILE_FAILED)
        return status;
    /* The caller's functions may be to blame. */
    if (plan->has_score_mod || plan->has_mask_mod) {
        notes->is_final = 1;
        FORWARD_IF_ERROR(clattn__mods_check(plan->context, plan->shape.score_mod, plan->shape.mask_mod));
        notes->is_final = 0;
    }
    char reason[320];
    snprintf(reason, sizeof reason, "; %s %s passed over: %s", path->name, tile->label, program->reason);
    append(notes->passed_over, sizeof notes->passed_over, reason);
    notes->build_log = program->build_log;
    return CLATTN_COMPILE_FAILED;
}

/* The tuned tile, or else the first that builds and fits; COMPILE_FAILED if none does. */
static clattn_status choose_tile(clattn_plan *plan, const clattn__path *path, const clattn__recipe *recipe,
                                 int which, search_notes *notes)
{
    const int is_tunable = recipe == &path->recipe[which];
    const int tuned = is_tunable ? clattn__tuned_index(plan->context, path, which, &plan->shape) : -1;
    clattn__tile tile;
    clattn_status status = CLATTN_COMPILE_FAILED;
    plan->is_tuned[which] = 0;
    if (tuned >= 0 && recipe->tile(&tile, &plan->context->device, &plan->shape, tuned)) {
        status = try_tile(plan, path, recipe, which, &tile, notes);
        plan->is_tuned[which] = status == CLATTN_SUCCESS;
    }
    for (int i = 0; status == CLATTN_COMPILE_FAILED && !notes->is_final &&
                    recipe->tile(&tile, &plan->context->device, &plan->shape, i);
         i++)
        if (i != tuned)
            status = try_tile(plan, path, recipe, which, &tile, notes);
    return status;
}

/* A path is taken with all that the plan's phase needs or not at all. The program for few rows only makes it
 * faster. */
static clattn_status choose_tiles(clattn_plan *plan, const clattn__path *path, search_notes *notes)
{
    memset(plan->program, 0, sizeof plan->program);
    for (int i = 0; i < CLATTN__PROGRAMS; i++) {
        const int is_optional = i == CLATTN__DECODE_FEW;
        if (!clattn__plan_wants(&plan->desc, i) || (is_optional && path->recipe[i].tile == NULL))
            continue;
        clattn_status status = choose_tile(plan, path, &path->recipe[i], i, notes);
        if (is_optional && status == CLATTN_COMPILE_FAILED && !notes->is_final &&
            path->few_otherwise.tile != NULL)
            status = choose_tile(plan, path, &path->few_otherwise, i, notes);
        if (status != CLATTN_SUCCESS && !(is_optional && status == CLATTN_COMPILE_FAILED && !notes->is_final))
            return status;
    }
    return CLATTN_SUCCESS;
}

static clattn_status choose_path(clattn_plan *plan)
{
    const clattn__log *log = &plan->context->log;
    search_notes notes = {"", NULL, 0};
    for (int i = 0; path_at(&plan->desc, i) != NULL; i++) {
        const clattn__path *path = path_at(&plan->desc, i);
        const char *why;
        if (!path_fits(path, plan->context, &plan->desc, &plan->shape, &why)) {
            char reason[160];
            snprintf(reason, sizeof reason, "; %s passed over: %s", path->name, why);
            append(notes.passed_over, sizeof notes.passed_over, reason);
            continue;
        }
        const clattn_status status = choose_tiles(plan, path, &notes);
        if (status == CLATTN_SUCCESS && plan->desc.operation == CLATTN_OPERATION_FORWARD)
            describe(plan, notes.passed_over);
        else if (status == CLATTN_SUCCESS)
            describe_operation(plan);
        if (status != CLATTN_COMPILE_FAILED || notes.is_final)
            return status;
    }
    if (notes.build_log != NULL)
        clattn__say_text(log, CLATTN_LOG_ERROR, notes.build_log);
    return clattn__fail(log, CLATTN_COMPILE_FAILED, "clattn_plan_create: nothing built%s", notes.passed_over);
}

/* Tiles of the program for few rows that are still better than one tile for many: each reads K and V again,
 * but from a cache. (H200, 4 heads a group, 16 x 8192 keys, ms a call: one tile 0.17, two 0.27; one for many
 * 0.54.) */
enum { MOST_FEW_TILES = 4 };

/* For a batch-invariant plan it is always the same one. */
clattn__program *clattn__program_of_call(const clattn_plan *plan, int64_t q_len)
{
    const int is_both = plan->desc.phase == CLATTN_PHASE_BOTH;
    const int is_invariant = (plan->desc.features & CLATTN_FEATURE_BATCH_INVARIANT) != 0;
    clattn__program *few = plan->program[CLATTN__DECODE_FEW];
    if (plan->desc.phase == CLATTN_PHASE_PREFILL ||
        (is_both && q_len > plan->program[CLATTN__DECODE]->tile.longest_q))
        return plan->program[CLATTN__PREFILL];
    const int64_t rows = q_len * (plan->desc.heads_q / plan->desc.heads_kv);
    if (few != NULL && (is_invariant || rows <= MOST_FEW_TILES * (int64_t)few->tile.block_q))
        return few;
    return plan->program[CLATTN__DECODE];
}

clattn_status clattn_plan_create(clattn_plan **out, clattn_context *context, const clattn_plan_desc *given)
{
    clattn_plan_desc desc;
    if (out != NULL)
        *out = NULL;
    if (context == NULL)
        return CLATTN_INVALID_ARGUMENT;
    RETURN_ERROR_IF(out == NULL, &context->log, CLATTN_INVALID_ARGUMENT, "clattn_plan_create: out is NULL");
    FORWARD_IF_ERROR(read_desc(&desc, given, &context->log, "clattn_plan_create"));
    const clattn__kernel_shape shape = shape_of(&desc);
    FORWARD_IF_ERROR(check_supported(context, &desc, &shape, &context->log, "clattn_plan_create"));

    clattn_plan *plan = clattn__allocate(&context->allocator, sizeof *plan);
    RETURN_ERROR_IF(plan == NULL, &context->log, CLATTN_OUT_OF_HOST_MEMORY,
                    "clattn_plan_create: out of host memory");
    plan->context = context;
    plan->desc = desc;
    plan->shape = shape;
    plan->has_score_mod = desc.score_mod != NULL;
    plan->has_mask_mod = desc.mask_mod != NULL;
    const clattn_status status = choose_path(plan);
    if (status != CLATTN_SUCCESS) {
        clattn__release(&context->allocator, plan);
        return status;
    }
    plan->desc.score_mod = plan->desc.mask_mod = NULL;
    plan->shape.score_mod = plan->shape.mask_mod = NULL;
    clattn__context_retain(context);
    clattn__say(&context->log, CLATTN_LOG_INFO, "%s", plan->description);
    *out = plan;
    return CLATTN_SUCCESS;
}

void clattn_plan_release(clattn_plan *plan)
{
    if (plan == NULL)
        return;
    clattn_context *context = plan->context;
    clattn__release(&context->allocator, plan);
    clattn_context_release(context);
}

/* ---- What a plan says of itself ---- */

clattn_status clattn_plan_describe(const clattn_plan *plan, char *text, size_t capacity, size_t *needed)
{
    if (plan == NULL)
        return CLATTN_INVALID_ARGUMENT;
    const clattn__log *log = &plan->context->log;
    RETURN_ERROR_IF(text == NULL && capacity > 0, log, CLATTN_INVALID_ARGUMENT,
                    "clattn_plan_describe: text is NULL and capacity is %llu", (unsigned long long)capacity);
    const size_t size = strlen(plan->description) + 1;
    if (needed != NULL)
        *needed = size;
    if (capacity > 0)
        snprintf(text, capacity, "%s", plan->description);
    const int is_size_query = capacity == 0 && needed != NULL;
    RETURN_ERROR_IF(capacity < size && !is_size_query, log, CLATTN_BUFFER_TOO_SMALL,
                    "clattn_plan_describe: capacity = %llu; expected at least %llu",
                    (unsigned long long)capacity, (unsigned long long)size);
    return CLATTN_SUCCESS;
}

clattn_status clattn_plan_source(const clattn_plan *plan, const char **source, const char **options)
{
    if (plan == NULL)
        return CLATTN_INVALID_ARGUMENT;
    RETURN_ERROR_IF(source == NULL || options == NULL, &plan->context->log, CLATTN_INVALID_ARGUMENT,
                    "clattn_plan_source: %s is NULL", source == NULL ? "source" : "options");
    const clattn__program *program =
        plan->program[plan->program[CLATTN__PREFILL] == NULL ? CLATTN__DECODE : CLATTN__PREFILL];
    *source = program->source;
    *options = program->options;
    return CLATTN_SUCCESS;
}
