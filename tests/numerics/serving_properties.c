#include "serving_properties.h"

#include "numerics_choices.h"
#include "serving_run.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_SIZE = 16, MAX_BATCH = 16 };

static void say(property_fault *fault, const serving_spec *spec, const char *format, ...)
{
    va_list values;
    if (fault->text[0] != '\0')
        return; /* the first one is the most telling */
    va_start(values, format);
    const int used = vsnprintf(fault->text, 400, format, values);
    va_end(values);
    snprintf(fault->text + used, sizeof fault->text - (size_t)used, "\n    ");
    const size_t length = strlen(fault->text);
    serving_describe(spec, fault->text + length, sizeof fault->text - length);
}

/* ---- What is drawn ---- */

/* Causal or not, a window, sinks, all now and then. All rows are aligned alike, however they lie: another
 * alignment may take another kernel. Shapes and types are few, so that few programs are built. */
static serving_spec draw(int32_t path, int32_t dtype, int32_t phase, random_state *random)
{
    serving_spec spec;
    memset(&spec, 0, sizeof spec);
    call_spec *call = &spec.call;
    *call = spec_plain(path);
    spec_set_dtype(call, dtype);
    spec.dtype_k = spec.dtype_v = dtype;
    spec.phase = phase;
    call->heads_kv = (int32_t)random_between(random, 1, 2);
    call->heads_q = 4 * call->heads_kv;
    call->head_dim_qk = call->head_dim_v = 64;
    call->batch = random_between(random, 2, 5);
    call->q_len =
        phase == CLATTN_PHASE_PREFILL ? random_between(random, 1, 90) : random_between(random, 1, 9);
    call->kv_len = random_between(random, 20, phase == CLATTN_PHASE_PREFILL ? 200 : 700);
    call->features |= CLATTN_FEATURE_Q_LENS | CLATTN_FEATURE_KV_LENS;
    call->has_own_numbers = 1;
    call->plain_sinks = 1;
    choose_feature(call, CLATTN_FEATURE_CAUSAL, 30, random);
    choose_feature(call, CLATTN_FEATURE_SINKS, 30, random);
    if (random_chance(random, 25)) {
        call->features |= CLATTN_FEATURE_WINDOW;
        call->window_left = random_between(random, 0, 200);
        call->window_right = random_between(random, 0, 20);
    }
    call->layout_in = call->layout_o = call->layout_lse = LAYOUT_BSHD;
    spec.layout_q = spec.layout_k = spec.layout_v = LAYOUT_BSHD;
    spec.packed_q = random_chance(random, 50);
    spec.keys = random_chance(random, 50) ? KEYS_PACKED : KEYS_PADDED;
    spec.slack = 3;
    call->seed = random_bits(random);
    return spec;
}

/* What changes scores, but for key tiles: one at least. */
static void use_full_scores(call_spec *call, random_state *random)
{
    const uint32_t features[] = {CLATTN_FEATURE_SOFTCAP, CLATTN_FEATURE_ALIBI, CLATTN_FEATURE_MASK,
                                 CLATTN_FEATURE_BIAS};
    call->features |= features[random_between(random, 0, 3)];
    for (size_t n = 0; n < sizeof features / sizeof *features; n++)
        choose_feature(call, features[n], 30, random);
    if (spec_has(call, CLATTN_FEATURE_SOFTCAP))
        call->softcap = (float)random_between(random, 2, 30);
    call->mask_percent = 80;
    call->mask_block = random_chance(random, 50) ? 1 : 40;
}

static void use_pages(serving_spec *spec)
{
    spec->keys = KEYS_PAGED;
    spec->page_size = PAGE_SIZE;
}

