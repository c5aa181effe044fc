#include "fakedev_state.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "CLATTN_FAKE_"

static const char *const call_names[CALL_COUNT] = {
#define CALL(name) #name,
#include "fakedev_calls.h"
};

static const char *const kind_names[CLATTN_FAKEDEV_KINDS] = {
    "context", "queue", "buffer", "program", "kernel", "event", "sampler", "svm", "device",
};

static atomic_bool active;

/* Guards the objects, their totals and the failure rules. Never held while the driver runs, as it
 * may call back. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *allocate(size_t size)
{
    void *memory = calloc(1, size);
    if (!memory) {
        fprintf(stderr, "clattn_fakedev: out of memory\n");
        abort();
    }
    return memory;
}

static bool complain(const char *what, const char *value)
{
    fprintf(stderr, "clattn_fakedev: %s: %s\n", what, value);
    return false;
}

/* ---- Settings ------------------------------------------------------------------------------- */

enum form { NUMBER, TEXT, DEVICE_TYPE_WORD, LOCAL_MEM_TYPE_WORD, SVM_WORD };

static const struct {
    const char *name;
    enum form form;
} settings[FAKE_COUNT] = {
#define X(name, form) {#name, form},
    FAKEDEV_SETTINGS(X)
#undef X
};

static const struct {
    enum form form;
    const char *word;
    uint64_t value;
} words[] = {
    {DEVICE_TYPE_WORD, "cpu", CL_DEVICE_TYPE_CPU},
    {DEVICE_TYPE_WORD, "gpu", CL_DEVICE_TYPE_GPU},
    {DEVICE_TYPE_WORD, "accelerator", CL_DEVICE_TYPE_ACCELERATOR},
    {LOCAL_MEM_TYPE_WORD, "local", CL_LOCAL},
    {LOCAL_MEM_TYPE_WORD, "global", CL_GLOBAL},
    {SVM_WORD, "none", FAKEDEV_NO_SVM},
    {SVM_WORD, "coarse", CL_DEVICE_SVM_COARSE_GRAIN_BUFFER},
};

static _Atomic(uint64_t) numbers[FAKE_COUNT];
static _Atomic(const char *) texts[FAKE_COUNT];

/* Replaced texts are kept, since another thread may just be reading one. */
struct text {
    struct text *older;
    char characters[];
};
static struct text *all_texts;

static const char *keep_text(const char *characters)
{
    struct text *text = allocate(sizeof *text + strlen(characters) + 1);
    strcpy(text->characters, characters);
    pthread_mutex_lock(&lock);
    text->older = all_texts;
    all_texts = text;
    pthread_mutex_unlock(&lock);
    return text->characters;
}

/* The digits of a positive number and nothing else; 0 if it is not that. */
static uint64_t parse_positive(const char *text)
{
    char *end;
    if (!isdigit((unsigned char)text[0]))
        return 0;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 0);
    return errno || *end ? 0 : number;
}

static uint64_t parse_word(enum form form, const char *text)
{
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (words[i].form == form && strcmp(words[i].word, text) == 0)
            return words[i].value;
    return 0;
}

bool clattn_fakedev_set(const char *variable, const char *value)
{
    if (strncmp(variable, PREFIX, strlen(PREFIX)) != 0)
        return complain("not a variable of this layer", variable);
    const char *name = variable + strlen(PREFIX);
    if (strcmp(name, "FAIL") == 0)
        return clattn_fakedev_fail(value);

    int setting = 0;
    while (setting < FAKE_COUNT && strcmp(settings[setting].name, name) != 0)
        setting++;
    if (setting == FAKE_COUNT)
        return complain("unknown variable", variable);

    enum form form = settings[setting].form;
    if (form == TEXT) {
        atomic_store(&texts[setting], value ? keep_text(value) : NULL);
        return true;
    }
    uint64_t number = 0;
    if (value) {
        number = form == NUMBER ? parse_positive(value) : parse_word(form, value);
        if (number == 0) {
            complain("bad value of", variable);
            return complain("  namely", value);
        }
    }
    atomic_store(&numbers[setting], number);
    return true;
}

uint64_t fakedev_number(enum fakedev_setting setting) { return atomic_load(&numbers[setting]); }

const char *fakedev_text(enum fakedev_setting setting) { return atomic_load(&texts[setting]); }

uint64_t fakedev_smaller(enum fakedev_setting a, enum fakedev_setting b)
{
    uint64_t x = fakedev_number(a), y = fakedev_number(b);
    if (x == 0 || y == 0)
        return x + y;
    return x < y ? x : y;
}

