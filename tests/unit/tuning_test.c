/* Tuning texts: what is written is what is read, what is no such text is refused, what belongs elsewhere is
 * passed over, and a plan has the tile that a text chose. */
#include "fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static log_record log_ = LOG_RECORD_INIT;
static clattn_context *plain;

static clattn_plan_desc tuned_desc(int32_t phase)
{
    clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;
    desc.heads_q = 4;
    desc.heads_kv = 2;
    desc.head_dim_qk = 24;
    desc.path = CLATTN_PATH_CPU;
    desc.phase = phase;
    return desc;
}

static int open_plain(void **state)
{
    const clattn_context_options options = options_with(&log_);
    if (fixture_open(state) != 0)
        return -1;
    return clattn_context_create(&plain, device.context, device.id, &options);
}

static int close_plain(void **state)
{
    clattn_context_release(plain);
    return fixture_close(state);
}

static int count_candidates(const clattn_plan_desc *desc)
{
    char text[1024];
    int count = 0;
    do
        assert_int_equal(clattn_tuning_candidate(plain, desc, count, text, sizeof text), CLATTN_SUCCESS);
    while (text[0] != '\0' && ++count < 1000);
    return count;
}

/* The text that chooses these candidates; to be freed. */
static char *text_of(const char *const *candidates, size_t count)
{
    size_t needed = 0;
    assert_int_equal(clattn_tuning_write(plain, candidates, count, NULL, 0, &needed), CLATTN_SUCCESS);
    char *text = malloc(needed);
    assert_int_equal(clattn_tuning_write(plain, candidates, count, text, needed, NULL), CLATTN_SUCCESS);
    assert_int_equal(strlen(text) + 1, needed);
    return text;
}

static clattn_status open_tuned(clattn_context **context, const char *text, size_t bytes)
{
    clattn_context_options options = options_with(&log_);
    options.tuning = text;
    options.tuning_bytes = bytes;
    return clattn_context_create(context, device.context, device.id, &options);
}

static void expect_damaged(const char *text, size_t bytes)
{
    clattn_context *context = (clattn_context *)&context;
    const clattn_status status = open_tuned(&context, text, bytes);
    assert_null(context);
    expect_refusal(&log_, status, CLATTN_INVALID_ARGUMENT, "clattn_context_create|options.tuning");
}

/* ---- Choosing ---- */

/* Every candidate in turn is what the plan has, and says so. */
static void test_choice(void **state)
{
    (void)state;
    for (int32_t phase = CLATTN_PHASE_PREFILL; phase <= CLATTN_PHASE_DECODE; phase++) {
        const clattn_plan_desc desc = tuned_desc(phase);
        const int count = count_candidates(&desc);
        assert_true(count >= 2);
        for (int i = 0; i < count; i += count - 1) { /* each costs a compilation */
            char candidate[1024], description[1536];
            const char *const candidates[] = {candidate}, *source, *options;
            clattn_context *tuned;
            clattn_plan *plan;
            assert_int_equal(clattn_tuning_candidate(plain, &desc, i, candidate, sizeof candidate),
                             CLATTN_SUCCESS);
            char *text = text_of(candidates, 1);
            assert_int_equal(open_tuned(&tuned, text, strlen(text)), CLATTN_SUCCESS);
            memset(text, '#', strlen(text)); /* copied */
            assert_int_equal(clattn_plan_create(&plan, tuned, &desc), CLATTN_SUCCESS);
            clattn_plan_describe(plan, description, sizeof description, NULL);
            assert_non_null(strstr(description, "cpu: tuned "));
            clattn_plan_source(plan, &source, &options);
            assert_non_null(strstr(options, strstr(candidate, ": ") + 2));
            clattn_plan_release(plan);
            clattn_context_release(tuned);
            free(text);
        }
    }
}

