// shares.cl: which tiles a work-group takes that stays while others are done; integers only. Also compiled and tested
// as C.
//
// A line is all tiles of one head. Under a causal bound its tile number t costs about t + 1, and nobody takes a tile
// from another work-group: so the order shares them out evenly, `width` work-groups side by side,
//     first rounds of pairs, a line's heaviest tile and its lightest, the next heaviest and the next lightest: all
//     pairs cost the same;
//     then, of the lines that are left to fill SINGLE_ROUNDS such rounds and a part of one, single tiles from the
//     heaviest to the lightest, back and forth (who has the heavier of one round gets the lighter of the next), and
//     with those of their weight the middle tiles of all lines, where lines have an odd number.
// Shares then differ little, and few lines are under way at a time: their K and V stay in the cache.
#define SINGLE_ROUNDS 2

#define NO_TILE (-1)

// Tile number j of the single ones, of the lines from first_line on: line * tiles + tile, or NO_TILE.
static inline int single_tile(int j, int first_line, int lines, int tiles)
{
    const int middle = tiles / 2, here = lines - first_line, heavy = middle * here;
    const int middles = tiles % 2 != 0 ? lines : 0;
    if (j >= heavy && j < heavy + middles)
        return (j - heavy) * tiles + middle;
    const int is_light = j >= heavy, rest = is_light ? j - middles : j;
    const int level = rest / here; // 0: the heaviest; the middle has none
    if (level >= 2 * middle)
        return NO_TILE;
    return (first_line + rest - level * here) * tiles + (is_light ? 2 * middle : tiles) - 1 - level;
}

// What work-group `me` takes in a round: line * tiles + tile; NO_TILE: there are no more.
static inline int tile_of_round(int round, int me, int width, int lines, int tiles)
{
    const int middle = tiles / 2;
    const int wanted = lines * middle / width - SINGLE_ROUNDS, pair_rounds = wanted > 0 ? wanted : 0;
    const int paired_lines = middle > 0 ? pair_rounds * width / middle : 0, pairs = paired_lines * middle;
    const int whole_rounds = pairs / width; // and a part of one
    const int my_rounds = whole_rounds + (me < pairs - whole_rounds * width);
    if (round < 2 * my_rounds) {
        const int pair = round / 2 * width + me, line = pair / middle, number = pair - line * middle;
        return line * tiles + (round % 2 == 0 ? tiles - 1 - number : number);
    }
    const int single_round = round - my_rounds;
    const int place = (single_round - whole_rounds) % 2 == 0 ? me : width - 1 - me;
    return single_tile(single_round * width + place - pairs, paired_lines, lines, tiles);
}
