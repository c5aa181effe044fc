// naive.cl: attention in three steps with an N x N buffer: what flash attention is compared with.
//
//     naive_scores    S = scale * Q K^T, forbidden keys -inf, rounded to the storage type
//     naive_softmax   P = softmax of S by rows, in place, rounded to the storage type
//     naive_weighted  O = P V
//
// Competent, but simple: products by tiles in local memory, 4 x 8 values per work-item, accumulation in
// float32. Tensors are contiguous [batch * heads, length, head dim].

#ifndef TYPE // storage type: 1 f32, 2 f16, 3 bf16 (as CLATTN_DTYPE_*)
#define TYPE 1
#endif
#ifndef SIDE // work-items along each side of a tile
#define SIDE 8
#endif
#ifndef WIDTH // work-items that share a row of the softmax
#define WIDTH 64
#endif

#define TILE_ROWS (4 * SIDE)
#define TILE_COLUMNS (8 * SIDE)
#define STEP 16 // of the reduction that is in local memory at one time

#if TYPE == 1
typedef float storage_t;
static inline float load(const __global storage_t *p, long i) { return p[i]; }
static inline void store(__global storage_t *p, long i, float x) { p[i] = x; }
#elif TYPE == 2
typedef half storage_t;
static inline float load(const __global storage_t *p, long i) { return vload_half(0, p + i); }
static inline void store(__global storage_t *p, long i, float x) { vstore_half_rte(x, 0, p + i); }
#else
typedef ushort storage_t;
static inline float load(const __global storage_t *p, long i) { return as_float((uint)p[i] << 16); }
static inline void store(__global storage_t *p, long i, float x)
{
    const uint bits = as_uint(x);
    p[i] = isnan(x) ? (ushort)((bits >> 16) | 0x40)
                    : (ushort)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
#endif

// STEP steps of the reduction: the work-item's 4 x 8 values grow by the tiles a[.][row] and b[.][column].
static inline void multiply(const __local float *a, const __local float *b, int row, int column,
                            float8 *r0, float8 *r1, float8 *r2, float8 *r3)
{
    for (int c = 0; c < STEP; c++) {
        const float4 x = vload4(0, a + c * TILE_ROWS + row);
        const float8 y = vload8(0, b + c * TILE_COLUMNS + column);
        *r0 = fma((float8)(x.s0), y, *r0);
        *r1 = fma((float8)(x.s1), y, *r1);
        *r2 = fma((float8)(x.s2), y, *r2);
        *r3 = fma((float8)(x.s3), y, *r3);
    }
}

// To tile[STEP][size]: rows first .. first + size - 1 and columns c .. c + STEP - 1 of a matrix, turned
// over; 0 outside.
static inline void load_turned(__local float *tile, const int size, const __global storage_t *matrix,
                               int first, int rows, int c, int columns, int item)
{
    for (int i = item; i < size * STEP; i += SIDE * SIDE) {
        const int row = first + i / STEP, column = c + i % STEP;
        tile[(i % STEP) * size + i / STEP] =
            row < rows && column < columns ? load(matrix, (long)row * columns + column) : 0.0f;
    }
}

// To tile[STEP][size]: rows c .. c + STEP - 1 and columns first .. first + size - 1, as they lie.
static inline void load_straight(__local float *tile, const int size, const __global storage_t *matrix,
                                 int c, int rows, int first, int columns, int item)
{
    for (int i = item; i < size * STEP; i += SIDE * SIDE) {
        const int row = c + i / size, column = first + i % size;
        tile[i] = row < rows && column < columns ? load(matrix, (long)row * columns + column) : 0.0f;
    }
}

static inline void store_row(__global storage_t *matrix, int row, int rows, int column, int columns,
                             float8 values)
{
    float value[8];
    vstore8(values, 0, value);
    for (int c = 0; c < 8; c++)
        if (row < rows && column + c < columns)
            store(matrix, (long)row * columns + column + c, value[c]);
}

static inline int kv_head(int head, int heads_q, int heads_kv)
{
    return head / heads_q * heads_kv + head % heads_q / (heads_q / heads_kv);
}

// Row `row` may see the keys before row + band_end.
static inline float8 mask_row(float8 s, int row, int column, int band_end)
{
    const int8 key = column + (int8)(0, 1, 2, 3, 4, 5, 6, 7);
    return select(s, (float8)(-INFINITY), key >= (int8)(row + band_end));
}

__kernel __attribute__((reqd_work_group_size(SIDE, SIDE, 1))) void
naive_scores(const __global storage_t *q, const __global storage_t *k, __global storage_t *s, int heads_q,
             int heads_kv, int q_len, int kv_len, int head_dim, int band_end, float scale)
{
    __local float a[STEP * TILE_ROWS], b[STEP * TILE_COLUMNS];
    const int head = get_group_id(2), item = get_local_id(1) * SIDE + get_local_id(0);
    const int first_row = get_group_id(1) * TILE_ROWS, first_key = get_group_id(0) * TILE_COLUMNS;
    const int row = 4 * get_local_id(1), column = 8 * get_local_id(0);
    q += (long)head * q_len * head_dim;
    k += (long)kv_head(head, heads_q, heads_kv) * kv_len * head_dim;
    s += (long)head * q_len * kv_len;
    float8 r0 = 0, r1 = 0, r2 = 0, r3 = 0;
    for (int c = 0; c < head_dim; c += STEP) {
        barrier(CLK_LOCAL_MEM_FENCE);
        load_turned(a, TILE_ROWS, q, first_row, q_len, c, head_dim, item);
        load_turned(b, TILE_COLUMNS, k, first_key, kv_len, c, head_dim, item);
        barrier(CLK_LOCAL_MEM_FENCE);
        multiply(a, b, row, column, &r0, &r1, &r2, &r3);
    }
    const int i = first_row + row, j = first_key + column;
    store_row(s, i, q_len, j, kv_len, mask_row(r0 * scale, i, j, band_end));
    store_row(s, i + 1, q_len, j, kv_len, mask_row(r1 * scale, i + 1, j, band_end));
    store_row(s, i + 2, q_len, j, kv_len, mask_row(r2 * scale, i + 2, j, band_end));
    store_row(s, i + 3, q_len, j, kv_len, mask_row(r3 * scale, i + 3, j, band_end));
}

// The largest (or the sum) of one value per work-item, in every work-item.
static inline float reduce(__local float *values, int item, float x, int largest)
{
    values[item] = x;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int n = WIDTH / 2; n > 0; n /= 2) {
        if (item < n)
            values[item] = largest ? fmax(values[item], values[item + n]) : values[item] + values[item + n];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    const float result = values[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    return result;
}

__kernel __attribute__((reqd_work_group_size(WIDTH, 1, 1))) void naive_softmax(__global storage_t *s,
                                                                              int q_len, int kv_len)
{
    __local float values[WIDTH];
    const int item = get_local_id(0);
    s += ((long)get_group_id(2) * q_len + get_group_id(1)) * kv_len;
    float largest = -INFINITY;
    for (int j = item; j < kv_len; j += WIDTH)
        largest = fmax(largest, load(s, j));
    largest = reduce(values, item, largest, 1);
    if (largest == -INFINITY) // a row without keys is 0
        largest = 0;
    float sum = 0;
    for (int j = item; j < kv_len; j += WIDTH)
        sum += exp(load(s, j) - largest);
    sum = reduce(values, item, sum, 0);
    const float factor = sum > 0 ? 1.0f / sum : 0.0f;
    for (int j = item; j < kv_len; j += WIDTH)
        store(s, j, exp(load(s, j) - largest) * factor);
}

__kernel __attribute__((reqd_work_group_size(SIDE, SIDE, 1))) void
naive_weighted(const __global storage_t *p, const __global storage_t *v, __global storage_t *o, int heads_q,
               int heads_kv, int q_len, int kv_len, int head_dim)
{
    __local float a[STEP * TILE_ROWS], b[STEP * TILE_COLUMNS];
    const int head = get_group_id(2), item = get_local_id(1) * SIDE + get_local_id(0);
    const int first_row = get_group_id(1) * TILE_ROWS, first_column = get_group_id(0) * TILE_COLUMNS;
    const int row = 4 * get_local_id(1), column = 8 * get_local_id(0);
    p += (long)head * q_len * kv_len;
    v += (long)kv_head(head, heads_q, heads_kv) * kv_len * head_dim;
    o += (long)head * q_len * head_dim;
    float8 r0 = 0, r1 = 0, r2 = 0, r3 = 0;
    for (int c = 0; c < kv_len; c += STEP) {
        barrier(CLK_LOCAL_MEM_FENCE);
        load_turned(a, TILE_ROWS, p, first_row, q_len, c, kv_len, item);
        load_straight(b, TILE_COLUMNS, v, c, kv_len, first_column, head_dim, item);
        barrier(CLK_LOCAL_MEM_FENCE);
        multiply(a, b, row, column, &r0, &r1, &r2, &r3);
    }
    const int i = first_row + row, j = first_column + column;
    store_row(o, i, q_len, j, head_dim, r0);
    store_row(o, i + 1, q_len, j, head_dim, r1);
    store_row(o, i + 2, q_len, j, head_dim, r2);
    store_row(o, i + 3, q_len, j, head_dim, r3);
}