/* A text for other types, head dims or scores changes nothing, and neither does one that names no row. */
static void test_other_choices(void **state)
{
    const clattn_plan_desc desc = tuned_desc(CLATTN_PHASE_PREFILL);
    clattn_plan_desc others[3] = {desc, desc, desc};
    char candidate[4][1024], *text;
    const char *const candidates[] = {candidate[0], candidate[1], candidate[2], candidate[3]};
    char description[1536];
    clattn_context *tuned;
    clattn_plan *plan;
    (void)state;
    others[0].dtype_q = CLATTN_DTYPE_F16;
    others[1].head_dim_qk = 80;
    others[2].features = CLATTN_FEATURE_SOFTCAP;
    for (int i = 0; i < 3; i++)
        assert_int_equal(clattn_tuning_candidate(plain, &others[i], 1, candidate[i], sizeof candidate[i]),
                         CLATTN_SUCCESS);
    assert_int_equal(clattn_tuning_candidate(plain, &desc, 1, candidate[3], sizeof candidate[3]),
                     CLATTN_SUCCESS);
    strcpy(strstr(candidate[3], ": ") + 2, "-DNO_SUCH_ROW=1");
    text = text_of(candidates, 4);
    assert_int_equal(open_tuned(&tuned, text, strlen(text)), CLATTN_SUCCESS);
    assert_int_equal(clattn_plan_create(&plan, tuned, &desc), CLATTN_SUCCESS);
    clattn_plan_describe(plan, description, sizeof description, NULL);
    assert_null(strstr(description, "tuned"));
    clattn_plan_release(plan);
    clattn_context_release(tuned);
    free(text);
}

/* ---- Reading ---- */

static void test_damage(void **state)
{
    const clattn_plan_desc desc = tuned_desc(CLATTN_PHASE_PREFILL);
    char candidate[1024];
    const char *const candidates[] = {candidate};
    (void)state;
    assert_int_equal(clattn_tuning_candidate(plain, &desc, 0, candidate, sizeof candidate), CLATTN_SUCCESS);
    char *text = text_of(candidates, 1);
    const size_t bytes = strlen(text);
    for (size_t length = 1; length < bytes; length += 7)
        expect_damaged(text, length);
    expect_damaged(text, bytes - 1);
    expect_damaged(text, bytes + 1); /* its terminator is no part of it */
    for (size_t i = 0; i < bytes; i += 5) {
        text[i] ^= 1;
        expect_damaged(text, bytes);
        text[i] ^= 1;
    }
    expect_damaged(NULL, 5);
    expect_damaged(text, 0);
    free(text);
}

/* FNV-1a, as the text's last line has it. */
static void seal(char *text)
{
    char *end = strstr(text, "\nend ") + 1;
    uint64_t hash = UINT64_C(14695981039346656037);
    for (const char *c = text; c < end; c++)
        hash = (hash ^ (unsigned char)*c) * UINT64_C(1099511628211);
    sprintf(end, "end %016llx\n", (unsigned long long)hash);
}

static void test_elsewhere(void **state)
{
    const clattn_plan_desc desc = tuned_desc(CLATTN_PHASE_PREFILL);
    char candidate[1024], description[1536];
    const char *const candidates[] = {candidate};
    clattn_context *context;
    clattn_plan *plan;
    (void)state;
    assert_int_equal(clattn_tuning_candidate(plain, &desc, 1, candidate, sizeof candidate), CLATTN_SUCCESS);
    char *text = text_of(candidates, 1);
    char *driver = strstr(text, ", driver ") + 9;
    driver[0] = (char)(driver[0] + 1);
    seal(text);
    log_clear(&log_);
    assert_int_equal(open_tuned(&context, text, strlen(text)), CLATTN_SUCCESS);
    assert_non_null(strstr(log_.all, "options.tuning is not used"));
    assert_int_equal(clattn_plan_create(&plan, context, &desc), CLATTN_SUCCESS);
    clattn_plan_describe(plan, description, sizeof description, NULL);
    assert_null(strstr(description, "tuned"));
    clattn_plan_release(plan);
    clattn_context_release(context);
    free(text);
}

/* An application compiled before there was tuning. */
static void test_shorter_options(void **state)
{
    clattn_context_options options = options_with(&log_);
    clattn_context *context;
    (void)state;
    options.struct_size = (uint32_t)offsetof(clattn_context_options, tuning);
    options.tuning = "not looked at";
    options.tuning_bytes = 13;
    assert_int_equal(clattn_context_create(&context, device.context, device.id, &options), CLATTN_SUCCESS);
    clattn_context_release(context);
}

