#include "program.h"

#include "binary.h"
#include "cache_entry.h"
#include "emit.h"
#include "hash.h"
#include "mods.h"
#include "ptx_route.h"
#include "self_test.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define WHERE "clattn_plan_create"

/* ---- Text ---- */

static clattn_status make_options(char **out, clattn_context *context, const clattn__recipe *recipe,
                                  const clattn__tile *tile, const clattn__kernel_shape *shape)
{
    const size_t capacity = 320 + sizeof tile->options;
    char *text = clattn__allocate(&context->allocator, capacity);
    RETURN_ERROR_IF(text == NULL, &context->log, CLATTN_OUT_OF_HOST_MEMORY, WHERE ": out of host memory");
    snprintf(text, capacity,
             CLATTN__LANGUAGE_OPTION " -DQ_TYPE=%d -DK_TYPE=%d -DV_TYPE=%d -DO_TYPE=%d -DBIAS_TYPE=%d "
                                     "-DHEAD_DIM_QK=%d -DHEAD_DIM_V=%d -DSCORE_FULL=%d -DPAGE_SIZE=%d "
                                     "-DV_IN_K=%d -DHAS_STATUS=%d -DSCORE_FORMULA=%d %s",
             (int)shape->dtype_q, (int)shape->dtype_k, (int)shape->dtype_v, (int)shape->dtype_o,
             (int)shape->dtype_bias, (int)shape->dim_qk_class, (int)shape->dim_v_class,
             clattn__score_full(recipe, shape), (int)shape->page_size, (int)shape->v_in_k,
             (int)shape->has_status, clattn__formula(recipe, shape), tile->options);
    *out = text;
    return CLATTN_SUCCESS;
}

/* A #line directive before each piece, so that a vendor's build log names the true file and line. */
static clattn_status make_source(char **out, clattn_context *context, const clattn__recipe *recipe,
                                 const clattn__kernel_shape *shape)
{
    char *mods = clattn__mods_source(&context->allocator, shape->score_mod, shape->mask_mod);
    RETURN_ERROR_IF(mods == NULL, &context->log, CLATTN_OUT_OF_HOST_MEMORY, WHERE ": out of host memory");
    size_t capacity = strlen(mods) + 1;
    for (const clattn__piece *piece = recipe->pieces; piece->name != NULL; piece++)
        capacity += *piece->size + strlen(piece->name) + 16;
    char *text = clattn__allocate(&context->allocator, capacity);
    if (text == NULL) {
        clattn__release(&context->allocator, mods);
        return clattn__fail(&context->log, CLATTN_OUT_OF_HOST_MEMORY, WHERE ": out of host memory");
    }
    char *end = text + sprintf(text, "%s", mods);
    clattn__release(&context->allocator, mods);
    for (const clattn__piece *piece = recipe->pieces; piece->name != NULL; piece++) {
        end += sprintf(end, "#line 1 \"%s\"\n", piece->name);
        memcpy(end, piece->text, *piece->size);
        end += *piece->size;
    }
    *end = '\0';
    *out = text;
    return CLATTN_SUCCESS;
}

static void make_key(char *out, size_t capacity, const clattn__device *device, const char *source,
                     const char *options)
{
    const uint32_t version = CLATTN_VERSION;
    const char *texts[] = {source,         options,         device->platform, device->name,
                           device->vendor, device->version, device->driver};
    uint64_t hash[2] = {CLATTN__HASH_START, CLATTN__HASH_START ^ UINT64_C(0x9e3779b97f4a7c15)};
    for (int half = 0; half < 2; half++) {
        hash[half] = clattn__hash(hash[half], &version, sizeof version);
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
            hash[half] = clattn__hash(hash[half], texts[i], strlen(texts[i]) + 1);
    }
    snprintf(out, capacity, "%016llx%016llx", (unsigned long long)hash[0], (unsigned long long)hash[1]);
}

/* ---- Building ---- */

static const char *kernel_name(const clattn__program *program, int kernel)
{
    if ((kernel == CLATTN__KERNEL_TILES && !clattn__score_full(program->recipe, &program->shape)) ||
        (kernel == CLATTN__KERNEL_CHECK && !program->shape.has_status))
        return NULL;
    return program->recipe->kernel[kernel];
}

