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

#include "../../cl/shares.cl"

enum { MOST_TILES = 4096 };

/* Takes all rounds of all work-groups; returns the mean share over the largest, in percent. */
static int share_out(int width, int lines, int tiles, int section)
{
    static char is_taken[MOST_TILES];
    long most = 0, all = 0;
    int count = 0;
    assert_true(lines * tiles <= MOST_TILES);
    memset(is_taken, 0, sizeof is_taken);
    for (int me = 0; me < width; me++) {
        long share = 0;
        const tile_share shared = make_share(me, width, lines, tiles, section);
        for (int round = 0;; round++) {
            const int tile = tile_of_round(round, shared);
            if (tile == NO_TILE)
                break;
            assert_in_range(tile, 0, lines * tiles - 1);
            assert_false(is_taken[tile]);
            is_taken[tile] = 1;
            count++;
            share += tile % tiles + 1;
        }
        most = share > most ? share : most;
        all += share;
    }
    assert_int_equal(count, lines * tiles);
    return (int)(100 * all / ((long)width * most));
}

static void test_every_tile_once(void **state)
{
    (void)state;
    for (int lines = 1; lines <= 12; lines++)
        for (int tiles = 1; tiles <= 12; tiles++)
            for (int width = 1; width <= lines * tiles; width++)
                share_out(width, lines, tiles, 1 + (tiles + width) % lines);
    for (unsigned i = 0; i < 500; i++) {
        const int lines = (int)(1 + i % 61), tiles = (int)(1 + i % 67);
        share_out((int)(1 + i * 37u % (unsigned)(lines * tiles)), lines, tiles,
                  (int)(1 + i % 13 % (unsigned)lines));
    }
}

/* 132 work-groups, as an H200 has, and lengths of 2048, 8192 and 16384 in tiles of 128 and 192 rows. */
static void test_shares_are_even(void **state)
{
    static const struct {
        int lines, tiles;
    } cases[] = {{256, 11}, {256, 16}, {64, 43}, {64, 64}, {32, 86}, {32, 128},
                 {128, 11}, {128, 16}, {32, 43}, {32, 64}, {16, 86}, {16, 128}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int even = share_out(132, cases[i].lines, cases[i].tiles, 8);
        if (even < 98)
            fail_msg("%d lines of %d tiles: the largest share is %d%% from even", cases[i].lines,
                     cases[i].tiles, 100 - even);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_tile_once),
        cmocka_unit_test(test_shares_are_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