bool fakedev_read_environment(void)
{
    extern char **environ;
    for (char **entry = environ; *entry; entry++) {
        const char *equals = strchr(*entry, '=');
        if (!equals || strncmp(*entry, PREFIX, strlen(PREFIX)) != 0)
            continue;
        size_t length = (size_t)(equals - *entry);
        char *variable = allocate(length + 1);
        memcpy(variable, *entry, length);
        bool ok = clattn_fakedev_set(variable, equals + 1);
        free(variable);
        if (!ok)
            return false;
    }
    return true;
}

void fakedev_set_active(void) { atomic_store(&active, true); }

bool clattn_fakedev_active(void) { return atomic_load(&active); }

/* ---- Failures to inject --------------------------------------------------------------------- */

#define ANY_CALL CALL_COUNT
#define MAX_RULES 32

struct rule {
    int call; /* enum fakedev_call, or ANY_CALL */
    bool onwards;
    uint64_t nth;
    uint64_t seen;
    cl_int status;
};

static struct rule rules[MAX_RULES];
static atomic_size_t rule_count; /* atomic, so that begin() need not lock where there are none */
static _Atomic(uint64_t) injected_failures;

static int find_call(const char *name, size_t length)
{
    for (int call = 0; call < CALL_COUNT; call++)
        if (strlen(call_names[call]) == length && strncmp(call_names[call], name, length) == 0)
            return call;
    return -1;
}

/* Reads one spec and gives where it ends; NULL if it is malformed. */
static const char *parse_rule(const char *spec, struct rule *rule)
{
    *rule = (struct rule){0};
    size_t length = strcspn(spec, ":");
    rule->call = length == 1 && *spec == '*' ? ANY_CALL : find_call(spec, length);
    const char *at = spec + length;
    if (rule->call < 0 || *at++ != ':' || !isdigit((unsigned char)*at))
        return NULL;

    char *end;
    rule->nth = strtoull(at, &end, 10);
    if (*end == '+') {
        rule->onwards = true;
        end++;
    }
    if (rule->nth == 0 || *end++ != ':')
        return NULL;

    at = end;
    long status = strtol(at, &end, 10);
    /* Zero is not a failure, and OpenCL has no positive status. */
    if (end == at || status >= 0 || status < INT32_MIN || (*end && *end != ','))
        return NULL;
    rule->status = (cl_int)status;
    return end;
}

bool clattn_fakedev_fail(const char *specs)
{
    struct rule parsed[MAX_RULES] = {{0}};
    size_t count = 0;
    const char *at = specs ? specs : "";
    while (*at) {
        if (count == MAX_RULES)
            return complain("more failures than can be held", specs);
        at = parse_rule(at, &parsed[count++]);
        if (!at || (*at == ',' && *++at == '\0'))
            return complain("malformed failure, or unknown function", specs);
    }
    pthread_mutex_lock(&lock);
    memcpy(rules, parsed, count * sizeof *parsed);
    atomic_store(&rule_count, count);
    pthread_mutex_unlock(&lock);
    return true;
}

static bool gives_back(const char *name)
{
    return strncmp(name, "clRelease", strlen("clRelease")) == 0 || strstr(name, "SVMFree");
}

static cl_int apply_rules(enum fakedev_call call)
{
    cl_int status = CL_SUCCESS;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < atomic_load(&rule_count); i++) {
        struct rule *rule = &rules[i];
        bool applies = rule->call == (int)call || (rule->call == ANY_CALL && !gives_back(call_names[call]));
        if (!applies)
            continue;
        rule->seen++;
        if (rule->seen == rule->nth || (rule->onwards && rule->seen > rule->nth))
            status = rule->status;
    }
    pthread_mutex_unlock(&lock);
    if (status != CL_SUCCESS)
        atomic_fetch_add(&injected_failures, 1);
    return status;
}

/* ---- Counts --------------------------------------------------------------------------------- */

static _Atomic(uint64_t) calls[CALL_COUNT];
static _Atomic(uint64_t) refusals, blocking_transfers, builds_from_source, builds_from_binary,
    unknown_releases;

cl_int fakedev_begin(enum fakedev_call call)
{
    atomic_fetch_add(&calls[call], 1);
    return atomic_load(&rule_count) ? apply_rules(call) : CL_SUCCESS;
}

void fakedev_count_refusal(void) { atomic_fetch_add(&refusals, 1); }

void fakedev_count_blocking(void) { atomic_fetch_add(&blocking_transfers, 1); }

uint64_t clattn_fakedev_calls(const char *function)
{
    int call = find_call(function, strlen(function));
    return call < 0 ? 0 : atomic_load(&calls[call]);
}

/* ---- Objects -------------------------------------------------------------------------------- */

