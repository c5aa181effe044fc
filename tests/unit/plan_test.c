/* What a plan accepts and refuses, that clattn_plan_supported says the same as clattn_plan_create,
 * that zero means the default, and what a plan tells of itself. */
#include "fixture.h"

#include <fakedev.h>
#include <stdio.h>
#include <string.h>

static log_record log_ = LOG_RECORD_INIT;
static clattn_context *context;

static int open_all(void **state)
{
    if (fixture_open(state) != 0)
        return -1;
    const clattn_context_options options = options_with(&log_);
    context = context_with(&options);
    return 0;
}

static int close_all(void **state)
{
    clattn_context_release(context);
    return fixture_close(state);
}

static int clear_log(void **state)
{
    (void)state;
    log_clear(&log_);
    return 0;
}

/* ---- Refusals ---- */

/* Both functions refuse, with the same status and reason; nothing is compiled. */
static void expect_no_plan(const clattn_plan_desc *desc, clattn_status expected, const char *says)
{
    clattn_plan *plan = (clattn_plan *)&plan;
    char why[512] = "";
    clattn_fakedev_reset();
    expect_refusal(&log_, clattn_plan_create(&plan, context, desc), expected, says);
    assert_null(plan);

    log_record supported = LOG_RECORD_INIT;
    const clattn_status status = clattn_plan_supported(context, desc, why, sizeof why);
    supported.errors = 1;
    snprintf(supported.last_error, sizeof supported.last_error, "%s", why);
    expect_refusal(&supported, status, expected, says);
    assert_int_equal(log_.errors, 0); /* a question is no error */

    assert_int_equal(clattn_plan_supported(context, desc, NULL, 0), expected);
    assert_int_equal(clattn_fakedev_calls("clBuildProgram"), 0);
    assert_int_equal(clattn_fakedev_calls("clCreateProgramWithSource"), 0);
}

static void test_arguments(void **state)
{
    clattn_plan_desc desc = small_desc(0);
    (void)state;
    expect_no_plan(NULL, CLATTN_INVALID_ARGUMENT, "clattn_plan_|desc is NULL");
    expect_refusal(&log_, clattn_plan_create(NULL, context, &desc), CLATTN_INVALID_ARGUMENT,
                   "clattn_plan_create|out is NULL");
}

typedef struct refusal {
    size_t field; /* offset of an int32_t in the description */
    int32_t value;
    const char *says;
    clattn_status status; /* 0: INVALID_ARGUMENT */
} refusal;

#define FIELD(name) offsetof(clattn_plan_desc, name)
#define DTYPES "expected one of CLATTN_DTYPE_*"

static const refusal refusals[] = {
    {FIELD(phase), 3, "phase = 3|expected 0 to 2", 0},
    {FIELD(phase), -1, "phase = -1", 0},
    {FIELD(dtype_q), 4, "dtype_q = 4|" DTYPES, 0},
    {FIELD(dtype_q), -1, "dtype_q = -1|" DTYPES, 0},
    {FIELD(dtype_k), 4, "dtype_k = 4|" DTYPES, 0},
    {FIELD(dtype_v), INT32_MAX, "dtype_v = 2147483647|" DTYPES, 0},
    {FIELD(dtype_o), INT32_MIN, "dtype_o = -2147483648|" DTYPES, 0},
    {FIELD(dtype_bias), 9, "dtype_bias = 9 (q4_0)|expected CLATTN_DTYPE_F32 (1), F16 (2) or BF16 (3)", 0},
    {FIELD(heads_q), 0, "heads_q = 0|expected 1 to", 0},
    {FIELD(heads_q), -2, "heads_q = -2|expected 1 to", 0},
    {FIELD(heads_q), INT32_MAX, "heads_q = 2147483647|expected 1 to", 0},
    {FIELD(heads_kv), -1, "heads_kv = -1|expected 1 to", 0},
    {FIELD(heads_kv), 3, "heads_kv = 3|expected 1 to 2", 0},
    {FIELD(head_dim_qk), 0, "head_dim_qk = 0|expected 1 to 576", 0},
    {FIELD(head_dim_qk), -16, "head_dim_qk = -16|expected 1 to 576", 0},
    {FIELD(head_dim_qk), 577, "head_dim_qk = 577|expected 1 to 576", 0},
    {FIELD(head_dim_v), -1, "head_dim_v = -1|expected 1 to 576", 0},
    {FIELD(head_dim_v), 577, "head_dim_v = 577|expected 1 to 576", 0},
    {FIELD(features), 0x1000000, "features = 0x1000000|0x1000000|not offered", CLATTN_UNSUPPORTED},
    {FIELD(features), CLATTN_FEATURE_BIAS_HEAD_SCALE, "BIAS_HEAD_SCALE|expected CLATTN_FEATURE_BIAS", 0},
    {FIELD(features), CLATTN_FEATURE_LSE_BASE_2, "LSE_BASE_2|expected CLATTN_FEATURE_LSE", 0},
    {FIELD(features), CLATTN_FEATURE_Q_OFFSETS, "Q_OFFSETS|expected position_mode = CLATTN_POSITION_EXPLICIT",
     0},
    {FIELD(features), CLATTN_FEATURE_KEY_TILES, "tile_rows = 0|expected 1 to 1073741824", 0},
    {FIELD(tile_rows), 64, "tile_rows = 64|expected 0 to 0", 0},
    {FIELD(tile_keys), -1, "tile_keys = -1|expected 0 to 0", 0},
    {FIELD(features), INT32_MIN, "features = 0x80000000|not offered", CLATTN_UNSUPPORTED},
    {FIELD(position_mode), 3, "position_mode = 3|expected 0 to 2", 0},
    {FIELD(position_mode), -1, "position_mode = -1|expected 0 to 2", 0},
    {FIELD(path), 5, "path = 5|expected 0 to 4", 0},
    {FIELD(path), -1, "path = -1|expected 0 to 4", 0},
};

