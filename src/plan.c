#include "plan.h"

#include "dtype.h"
#include "mods.h"

#include <stdio.h>
#include <string.h>

#define ALL_FEATURES ((CLATTN_FEATURE_LSE_BASE_2 << 1) - 1)

/* Those that change single scores. */
#define SCORE_FEATURES                                                                           \
    (CLATTN_FEATURE_SOFTCAP | CLATTN_FEATURE_BIAS | CLATTN_FEATURE_MASK | CLATTN_FEATURE_ALIBI | \
     CLATTN_FEATURE_KEY_TILES)

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
    DEFAULT(heads_kv, desc->heads_q)
    DEFAULT(head_dim_v, desc->head_dim_qk)
#undef DEFAULT
}

static clattn_status check_dtype(const clattn__log *log, const char *where, const char *name, int32_t dtype)
{
    RETURN_ERROR_IF(dtype < CLATTN_DTYPE_F32 || dtype > CLATTN_DTYPE_BF16, log, CLATTN_INVALID_ARGUMENT,
                    "%s: %s = %d; expected CLATTN_DTYPE_F32 (1), F16 (2) or BF16 (3)", where, name,
                    (int)dtype);
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
    FORWARD_IF_ERROR(check_needs(log, where, desc, CLATTN_FEATURE_LSE_BASE_2, "LSE_BASE_2", has_lse,
                                 "CLATTN_FEATURE_LSE"));
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

static clattn_status read_desc(clattn_plan_desc *out, const clattn_plan_desc *given, const clattn__log *log,
                               const char *where)
{
    RETURN_ERROR_IF(given == NULL, log, CLATTN_INVALID_ARGUMENT, "%s: desc is NULL", where);
    FORWARD_IF_ERROR(clattn__read_struct(
        out, sizeof *out, given, offsetof(clattn_plan_desc, path) + sizeof out->path, where, "desc", log));
    fill_defaults(out);
    RETURN_ERROR_IF(out->phase != CLATTN_PHASE_PREFILL, log, CLATTN_INVALID_ARGUMENT,
                    "%s: phase = %d; expected CLATTN_PHASE_PREFILL (0)", where, (int)out->phase);
    FORWARD_IF_ERROR(check_dtype(log, where, "dtype_q", out->dtype_q));
    FORWARD_IF_ERROR(check_dtype(log, where, "dtype_k", out->dtype_k));
    FORWARD_IF_ERROR(check_dtype(log, where, "dtype_v", out->dtype_v));
    FORWARD_IF_ERROR(check_dtype(log, where, "dtype_o", out->dtype_o));
    FORWARD_IF_ERROR(check_dtype(log, where, "dtype_bias", out->dtype_bias));
    FORWARD_IF_ERROR(check_range(log, where, "heads_q", out->heads_q, 1, MAX_HEADS));
    FORWARD_IF_ERROR(check_range(log, where, "heads_kv", out->heads_kv, 1, out->heads_q));
    RETURN_ERROR_IF(out->heads_q % out->heads_kv != 0, log, CLATTN_INVALID_ARGUMENT,
                    "%s: heads_q = %d; expected a multiple of heads_kv = %d", where, (int)out->heads_q,
                    (int)out->heads_kv);
    FORWARD_IF_ERROR(check_range(log, where, "head_dim_qk", out->head_dim_qk, 1, CLATTN_MAX_HEAD_DIM));
    FORWARD_IF_ERROR(check_range(log, where, "head_dim_v", out->head_dim_v, 1, CLATTN_MAX_HEAD_DIM));
    RETURN_ERROR_IF((out->features & ~ALL_FEATURES) != 0, log, CLATTN_UNSUPPORTED,
                    "%s: features = 0x%x; bits 0x%x are not offered by this version", where,
                    (unsigned)out->features, (unsigned)(out->features & ~ALL_FEATURES));
    FORWARD_IF_ERROR(check_range(log, where, "position_mode", out->position_mode,
                                 CLATTN_POSITION_BOTTOM_RIGHT, CLATTN_POSITION_EXPLICIT));
    FORWARD_IF_ERROR(check_range(log, where, "path", out->path, CLATTN_PATH_AUTO, CLATTN_PATH_CPU));
    return check_parts(log, where, out);
}

static clattn__kernel_shape shape_of(const clattn_plan_desc *desc)
{
    const int full =
        (desc->features & SCORE_FEATURES) != 0 || desc->score_mod != NULL || desc->mask_mod != NULL;
    const clattn__kernel_shape shape = {
        desc->dtype_q,
        desc->dtype_k,
        desc->dtype_v,
        desc->dtype_o,
        (desc->features & CLATTN_FEATURE_BIAS) != 0 ? desc->dtype_bias : CLATTN_DTYPE_F32,
        clattn__head_dim_class(desc->head_dim_qk),
        clattn__head_dim_class(desc->head_dim_v),
        full,
        desc->score_mod,
        desc->mask_mod,
    };
    return shape;
}

/* ---- Choice of path ---- */

/* The path at `index` of the table, if it is asked for or free to be chosen, runs on the device and has a
 * tile that fits; otherwise *why. */
static int path_fits(const clattn__path *path, const clattn_context *context, const clattn_plan_desc *desc,
                     const clattn__kernel_shape *shape, const char **why)
{
    clattn__tile tile;
    if (desc->path != CLATTN_PATH_AUTO && desc->path != path->id) {
        *why = "another one was asked for";
        return 0;
    }
    if (!path->applies(&context->device, why))
        return 0;
    *why = "no tile fits the device's local memory and work-group size";
    return path->tile(&tile, &context->device, shape, 0);
}

static clattn_status check_supported(const clattn_context *context, const clattn_plan_desc *desc,
                                     const clattn__kernel_shape *shape, const clattn__log *log,
                                     const char *where)
{
    const char *why = "";
    for (int i = 0; clattn__path_at(i) != NULL; i++)
        if (path_fits(clattn__path_at(i), context, desc, shape, &why))
            return CLATTN_SUCCESS;
        else if (desc->path == clattn__path_at(i)->id)
            return clattn__fail(log, CLATTN_UNSUPPORTED, "%s: path %s does not apply: %s", where,
                                clattn__path_at(i)->name, why);
    return clattn__fail(log, CLATTN_UNSUPPORTED,
                        "%s: no path applies to %s (%llu bytes of local memory, work-groups of %llu)", where,
                        context->device.name, (unsigned long long)context->device.local_bytes,
                        (unsigned long long)context->device.max_work_group);
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

static void describe(clattn_plan *plan, const char *passed_over)
{
    const clattn_plan_desc *desc = &plan->desc;
    const clattn__tile *tile = &plan->program->tile;
    const char *scores = plan->has_score_mod && plan->has_mask_mod ? "full with score_mod and mask_mod"
                         : plan->has_score_mod                     ? "full with score_mod"
                         : plan->has_mask_mod                      ? "full with mask_mod"
                         : plan->shape.score_full                  ? "full"
                                                                   : "lean";
    snprintf(plan->description, sizeof plan->description,
             "%s: tiles %s, %d work-item%s, %.1f KiB local memory; q %s, k %s, v %s, o %s; head dims "
             "%d/%d compiled as %d/%d; scores %s%s",
             plan->program->path->name, tile->label, (int)tile->work_items, tile->work_items == 1 ? "" : "s",
             (double)tile->local_bytes / 1024.0, clattn__dtype_of(desc->dtype_q)->name,
             clattn__dtype_of(desc->dtype_k)->name, clattn__dtype_of(desc->dtype_v)->name,
             clattn__dtype_of(desc->dtype_o)->name, (int)desc->head_dim_qk, (int)desc->head_dim_v,
             (int)plan->shape.dim_qk_class, (int)plan->shape.dim_v_class, scores, passed_over);
}

/* The first tile of the path that builds and fits; COMPILE_FAILED if none does. *is_final: then no other path
 * will do either, and the reason has been said. */
static clattn_status choose_tile(clattn_plan *plan, const clattn__path *path, char *passed_over,
                                 size_t capacity, const char **build_log, int *is_final)
{
    clattn__tile tile;
    for (int i = 0; path->tile(&tile, &plan->context->device, &plan->shape, i); i++) {
        clattn__program *program;
        const clattn_status status = clattn__program_get(&program, plan->context, path, &tile, &plan->shape);
        if (status == CLATTN_SUCCESS) {
            plan->program = program;
            return CLATTN_SUCCESS;
        }
        if (status != CLATTN_COMPILE_FAILED)
            return status;
        /* The caller's functions may be to blame. */
        if (plan->has_score_mod || plan->has_mask_mod) {
            *is_final = 1;
            FORWARD_IF_ERROR(clattn__mods_check(plan->context, plan->shape.score_mod, plan->shape.mask_mod));
            *is_final = 0;
        }
        char reason[320];
        snprintf(reason, sizeof reason, "; %s %s passed over: %s", path->name, tile.label, program->reason);
        append(passed_over, capacity, reason);
        *build_log = program->build_log;
    }
    return CLATTN_COMPILE_FAILED;
}

static clattn_status choose_path(clattn_plan *plan)
{
    const clattn__log *log = &plan->context->log;
    char passed_over[600] = "";
    const char *build_log = NULL;
    for (int i = 0; clattn__path_at(i) != NULL; i++) {
        const clattn__path *path = clattn__path_at(i);
        const char *why;
        if (!path_fits(path, plan->context, &plan->desc, &plan->shape, &why)) {
            char reason[160];
            snprintf(reason, sizeof reason, "; %s passed over: %s", path->name, why);
            append(passed_over, sizeof passed_over, reason);
            continue;
        }
        int is_final = 0;
        const clattn_status status =
            choose_tile(plan, path, passed_over, sizeof passed_over, &build_log, &is_final);
        if (status == CLATTN_SUCCESS)
            describe(plan, passed_over);
        if (status != CLATTN_COMPILE_FAILED || is_final)
            return status;
    }
    if (build_log != NULL)
        clattn__say_text(log, CLATTN_LOG_ERROR, build_log);
    return clattn__fail(log, CLATTN_COMPILE_FAILED, "clattn_plan_create: nothing built%s", passed_over);
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
    *source = plan->program->source;
    *options = plan->program->options;
    return CLATTN_SUCCESS;
}