/* Blocks, or bytes with scales. */
static void use_cache_types(serving_spec *spec, random_state *random)
{
    const int are_blocks = random_chance(random, 50);
    spec->dtype_k = are_blocks ? CLATTN_DTYPE_Q4_0 : CLATTN_DTYPE_I8;
    spec->dtype_v = are_blocks ? CLATTN_DTYPE_Q8_0 : CLATTN_DTYPE_F8_E4M3;
    spec->call.dtype_k = spec->call.dtype_v = CLATTN_DTYPE_F32;
    spec->scale_k = spec->scale_v = are_blocks ? SCALE_NONE : SCALE_OF_TOKEN;
}

/* ---- Running and comparing ---- */

static int run(numerics_device *device, serving_data *data, property_fault *fault)
{
    const char *beside;
    const clattn_status status = serving_run(device, data, &beside);
    if (status != CLATTN_SUCCESS)
        say(fault, &data->spec, "the call failed: %s", clattn_status_string(status));
    else if (beside != NULL)
        say(fault, &data->spec, "%s", beside);
    return fault->text[0] == '\0';
}

static verdict run_and_verify(numerics_device *device, serving_data *data, property_fault *fault)
{
    verdict found;
    serving_verify(&found, device, data);
    if (found.fault[0] != '\0')
        say(fault, &data->spec, "%s", found.fault);
    return found;
}

static int same_row(const serving_data *a, int64_t b, const serving_data *other, int64_t entry, int64_t h,
                    int64_t i, int tensor)
{
    const tensor_view *view = &a->call.view[tensor];
    return memcmp(view_element(view, b, h, i, 0), view_element(&other->call.view[tensor], entry, h, i, 0),
                  (size_t)view->size[3] * view_element_size(view)) == 0;
}

/* Sequence b of one call and `entry` of the other have the same bits in o and lse. */
static void compare_bits(const serving_data *a, int64_t b, const serving_data *other, int64_t entry,
                         property_fault *fault)
{
    for (int64_t i = 0; i < serving_sequence(a, b).q_len; i++)
        for (int64_t h = 0; h < a->spec.call.heads_q; h++) {
            if (!same_row(a, b, other, entry, h, i, TENSOR_O))
                say(fault, &a->spec, "o[%d, %d, %d] has other bits (first %.9g) than as sequence %d (%.9g)",
                    (int)b, (int)h, (int)i, (double)view_load(&a->call.view[TENSOR_O], b, h, i, 0),
                    (int)entry, (double)view_load(&other->call.view[TENSOR_O], entry, h, i, 0));
            if (!same_row(a, b, other, entry, h, i, TENSOR_LSE))
                say(fault, &a->spec, "lse[%d, %d, %d] has other bits than as sequence %d", (int)b, (int)h,
                    (int)i, (int)entry);
        }
}

static void compare_all(const serving_data *a, const serving_data *other, property_fault *fault)
{
    for (int64_t b = 0; b < a->spec.call.batch; b++)
        compare_bits(a, b, other, b, fault);
}

static const int64_t identity[MAX_BATCH] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* ---- Batch invariance ---- */

/* The same sequences otherwise: fewer, elsewhere in the batch, some twice; other bounds, slack and storage.
 */
static void another_batch(serving_spec *out, int64_t *entries, const serving_spec *spec, random_state *random)
{
    const int64_t batch = spec->call.batch;
    *out = *spec;
    out->call.batch = random_chance(random, 30) ? 1 : random_between(random, 1, 6);
    for (int64_t b = 0; b < out->call.batch; b++)
        entries[b] = random_between(random, 0, batch - 1);
    out->call.q_len += random_chance(random, 50) ? random_between(random, 0, 70) : 0;
    out->call.kv_len += random_chance(random, 70) ? random_between(random, 0, 2000) : 0;
    out->packed_q = random_chance(random, 50);
    if (spec->keys != KEYS_PAGED)
        out->keys = random_chance(random, 50) ? KEYS_PACKED : KEYS_PADDED;
    out->slack = random_between(random, 0, 50);
    out->call.workspace = random_chance(random, 50) ? WORKSPACE_GIVEN : WORKSPACE_NONE;
    out->call.seed = random_bits(random);
}

