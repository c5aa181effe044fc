/* cl/bounds.cl, compiled as C, against a count of every key: exhaustively for small sizes, and at
 * the ends of what the header allows (lengths of 2^30), where any sum beyond 32 bits would show. */
#include "../../src/kernel_args.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { LIMIT = CLATTN_MAX_LENGTH };

/* The definition, in numbers that cannot overflow. */
static int sees(int64_t row, int64_t key, int64_t kv_len, int64_t band_begin, int64_t band_end)
{
    return key >= 0 && key < kv_len && key >= row + band_begin && key < row + band_end;
}

enum { KV = 6, ROWS = 5, BAND = 9 };

#define FOR_EACH_SMALL_CASE(kv_len, band_begin, band_end)              \
    for (int kv_len = 0; kv_len <= KV; kv_len++)                       \
        for (int band_begin = -BAND; band_begin <= BAND; band_begin++) \
            for (int band_end = -BAND; band_end <= BAND; band_end++)

static void test_keys_of_row(void **state)
{
    (void)state;
    FOR_EACH_SMALL_CASE(kv_len, band_begin, band_end)
    {
        for (int row = 0; row < ROWS; row++) {
            const key_range keys = keys_of_row(row, kv_len, band_begin, band_end);
            for (int key = -2; key < KV + 2; key++)
                assert_int_equal(key >= keys.begin && key < keys.end,
                                 sees(row, key, kv_len, band_begin, band_end));
            assert_in_range(keys.begin, 0, kv_len);
            assert_in_range(keys.end, 0, kv_len);
        }
    }
}

/* The range of several rows is exactly the union of theirs: no needed key is left out, no other one
 * is read. */
static void test_keys_of_rows(void **state)
{
    (void)state;
    FOR_EACH_SMALL_CASE(kv_len, band_begin, band_end)
    {
        for (int first = 0; first < ROWS; first++)
            for (int last = first; last < ROWS; last++) {
                const key_range keys = keys_of_rows(first, last, kv_len, band_begin, band_end);
                for (int key = 0; key < KV; key++) {
                    int seen = 0;
                    for (int row = first; row <= last; row++)
                        seen |= sees(row, key, kv_len, band_begin, band_end);
                    assert_int_equal(key >= keys.begin && key < keys.end, seen);
                }
            }
    }
}

static void test_tile_is_full(void **state)
{
    (void)state;
    FOR_EACH_SMALL_CASE(kv_len, band_begin, band_end)
    {
        for (int first_row = 0; first_row < ROWS; first_row++)
            for (int last_row = first_row; last_row < ROWS; last_row++)
                for (int first_key = 0; first_key < KV; first_key++)
                    for (int last_key = first_key; last_key < KV; last_key++) {
                        int full = 1;
                        for (int row = first_row; row <= last_row; row++)
                            for (int key = first_key; key <= last_key; key++)
                                full &= sees(row, key, kv_len, band_begin, band_end);
                        assert_int_equal(tile_is_full(first_row, last_row, first_key, last_key, kv_len,
                                                      band_begin, band_end),
                                         full);
                    }
    }
}

/* Lengths, rows and bands near 0 and near the limits, in every combination. */
static void test_at_the_limits(void **state)
{
    static const int lengths[] = {0, 1, 2, LIMIT / 2, LIMIT - 1, LIMIT};
    static const int rows[] = {0, 1, LIMIT / 2, LIMIT - 2, LIMIT - 1};
    static const int bands[] = {-LIMIT, -LIMIT + 1, -LIMIT / 2, -1, 0, 1, LIMIT / 2, LIMIT - 1, LIMIT};
    (void)state;
#define EACH(item, list)               \
    size_t item = 0;                   \
    item < sizeof list / sizeof *list; \
    item++
    for (EACH(n, lengths))
        for (EACH(i, rows))
            for (EACH(l, bands))
                for (EACH(r, bands)) {
                    const int64_t kv_len = lengths[n], row = rows[i];
                    const int64_t begin = bands[l], end = bands[r];
                    const key_range keys = keys_of_row(rows[i], lengths[n], bands[l], bands[r]);
                    /* The ends themselves and their neighbours tell a range. */
                    const int64_t probes[] = {
                        0, 1, row + begin - 1, row + begin, row + end - 1, row + end, kv_len - 1, kv_len};
                    for (EACH(p, probes)) {
                        const int64_t key = probes[p];
                        assert_int_equal(key >= keys.begin && key < keys.end,
                                         sees(row, key, kv_len, begin, end));
                        if (key < 0 || key >= LIMIT)
                            continue;
                        assert_int_equal(tile_is_full(rows[i], rows[i], (int)key, (int)key, lengths[n],
                                                      bands[l], bands[r]),
                                         sees(row, key, kv_len, begin, end));
                    }
                    for (EACH(j, rows)) {
                        if (rows[j] < rows[i])
                            continue;
                        const key_range all = keys_of_rows(rows[i], rows[j], lengths[n], bands[l], bands[r]);
                        const key_range last = keys_of_row(rows[j], lengths[n], bands[l], bands[r]);
                        if (end <= begin) {
                            assert_true(all.end <= all.begin);
                        } else {
                            assert_int_equal(all.begin, keys.begin);
                            assert_int_equal(all.end, last.end);
                        }
                    }
                }
#undef EACH
}

