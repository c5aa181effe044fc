/* Every refusal that serving adds: descriptions that have no meaning, numbers and tensors of packed and paged
 * sequences, cache types, decode workspaces, and the calls of the other operations. Each time the status, the
 * reason (which argument, its value, what was expected), and that nothing is enqueued and no output changes.
 */
#include "fixture.h"

#include <fakedev.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static log_record log_ = LOG_RECORD_INIT;
static clattn_context *context;

#define INVALID CLATTN_INVALID_ARGUMENT
#define FEATURE(name) CLATTN_FEATURE_##name

/* ---- Descriptions ---- */

/* Creation and the question about it refuse with the same status and reason; nothing is compiled. */
static void expect_no_plan(const clattn_plan_desc *desc, clattn_status expected, const char *says)
{
    clattn_plan *plan = (clattn_plan *)&plan;
    log_record supported = LOG_RECORD_INIT;
    clattn_fakedev_reset();
    expect_refusal(&log_, clattn_plan_create(&plan, context, desc), expected, says);
    assert_null(plan);
    const clattn_status status =
        clattn_plan_supported(context, desc, supported.last_error, sizeof supported.last_error);
    supported.errors = 1;
    expect_refusal(&supported, status, expected, says);
    assert_int_equal(log_.errors, 0);
    assert_int_equal(clattn_fakedev_calls("clCreateProgramWithSource"), 0);
}

/* One rule: what is set in a small description, and what is said. 0 leaves the default. */
typedef struct rule {
    uint32_t features;
    int32_t operation, phase, dtype_q, dtype_k, dtype_v, dtype_o, head_dim_qk, head_dim_v, page_size, splits,
        rope, rotary_dim;
    const char *says;
    clattn_status status; /* 0: INVALID_ARGUMENT */
} rule;

#define PAGED (FEATURE(BLOCK_TABLE) | FEATURE(KV_LENS))

static const rule rules[] = {
    {.operation = -1, .says = "operation = -1|expected 0 to 3"},
    {.operation = 4, .says = "operation = 4|expected 0 to 3"},
    {.phase = -1, .says = "phase = -1|expected 0 to 2"},
    {.phase = 3, .says = "phase = 3|expected 0 to 2"},
    {.operation = CLATTN_OPERATION_KV_APPEND, .phase = 1, .says = "phase = 1|expected 0"},

    /* pages */
    {.page_size = 16, .says = "page_size = 16|expected 0"},
    {.page_size = -1, .says = "page_size = -1|expected 0"},
    {.features = PAGED, .says = "page_size = 0|expected 1 to 1073741824"},
    {.features = PAGED, .page_size = -16, .says = "page_size = -16|expected 1 to 1073741824"},
    {.features = PAGED, .page_size = INT32_MAX, .says = "page_size = 2147483647|expected 1 to 1073741824"},
    {.features = FEATURE(BLOCK_TABLE),
     .page_size = 16,
     .says = "CLATTN_FEATURE_BLOCK_TABLE|expected CLATTN_FEATURE_KV_LENS"},
    {.features = PAGED | FEATURE(CU_SEQLENS_K),
     .page_size = 16,
     .says = "features = |CLATTN_FEATURE_BLOCK_TABLE|CU_SEQLENS_K|expected one"},

    /* types */
    {.dtype_q = 4, .says = "dtype_q = 4|expected "},
    {.dtype_k = 4, .says = "dtype_k = 4|expected "},
    {.dtype_v = 14, .says = "dtype_v = 14|expected "},
    {.dtype_k = -1, .says = "dtype_k = -1|expected "},
    {.dtype_q = CLATTN_DTYPE_Q8_0,
     .dtype_k = CLATTN_DTYPE_F16,
     .says = "dtype_q = 8 (q8_0)|expected CLATTN_DTYPE_F32 (1), F16 (2) or BF16 (3)"},
    {.dtype_o = CLATTN_DTYPE_I8,
     .says = "dtype_o = 5 (i8)|expected CLATTN_DTYPE_F32 (1), F16 (2) or BF16 (3)"},
    {.dtype_o = CLATTN_DTYPE_F8_E5M2, .says = "dtype_o = 7 (f8_e5m2)|expected"},
    {.features = FEATURE(K_SCALE), .says = "CLATTN_FEATURE_K_SCALE|dtype_k|I8 or F8|f32"},
    {.features = FEATURE(V_SCALE),
     .dtype_v = CLATTN_DTYPE_F16,
     .says = "CLATTN_FEATURE_V_SCALE|dtype_v|I8 or F8|f16"},
    {.features = FEATURE(K_SCALE),
     .dtype_k = CLATTN_DTYPE_Q4_0,
     .dtype_v = 1,
     .head_dim_qk = 64,
     .says = "CLATTN_FEATURE_K_SCALE|dtype_k|I8 or F8|q4_0"},
    {.dtype_k = CLATTN_DTYPE_I8,
     .dtype_v = 1,
     .says = "features = 0x0|expected CLATTN_FEATURE_K_SCALE|dtype_k is i8"},
    {.dtype_v = CLATTN_DTYPE_I8, .says = "features = 0x0|expected CLATTN_FEATURE_V_SCALE|dtype_v is i8"},
    {.dtype_k = CLATTN_DTYPE_Q8_0,
     .dtype_v = 1,
     .says = "head_dim_qk = 16|expected a multiple of 32|dtype_k is q8_0"},
    {.dtype_k = CLATTN_DTYPE_IQ4_NL,
     .dtype_v = 1,
     .head_dim_qk = 80,
     .says = "head_dim_qk = 80|expected a multiple of 32|dtype_k is iq4_nl"},
    {.dtype_v = CLATTN_DTYPE_Q5_1,
     .head_dim_qk = 32,
     .head_dim_v = 33,
     .says = "head_dim_v = 33|expected a multiple of 32|dtype_v is q5_1"},

    /* V inside K */
    {.features = FEATURE(V_IN_K),
     .head_dim_qk = 16,
     .head_dim_v = 17,
     .says = "head_dim_v = 17|expected 1 to 16"},
    {.features = FEATURE(V_IN_K),
     .dtype_k = CLATTN_DTYPE_F16,
     .dtype_v = CLATTN_DTYPE_F32,
     .says = "dtype_v = 1|expected dtype_k = 2"},
    {.features = FEATURE(V_IN_K) | FEATURE(K_SCALE) | FEATURE(V_SCALE),
     .dtype_k = CLATTN_DTYPE_I8,
     .says = "CLATTN_FEATURE_V_SCALE|CLATTN_FEATURE_V_IN_K"},

    /* splits */
    {.splits = 4, .says = "splits = 4|expected 0|without decode kernels"},
    {.phase = CLATTN_PHASE_DECODE, .splits = -1, .says = "splits = -1|expected 0 to 256"},
    {.phase = CLATTN_PHASE_BOTH, .splits = 257, .says = "splits = 257|expected 0 to 256"},
    {.phase = CLATTN_PHASE_DECODE,
     .features = FEATURE(BATCH_INVARIANT),
     .splits = 1,
     .says = "splits = 1|expected 0|CLATTN_FEATURE_BATCH_INVARIANT"},
    {.phase = CLATTN_PHASE_BOTH,
     .features = FEATURE(BATCH_INVARIANT),
     .says = "phase = 2|CLATTN_FEATURE_BATCH_INVARIANT"},

    /* what only one operation knows */
    {.rope = CLATTN_ROPE_NEOX, .says = "rope = 1|expected 0"},
    {.rotary_dim = 8, .says = "rotary_dim = 8|expected 0"},
    {.features = FEATURE(SLOT_MAPPING),
     .says = "features = 0x400000|0x400000|not offered|forward",
     .status = CLATTN_UNSUPPORTED},
    {.features = FEATURE(ROPE_TABLES),
     .says = "features = 0x800000|0x800000|not offered|forward",
     .status = CLATTN_UNSUPPORTED},
    {.features = 0x1000000, .says = "features = 0x1000000|not offered", .status = CLATTN_UNSUPPORTED},
    {.operation = CLATTN_OPERATION_KV_APPEND,
     .features = FEATURE(CAUSAL),
     .says = "features = 0x1|not offered|append",
     .status = CLATTN_UNSUPPORTED},
    {.operation = CLATTN_OPERATION_KV_APPEND,
     .features = FEATURE(CU_SEQLENS_K),
     .says = "features = 0x8000|not offered|append",
     .status = CLATTN_UNSUPPORTED},
    {.operation = CLATTN_OPERATION_KV_APPEND,
     .features = FEATURE(ROPE_TABLES),
     .says = "CLATTN_FEATURE_ROPE_TABLES|expected rope"},
    {.operation = CLATTN_OPERATION_KV_APPEND, .rope = 3, .says = "rope = 3|expected 0 to 2"},
    {.operation = CLATTN_OPERATION_KV_APPEND, .rope = -1, .says = "rope = -1|expected 0 to 2"},
    {.operation = CLATTN_OPERATION_KV_APPEND,
     .rope = 1,
     .rotary_dim = 18,
     .says = "rotary_dim = 18|expected 2 to 16"},
    {.operation = CLATTN_OPERATION_KV_APPEND,
     .rope = 1,
     .rotary_dim = -2,
     .says = "rotary_dim = -2|expected 2 to 16"},
    {.operation = CLATTN_OPERATION_KV_APPEND,
     .rope = 2,
     .rotary_dim = 7,
     .says = "rotary_dim = 7|expected an even number"},
    {.operation = CLATTN_OPERATION_KV_APPEND,
     .rope = 1,
     .head_dim_qk = 15,
     .says = "rotary_dim = 15|expected an even number"},
    {.operation = CLATTN_OPERATION_KV_APPEND, .splits = 2, .says = "splits = 2|expected 0"},
    {.operation = CLATTN_OPERATION_KV_APPEND,
     .dtype_k = CLATTN_DTYPE_Q4_1,
     .dtype_v = 1,
     .says = "head_dim_qk = 16|expected a multiple of 32|dtype_k is q4_1"},
    {.operation = CLATTN_OPERATION_KV_APPEND,
     .features = FEATURE(BLOCK_TABLE),
     .says = "page_size = 0|expected 1 to"},
    {.operation = CLATTN_OPERATION_MERGE,
     .features = FEATURE(BIAS),
     .says = "features = 0x8|not offered|merge",
     .status = CLATTN_UNSUPPORTED},
    {.operation = CLATTN_OPERATION_MERGE,
     .dtype_q = CLATTN_DTYPE_Q8_0,
     .head_dim_qk = 32,
     .says = "dtype_q = 8 (q8_0)|expected"},
    {.operation = CLATTN_OPERATION_CONVERT,
     .features = FEATURE(V_SCALE),
     .says = "features = 0x40000|not offered|convert",
     .status = CLATTN_UNSUPPORTED},
    {.operation = CLATTN_OPERATION_CONVERT,
     .dtype_k = CLATTN_DTYPE_I8,
     .says = "expected CLATTN_FEATURE_K_SCALE|dtype_k is i8"},
    {.operation = CLATTN_OPERATION_CONVERT,
     .dtype_k = CLATTN_DTYPE_Q5_0,
     .says = "head_dim_qk = 16|expected a multiple of 32|dtype_k is q5_0"},
};