size_t clattn__work_items(const clattn__program *program, int kernel)
{
    const int is_tiled = kernel == CLATTN__KERNEL_ANY || kernel == CLATTN__KERNEL_ALIGNED;
    return is_tiled ? (size_t)program->tile.work_items : CLATTN__FLAT_WORK_ITEMS;
}

static void release_objects(clattn__program *program, clattn_context *context)
{
    for (int kernel = 0; kernel < CLATTN__KERNELS; kernel++)
        for (int i = 0; i < CLATTN__INSTANCES; i++) {
            clattn__instance *instance = &program->instance[kernel][i];
            if (instance->kernel != NULL)
                context->cl.clReleaseKernel(instance->kernel);
            memset(instance, 0, sizeof *instance);
        }
    if (program->program != NULL)
        context->cl.clReleaseProgram(program->program);
    program->program = NULL;
}

static void keep_build_log(clattn__program *program, clattn_context *context)
{
    size_t size = 0;
    clattn__release(&context->allocator, program->build_log);
    program->build_log = NULL;
    if (context->cl.clGetProgramBuildInfo(program->program, context->device_id, CL_PROGRAM_BUILD_LOG, 0, NULL,
                                          &size) != CL_SUCCESS ||
        size <= 1 || /* the terminator alone */
        (program->build_log = clattn__allocate(&context->allocator, size + 1)) == NULL)
        return;
    context->cl.clGetProgramBuildInfo(program->program, context->device_id, CL_PROGRAM_BUILD_LOG, size,
                                      program->build_log, NULL);
    clattn__say_text(&program->log, CLATTN_LOG_INFO, program->build_log);
}

/* The tile asks more than the driver grants: the next row of the table may do. */
static clattn_status tile_fails(clattn__program *program, const char *reason)
{
    snprintf(program->reason, sizeof program->reason, "%s", reason);
    clattn__say(&program->log, CLATTN_LOG_INFO, "%s, %s: %s", program->path, program->tile.label, reason);
    return CLATTN_COMPILE_FAILED;
}

static clattn_status build(clattn__program *program, clattn_context *context, const char *options)
{
    const double start = clattn__seconds();
    const cl_int code =
        context->cl.clBuildProgram(program->program, 1, &context->device_id, options, NULL, NULL);
    if (code == CL_BUILD_PROGRAM_FAILURE) {
        keep_build_log(program, context);
        return tile_fails(program, "does not build");
    }
    FORWARD_IF_CL_ERROR(&program->log, WHERE, "clBuildProgram", code);
    clattn__say(&program->log, CLATTN_LOG_INFO, "%s, %s: built in %.0f ms", program->path,
                program->tile.label, 1e3 * (clattn__seconds() - start));
    return CLATTN_SUCCESS;
}

static clattn_status create_instances(clattn__program *program, clattn_context *context)
{
    for (int kernel = 0; kernel < CLATTN__KERNELS; kernel++) {
        if (kernel_name(program, kernel) == NULL)
            continue;
        for (int i = 0; i < CLATTN__INSTANCES; i++) {
            cl_int code = CL_SUCCESS;
            program->instance[kernel][i].kernel =
                clattn__instance_create(program, &context->cl, kernel, &code);
            FORWARD_IF_CL_ERROR(&program->log, WHERE, "clCreateKernel", code);
        }
        program->free_instances[kernel] = (1u << CLATTN__INSTANCES) - 1;
    }
    return CLATTN_SUCCESS;
}

/* What the table estimated, the built kernel says exactly. */
static clattn_status check_limits(clattn__program *program, clattn_context *context)
{
    for (int kernel = 0; kernel < CLATTN__KERNELS; kernel++) {
        const cl_kernel instance = program->instance[kernel][0].kernel;
        size_t work_items = 0;
        cl_ulong local = 0;
        char reason[120];
        if (instance == NULL)
            continue;
        FORWARD_IF_CL_ERROR(&program->log, WHERE, "clGetKernelWorkGroupInfo",
                            context->cl.clGetKernelWorkGroupInfo(instance, context->device_id,
                                                                 CL_KERNEL_WORK_GROUP_SIZE, sizeof work_items,
                                                                 &work_items, NULL));
        FORWARD_IF_CL_ERROR(&program->log, WHERE, "clGetKernelWorkGroupInfo",
                            context->cl.clGetKernelWorkGroupInfo(instance, context->device_id,
                                                                 CL_KERNEL_LOCAL_MEM_SIZE, sizeof local,
                                                                 &local, NULL));
        /* Of kernels that share registers out anew the driver counts those that work-items end with. */
        const int knows_work_items = program->recipe->hidden_statements == 0;
        if (knows_work_items && work_items < clattn__work_items(program, kernel)) {
            snprintf(reason, sizeof reason, "%d work-items, the built kernel runs with %d",
                     (int)clattn__work_items(program, kernel), (int)work_items);
            return tile_fails(program, reason);
        }
        if (local > context->device.local_bytes) {
            snprintf(reason, sizeof reason, "%llu bytes of local memory, the device has %llu",
                     (unsigned long long)local, (unsigned long long)context->device.local_bytes);
            return tile_fails(program, reason);
        }
    }
    return CLATTN_SUCCESS;
}