static void test_each_field(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        clattn_plan_desc desc = small_desc(0);
        char says[200];
        memcpy((char *)&desc + refusals[i].field, &refusals[i].value, sizeof refusals[i].value);
        snprintf(says, sizeof says, "clattn_plan_|%s", refusals[i].says);
        expect_no_plan(&desc, refusals[i].status != 0 ? refusals[i].status : CLATTN_INVALID_ARGUMENT, says);
    }
}

static void test_head_counts_must_divide(void **state)
{
    clattn_plan_desc desc = small_desc(0);
    (void)state;
    desc.heads_q = 6;
    desc.heads_kv = 4;
    expect_no_plan(&desc, CLATTN_INVALID_ARGUMENT,
                   "clattn_plan_|heads_q = 6|expected a multiple of heads_kv = 4");
}

typedef struct newer_desc {
    clattn_plan_desc known;
    unsigned char tail[8];
} newer_desc;

static void test_struct_size(void **state)
{
    clattn_plan_desc desc = small_desc(0);
    newer_desc newer;
    (void)state;
    desc.struct_size = 0;
    expect_no_plan(&desc, CLATTN_INVALID_ARGUMENT, "clattn_plan_|desc.struct_size = 0|at least 56");
    desc.struct_size = 55;
    expect_no_plan(&desc, CLATTN_INVALID_ARGUMENT, "clattn_plan_|desc.struct_size = 55|at least 56");

    desc.struct_size = 56; /* the first version's, which ended with `path` */
    desc.tile_rows = 99;
    assert_int_equal(clattn_plan_supported(context, &desc, NULL, 0), CLATTN_SUCCESS);

    memset(&newer, 0, sizeof newer);
    newer.known = small_desc(0);
    newer.known.struct_size = sizeof newer;
    assert_int_equal(clattn_plan_supported(context, &newer.known, NULL, 0), CLATTN_SUCCESS);
    newer.tail[7] = 1;
    expect_no_plan(&newer.known, CLATTN_UNSUPPORTED, "clattn_plan_|desc|newer header (112 bytes");
}

/* The cpu path on a device that is no CPU. */
static void test_path_that_does_not_apply(void **state)
{
    log_record log = LOG_RECORD_INIT;
    const clattn_context_options options = options_with(&log);
    clattn_plan_desc desc = small_desc(0);
    clattn_plan *plan = NULL;
    (void)state;
    assert_true(clattn_fakedev_set("CLATTN_FAKE_TYPE", "gpu"));
    clattn_context *gpu = context_with(&options);
    assert_true(clattn_fakedev_set("CLATTN_FAKE_TYPE", NULL));
    desc.path = CLATTN_PATH_CPU;
    expect_refusal(&log, clattn_plan_create(&plan, gpu, &desc), CLATTN_UNSUPPORTED,
                   "clattn_plan_create|path cpu does not apply|the device is no CPU");
    assert_null(plan);
    clattn_context_release(gpu);
}

/* ---- NVIDIA ---- */

static clattn_context *nvidia_context_with(const char *capability, const clattn_context_options *options)
{
    assert_true(clattn_fakedev_set("CLATTN_FAKE_TYPE", "gpu"));
    assert_true(clattn_fakedev_set("CLATTN_FAKE_VENDOR", "NVIDIA Corporation"));
    assert_true(clattn_fakedev_set("CLATTN_FAKE_LOCAL_MEM", "49152"));
    assert_true(clattn_fakedev_set("CLATTN_FAKE_WORK_GROUP", "1024"));
    assert_true(clattn_fakedev_set("CLATTN_FAKE_COMPUTE_CAPABILITY", capability));
    clattn_context *nvidia = context_with(options);
    assert_true(clattn_fakedev_set("CLATTN_FAKE_TYPE", NULL));
    assert_true(clattn_fakedev_set("CLATTN_FAKE_VENDOR", NULL));
    assert_true(clattn_fakedev_set("CLATTN_FAKE_LOCAL_MEM", NULL));
    assert_true(clattn_fakedev_set("CLATTN_FAKE_WORK_GROUP", NULL));
    assert_true(clattn_fakedev_set("CLATTN_FAKE_COMPUTE_CAPABILITY", NULL));
    return nvidia;
}

