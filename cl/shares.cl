// shares.cl: which tiles a work-group takes that stays while others are done, under a causal bound; integers only. Also
// compiled and tested as C.
//
// Tile number t of a line (tile_order.cl) costs about t + 1, and nobody takes a tile from another work-group: so the
// order shares them out evenly, `width` work-groups side by side,
//     first rounds of pairs, a line's heaviest tile and its lightest, the next heaviest and the next lightest: all
//     pairs cost the same, and come in the order of tile_order.cl;
//     then, of the lines that are left to fill SINGLE_ROUNDS such rounds and a part of one, single tiles from the
//     heaviest to the lightest, back and forth (who has the heavier of one round gets the lighter of the next), and
//     with those of their weight the middle tiles of all lines, where lines have an odd number.
#define SINGLE_ROUNDS 2

#define NO_TILE (-1)

// What a work-group's share follows from.
typedef struct tile_share {
    int me;
    int width;
    int lines;
    int tiles;
    int section; // of lines
    int paired_lines;
    int whole_rounds; // of pairs; some work-groups have one more
    int my_rounds;
} tile_share;

static inline tile_share make_share(int me, int width, int lines, int tiles, int section)
{
    tile_share s;
    const int middle = tiles / 2, pair_rounds = lines * middle / width - SINGLE_ROUNDS;
    s.me = me;
    s.width = width;
    s.lines = lines;
    s.tiles = tiles;
    s.section = section;
    s.paired_lines = middle > 0 && pair_rounds > 0 ? pair_rounds * width / middle : 0;
    s.whole_rounds = s.paired_lines * middle / width;
    s.my_rounds = s.whole_rounds + (me < s.paired_lines * middle - s.whole_rounds * width);
    return s;
}

// Tile number j of the single ones, as line * tiles + tile; or NO_TILE.
static inline int single_tile(int j, int paired_lines, int lines, int tiles)
{
    const int middle = tiles / 2, here = lines - paired_lines, heavy = middle * here;
    const int middles = tiles % 2 != 0 ? lines : 0;
    if (j >= heavy && j < heavy + middles)
        return (j - heavy) * tiles + middle;
    const int is_light = j >= heavy, rest = is_light ? j - middles : j;
    const int level = rest / here; // 0: the heaviest; the middle has none
    if (level >= 2 * middle)
        return NO_TILE;
    return (paired_lines + rest - level * here) * tiles + (is_light ? 2 * middle : tiles) - 1 - level;
}

// What the work-group takes in a round, as line * tiles + tile; NO_TILE: there are no more.
static inline int tile_of_round(int round, tile_share s)
{
    const int middle = s.tiles / 2;
    if (round < 2 * s.my_rounds) {
        const int pair = tile_in_order(round / 2 * s.width + s.me, s.paired_lines, middle, s.section);
        const int line = pair / middle, number = pair - line * middle;
        return line * s.tiles + (round % 2 == 0 ? s.tiles - 1 - number : number);
    }
    const int single_round = round - s.my_rounds;
    const int place = (single_round - s.whole_rounds) % 2 == 0 ? s.me : s.width - 1 - s.me;
    return single_tile(single_round * s.width + place - s.paired_lines * middle, s.paired_lines, s.lines, s.tiles);
}