static void test_descriptions(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const rule *r = &rules[i];
        clattn_plan_desc desc = small_desc(r->features);
        char says[240];
        desc.operation = r->operation;
        desc.phase = r->phase;
        desc.dtype_q = r->dtype_q;
        desc.dtype_k = r->dtype_k;
        desc.dtype_v = r->dtype_v;
        desc.dtype_o = r->dtype_o;
        if (r->head_dim_qk != 0)
            desc.head_dim_qk = r->head_dim_qk;
        desc.head_dim_v = r->head_dim_v;
        desc.page_size = r->page_size;
        desc.splits = r->splits;
        desc.rope = r->rope;
        desc.rotary_dim = r->rotary_dim;
        snprintf(says, sizeof says, "clattn_plan_|%s", r->says);
        expect_no_plan(&desc, r->status != 0 ? r->status : INVALID, says);
    }
}

static void test_description_reserved_and_texts(void **state)
{
    clattn_plan_desc desc = small_desc(0);
    (void)state;
    desc.reserved = 7;
    expect_no_plan(&desc, INVALID, "clattn_plan_|reserved = 7|expected 0");
    desc = small_desc(0);
    desc.operation = CLATTN_OPERATION_KV_APPEND;
    desc.score_mod = "score";
    expect_no_plan(&desc, INVALID, "clattn_plan_|score_mod|expected NULL|append");
    desc.operation = CLATTN_OPERATION_MERGE;
    desc.score_mod = NULL;
    desc.mask_mod = "1";
    expect_no_plan(&desc, INVALID, "clattn_plan_|mask_mod|expected NULL|merge");
}

/* ---- Calls: buffers ---- */

enum {
    BATCH = 2,
    Q_LEN = 3,
    KV_LEN = 8,
    PAGES = 5,
    PAGE = 4,
    BLOCKS = 2,
    TOTAL_Q = 6,
    TOTAL_K = 16,
    DIM = 16
};

enum { BYTES = 8192, BUFFERS = 24, POISON = 0x5a };

/* Buffers that are large enough for all that these small calls hold, all poison. */
static cl_mem pool[BUFFERS];
static int taken;

