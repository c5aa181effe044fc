/* safetensors.c: reading, with every check that a hostile file needs. The format: 8 bytes of header
 * length (little-endian), the header (JSON, may be padded with spaces), the data. The header maps
 * names to {"dtype", "shape", "data_offsets": [begin, end]}, offsets counting from the end of the
 * header; the tensors cover the data without holes or overlaps. "__metadata__" maps text to text.
 */
#include "safetensors.h"

#include <cjson/cJSON.h>

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_HEADER_BYTES (100u * 1000 * 1000) /* the format's own limit */
#define MAX_HEADER_VALUES (1u << 20)          /* keeps cJSON's tree below about 100 MB */
#define METADATA_KEY "__metadata__"

/* Where to put the one line that says what is wrong. */
typedef struct complaint {
    const char *path;
    char *text;
    size_t capacity;
} complaint;

#define REFUSE(c, ...) (refuse(c, __VA_ARGS__), -1)

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static void
refuse(const complaint *c, const char *format, ...);

static void refuse(const complaint *c, const char *format, ...)
{
    char detail[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(detail, sizeof detail, format, arguments);
    va_end(arguments);
    snprintf(c->text, c->capacity, "%.200s: %s", c->path, detail);
}

typedef struct dtype_entry {
    const char *name;
    uint32_t bytes;
} dtype_entry;

static const dtype_entry dtypes[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
    {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"F64", 8},     {"I64", 8}, {"U64", 8},
};

static const dtype_entry *find_dtype(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return &dtypes[i];
    return NULL;
}

void safetensors_shape_text(char *out, size_t capacity, const int64_t *shape, int rank)
{
    snprintf(out, capacity, "[");
    for (int i = 0; i <= rank; i++) {
        const size_t used = strlen(out);
        if (i < rank)
            snprintf(out + used, capacity - used, "%s%" PRId64, i ? "," : "", shape[i]);
        else
            snprintf(out + used, capacity - used, "]");
    }
}

/* ---- The header's bytes -------------------------------------------------------------------------
 */

/* The length of the UTF-8 sequence at p, or 0 if it is none: overlong forms, surrogates and code
 * points beyond U+10FFFF included. */
static size_t utf8_length(const unsigned char *p, size_t left)
{
    if (p[0] < 0x80)
        return 1;
    const size_t length = p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;
    if (length == 0 || length > left)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf0 && p[1] < 0x90) ||
        (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return length;
}

int safetensors_is_utf8(const char *text)
{
    size_t left = strlen(text);
    while (left > 0) {
        const size_t length = utf8_length((const unsigned char *)text, left);
        if (length == 0)
            return 0;
        text += length;
        left -= length;
    }
    return 1;
}

/* What cJSON would let pass: bytes that are no UTF-8, control characters, NUL inside a text (which
 * would cut a name short), and headers that are small in the file but huge as a tree. */
static int scan_header(const unsigned char *p, size_t size, const complaint *c)
{
    size_t values = 0;
    int in_text = 0;
    for (size_t i = 0; i < size;) {
        const size_t length = utf8_length(p + i, size - i);
        if (length == 0)
            return REFUSE(c, "the header is not UTF-8 (byte %zu)", i);
        if (p[i] < 0x20 && (in_text || (p[i] != '\t' && p[i] != '\n' && p[i] != '\r')))
            return REFUSE(c, "the header has a control character (byte %zu)", i);
        if (in_text && p[i] == '\\') {
            if (size - i >= 6 && memcmp(p + i, "\\u0000", 6) == 0)
                return REFUSE(c, "the header has a NUL character in a text (byte %zu)", i);
            i += 2;
            continue;
        }
        if (p[i] == '"')
            in_text = !in_text;
        else if (!in_text && (p[i] == ',' || p[i] == '[' || p[i] == '{'))
            values++;
        i += length;
    }
    if (values > MAX_HEADER_VALUES)
        return REFUSE(c, "the header has more than %u values", MAX_HEADER_VALUES);
    return 0;
}

static int only_spaces(const char *begin, const char *end)
{
    while (begin < end && (*begin == ' ' || *begin == '\t' || *begin == '\n' || *begin == '\r'))
        begin++;
    return begin == end;
}

static cJSON *parse_header(const unsigned char *text, size_t size, const complaint *c)
{
    if (scan_header(text, size, c) != 0)
        return NULL;
    if (size == 0 || text[0] != '{') {
        refuse(c, "the header is not a JSON object");
        return NULL;
    }
    const char *end = NULL;
    cJSON *json = cJSON_ParseWithLengthOpts((const char *)text, size, &end, 0);
    if (!json || !cJSON_IsObject(json)) {
        refuse(c, "the header is not valid JSON");
        cJSON_Delete(json);
        return NULL;
    }
    if (!only_spaces(end, (const char *)text + size)) {
        refuse(c, "the header has something after its JSON object");
        cJSON_Delete(json);
        return NULL;
    }
    return json;
}

/* ---- One tensor ---------------------------------------------------------------------------------
 */

/* Whole, not negative, and below 2^53, up to where a double counts exactly. */
static int whole_number(const cJSON *json, int64_t *out)
{
    if (!cJSON_IsNumber(json) || !(json->valuedouble >= 0) || json->valuedouble >= 9007199254740992.0)
        return 0;
    *out = (int64_t)json->valuedouble;
    return (double)*out == json->valuedouble;
}

static int read_shape(safetensors_tensor *t, const cJSON *json, const complaint *c)
{
    if (!cJSON_IsArray(json))
        return REFUSE(c, "tensor '%.64s': expected an array as shape", t->name);
    const cJSON *dim;
    cJSON_ArrayForEach(dim, json)
    {
        if (t->rank == SAFETENSORS_MAX_RANK)
            return REFUSE(c, "tensor '%.64s': expected at most %d dimensions", t->name, SAFETENSORS_MAX_RANK);
        if (!whole_number(dim, &t->shape[t->rank]))
            return REFUSE(c, "tensor '%.64s': dimension %d of its shape is not a whole number >= 0", t->name,
                          t->rank);
        t->rank++;
    }
    return 0;
}

/* Bytes that dtype and shape make; -1 if they go beyond 2^62. Zeros do not hide an overflow,
 * because products of some of the dimensions are used too. */
static int64_t bytes_of_shape(const safetensors_tensor *t, uint32_t element)
{
    int64_t product = element;
    int empty = 0;
    for (int i = 0; i < t->rank; i++) {
        if (t->shape[i] == 0)
            empty = 1;
        else if (product > ((int64_t)1 << 62) / t->shape[i])
            return -1;
        else
            product *= t->shape[i];
    }
    return empty ? 0 : product;
}

static int read_offsets(const safetensors_tensor *t, const cJSON *json, int64_t data_bytes, int64_t *begin,
                        int64_t *end, const complaint *c)
{
    if (!cJSON_IsArray(json) || cJSON_GetArraySize(json) != 2 ||
        !whole_number(cJSON_GetArrayItem(json, 0), begin) || !whole_number(cJSON_GetArrayItem(json, 1), end))
        return REFUSE(c, "tensor '%.64s': expected data_offsets of two whole numbers >= 0", t->name);
    if (*begin > *end || *end > data_bytes)
        return REFUSE(c,
                      "tensor '%.64s': data_offsets [%" PRId64 ",%" PRId64 "] lie outside the %" PRId64
                      " bytes of data",
                      t->name, *begin, *end, data_bytes);
    return 0;
}

static int read_tensor(safetensors_tensor *t, const cJSON *json, int64_t data_bytes, const complaint *c)
{
    t->name = json->string;
    if (!cJSON_IsObject(json))
        return REFUSE(c, "tensor '%.64s': expected an object", t->name);
    const cJSON *dtype = NULL, *shape = NULL, *offsets = NULL;
    const cJSON *field;
    cJSON_ArrayForEach(field, json)
    {
        const cJSON **slot = strcmp(field->string, "dtype") == 0          ? &dtype
                             : strcmp(field->string, "shape") == 0        ? &shape
                             : strcmp(field->string, "data_offsets") == 0 ? &offsets
                                                                          : NULL;
        if (!slot)
            return REFUSE(c, "tensor '%.64s': unknown field '%.64s'", t->name, field->string);
        if (*slot)
            return REFUSE(c, "tensor '%.64s': field '%s' appears twice", t->name, field->string);
        *slot = field;
    }
    if (!dtype || !shape || !offsets)
        return REFUSE(c, "tensor '%.64s': expected dtype, shape and data_offsets", t->name);

    const dtype_entry *entry = cJSON_IsString(dtype) ? find_dtype(dtype->valuestring) : NULL;
    if (!entry)
        return REFUSE(c, "tensor '%.64s': unknown dtype '%.32s'", t->name,
                      cJSON_IsString(dtype) ? dtype->valuestring : "(not a text)");
    t->dtype = entry->name;

    int64_t begin, end;
    if (read_shape(t, shape, c) != 0 || read_offsets(t, offsets, data_bytes, &begin, &end, c) != 0)
        return -1;
    const int64_t bytes = bytes_of_shape(t, entry->bytes);
    char text[160];
    safetensors_shape_text(text, sizeof text, t->shape, t->rank);
    if (bytes < 0)
        return REFUSE(c, "tensor '%.64s': shape %s is too large", t->name, text);
    if (bytes != end - begin)
        return REFUSE(c, "tensor '%.64s': %s %s takes %" PRId64 " bytes, but its data_offsets span %" PRId64,
                      t->name, t->dtype, text, bytes, end - begin);
    t->bytes = (size_t)bytes;
    t->data = (const void *)(uintptr_t)begin; /* an offset until the data has been read */
    return 0;
}

/* ---- The whole file -----------------------------------------------------------------------------
 */

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const safetensors_tensor *)a)->name, ((const safetensors_tensor *)b)->name);
}