struct object {
    struct object *newer, *older;
    enum clattn_fakedev_kind kind;
    const void *handle;
    enum fakedev_call by;
    uint64_t references;
    struct fakedev_memory memory;
    struct object *parent; /* kept in the list, if need be without a reference, while it has parts */
    uint64_t parts;
};

/* Newest first, searched one by one: tests hold few objects, and use mostly the newest. */
static struct object *newest;

static struct {
    uint64_t live[CLATTN_FAKEDEV_KINDS], references[CLATTN_FAKEDEV_KINDS], created[CLATTN_FAKEDEV_KINDS];
    uint64_t memory_now, memory_peak, host_pointer_memory_now;
} totals;

static struct object *find(enum clattn_fakedev_kind kind, const void *handle)
{
    struct object *object = newest;
    while (object && (object->handle != handle || object->kind != kind))
        object = object->older;
    return object;
}

static uint64_t *memory_total(const struct object *object)
{
    return object->memory.in_host_memory ? &totals.host_pointer_memory_now : &totals.memory_now;
}

static struct object *add(enum clattn_fakedev_kind kind, const void *handle, enum fakedev_call by)
{
    struct object *object = allocate(sizeof *object);
    object->kind = kind;
    object->handle = handle;
    object->by = by;
    object->references = 1;
    object->older = newest;
    if (newest)
        newest->newer = object;
    newest = object;
    totals.live[kind]++;
    totals.references[kind]++;
    return object;
}

/* Forgets the object if neither references nor parts hold it, and then perhaps its parent. */
static void forget_if_unheld(struct object *object)
{
    while (object && object->references == 0 && object->parts == 0) {
        struct object *parent = object->parent;
        *memory_total(object) -= object->memory.bytes;
        if (object->newer)
            object->newer->older = object->older;
        else
            newest = object->older;
        if (object->older)
            object->older->newer = object->newer;
        free(object);
        if (parent)
            parent->parts--;
        object = parent;
    }
}

void fakedev_created(enum clattn_fakedev_kind kind, const void *handle, enum fakedev_call by,
                     const struct fakedev_memory *memory)
{
    pthread_mutex_lock(&lock);
    struct object *object = add(kind, handle, by);
    totals.created[kind]++;
    if (memory) {
        object->memory = *memory;
        *memory_total(object) += memory->bytes;
        if (totals.memory_peak < totals.memory_now)
            totals.memory_peak = totals.memory_now;
        object->parent = memory->parent ? find(kind, memory->parent) : NULL;
        if (object->parent)
            object->parent->parts++;
    }
    pthread_mutex_unlock(&lock);
}

void fakedev_retained(enum clattn_fakedev_kind kind, const void *handle, enum fakedev_call by)
{
    pthread_mutex_lock(&lock);
    struct object *object = find(kind, handle);
    if (object && object->references > 0) {
        object->references++;
        totals.references[kind]++;
    } else if (kind == CLATTN_FAKEDEV_DEVICE) {
        add(kind, handle, by); /* root devices are not created, only held */
    }
    pthread_mutex_unlock(&lock);
}

void fakedev_released(enum clattn_fakedev_kind kind, const void *handle)
{
    pthread_mutex_lock(&lock);
    struct object *object = find(kind, handle);
    if (object && object->references > 0) {
        totals.references[kind]--;
        if (--object->references == 0) {
            totals.live[kind]--;
            forget_if_unheld(object);
        }
    } else {
        atomic_fetch_add(&unknown_releases, 1);
    }
    pthread_mutex_unlock(&lock);
}

void fakedev_count_build(const void *program)
{
    pthread_mutex_lock(&lock);
    const struct object *object = find(CLATTN_FAKEDEV_PROGRAM, program);
    bool binary = object && object->by == CALL_clCreateProgramWithBinary;
    pthread_mutex_unlock(&lock);
    atomic_fetch_add(binary ? &builds_from_binary : &builds_from_source, 1);
}

/* ---- Counters and report -------------------------------------------------------------------- */