/* Drivers finish compiling at the first enqueue (PoCL 3.1 does): so that comes here, on a queue of ours. */
static clattn_status warm_up(clattn__program *program, clattn_context *context)
{
    enum { MOST_BUFFERS = 32, MOST_ARGS = 1024 };
    const clattn__recipe *recipe = program->recipe;
    const clattn__memory none[MOST_BUFFERS] = {{CLATTN_MEM_BUFFER, NULL}};
    const char *failed = NULL;
    const uint64_t nothing[MOST_ARGS / sizeof(uint64_t)] = {0};
    assert(recipe->num_buffers <= MOST_BUFFERS && recipe->args_bytes <= MOST_ARGS);
    for (int kernel = 0; kernel < CLATTN__KERNELS; kernel++) {
        clattn__instance *instance = &program->instance[kernel][0];
        clattn__emitter emitter = clattn__emit_to_queue(&context->cl, context->warm_queue, 0, NULL, 0);
        if (instance->kernel == NULL)
            continue;
        cl_int code = clattn__set_arguments(&context->cl, instance, none, recipe->num_buffers, nothing,
                                            recipe->args_bytes, &failed);
        FORWARD_IF_CL_ERROR(&program->log, WHERE, failed, code);
        code =
            clattn__emit_kernel(&emitter, instance->kernel, clattn__work_items(program, kernel), 1, &failed);
        clattn__emit_abandon(&emitter);
        if (code == CL_OUT_OF_RESOURCES || code == CL_INVALID_WORK_GROUP_SIZE)
            return tile_fails(program, clattn_status_string(code));
        FORWARD_IF_CL_ERROR(&program->log, WHERE, failed, code);
        FORWARD_IF_CL_ERROR(&program->log, WHERE, "clFinish", context->cl.clFinish(context->warm_queue));
    }
    return CLATTN_SUCCESS;
}

static clattn_status finish_build(clattn__program *program, clattn_context *context)
{
    const int is_uncovered = program->recipe->hidden_statements > 0;
    FORWARD_IF_ERROR(build(program, context, is_uncovered ? CLATTN__PTX_OPTIONS : program->options));
    FORWARD_IF_ERROR(create_instances(program, context));
    FORWARD_IF_ERROR(check_limits(program, context));
    return warm_up(program, context);
}

/* In the place of a binary: what was found wrong with one that had to be verified. */
static const char REFUSED[] = "refused: ";

static void save_refusal(clattn__program *program, clattn_context *context)
{
    char text[sizeof REFUSED + sizeof program->reason];
    const int size = snprintf(text, sizeof text, "%s%s", REFUSED, program->reason);
    clattn__cache_store(context, program->key, (const unsigned char *)text, (size_t)size);
}

/* Whether the cache has that; then it is said again. */
static int take_refusal(clattn__program *program, const unsigned char *text, size_t size)
{
    char reason[sizeof program->reason];
    const size_t head = sizeof REFUSED - 1;
    if (program->recipe->hidden_statements == 0 || size < head || memcmp(text, REFUSED, head) != 0)
        return 0;
    snprintf(reason, sizeof reason, "%.*s", (int)(size - head), (const char *)text + head);
    tile_fails(program, reason);
    return 1;
}

