/* How many programs are built, and what the cache hooks see: one program for all that a model
 * varies; a stored binary is used by the next context; whatever else the hooks return is ignored.
 */
#include "../../src/hash.h"
#include "fixture.h"

#include <ctype.h>
#include <fakedev.h>
#include <stdlib.h>
#include <string.h>

/* ---- A cache of one entry, in memory ---- */

typedef struct memory_cache {
    char key[80]; /* of the last load */
    char stored_key[80];
    unsigned char *entry; /* what loads return; NULL: none */
    size_t size;
    size_t claimed_size; /* not 0: what size queries answer */
    int loads, stores;
} memory_cache;

static int is_sane_key(const char *key)
{
    const size_t length = strlen(key);
    for (const char *c = key; *c != '\0'; c++)
        if (!isalnum((unsigned char)*c) && *c != '-' && *c != '_')
            return 0;
    return length >= 16 && length < 64;
}

static size_t load(void *user, const char *key, void *data, size_t capacity)
{
    memory_cache *cache = user;
    cache->loads++;
    assert_true(is_sane_key(key));
    assert_true(data != NULL || capacity == 0);
    strcpy(cache->key, key);
    if (cache->entry == NULL)
        return 0;
    if (capacity > 0)
        memcpy(data, cache->entry, capacity < cache->size ? capacity : cache->size);
    return capacity == 0 && cache->claimed_size != 0 ? cache->claimed_size : cache->size;
}

static void store(void *user, const char *key, const void *data, size_t size)
{
    memory_cache *cache = user;
    cache->stores++;
    strcpy(cache->stored_key, key);
    free(cache->entry);
    cache->entry = malloc(size);
    assert_non_null(cache->entry);
    memcpy(cache->entry, data, size);
    cache->size = size;
}

/* ---- Steps ---- */

static uint64_t source_builds(void)
{
    struct clattn_fakedev_counters counters;
    clattn_fakedev_counters(&counters);
    return counters.builds_from_source;
}

static clattn_context *context_over(memory_cache *cache)
{
    clattn_context_options options = options_with(NULL);
    options.cache.user = cache;
    options.cache.load = load;
    options.cache.store = store;
    return context_with(&options);
}

/* A context over the cache makes a plan and a call; returns how many sources it built. */
static uint64_t use_cache(memory_cache *cache, const clattn_plan_desc *desc)
{
    attention_call call;
    clattn_context *context = context_over(cache);
    clattn_fakedev_reset();
    clattn_plan *plan = plan_with(context, desc);
    const uint64_t builds = source_builds();
    clattn_builds told = CLATTN_BUILDS_INIT;
    assert_int_equal(clattn_context_builds(context, &told), CLATTN_SUCCESS);
    assert_int_equal(told.compiled, builds);
    assert_int_equal(told.compiled + told.loaded, 1);
    assert_true(told.microseconds > 0);
    call_open(&call, device.context, desc, 1, 5, 9, 1);
    call_run(&call, plan);
    call_close(&call);
    clattn_plan_release(plan);
    clattn_context_release(context);
    return builds;
}

/* Only the key: nothing is built. */
static void key_of(const clattn_plan_desc *desc, const clattn_context_options *more, char key[80])
{
    memory_cache cache = {"", "", NULL, 0, 0, 0, 0};
    clattn_context_options options = more != NULL ? *more : options_with(NULL);
    options.cache.user = &cache;
    options.cache.load = load;
    options.cache.store = store;
    clattn_context *context = context_with(&options);
    clattn_plan *plan = NULL;
    assert_true(clattn_fakedev_fail("clBuildProgram:1+:-6"));
    assert_int_equal(clattn_plan_create(&plan, context, desc), CL_OUT_OF_HOST_MEMORY);
    assert_true(clattn_fakedev_fail(NULL));
    clattn_context_release(context);
    assert_int_equal(cache.stores, 0);
    strcpy(key, cache.key);
}

static void test_builds_refusals(void **state)
{
    (void)state;
    log_record log = LOG_RECORD_INIT;
    clattn_context_options options = options_with(&log);
    clattn_context *context = context_with(&options);
    clattn_builds builds = CLATTN_BUILDS_INIT;
    assert_int_equal(clattn_context_builds(NULL, &builds), CLATTN_INVALID_ARGUMENT);
    log_clear(&log);
    expect_refusal(&log, clattn_context_builds(context, NULL), CLATTN_INVALID_ARGUMENT, "builds is NULL");
    builds.struct_size = 8;
    builds.compiled = 7;
    log_clear(&log);
    expect_refusal(&log, clattn_context_builds(context, &builds), CLATTN_INVALID_ARGUMENT,
                   "builds.struct_size = 8");
    assert_int_equal(builds.compiled, 7);
    builds.struct_size = sizeof builds;
    assert_int_equal(clattn_context_builds(context, &builds), CLATTN_SUCCESS);
    assert_int_equal(builds.struct_size, sizeof builds);
    assert_int_equal(builds.compiled, 0);
    clattn_context_release(context);
}

