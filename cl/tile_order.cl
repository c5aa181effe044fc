// tile_order.cl: in which order work-groups take query tiles; integers only. Also compiled and tested as C.
//
// A line is all tiles of one head. Work-groups start in the order of their numbers, and many run at a time. Were they all
// of a few lines, many multiprocessors would ask for the same K and V at the same moment, and wait for them. So lines go
// side by side, in sections of as many as the cache has room for:
//     of each section, one after the other,
//         of each tile number, from the last to the first,
//             that tile of each line of the section
// Under a causal bound the last tiles cost most: the short ones fill the gaps at the end.
#define SECTION_BYTES (8 << 20) // K and V that lines of a section have at most, if they are several

// Lines of a section: all query heads of as many KV heads as have their keys in SECTION_BYTES. key_bytes: of a key and a
// value. lines: a multiple of heads_per_kv.
static inline int lines_of_section(int lines, int heads_per_kv, int kv_len, int key_bytes)
{
    const int lines_kv = lines / heads_per_kv, fitting = SECTION_BYTES / key_bytes / (kv_len > 0 ? kv_len : 1);
    return (fitting < 1 ? 1 : fitting < lines_kv ? fitting : lines_kv) * heads_per_kv;
}

// What comes as number `index`, as line * tiles + tile.
static inline int tile_in_order(int index, int lines, int tiles, int section)
{
    const int first = index / (section * tiles) * section; // line of the section
    const int here = section < lines - first ? section : lines - first;
    const int rest = index - first * tiles, level = rest / here; // 0: the last tiles
    return (first + rest - level * here) * tiles + tiles - 1 - level;
}
