// shares.cl: which tiles a work-group takes that stays while others are done; integers only. Also compiled and tested as
// C. Nobody takes a tile from another work-group: so the order shares them out evenly, `width` work-groups side by side,
// and near tile_order.cl's, so that K and V are still in the cache when their line's other tiles come.

#define NO_TILE (-1)

// ---- Under a causal bound ------------------------------------------------------------------------------
//
// Tile number t of a line costs about t + 1.
//     First rounds of pairs, a line's heaviest tile and its lightest, the next heaviest and the next lightest; two lines
//     are twins, and their middle tiles, where they have any, are a pair too. All pairs cost the same.
//     Then, of the lines that are left to fill SINGLE_ROUNDS such rounds and a part of one, single tiles from the
//     heaviest to the lightest, back and forth: who has the heavier of one round gets the lighter of the next.
#define SINGLE_ROUNDS 1 // more would be more even, but K and V of more lines than the cache holds

// What a work-group's share follows from.
typedef struct causal_share {
    int me;
    int width;
    int lines;
    int tiles;   // of a line
    int section; // of twins
    int twins;   // whose tiles come in pairs
    int whole_rounds; // of pairs; some work-groups have one more
    int my_rounds;
} causal_share;

static inline causal_share make_causal_share(int me, int width, int lines, int tiles, int section)
{
    causal_share s;
    const int rounds = lines / 2 * tiles / width - SINGLE_ROUNDS;
    s.me = me;
    s.width = width;
    s.lines = lines;
    s.tiles = tiles;
    s.section = section; // twins for lines: causal rows see half the keys
    s.twins = rounds > 0 ? rounds * width / tiles : 0;
    s.whole_rounds = s.twins * tiles / width;
    s.my_rounds = s.whole_rounds + (me < s.twins * tiles - s.whole_rounds * width);
    return s;
}

// The one or the other tile of a pair.
static inline int tile_of_pair(int pair, int is_second, int tiles)
{
    const int twins = pair / tiles, number = pair - twins * tiles;
    if (tiles % 2 != 0 && number == tiles - 1)
        return (2 * twins + is_second) * tiles + tiles / 2;
    return (2 * twins + number % 2) * tiles + (is_second ? number / 2 : tiles - 1 - number / 2);
}

// What the work-group takes in a round, as line * tiles + tile; NO_TILE: there are no more.
static inline int causal_tile(int round, causal_share s)
{
    if (round < 2 * s.my_rounds) {
        const int pair = tile_in_order(round / 2 * s.width + s.me, s.twins, s.tiles, s.section);
        return tile_of_pair(pair, round % 2, s.tiles);
    }
    const int lines = s.lines - 2 * s.twins, single_round = round - s.my_rounds;
    const int place = (single_round - s.whole_rounds) % 2 == 0 ? s.me : s.width - 1 - s.me;
    const int number = single_round * s.width + place - s.twins * s.tiles;
    if (number >= lines * s.tiles)
        return NO_TILE;
    const int level = number / lines; // 0: the heaviest
    return (2 * s.twins + number - level * lines) * s.tiles + s.tiles - 1 - level;
}

// ---- Where all rows cost the same ----------------------------------------------------------------------
//
// Whole tiles would leave most work-groups idle while some have one more. So the last rows of each line are in low tiles,
// which cost about LOW_COST by WHOLE_COST of whole ones; as few as make the largest share smallest. Who has fewer whole
// ones gets the first low ones.
#define WHOLE_COST 4
#define LOW_COST 3
#define MOST_FEWER 3 // whole tiles of a line than it has room for

typedef struct even_share {
    int width;
    int lines;
    int section;
    int whole; // tiles of a line
    int low;
    int next_whole; // of those of all lines
    int next_low;
} even_share;

static inline int largest_share(int whole, int low, int width)
{
    const int rounds = whole / width, more = whole - rounds * width; // work-groups that have one more
    const int low_rounds = low / width, rest = low - low_rounds * width;
    const int with_more = (rounds + 1) * WHOLE_COST + (low_rounds + (rest > width - more)) * LOW_COST;
    const int without = rounds * WHOLE_COST + (low_rounds + (rest > 0)) * LOW_COST;
    return more > 0 && with_more > without ? with_more : without;
}

static inline int low_tiles(int rows, int whole, int whole_rows, int low_rows)
{
    return (rows - whole * whole_rows + low_rows - 1) / low_rows;
}

static inline even_share make_even_share(int me, int width, int lines, int rows, int whole_rows, int low_rows,
                                         int section)
{
    even_share s;
    const int most = rows / whole_rows;
    int least = 0;
    s.width = width;
    s.lines = lines;
    s.section = section;
    s.whole = most;
    for (int whole = most; whole >= 0 && whole >= most - MOST_FEWER; whole--) {
        const int low = low_tiles(rows, whole, whole_rows, low_rows);
        const int share = largest_share(lines * whole, lines * low, width);
        if (whole == most || share < least) {
            s.whole = whole;
            least = share;
        }
    }
    s.low = low_tiles(rows, s.whole, whole_rows, low_rows);
    s.next_whole = me;
    s.next_low = (me + width - lines * s.whole % width) % width;
    return s;
}

// What the work-group takes next, as line * (whole + low) + tile; NO_TILE: there are no more. The low tiles of a section
// come behind its whole ones.
static inline int next_even_tile(__local even_share *s)
{
    const int all_whole = s->lines * s->whole, all_low = s->lines * s->low, tiles = s->whole + s->low;
    const int is_whole = s->next_whole < all_whole, is_low = s->next_low < all_low;
    if (is_low && (!is_whole || s->next_low / (s->section * s->low) < s->next_whole / (s->section * s->whole))) {
        const int tile = tile_in_order(s->next_low, s->lines, s->low, s->section), line = tile / s->low;
        s->next_low += s->width;
        return line * tiles + s->whole + tile - line * s->low;
    }
    if (!is_whole)
        return NO_TILE;
    const int tile = tile_in_order(s->next_whole, s->lines, s->whole, s->section), line = tile / s->whole;
    s->next_whole += s->width;
    return line * tiles + tile - line * s->whole;
}
