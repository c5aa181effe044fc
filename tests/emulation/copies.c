/* copies.c: copies to local memory, and the barriers there that tell when they are done (mbarrier).
 *
 * A copy spoils its destination as soon as it is begun, and arrives only when somebody waits for it. */
#include "machine.h"

#include <stdio.h>
#include <string.h>

enum { CHUNK = 16 };

/* ---- Barriers ---- */

enum { MOST_BARRIERS = 64 };

typedef struct barrier {
    uint32_t address;
    uint32_t count;  /* arrivals of a phase */
    int64_t pending; /* of the current one */
    int64_t bytes;   /* that are still to come in it */
    uint32_t phase;
    int copies_under_way, arrivals_under_way; /* behind copies */
} barrier;

static barrier barriers[MOST_BARRIERS];
static int num_barriers;

static barrier *barrier_at(uint32_t address)
{
    int i = 0;
    while (i < num_barriers && barriers[i].address != address)
        i++;
    if (i == num_barriers)
        fail("there is no barrier at 0x%x", (unsigned)address);
    return &barriers[i];
}

static void begin_barrier(uint32_t address, uint32_t count)
{
    if (address % 8 != 0 || count == 0 || num_barriers == MOST_BARRIERS)
        fail("mbarrier.init of 0x%x with %u", (unsigned)address, (unsigned)count);
    local_at(address, 8);
    for (int i = 0; i < num_barriers; i++)
        if (barriers[i].address == address)
            fail("mbarrier.init of 0x%x again", (unsigned)address);
    barriers[num_barriers++] = (barrier){.address = address, .count = count, .pending = count};
}

static void end_phase_if_due(barrier *b)
{
    if (b->pending > 0 || b->bytes != 0)
        return;
    b->phase++;
    b->pending = b->count;
}

static void arrive(barrier *b, uint64_t count)
{
    if ((int64_t)count > b->pending)
        fail("more arrivals at the barrier 0x%x than it is for", (unsigned)b->address);
    b->pending -= (int64_t)count;
    end_phase_if_due(b);
}

/* ---- Copies of work-items (cp.async) ---- */

static void begin_copy(uint32_t to, const void *from, int bytes)
{
    static const unsigned char nothing[CHUNK];
    lane *l = current;
    if (bytes < 0 || bytes > CHUNK || (bytes > 0 && (uintptr_t)from % CHUNK != 0))
        fail("cp.async of %d bytes from %p", bytes, from);
    if (l->num_copies == MOST_COPIES)
        fail("too many copies under way");
    local_spoil(to);
    l->copies[l->num_copies++] = (lane_copy){to, bytes > 0 ? from : nothing, bytes, l->group};
}

static void arrive_after_copies(uint32_t address)
{
    lane *l = current;
    if (l->num_copies == MOST_COPIES)
        fail("too many copies under way");
    barrier_at(address)->arrivals_under_way++;
    l->copies[l->num_copies++] = (lane_copy){address, NULL, 0, 0};
}

static void end_copy(const lane_copy *c)
{
    unsigned char bytes[CHUNK] = {0};
    if (c->from != NULL) {
        memcpy(bytes, c->from, (size_t)c->bytes);
        local_land(c->to, bytes, 0);
        return;
    }
    barrier *b = barrier_at(c->to);
    b->arrivals_under_way--;
    arrive(b, 1);
}

/* Until all of the work-item's groups but the last `open` have arrived. */
static void wait_for_copies(int open)
{
    lane *l = current;
    int kept = 0;
    for (int i = 0; i < l->num_copies; i++) {
        const lane_copy c = l->copies[i];
        if (c.from != NULL ? c.group >= l->group - open : kept > 0)
            l->copies[kept++] = c;
        else
            end_copy(&c);
    }
    l->num_copies = kept;
}