static clattn_tensor fresh(int64_t batch, int64_t head, int64_t token)
{
    clattn_tensor tensor = CLATTN_TENSOR_INIT;
    assert_true(taken < BUFFERS);
    tensor.handle = pool[taken++];
    tensor.stride[0] = batch;
    tensor.stride[1] = head;
    tensor.stride[2] = token;
    return tensor;
}

static clattn_tensor list_of_ints(void) { return fresh(1, 1, 1); }

static void make_pool(void)
{
    unsigned char bytes[BYTES];
    memset(bytes, POISON, sizeof bytes);
    for (int n = 0; n < BUFFERS; n++) {
        cl_int code;
        pool[n] = clCreateBuffer(device.context, CL_MEM_COPY_HOST_PTR, sizeof bytes, bytes, &code);
        assert_int_equal(code, CL_SUCCESS);
    }
}

static void expect_pool_untouched(void)
{
    unsigned char bytes[BYTES];
    for (int n = 0; n < BUFFERS; n++) {
        assert_int_equal(
            clEnqueueReadBuffer(device.queue, pool[n], CL_TRUE, 0, sizeof bytes, bytes, 0, NULL, NULL),
            CL_SUCCESS);
        for (size_t i = 0; i < sizeof bytes; i++)
            if (bytes[i] != POISON)
                fail_msg("buffer %d was written to at byte %u", n, (unsigned)i);
    }
}

static void expect_nothing_happened(void)
{
    struct clattn_fakedev_counters counters;
    clattn_fakedev_counters(&counters);
    assert_int_equal(counters.launches, 0);
    assert_int_equal(clattn_fakedev_calls("clEnqueueMarkerWithWaitList"), 0);
    assert_int_equal(clattn_fakedev_calls("clSetKernelArg"), 0);
    assert_int_equal(clattn_fakedev_calls("clCreateBuffer"), 0);
    expect_pool_untouched();
}

/* ---- Plans ---- */

static struct plans {
    clattn_plan *plain, *packed, *paged, *scaled, *v_in_k, *decode, *append, *paged_append, *merge, *convert;
} plans;

static clattn_plan *forward_plan(uint32_t features, int32_t phase, int32_t splits)
{
    clattn_plan_desc desc = small_desc(features | FEATURE(LSE));
    desc.phase = phase;
    desc.splits = splits;
    desc.page_size = (features & FEATURE(BLOCK_TABLE)) != 0 ? PAGE : 0;
    if (features & FEATURE(K_SCALE))
        desc.dtype_k = CLATTN_DTYPE_I8;
    if (features & FEATURE(V_SCALE))
        desc.dtype_v = CLATTN_DTYPE_F8_E4M3;
    return plan_with(context, &desc);
}

static clattn_plan *append_plan(uint32_t features)
{
    clattn_plan_desc desc = small_desc(features);
    desc.operation = CLATTN_OPERATION_KV_APPEND;
    desc.page_size = (features & FEATURE(BLOCK_TABLE)) != 0 ? PAGE : 0;
    desc.rope = CLATTN_ROPE_NEOX;
    return plan_with(context, &desc);
}

static void make_plans(void)
{
    clattn_plan_desc desc = small_desc(FEATURE(LSE));
    plans.plain = forward_plan(0, CLATTN_PHASE_PREFILL, 0);
    plans.packed = forward_plan(FEATURE(CU_SEQLENS_Q) | FEATURE(CU_SEQLENS_K), CLATTN_PHASE_PREFILL, 0);
    plans.paged = forward_plan(PAGED | FEATURE(STATUS), CLATTN_PHASE_PREFILL, 0);
    plans.scaled = forward_plan(FEATURE(K_SCALE) | FEATURE(V_SCALE), CLATTN_PHASE_PREFILL, 0);
    plans.v_in_k = forward_plan(FEATURE(V_IN_K), CLATTN_PHASE_PREFILL, 0);
    plans.decode = forward_plan(0, CLATTN_PHASE_DECODE, 4);
    plans.append = append_plan(FEATURE(CU_SEQLENS_Q) | FEATURE(ROPE_TABLES));
    plans.paged_append = append_plan(FEATURE(BLOCK_TABLE) | FEATURE(STATUS) | FEATURE(Q_LENS));
    desc.operation = CLATTN_OPERATION_MERGE;
    plans.merge = plan_with(context, &desc);
    desc = small_desc(FEATURE(K_SCALE));
    desc.operation = CLATTN_OPERATION_CONVERT;
    desc.heads_q = desc.heads_kv;
    desc.dtype_k = CLATTN_DTYPE_I8;
    plans.convert = plan_with(context, &desc);
}

static void release_plans(void)
{
    clattn_plan *all[] = {plans.plain,  plans.packed, plans.paged,        plans.scaled, plans.v_in_k,
                          plans.decode, plans.append, plans.paged_append, plans.merge,  plans.convert};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        clattn_plan_release(all[i]);
}

static int open_all(void **state)
{
    if (fixture_open(state) != 0)
        return -1;
    const clattn_context_options options = options_with(&log_);
    context = context_with(&options);
    make_pool();
    make_plans();
    return 0;
}

static int close_all(void **state)
{
    release_plans();
    for (int n = 0; n < BUFFERS; n++)
        clReleaseMemObject(pool[n]);
    clattn_context_release(context);
    return fixture_close(state);
}

static int start_again(void **state)
{
    (void)state;
    log_clear(&log_);
    taken = 0;
    return 0;
}

/* ---- Forward calls ---- */

/* Good calls of each plan, that tests spoil in one place. */

static clattn_forward_args plain_args(void)
{
    clattn_forward_args args = CLATTN_FORWARD_ARGS_INIT;
    args.q = fresh(2 * Q_LEN * DIM, Q_LEN * DIM, DIM);
    args.k = fresh(KV_LEN * DIM, KV_LEN * DIM, DIM);
    args.v = fresh(KV_LEN * DIM, KV_LEN * DIM, DIM);
    args.o = fresh(2 * Q_LEN * DIM, Q_LEN * DIM, DIM);
    args.lse = fresh(2 * Q_LEN, Q_LEN, 1);
    args.batch = BATCH;
    args.q_len = Q_LEN;
    args.kv_len = KV_LEN;
    return args;
}

static clattn_forward_args packed_args(void)
{
    clattn_forward_args args = plain_args();
    args.q = fresh(0, DIM, 2 * DIM);
    args.k = fresh(0, DIM, DIM);
    args.v = fresh(0, DIM, DIM);
    args.o = fresh(0, DIM, 2 * DIM);
    args.lse = fresh(0, TOTAL_Q, 1);
    args.cu_seqlens_q = list_of_ints();
    args.cu_seqlens_k = list_of_ints();
    args.total_q = TOTAL_Q;
    args.total_k = TOTAL_K;
    return args;
}