static void check_batch_invariance(numerics_device *device, const serving_spec *spec, random_state *random,
                                   property_fault *fault)
{
    serving_data first, second;
    serving_create(&first, spec);
    run_and_verify(device, &first, fault);
    for (int round = 0; round < 4 && fault->text[0] == '\0'; round++) {
        serving_spec other;
        int64_t entries[MAX_BATCH];
        another_batch(&other, entries, spec, random);
        serving_create_from(&second, &other, &first, entries);
        if (run(device, &second, fault))
            for (int64_t b = 0; b < other.call.batch; b++)
                compare_bits(&second, b, &first, entries[b], fault);
        serving_destroy(&second);
    }
    serving_destroy(&first);
}

static void batch_invariant_prefill(numerics_device *device, int32_t path, int32_t dtype,
                                    random_state *random, property_fault *fault)
{
    serving_spec spec = draw(path, dtype, CLATTN_PHASE_PREFILL, random);
    spec.is_invariant = 1;
    use_full_scores(&spec.call, random);
    check_batch_invariance(device, &spec, random, fault);
}

static void batch_invariant_decode(numerics_device *device, int32_t path, int32_t dtype, random_state *random,
                                   property_fault *fault)
{
    serving_spec spec = draw(path, dtype, CLATTN_PHASE_DECODE, random);
    spec.is_invariant = 1;
    if (random_chance(random, 50))
        use_full_scores(&spec.call, random);
    else
        use_pages(&spec);
    check_batch_invariance(device, &spec, random, fault);
}

/* ---- Phases and splits ---- */

static double difference(const serving_data *a, const serving_data *other, int tensor)
{
    const tensor_view *view = &a->call.view[tensor];
    double most = 0;
    for (int64_t b = 0; b < view->size[0]; b++)
        for (int64_t h = 0; h < view->size[1]; h++)
            for (int64_t i = 0; i < serving_sequence(a, b).q_len; i++)
                for (int64_t c = 0; c < view->size[3]; c++) {
                    const double x = (double)view_load(view, b, h, i, c);
                    const double y = (double)view_load(&other->call.view[tensor], b, h, i, c);
                    most = x == y ? most : fmax(most, isfinite(x - y) ? fabs(x - y) : INFINITY);
                }
    return most;
}

/* Prefill, then decode in different numbers of splits: each is right, and they differ by no more than two
 * right results may. */
static void phases_and_splits_agree(numerics_device *device, int32_t path, int32_t dtype,
                                    random_state *random, property_fault *fault)
{
    static const int32_t splits[] = {1, 2, 5, 64, 0};
    serving_spec spec = draw(path, dtype, CLATTN_PHASE_DECODE, random);
    serving_data first, second;
    use_cache_types(&spec, random);
    spec.phase = CLATTN_PHASE_PREFILL;
    serving_create(&first, &spec);
    const verdict found = run_and_verify(device, &first, fault);
    spec.phase = CLATTN_PHASE_DECODE;
    for (size_t n = 0; n < sizeof splits / sizeof *splits && fault->text[0] == '\0'; n++) {
        spec.splits = splits[n];
        serving_create_from(&second, &spec, &first, identity);
        run_and_verify(device, &second, fault);
        if (difference(&first, &second, TENSOR_O) > 2 * found.tolerance_o ||
            difference(&first, &second, TENSOR_LSE) > 2 * found.tolerance_lse)
            say(fault, &spec, "prefill and decode differ by more than two right results may");
        serving_destroy(&second);
    }
    serving_destroy(&first);
}

/* The same tiles of the same keys, wherever these lie. */
static void pages_change_no_bit(numerics_device *device, int32_t path, int32_t dtype, random_state *random,
                                property_fault *fault)
{
    const int32_t phase = random_chance(random, 50) ? CLATTN_PHASE_PREFILL : CLATTN_PHASE_DECODE;
    serving_spec spec = draw(path, dtype, phase, random);
    serving_data first, second;
    spec.splits = phase == CLATTN_PHASE_DECODE ? 3 : 0;
    serving_create(&first, &spec);
    run_and_verify(device, &first, fault);
    use_pages(&spec);
    serving_create_from(&second, &spec, &first, identity);
    if (run(device, &second, fault))
        compare_all(&first, &second, fault);
    serving_destroy(&second);
    serving_destroy(&first);
}