/* Paths for matrix units are refused where these are not. */
static void test_compute_capability(void **state)
{
    static const struct {
        const char *capability;
        int32_t path;
        const char *said;
    } cases[] = {
        {NULL, CLATTN_PATH_NVIDIA_MMA, "path nvidia_mma does not apply|compute capability 8.0 or above"},
        {"75", CLATTN_PATH_NVIDIA_MMA, "path nvidia_mma does not apply|compute capability 8.0 or above"},
        {"80", CLATTN_PATH_NVIDIA_WGMMA, "path nvidia_wgmma does not apply|compute capability 9.0"},
        {"100", CLATTN_PATH_NVIDIA_WGMMA, "path nvidia_wgmma does not apply|compute capability 9.0"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        log_record log = LOG_RECORD_INIT;
        const clattn_context_options options = options_with(&log);
        clattn_context *nvidia = nvidia_context_with(cases[i].capability, &options);
        clattn_plan_desc desc = small_desc(0);
        clattn_plan *plan = NULL;
        desc.dtype_q = CLATTN_DTYPE_F16;
        desc.path = cases[i].path;
        expect_refusal(&log, clattn_plan_create(&plan, nvidia, &desc), CLATTN_UNSUPPORTED, cases[i].said);
        assert_null(plan);
        clattn_context_release(nvidia);
    }
}

/* Where softcap and ALiBi alone change scores, nvidia_mma's prefill program is compiled for them; its decode
 * program, and all of other paths, then have full scores. */
static void test_scores_by_formula(void **state)
{
    enum { SOFTCAP = CLATTN_FEATURE_SOFTCAP, ALIBI = CLATTN_FEATURE_ALIBI, DECODE = CLATTN_PHASE_DECODE };
    static const struct {
        int32_t path, phase;
        uint32_t features;
        const char *mask_mod, *scores;
    } cases[] = {
        {CLATTN_PATH_NVIDIA_MMA, 0, 0, NULL, "lean"},
        {CLATTN_PATH_NVIDIA_MMA, 0, CLATTN_FEATURE_SINKS, NULL, "lean"},
        {CLATTN_PATH_NVIDIA_MMA, 0, SOFTCAP, NULL, "softcap"},
        {CLATTN_PATH_NVIDIA_MMA, 0, ALIBI, NULL, "alibi"},
        {CLATTN_PATH_NVIDIA_MMA, 0, SOFTCAP | ALIBI | CLATTN_FEATURE_LSE, NULL, "softcap+alibi"},
        {CLATTN_PATH_NVIDIA_MMA, 0, SOFTCAP | CLATTN_FEATURE_BIAS, NULL, "full"},
        {CLATTN_PATH_NVIDIA_MMA, 0, ALIBI | CLATTN_FEATURE_MASK, NULL, "full"},
        {CLATTN_PATH_NVIDIA_MMA, 0, SOFTCAP, "return 1;", "full"},
        {CLATTN_PATH_NVIDIA_MMA, DECODE, SOFTCAP, NULL, "full"},
        {CLATTN_PATH_PORTABLE, 0, SOFTCAP, NULL, "full"},
    };
    (void)state;
    const clattn_context_options options = options_with(&log_);
    clattn_context *nvidia = nvidia_context_with("80", &options);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        clattn_plan_desc desc = small_desc(cases[i].features);
        char candidate[512], expected[32];
        desc.dtype_q = CLATTN_DTYPE_F16;
        desc.path = cases[i].path;
        desc.phase = cases[i].phase;
        desc.mask_mod = cases[i].mask_mod;
        snprintf(expected, sizeof expected, " %s ", cases[i].scores);
        if (clattn_tuning_candidate(nvidia, &desc, 0, candidate, sizeof candidate) != CLATTN_SUCCESS ||
            strstr(candidate, expected) == NULL)
            fail_msg("case %u: \"%s\" has other scores than%s", (unsigned)i, candidate, expected);
    }
    clattn_context_release(nvidia);
}

/* What nvidia_mma takes, and why it leaves the rest; limited to local memory that every driver grants, 16-bit
 * types have a tile for every head dim. */
