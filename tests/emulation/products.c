/* products.c: asynchronous products of warpgroups (wgmma), each warp's 16 rows by themselves.
 *
 * While a product is under way its registers hold nothing; what it is made of is read when it is begun, and
 * again when somebody waits for it, and must not have changed. */
#include "machine.h"

#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 16, DEPTH = 16, MOST_COLUMNS = 256, MOST_PRODUCTS = 96, MOST_SUMS = 8, CHUNK = 16 };

/* The registers of a D, spread over the warp, while products add to it. */
typedef struct sums {
    int columns; /* 0: not in use */
    int users;   /* products under way */
    float *registers[LANES][MOST_COLUMNS / 2];
    float numbers[ROWS][MOST_COLUMNS];
} sums;

/* A matrix in local memory as its descriptor tells it. */
typedef struct matrix {
    uint64_t begin;
    uint32_t leading, stride; /* bytes */
    int is_across;            /* its rows lie across: columns are contiguous */
} matrix;

typedef struct product {
    sums *d;
    int columns, group, is_bf16, adds;
    matrix a, b;
    const uint32_t *a_registers[LANES][4]; /* a_registers[0][0] NULL: A is a matrix */
    uint16_t a_bits[ROWS * DEPTH], b_bits[MOST_COLUMNS * DEPTH];
} product;

typedef struct warp_products {
    product under_way[MOST_PRODUCTS];
    sums sums[MOST_SUMS];
    int count, group; /* group: that is open */
    int is_fenced;    /* since a wait: registers may be touched no more */
} warp_products;

static warp_products *of_warps;

static warp_products *products_of(const lane *warp) { return &of_warps[(warp - lanes) / LANES]; }

/* ---- Operands ---- */

static matrix matrix_of(uint64_t descriptor, int is_across)
{
    const matrix m = {(descriptor & 0xffff) << 4, (uint32_t)(descriptor >> 16 & 0x3fff) << 4,
                      (uint32_t)(descriptor >> 32 & 0x3fff) << 4, is_across};
    if (descriptor >> 62 != 1 || (descriptor >> 46 & 0xffff) != 0 || (m.begin & 0x380) != 0)
        fail("a matrix of another kind than 128-byte swizzle at multiples of 1024: 0x%016llx",
             (unsigned long long)descriptor);
    return m;
}

static const void *chunk_of(const matrix *m, uint64_t offset, uint32_t shown)
{
    const uint32_t address = local_of_matrix(m->begin + offset);
    return local_product_read(address ^ (address >> 3 & 0x70), shown);
}

/* `rows` of DEPTH elements along the depth of the product, or DEPTH of `rows` elements if they lie across; in
 * chunks of 8. */
static void read_matrix(uint16_t *bits, const matrix *m, int first_row, int rows, uint32_t shown)
{
    const int lines = m->is_across ? DEPTH : rows, chunks = (m->is_across ? rows : DEPTH) / 8;
    for (int l = 0; l < lines; l++) {
        const int line = m->is_across ? l : first_row + l;
        for (int c = 0; c < chunks; c++)
            memcpy(bits + 8 * (l * chunks + c),
                   chunk_of(m,
                            (uint64_t)(line / 8) * m->stride + (uint64_t)(line % 8) * 128 +
                                (uint64_t)(c / 8) * m->leading + (uint64_t)(c % 8) * CHUNK,
                            shown),
                   CHUNK);
    }
}

static void read_a(uint16_t *bits, const product *p, size_t warp, uint32_t shown)
{
    if (p->a_registers[0][0] == NULL) {
        read_matrix(bits, &p->a, (int)(warp % 4) * ROWS, ROWS, shown);
        return;
    }
    for (int i = 0; i < LANES; i++)
        for (int r = 0; r < 4; r++)
            memcpy(bits + (i / 4 + r % 2 * 8) * DEPTH + i % 4 * 2 + r / 2 * 8, p->a_registers[i][r], 4);
}

static void read_b(uint16_t *bits, const product *p, uint32_t shown)
{
    read_matrix(bits, &p->b, 0, p->columns, shown);
}

/* ---- Registers of results ---- */

static int place_of(int i, int r, int *column)
{
    *column = r / 4 * 8 + i % 4 * 2 + r % 2;
    return i / 4 + r % 4 / 2 * 8;
}

