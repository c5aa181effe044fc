#define _GNU_SOURCE
#include "ptx.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Constant expressions ---- */

typedef struct reader {
    const char *at;
    int failed;
} reader;

static void skip_space(reader *r)
{
    while (isspace((unsigned char)*r->at))
        r->at++;
}

static int takes(reader *r, char c)
{
    skip_space(r);
    if (*r->at != c)
        return 0;
    r->at++;
    return 1;
}

static int64_t sum(reader *r);

static int64_t atom(reader *r)
{
    skip_space(r);
    if (takes(r, '-'))
        return -atom(r);
    if (takes(r, '(')) {
        const int64_t x = sum(r);
        r->failed |= !takes(r, ')');
        return x;
    }
    if (!isdigit((unsigned char)*r->at)) {
        r->failed = 1;
        return 0;
    }
    char *end;
    const int64_t x = (int64_t)strtoull(r->at, &end, 0);
    r->at = end + strspn(end, "uUlL");
    return x;
}

static int64_t product(reader *r)
{
    int64_t x = atom(r);
    for (;;) {
        if (takes(r, '*'))
            x *= atom(r);
        else if (takes(r, '/') || takes(r, '%')) {
            const char sign = r->at[-1];
            const int64_t y = atom(r);
            if (y == 0) {
                r->failed = 1;
                return 0;
            }
            x = sign == '/' ? x / y : x % y;
        } else
            return x;
    }
}

static int64_t sum(reader *r)
{
    int64_t x = product(r);
    for (;;) {
        if (takes(r, '+'))
            x += product(r);
        else if (takes(r, '-'))
            x -= product(r);
        else
            return x;
    }
}

int64_t ptx_constant(const char *text, int *is_one)
{
    reader r = {text, 0};
    const int64_t x = sum(&r);
    skip_space(&r);
    *is_one = !r.failed && *r.at == 0;
    return x;
}

/* ---- Instructions ---- */

/* The first whose beginning fits, and whose other text, if any, is in the name. */
static const struct {
    const char *begin, *part;
    ptx_operation operation;
    int is_sm_90a;
} known[] = {
    {"add.", NULL, PTX_ADD, 0},
    {"atom.", ".add.", PTX_ATOMIC_ADD, 0},
    {"atom.", ".cas.", PTX_ATOMIC_CAS, 0},
    {"bar.arrive", NULL, PTX_ARRIVE_AT, 0},
    {"bar.sync", NULL, PTX_WAIT_AT, 0},
    {"bar.warp.sync", NULL, PTX_MEET_WARP, 0},
    {"bra", NULL, PTX_BRANCH, 0},
    {"cp.async.bulk.tensor.", ".tile.mbarrier::complete_tx::bytes", PTX_COPY_BOX, 0},
    {"cp.async.cg.", NULL, PTX_COPY, 0},
    {"cp.async.commit_group", NULL, PTX_CLOSE_COPIES, 0},
    {"cp.async.mbarrier.arrive.noinc.", NULL, PTX_ARRIVE_COPIES, 0},
    {"cp.async.wait_", NULL, PTX_WAIT_COPIES, 0},
    {"cvt.rn.bf16x2.f32", NULL, PTX_PACK_BF16, 0},
    {"cvt.rn.f16x2.f32", NULL, PTX_PACK_F16, 0},
    {"elect.sync", NULL, PTX_ELECT, 0},
    {"ex2.approx.ftz.f32", NULL, PTX_EXP2, 0},
    {"fence.proxy.async", NULL, PTX_SHOW, 0},
    {"fence.proxy.tensormap::generic.acquire.", NULL, PTX_ACQUIRE_MAP, 0},
    {"fence.", NULL, PTX_FENCE, 0},
    {"fma.", NULL, PTX_FMA, 0},
    {"ldmatrix.sync.aligned.m8n8.x4.", NULL, PTX_LOAD_MATRICES, 0},
    {"ld.", NULL, PTX_LOAD, 0},
    {"lg2.approx.", NULL, PTX_LOG2, 0},
    {"max.", NULL, PTX_MAX, 0},
    {"mbarrier.arrive.expect_tx.", NULL, PTX_ARRIVE_EXPECT, 0},
    {"mbarrier.arrive.", NULL, PTX_ARRIVE, 0},
    {"mbarrier.expect_tx.", NULL, PTX_EXPECT, 0},
    {"mbarrier.init.", NULL, PTX_BEGIN_BARRIER, 0},
    {"mbarrier.try_wait.parity.", NULL, PTX_WAIT_PHASE, 0},
    {"min.", NULL, PTX_MIN, 0},
    {"mma.sync.aligned.m16n8k", NULL, PTX_MMA, 0},
    {"mov.", NULL, PTX_MOVE, 0},
    {"mul.rn.f16x2", NULL, PTX_MULTIPLY_HALVES, 0},
    {"mul.", NULL, PTX_MULTIPLY, 0},
    {"pmevent", NULL, PTX_FENCE, 0},
    {"prmt.b32", NULL, PTX_PERMUTE, 0},
    {"rcp.approx.", NULL, PTX_RECIPROCAL, 0},
    {"ret", NULL, PTX_RETURN, 0},
    {"selp.", NULL, PTX_SELECT, 0},
    {"setmaxnreg.", NULL, PTX_REGISTERS, 1},
    {"setp.", NULL, PTX_SET_PREDICATE, 0},
    {"shfl.sync.", NULL, PTX_SHUFFLE, 0},
    {"st.", NULL, PTX_STORE, 0},
    {"sub.rn.f16x2", NULL, PTX_SUBTRACT_HALVES, 0},
    {"tensormap.replace.tile.", NULL, PTX_REPLACE, 1},
    {"vote.sync.any.pred", NULL, PTX_VOTE, 0},
    {"wgmma.commit_group.sync.aligned", NULL, PTX_WGMMA_COMMIT, 1},
    {"wgmma.fence.sync.aligned", NULL, PTX_WGMMA_FENCE, 1},
    {"wgmma.mma_async.sync.aligned.m64n", NULL, PTX_WGMMA, 1},
    {"wgmma.wait_group.sync.aligned", NULL, PTX_WGMMA_WAIT, 1},
};