/* Whether the cache had a binary that the driver takes, or says that none will do: *status. */
static int load_from_cache(clattn__program *program, clattn_context *context, clattn_status *status)
{
    void *entry;
    size_t size;
    cl_int code = CL_SUCCESS, taken = CL_SUCCESS;
    const unsigned char *binary = clattn__cache_load(context, program->key, &entry, &size);
    *status = CLATTN_SUCCESS;
    if (binary == NULL)
        return 0;
    if (take_refusal(program, binary, size)) {
        clattn__release(&context->allocator, entry);
        *status = CLATTN_COMPILE_FAILED;
        return 1;
    }
    program->program = context->cl.clCreateProgramWithBinary(context->cl_context, 1, &context->device_id,
                                                             &size, &binary, &taken, &code);
    clattn__release(&context->allocator, entry);
    /* A refusal is no error of the call: the program is built from source instead. */
    program->log.write = NULL;
    const int done =
        code == CL_SUCCESS && taken == CL_SUCCESS && finish_build(program, context) == CLATTN_SUCCESS;
    program->log = context->log;
    if (!done) {
        release_objects(program, context);
        clattn__say(&program->log, CLATTN_LOG_INFO, "cached binary %s was refused: rebuilding", program->key);
    }
    return done;
}

static void save_to_cache(clattn__program *program, clattn_context *context)
{
    size_t size = 0;
    if (context->cache.store == NULL)
        return;
    unsigned char *binary = clattn__binary_of(context, program->program, &size);
    if (binary != NULL)
        clattn__cache_store(context, program->key, binary, size);
    clattn__release(&context->allocator, binary);
}

static clattn_status refuse(clattn__program *program, clattn_context *context, const char *reason)
{
    tile_fails(program, reason);
    save_refusal(program, context);
    return CLATTN_COMPILE_FAILED;
}

/* Instead of what the driver compiles from source, the program with its hidden statements shown. */
static clattn_status uncover(clattn__program *program, clattn_context *context)
{
    const clattn__ptx_wish wish = {program->recipe->hidden_statements, program->tile.work_items,
                                   program->tile.registers};
    char reason[120] = "";
    cl_program uncovered = NULL;
    FORWARD_IF_ERROR(build(program, context, program->options));
    const clattn_status status =
        clattn__ptx_uncover(&uncovered, context, program->program, &wish, reason, sizeof reason);
    context->cl.clReleaseProgram(program->program);
    program->program = uncovered;
    return status == CLATTN_COMPILE_FAILED ? refuse(program, context, reason) : status;
}

static clattn_status verify(clattn__program *program, clattn_context *context)
{
    char reason[120] = "";
    if (!clattn__ptx_is_sound(context, program->program, reason, sizeof reason))
        return refuse(program, context, reason);
    const clattn_status status = clattn__self_test(program, context, reason, sizeof reason);
    return status == CLATTN_COMPILE_FAILED ? refuse(program, context, reason) : status;
}

static clattn_status build_from_source(clattn__program *program, clattn_context *context)
{
    const char *text = program->source;
    cl_int code = CL_SUCCESS;
    program->program = context->cl.clCreateProgramWithSource(context->cl_context, 1, &text, NULL, &code);
    FORWARD_IF_CL_ERROR(&program->log, WHERE, "clCreateProgramWithSource", code);
    if (program->recipe->hidden_statements > 0)
        FORWARD_IF_ERROR(uncover(program, context));
    FORWARD_IF_ERROR(finish_build(program, context));
    if (program->recipe->hidden_statements > 0)
        FORWARD_IF_ERROR(verify(program, context));
    save_to_cache(program, context);
    return CLATTN_SUCCESS;
}

/* ---- The list of a context's programs ---- */

static void program_destroy(clattn__program *program, clattn_context *context)
{
    release_objects(program, context);
    clattn__condition_destroy(&program->instance_returned);
    clattn__mutex_destroy(&program->mutex);
    clattn__release(&context->allocator, program->build_log);
    clattn__release(&context->allocator, program->source);
    clattn__release(&context->allocator, program->options);
    clattn__release(&context->allocator, program);
}

static clattn_status program_new(clattn__program **out, clattn_context *context, const char *path,
                                 const clattn__recipe *recipe, const clattn__tile *tile,
                                 const clattn__kernel_shape *shape)
{
    clattn__program *program = clattn__allocate(&context->allocator, sizeof *program);
    RETURN_ERROR_IF(program == NULL, &context->log, CLATTN_OUT_OF_HOST_MEMORY, WHERE ": out of host memory");
    if (clattn__mutex_init(&program->mutex) != 0 ||
        clattn__condition_init(&program->instance_returned) != 0) {
        clattn__release(&context->allocator, program);
        return clattn__fail(&context->log, CLATTN_OUT_OF_HOST_MEMORY, WHERE ": no lock could be made");
    }
    program->log = context->log;
    program->path = path;
    program->recipe = recipe;
    program->tile = *tile;
    program->shape = *shape;
    program->shape.score_mod = program->shape.mask_mod = NULL;
    clattn_status status = make_options(&program->options, context, recipe, tile, shape);
    if (status == CLATTN_SUCCESS)
        status = make_source(&program->source, context, recipe, shape);
    if (status != CLATTN_SUCCESS) {
        program_destroy(program, context);
        return status;
    }
    make_key(program->key, sizeof program->key, &context->device, program->source, program->options);
    *out = program;
    return CLATTN_SUCCESS;
}

