/* Tensors in buffers, in shared virtual memory and in unified shared memory: whatever holds each of them, the
 * results are the same bits; and what is refused. Unified shared memory is the fake device's. */
#undef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 200 /* for clSVMAlloc */
#include "fixture.h"

#include <dlfcn.h>
#include <fakedev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHERE "clattn_enqueue_forward|"

enum { BATCH = 2, HEADS = 2, Q_LEN = 5, KV_LEN = 70, DIM = 16, TILE_ROWS = 2, TILE_KEYS = 8 };
enum { PAGE = 4, PAGES = 40, BLOCKS = 20, TOTAL_Q = 8 };
enum { OFFSET = 64, POISON = 0xff, MOST_PARTS = 24 };

static log_record log_ = LOG_RECORD_INIT;
static clattn_context *context;

/* ---- A call whose tensors each lie in a buffer and in shared memory ---- */

typedef struct part {
    const char *name;
    size_t member; /* of clattn_forward_args */
    size_t bytes;
    int is_output, is_compared;
    unsigned char *content;
    cl_mem buffer;
    unsigned char *shared;
} part;

typedef struct subject {
    clattn_plan *plan;
    clattn_forward_args args;
    part parts[MOST_PARTS];
    int num_parts;
} subject;

static subject full, paged;

static clattn_tensor *tensor_of(clattn_forward_args *args, const part *p)
{
    return (clattn_tensor *)(void *)((unsigned char *)args + p->member);
}

static part *add(subject *s, const char *name, size_t member, size_t bytes, int64_t stride_0,
                 int64_t stride_1, int64_t stride_2, int64_t stride_3)
{
    cl_int code;
    part *p = &s->parts[s->num_parts++];
    assert_in_range(s->num_parts, 1, MOST_PARTS);
    p->name = name;
    p->member = member;
    p->bytes = bytes;
    p->content = malloc(bytes);
    p->buffer = clCreateBuffer(device.context, CL_MEM_READ_WRITE, OFFSET + bytes, NULL, &code);
    p->shared = clSVMAlloc(device.context, CL_MEM_READ_WRITE, OFFSET + bytes, 64);
    assert_true(p->content != NULL && code == CL_SUCCESS && p->shared != NULL);
    clattn_tensor *tensor = tensor_of(&s->args, p);
    const int64_t stride[4] = {stride_0, stride_1, stride_2, stride_3};
    memcpy(tensor->stride, stride, sizeof stride);
    tensor->byte_offset = OFFSET;
    return p;
}