static char complaint[256];

static const char *complain(const char *what, const char *text)
{
    snprintf(complaint, sizeof complaint, "%s: %.120s", what, text);
    return complaint;
}

static int classify(ptx_instruction *i, ptx_statement *s)
{
    size_t k = 0;
    while (k < sizeof known / sizeof *known &&
           (strncmp(i->name, known[k].begin, strlen(known[k].begin)) != 0 ||
            (known[k].part && !strstr(i->name, known[k].part))))
        k++;
    if (k == sizeof known / sizeof *known)
        return 0;
    i->operation = known[k].operation;
    s->is_sm_90a |= known[k].is_sm_90a;
    i->vector = strstr(i->name, ".v4.") ? 4 : strstr(i->name, ".v2.") ? 2 : 1;
    const char *last = strrchr(i->name, '.');
    if (last && strchr("bsuf", last[1]) && isdigit((unsigned char)last[2])) {
        i->type = last[1] == 'f' ? PTX_FLOAT : last[1] == 's' ? PTX_SIGNED : PTX_BITS;
        i->bits = atoi(last + 2);
    }
    return 1;
}

/* ---- Statements ---- */

/* While a statement is read: its registers and labels, and the branches to them. */
typedef struct names {
    char *registers[PTX_REGISTERS_MOST];
    int num_registers;
    char *labels[8];
    int label_at[8], num_labels;
    char *branches[8];
    int branch_at[8], num_branches;
} names;

static int find_register(const names *n, const char *name)
{
    for (int i = n->num_registers - 1; i >= 0; i--)
        if (strcmp(n->registers[i], name) == 0)
            return i;
    return -1;
}

/* The text without comments. */
static char *uncommented(const char *text)
{
    char *out = malloc(strlen(text) + 1), *to = out;
    while (out && *text) {
        if (text[0] == '/' && text[1] == '/')
            text += strcspn(text, "\n");
        else
            *to++ = *text++;
    }
    if (out)
        *to = 0;
    return out;
}

static const char *read_operand(ptx_operand *out, char *text, ptx_statement *s, const names *n)
{
    int is_number = 0;
    memset(out, 0, sizeof *out);
    if (strncmp(text, "%op", 3) == 0) {
        char *end;
        out->kind = PTX_SLOT;
        out->index = (int)strtol(text + 3, &end, 10);
        if (out->index >= PTX_SLOTS_MOST)
            return complain("too many operands", text);
        if (*end == 0)
            return NULL;
        out->number = (uint64_t)ptx_constant(end + (*end == '+'), &is_number);
        return is_number ? NULL : complain("no operand", text);
    }
    if (strcmp(text, "_") == 0)
        out->kind = PTX_NOTHING;
    else if (strcmp(text, "%tid.x") == 0)
        out->kind = PTX_ITEM;
    else if (strcmp(text, "%smid") == 0)
        out->kind = PTX_MULTIPROCESSOR;
    else if (strcmp(text, "clattn_program_memory") == 0) {
        out->kind = PTX_MEMORY;
        s->is_memory = 1;
    } else if (find_register(n, text) >= 0) {
        out->kind = PTX_REGISTER;
        out->index = find_register(n, text);
    } else {
        out->kind = PTX_NUMBER;
        out->number = text[0] == '0' && text[1] == 'f' ? strtoull(text + 2, NULL, 16)
                                                       : (uint64_t)ptx_constant(text, &is_number);
        if (text[1] != 'f' && !is_number)
            return complain("no operand", text);
    }
    return NULL;
}

