// cache_types_test.cl: for each storage type every way to float, and the way back.

// Of `count` elements from unit `row` on, a multiple of 16: what ROW1, ROW8, ROW16, LOAD_QUAD and GATHER_QUAD
// give, one after the other. Work-item i has 16 of them. (GATHER_QUAD once more behind these, where it may not
// read beyond `end`.)
#define DECODE(type)                                                                                      \
    __kernel void read_##type(const __global storage_##type *p, __global float *out, int row, int count, \
                                int end, float scale)                                                     \
    {                                                                                                     \
        const int column = 16 * (int)get_global_id(0);                                                    \
        out += column;                                                                                    \
        for (int i = 0; i < 16; i++)                                                                      \
            out[i] = ROW1(type)(p, row, column + i);                                                      \
        out += count;                                                                                     \
        vstore8(ROW8(type)(p, row, column), 0, out);                                                      \
        vstore8(ROW8(type)(p, row, column + 8), 1, out);                                                  \
        out += count;                                                                                     \
        vstore16(ROW16(type)(p, row, column), 0, out);                                                    \
        for (int i = 0; i < 4; i++) {                                                                     \
            const QUAD(type) loaded = LOAD_QUAD(type)(p + row, column + 4 * i);                           \
            const QUAD(type) gathered = GATHER_QUAD(type)(p + row, column + 4 * i, count);                \
            const QUAD(type) cut = GATHER_QUAD(type)(p + row, column + 4 * i, end);                       \
            vstore4(UNPACK_QUAD(type)(SCALED_QUAD(type)(loaded, scale)), i, out + count);                 \
            vstore4(UNPACK_QUAD(type)(gathered), i, out + 2 * count);                                     \
            vstore4(UNPACK_QUAD(type)(cut), i, out + 3 * count);                                          \
        }                                                                                                 \
        if (column == 0)                                                                                  \
            out[4 * count] = sizeof(storage_##type) + 1000 * IS_SCALED(type) + 10000 * IS_BLOCK(type) +   \
                             UNPACK_QUAD(type)((QUAD(type))(0)).w;                                        \
    }

// Work-item i stores elements 32 i .. 32 i + 31, the last one what there is.
#define ENCODE(type)                                                                                      \
    __kernel void store_##type(const __global float *x, __global storage_##type *p, int row, int count,  \
                                float scale)                                                              \
    {                                                                                                     \
        const int column = 32 * (int)get_global_id(0);                                                    \
        const int number = min(32, count - column);                                                       \
        float unit[32];                                                                                   \
        for (int i = 0; i < 32; i++)                                                                      \
            unit[i] = i < number ? x[column + i] : 0.0f;                                                  \
        STORE_UNIT(type)(p, row, column, number, unit, inverse_of(scale));                                \
    }

#define BOTH(type) DECODE(type) ENCODE(type)
BOTH(1)
BOTH(2)
BOTH(3)
BOTH(5)
BOTH(6)
BOTH(7)
BOTH(8)
BOTH(9)
BOTH(10)
BOTH(11)
BOTH(12)
BOTH(13)

__kernel void i8_scale(const __global float *largest, __global float *out)
{
    const size_t i = get_global_id(0);
    out[i] = scale_of_i8(largest[i]);
}
