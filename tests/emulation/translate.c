#define _GNU_SOURCE
#include "translate.h"

#include "ptx.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Text that grows ---- */

typedef struct text {
    char *bytes;
    size_t length, capacity;
} text;

static void append_bytes(text *t, const char *bytes, size_t length)
{
    if (t->length + length + 1 > t->capacity) {
        t->capacity = 2 * (t->length + length + 1);
        t->bytes = realloc(t->bytes, t->capacity);
        if (t->bytes == NULL)
            abort();
    }
    memcpy(t->bytes + t->length, bytes, length);
    t->bytes[t->length += length] = 0;
}

static void append(text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void append(text *t, const char *format, ...)
{
    char *piece = NULL;
    va_list arguments;
    va_start(arguments, format);
    const int length = vasprintf(&piece, format, arguments);
    va_end(arguments);
    if (length < 0)
        abort();
    append_bytes(t, piece, (size_t)length);
    free(piece);
}

/* ---- Reading C ---- */

static int is_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

static const char *skip_space(const char *at) { return at + strspn(at, " \t\n"); }

/* Behind a string or character. */
static const char *skip_quoted(const char *at)
{
    const char quote = *at++;
    while (*at && *at != quote)
        at += at[0] == '\\' && at[1] ? 2 : 1;
    return *at ? at + 1 : at;
}

/* Behind the parenthesis that closes the one at `at`. */
static const char *skip_parentheses(const char *at)
{
    int depth = 0;
    while (*at) {
        if (*at == '"' || *at == '\'') {
            at = skip_quoted(at);
            continue;
        }
        depth += *at == '(';
        depth -= *at == ')';
        at++;
        if (depth == 0)
            break;
    }
    return at;
}

static const char *find_word(const char *at, const char *word)
{
    const char *begin = at;
    const size_t length = strlen(word);
    while ((at = strstr(at, word)) != NULL && ((at > begin && is_word(at[-1])) || is_word(at[length])))
        at++;
    return at;
}

/* ---- Assembly ---- */

typedef struct operand {
    char name[24], constraint[8];
    const char *expression;
    int length;
    int is_read, is_written;
} operand;

typedef struct assembly {
    text template;
    operand operands[PTX_SLOTS_MOST];
    int num_operands;
} assembly;

static const char *read_template(text *out, const char *at)
{
    for (at = skip_space(at); *at == '"'; at = skip_space(at)) {
        const char *end = skip_quoted(at);
        for (at++; at < end - 1; at++) {
            char c = *at;
            if (c == '\\') {
                c = *++at;
                c = c == 'n' ? '\n' : c == 't' ? '\t' : c;
            }
            append_bytes(out, &c, 1);
        }
        at = end;
    }
    return at;
}

static const char *read_c_operands(assembly *a, const char *at, int is_output)
{
    for (at = skip_space(at); *at == '[' || *at == '"'; at = skip_space(at)) {
        operand *o = &a->operands[a->num_operands];
        if (++a->num_operands == PTX_SLOTS_MOST)
            return NULL;
        memset(o, 0, sizeof *o);
        if (*at == '[') {
            const char *end = strchr(at, ']');
            snprintf(o->name, sizeof o->name, "%.*s", (int)(end - at - 1), at + 1);
            at = skip_space(end + 1);
        }
        const char *end = skip_quoted(at);
        o->is_written = is_output;
        o->is_read = !is_output || at[1] == '+';
        snprintf(o->constraint, sizeof o->constraint, "%.*s", (int)(end - at - 2 - is_output),
                 at + 1 + is_output);
        at = skip_space(end);
        if (*at != '(')
            return NULL;
        o->expression = at;
        end = skip_parentheses(at);
        o->length = (int)(end - at);
        at = skip_space(end);
        if (*at != ',')
            break;
        at++;
    }
    return at;
}

static const char *read_assembly(assembly *a, const char *at)
{
    at = skip_space(at);
    if (strncmp(at, "volatile", 8) == 0 || strncmp(at, "__volatile__", 12) == 0)
        at = skip_space(at + strcspn(at, " \t\n("));
    if (*at != '(')
        return NULL;
    const char *end = skip_parentheses(at);
    at = read_template(&a->template, at + 1);
    for (int section = 0; at && *at == ':' && section < 2; section++)
        at = read_c_operands(a, at + 1, section == 0);
    return at ? end : NULL;
}

static int number_of_name(const assembly *a, const char *name, size_t length)
{
    for (int i = 0; i < a->num_operands; i++)
        if (strlen(a->operands[i].name) == length && strncmp(a->operands[i].name, name, length) == 0)
            return i;
    return -1;
}

/* The template as the assembler gets it, but for operands: they are %op0, %op1, ... */
static char *expand_template(const assembly *a)
{
    text out = {0};
    append(&out, "%s", "");
    for (const char *at = a->template.bytes; at && *at;) {
        if (*at != '%') {
            append_bytes(&out, at++, 1);
        } else if (at[1] == '%') {
            append_bytes(&out, "%", 1);
            at += 2;
        } else if (at[1] == '[') {
            const size_t length = strcspn(at + 2, "]");
            append(&out, "%%op%d", number_of_name(a, at + 2, length));
            at += length + 3;
        } else {
            char *end;
            append(&out, "%%op%ld", strtol(at + 1, &end, 10));
            at = end;
        }
    }
    return out.bytes;
}

/* An element of an array: in products those are the matrices in registers, which they read and write while
 * they are under way. */
static int is_element(const operand *o)
{
    return (o->constraint[0] == 'f' || o->constraint[0] == 'r') &&
           memchr(o->expression, '[', (size_t)o->length) != NULL;
}

static void write_call(text *out, const assembly *a, size_t number, int is_product)
{
    append(out, "do { ulong ptx_r[%d]; ", a->num_operands + 1);
    for (int i = 0; i < a->num_operands; i++) {
        const operand *o = &a->operands[i];
        const char c = o->constraint[0];
        if (is_product && is_element(o))
            append(out, "ptx_r[%d] = (ulong)&%.*s; ", i, o->length, o->expression);
        else if (!o->is_read)
            append(out, "ptx_r[%d] = 0x7fffdead7fffdeadul; ", i);
        else
            append(out, "ptx_r[%d] = %s%.*s; ", i,
                   c == 'f'   ? "as_uint"
                   : c == 'r' ? "(uint)"
                   : c == 'h' ? "(ushort)"
                              : "(ulong)",
                   o->length, o->expression);
    }
    append(out,
           "__asm__ volatile(\".pushsection ptx_used,\\\"a\\\";.long %zu;.popsection\"); "
           "ptx_execute(%zu, %d, ptx_r); ",
           number, number, a->num_operands);
    for (int i = 0; i < a->num_operands; i++) {
        const operand *o = &a->operands[i];
        const char c = o->constraint[0];
        if (!o->is_written || (is_product && is_element(o)))
            continue;
        append(out, c == 'f' ? "%.*s = as_float((uint)ptx_r[%d]); " : "%.*s = ptx_r[%d]; ", o->length,
               o->expression, i);
    }
    append(out, "} while (0)");
}

/* ---- Kernels ---- */

static void write_kernel(text *wrappers, text *entries, const char *at, const char *begin_of_attributes)
{
    /* at: the parenthesis of the parameters; before it is the name. */
    const char *name = at;
    while (name > begin_of_attributes && isspace((unsigned char)name[-1]))
        name--;
    const char *end_of_name = name;
    while (is_word(name[-1]))
        name--;
    const int length = (int)(end_of_name - name);
    const char *end = skip_parentheses(at), *size = strstr(begin_of_attributes, "reqd_work_group_size");
    int64_t items = 0;
    if (size && size < name) {
        int is_number;
        const char *from = strchr(size, '(') + 1;
        const char *to = from;
        for (int depth = 0; *to != ',' || depth > 0; to++)
            depth += (*to == '(') - (*to == ')');
        char *expression = strndup(from, (size_t)(to - from));
        items = ptx_constant(expression, &is_number);
        free(expression);
    }
    append(entries, "%.*s %d\n", length, name, (int)items);
    append(wrappers, "void emulated_%.*s(__global void *const *b, const attention_args *args)\n{\n    %.*s(",
           length, name, length, name);
    int number = 0;
    for (const char *c = at; c < end; c++)
        if (*c == ',')
            append(wrappers, "b[%d], ", number++);
    append(wrappers, "*args);\n}\n");
}

static void write_kernels(translation *out, text *source)
{
    text wrappers = {0}, entries = {0};
    append(&entries, "%s", "");
    for (const char *at = find_word(source->bytes, "__kernel"); at; at = find_word(at + 1, "__kernel")) {
        const char *parameters = at + strlen("__kernel");
        for (;;) {
            parameters += strcspn(parameters, "(;{");
            if (*parameters != '(')
                break;
            const char *word = parameters;
            while (isspace((unsigned char)word[-1]))
                word--;
            if (strncmp(word - strlen("__attribute__"), "__attribute__", strlen("__attribute__")) != 0)
                break;
            parameters = skip_parentheses(parameters);
        }
        if (*parameters == '(' && *skip_space(skip_parentheses(parameters)) == '{')
            write_kernel(&wrappers, &entries, parameters, at);
    }
    if (wrappers.bytes)
        append_bytes(source, wrappers.bytes, wrappers.length);
    free(wrappers.bytes);
    out->entries = entries.bytes;
}

/* ---- The whole ---- */

const char *translate(translation *out, const char *source)
{
    static const char keyword[] = "__asm__";
    text to = {0};
    const char *why = NULL, *from = source;
    memset(out, 0, sizeof *out);
    append(&to, "void ptx_execute(int statement, int num_slots, ulong *slots);\n"
                "extern __constant uint __start_ptx_used[], __stop_ptx_used[];\n"
                "void emulated_used(ulong *range)\n{\n    range[0] = (ulong)__start_ptx_used;\n"
                "    range[1] = (ulong)__stop_ptx_used;\n}\n");
    for (const char *at = find_word(from, keyword); at && !why; at = find_word(from, keyword)) {
        assembly *a = calloc(1, sizeof *a);
        if (a == NULL)
            abort();
        const char *end = read_assembly(a, at + strlen(keyword));
        append_bytes(&to, from, (size_t)(at - from));
        if (end == NULL)
            why = "inline assembly that is not understood";
        else if (a->template.length == 0 && a->num_operands == 0) {
            append_bytes(&to, at, (size_t)(end - at)); /* for the compiler alone */
            from = end;
        } else {
            out->statements = realloc(out->statements, (out->num_statements + 1) * sizeof *out->statements);
            if (out->statements == NULL)
                abort();
            out->statements[out->num_statements] = expand_template(a);
            write_call(&to, a, out->num_statements++,
                       a->template.bytes != NULL && strstr(a->template.bytes, "wgmma.") != NULL);
            from = end;
        }
        free(a->template.bytes);
        free(a);
    }
    append(&to, "%s\n", from);
    write_kernels(out, &to);
    out->source = to.bytes;
    return why;
}

void translation_release(translation *t)
{
    for (size_t i = 0; i < t->num_statements; i++)
        free(t->statements[i]);
    free(t->statements);
    free(t->source);
    free(t->entries);
}