/* ---- Build counts ---- */

static void vary(clattn_context *context, uint32_t features, int heads_q, int heads_kv, int dim_qk, int dim_v,
                 int position_mode, unsigned seed)
{
    attention_call call;
    clattn_plan_desc desc = small_desc(features);
    desc.heads_q = heads_q;
    desc.heads_kv = heads_kv;
    desc.head_dim_qk = dim_qk;
    desc.head_dim_v = dim_v;
    desc.position_mode = position_mode;
    clattn_plan *plan = plan_with(context, &desc);
    for (unsigned i = 0; i < 3; i++) {
        call_open(&call, device.context, &desc, 1 + (int)i % 2, 1 + (int)(seed * 37 + i * 50) % 150,
                  (int)(seed * 53 + i * 31) % 140, seed);
        call.args.scale = 0.1f * (float)(i + 1);
        if (position_mode == CLATTN_POSITION_EXPLICIT)
            call.args.q_offset = 3 - 4 * (int)i;
        if ((features & CLATTN_FEATURE_WINDOW) != 0) {
            call.args.window_left = (int)i * 10 - 1;
            call.args.window_right = 5 - (int)i * 3;
        }
        call_run(&call, plan);
        call_close(&call);
    }
    clattn_plan_release(plan);
}

/* One dtype, one head-dim class, prefill: causal or not, any window, position, lengths, scale,
 * heads, LSE or not: one program. */
static void test_one_program_for_a_model(void **state)
{
    clattn_context *context = context_with(NULL);
    (void)state;
    clattn_fakedev_reset();
    for (unsigned i = 0; i < 8; i++) {
        const uint32_t features = (i & 1 ? CLATTN_FEATURE_CAUSAL : 0) | (i & 2 ? CLATTN_FEATURE_WINDOW : 0) |
                                  (i & 4 ? CLATTN_FEATURE_LSE : 0);
        vary(context, features, 1 + (int)(i % 3), 1, 1 + (int)(i * 7) % 32, 32 - (int)i, (int)i % 3, i);
    }
    assert_int_equal(source_builds(), 1);

    /* Softcap and bias, in any combination, share a second one. */
    vary(context, CLATTN_FEATURE_SOFTCAP, 2, 2, 16, 16, 0, 1);
    vary(context, CLATTN_FEATURE_BIAS, 4, 2, 9, 32, 1, 2);
    vary(context, CLATTN_FEATURE_BIAS | CLATTN_FEATURE_SOFTCAP | CLATTN_FEATURE_CAUSAL, 2, 1, 32, 8, 2, 3);
    assert_int_equal(source_builds(), 2);
    clattn_context_release(context);
}

/* ---- Keys ---- */

static void test_key_covers_what_is_compiled(void **state)
{
    const uint32_t causal_lse = CLATTN_FEATURE_CAUSAL | CLATTN_FEATURE_LSE;
    clattn_plan_desc desc = small_desc(0);
    char key[80], other[80];
    (void)state;
    key_of(&desc, NULL, key);
#define SAME(change)            \
    desc = small_desc(0);       \
    desc.change;                \
    key_of(&desc, NULL, other); \
    assert_string_equal(key, other)
#define DIFFERENT(change)       \
    desc = small_desc(0);       \
    desc.change;                \
    key_of(&desc, NULL, other); \
    assert_string_not_equal(key, other)
    SAME(heads_q = 8);
    SAME(features = causal_lse);
    SAME(position_mode = CLATTN_POSITION_TOP_LEFT);
    SAME(head_dim_qk = 32);
    SAME(dtype_bias = CLATTN_DTYPE_F16); /* no bias takes part */
    DIFFERENT(dtype_q = CLATTN_DTYPE_F16);
    DIFFERENT(dtype_k = CLATTN_DTYPE_BF16);
    DIFFERENT(dtype_v = CLATTN_DTYPE_BF16);
    DIFFERENT(dtype_o = CLATTN_DTYPE_F16);
    DIFFERENT(head_dim_qk = 33);
    DIFFERENT(head_dim_v = 64);
    DIFFERENT(features = CLATTN_FEATURE_SOFTCAP);
    DIFFERENT(path = CLATTN_PATH_PORTABLE);
}

