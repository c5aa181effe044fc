// rows.cl: one row of floats on its way to a cache: from its tensor to local memory, and from there, in
// the storage type of the cache, to its place. A work-group takes a row; neighbours take neighbouring
// elements or blocks. Shared by append.cl and convert_rows.cl, so that both store the same bits.

#define ROW_ITEMS 64 // work-items of a work-group
#define MAX_ROW 576 // as CLATTN_MAX_HEAD_DIM; a multiple of ROW_ITEMS

#define UNIT_ELEMENTS(type) (IS_BLOCK(type) ? BLOCK_ELEMENTS : 1)

// A row lies in local memory in whole steps of the work-group, with zeros behind its columns. All
// work-items take the same number of steps: loops of `c = id; c < columns; c += ROW_ITEMS` are vectorised
// wrongly by PoCL 3.1 with LLVM 14 where some work-items take no step at all (seen 2026-11-30).
#define FOR_STEPS_OF_ROW(first, columns, step) for (int first = 0; first < (columns); first += (step))

static inline float element_of_row(const __global q_t *source, int c, int columns)
{
    const float x = LOAD1(Q_TYPE)(source, min(c, columns - 1));
    return c < columns ? x : 0.0f;
}

// The largest magnitude of the row. work: 2 * ROW_ITEMS floats of local memory. In two steps of 8 by 8,
// which all work-items take alike.
static inline float largest_of_row(const __local float *row, int columns, __local float *work, int id)
{
    __local float *const eighths = work + ROW_ITEMS;
    float largest = 0.0f, eighth = 0.0f;
    FOR_STEPS_OF_ROW(first, columns, ROW_ITEMS)
        largest = fmax(largest, fabs(row[first + id]));
    work[id] = largest;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < 8; i++)
        eighth = fmax(eighth, work[id % 8 * 8 + i]);
    eighths[id] = eighth;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < 8; i++)
        largest = fmax(largest, eighths[i]);
    return largest;
}

// What the row's elements are multiplied by before they are stored. I8: the scale is found, and written.
static inline float inverse_scale_of_row(int type, int has_scale, __global float *scale, float largest,
                                         int id)
{
    if (type != TYPE_I8)
        return has_scale ? inverse_of(*scale) : 1.0f;
    const float found = scale_of_i8(largest);
    if (id == 0)
        *scale = found;
    return inverse_of(found);
}

// name(p, begin, ...): the row goes to p from unit `begin` on, an element or a block of it at a time.
#define DEFINE_STORE_ROW(name, type)                                                                     \
    static inline void name(__global STORAGE(type) *p, long begin, const __local float *row, int columns,  \
                            float inverse_scale, int id)                                                 \
    {                                                                                                    \
        FOR_STEPS_OF_ROW(first, columns, ROW_ITEMS * UNIT_ELEMENTS(type))                                \
        {                                                                                                \
            const int c = first + id * UNIT_ELEMENTS(type);                                              \
            float unit[UNIT_ELEMENTS(type)];                                                             \
            if (c < columns) {                                                                           \
                for (int i = 0; i < UNIT_ELEMENTS(type); i++)                                            \
                    unit[i] = row[c + i];                                                                \
                STORE_UNIT(type)(p, begin, c, UNIT_ELEMENTS(type), unit, inverse_scale);                 \
            }                                                                                            \
        }                                                                                                \
    }