static sums *sums_of(lane *warp, int columns, int adds)
{
    warp_products *all = products_of(warp);
    sums *unused = NULL;
    float *first = (float *)(uintptr_t)value_at(warp->frame, 0);
    for (int s = 0; s < MOST_SUMS; s++) {
        if (all->sums[s].users > 0 && all->sums[s].registers[0][0] == first) {
            if (all->sums[s].columns != columns)
                fail("registers of a product of another size that is under way");
            return &all->sums[s];
        }
        if (all->sums[s].users == 0)
            unused = &all->sums[s];
    }
    if (unused == NULL)
        fail("too many products under way");
    unused->columns = columns;
    for (int i = 0; i < LANES; i++)
        for (int r = 0; r < columns / 2; r++) {
            const uint32_t nothing = UNDER_WAY_BITS;
            int column;
            float *at = unused->registers[i][r] = (float *)(uintptr_t)value_at(warp[i].frame, r);
            const int row = place_of(i, r, &column);
            unused->numbers[row][column] = adds ? *at : 0.0f;
            memcpy(at, &nothing, sizeof nothing);
        }
    return unused;
}

static void return_sums(const sums *d)
{
    for (int i = 0; i < LANES; i++)
        for (int r = 0; r < d->columns / 2; r++) {
            uint32_t bits;
            int column;
            memcpy(&bits, d->registers[i][r], sizeof bits);
            if (bits != UNDER_WAY_BITS)
                fail("a register of a product was written while it was under way");
            const int row = place_of(i, r, &column);
            *d->registers[i][r] = d->numbers[row][column];
        }
}

/* ---- Products ---- */

static uint32_t shown_to(const lane *warp)
{
    uint32_t least = UINT32_MAX;
    for (int i = 0; i < LANES; i++)
        least = warp[i].shown < least ? warp[i].shown : least;
    return least;
}

static void begin_product(lane *warp)
{
    warp_products *all = products_of(warp);
    const frame *f = warp->frame;
    const ptx_instruction *i = f->at;
    int columns = 0;
    char d_type[8] = "", a_type[8] = "", b_type[8] = "";
    if (sscanf(i->name, "wgmma.mma_async.sync.aligned.m64n%dk16.%7[^.].%7[^.].%7s", &columns, d_type, a_type,
               b_type) != 4 ||
        strcmp(d_type, "f32") != 0 || strcmp(a_type, b_type) != 0 ||
        (strcmp(a_type, "f16") != 0 && strcmp(a_type, "bf16") != 0) || columns % 8 != 0 ||
        columns > MOST_COLUMNS)
        fail("%s", i->name);
    /* D, a, b, adds, signs, and which lie across: of A only where it is a matrix */
    const int a = columns / 2, in_registers = i->num_operands - a == 4 + 5, b = a + (in_registers ? 4 : 1);
    if (i->num_operands - a != (in_registers ? 9 : 7))
        fail("%s with %d operands", i->name, i->num_operands);
    if (all->count == MOST_PRODUCTS)
        fail("too many products under way");
    if (!all->is_fenced)
        fail("a product without wgmma.fence since registers could be touched");
    if ((int64_t)value_at(f, b + 2) != 1 || (int64_t)value_at(f, b + 3) != 1)
        fail("a product of other signs");
    product *p = &all->under_way[all->count++];
    p->columns = columns;
    p->group = all->group;
    p->is_bf16 = strcmp(a_type, "bf16") == 0;
    p->adds = value_at(f, b + 1) != 0;
    for (int l = 0; l < LANES; l++) {
        const frame *of_lane = warp[l].frame;
        if (value_at(of_lane, b) != value_at(f, b) || (value_at(of_lane, b + 1) != 0) != p->adds ||
            (!in_registers && value_at(of_lane, a) != value_at(f, a)))
            fail("matrices that are not the same for a warp");
        for (int r = 0; r < 4; r++)
            p->a_registers[l][r] =
                in_registers ? (const uint32_t *)(uintptr_t)value_at(of_lane, a + r) : NULL;
    }
    p->a = in_registers ? (matrix){0} : matrix_of(value_at(f, a), value_at(f, b + 4) != 0);
    p->b = matrix_of(value_at(f, b), value_at(f, i->num_operands - 1) != 0);
    if (p->a.is_across)
        fail("an A that lies across");
    p->d = sums_of(warp, columns, p->adds);
    p->d->users++;
    const uint32_t shown = shown_to(warp);
    read_a(p->a_bits, p, (size_t)(warp - lanes) / LANES, shown);
    read_b(p->b_bits, p, shown);
}