/* One sequence of some thousand keys among short ones. */
static void one_long_sequence(numerics_device *device, int32_t path, int32_t dtype, random_state *random,
                              property_fault *fault)
{
    serving_spec spec = draw(path, dtype, CLATTN_PHASE_DECODE, random);
    serving_data data;
    spec.call.batch = 12;
    spec.call.heads_kv = 1;
    spec.call.heads_q = 4;
    spec.call.q_len = 1;
    spec.call.kv_len = 3000;
    spec.call.one_long = 1;
    use_pages(&spec);
    serving_create(&data, &spec);
    run_and_verify(device, &data, fault);
    serving_destroy(&data);
}

/* ---- What the device finds wrong ---- */

static int32_t status_word(const serving_data *data, int64_t word)
{
    return view_load_int(&data->view[STORED_STATUS], 0, 0, 0, word);
}

static void expect_word(const serving_data *data, int64_t word, int32_t expected, property_fault *fault)
{
    static const char *const names[] = {"bad_page", "bad_length", "dropped", "reserved"};
    if (status_word(data, word) != expected)
        say(fault, &data->spec, "status_words.%s = %d; expected %d", names[word],
            (int)status_word(data, word), (int)expected);
}

/* Pages that are none, among those that a sequence has: noted, not touched, and nobody else sees them. */
static void bad_pages_are_noted(numerics_device *device, int32_t path, int32_t dtype, random_state *random,
                                property_fault *fault)
{
    const int32_t phase = random_chance(random, 50) ? CLATTN_PHASE_PREFILL : CLATTN_PHASE_DECODE;
    serving_spec spec = draw(path, dtype, phase, random);
    serving_data good, bad;
    int is_bad[MAX_BATCH] = {0};
    int32_t highest = 0;
    use_pages(&spec);
    spec.has_status = 1;
    serving_create(&good, &spec);
    run_and_verify(device, &good, fault);
    serving_create_from(&bad, &spec, &good, identity);
    const int32_t pages[] = {-1, INT32_MIN, INT32_MAX, (int32_t)bad.num_pages, (int32_t)bad.num_pages + 1};
    for (int64_t b = 0; b < spec.call.batch; b++) {
        const int64_t count = (serving_sequence(&bad, b).kv_len + PAGE_SIZE - 1) / PAGE_SIZE;
        if (count == 0 || random_chance(random, 50))
            continue;
        view_store_int(&bad.view[STORED_TABLE], b, 0, 0, random_between(random, 0, count - 1),
                       pages[random_between(random, 0, 4)]);
        is_bad[b] = 1;
        highest = (int32_t)b + 1;
    }
    if (run(device, &bad, fault)) {
        expect_word(&bad, 0, highest, fault);
        expect_word(&bad, 1, serving_bad_length(&bad), fault);
        expect_word(&bad, 2, 0, fault);
        for (int64_t b = 0; b < spec.call.batch; b++)
            if (!is_bad[b])
                compare_bits(&bad, b, &good, b, fault);
    }
    serving_destroy(&bad);
    serving_destroy(&good);
}