static clattn_forward_args paged_args(void)
{
    clattn_forward_args args = plain_args();
    args.k = fresh(PAGE * DIM, PAGE * DIM, DIM);
    args.v = fresh(PAGE * DIM, PAGE * DIM, DIM);
    args.kv_lens = list_of_ints();
    args.block_table = fresh(BLOCKS, 1, 0);
    args.status_words = list_of_ints();
    args.num_pages = PAGES;
    args.max_blocks = BLOCKS;
    return args;
}

static clattn_forward_args scaled_args(void)
{
    clattn_forward_args args = plain_args();
    args.k_scale = fresh(KV_LEN, KV_LEN, 1);
    args.v_scale = fresh(KV_LEN, KV_LEN, 1);
    return args;
}

static clattn_forward_args v_in_k_args(void)
{
    clattn_forward_args args = plain_args();
    const clattn_tensor none = CLATTN_TENSOR_INIT;
    args.v = none;
    return args;
}

static void expect_no_forward(clattn_plan *plan, const clattn_forward_args *args, clattn_status expected,
                              const char *says)
{
    char texts[300];
    cl_event event = (cl_event)&event;
    snprintf(texts, sizeof texts, "clattn_enqueue_forward|%s", says);
    clattn_fakedev_reset();
    const clattn_status status = clattn_enqueue_forward(plan, device.queue, args, 0, NULL, &event);
    expect_refusal(&log_, status, expected, texts);
    assert_ptr_equal(event, (cl_event)&event);
    expect_nothing_happened();
}

/* Spoils one member of a good call. */
#define REFUSED(kind, member, value, expected, says)              \
    do {                                                          \
        taken = 0;                                                \
        clattn_forward_args args = kind##_args();                 \
        args.member = (value);                                    \
        expect_no_forward(plans.kind, &args, (expected), (says)); \
    } while (0)

#define SMALL CLATTN_BUFFER_TOO_SMALL

static void test_packed(void **state)
{
    (void)state;
    REFUSED(packed, cu_seqlens_q.handle, NULL, INVALID, "cu_seqlens_q.handle is NULL|expected");
    REFUSED(packed, cu_seqlens_k.handle, NULL, INVALID, "cu_seqlens_k.handle is NULL|expected");
    REFUSED(packed, cu_seqlens_q.byte_offset, 2, INVALID,
            "cu_seqlens_q.byte_offset = 2|expected a multiple of 4");
    REFUSED(packed, cu_seqlens_q.byte_offset, BYTES - 8, SMALL,
            "cu_seqlens_q: the buffer has 8192 bytes|expected at least 8196");
    REFUSED(packed, cu_seqlens_k.byte_offset, BYTES - 8, SMALL,
            "cu_seqlens_k: the buffer has 8192 bytes|expected at least 8196");
    REFUSED(packed, total_q, -1, INVALID, "total_q = -1|expected 0 to 1073741824");
    REFUSED(packed, total_q, (int64_t)CLATTN_MAX_LENGTH + 1, INVALID,
            "total_q = 1073741825|expected 0 to 1073741824");
    REFUSED(packed, total_k, -1, INVALID, "total_k = -1|expected 0 to 1073741824");
    REFUSED(packed, total_k, INT64_MAX, INVALID, "total_k = 9223372036854775807|expected 0 to 1073741824");
    REFUSED(packed, total_q, 65, SMALL, "q: the buffer has 8192 bytes|expected at least 8320");
    REFUSED(packed, total_k, 129, SMALL, "k: the buffer has 8192 bytes|expected at least 8256");
    REFUSED(packed, o.stride[2], 31, INVALID, "o.stride = {0, 16, 31}|not to overlap");
    REFUSED(packed, lse.stride[1], 5, INVALID, "lse.stride = {0, 5, 1}|not to overlap");
    REFUSED(packed, num_pages, 1, INVALID, "num_pages = 1|expected 0");
    REFUSED(packed, max_blocks, 1, INVALID, "max_blocks = 1|expected 0");
    REFUSED(plain, total_q, 6, INVALID, "total_q = 6|expected 0");
    REFUSED(plain, total_k, 16, INVALID, "total_k = 16|expected 0");
    REFUSED(plain, cu_seqlens_q.handle, pool[20], INVALID, "cu_seqlens_q.handle is set|expected NULL");
    REFUSED(plain, cu_seqlens_k.handle, pool[20], INVALID, "cu_seqlens_k.handle is set|expected NULL");
}

static void test_paged(void **state)
{
    (void)state;
    REFUSED(paged, block_table.handle, NULL, INVALID, "block_table.handle is NULL|expected");
    REFUSED(paged, kv_lens.handle, NULL, INVALID, "kv_lens.handle is NULL|expected");
    REFUSED(paged, status_words.handle, NULL, INVALID, "status_words.handle is NULL|expected");
    REFUSED(paged, block_table.stride[0], -1, INVALID, "block_table.stride[0] (batch) = -1|expected >= 0");
    REFUSED(paged, block_table.byte_offset, 6, INVALID, "block_table.byte_offset = 6|multiple of 4");
    REFUSED(paged, block_table.byte_offset, BYTES - 12, SMALL,
            "block_table: the buffer has 8192 bytes|expected at least 8196");
    REFUSED(paged, block_table.stride[0], 2048, SMALL,
            "block_table: the buffer has 8192 bytes|expected at least 8200");
    REFUSED(paged, status_words.byte_offset, BYTES - 12, SMALL,
            "status_words: the buffer has 8192 bytes|expected at least 8196");
    REFUSED(paged, num_pages, -1, INVALID, "num_pages = -1|expected 0 to 2147483647");
    REFUSED(paged, num_pages, (int64_t)INT32_MAX + 1, INVALID,
            "num_pages = 2147483648|expected 0 to 2147483647");
    REFUSED(paged, num_pages, 0, INVALID, "num_pages = 0|expected at least one page|kv_len is 8");
    REFUSED(paged, num_pages, 33, SMALL, "k: the buffer has 8192 bytes|expected at least 8448");
    REFUSED(paged, max_blocks, -1, INVALID, "max_blocks = -1|expected 0 to 1073741824");
    REFUSED(paged, max_blocks, 1, INVALID, "kv_len = 8|expected at most max_blocks * page_size = 1 * 4");
    REFUSED(paged, max_blocks, 0, INVALID, "kv_len = 8|expected at most max_blocks * page_size = 0 * 4");
    REFUSED(paged, kv_len, 9, INVALID, "kv_len = 9|expected at most max_blocks * page_size = 2 * 4");
    REFUSED(paged, k.stride[0], 2000, SMALL, "k: the buffer has 8192 bytes|expected at least 32256");
    REFUSED(paged, status_words.handle, args.o.handle, INVALID,
            "output |o|status_words|overlap in one buffer");
    REFUSED(plain, num_pages, 5, INVALID, "num_pages = 5|expected 0");
    REFUSED(plain, max_blocks, 2, INVALID, "max_blocks = 2|expected 0");
    REFUSED(plain, block_table.handle, pool[20], INVALID, "block_table.handle is set|expected NULL");
    REFUSED(plain, status_words.handle, pool[20], INVALID, "status_words.handle is set|expected NULL");
}