/* make_sequence against the definition in 64 bits that nothing here can overflow. */
static int sees_by_rule(int64_t row, int64_t key, int64_t kv_len, int64_t offset, int64_t left, int64_t right)
{
    const int64_t position = row + offset;
    return key >= 0 && key < kv_len && (left < 0 || key >= position - left) &&
           (right < 0 || key <= position + right);
}

static void check_sequence(int q_len, int kv_len, int mode, int64_t explicit_offset, int64_t left,
                           int64_t right)
{
    const int64_t far = (int64_t)1 << 50;
    const sequence s = make_sequence(q_len, kv_len, mode, explicit_offset, left < 0 ? -far : -left,
                                     right < 0 ? far : right + 1);
    const int64_t offset = mode == CLATTN_POSITION_BOTTOM_RIGHT ? (int64_t)kv_len - q_len
                           : mode == CLATTN_POSITION_TOP_LEFT   ? 0
                                                                : explicit_offset;
    assert_int_equal(s.q_len, q_len);
    assert_int_equal(s.kv_len, kv_len);
    if (offset >= -LIMIT && offset <= LIMIT)
        assert_int_equal(s.offset, offset);
    const int rows[] = {0, 1, q_len / 2, q_len - 1};
    for (int r = 0; r < 4; r++) {
        const key_range keys = keys_of_row(rows[r], s.kv_len, s.band_begin, s.band_end);
        const int64_t around[] = {
            0,          1,     2, 5, rows[r] + offset - left, rows[r] + offset, rows[r] + offset + right,
            kv_len - 1, kv_len};
        for (size_t n = 0; rows[r] >= 0 && rows[r] < q_len && n < sizeof around / sizeof *around; n++)
            for (int64_t key = around[n] - 1; key <= around[n] + 1; key++)
                assert_int_equal(key >= keys.begin && key < keys.end,
                                 sees_by_rule(rows[r], key, kv_len, offset, left, right));
    }
}

static void test_make_sequence(void **state)
{
    static const int lengths[] = {0, 1, 2, 5, LIMIT - 1, LIMIT};
    static const int64_t offsets[] = {0, 1, -1, 3, -4, LIMIT, -LIMIT, (int64_t)1 << 40, -((int64_t)1 << 40)};
    static const int64_t sides[] = {-1, 0, 1, 4, LIMIT, (int64_t)1 << 40};
    (void)state;
    assert_int_equal(POSITION_BOTTOM_RIGHT, CLATTN_POSITION_BOTTOM_RIGHT);
    assert_int_equal(POSITION_TOP_LEFT, CLATTN_POSITION_TOP_LEFT);
    assert_int_equal(POSITION_EXPLICIT, CLATTN_POSITION_EXPLICIT);
    for (int q = 0; q < 6; q++)
        for (int kv = 0; kv < 6; kv++)
            for (int mode = 0; mode < 3; mode++)
                for (int o = 0; o < 9; o++)
                    for (int l = 0; l < 6; l++)
                        for (int r = 0; r < 6; r++)
                            check_sequence(lengths[q], lengths[kv], mode, offsets[o], sides[l], sides[r]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys_of_row),   cmocka_unit_test(test_keys_of_rows),
        cmocka_unit_test(test_tile_is_full),  cmocka_unit_test(test_make_sequence),
        cmocka_unit_test(test_at_the_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