#define ADD(subject, member, bytes, ...) \
    add(subject, #member, offsetof(clattn_forward_args, member), (size_t)(bytes), __VA_ARGS__)

static void add_output(part *p, int is_compared)
{
    p->is_output = 1;
    p->is_compared = is_compared;
    memset(p->content, 0, p->bytes);
}

static void set_floats(part *p, unsigned seed)
{
    float *values = (float *)(void *)p->content;
    uint32_t state = seed * 2654435761u + 1u;
    for (size_t i = 0; i < p->bytes / sizeof *values; i++) {
        state = state * 1664525u + 1013904223u;
        values[i] = (float)(state >> 8) / (float)(1 << 23) - 1.0f;
    }
}

static void set_ints(part *p, const int32_t *values) { memcpy(p->content, values, p->bytes); }

/* Every optional part that a padded call can have. */
static void open_full(void)
{
    static const int32_t q_lens[] = {5, 3}, kv_lens[] = {70, 41}, q_offsets[] = {65, 40};
    subject *s = &full;
    clattn_plan_desc desc = small_desc(
        CLATTN_FEATURE_CAUSAL | CLATTN_FEATURE_LSE | CLATTN_FEATURE_BIAS | CLATTN_FEATURE_MASK |
        CLATTN_FEATURE_BIAS_HEAD_SCALE | CLATTN_FEATURE_ALIBI | CLATTN_FEATURE_SINKS | CLATTN_FEATURE_Q_LENS |
        CLATTN_FEATURE_KV_LENS | CLATTN_FEATURE_Q_OFFSETS | CLATTN_FEATURE_KEY_TILES);
    desc.position_mode = CLATTN_POSITION_EXPLICIT;
    desc.tile_rows = TILE_ROWS;
    desc.tile_keys = TILE_KEYS;
    desc.score_mod = "score * ((const __global float *)user)[head_q]";
    s->plan = plan_with(context, &desc);
    const clattn_forward_args args = CLATTN_FORWARD_ARGS_INIT;
    s->args = args;
    s->args.batch = BATCH;
    s->args.q_len = Q_LEN;
    s->args.kv_len = KV_LEN;
    const int64_t q_tiles = (Q_LEN + TILE_ROWS - 1) / TILE_ROWS,
                  k_tiles = (KV_LEN + TILE_KEYS - 1) / TILE_KEYS;
    s->args.tiles_capacity = k_tiles;
    const int64_t plane = Q_LEN * KV_LEN;
    set_floats(ADD(s, q, BATCH * HEADS * Q_LEN * DIM * 4, HEADS * Q_LEN * DIM, Q_LEN * DIM, DIM, 1), 1);
    set_floats(ADD(s, k, BATCH * KV_LEN * DIM * 4, KV_LEN * DIM, KV_LEN * DIM, DIM, 1), 2);
    set_floats(ADD(s, v, BATCH * KV_LEN * DIM * 4, KV_LEN * DIM, KV_LEN * DIM, DIM, 1), 3);
    add_output(ADD(s, o, BATCH * HEADS * Q_LEN * DIM * 4, HEADS * Q_LEN * DIM, Q_LEN * DIM, DIM, 1), 1);
    add_output(ADD(s, lse, BATCH * HEADS * Q_LEN * 4, HEADS * Q_LEN, Q_LEN, 1, 0), 1);
    set_floats(ADD(s, bias, BATCH * HEADS * plane * 4, HEADS * plane, plane, KV_LEN, 1), 4);
    part *mask = ADD(s, mask, BATCH * HEADS * plane, HEADS * plane, plane, KV_LEN, 1);
    for (size_t i = 0; i < mask->bytes; i++)
        mask->content[i] = i % 7 != 3;
    set_floats(ADD(s, bias_head_scale, BATCH * HEADS * 4, HEADS, 1, 0, 0), 5);
    set_floats(ADD(s, alibi_slopes, BATCH * HEADS * 4, HEADS, 1, 0, 0), 6);
    set_floats(ADD(s, sinks, BATCH * HEADS * 4, HEADS, 1, 0, 0), 7);
    set_ints(ADD(s, q_lens, sizeof q_lens, 1, 0, 0, 0), q_lens);
    set_ints(ADD(s, kv_lens, sizeof kv_lens, 1, 0, 0, 0), kv_lens);
    set_ints(ADD(s, q_offsets, sizeof q_offsets, 1, 0, 0, 0), q_offsets);
    int32_t counts[3], entries[3 * 9];
    assert_true(q_tiles == 3 && k_tiles == 9);
    for (int t = 0; t < 3; t++) {
        counts[t] = 5 + t;
        for (int i = 0; i < 9; i++)
            entries[t * 9 + i] = (i + t) % 9;
    }
    set_ints(ADD(s, tiles_count, sizeof counts, 0, 0, 1, 0), counts);
    set_ints(ADD(s, tiles_index, sizeof entries, 0, 0, k_tiles, 1), entries);
    set_floats(ADD(s, user, HEADS * 4, 0, 0, 0, 0), 8);
    clattn_bounds bounds = CLATTN_BOUNDS_INIT;
    size_t workspace = 0;
    bounds.batch = BATCH;
    bounds.q_len = Q_LEN;
    bounds.kv_len = KV_LEN;
    assert_int_equal(clattn_forward_workspace(s->plan, &bounds, &workspace), CLATTN_SUCCESS);
    assert_true(workspace > 0);
    add_output(ADD(s, workspace, workspace, 0, 0, 0, 0), 0);
}

/* What a server stores otherwise: packed queries, paged keys in bytes with scales. */
static void open_paged(void)
{
    static const int32_t cu_seqlens_q[] = {0, 5, 8}, kv_lens[] = {70, 41};
    int32_t table[BATCH * BLOCKS];
    subject *s = &paged;
    clattn_plan_desc desc =
        small_desc(CLATTN_FEATURE_CAUSAL | CLATTN_FEATURE_LSE | CLATTN_FEATURE_CU_SEQLENS_Q |
                   CLATTN_FEATURE_BLOCK_TABLE | CLATTN_FEATURE_KV_LENS | CLATTN_FEATURE_K_SCALE |
                   CLATTN_FEATURE_V_SCALE | CLATTN_FEATURE_STATUS);
    desc.dtype_k = CLATTN_DTYPE_I8;
    desc.page_size = PAGE;
    s->plan = plan_with(context, &desc);
    const clattn_forward_args args = CLATTN_FORWARD_ARGS_INIT;
    s->args = args;
    s->args.batch = BATCH;
    s->args.q_len = Q_LEN;
    s->args.kv_len = KV_LEN;
    s->args.total_q = TOTAL_Q;
    s->args.num_pages = PAGES;
    s->args.max_blocks = BLOCKS;
    for (int i = 0; i < BATCH * BLOCKS; i++)
        table[i] = i * 7 % PAGES;
    table[3] = PAGES; /* noted in status_words */
    set_floats(ADD(s, q, TOTAL_Q * HEADS * DIM * 4, 0, DIM, HEADS * DIM, 1), 1);
    part *k = ADD(s, k, PAGES * PAGE * DIM, PAGE * DIM, PAGE * DIM, DIM, 1);
    part *v = ADD(s, v, PAGES * PAGE * DIM, PAGE * DIM, PAGE * DIM, DIM, 1);
    for (size_t i = 0; i < k->bytes; i++) {
        k->content[i] = (unsigned char)(i * 37 % 251);
        v->content[i] = (unsigned char)(i * 91 % 241);
    }
    add_output(ADD(s, o, TOTAL_Q * HEADS * DIM * 4, 0, DIM, HEADS * DIM, 1), 1);
    add_output(ADD(s, lse, TOTAL_Q * HEADS * 4, 0, TOTAL_Q, 1, 0), 1);
    set_ints(ADD(s, kv_lens, sizeof kv_lens, 1, 0, 0, 0), kv_lens);
    set_floats(ADD(s, k_scale, PAGES * PAGE * 4, PAGE, PAGE, 1, 0), 2);
    set_floats(ADD(s, v_scale, PAGES * PAGE * 4, PAGE, PAGE, 1, 0), 3);
    set_ints(ADD(s, cu_seqlens_q, sizeof cu_seqlens_q, 0, 0, 0, 0), cu_seqlens_q);
    set_ints(ADD(s, block_table, sizeof table, BLOCKS, 1, 0, 0), table);
    add_output(ADD(s, status_words, sizeof(clattn_status_words), 0, 0, 0, 0), 1);
}

static void subject_close(subject *s)
{
    for (int i = 0; i < s->num_parts; i++) {
        free(s->parts[i].content);
        clReleaseMemObject(s->parts[i].buffer);
        clSVMFree(device.context, s->parts[i].shared);
    }
    s->num_parts = 0;
    clattn_plan_release(s->plan);
}

/* The content goes where the kind says; what lies elsewhere is poison, so that it shows who reads it. */
static void put(const part *p, int32_t kind)
{
    unsigned char *poison = malloc(p->bytes);
    assert_non_null(poison);
    memset(poison, POISON, p->bytes);
    const int in_buffer = kind == CLATTN_MEM_BUFFER;
    assert_int_equal(clEnqueueWriteBuffer(device.queue, p->buffer, CL_TRUE, OFFSET, p->bytes,
                                          in_buffer ? p->content : poison, 0, NULL, NULL),
                     CL_SUCCESS);
    assert_int_equal(clEnqueueSVMMemcpy(device.queue, CL_TRUE, p->shared + OFFSET,
                                        in_buffer ? poison : p->content, p->bytes, 0, NULL, NULL),
                     CL_SUCCESS);
    free(poison);
}

static void get(const part *p, int32_t kind, unsigned char *out)
{
    const cl_int code =
        kind == CLATTN_MEM_BUFFER
            ? clEnqueueReadBuffer(device.queue, p->buffer, CL_TRUE, OFFSET, p->bytes, out, 0, NULL, NULL)
            : clEnqueueSVMMemcpy(device.queue, CL_TRUE, out, p->shared + OFFSET, p->bytes, 0, NULL, NULL);
    assert_int_equal(code, CL_SUCCESS);
}

static clattn_forward_args args_with(subject *s, const int32_t *kinds)
{
    clattn_forward_args args = s->args;
    for (int i = 0; i < s->num_parts; i++) {
        clattn_tensor *tensor = tensor_of(&args, &s->parts[i]);
        tensor->mem_kind = kinds[i];
        tensor->handle = kinds[i] == CLATTN_MEM_BUFFER ? (void *)s->parts[i].buffer : s->parts[i].shared;
    }
    return args;
}

/* The compared outputs, one after the other; the caller frees them. */
static unsigned char *run(subject *s, const int32_t *kinds, size_t *size)
{
    const clattn_forward_args args = args_with(s, kinds);
    size_t bytes = 0;
    for (int i = 0; i < s->num_parts; i++) {
        put(&s->parts[i], kinds[i]);
        bytes += s->parts[i].is_compared ? s->parts[i].bytes : 0;
    }
    clattn_fakedev_reset();
    const clattn_status status = clattn_enqueue_forward(s->plan, device.queue, &args, 0, NULL, NULL);
    if (status != CLATTN_SUCCESS)
        fail_msg("%s", log_.last_error);
    unsigned char *outputs = malloc(bytes), *at = outputs;
    assert_non_null(outputs);
    for (int i = 0; i < s->num_parts; i++)
        if (s->parts[i].is_compared) {
            get(&s->parts[i], kinds[i], at);
            at += s->parts[i].bytes;
        }
    *size = bytes;
    return outputs;
}

static void set_kinds(int32_t *kinds, int32_t kind)
{
    for (int i = 0; i < MOST_PARTS; i++)
        kinds[i] = kind;
}

static void check_same_bits(subject *s)
{
    int32_t kinds[MOST_PARTS];
    size_t size;
    set_kinds(kinds, CLATTN_MEM_BUFFER);
    unsigned char *expected = run(s, kinds, &size);
    for (size_t i = 0; i < size / 4; i++) { /* every word was written */
        static const unsigned char poison[4] = {POISON, POISON, POISON, POISON};
        assert_memory_not_equal(expected + 4 * i, poison, 4);
    }
    for (int32_t kind = CLATTN_MEM_SVM; kind <= CLATTN_MEM_USM; kind++)
        for (int alone = 0; alone <= s->num_parts; alone++) { /* each by itself, then all */
            set_kinds(kinds, alone < s->num_parts ? CLATTN_MEM_BUFFER : kind);
            if (alone < s->num_parts)
                kinds[alone] = kind;
            unsigned char *outputs = run(s, kinds, &size);
            if (memcmp(outputs, expected, size) != 0)
                fail_msg("kind %d, %s: other results than with buffers", (int)kind,
                         alone < s->num_parts ? s->parts[alone].name : "all");
            free(outputs);
            const char *setter =
                kind == CLATTN_MEM_SVM ? "clSetKernelArgSVMPointer" : "clSetKernelArgMemPointerINTEL";
            assert_in_range(clattn_fakedev_calls(setter), 1, 100);
            if (alone == s->num_parts) /* nobody can say how large they are */
                assert_int_equal(clattn_fakedev_calls("clGetMemObjectInfo"), 0);
        }
    free(expected);
}

static void test_padded(void **state)
{
    (void)state;
    check_same_bits(&full);
}

static void test_packed_and_paged(void **state)
{
    (void)state;
    check_same_bits(&paged);
}

/* ---- Rows that are less aligned than buffers are ---- */

static void test_alignment_of_rows(void **state)
{
    const clattn_plan_desc desc = small_desc(CLATTN_FEATURE_LSE);
    attention_call call;
    (void)state;
    clattn_plan *plan = plan_with(context, &desc);
    call_open(&call, device.context, &desc, 1, 9, 33, 1);
    for (int skew = 0; skew < 4; skew++) {
        const size_t q_bytes = 2 * 9 * DIM * sizeof(float), k_bytes = 33 * DIM * sizeof(float);
        clattn_tensor *tensors[] = {&call.args.q, &call.args.k, &call.args.v};
        const float *values[] = {call.q, call.k, call.v};
        void *allocated[3], *buffers[3];
        for (int i = 0; i < 3; i++) {
            const size_t bytes = i == 0 ? q_bytes : k_bytes;
            allocated[i] = clSVMAlloc(device.context, CL_MEM_READ_WRITE, bytes + 64, 64);
            float *place = (float *)allocated[i] + skew;
            assert_int_equal(
                clEnqueueSVMMemcpy(device.queue, CL_TRUE, place, values[i], bytes, 0, NULL, NULL),
                CL_SUCCESS);
            buffers[i] = tensors[i]->handle;
            tensors[i]->mem_kind = CLATTN_MEM_SVM;
            tensors[i]->handle = place;
        }
        call_run(&call, plan);
        for (int i = 0; i < 3; i++) {
            tensors[i]->mem_kind = CLATTN_MEM_BUFFER;
            tensors[i]->handle = buffers[i];
            clSVMFree(device.context, allocated[i]);
        }
    }
    call_close(&call);
    clattn_plan_release(plan);
}

/* ---- Tensors that take turns in one memory ---- */

enum { ROWS = 2 * 9, CELL = DIM + 1 };

static clattn_tensor cell_part(void *handle, size_t first, int64_t heads)
{
    clattn_tensor tensor = CLATTN_TENSOR_INIT;
    tensor.handle = handle;
    tensor.byte_offset = first * sizeof(float);
    tensor.stride[0] = heads * 9 * CELL;
    tensor.stride[1] = 9 * CELL;
    tensor.stride[2] = CELL;
    return tensor;
}

/* Each row's lse behind its o, in one buffer. */
static void test_turns(void **state)
{
    const clattn_plan_desc desc = small_desc(CLATTN_FEATURE_LSE);
    attention_call call;
    cl_int code;
    float cells[ROWS * CELL];
    (void)state;
    clattn_plan *plan = plan_with(context, &desc);
    call_open(&call, device.context, &desc, 1, 9, 33, 1);
    call_run(&call, plan);
    float *expected = call_outputs(&call, device.queue);
    cl_mem both = clCreateBuffer(device.context, CL_MEM_READ_WRITE, sizeof cells, NULL, &code);
    clattn_forward_args args = call.args;
    args.o = cell_part(both, 0, 2);
    args.lse = cell_part(both, DIM, 2);
    assert_int_equal(clattn_enqueue_forward(plan, device.queue, &args, 0, NULL, NULL), CLATTN_SUCCESS);
    assert_int_equal(clEnqueueReadBuffer(device.queue, both, CL_TRUE, 0, sizeof cells, cells, 0, NULL, NULL),
                     CL_SUCCESS);
    for (int row = 0; row < ROWS; row++) {
        assert_memory_equal(cells + row * CELL, expected + row * DIM, DIM * sizeof(float));
        assert_memory_equal(cells + row * CELL + DIM, expected + call.o_count + row, sizeof(float));
    }
    /* Not if a part reaches into the other's, or the periods differ. */
    static const size_t within[] = {0, 5, DIM - 1};
    for (size_t i = 0; i < 3; i++) {
        args.lse = cell_part(both, within[i], 2);
        log_clear(&log_);
        expect_refusal(&log_, clattn_enqueue_forward(plan, device.queue, &args, 0, NULL, NULL),
                       CLATTN_INVALID_ARGUMENT, WHERE "output o and lse overlap in one buffer");
    }
    args.lse = cell_part(both, DIM, 2);
    args.lse.stride[2] = CELL - 1;
    log_clear(&log_);
    expect_refusal(&log_, clattn_enqueue_forward(plan, device.queue, &args, 0, NULL, NULL),
                   CLATTN_INVALID_ARGUMENT, WHERE "output o and lse overlap in one buffer");
    free(expected);
    clReleaseMemObject(both);
    call_close(&call);
    clattn_plan_release(plan);
}

/* K and V side by side in each page of one pool: [page][k or v][token][column]. */
static void test_pool_of_both(void **state)
{
    enum { TOKENS = 3, PAGE_FLOATS = 2 * PAGE * DIM };
    static const int32_t slots[TOKENS] = {1, 9, 4};
    clattn_plan_desc desc = small_desc(CLATTN_FEATURE_BLOCK_TABLE | CLATTN_FEATURE_SLOT_MAPPING);
    clattn_append_args args = CLATTN_APPEND_ARGS_INIT;
    cl_int code;
    float fresh[2][TOKENS * DIM], pool[3 * PAGE_FLOATS];
    (void)state;
    for (int i = 0; i < TOKENS * DIM; i++) {
        fresh[0][i] = (float)(i + 1);
        fresh[1][i] = (float)-(i + 1);
    }
    memset(pool, 0, sizeof pool);
    desc.operation = CLATTN_OPERATION_KV_APPEND;
    desc.path = CLATTN_PATH_AUTO;
    desc.page_size = PAGE;
    clattn_plan *plan = plan_with(context, &desc);
    cl_mem_flags copied = CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR;
    cl_mem from = clCreateBuffer(device.context, copied, sizeof fresh, fresh, &code);
    cl_mem where = clCreateBuffer(device.context, copied, sizeof slots, (void *)slots, &code);
    cl_mem cache = clCreateBuffer(device.context, copied, sizeof pool, pool, &code);
    args.k_new.handle = args.v_new.handle = from;
    args.v_new.byte_offset = sizeof fresh[0];
    args.k_new.stride[2] = args.v_new.stride[2] = DIM;
    args.k.handle = args.v.handle = cache;
    args.v.byte_offset = PAGE * DIM * sizeof(float);
    args.k.stride[0] = args.v.stride[0] = PAGE_FLOATS;
    args.k.stride[2] = args.v.stride[2] = DIM;
    args.slot_mapping.handle = where;
    args.slot_mapping.stride[1] = 1;
    args.batch = 1;
    args.new_len = TOKENS;
    args.kv_len = 3 * PAGE;
    args.num_pages = 3;
    log_clear(&log_);
    if (clattn_enqueue_kv_append(plan, device.queue, &args, 0, NULL, NULL) != CLATTN_SUCCESS)
        fail_msg("%s", log_.last_error);
    assert_int_equal(clEnqueueReadBuffer(device.queue, cache, CL_TRUE, 0, sizeof pool, pool, 0, NULL, NULL),
                     CL_SUCCESS);
    for (int t = 0; t < TOKENS; t++)
        for (int is_v = 0; is_v < 2; is_v++)
            assert_memory_equal(pool + slots[t] / PAGE * PAGE_FLOATS + is_v * PAGE * DIM +
                                    slots[t] % PAGE * DIM,
                                fresh[is_v] + t * DIM, DIM * sizeof(float));
    args.v.byte_offset -= sizeof(float);
    log_clear(&log_);
    expect_refusal(&log_, clattn_enqueue_kv_append(plan, device.queue, &args, 0, NULL, NULL),
                   CLATTN_INVALID_ARGUMENT, "clattn_enqueue_kv_append|output k and v overlap in one buffer");
    clReleaseMemObject(from);
    clReleaseMemObject(where);
    clReleaseMemObject(cache);
    clattn_plan_release(plan);
}

/* ---- Refusals ---- */

static clattn_status enqueue(clattn_plan *plan, const clattn_forward_args *args)
{
    clattn_fakedev_reset();
    log_clear(&log_);
    const clattn_status status = clattn_enqueue_forward(plan, device.queue, args, 0, NULL, NULL);
    if (status != CLATTN_SUCCESS) {
        struct clattn_fakedev_counters counters;
        clattn_fakedev_counters(&counters);
        assert_int_equal(counters.launches, 0);
        assert_int_equal(clattn_fakedev_calls("clSetKernelArg"), 0);
        assert_int_equal(clattn_fakedev_calls("clSetKernelArgSVMPointer"), 0);
    }
    return status;
}

static void expect_no_call(subject *s, const clattn_forward_args *args, clattn_status expected,
                           const char *says)
{
    char texts[300];
    snprintf(texts, sizeof texts, WHERE "%s", says);
    expect_refusal(&log_, enqueue(s->plan, args), expected, texts);
}

static void test_pointer_alignment(void **state)
{
    int32_t kinds[MOST_PARTS];
    char says[120];
    (void)state;
    set_kinds(kinds, CLATTN_MEM_SVM);
    for (int i = 0; i < full.num_parts; i++) {
        clattn_forward_args args = args_with(&full, kinds);
        const part *p = &full.parts[i];
        clattn_tensor *tensor = tensor_of(&args, p);
        const int is_user = strcmp(p->name, "user") == 0;
        const int is_of_bytes = strcmp(p->name, "mask") == 0 || strcmp(p->name, "workspace") == 0;
        tensor->handle = (unsigned char *)tensor->handle + (is_user ? 8 : 2);
        if (is_of_bytes)
            continue;
        snprintf(says, sizeof says, "%s.handle + byte_offset = 0x|expected a multiple of %d", p->name,
                 is_user ? 16 : 4);
        expect_no_call(&full, &args, CLATTN_INVALID_ARGUMENT, says);
        /* It is the sum that counts, whatever the parts are. */
        if (is_user) {
            tensor->handle = (unsigned char *)tensor->handle + 8;
            assert_int_equal(enqueue(full.plan, &args), CLATTN_SUCCESS);
            clFinish(device.queue);
        }
    }
}

/* Pointers overlap by address, whatever the handles are. */
static void test_pointer_overlap(void **state)
{
    int32_t kinds[MOST_PARTS];
    (void)state;
    set_kinds(kinds, CLATTN_MEM_SVM);
    clattn_forward_args args = args_with(&full, kinds);
    const size_t lse_bytes = (size_t)BATCH * HEADS * Q_LEN * 4, o_bytes = lse_bytes * DIM;
    unsigned char *memory = clSVMAlloc(device.context, CL_MEM_READ_WRITE, o_bytes + lse_bytes + 4, 64);
    args.o.handle = memory;
    args.o.byte_offset = 0;
    args.lse.handle = memory + o_bytes;
    args.lse.byte_offset = 0;
    assert_int_equal(enqueue(full.plan, &args), CLATTN_SUCCESS);
    args.lse.handle = memory + o_bytes - 4;
    expect_no_call(&full, &args, CLATTN_INVALID_ARGUMENT, "output o and lse overlap in one memory");
    args.lse.byte_offset = 4;
    assert_int_equal(enqueue(full.plan, &args), CLATTN_SUCCESS);
    args.lse.mem_kind = CLATTN_MEM_USM; /* addresses of one space */
    args.lse.byte_offset = 0;
    expect_no_call(&full, &args, CLATTN_INVALID_ARGUMENT, "output o and lse overlap in one memory");
    args.lse = args_with(&full, kinds).lse;
    args.q.handle = memory + o_bytes - 4;
    args.q.byte_offset = 0;
    expect_no_call(&full, &args, CLATTN_INVALID_ARGUMENT, "output o and q overlap in one memory");
    clFinish(device.queue);
    clSVMFree(device.context, memory);
}

/* A device whose facts are faked, and a plan on it. */
static void expect_no_kind(int32_t kind, void *(*get_proc)(void *, const char *), void *user,
                           const char *says)
{
    clattn_context_options options = options_with(&log_);
    const clattn_plan_desc desc = small_desc(0);
    attention_call call;
    options.get_proc = get_proc;
    options.get_proc_user = user;
    clattn_context *own = context_with(&options);
    clattn_plan *plan = plan_with(own, &desc);
    call_open(&call, device.context, &desc, 1, 3, 4, 1);
    call_run(&call, plan); /* buffers need none of it */
    clattn_forward_args args = call.args;
    args.k.mem_kind = kind;
    expect_refusal(&log_, enqueue(plan, &args), CLATTN_UNSUPPORTED, says);
    call_close(&call);
    clattn_plan_release(plan);
    clattn_context_release(own);
}

typedef struct finder {
    void *loader;
    const char *hidden;
} finder;

static void *find_all_but(void *user, const char *name)
{
    const finder *self = user;
    return strcmp(name, self->hidden) == 0 ? NULL : dlsym(self->loader, name);
}

static void test_devices_without(void **state)
{
    finder finder = {dlopen("libOpenCL.so.1", RTLD_NOW), "clSetKernelArgSVMPointer"};
    (void)state;
    if (device.path == CLATTN_PATH_PORTABLE)
        skip(); /* it is the same there */
    assert_non_null(finder.loader);
    clattn_fakedev_set("CLATTN_FAKE_SVM", "none");
    expect_no_kind(CLATTN_MEM_SVM, NULL, NULL,
                   WHERE "k.mem_kind = CLATTN_MEM_SVM (1)|the device has no shared virtual memory");
    clattn_fakedev_set("CLATTN_FAKE_SVM", NULL);
    clattn_fakedev_set("CLATTN_FAKE_VERSION", "OpenCL 1.2 fake");
    expect_no_kind(CLATTN_MEM_SVM, NULL, NULL,
                   WHERE "k.mem_kind = CLATTN_MEM_SVM (1)|the device has no shared virtual memory");
    clattn_fakedev_set("CLATTN_FAKE_VERSION", NULL);
    expect_no_kind(CLATTN_MEM_SVM, find_all_but, &finder,
                   WHERE "k.mem_kind|clSetKernelArgSVMPointer was not");

    expect_no_kind(CLATTN_MEM_USM, find_all_but, &finder, WHERE "k.mem_kind|the device lacks the extension");
    clattn_fakedev_set("CLATTN_FAKE_EXTENSIONS", "cl_intel_unified_shared_memory_of_another");
    expect_no_kind(CLATTN_MEM_USM, NULL, NULL,
                   WHERE
                   "k.mem_kind = CLATTN_MEM_USM (2)|lacks the extension cl_intel_unified_shared_memory");
    clattn_fakedev_set("CLATTN_FAKE_EXTENSIONS", "cl_khr_spir cl_intel_unified_shared_memory");
    finder.hidden = "clGetExtensionFunctionAddressForPlatform";
    expect_no_kind(CLATTN_MEM_USM, find_all_but, &finder,
                   WHERE "clSetKernelArgMemPointerINTEL was not found");
    clattn_fakedev_set("CLATTN_FAKE_HIDDEN_FUNCTIONS", "clSetKernelArgMemPointerINTEL");
    expect_no_kind(CLATTN_MEM_USM, NULL, NULL, WHERE "clSetKernelArgMemPointerINTEL was not found");
    clattn_fakedev_set("CLATTN_FAKE_HIDDEN_FUNCTIONS", NULL);
    clattn_fakedev_set("CLATTN_FAKE_EXTENSIONS", NULL);
    dlclose(finder.loader);
}

/* ---- */

static int open_all(void **state)
{
    enum { SKIPPED = 77 };
    cl_device_svm_capabilities svm = 0;
    const clattn_context_options options = options_with(&log_);
    if (fixture_open(state) != 0)
        return -1;
    if (clGetDeviceInfo(device.id, CL_DEVICE_SVM_CAPABILITIES, sizeof svm, &svm, NULL) != CL_SUCCESS ||
        svm == 0) {
        printf("skipped: the device has no shared virtual memory\n");
        exit(SKIPPED);
    }
    clattn_fakedev_set("CLATTN_FAKE_EXTENSIONS", "cl_intel_unified_shared_memory");
    context = context_with(&options);
    clattn_fakedev_set("CLATTN_FAKE_EXTENSIONS", NULL);
    open_full();
    open_paged();
    return 0;
}

static int close_all(void **state)
{
    subject_close(&full);
    subject_close(&paged);
    clattn_context_release(context);
    return fixture_close(state);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_padded),
        cmocka_unit_test(test_packed_and_paged),
        cmocka_unit_test(test_alignment_of_rows),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_pool_of_both),
        cmocka_unit_test(test_pointer_alignment),
        cmocka_unit_test(test_pointer_overlap),
        cmocka_unit_test(test_devices_without),
    };
    fixture_arguments(argc, argv);
    return cmocka_run_group_tests(tests, open_all, close_all);
}
