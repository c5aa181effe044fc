/* cl/tile_order.cl, compiled as C: the order is the one that is described there, and takes every tile once;
 * sections are whole KV heads, and as many as the cache has room for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../../cl/tile_order.cl"

static int smaller(int a, int b) { return a < b ? a : b; }

static void check_order(int lines, int tiles, int section)
{
    int index = 0;
    for (int first = 0; first < lines; first += section)
        for (int tile = tiles - 1; tile >= 0; tile--)
            for (int line = first; line < smaller(first + section, lines); line++)
                assert_int_equal(tile_in_order(index++, lines, tiles, section), line * tiles + tile);
    assert_int_equal(index, lines * tiles);
}

static void test_order(void **state)
{
    (void)state;
    for (int lines = 1; lines <= 12; lines++)
        for (int tiles = 1; tiles <= 12; tiles++)
            for (int section = 1; section <= lines; section++)
                check_order(lines, tiles, section);
    check_order(256, 128, 32);
    check_order(63, 67, 25);
}

/* As many tiles as a call can have: no sum or product passes 32 bits. */
static void test_most_tiles(void **state)
{
    (void)state;
    for (int shift = 0; shift < 31; shift++) {
        const int lines = INT32_MAX >> shift, tiles = INT32_MAX / lines;
        assert_int_equal(tile_in_order(0, lines, tiles, lines), tiles - 1);
        assert_int_equal(tile_in_order(lines * tiles - 1, lines, tiles, lines), (lines - 1) * tiles);
        assert_int_equal(tile_in_order(lines * tiles - 1, lines, tiles, 1), (lines - 1) * tiles);
    }
}

static void test_sections(void **state)
{
    static const int lengths[] = {0, 1, 100, 2048, 8192, 16384, 100000, 1 << 30};
    static const int bytes[] = {128, 256, 512, 640, 1024}; /* of a key and a value */
    (void)state;
    for (int heads_per_kv = 1; heads_per_kv <= 12; heads_per_kv++)
        for (int lines_kv = 1; lines_kv <= 100; lines_kv += 3)
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
                for (size_t j = 0; j < sizeof bytes / sizeof *bytes; j++) {
                    const int64_t line_bytes = (int64_t)lengths[i] * bytes[j];
                    const int section =
                        lines_of_section(lines_kv * heads_per_kv, heads_per_kv, lengths[i], bytes[j]);
                    const int heads = section / heads_per_kv;
                    assert_int_equal(section % heads_per_kv, 0);
                    assert_in_range(heads, 1, lines_kv);
                    assert_true(heads == 1 || heads * line_bytes <= SECTION_BYTES);
                    assert_true(heads == lines_kv || (heads + 1) * line_bytes > SECTION_BYTES);
                }
    assert_int_equal(lines_of_section(INT32_MAX, INT32_MAX, 1, 128), INT32_MAX);
    assert_int_equal(lines_of_section(1 << 30, 1 << 15, 0, 128), 1 << 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_most_tiles),
        cmocka_unit_test(test_sections),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