static void test_key_covers_the_device(void **state)
{
    static const struct {
        const char *variable, *value;
    } fakes[] = {{"CLATTN_FAKE_DRIVER", "99.1"},
                 {"CLATTN_FAKE_NAME", "another device"},
                 {"CLATTN_FAKE_VENDOR", "another vendor"},
                 {"CLATTN_FAKE_VERSION", "OpenCL 1.2 another"}};
    const clattn_plan_desc desc = small_desc(0);
    char key[80], again[80], other[80];
    (void)state;
    key_of(&desc, NULL, key);
    key_of(&desc, NULL, again);
    assert_string_equal(key, again);
    for (size_t i = 0; i < sizeof fakes / sizeof *fakes; i++) {
        assert_true(clattn_fakedev_set(fakes[i].variable, fakes[i].value));
        key_of(&desc, NULL, other);
        assert_true(clattn_fakedev_set(fakes[i].variable, NULL));
        assert_string_not_equal(key, other);
    }
}

/* ---- Loading and storing ---- */

static void test_second_context_builds_nothing(void **state)
{
    const clattn_plan_desc desc = small_desc(CLATTN_FEATURE_LSE);
    memory_cache cache = {"", "", NULL, 0, 0, 0, 0};
    (void)state;
    assert_int_equal(use_cache(&cache, &desc), 1);
    assert_int_equal(cache.loads, 1);
    assert_int_equal(cache.stores, 1);
    assert_string_equal(cache.key, cache.stored_key);
    assert_int_equal(use_cache(&cache, &desc), 0);
    assert_int_equal(cache.stores, 1);
    free(cache.entry);
}

/* A context with several devices: only ours is built and kept. (Ours is the first: of a program
 * built for the second, PoCL 3.1 tells the binary's size in the wrong place, seen 2026-11-30.) */
static void test_context_with_two_devices(void **state)
{
    const cl_device_id both[] = {device.id, second_device()};
    const clattn_plan_desc desc = small_desc(CLATTN_FEATURE_LSE);
    memory_cache cache = {"", "", NULL, 0, 0, 0, 0};
    const test_device own = device;
    cl_int code;
    (void)state;
    if (both[1] == NULL)
        skip();
    device.context = clCreateContext(NULL, 2, both, NULL, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    device.queue = clCreateCommandQueue(device.context, device.id, 0, &code);
    assert_int_equal(code, CL_SUCCESS);
    assert_int_equal(use_cache(&cache, &desc), 1);
    assert_int_equal(cache.stores, 1);
    assert_int_equal(use_cache(&cache, &desc), 0);
    clReleaseCommandQueue(device.queue);
    clReleaseContext(device.context);
    device = own;
    free(cache.entry);
}

/* ---- Damaged entries ---- */

/* As src/cache_entry.c frames a binary. */
typedef struct entry_head {
    char magic[8];
    uint64_t size, check;
    char key[40];
} entry_head;

static memory_cache good;

static int make_good_entry(void **state)
{
    const clattn_plan_desc desc = small_desc(0);
    (void)state;
    if (good.entry == NULL)
        assert_int_equal(use_cache(&good, &desc), 1);
    return 0;
}

static int drop_good_entry(void **state)
{
    free(good.entry);
    memset(&good, 0, sizeof good);
    return fixture_close(state);
}

/* A cache that holds this instead: the source is built, the result is right, a good entry replaces
 * it. */
static void expect_rebuild(const void *entry, size_t size, size_t claimed_size)
{
    const clattn_plan_desc desc = small_desc(0);
    memory_cache cache = {"", "", malloc(size + 1), size, claimed_size, 0, 0};
    assert_non_null(cache.entry);
    memcpy(cache.entry, entry, size);
    assert_int_equal(use_cache(&cache, &desc), 1);
    assert_int_equal(cache.stores, 1);
    assert_int_equal(cache.size, good.size);
    free(cache.entry);
}

static void test_header_fields(void **state)
{
#define BOTH_ENDS(field) offsetof(entry_head, field), offsetof(entry_head, field) + sizeof good_head.field - 1
    static const entry_head good_head;
    const size_t end_of_key = offsetof(entry_head, key) + strlen(good.key);
    const size_t bytes[] = {BOTH_ENDS(magic),          BOTH_ENDS(size), BOTH_ENDS(check),
                            offsetof(entry_head, key), end_of_key - 1,  end_of_key};
    unsigned char *entry = malloc(good.size);
    (void)state;
    assert_non_null(entry);
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        memcpy(entry, good.entry, good.size);
        entry[bytes[i]] ^= 0x41;
        expect_rebuild(entry, good.size, 0);
    }
    free(entry);
}