static void test_cache_types(void **state)
{
    (void)state;
    REFUSED(scaled, k_scale.handle, NULL, INVALID, "k_scale.handle is NULL|expected");
    REFUSED(scaled, v_scale.handle, NULL, INVALID, "v_scale.handle is NULL|expected");
    REFUSED(scaled, k_scale.stride[1], -1, INVALID, "k_scale.stride[1] (head) = -1|expected >= 0");
    REFUSED(scaled, v_scale.byte_offset, 1, INVALID, "v_scale.byte_offset = 1|multiple of 4");
    REFUSED(scaled, v_scale.stride[2], 1000, SMALL,
            "v_scale: the buffer has 8192 bytes|expected at least 28036");
    REFUSED(scaled, k.byte_offset, BYTES - 255, SMALL, "k: the buffer has 8192 bytes|expected at least 8193");
    REFUSED(scaled, o.handle, args.k_scale.handle, INVALID, "output o and k_scale overlap in one buffer");
    REFUSED(plain, k_scale.handle, pool[20], INVALID, "k_scale.handle is set|expected NULL");
    REFUSED(plain, v_scale.handle, pool[20], INVALID, "v_scale.handle is set|expected NULL");
    REFUSED(v_in_k, v.handle, pool[20], INVALID, "v.handle is set|expected NULL");
}

/* Places in buffers of blocks: offsets in whole blocks, strides that count them. */
static void test_types_of_blocks(void **state)
{
    clattn_plan_desc desc = small_desc(0);
    (void)state;
    desc.head_dim_qk = 64;
    desc.dtype_k = CLATTN_DTYPE_Q8_0;
    clattn_plan *plan = plan_with(context, &desc);
    log_clear(&log_);
    clattn_forward_args args = CLATTN_FORWARD_ARGS_INIT;
    args.q = fresh(2 * Q_LEN * 64, Q_LEN * 64, 64);
    args.k = fresh(KV_LEN * 2, KV_LEN * 2, 2);
    args.v = fresh(KV_LEN * 2, KV_LEN * 2, 2);
    args.o = fresh(2 * Q_LEN * 64, Q_LEN * 64, 64);
    args.batch = BATCH;
    args.q_len = Q_LEN;
    args.kv_len = KV_LEN;
    args.k.byte_offset = 33;
    expect_no_forward(plan, &args, INVALID, "k.byte_offset = 33|expected a multiple of 2");
    args.k.byte_offset = 34;
    args.k.stride[2] = 16; /* rows of 7 * 16 + 2 blocks, two sequences */
    args.k.stride[0] = 128;
    expect_no_forward(plan, &args, SMALL, "k: the buffer has 8192 bytes|expected at least 8262");
    args.k.stride[3] = 2;
    expect_no_forward(plan, &args, INVALID, "k.stride[3] = 2|expected 1");
    clattn_plan_release(plan);
}

/* ---- Workspace of decode kernels ---- */

static size_t decode_bytes(void)
{
    clattn_bounds bounds = CLATTN_BOUNDS_INIT;
    size_t bytes = 0;
    bounds.batch = BATCH;
    bounds.q_len = Q_LEN;
    bounds.kv_len = KV_LEN;
    assert_int_equal(clattn_forward_workspace(plans.decode, &bounds, &bytes), CLATTN_SUCCESS);
    return bytes;
}

/* As clattn.h counts it: (head_dim_v + 2) floats for each row, head and split. */
static void test_decode_workspace_size(void **state)
{
    clattn_bounds bounds = CLATTN_BOUNDS_INIT;
    size_t bytes = 17, before = 0;
    (void)state;
    assert_int_equal(decode_bytes(), (DIM + 2) * 4 * BATCH * Q_LEN * 2 * 4);
    for (int64_t n = 1; n < 40; n++) {
        bounds.batch = 1 + n / 8;
        bounds.q_len = n;
        bounds.kv_len = 10 * n;
        assert_int_equal(clattn_forward_workspace(plans.decode, &bounds, &bytes), CLATTN_SUCCESS);
        assert_true(bytes >= before);
        before = bytes;
    }
    bounds.total_q = 5;
    bytes = 17;
    expect_refusal(&log_, clattn_forward_workspace(plans.decode, &bounds, &bytes), INVALID,
                   "clattn_forward_workspace|total_q = 5|expected 0");
    expect_refusal(&log_, clattn_forward_workspace(plans.merge, &bounds, &bytes), INVALID,
                   "clattn_forward_workspace|operation = 2|expected CLATTN_OPERATION_FORWARD (0)");
    bounds.total_q = -1;
    expect_refusal(&log_, clattn_forward_workspace(plans.packed, &bounds, &bytes), INVALID,
                   "clattn_forward_workspace|total_q = -1|expected 0 to");
    assert_int_equal(bytes, 17);
}

static clattn_forward_args decode_args(void) { return plain_args(); }

static void test_decode_workspace(void **state)
{
    const uint64_t last = BYTES - decode_bytes();
    char says[120];
    (void)state;
    taken = 0;
    clattn_forward_args args = decode_args();
    args.workspace = fresh(0, 0, 0);
    args.workspace.byte_offset = last + 4;
    snprintf(says, sizeof says, "workspace: the buffer has 8192 bytes|expected at least 8196");
    expect_no_forward(plans.decode, &args, SMALL, says);
    args.workspace.byte_offset = 2;
    expect_no_forward(plans.decode, &args, INVALID, "workspace.byte_offset = 2|expected a multiple of 4");
    args.workspace = args.o;
    expect_no_forward(plans.decode, &args, INVALID, "o|workspace|overlap in one buffer");
    args.workspace = args.k;
    memset(args.workspace.stride, 0, sizeof args.workspace.stride);
    expect_no_forward(plans.decode, &args, INVALID, "workspace|k|overlap in one buffer");
}

static void test_plans_of_other_operations(void **state)
{
    clattn_plan *others[] = {plans.append, plans.merge, plans.convert};
    (void)state;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        char says[100];
        snprintf(says, sizeof says, "plan has operation = %d|expected CLATTN_OPERATION_FORWARD (0)",
                 (int)i + 1);
        taken = 0;
        const clattn_forward_args args = plain_args();
        expect_no_forward(others[i], &args, INVALID, says);
    }
}

/* ---- Append ---- */