static void test_what_nvidia_mma_takes(void **state)
{
    static const char *const capabilities[] = {"80", "86", "89", "90", "120"};
    static const struct {
        int32_t dtype, dtype_v, dim_qk, dim_v, phase;
        uint32_t features;
        const char *said; /* NULL: taken */
    } cases[] = {
        {CLATTN_DTYPE_F16, 0, 1, 1, CLATTN_PHASE_PREFILL, 0, NULL},
        {CLATTN_DTYPE_F16, 0, 64, 64, CLATTN_PHASE_BOTH, CLATTN_FEATURE_BIAS, NULL},
        {CLATTN_DTYPE_BF16, 0, 96, 96, CLATTN_PHASE_PREFILL, CLATTN_FEATURE_ALIBI, NULL},
        {CLATTN_DTYPE_BF16, 0, 128, 128, CLATTN_PHASE_PREFILL, CLATTN_FEATURE_CAUSAL, NULL},
        {CLATTN_DTYPE_F16, 0, 192, 128, CLATTN_PHASE_PREFILL, CLATTN_FEATURE_MASK, NULL},
        {CLATTN_DTYPE_F16, 0, 111, 256, CLATTN_PHASE_PREFILL, CLATTN_FEATURE_SINKS, NULL},
        {CLATTN_DTYPE_F32, 0, 128, 128, CLATTN_PHASE_PREFILL, 0, NULL},
        {CLATTN_DTYPE_F16, 0, 257, 64, CLATTN_PHASE_PREFILL, 0,
         "nvidia_mma does not apply|head dims up to 256"},
        {CLATTN_DTYPE_F32, 0, 64, 129, CLATTN_PHASE_PREFILL, 0, "nvidia_mma does not apply|up to 128"},
        {CLATTN_DTYPE_F16, CLATTN_DTYPE_BF16, 64, 64, CLATTN_PHASE_PREFILL, 0,
         "nvidia_mma does not apply|of one type"},
        {CLATTN_DTYPE_F16, CLATTN_DTYPE_Q8_0, 64, 64, CLATTN_PHASE_PREFILL, 0,
         "nvidia_mma does not apply|of one type"},
        {CLATTN_DTYPE_F16, 0, 64, 64, CLATTN_PHASE_DECODE, 0, NULL},
        {CLATTN_DTYPE_BF16, 0, 256, 256, CLATTN_PHASE_BOTH, 0, NULL},
        {CLATTN_DTYPE_F32, 0, 64, 64, CLATTN_PHASE_DECODE, 0, NULL},
        {CLATTN_DTYPE_F16, 0, 64, 64, CLATTN_PHASE_PREFILL, CLATTN_FEATURE_V_IN_K,
         "nvidia_mma does not apply|v in k"},
    };
    (void)state;
    for (size_t d = 0; d < sizeof capabilities / sizeof *capabilities; d++) {
        log_record log = LOG_RECORD_INIT;
        clattn_context_options options = options_with(&log);
        options.max_local_bytes = 48 * 1024;
        clattn_context *nvidia = nvidia_context_with(capabilities[d], &options);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            clattn_plan_desc desc = small_desc(cases[i].features);
            clattn_plan *plan = NULL;
            char why[256];
            desc.path = CLATTN_PATH_NVIDIA_MMA;
            desc.dtype_q = cases[i].dtype;
            desc.dtype_v = cases[i].dtype_v;
            desc.head_dim_qk = cases[i].dim_qk;
            desc.head_dim_v = cases[i].dim_v;
            desc.phase = cases[i].phase;
            if (cases[i].said != NULL)
                expect_refusal(&log, clattn_plan_create(&plan, nvidia, &desc), CLATTN_UNSUPPORTED,
                               cases[i].said);
            else if (clattn_plan_supported(nvidia, &desc, why, sizeof why) != CLATTN_SUCCESS)
                fail_msg("capability %s, case %d: %s", capabilities[d], (int)i, why);
            assert_null(plan);
            log_clear(&log);
        }
        clattn_context_release(nvidia);
    }
}

/* What nvidia_wgmma takes. Left the choice, plans take it before nvidia_mma, which is next where it does not
 * build. */
