/* cl/shares.cl, compiled as C: every tile is taken once, and shares are even where there is much to share
 * out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../../cl/tile_order.cl"

#define __local
#include "../../cl/shares.cl"

enum { MOST_TILES = 4096 };

typedef struct shares {
    char is_taken[MOST_TILES];
    int count;
    long most, all;
} shares;

static void begin(shares *s, int tiles)
{
    assert_true(tiles <= MOST_TILES);
    memset(s, 0, sizeof *s);
}

static void take(shares *s, int tile, int tiles)
{
    assert_in_range(tile, 0, tiles - 1);
    assert_false(s->is_taken[tile]);
    s->is_taken[tile] = 1;
    s->count++;
}

static void end_share(shares *s, long cost)
{
    s->most = cost > s->most ? cost : s->most;
    s->all += cost;
}

/* The mean share over the largest, in percent. */
static int evenness(const shares *s, int width) { return (int)(100 * s->all / ((long)width * s->most)); }

/* Takes all rounds of all work-groups. */
static int share_causal(int width, int lines, int tiles, int section)
{
    shares s;
    begin(&s, lines * tiles);
    for (int me = 0; me < width; me++) {
        long cost = 0;
        const causal_share share = make_causal_share(me, width, lines, tiles, section);
        for (int round = 0, tile; (tile = causal_tile(round, share)) != NO_TILE; round++) {
            take(&s, tile, lines * tiles);
            cost += tile % tiles + 1;
        }
        end_share(&s, cost);
    }
    assert_int_equal(s.count, lines * tiles);
    return evenness(&s, width);
}

/* Likewise. The tiles of a line have all its rows. */
static int share_evenly(int width, int lines, int rows, int tile_rows, int section)
{
    shares s;
    const int low_rows = tile_rows - 64;
    const even_share all = make_even_share(0, width, lines, rows, tile_rows, low_rows, section);
    const int tiles = all.whole + all.low;
    assert_in_range(all.whole * tile_rows + all.low * low_rows, rows, rows + low_rows - 1);
    begin(&s, lines * tiles);
    for (int me = 0; me < width; me++) {
        long cost = 0;
        even_share share = make_even_share(me, width, lines, rows, tile_rows, low_rows, section);
        for (int tile; (tile = next_even_tile(&share)) != NO_TILE;) {
            take(&s, tile, lines * tiles);
            cost += tile % tiles < share.whole ? WHOLE_COST : LOW_COST;
        }
        end_share(&s, cost);
    }
    assert_int_equal(s.count, lines * tiles);
    assert_int_equal(s.most, largest_share(lines * all.whole, lines * all.low, width));
    return evenness(&s, width);
}

static void test_every_tile_once(void **state)
{
    (void)state;
    for (int lines = 1; lines <= 12; lines++)
        for (int tiles = 1; tiles <= 12; tiles++)
            for (int width = 1; width <= lines * tiles; width++) {
                share_causal(width, lines, tiles, 1 + (tiles + width) % lines);
                share_evenly(width, lines, 64 * tiles - width % 64, tiles % 2 ? 192 : 256,
                             1 + (tiles + width) % lines);
            }
    for (unsigned i = 0; i < 500; i++) {
        const int lines = (int)(1 + i % 61), tiles = (int)(1 + i % 67);
        const int width = (int)(1 + i * 37u % (unsigned)(lines * tiles)),
                  section = (int)(1 + i % 13 % (unsigned)lines);
        share_causal(width, lines, tiles, section);
        share_evenly(width, lines, (int)(1 + i * 101u % 9000u), i % 2 ? 192 : 256, section);
    }
}

/* Tiles of a line that come in pairs come soon one after the other, while its keys are in the cache: between
 * the first and the last of them lie no more rounds than a section's pairs and those at its borders take. */
static void test_lines_stay_together(void **state)
{
    enum { WIDTH = 132, MOST_LINES = 1024 };
    static const struct {
        int lines, tiles, section;
    } cases[] = {{512, 3, 32},  {256, 6, 16}, {128, 11, 8},  {32, 43, 2}, {16, 86, 1},
                 {1024, 3, 64}, {512, 6, 32}, {256, 11, 16}, {64, 43, 4}, {32, 86, 2}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int tiles = cases[i].tiles;
        int first[MOST_LINES], last[MOST_LINES], paired = 0;
        memset(first, -1, sizeof first);
        memset(last, -1, sizeof last);
        for (int me = 0; me < WIDTH; me++) {
            const causal_share share = make_causal_share(me, WIDTH, cases[i].lines, tiles, cases[i].section);
            paired = 2 * share.twins;
            for (int round = 0; round < 2 * share.my_rounds; round++) {
                const int line = causal_tile(round, share) / tiles;
                assert_in_range(line, 0, paired - 1);
                first[line] = first[line] < 0 || round < first[line] ? round : first[line];
                last[line] = last[line] > round ? last[line] : round;
            }
        }
        assert_in_range(paired, cases[i].lines / 2, cases[i].lines);
        for (int line = 0; line < paired; line++)
            assert_in_range(last[line] - first[line], 0, 2 * (cases[i].section * tiles / WIDTH + 2) - 1);
    }
}

/* 132 work-groups, as an H200 has, and lengths of 2048, 8192 and 16384 in tiles of 128, 192 and 256 rows.
 * Where there are few rounds, the single ones at the end leave more (shares.cl says why they are not more).
 */
static void test_causal_shares_are_even(void **state)
{
    static const struct {
        int lines, tiles, least;
    } cases[] = {{256, 11, 98}, {256, 16, 98}, {64, 43, 98}, {64, 64, 98}, {32, 86, 98}, {32, 128, 98},
                 {128, 11, 96}, {128, 16, 98}, {32, 43, 97}, {32, 64, 98}, {16, 86, 97}, {16, 128, 98},
                 {512, 4, 96},  {256, 8, 98},  {64, 32, 98}, {32, 64, 98}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int even = share_causal(132, cases[i].lines, cases[i].tiles, 8);
        if (even < cases[i].least)
            fail_msg("%d lines of %d tiles: the largest share is %d%% from even", cases[i].lines,
                     cases[i].tiles, 100 - even);
    }
}

/* Likewise, with lines of these rows. The mean is of what is taken, low tiles too. */
static void test_even_shares_are_even(void **state)
{
    static const struct {
        int lines, rows;
    } cases[] = {{512, 512},  {256, 1024}, {128, 2048}, {64, 4096},  {32, 8192}, {16, 16384},
                 {1024, 512}, {512, 1024}, {256, 2048}, {128, 4096}, {64, 8192}, {32, 16384}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int tile_rows = 192; tile_rows <= 256; tile_rows += 64) {
            const int even = share_evenly(132, cases[i].lines, cases[i].rows, tile_rows, 8);
            if (even < 95)
                fail_msg("%d lines of %d rows: the largest share is %d%% from even", cases[i].lines,
                         cases[i].rows, 100 - even);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_tile_once),
        cmocka_unit_test(test_lines_stay_together),
        cmocka_unit_test(test_causal_shares_are_even),
        cmocka_unit_test(test_even_shares_are_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