/* Those in front of the arrival at the barrier, and that. */
static void settle_lane(lane *l, const barrier *b)
{
    int end = 0;
    while (end < l->num_copies && (l->copies[end].from != NULL || l->copies[end].to != b->address))
        end++;
    if (end == l->num_copies)
        return;
    for (int i = 0; i <= end; i++)
        end_copy(&l->copies[i]);
    l->num_copies -= end + 1;
    memmove(l->copies, l->copies + end + 1, (size_t)l->num_copies * sizeof *l->copies);
}

/* ---- Copies of the engine ---- */

/* What the 128 bytes of a map hold here; the hardware's own form is nobody's business. */
typedef struct tensor_map {
    uint64_t address;
    uint64_t stride[4];
    uint32_t size[5], box[5], step[5];
    uint32_t last_axis;
    unsigned char element, interleave, swizzle, fill;
} tensor_map;

enum { MAP_BYTES = 128, MOST_MAPS = 16, MOST_BOXES = 256 };

/* Maps as they were when they were acquired: the engine need not see what came behind. */
static struct {
    uint64_t address;
    tensor_map map;
} acquired[MOST_MAPS];
static int num_acquired;

static struct {
    uint32_t to, barrier;
    tensor_map map;
    int32_t at[4];
} boxes[MOST_BOXES];
static int num_boxes;

static void replace_in_map(const frame *f)
{
    static const struct {
        const char *field;
        size_t offset;
        int bytes, axes;
    } fields[] = {
        {"global_address.", offsetof(tensor_map, address), 8, 0},
        {"global_stride.", offsetof(tensor_map, stride), 8, 4},
        {"global_dim.", offsetof(tensor_map, size), 4, 5},
        {"box_dim.", offsetof(tensor_map, box), 4, 5},
        {"element_stride.", offsetof(tensor_map, step), 4, 5},
        {"rank.", offsetof(tensor_map, last_axis), 4, 0},
        {"elemtype.", offsetof(tensor_map, element), 1, 0},
        {"interleave_layout.", offsetof(tensor_map, interleave), 1, 0},
        {"swizzle_mode.", offsetof(tensor_map, swizzle), 1, 0},
        {"fill_mode.", offsetof(tensor_map, fill), 1, 0},
    };
    const char *name = f->at->name + strlen("tensormap.replace.tile.");
    unsigned char *map = local_at((uint32_t)value_at(f, 0), MAP_BYTES);
    if ((uintptr_t)map % MAP_BYTES != 0)
        fail("a map at no multiple of 128");
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (strncmp(name, fields[i].field, strlen(fields[i].field)) == 0) {
            const uint64_t axis = fields[i].axes > 0 ? value_at(f, 1) : 0,
                           value = value_at(f, f->at->num_operands - 1);
            if (fields[i].axes > 0 && axis >= (uint64_t)fields[i].axes)
                fail("tensormap.replace of axis %u", (unsigned)axis);
            memcpy(map + fields[i].offset + axis * (uint64_t)fields[i].bytes, &value,
                   (size_t)fields[i].bytes);
            return;
        }
    fail("tensormap.replace of an unknown field: %s", name);
}

static void acquire_map(uint64_t address)
{
    int i = 0;
    while (i < num_acquired && acquired[i].address != address)
        i++;
    if (i == MOST_MAPS || address % MAP_BYTES != 0)
        fail("acquiring a map at 0x%llx", (unsigned long long)address);
    num_acquired += i == num_acquired;
    acquired[i].address = address;
    memcpy(&acquired[i].map, (const void *)(uintptr_t)address, sizeof(tensor_map));
}