static void test_what_nvidia_wgmma_takes(void **state)
{
    static const struct {
        int32_t dtype, dim_qk, dim_v, phase;
        uint32_t features;
        const char *said; /* NULL: taken */
    } cases[] = {
        {CLATTN_DTYPE_F16, 1, 1, CLATTN_PHASE_PREFILL, 0, NULL},
        {CLATTN_DTYPE_F16, 64, 64, CLATTN_PHASE_BOTH, CLATTN_FEATURE_ALIBI, NULL},
        {CLATTN_DTYPE_BF16, 128, 128, CLATTN_PHASE_PREFILL, CLATTN_FEATURE_CAUSAL, NULL},
        {CLATTN_DTYPE_F16, 192, 128, CLATTN_PHASE_PREFILL, CLATTN_FEATURE_SINKS, NULL},
        {CLATTN_DTYPE_BF16, 256, 256, CLATTN_PHASE_BOTH, CLATTN_FEATURE_LSE, NULL},
        {CLATTN_DTYPE_F16, 257, 64, CLATTN_PHASE_PREFILL, 0, "nvidia_wgmma does not apply|above 256"},
        {CLATTN_DTYPE_F32, 64, 64, CLATTN_PHASE_PREFILL, 0, "nvidia_wgmma does not apply|one 16-bit type"},
        {CLATTN_DTYPE_F16, 64, 64, CLATTN_PHASE_PREFILL, CLATTN_FEATURE_BIAS,
         "nvidia_wgmma does not apply|no bias"},
        {CLATTN_DTYPE_F16, 64, 64, CLATTN_PHASE_DECODE, 0, "nvidia_wgmma does not apply|decode"},
    };
    log_record log = LOG_RECORD_INIT;
    const clattn_context_options options = options_with(&log);
    clattn_context *nvidia = nvidia_context_with("90", &options);
    clattn_plan *plan = NULL;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        clattn_plan_desc desc = small_desc(cases[i].features);
        char why[256];
        desc.path = CLATTN_PATH_NVIDIA_WGMMA;
        desc.dtype_q = cases[i].dtype;
        desc.head_dim_qk = cases[i].dim_qk;
        desc.head_dim_v = cases[i].dim_v;
        desc.phase = cases[i].phase;
        if (cases[i].said != NULL)
            expect_refusal(&log, clattn_plan_create(&plan, nvidia, &desc), CLATTN_UNSUPPORTED, cases[i].said);
        else if (clattn_plan_supported(nvidia, &desc, why, sizeof why) != CLATTN_SUCCESS)
            fail_msg("case %d: %s", (int)i, why);
        assert_null(plan);
        log_clear(&log);
    }

    /* Causal plans and those with softcap begin with another row, and are tuned on their own. */
    static const struct {
        uint32_t features;
        const char *row;
    } first_rows[] = {
        {0, "64/64 lean 0: -DBLOCK_Q=192 -DBLOCK_K=128 "},
        {CLATTN_FEATURE_CAUSAL, "64/64 lean causal 0: -DBLOCK_Q=256 -DBLOCK_K=64 "},
        {CLATTN_FEATURE_SOFTCAP, "64/64 softcap 0: -DBLOCK_Q=256 -DBLOCK_K=64 "},
        {CLATTN_FEATURE_ALIBI, "64/64 alibi 0: -DBLOCK_Q=192 -DBLOCK_K=128 "},
        {CLATTN_FEATURE_ALIBI | CLATTN_FEATURE_CAUSAL, "64/64 alibi causal 0: -DBLOCK_Q=256 -DBLOCK_K=64 "},
    };
    for (size_t i = 0; i < sizeof first_rows / sizeof *first_rows; i++) {
        clattn_plan_desc desc = small_desc(first_rows[i].features);
        char text[512];
        desc.path = CLATTN_PATH_NVIDIA_WGMMA;
        desc.dtype_q = CLATTN_DTYPE_F16;
        desc.head_dim_qk = 64;
        assert_int_equal(clattn_tuning_candidate(nvidia, &desc, 0, text, sizeof text), CLATTN_SUCCESS);
        if (strstr(text, first_rows[i].row) == NULL)
            fail_msg("%s", text);
    }

    clattn_plan_desc desc = small_desc(0);
    desc.path = CLATTN_PATH_AUTO;
    desc.dtype_q = CLATTN_DTYPE_F16;
    char text[512];
    assert_int_equal(clattn_tuning_candidate(nvidia, &desc, 0, text, sizeof text), CLATTN_SUCCESS);
    if (strstr(text, "nvidia_wgmma") == NULL)
        fail_msg("%s", text);
    assert_true(clattn_fakedev_fail("clBuildProgram:1+:-11"));
    expect_refusal(&log, clattn_plan_create(&plan, nvidia, &desc), CLATTN_COMPILE_FAILED,
                   "nvidia_wgmma|nvidia_mma");
    assert_true(clattn_fakedev_fail(NULL));
    assert_null(plan);
    clattn_context_release(nvidia);
}

