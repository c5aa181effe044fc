// bounds.cl: which keys rows may see; integers only. Also compiled as C and tested exhaustively there.
//
// Causal bound, window and offset of a sequence become one band: row i may see key j if
//     i + band_begin <= j < i + band_end   and   0 <= j < kv_len.
// Lengths are at most 2^30 and the band lies within +-2^30, so that sums stay inside 32 bits.

#define MAX_LENGTH (1 << 30) // as CLATTN_MAX_LENGTH

#define POSITION_BOTTOM_RIGHT 0 // as CLATTN_POSITION_*
#define POSITION_TOP_LEFT 1
#define POSITION_EXPLICIT 2

typedef struct sequence {
    int q_len;
    int kv_len;
    int first_q; // where its rows begin in packed tensors; otherwise 0
    int first_k;
    int offset; // row i stands at position i + offset
    int band_begin;
    int band_end;
} sequence;

static inline int clamp_to_length(long number)
{
    return number < -MAX_LENGTH ? -MAX_LENGTH : number > MAX_LENGTH ? MAX_LENGTH : (int)number;
}

// A row at position p may see key j if  p + window_begin <= j < p + window_end. Beyond +-2^30, to which offset
// and band are clamped, every or no key is seen anyway; no argument lies beyond +-2^60.
static inline sequence make_sequence(int q_len, int kv_len, int position_mode, long explicit_offset,
                                     long window_begin, long window_end)
{
    const long offset = position_mode == POSITION_BOTTOM_RIGHT ? (long)kv_len - q_len
                        : position_mode == POSITION_TOP_LEFT   ? 0
                                                               : explicit_offset;
    sequence s;
    s.q_len = q_len;
    s.kv_len = kv_len;
    s.first_q = 0;
    s.first_k = 0;
    s.offset = clamp_to_length(offset);
    s.band_begin = clamp_to_length(offset + window_begin);
    s.band_end = clamp_to_length(offset + window_end);
    return s;
}

typedef struct key_range {
    int begin;
    int end; // exclusive; end <= begin: no key
} key_range;

static inline int clamp_key(int key, int kv_len)
{
    return key < 0 ? 0 : key > kv_len ? kv_len : key;
}

// The keys that one row may see.
static inline key_range keys_of_row(int row, int kv_len, int band_begin, int band_end)
{
    key_range keys;
    keys.begin = clamp_key(row + band_begin, kv_len);
    keys.end = clamp_key(row + band_end, kv_len);
    return keys;
}

// The keys that some row of first_row .. last_row may see: exactly the union of theirs, because the band
// moves by one key per row. (If the band is empty, so is the union; it then has end <= begin.)
static inline key_range keys_of_rows(int first_row, int last_row, int kv_len, int band_begin,
                                     int band_end)
{
    key_range keys;
    keys.begin = clamp_key(first_row + band_begin, kv_len);
    keys.end = clamp_key(last_row + band_end, kv_len);
    if (band_end <= band_begin)
        keys.end = keys.begin;
    return keys;
}

// Whether every row of first_row .. last_row may see every key of first_key .. last_key: such a tile
// needs no compare.
static inline int tile_is_full(int first_row, int last_row, int first_key, int last_key, int kv_len,
                               int band_begin, int band_end)
{
    return first_key >= last_row + band_begin && last_key < first_row + band_end && last_key < kv_len;
}