static int compare_offsets(const void *a, const void *b)
{
    const safetensors_tensor *x = a, *y = b;
    const uintptr_t p = (uintptr_t)x->data, q = (uintptr_t)y->data;
    if (p != q)
        return p < q ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty ones first */
}

static int check_metadata(const cJSON *json, const complaint *c)
{
    if (!cJSON_IsObject(json))
        return REFUSE(c, "%s: expected an object", METADATA_KEY);
    const cJSON *value;
    cJSON_ArrayForEach(value, json)
    {
        if (!cJSON_IsString(value))
            return REFUSE(c, "%s: expected a text for '%.64s'", METADATA_KEY, value->string);
    }
    return 0;
}

static int read_tensors(safetensors_file *file, int64_t data_bytes, const complaint *c)
{
    const cJSON *json;
    int metadata_seen = 0;
    cJSON_ArrayForEach(json, (const cJSON *)file->header)
    {
        if (strcmp(json->string, METADATA_KEY) == 0) {
            if (metadata_seen++)
                return REFUSE(c, "%s appears twice", METADATA_KEY);
            if (check_metadata(json, c) != 0)
                return -1;
        } else if (read_tensor(&file->tensor[file->count], json, data_bytes, c) != 0) {
            return -1;
        } else {
            file->count++;
        }
    }
    return 0;
}