static const tensor_map *map_at(uint64_t address)
{
    enum { TWO_BYTES_F16 = 6, TWO_BYTES_BF16 = 10, SWIZZLE_128 = 3 };
    int i = 0;
    while (i < num_acquired && acquired[i].address != address)
        i++;
    if (i == num_acquired)
        fail("the copy engine is given a map that was not acquired");
    const tensor_map *m = &acquired[i].map;
    if (m->last_axis != 3 || (m->element != TWO_BYTES_F16 && m->element != TWO_BYTES_BF16) ||
        m->interleave != 0 || m->swizzle != SWIZZLE_128 || m->fill != 0)
        fail("a map of another kind: %u axes, element %u, interleave %u, swizzle %u, fill %u",
             (unsigned)m->last_axis + 1, m->element, m->interleave, m->swizzle, m->fill);
    if (m->address == 0 || m->address % CHUNK != 0)
        fail("a mapped tensor at 0x%llx", (unsigned long long)m->address);
    for (int a = 0; a < 4; a++) {
        if (m->size[a] == 0 || m->box[a] == 0 || m->box[a] > 256 || m->step[a] != 1)
            fail("axis %d of a map: size %u, box %u, step %u", a, (unsigned)m->size[a], (unsigned)m->box[a],
                 (unsigned)m->step[a]);
        if (a < 3 && (m->stride[a] % CHUNK != 0 || m->stride[a] >> 40 != 0 || m->stride[a] == 0))
            fail("axis %d of a map: stride %llu", a + 1, (unsigned long long)m->stride[a]);
    }
    if (m->box[0] * 2 > 128 || m->box[0] * 2 % CHUNK != 0)
        fail("a box of %u columns", (unsigned)m->box[0]);
    return m;
}

static uint32_t box_rows(const tensor_map *m) { return m->box[1] * m->box[2] * m->box[3]; }

static uint32_t swizzled(uint32_t address) { return address ^ (address >> 3 & 0x70); }

static void begin_box(const frame *f)
{
    const tensor_map *m = map_at(value_at(f, 1));
    const uint32_t to = (uint32_t)value_at(f, 0), address = (uint32_t)value_at(f, 6);
    if (strncmp(f->at->name, "cp.async.bulk.tensor.4d.", 24) != 0 || f->at->num_operands != 7)
        fail("a box that is not one of four axes");
    if (to % 1024 != 0 || m->box[0] != 64 || num_boxes == MOST_BOXES)
        fail("a box to 0x%x", (unsigned)to);
    for (uint32_t chunk = 0; chunk < box_rows(m) * 8; chunk++)
        local_spoil(to + chunk * CHUNK);
    barrier_at(address)->copies_under_way++;
    boxes[num_boxes].to = to;
    boxes[num_boxes].barrier = address;
    boxes[num_boxes].map = *m;
    for (int a = 0; a < 4; a++)
        boxes[num_boxes].at[a] = (int32_t)value_at(f, 2 + a);
    num_boxes++;
}

/* A row of the box; beyond the tensor are zeros. */
static void land_row(uint32_t to, const tensor_map *m, const int32_t at[4])
{
    uint16_t row[64] = {0};
    const char *from = (const char *)(uintptr_t)m->address;
    int exists = 1;
    for (int a = 1; a < 4; a++) {
        exists &= at[a] >= 0 && (uint32_t)at[a] < m->size[a];
        from += (int64_t)at[a] * (int64_t)m->stride[a - 1];
    }
    for (int64_t c = 0; exists && c < 64; c++)
        if (at[0] + c >= 0 && at[0] + c < m->size[0])
            memcpy(&row[c], from + 2 * (at[0] + c), 2);
    for (uint32_t c = 0; c < 8; c++)
        local_land(swizzled(to + c * CHUNK), &row[8 * c], 1);
}

static void end_box(int number)
{
    const tensor_map *m = &boxes[number].map;
    barrier *b = barrier_at(boxes[number].barrier);
    for (uint32_t r = 0; r < box_rows(m); r++) {
        const int32_t *at = boxes[number].at;
        const int32_t here[4] = {at[0], at[1] + (int32_t)(r % m->box[1]),
                                 at[2] + (int32_t)(r / m->box[1] % m->box[2]),
                                 at[3] + (int32_t)(r / m->box[1] / m->box[2])};
        land_row(boxes[number].to + r * 128, m, here);
    }
    b->copies_under_way--;
    b->bytes -= (int64_t)box_rows(m) * 128;
    end_phase_if_due(b);
}

/* ---- Waiting ---- */