static void test_payload(void **state)
{
    unsigned char *entry = malloc(good.size);
    (void)state;
    assert_non_null(entry);
    for (int i = 0; i < 3; i++) { /* its first, middle and last byte */
        memcpy(entry, good.entry, good.size);
        entry[sizeof(entry_head) + (good.size - sizeof(entry_head) - 1) * (size_t)i / 2] ^= 1;
        expect_rebuild(entry, good.size, 0);
    }
    free(entry);
}

static void test_sizes(void **state)
{
    const size_t sizes[] = {1,
                            8,
                            sizeof(entry_head) - 1,
                            sizeof(entry_head),
                            sizeof(entry_head) + 1,
                            good.size / 2,
                            good.size - 1};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        expect_rebuild(good.entry, sizes[i], 0);
    unsigned char *longer = malloc(good.size + 1);
    assert_non_null(longer);
    memcpy(longer, good.entry, good.size);
    longer[good.size] = 0;
    expect_rebuild(longer, good.size + 1, 0);
    free(longer);
}

/* Hooks that contradict themselves: the entry was replaced between two calls, or they are mad. */
static void test_claimed_sizes(void **state)
{
    const size_t claims[] = {1, good.size - 1, good.size + 1, (size_t)1 << 40, SIZE_MAX};
    (void)state;
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++)
        expect_rebuild(good.entry, good.size, claims[i]);
}

static void test_garbage(void **state)
{
    unsigned char garbage[4096];
    (void)state;
    for (size_t i = 0; i < sizeof garbage; i++)
        garbage[i] = (unsigned char)(i * 2654435761u >> 11);
    expect_rebuild(garbage, sizeof garbage, 0);
    memset(garbage, 0, sizeof garbage);
    expect_rebuild(garbage, sizeof garbage, 0);
}

/* A whole entry, but of another program. */
static void test_foreign_entry(void **state)
{
    memory_cache foreign = {"", "", NULL, 0, 0, 0, 0};
    clattn_plan_desc desc = small_desc(CLATTN_FEATURE_SOFTCAP);
    (void)state;
    assert_int_equal(use_cache(&foreign, &desc), 1);
    assert_string_not_equal(foreign.key, good.key);
    expect_rebuild(foreign.entry, foreign.size, 0);
    free(foreign.entry);
}

/* A true frame around what the driver refuses. */
static void test_binary_that_the_driver_refuses(void **state)
{
    struct {
        entry_head head;
        unsigned char binary[1000];
    } entry;
    (void)state;
    memset(&entry, 0x5a, sizeof entry);
    memcpy(&entry.head, good.entry, sizeof entry.head);
    entry.head.size = sizeof entry.binary;
    entry.head.check = clattn__hash(clattn__hash(CLATTN__HASH_START, good.key, strlen(good.key)),
                                    entry.binary, sizeof entry.binary);
    expect_rebuild(&entry, sizeof entry, 0);
}

/* The frame here is the library's: else the tests above would test nothing. */
static void test_frame_is_as_assumed(void **state)
{
    const clattn_plan_desc desc = small_desc(0);
    entry_head head;
    (void)state;
    memcpy(&head, good.entry, sizeof head);
    assert_memory_equal(head.magic, "clattn01", 8);
    assert_int_equal(head.size, good.size - sizeof head);
    assert_string_equal(head.key, good.key);
    assert_int_equal(head.check, clattn__hash(clattn__hash(CLATTN__HASH_START, good.key, strlen(good.key)),
                                              good.entry + sizeof head, (size_t)head.size));
    assert_int_equal(use_cache(&good, &desc), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_program_for_a_model),
        cmocka_unit_test(test_builds_refusals),
        cmocka_unit_test(test_key_covers_what_is_compiled),
        cmocka_unit_test(test_key_covers_the_device),
        cmocka_unit_test(test_second_context_builds_nothing),
        cmocka_unit_test(test_context_with_two_devices),
        cmocka_unit_test_setup(test_frame_is_as_assumed, make_good_entry),
        cmocka_unit_test_setup(test_header_fields, make_good_entry),
        cmocka_unit_test_setup(test_payload, make_good_entry),
        cmocka_unit_test_setup(test_sizes, make_good_entry),
        cmocka_unit_test_setup(test_claimed_sizes, make_good_entry),
        cmocka_unit_test_setup(test_garbage, make_good_entry),
        cmocka_unit_test_setup(test_foreign_entry, make_good_entry),
        cmocka_unit_test_setup(test_binary_that_the_driver_refuses, make_good_entry),
    };
    fixture_arguments(argc, argv);
    return cmocka_run_group_tests(tests, fixture_open, drop_good_entry);
}