static int check_names_and_offsets(safetensors_file *file, int64_t data_bytes, const complaint *c)
{
    safetensors_tensor *t = file->tensor;
    if (file->count > 1)
        qsort(t, file->count, sizeof *t, compare_names);
    for (size_t i = 1; i < file->count; i++)
        if (strcmp(t[i - 1].name, t[i].name) == 0)
            return REFUSE(c, "tensor '%.64s' appears twice", t[i].name);

    if (file->count > 1)
        qsort(t, file->count, sizeof *t, compare_offsets);
    uint64_t expected = 0;
    for (size_t i = 0; i < file->count; i++) {
        const uint64_t begin = (uintptr_t)t[i].data;
        if (begin != expected)
            return REFUSE(c,
                          "tensor '%.64s': its data begins at %" PRIu64 ", expected %" PRIu64 " (tensors %s)",
                          t[i].name, begin, expected, begin < expected ? "overlap" : "leave a hole");
        expected = begin + t[i].bytes;
    }
    if (expected != (uint64_t)data_bytes)
        return REFUSE(c, "%" PRId64 " bytes of data, but the tensors cover %" PRIu64, data_bytes, expected);
    return 0;
}

static void *read_bytes(FILE *stream, size_t size, const complaint *c)
{
    unsigned char *bytes = malloc(size + 1);
    if (!bytes) {
        refuse(c, "not enough memory for %zu bytes", size);
        return NULL;
    }
    if (fread(bytes, 1, size, stream) != size) {
        refuse(c, "cannot be read to its end");
        free(bytes);
        return NULL;
    }
    bytes[size] = 0;
    return bytes;
}