/* With the context's mutex held: the listed program of the same key, or `fresh`, now listed. */
static clattn__program *find_or_list(clattn_context *context, clattn__program *fresh)
{
    for (clattn__program *program = context->programs; program != NULL; program = program->next)
        if (strcmp(program->key, fresh->key) == 0)
            return program;
    fresh->next = context->programs;
    context->programs = fresh;
    return fresh;
}

clattn_status clattn__program_get(clattn__program **out, clattn_context *context, const char *path,
                                  const clattn__recipe *recipe, const clattn__tile *tile,
                                  const clattn__kernel_shape *shape)
{
    clattn__program *fresh = NULL;
    FORWARD_IF_ERROR(program_new(&fresh, context, path, recipe, tile, shape));

    clattn__mutex_lock(&context->mutex);
    clattn__program *program = find_or_list(context, fresh);
    int waited = 0;
    while (program->state == CLATTN__BUILDING) {
        clattn__condition_wait(&context->program_settled, &context->mutex);
        waited = 1;
    }
    /* A failure that is the tile's is final; any other (out of memory, say) is tried again by the next
     * who asks, but not by those who waited for it. */
    const int build_here = program->state == CLATTN__NEW || (program->state == CLATTN__FAILED && !waited &&
                                                             program->status != CLATTN_COMPILE_FAILED);
    clattn_status status = program->status;
    if (build_here)
        program->state = CLATTN__BUILDING;
    clattn__mutex_unlock(&context->mutex);
    if (program != fresh)
        program_destroy(fresh, context);

    if (build_here) { /* without any lock: it takes seconds */
        const double start = clattn__seconds();
        const int is_settled = load_from_cache(program, context, &status);
        if (!is_settled)
            status = build_from_source(program, context);
        if (status != CLATTN_SUCCESS)
            release_objects(program, context);
        clattn__mutex_lock(&context->mutex);
        context->builds.loaded += status == CLATTN_SUCCESS && is_settled;
        context->builds.compiled += status == CLATTN_SUCCESS && !is_settled;
        context->builds.microseconds += (uint64_t)(1e6 * (clattn__seconds() - start));
        program->status = status;
        program->state = status == CLATTN_SUCCESS ? CLATTN__READY : CLATTN__FAILED;
        clattn__condition_wake_all(&context->program_settled);
        clattn__mutex_unlock(&context->mutex);
    }
    *out = program;
    return status;
}

void clattn__programs_release(clattn_context *context)
{
    while (context->programs != NULL) {
        clattn__program *program = context->programs;
        context->programs = program->next;
        program_destroy(program, context);
    }
}

/* ---- Instances ---- */

clattn__instance *clattn__instance_take(clattn__program *program, int kernel)
{
    clattn__mutex_lock(&program->mutex);
    while (program->free_instances[kernel] == 0)
        clattn__condition_wait(&program->instance_returned, &program->mutex);
    int i = 0;
    while ((program->free_instances[kernel] >> i & 1) == 0)
        i++;
    program->free_instances[kernel] &= ~(1u << i);
    clattn__mutex_unlock(&program->mutex);
    return &program->instance[kernel][i];
}

void clattn__instance_return(clattn__program *program, int kernel, const clattn__instance *instance)
{
    clattn__mutex_lock(&program->mutex);
    for (int i = 0; i < CLATTN__INSTANCES; i++)
        if (&program->instance[kernel][i] == instance)
            program->free_instances[kernel] |= 1u << i;
    clattn__condition_wake_all(&program->instance_returned);
    clattn__mutex_unlock(&program->mutex);
}

cl_kernel clattn__instance_create(const clattn__program *program, const clattn__cl *cl, int kernel,
                                  cl_int *code)
{
    return cl->clCreateKernel(program->program, kernel_name(program, kernel), code);
}