static clattn_append_args append_args(void)
{
    clattn_append_args args = CLATTN_APPEND_ARGS_INIT;
    args.k_new = fresh(0, DIM, DIM);
    args.v_new = fresh(0, DIM, DIM);
    args.k = fresh(KV_LEN * DIM, KV_LEN * DIM, DIM);
    args.v = fresh(KV_LEN * DIM, KV_LEN * DIM, DIM);
    args.q = fresh(0, DIM, 2 * DIM);
    args.q_out = fresh(0, DIM, 2 * DIM);
    args.kv_lens = list_of_ints();
    args.kv_lens_out = list_of_ints();
    args.cu_seqlens_q = list_of_ints();
    args.rope_cos = fresh(DIM / 2, 0, 0);
    args.rope_sin = fresh(DIM / 2, 0, 0);
    args.batch = BATCH;
    args.new_len = Q_LEN;
    args.total_new = TOTAL_Q;
    args.kv_len = KV_LEN;
    args.rope_len = 20;
    return args;
}

static clattn_append_args paged_append_args(void)
{
    clattn_append_args args = append_args();
    const clattn_tensor none = CLATTN_TENSOR_INIT;
    args.rope_cos = args.rope_sin = args.cu_seqlens_q = none;
    args.total_new = args.rope_len = 0;
    args.k_new = fresh(Q_LEN * DIM, Q_LEN * DIM, DIM);
    args.v_new = fresh(Q_LEN * DIM, Q_LEN * DIM, DIM);
    args.q = fresh(2 * Q_LEN * DIM, Q_LEN * DIM, DIM);
    args.q_out = fresh(2 * Q_LEN * DIM, Q_LEN * DIM, DIM);
    args.k = fresh(PAGE * DIM, PAGE * DIM, DIM);
    args.v = fresh(PAGE * DIM, PAGE * DIM, DIM);
    args.q_lens = list_of_ints();
    args.block_table = fresh(BLOCKS, 1, 0);
    args.status_words = list_of_ints();
    args.num_pages = PAGES;
    args.max_blocks = BLOCKS;
    return args;
}

static void expect_no_append(clattn_plan *plan, const clattn_append_args *args, clattn_status expected,
                             const char *says)
{
    char texts[300];
    cl_event event = (cl_event)&event;
    snprintf(texts, sizeof texts, "clattn_enqueue_kv_append|%s", says);
    clattn_fakedev_reset();
    const clattn_status status = clattn_enqueue_kv_append(plan, device.queue, args, 0, NULL, &event);
    expect_refusal(&log_, status, expected, texts);
    assert_ptr_equal(event, (cl_event)&event);
    expect_nothing_happened();
}

#define APPEND_REFUSED(kind, member, value, expected, says)      \
    do {                                                         \
        taken = 0;                                               \
        clattn_append_args args = kind##_args();                 \
        args.member = (value);                                   \
        expect_no_append(plans.kind, &args, (expected), (says)); \
    } while (0)

static void test_append(void **state)
{
    (void)state;
    taken = 0;
    const clattn_append_args good = append_args();
    expect_no_append(plans.append, NULL, INVALID, "args is NULL");
    expect_no_append(plans.plain, &good, INVALID,
                     "plan has operation = 0|expected CLATTN_OPERATION_KV_APPEND (1)");
    APPEND_REFUSED(append, struct_size, 0, INVALID, "args.struct_size = 0|expected at least");
    APPEND_REFUSED(append, reserved, 1, INVALID, "args.reserved = 1|expected 0");
    APPEND_REFUSED(append, batch, -1, INVALID, "batch = -1|expected 0 to 2147483647");
    APPEND_REFUSED(append, new_len, -1, INVALID, "new_len = -1|expected 0 to 1073741824");
    APPEND_REFUSED(append, total_new, -1, INVALID, "total_new = -1|expected 0 to 1073741824");
    APPEND_REFUSED(append, kv_len, -1, INVALID, "kv_len = -1|expected 0 to 1073741824");
    APPEND_REFUSED(append, k.stride[0], 2000, SMALL, "k: the buffer has 8192 bytes|expected at least 8512");
    APPEND_REFUSED(append, num_pages, 1, INVALID, "num_pages = 1|expected 0");
    APPEND_REFUSED(append, max_blocks, 1, INVALID, "max_blocks = 1|expected 0");
    APPEND_REFUSED(append, rope_len, 0, INVALID, "rope_len = 0|expected 1 to 1073741824");
    APPEND_REFUSED(append, rope_base, 500.0f, INVALID, "rope_base = 500|expected 0");
    APPEND_REFUSED(append, rope_scale, 0.5f, INVALID, "rope_scale = 0.5|expected 0");
    APPEND_REFUSED(append, rope_base, NAN, INVALID, "rope_base = |nan|expected");
    APPEND_REFUSED(append, rope_base, -1.0f, INVALID, "rope_base = -1|expected");
    APPEND_REFUSED(append, rope_scale, INFINITY, INVALID, "rope_scale = inf|expected");
    APPEND_REFUSED(append, k_new.handle, NULL, INVALID, "k_new.handle is NULL|expected");
    APPEND_REFUSED(append, v_new.handle, NULL, INVALID, "v_new.handle is NULL|expected");
    APPEND_REFUSED(append, k.handle, NULL, INVALID, "k.handle is NULL|expected");
    APPEND_REFUSED(append, v.handle, NULL, INVALID, "v.handle is NULL|expected");
    APPEND_REFUSED(append, q.handle, NULL, INVALID, "q.handle is NULL|expected");
    APPEND_REFUSED(append, q_out.handle, NULL, INVALID, "q_out.handle is NULL|expected");
    APPEND_REFUSED(append, kv_lens.handle, NULL, INVALID, "kv_lens.handle is NULL|expected");
    APPEND_REFUSED(append, cu_seqlens_q.handle, NULL, INVALID, "cu_seqlens_q.handle is NULL|expected");
    APPEND_REFUSED(append, rope_cos.handle, NULL, INVALID, "rope_cos.handle is NULL|expected");
    APPEND_REFUSED(append, rope_sin.handle, NULL, INVALID, "rope_sin.handle is NULL|expected");
    APPEND_REFUSED(append, rope_sin.stride[0], 200, SMALL,
                   "rope_sin: the buffer has 8192 bytes|expected at least 15232");
    APPEND_REFUSED(append, q_lens.handle, pool[20], INVALID, "q_lens.handle is set|expected NULL");
    APPEND_REFUSED(append, block_table.handle, pool[20], INVALID, "block_table.handle is set|expected NULL");
    APPEND_REFUSED(append, slot_mapping.handle, pool[20], INVALID,
                   "slot_mapping.handle is set|expected NULL");
    APPEND_REFUSED(append, status_words.handle, pool[20], INVALID,
                   "status_words.handle is set|expected NULL");
    APPEND_REFUSED(append, k_scale.handle, pool[20], INVALID, "k_scale.handle is set|expected NULL");
    APPEND_REFUSED(append, k.stride[2], 15, INVALID, "k.stride = {128, 128, 15}|not to overlap");
    APPEND_REFUSED(append, k_new.stride[3], 2, INVALID, "k_new.stride[3] = 2|expected 1");
    APPEND_REFUSED(append, k.handle, args.k_new.handle, INVALID, "output k and k_new overlap in one buffer");
    APPEND_REFUSED(append, v.handle, args.k.handle, INVALID, "output k and v overlap in one buffer");
    APPEND_REFUSED(append, kv_lens_out.handle, args.cu_seqlens_q.handle, INVALID,
                   "output kv_lens_out and cu_seqlens_q overlap in one buffer");
}