/* -1: cannot be told (no regular file, or beyond what the C library can count). */
static int64_t file_size(FILE *stream)
{
    if (fseek(stream, 0, SEEK_END) != 0)
        return -1;
    const int64_t size = ftell(stream);
    rewind(stream);
    return size;
}

/* Everything up to the data: on success file->tensor is complete but for the place of the data. */
static int read_header(safetensors_file *file, FILE *stream, int64_t *data_bytes, const complaint *c)
{
    const int64_t size = file_size(stream);
    if (size < 0)
        return REFUSE(c, "not a regular file");
    unsigned char prefix[8];
    if (size < 8)
        return REFUSE(c, "not a safetensors file: shorter than 8 bytes");
    if (fread(prefix, 1, 8, stream) != 8)
        return REFUSE(c, "cannot be read");
    uint64_t header_bytes = 0;
    for (int i = 0; i < 8; i++)
        header_bytes |= (uint64_t)prefix[i] << (8 * i);
    if (header_bytes > MAX_HEADER_BYTES)
        return REFUSE(c, "not a safetensors file: header of %" PRIu64 " bytes, expected at most %u",
                      header_bytes, MAX_HEADER_BYTES);
    if (header_bytes > (uint64_t)(size - 8))
        return REFUSE(c, "truncated: header of %" PRIu64 " bytes, but only %" PRId64 " follow its length",
                      header_bytes, size - 8);
    *data_bytes = size - 8 - (int64_t)header_bytes;
    if ((uint64_t)*data_bytes >= SIZE_MAX)
        return REFUSE(c, "too large for this machine");

    unsigned char *text = read_bytes(stream, (size_t)header_bytes, c);
    if (!text)
        return -1;
    file->header = parse_header(text, (size_t)header_bytes, c);
    free(text);
    if (!file->header)
        return -1;
    const int entries = cJSON_GetArraySize((const cJSON *)file->header);
    file->tensor = calloc((size_t)entries + 1, sizeof *file->tensor);
    if (!file->tensor)
        return REFUSE(c, "not enough memory for %d tensors", entries);
    if (read_tensors(file, *data_bytes, c) != 0)
        return -1;
    return check_names_and_offsets(file, *data_bytes, c);
}

int safetensors_read(safetensors_file *out, const char *path, char *error, size_t capacity)
{
    const complaint c = {path, error, capacity};
    memset(out, 0, sizeof *out);
    FILE *stream = fopen(path, "rb");
    if (!stream)
        return REFUSE(&c, "cannot be opened");
    int64_t data_bytes = 0;
    int status = read_header(out, stream, &data_bytes, &c);
    if (status == 0) {
        out->data = read_bytes(stream, (size_t)data_bytes, &c);
        status = out->data ? 0 : -1;
    }
    fclose(stream);
    if (status != 0) {
        safetensors_close(out);
        return -1;
    }
    for (size_t i = 0; i < out->count; i++)
        out->tensor[i].data = out->data + (uintptr_t)out->tensor[i].data;
    return 0;
}

void safetensors_close(safetensors_file *file)
{
    cJSON_Delete(file->header);
    free(file->tensor);
    free(file->data);
    memset(file, 0, sizeof *file);
}

const safetensors_tensor *safetensors_find(const safetensors_file *file, const char *name)
{
    for (size_t i = 0; i < file->count; i++)
        if (strcmp(file->tensor[i].name, name) == 0)
            return &file->tensor[i];
    return NULL;
}

const char *safetensors_metadata(const safetensors_file *file, const char *key)
{
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive((const cJSON *)file->header, METADATA_KEY);
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(metadata, key));
}