static void settle(barrier *b)
{
    for (size_t i = 0; b->arrivals_under_way > 0 && i < group_items; i++)
        settle_lane(&lanes[i], b);
    int kept = 0;
    for (int i = 0; i < num_boxes; i++) {
        if (boxes[i].barrier == b->address)
            end_box(i);
        else
            boxes[kept++] = boxes[i];
    }
    num_boxes = kept;
}

int phase_is_complete(uint32_t address, uint32_t parity)
{
    barrier *b = barrier_at(address);
    if ((b->phase & 1) == parity && (b->copies_under_way > 0 || b->arrivals_under_way > 0))
        settle(b);
    return (b->phase & 1) != parity;
}

void phases_describe(uint32_t address)
{
    const barrier *b = barrier_at(address);
    fprintf(stderr, "phase %u, %lld of %u arrivals and %lld bytes to come", (unsigned)b->phase,
            (long long)b->pending, (unsigned)b->count, (long long)b->bytes);
}

/* ---- The work-group ---- */

void copies_begin(void) { num_barriers = num_boxes = num_acquired = 0; }

void copies_check_end(void)
{
    if (num_boxes > 0)
        fail("the work-group ends while the copy engine is at work");
    for (int i = 0; i < num_barriers; i++)
        if (barriers[i].arrivals_under_way > 0)
            fail("the work-group ends before its copies arrive at the barrier 0x%x",
                 (unsigned)barriers[i].address);
}

static void expect(uint32_t address, uint64_t bytes) { barrier_at(address)->bytes += (int64_t)bytes; }

void copies_execute(frame *f)
{
    const ptx_instruction *i = f->at;
    const uint32_t address = i->num_operands > 0 ? (uint32_t)value_at(f, 0) : 0;
    switch (i->operation) {
    case PTX_BEGIN_BARRIER:
        begin_barrier(address, (uint32_t)value_at(f, 1));
        break;
    case PTX_ARRIVE: /* _,[barrier] or _,[barrier],count */
        arrive(barrier_at((uint32_t)value_at(f, 1)), i->num_operands > 2 ? value_at(f, 2) : 1);
        pause_in(LANE_YIELDS);
        break;
    case PTX_ARRIVE_EXPECT:
        expect((uint32_t)value_at(f, 1), value_at(f, 2));
        arrive(barrier_at((uint32_t)value_at(f, 1)), 1);
        pause_in(LANE_YIELDS);
        break;
    case PTX_EXPECT:
        expect(address, value_at(f, 1));
        break;
    case PTX_ARRIVE_COPIES:
        arrive_after_copies(address);
        break;
    case PTX_WAIT_PHASE: /* done,[barrier],parity */
        current->barrier = (uint32_t)value_at(f, 1);
        current->parity = (uint32_t)value_at(f, 2);
        if (current->parity > 1)
            fail("a parity of %u", (unsigned)current->parity);
        if (!phase_is_complete(current->barrier, current->parity))
            pause_in(LANE_PHASE);
        operand_set(f, &i->operands[0], 1);
        break;
    case PTX_COPY: { /* [to],[from],16 and bytes that are read, or whether none are */
        uint64_t bytes = i->num_operands > 3 ? value_at(f, 3) : CHUNK;
        if (i->num_operands > 3 && i->operands[3].kind == PTX_REGISTER)
            bytes = bytes ? 0 : CHUNK;
        begin_copy(address, (const void *)(uintptr_t)value_at(f, 1), (int)bytes);
        break;
    }
    case PTX_CLOSE_COPIES:
        current->group++;
        break;
    case PTX_WAIT_COPIES:
        if (i->num_operands == 0) /* wait_all */
            current->group++;
        wait_for_copies(i->num_operands > 0 ? (int)value_at(f, 0) : 0);
        break;
    case PTX_REPLACE:
        replace_in_map(f);
        break;
    case PTX_ACQUIRE_MAP:
        acquire_map(value_at(f, 0));
        break;
    default: /* PTX_COPY_BOX */
        begin_box(f);
        break;
    }
}