void clattn_fakedev_counters(struct clattn_fakedev_counters *out)
{
    pthread_mutex_lock(&lock);
    memcpy(out->live, totals.live, sizeof out->live);
    memcpy(out->references, totals.references, sizeof out->references);
    memcpy(out->created, totals.created, sizeof out->created);
    out->memory_now = totals.memory_now;
    out->memory_peak = totals.memory_peak;
    out->host_pointer_memory_now = totals.host_pointer_memory_now;
    pthread_mutex_unlock(&lock);
    out->builds_from_source = atomic_load(&builds_from_source);
    out->builds_from_binary = atomic_load(&builds_from_binary);
    out->kernel_creations = atomic_load(&calls[CALL_clCreateKernel]);
    out->launches = atomic_load(&calls[CALL_clEnqueueNDRangeKernel]);
    out->finishes = atomic_load(&calls[CALL_clFinish]);
    out->flushes = atomic_load(&calls[CALL_clFlush]);
    out->event_waits = atomic_load(&calls[CALL_clWaitForEvents]);
    out->blocking_transfers = atomic_load(&blocking_transfers);
    out->refusals = atomic_load(&refusals);
    out->injected_failures = atomic_load(&injected_failures);
    out->unknown_releases = atomic_load(&unknown_releases);
}

void clattn_fakedev_reset(void)
{
    pthread_mutex_lock(&lock);
    memset(totals.created, 0, sizeof totals.created);
    totals.memory_peak = totals.memory_now;
    pthread_mutex_unlock(&lock);
    for (int call = 0; call < CALL_COUNT; call++)
        atomic_store(&calls[call], 0);
    atomic_store(&builds_from_source, 0);
    atomic_store(&builds_from_binary, 0);
    atomic_store(&blocking_transfers, 0);
    atomic_store(&refusals, 0);
    atomic_store(&injected_failures, 0);
    atomic_store(&unknown_releases, 0);
}

static void write_number(FILE *file, const char *key, uint64_t number)
{
    fprintf(file, "  \"%s\": %" PRIu64 ",\n", key, number);
}

static void write_kinds(FILE *file, const char *key, const uint64_t *numbers_of_kinds)
{
    fprintf(file, "  \"%s\": {", key);
    for (int kind = 0; kind < CLATTN_FAKEDEV_KINDS; kind++)
        fprintf(file, "%s\"%s\": %" PRIu64, kind ? ", " : "", kind_names[kind], numbers_of_kinds[kind]);
    fprintf(file, "},\n");
}

static void write_calls(FILE *file)
{
    const char *separator = "";
    fprintf(file, "  \"calls\": {");
    for (int call = 0; call < CALL_COUNT; call++) {
        uint64_t count = atomic_load(&calls[call]);
        if (count == 0)
            continue;
        fprintf(file, "%s\n    \"%s\": %" PRIu64, separator, call_names[call], count);
        separator = ",";
    }
    fprintf(file, "\n  },\n");
}

static void write_objects(FILE *file)
{
    const char *separator = "";
    fprintf(file, "  \"objects\": [");
    pthread_mutex_lock(&lock);
    for (const struct object *object = newest; object; object = object->older) {
        fprintf(file,
                "%s\n    {\"kind\": \"%s\", \"by\": \"%s\", \"references\": %" PRIu64 ", \"bytes\": %" PRIu64
                "}",
                separator, kind_names[object->kind], call_names[object->by], object->references,
                object->memory.bytes);
        separator = ",";
    }
    pthread_mutex_unlock(&lock);
    fprintf(file, "\n  ]\n");
}

bool clattn_fakedev_report(const char *path)
{
    if (!path)
        path = fakedev_text(FAKE_REPORT);
    if (!path)
        return complain("no file for the report", "set CLATTN_FAKE_REPORT");
    FILE *file = strcmp(path, "-") == 0 ? stderr : fopen(path, "w");
    if (!file)
        return complain("cannot write", path);

    struct clattn_fakedev_counters counters;
    clattn_fakedev_counters(&counters);
    fprintf(file, "{\n");
    write_kinds(file, "live", counters.live);
    write_kinds(file, "references", counters.references);
    write_kinds(file, "created", counters.created);
    write_number(file, "memory_now", counters.memory_now);
    write_number(file, "memory_peak", counters.memory_peak);
    write_number(file, "host_pointer_memory_now", counters.host_pointer_memory_now);
    write_number(file, "builds_from_source", counters.builds_from_source);
    write_number(file, "builds_from_binary", counters.builds_from_binary);
    write_number(file, "blocking_transfers", counters.blocking_transfers);
    write_number(file, "refusals", counters.refusals);
    write_number(file, "injected_failures", counters.injected_failures);
    write_number(file, "unknown_releases", counters.unknown_releases);
    write_calls(file);
    write_objects(file);
    fprintf(file, "}\n");

    bool ok = !ferror(file);
    if (file != stderr)
        ok = fclose(file) == 0 && ok;
    return ok || complain("cannot write", path);
}

/* A destructor, not atexit: it runs after handlers in which a program may release its objects. */
__attribute__((destructor)) static void report_at_exit(void)
{
    if (clattn_fakedev_active() && fakedev_text(FAKE_REPORT))
        clattn_fakedev_report(NULL);
}