static void floats_of(float *to, const uint16_t *bits, int count, int is_bf16)
{
    for (int i = 0; i < count; i += 8) {
        const __m128i eight = _mm_loadu_si128((const __m128i *)(const void *)(bits + i));
        const __m256 wide = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16));
        _mm256_storeu_ps(to + i, is_bf16 ? wide : _mm256_cvtph_ps(eight));
    }
}

/* D += A B, all row by row. */
static void add_product(float d[][MOST_COLUMNS], const float *a, const float *b, int columns)
{
    for (int r = 0; r < ROWS; r++)
        for (int n = 0; n < columns; n += 8) {
            __m256 sum = _mm256_loadu_ps(&d[r][n]);
            for (int k = 0; k < DEPTH; k++)
                sum = _mm256_fmadd_ps(_mm256_set1_ps(a[r * DEPTH + k]), _mm256_loadu_ps(b + k * columns + n),
                                      sum);
            _mm256_storeu_ps(&d[r][n], sum);
        }
}

static void end_product(lane *warp, product *p)
{
    static uint16_t a_bits[ROWS * DEPTH], b_bits[MOST_COLUMNS * DEPTH];
    static float a[ROWS * DEPTH], read[MOST_COLUMNS * DEPTH], across[MOST_COLUMNS * DEPTH];
    const int columns = p->columns;
    read_a(a_bits, p, (size_t)(warp - lanes) / LANES, UINT32_MAX - 1);
    read_b(b_bits, p, UINT32_MAX - 1);
    if (memcmp(a_bits, p->a_bits, sizeof a_bits) != 0)
        fail("the A of a product was written while it was under way");
    if (memcmp(b_bits, p->b_bits, (size_t)columns * DEPTH * sizeof *b_bits) != 0)
        fail("the B of a product was written while it was under way");
    floats_of(a, a_bits, ROWS * DEPTH, p->is_bf16);
    floats_of(read, b_bits, columns * DEPTH, p->is_bf16);
    for (int n = 0; !p->b.is_across && n < columns; n++)
        for (int k = 0; k < DEPTH; k++)
            across[k * columns + n] = read[n * DEPTH + k];
    if (!p->adds)
        for (int r = 0; r < ROWS; r++)
            memset(p->d->numbers[r], 0, (size_t)columns * sizeof(float));
    add_product(p->d->numbers, a, p->b.is_across ? read : across, columns);
    if (--p->d->users == 0)
        return_sums(p->d);
}

/* Whether the waiting statement names the registers: else the compiler may move what reads them before it. */
static int names_registers(const lane *warp, const sums *d)
{
    const frame *f = warp->frame;
    for (int s = 0; s < f->num_slots; s++)
        if (f->slots[s] == (uint64_t)(uintptr_t)d->registers[0][0])
            return 1;
    return 0;
}

static void wait_for_products(lane *warp, int open)
{
    warp_products *all = products_of(warp);
    int done = 0;
    while (done < all->count && all->under_way[done].group < all->group - open) {
        if (!names_registers(warp, all->under_way[done].d))
            fail("wgmma.wait_group does not name the registers of a product that it ends");
        end_product(warp, &all->under_way[done++]);
    }
    all->count -= done;
    memmove(all->under_way, all->under_way + done, (size_t)all->count * sizeof *all->under_way);
    all->is_fenced = 0;
}

void products_begin(void)
{
    if (of_warps == NULL && (of_warps = calloc(MOST_WARPS, sizeof *of_warps)) == NULL)
        fail("out of memory");
    for (int w = 0; w < MOST_WARPS; w++) {
        of_warps[w].count = of_warps[w].group = of_warps[w].is_fenced = 0;
        for (int s = 0; s < MOST_SUMS; s++)
            of_warps[w].sums[s].users = 0;
    }
}

void products_check_end(void)
{
    for (int w = 0; w < MOST_WARPS; w++)
        if (of_warps[w].count > 0)
            fail("warp %d ends while its products are under way", w);
}

void products_execute(lane *warp)
{
    warp_products *all = products_of(warp);
    switch (warp->frame->at->operation) {
    case PTX_WGMMA_FENCE:
        all->is_fenced = 1;
        break;
    case PTX_WGMMA_COMMIT:
        all->group++;
        break;
    case PTX_WGMMA_WAIT:
        wait_for_products(warp, (int)value_at(warp->frame, 0));
        break;
    default:
        begin_product(warp);
        break;
    }
}