static const char *read_operands(ptx_instruction *i, char *text, ptx_statement *s, const names *n)
{
    int count = 1;
    for (char *at = text; *at; at++) {
        if (*at == '|') /* a result and a predicate */
            *at = ',';
        count += *at == ',';
        if (strchr("{}[]", *at))
            *at = ' ';
    }
    i->operands = calloc((size_t)count, sizeof *i->operands);
    for (char *at = strtok(text, ","); at; at = strtok(NULL, ",")) {
        at += strspn(at, " \t\n");
        size_t length = strlen(at);
        while (length > 0 && isspace((unsigned char)at[length - 1]))
            at[--length] = 0;
        if (length == 0)
            continue;
        const char *why = read_operand(&i->operands[i->num_operands++], at, s, n);
        if (why)
            return why;
    }
    return NULL;
}

static const char *declare(names *n, char *text)
{
    text += strspn(text, " \t\n");
    text += strcspn(text, " \t\n"); /* the type */
    for (char *at = strtok(text, ", \t\n"); at; at = strtok(NULL, ", \t\n")) {
        if (n->num_registers == PTX_REGISTERS_MOST)
            return complain("too many registers", at);
        n->registers[n->num_registers++] = strdup(at);
    }
    return NULL;
}

static const char *read_instruction(ptx_statement *s, names *n, char *text)
{
    ptx_instruction i = {.guard = -1, .target = -1};
    if (strncmp(text, ".reg", 4) == 0)
        return declare(n, text + 4);
    if (*text == '@') {
        i.guard_is_false = text[1] == '!';
        char *name = text + 1 + i.guard_is_false;
        const size_t length = strcspn(name, " \t\n");
        text = name + length + strspn(name + length, " \t\n");
        name[length] = 0;
        if ((i.guard = find_register(n, name)) < 0)
            return complain("no predicate", name);
    }
    const size_t length = strcspn(text, " \t\n");
    char *rest = text + length;
    i.name = strndup(text, length);
    if (!classify(&i, s))
        return complain("no instruction that is emulated", text);
    if (i.operation == PTX_BRANCH) {
        rest += strspn(rest, " \t\n");
        n->branches[n->num_branches] = strndup(rest, strcspn(rest, " \t\n"));
        n->branch_at[n->num_branches++] = s->length;
    } else {
        const char *why = read_operands(&i, rest, s, n);
        if (why)
            return why;
    }
    s->code = realloc(s->code, (size_t)(s->length + 1) * sizeof *s->code);
    s->code[s->length++] = i;
    return NULL;
}

static const char *resolve_branches(ptx_statement *s, const names *n)
{
    for (int b = 0; b < n->num_branches; b++) {
        int l = 0;
        while (l < n->num_labels && strcmp(n->labels[l], n->branches[b]) != 0)
            l++;
        if (l == n->num_labels)
            return complain("no label", n->branches[b]);
        s->code[n->branch_at[b]].target = n->label_at[l];
    }
    return NULL;
}

const char *ptx_parse(ptx_statement *out, const char *text)
{
    names n;
    const char *why = NULL;
    char *plain = uncommented(text), *at = plain;
    memset(&n, 0, sizeof n);
    memset(out, 0, sizeof *out);
    out->text = strdup(text);
    while (!why && *(at += strspn(at, " \t\n{};"))) {
        const size_t word = strcspn(at, " \t\n;:");
        if (at[word] == ':' && at[word + 1] != ':' && n.num_labels < 8 && n.num_branches < 7) {
            n.labels[n.num_labels] = strndup(at, word);
            n.label_at[n.num_labels++] = out->length;
            at += word + 1;
            continue;
        }
        char *end = strchr(at, ';');
        if (!end) {
            why = complain("no semicolon", at);
            break;
        }
        *end = 0;
        why = read_instruction(out, &n, at);
        at = end + 1;
    }
    if (!why)
        why = resolve_branches(out, &n);
    for (int i = 0; i < n.num_registers; i++)
        free(n.registers[i]);
    for (int i = 0; i < n.num_labels; i++)
        free(n.labels[i]);
    for (int i = 0; i < n.num_branches; i++)
        free(n.branches[i]);
    free(plain);
    return why;
}