static void test_paged_append(void **state)
{
    (void)state;
    APPEND_REFUSED(paged_append, block_table.handle, NULL, INVALID, "block_table.handle is NULL|expected");
    APPEND_REFUSED(paged_append, q_lens.handle, NULL, INVALID, "q_lens.handle is NULL|expected");
    APPEND_REFUSED(paged_append, status_words.handle, NULL, INVALID, "status_words.handle is NULL|expected");
    APPEND_REFUSED(paged_append, num_pages, -1, INVALID, "num_pages = -1|expected 0 to 2147483647");
    APPEND_REFUSED(paged_append, num_pages, 33, SMALL, "k: the buffer has 8192 bytes|expected at least 8448");
    APPEND_REFUSED(paged_append, max_blocks, -1, INVALID, "max_blocks = -1|expected 0 to 1073741824");
    APPEND_REFUSED(paged_append, kv_len, 9, INVALID,
                   "kv_len = 9|expected at most max_blocks * page_size = 2 * 4");
    APPEND_REFUSED(paged_append, total_new, 1, INVALID, "total_new = 1|expected 0");
    APPEND_REFUSED(paged_append, rope_len, 1, INVALID, "rope_len = 1|expected 0");
    APPEND_REFUSED(paged_append, cu_seqlens_q.handle, pool[23], INVALID,
                   "cu_seqlens_q.handle is set|expected NULL");
    APPEND_REFUSED(paged_append, rope_cos.handle, pool[23], INVALID, "rope_cos.handle is set|expected NULL");
}

/* Neither half is enqueued when the other one is wrong. */
static void test_append_and_forward(void **state)
{
    cl_event event = (cl_event)&event;
    (void)state;
#define BOTH_REFUSED(first, first_args, second, second_args, expected, says)                     \
    clattn_fakedev_reset();                                                                      \
    expect_refusal(&log_,                                                                        \
                   clattn_enqueue_append_forward((first), (first_args), (second), (second_args), \
                                                 device.queue, 0, NULL, &event),                 \
                   (expected), "clattn_enqueue_append_forward|" says);                           \
    assert_ptr_equal(event, (cl_event)&event);                                                   \
    expect_nothing_happened()
    taken = 0;
    clattn_append_args append = append_args();
    taken = 12;
    clattn_forward_args forward = plain_args();
    BOTH_REFUSED(plans.append, NULL, plans.plain, &forward, INVALID, "args is NULL");
    BOTH_REFUSED(plans.append, &append, plans.plain, NULL, INVALID, "args is NULL");
    BOTH_REFUSED(plans.merge, &append, plans.plain, &forward, INVALID,
                 "operation = 2|expected CLATTN_OPERATION_KV_APPEND (1)");
    BOTH_REFUSED(plans.append, &append, plans.append, &forward, INVALID,
                 "operation = 1|expected CLATTN_OPERATION_FORWARD (0)");
    forward.scale = NAN;
    BOTH_REFUSED(plans.append, &append, plans.plain, &forward, INVALID, "scale = |nan");
    forward.scale = 0;
    append.batch = -3;
    BOTH_REFUSED(plans.append, &append, plans.plain, &forward, INVALID, "batch = -3");
}

/* ---- Merge, convert ---- */

static clattn_merge_args merge_args(void)
{
    clattn_merge_args args = CLATTN_MERGE_ARGS_INIT;
    args.o_parts = fresh(2 * Q_LEN * DIM, Q_LEN * DIM, DIM);
    args.lse_parts = fresh(2 * Q_LEN, Q_LEN, 1);
    args.o = fresh(2 * Q_LEN * DIM, Q_LEN * DIM, DIM);
    args.lse = fresh(2 * Q_LEN, Q_LEN, 1);
    args.batch = BATCH;
    args.q_len = Q_LEN;
    args.num_parts = 4;
    args.o_part_stride = BATCH * 2 * Q_LEN * DIM;
    args.lse_part_stride = BATCH * 2 * Q_LEN;
    return args;
}

static void expect_no_merge(clattn_plan *plan, const clattn_merge_args *args, clattn_status expected,
                            const char *says)
{
    char texts[300];
    cl_event event = (cl_event)&event;
    snprintf(texts, sizeof texts, "clattn_enqueue_merge|%s", says);
    clattn_fakedev_reset();
    expect_refusal(&log_, clattn_enqueue_merge(plan, device.queue, args, 0, NULL, &event), expected, texts);
    assert_ptr_equal(event, (cl_event)&event);
    expect_nothing_happened();
}

static void test_merge(void **state)
{
    (void)state;
    taken = 0;
    const clattn_merge_args good = merge_args();
    expect_no_merge(plans.merge, NULL, INVALID, "args is NULL");
    expect_no_merge(plans.plain, &good, INVALID, "operation = 0|expected CLATTN_OPERATION_MERGE (2)");
#define MERGE_REFUSED(member, value, expected, says)             \
    do {                                                         \
        taken = 0;                                               \
        clattn_merge_args args = merge_args();                   \
        args.member = (value);                                   \
        expect_no_merge(plans.merge, &args, (expected), (says)); \
    } while (0)
    MERGE_REFUSED(struct_size, 3, INVALID, "args.struct_size = 3|expected at least");
    MERGE_REFUSED(reserved, 3, INVALID, "args.reserved = 3|expected 0");
    MERGE_REFUSED(batch, -1, INVALID, "batch = -1|expected 0 to 2147483647");
    MERGE_REFUSED(q_len, (int64_t)CLATTN_MAX_LENGTH + 1, INVALID,
                  "q_len = 1073741825|expected 0 to 1073741824");
    MERGE_REFUSED(total_q, 1, INVALID, "total_q = 1|expected 0");
    MERGE_REFUSED(num_parts, 0, INVALID, "num_parts = 0|expected 1 to 256");
    MERGE_REFUSED(num_parts, 257, INVALID, "num_parts = 257|expected 1 to 256");
    MERGE_REFUSED(num_parts, 11, SMALL, "o_parts: the buffer has 8192 bytes|expected at least 8448");
    MERGE_REFUSED(o_part_stride, -1, INVALID, "o_part_stride = -1|expected 0 to");
    MERGE_REFUSED(lse_part_stride, -1, INVALID, "lse_part_stride = -1|expected 0 to");
    MERGE_REFUSED(lse_part_stride, 1000, SMALL,
                  "lse_parts: the buffer has 8192 bytes|expected at least 12048");
    MERGE_REFUSED(o_parts.handle, NULL, INVALID, "o_parts.handle is NULL|expected");
    MERGE_REFUSED(lse_parts.handle, NULL, INVALID, "lse_parts.handle is NULL|expected");
    MERGE_REFUSED(o.handle, NULL, INVALID, "o.handle is NULL|expected");
    MERGE_REFUSED(lse.handle, NULL, INVALID, "lse.handle is NULL|expected");
    MERGE_REFUSED(sinks.handle, pool[20], INVALID, "sinks.handle is set|expected NULL");
    MERGE_REFUSED(o.stride[2], 15, INVALID, "o.stride = {96, 48, 15}|not to overlap");
    MERGE_REFUSED(o.handle, args.o_parts.handle, INVALID, "output o and o_parts overlap in one buffer");
}