/* Lengths outside their bounds act as the nearest bound, in their sequence alone. */
static void bad_lengths_are_noted(numerics_device *device, int32_t path, int32_t dtype, random_state *random,
                                  property_fault *fault)
{
    const int32_t phase = random_chance(random, 50) ? CLATTN_PHASE_PREFILL : CLATTN_PHASE_DECODE;
    serving_spec spec = draw(path, dtype, phase, random);
    serving_data good, bad;
    spec.has_status = 1;
    spec.gives_q_lens = spec.gives_kv_lens = 1;
    spec.packed_q = 0;
    spec.keys = KEYS_PADDED;
    serving_create(&good, &spec);
    run_and_verify(device, &good, fault);
    serving_create_from(&bad, &spec, &good, identity);
    const int32_t values[] = {-1, INT32_MIN, INT32_MAX};
    const int64_t entry = random_between(random, 0, spec.call.batch - 1);
    const int tensor = random_chance(random, 50) ? TENSOR_Q_LENS : TENSOR_KV_LENS;
    view_store_int(&bad.call.view[tensor], entry, 0, 0, 0, values[random_between(random, 0, 2)]);
    if (run(device, &bad, fault)) {
        expect_word(&bad, 0, 0, fault);
        expect_word(&bad, 1, (int32_t)entry + 1, fault);
        for (int64_t b = 0; b < spec.call.batch; b++)
            if (b != entry)
                compare_bits(&bad, b, &good, b, fault);
    }
    serving_destroy(&bad);
    serving_destroy(&good);
}

/* As clattn.h: begins within the whole, ends behind them, no sequence longer than the longest. */
static int rows_are_bad(const tensor_view *begins, int64_t b, int64_t total, int64_t longest)
{
    const int64_t begin = view_load_int(begins, 0, 0, 0, b), end = view_load_int(begins, 0, 0, 0, b + 1);
    return begin < 0 || begin > total || end < begin || end > total || end - begin > longest;
}

/* Begins of packed sequences that are none: sequences then may share rows, so nothing is promised of results;
 * but the call ends, and nothing outside the rows is written. */
static void bad_begins_are_noted(numerics_device *device, int32_t path, int32_t dtype, random_state *random,
                                 property_fault *fault)
{
    const int32_t phase = random_chance(random, 50) ? CLATTN_PHASE_PREFILL : CLATTN_PHASE_DECODE;
    serving_spec spec = draw(path, dtype, phase, random);
    serving_data data;
    int32_t expected = 0;
    spec.has_status = 1;
    spec.packed_q = 1;
    spec.keys = KEYS_PACKED;
    serving_create(&data, &spec);
    const tensor_view *q = &data.view[STORED_CU_Q], *k = &data.view[STORED_CU_K];
    for (int n = 0; n < 3; n++) {
        const int32_t values[] = {
            -1, INT32_MIN, INT32_MAX, (int32_t)data.total_q + 1, 0, (int32_t)data.total_q};
        view_store_int(random_chance(random, 50) ? q : k, 0, 0, 0, random_between(random, 0, spec.call.batch),
                       values[random_between(random, 0, 5)]);
    }
    for (int64_t b = 0; b < spec.call.batch; b++)
        if (rows_are_bad(q, b, data.total_q, spec.call.q_len) ||
            rows_are_bad(k, b, data.total_k, spec.call.kv_len))
            expected = (int32_t)b + 1;
    const clattn_status status = serving_run_only(device, &data);
    if (status != CLATTN_SUCCESS)
        say(fault, &spec, "the call failed: %s", clattn_status_string(status));
    else
        expect_word(&data, 1, expected, fault);
    if (!view_surroundings_are_untouched(&data.view[STORED_O]) ||
        !view_surroundings_are_untouched(&data.view[STORED_LSE]))
        say(fault, &spec, "something was written beside the rows of o or lse");
    serving_destroy(&data);
}

const serving_property serving_properties[SERVING_PROPERTIES] = {
    {"batch_invariant_prefill", batch_invariant_prefill},
    {"batch_invariant_decode", batch_invariant_decode},
    {"phases_and_splits_agree", phases_and_splits_agree},
    {"pages_change_no_bit", pages_change_no_bit},
    {"one_long_sequence", one_long_sequence},
    {"bad_pages_are_noted", bad_pages_are_noted},
    {"bad_lengths_are_noted", bad_lengths_are_noted},
    {"bad_begins_are_noted", bad_begins_are_noted},
};