/* Caches of bytes: in decode, of f16 queries, k and v of one type; rows of few queries by its own kernels. */
static void test_which_bytes_nvidia_mma_takes(void **state)
{
    static const struct {
        int32_t q, k, v, dim, phase;
        const char *said; /* NULL: taken */
    } cases[] = {
        {CLATTN_DTYPE_F16, CLATTN_DTYPE_I8, CLATTN_DTYPE_I8, 128, CLATTN_PHASE_DECODE, NULL},
        {CLATTN_DTYPE_F16, CLATTN_DTYPE_F8_E4M3, CLATTN_DTYPE_F8_E4M3, 40, CLATTN_PHASE_DECODE, NULL},
        {CLATTN_DTYPE_F16, CLATTN_DTYPE_F8_E5M2, CLATTN_DTYPE_F8_E5M2, 64, CLATTN_PHASE_DECODE, NULL},
        {CLATTN_DTYPE_BF16, CLATTN_DTYPE_I8, CLATTN_DTYPE_I8, 128, CLATTN_PHASE_DECODE, "one type of bytes"},
        {CLATTN_DTYPE_F16, CLATTN_DTYPE_I8, CLATTN_DTYPE_F8_E4M3, 128, CLATTN_PHASE_DECODE,
         "one type of bytes"},
        {CLATTN_DTYPE_F16, CLATTN_DTYPE_I8, CLATTN_DTYPE_F16, 128, CLATTN_PHASE_DECODE, "one type of bytes"},
        {CLATTN_DTYPE_F16, CLATTN_DTYPE_Q8_0, CLATTN_DTYPE_Q8_0, 128, CLATTN_PHASE_DECODE,
         "one type of bytes"},
        {CLATTN_DTYPE_F16, CLATTN_DTYPE_I8, CLATTN_DTYPE_I8, 136, CLATTN_PHASE_DECODE, "one type of bytes"},
        {CLATTN_DTYPE_F16, CLATTN_DTYPE_I8, CLATTN_DTYPE_I8, 128, CLATTN_PHASE_BOTH, "one type of bytes"},
    };
    (void)state;
    log_record log = LOG_RECORD_INIT;
    const clattn_context_options options = options_with(&log);
    clattn_context *nvidia = nvidia_context_with("80", &options);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint32_t k_scale = cases[i].k == CLATTN_DTYPE_I8 ? CLATTN_FEATURE_K_SCALE : 0;
        const uint32_t v_scale = cases[i].v == CLATTN_DTYPE_I8 ? CLATTN_FEATURE_V_SCALE : 0;
        clattn_plan_desc desc = small_desc(k_scale | v_scale);
        char why[256];
        desc.path = CLATTN_PATH_NVIDIA_MMA;
        desc.dtype_q = cases[i].q;
        desc.dtype_k = cases[i].k;
        desc.dtype_v = cases[i].v;
        desc.head_dim_qk = desc.head_dim_v = cases[i].dim;
        desc.phase = cases[i].phase;
        const clattn_status status = clattn_plan_supported(nvidia, &desc, why, sizeof why);
        if ((status == CLATTN_SUCCESS) != (cases[i].said == NULL) ||
            (cases[i].said != NULL && strstr(why, cases[i].said) == NULL))
            fail_msg("case %d: %s", (int)i, why);
    }
    clattn_context_release(nvidia);
    log_clear(&log);
}

/* ---- Small devices ---- */

/* A context on a device with so much local memory and so large work-groups. */
static clattn_context *context_on(const char *local_bytes, const char *work_group, log_record *log)
{
    const clattn_context_options options = options_with(log);
    assert_true(clattn_fakedev_set("CLATTN_FAKE_TYPE", "gpu"));
    assert_true(clattn_fakedev_set("CLATTN_FAKE_LOCAL_MEM", local_bytes));
    assert_true(clattn_fakedev_set("CLATTN_FAKE_WORK_GROUP", work_group));
    clattn_context *small = context_with(&options);
    assert_true(clattn_fakedev_set("CLATTN_FAKE_TYPE", NULL));
    assert_true(clattn_fakedev_set("CLATTN_FAKE_LOCAL_MEM", NULL));
    assert_true(clattn_fakedev_set("CLATTN_FAKE_WORK_GROUP", NULL));
    return small;
}

/* The portable path's promise: 16 KiB and 64 work-items do for everything. */
static void test_the_smallest_device_takes_everything(void **state)
{
    clattn_context *small = context_on("16384", "64", NULL);
    (void)state;
    for (int32_t dim_qk = 1; dim_qk <= CLATTN_MAX_HEAD_DIM; dim_qk += dim_qk % 32 == 0 ? 1 : 31)
        for (int32_t dim_v = 1; dim_v <= CLATTN_MAX_HEAD_DIM; dim_v += dim_v % 32 == 0 ? 1 : 31)
            for (int32_t dtype = CLATTN_DTYPE_F32; dtype <= CLATTN_DTYPE_BF16; dtype++) {
                clattn_plan_desc desc = small_desc(dtype == CLATTN_DTYPE_F16 ? CLATTN_FEATURE_BIAS : 0);
                char why[200];
                desc.path = CLATTN_PATH_PORTABLE;
                desc.dtype_q = dtype;
                desc.head_dim_qk = dim_qk;
                desc.head_dim_v = dim_v;
                if (clattn_plan_supported(small, &desc, why, sizeof why) != CLATTN_SUCCESS)
                    fail_msg("%s", why);
            }
    clattn_context_release(small);
}

static void test_a_device_that_is_too_small(void **state)
{
    log_record log = LOG_RECORD_INIT;
    clattn_context *tiny = context_on("512", "1", &log);
    clattn_plan_desc desc = small_desc(0);
    clattn_plan *plan = NULL;
    (void)state;
    desc.path = CLATTN_PATH_PORTABLE;
    expect_refusal(&log, clattn_plan_create(&plan, tiny, &desc), CLATTN_UNSUPPORTED,
                   "clattn_plan_create|path portable does not apply|local memory and work-group size");
    desc.path = CLATTN_PATH_AUTO;
    expect_refusal(&log, clattn_plan_create(&plan, tiny, &desc), CLATTN_UNSUPPORTED,
                   "clattn_plan_create|no path applies|512 bytes of local memory, work-groups of 1");
    clattn_context_release(tiny);
}