static clattn_convert_args convert_args(void)
{
    clattn_convert_args args = CLATTN_CONVERT_ARGS_INIT;
    args.from = fresh(KV_LEN * DIM, KV_LEN * DIM, DIM);
    args.to = fresh(KV_LEN * DIM, KV_LEN * DIM, DIM);
    args.scale = fresh(KV_LEN, KV_LEN, 1);
    args.batch = BATCH;
    args.len = KV_LEN;
    return args;
}

static void expect_no_convert(clattn_plan *plan, const clattn_convert_args *args, clattn_status expected,
                              const char *says)
{
    char texts[300];
    cl_event event = (cl_event)&event;
    snprintf(texts, sizeof texts, "clattn_enqueue_convert|%s", says);
    clattn_fakedev_reset();
    expect_refusal(&log_, clattn_enqueue_convert(plan, device.queue, args, 0, NULL, &event), expected, texts);
    assert_ptr_equal(event, (cl_event)&event);
    expect_nothing_happened();
}

static void test_convert(void **state)
{
    (void)state;
    taken = 0;
    const clattn_convert_args good = convert_args();
    expect_no_convert(plans.convert, NULL, INVALID, "args is NULL");
    expect_no_convert(plans.append, &good, INVALID, "operation = 1|expected CLATTN_OPERATION_CONVERT (3)");
#define CONVERT_REFUSED(member, value, expected, says)               \
    do {                                                             \
        taken = 0;                                                   \
        clattn_convert_args args = convert_args();                   \
        args.member = (value);                                       \
        expect_no_convert(plans.convert, &args, (expected), (says)); \
    } while (0)
    CONVERT_REFUSED(struct_size, 3, INVALID, "args.struct_size = 3|expected at least");
    CONVERT_REFUSED(reserved, 3, INVALID, "args.reserved = 3|expected 0");
    CONVERT_REFUSED(batch, -1, INVALID, "batch = -1|expected 0 to 2147483647");
    CONVERT_REFUSED(len, -1, INVALID, "len = -1|expected 0 to 1073741824");
    CONVERT_REFUSED(len, 200, SMALL, "from: the buffer has 8192 bytes|expected at least");
    CONVERT_REFUSED(from.handle, NULL, INVALID, "from.handle is NULL|expected");
    CONVERT_REFUSED(to.handle, NULL, INVALID, "to.handle is NULL|expected");
    CONVERT_REFUSED(scale.handle, NULL, INVALID, "scale.handle is NULL|expected");
    CONVERT_REFUSED(scale.stride[2], 0, INVALID, "scale.stride = {8, 8, 0}|not to overlap");
    CONVERT_REFUSED(to.handle, args.from.handle, INVALID, "output to and from overlap in one buffer");
}

/* ---- Queue and context ---- */

static void test_queue_of_each_operation(void **state)
{
    cl_event event = (cl_event)&event;
    (void)state;
    taken = 0;
    const clattn_append_args append = append_args();
    const clattn_merge_args merge = merge_args();
    const clattn_convert_args convert = convert_args();
    clattn_fakedev_reset();
    expect_refusal(&log_, clattn_enqueue_kv_append(plans.append, NULL, &append, 0, NULL, &event), INVALID,
                   "clattn_enqueue_kv_append|queue is NULL");
    expect_refusal(&log_, clattn_enqueue_merge(plans.merge, NULL, &merge, 0, NULL, &event), INVALID,
                   "clattn_enqueue_merge|queue is NULL");
    expect_refusal(&log_, clattn_enqueue_convert(plans.convert, NULL, &convert, 0, NULL, &event), INVALID,
                   "clattn_enqueue_convert|queue is NULL");
    expect_refusal(&log_, clattn_enqueue_convert(plans.convert, device.queue, &convert, 2, NULL, &event),
                   INVALID, "clattn_enqueue_convert|num_wait = 2 and wait is NULL");
    assert_ptr_equal(event, (cl_event)&event);
    expect_nothing_happened();
}

static void test_plans_of_two_contexts(void **state)
{
    const clattn_context_options options = options_with(&log_);
    clattn_context *other = context_with(&options);
    clattn_plan_desc desc = small_desc(FEATURE(LSE));
    clattn_plan *plan = plan_with(other, &desc);
    cl_event event = (cl_event)&event;
    (void)state;
    log_clear(&log_);
    taken = 0;
    const clattn_append_args append = append_args();
    taken = 12;
    const clattn_forward_args forward = plain_args();
    BOTH_REFUSED(plans.append, &append, plan, &forward, INVALID, "context");
    clattn_plan_release(plan);
    clattn_context_release(other);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_descriptions, start_again),
        cmocka_unit_test_setup(test_description_reserved_and_texts, start_again),
        cmocka_unit_test_setup(test_packed, start_again),
        cmocka_unit_test_setup(test_paged, start_again),
        cmocka_unit_test_setup(test_cache_types, start_again),
        cmocka_unit_test_setup(test_types_of_blocks, start_again),
        cmocka_unit_test_setup(test_decode_workspace_size, start_again),
        cmocka_unit_test_setup(test_decode_workspace, start_again),
        cmocka_unit_test_setup(test_plans_of_other_operations, start_again),
        cmocka_unit_test_setup(test_append, start_again),
        cmocka_unit_test_setup(test_paged_append, start_again),
        cmocka_unit_test_setup(test_append_and_forward, start_again),
        cmocka_unit_test_setup(test_merge, start_again),
        cmocka_unit_test_setup(test_convert, start_again),
        cmocka_unit_test_setup(test_queue_of_each_operation, start_again),
        cmocka_unit_test_setup(test_plans_of_two_contexts, start_again),
    };
    fixture_arguments(argc, argv);
    return cmocka_run_group_tests(tests, open_all, close_all);
}
