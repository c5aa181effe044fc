// rows.cl: one row of floats on its way to a cache: from its tensor to local memory, and from there, in the
// storage type of the cache, to its place. A work-group takes a row; neighbours take neighbouring elements or
// blocks. Shared by append.cl and convert_rows.cl, so that both store the same bits.

#define ROW_ITEMS 64 // work-items of a work-group
#define MAX_ROW 576 // as CLATTN_MAX_HEAD_DIM

#define UNIT_ELEMENTS(type) (IS_BLOCK(type) ? BLOCK_ELEMENTS : 1)

typedef struct row_memory {
    __local float *row; // MAX_ROW
    __local float *largest; // ROW_ITEMS
} row_memory;

static inline void load_row(__local float *row, const __global q_t *source, int columns, int id)
{
    for (int c = id; c < columns; c += ROW_ITEMS)
        row[c] = LOAD1(Q_TYPE)(source, c);
    barrier(CLK_LOCAL_MEM_FENCE);
}

static inline float largest_of_row(const row_memory *memory, int columns, int id)
{
    float largest = 0.0f;
    for (int c = id; c < columns; c += ROW_ITEMS)
        largest = fmax(largest, fabs(memory->row[c]));
    memory->largest[id] = largest;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < ROW_ITEMS; i++)
        largest = fmax(largest, memory->largest[i]);
    return largest;
}

// What the row's elements are multiplied by before they are stored. I8: the scale is found, and written.
static inline float inverse_scale_of_row(int type, int has_scale, __global float *scale, int columns, int id,
                                         const row_memory *memory)
{
    if (type == TYPE_I8) {
        const float found = scale_of_i8(largest_of_row(memory, columns, id));
        if (id == 0)
            *scale = found;
        return inverse_of(found);
    }
    return has_scale ? inverse_of(*scale) : 1.0f;
}

// name(p, first, ...): the row goes to p from unit `first` on, an element or a block of it at a time.
#define DEFINE_STORE_ROW(name, type)                                                                     \
    static inline void name(__global STORAGE(type) *p, long first, const __local float *row, int columns,  \
                            float inverse_scale, int id)                                                 \
    {                                                                                                    \
        for (int c = id * UNIT_ELEMENTS(type); c < columns; c += ROW_ITEMS * UNIT_ELEMENTS(type)) {              \
            float unit[UNIT_ELEMENTS(type)];                                                                 \
            for (int i = 0; i < UNIT_ELEMENTS(type); i++)                                                    \
                unit[i] = row[c + i];                                                                    \
            STORE_UNIT(type)(p, first, c, UNIT_ELEMENTS(type), unit, inverse_scale);                         \
        }                                                                                                \
    }