/* ---- `why` ---- */

static void test_why_is_cut(void **state)
{
    clattn_plan_desc desc = small_desc(0);
    char whole[512], cut[512];
    (void)state;
    desc.head_dim_qk = 1000;
    assert_int_equal(clattn_plan_supported(context, &desc, whole, sizeof whole), CLATTN_INVALID_ARGUMENT);
    for (size_t capacity = 0; capacity <= 20; capacity++) {
        memset(cut, '#', sizeof cut);
        assert_int_equal(clattn_plan_supported(context, &desc, cut, capacity), CLATTN_INVALID_ARGUMENT);
        if (capacity > 0) {
            assert_int_equal(strlen(cut), capacity - 1);
            assert_memory_equal(cut, whole, capacity - 1);
        }
        assert_int_equal(cut[capacity], '#');
    }
    desc.head_dim_qk = 16;
    assert_int_equal(clattn_plan_supported(context, &desc, cut, sizeof cut), CLATTN_SUCCESS);
    assert_string_equal(cut, "");
}

/* ---- Agreement ---- */

/* What one accepts the other does. So that the sweep costs no compiler time, every source fails to
 * build: then an accepted description ends in COMPILE_FAILED, never in a refusal. */
static void test_supported_agrees_with_create(void **state)
{
    static const int32_t heads[] = {0, 1, 2, 3, 4, 6, 1 << 20, (1 << 20) + 1};
    static const int32_t dims[] = {-1, 0, 1, 32, 33, 128, 129, 575, 576, 577};
    static const int32_t dtypes[] = {0, 1, 2, 3, 4};
    int accepted = 0, refused = 0;
    (void)state;
    assert_true(clattn_fakedev_fail("clBuildProgram:1+:-11"));
    for (unsigned i = 0; i < 4000; i++) {
        /* Strides that are coprime with the counts reach every pair of neighbours in time. */
        clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
        clattn_plan *plan = NULL;
        desc.heads_q = heads[i % 8];
        desc.heads_kv = heads[i / 8 % 8];
        desc.head_dim_qk = dims[i / 3 % 10];
        desc.head_dim_v = dims[i / 7 % 10];
        desc.dtype_q = dtypes[i / 11 % 5];
        desc.dtype_o = dtypes[i / 13 % 5];
        desc.features = i % 67 | (i % 19 << 7);
        desc.position_mode = (int32_t)(i / 17 % 4);
        desc.path = (int32_t)(i / 5 % 5);
        desc.phase = (int32_t)(i / 23 % 4);
        desc.splits = i % 31 == 0 ? 300 : (int32_t)(i / 29 % 3);
        const clattn_status supported = clattn_plan_supported(context, &desc, NULL, 0);
        const clattn_status created = clattn_plan_create(&plan, context, &desc);
        assert_null(plan);
        assert_int_equal(created, supported == CLATTN_SUCCESS ? CLATTN_COMPILE_FAILED : supported);
        if (supported == CLATTN_SUCCESS)
            accepted++;
        else
            refused++;
    }
    assert_true(clattn_fakedev_fail(NULL));
    assert_true(accepted > 50);
    assert_true(refused > 50);
    log_clear(&log_);

    /* Those builds failed for good in this context; the other tests get a fresh one. */
    const clattn_context_options options = options_with(&log_);
    clattn_context_release(context);
    context = context_with(&options);
}

/* ---- Defaults ---- */

/* Zero and the spelt-out default give the same program and the same description. */
static void test_zero_means_default(void **state)
{
    clattn_plan_desc zero = CLATTN_PLAN_DESC_INIT, spelt = CLATTN_PLAN_DESC_INIT;
    char text[2][1024];
    (void)state;
    zero.heads_q = spelt.heads_q = spelt.heads_kv = 2;
    zero.head_dim_qk = spelt.head_dim_qk = spelt.head_dim_v = 16;
    zero.path = spelt.path = device.path;
    spelt.dtype_q = spelt.dtype_k = spelt.dtype_v = CLATTN_DTYPE_F32;
    spelt.dtype_o = spelt.dtype_bias = CLATTN_DTYPE_F32;
    clattn_plan *plans[] = {plan_with(context, &zero), plan_with(context, &spelt)};
    const char *source[2], *options[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(clattn_plan_describe(plans[i], text[i], sizeof text[i], NULL), CLATTN_SUCCESS);
        assert_int_equal(clattn_plan_source(plans[i], &source[i], &options[i]), CLATTN_SUCCESS);
    }
    assert_string_equal(text[0], text[1]);
    assert_string_equal(options[0], options[1]);
    assert_ptr_equal(source[0], source[1]); /* one program, shared */
    clattn_plan_release(plans[0]);
    clattn_plan_release(plans[1]);
}

/* ---- Describe, source ---- */