/* ---- Refusals ---- */

static void test_refusals(void **state)
{
    clattn_plan_desc desc = tuned_desc(CLATTN_PHASE_PREFILL);
    char text[1024];
    const char *const nonsense[] = {"a tile"}, *const two_lines[] = {"tile a: b\ntile c: d"},
                      *const none[] = {NULL};
    size_t needed;
    (void)state;
    assert_int_equal(clattn_tuning_candidate(NULL, &desc, 0, text, sizeof text), CLATTN_INVALID_ARGUMENT);
    assert_int_equal(clattn_tuning_write(NULL, NULL, 0, text, sizeof text, NULL), CLATTN_INVALID_ARGUMENT);
    expect_refusal(&log_, clattn_tuning_candidate(plain, &desc, 0, NULL, 0), CLATTN_INVALID_ARGUMENT,
                   "clattn_tuning_candidate|text");
    expect_refusal(&log_, clattn_tuning_candidate(plain, &desc, -1, text, sizeof text),
                   CLATTN_INVALID_ARGUMENT, "clattn_tuning_candidate|index = -1");
    expect_refusal(&log_, clattn_tuning_candidate(plain, &desc, 0, text, 20), CLATTN_BUFFER_TOO_SMALL,
                   "clattn_tuning_candidate|capacity = 20");
    expect_refusal(&log_, clattn_tuning_candidate(plain, NULL, 0, text, sizeof text), CLATTN_INVALID_ARGUMENT,
                   "clattn_tuning_candidate|desc is NULL");
    desc.head_dim_qk = 0;
    expect_refusal(&log_, clattn_tuning_candidate(plain, &desc, 0, text, sizeof text),
                   CLATTN_INVALID_ARGUMENT, "clattn_tuning_candidate|head_dim_qk");
    desc = tuned_desc(CLATTN_PHASE_PREFILL);
    desc.operation = CLATTN_OPERATION_MERGE;
    desc.path = CLATTN_PATH_AUTO;
    desc.head_dim_v = 24;
    expect_refusal(&log_, clattn_tuning_candidate(plain, &desc, 0, text, sizeof text),
                   CLATTN_INVALID_ARGUMENT, "clattn_tuning_candidate|operation = 2");
    expect_refusal(&log_, clattn_tuning_write(plain, NULL, 1, text, sizeof text, NULL),
                   CLATTN_INVALID_ARGUMENT, "clattn_tuning_write|candidates is NULL");
    expect_refusal(&log_, clattn_tuning_write(plain, nonsense, 1, text, sizeof text, NULL),
                   CLATTN_INVALID_ARGUMENT, "clattn_tuning_write|candidates[0]");
    expect_refusal(&log_, clattn_tuning_write(plain, two_lines, 1, text, sizeof text, NULL),
                   CLATTN_INVALID_ARGUMENT, "clattn_tuning_write|candidates[0]");
    expect_refusal(&log_, clattn_tuning_write(plain, none, 1, text, sizeof text, NULL),
                   CLATTN_INVALID_ARGUMENT, "clattn_tuning_write|candidates[0]");
    expect_refusal(&log_, clattn_tuning_write(plain, NULL, 0, NULL, 5, NULL), CLATTN_INVALID_ARGUMENT,
                   "clattn_tuning_write|text is NULL");
    assert_int_equal(clattn_tuning_write(plain, NULL, 0, NULL, 0, &needed), CLATTN_SUCCESS);
    expect_refusal(&log_, clattn_tuning_write(plain, NULL, 0, text, needed - 1, NULL),
                   CLATTN_BUFFER_TOO_SMALL, "clattn_tuning_write|capacity");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choice),   cmocka_unit_test(test_other_choices),
        cmocka_unit_test(test_damage),   cmocka_unit_test(test_elsewhere),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_shorter_options),
    };
    fixture_arguments(argc, argv);
    return cmocka_run_group_tests(tests, open_plain, close_plain);
}