static void test_describe(void **state)
{
    clattn_plan_desc desc = small_desc(CLATTN_FEATURE_LSE);
    clattn_plan *plan = plan_with(context, &desc);
    char text[1024], cut[1024];
    size_t needed = 0;
    (void)state;
    log_clear(&log_);
    assert_int_equal(clattn_plan_describe(plan, NULL, 0, &needed), CLATTN_SUCCESS);
    assert_in_range(needed, 20, sizeof text);
    assert_int_equal(clattn_plan_describe(plan, text, needed, NULL), CLATTN_SUCCESS);
    assert_int_equal(strlen(text) + 1, needed);
    assert_null(strchr(text, '\n'));
    assert_non_null(strstr(text, device.path == CLATTN_PATH_PORTABLE ? "portable: tiles" : "cpu: tiles"));
    assert_non_null(strstr(text, "local memory"));

    memset(cut, '#', sizeof cut);
    size_t needed_again = 0;
    assert_int_equal(clattn_plan_describe(plan, cut, needed - 1, &needed_again), CLATTN_BUFFER_TOO_SMALL);
    assert_int_equal(needed_again, needed);
    assert_memory_equal(cut, text, needed - 2);
    assert_int_equal(cut[needed - 2], '\0');
    assert_int_equal(cut[needed - 1], '#');
    assert_int_equal(clattn_plan_describe(plan, NULL, 0, NULL), CLATTN_BUFFER_TOO_SMALL);
    log_clear(&log_);
    expect_refusal(&log_, clattn_plan_describe(plan, NULL, 10, &needed), CLATTN_INVALID_ARGUMENT,
                   "clattn_plan_describe|text is NULL|capacity is 10");
    clattn_plan_release(plan);
}

/* The forced path explains why the other was passed over. */
static void test_describe_says_why(void **state)
{
    clattn_plan_desc desc = small_desc(0);
    char text[1024];
    (void)state;
    if (device.path != CLATTN_PATH_PORTABLE)
        skip();
    clattn_plan *plan = plan_with(context, &desc);
    assert_int_equal(clattn_plan_describe(plan, text, sizeof text, NULL), CLATTN_SUCCESS);
    assert_non_null(strstr(text, "cpu passed over: another one was asked for"));
    clattn_plan_release(plan);
}

/* Source and options build as they are, as a bug report's reader would. */
static void test_source_builds(void **state)
{
    clattn_plan_desc desc = small_desc(0);
    clattn_plan *plan = plan_with(context, &desc);
    const char *source = NULL, *options = NULL;
    cl_int code;
    (void)state;
    assert_int_equal(clattn_plan_source(plan, &source, &options), CLATTN_SUCCESS);
    assert_non_null(strstr(source, "#line 1 \"cl/bounds.cl\""));
    assert_non_null(strstr(options, "-cl-std=CL1.2"));
    assert_null(strstr(options, "fast")); /* no fast-math: results are exact */
    cl_program program = clCreateProgramWithSource(device.context, 1, &source, NULL, &code);
    assert_int_equal(clBuildProgram(program, 1, &device.id, options, NULL, NULL), CL_SUCCESS);
    clReleaseProgram(program);

    log_clear(&log_);
    expect_refusal(&log_, clattn_plan_source(plan, NULL, &options), CLATTN_INVALID_ARGUMENT,
                   "clattn_plan_source|source is NULL");
    expect_refusal(&log_, clattn_plan_source(plan, &source, NULL), CLATTN_INVALID_ARGUMENT,
                   "clattn_plan_source|options is NULL");
    clattn_plan_release(plan);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_arguments, clear_log),
        cmocka_unit_test_setup(test_each_field, clear_log),
        cmocka_unit_test_setup(test_head_counts_must_divide, clear_log),
        cmocka_unit_test_setup(test_struct_size, clear_log),
        cmocka_unit_test_setup(test_path_that_does_not_apply, clear_log),
        cmocka_unit_test_setup(test_compute_capability, clear_log),
        cmocka_unit_test_setup(test_what_nvidia_mma_takes, clear_log),
        cmocka_unit_test_setup(test_what_nvidia_wgmma_takes, clear_log),
        cmocka_unit_test_setup(test_scores_by_formula, clear_log),
        cmocka_unit_test_setup(test_which_bytes_nvidia_mma_takes, clear_log),
        cmocka_unit_test_setup(test_the_smallest_device_takes_everything, clear_log),
        cmocka_unit_test_setup(test_a_device_that_is_too_small, clear_log),
        cmocka_unit_test_setup(test_why_is_cut, clear_log),
        cmocka_unit_test_setup(test_supported_agrees_with_create, clear_log),
        cmocka_unit_test_setup(test_zero_means_default, clear_log),
        cmocka_unit_test_setup(test_describe, clear_log),
        cmocka_unit_test_setup(test_describe_says_why, clear_log),
        cmocka_unit_test_setup(test_source_builds, clear_log),
    };
    fixture_arguments(argc, argv);
    return cmocka_run_group_tests(tests, open_all, close_all);
}
