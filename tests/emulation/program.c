#define _GNU_SOURCE
#include "program.h"

#include "translate.h"

#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern const unsigned char emulated_builtins[];
extern const size_t emulated_builtins_size;

static int complain(emulated_program *p, const char *what)
{
    snprintf(p->log, sizeof p->log, "emulation: %s", what);
    return 0;
}

/* What the emulation lacks, a device does not: were it a program that does not build, the library would take
 * another one, and whoever checks the kernels would never know. */
static int give_up(const char *what)
{
    fprintf(stderr, "emulation: %s\n", what);
    exit(70);
}

/* ---- Compiling ---- */

static uint64_t hash(uint64_t h, const char *text)
{
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * UINT64_C(1099511628211);
    return h;
}

/* This library's functions are found by those that it compiles. */
static void offer_functions(void)
{
    Dl_info info;
    if (dladdr((void *)(uintptr_t)program_build, &info))
        dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
}

/* The options that clang knows: those for NVIDIA's compiler alone are left out. */
static void copy_options(char *to, size_t capacity, const char *options)
{
    size_t used = 0;
    *to = 0;
    while (*options) {
        const size_t gap = strspn(options, " "), length = gap + strcspn(options + gap, " ");
        if (strncmp(options + gap, "-cl-nv-", 7) != 0 && used + length < capacity) {
            memcpy(to + used, options, length);
            to[used += length] = 0;
        }
        options += length;
    }
}

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = NULL;
    size_t capacity = 0;
    if (file && getdelim(&text, &capacity, 0, file) < 0) {
        free(text);
        text = NULL;
    }
    if (file)
        fclose(file);
    return text;
}

static int write_file(const char *path, const char *text, const void *rest, size_t rest_size)
{
    FILE *file = fopen(path, "w");
    if (!file)
        return 0;
    fputs(text, file);
    fwrite(rest, 1, rest_size, file);
    return fclose(file) == 0;
}

/* Where a program's files are: their folder, and the names in it but for their ends. */
typedef struct files {
    char folder[512], base[600], known[2048]; /* known: options for clang */
    const char *clang;
    int stay;
} files;

static int open_files(files *f, const char *options)
{
    const char *cache = getenv("CLATTN_EMULATION_CACHE"), *clang = getenv("CLATTN_EMULATION_CLANG");
    f->stay = cache != NULL;
    f->clang = clang ? clang : "clang";
    copy_options(f->known, sizeof f->known, options);
    snprintf(f->folder, sizeof f->folder, "%s", cache ? cache : P_tmpdir "/clattn-emulation-XXXXXX");
    return cache != NULL || mkdtemp(f->folder) != NULL;
}

static void close_files(const files *f)
{
    char path[700];
    if (f->stay)
        return;
    snprintf(path, sizeof path, "%s.cl", f->base);
    remove(path);
    snprintf(path, sizeof path, "%s.so", f->base);
    remove(path);
    rmdir(f->folder);
}

static char *preprocess(const files *f, const char *source)
{
    char path[700], command[4096];
    snprintf(path, sizeof path, "%s.source.cl", f->base);
    snprintf(command, sizeof command, "%s -E -P -x cl %s -target x86_64-pc-linux-gnu -o %s.i %s", f->clang,
             f->known, f->base, path);
    const int is_done = write_file(path, source, "", 0) && system(command) == 0;
    remove(path);
    snprintf(path, sizeof path, "%s.i", f->base);
    char *text = is_done ? read_file(path) : NULL;
    remove(path);
    return text;
}

static void *compile(const files *f, const translation *t)
{
    char path[700], command[4096];
    snprintf(path, sizeof path, "%s.so", f->base);
    if (access(path, R_OK) != 0) {
        char text[700];
        snprintf(text, sizeof text, "%s.cl", f->base);
        snprintf(
            command, sizeof command,
            "%s -x cl %s -w -Xclang -finclude-default-header -target x86_64-pc-linux-gnu -mavx2 -mf16c "
            "-mfma -ffp-contract=off -fno-math-errno -O1 -fPIC -shared %s -o %s.part -lm && mv %s.part %s",
            f->clang, f->known, text, f->base, f->base, path);
        /* Functions of OpenCL C behind all that calls them: before, they would hide their other overloads. */
        if (!write_file(text, t->source, emulated_builtins, emulated_builtins_size) || system(command) != 0)
            return NULL;
    }
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fprintf(stderr, "%s\n", dlerror());
    return library;
}

/* ---- PTX ---- */

static const char begin_mark[] = "// begin inline asm ", end_mark[] = "\n// end inline asm\n";
static const char name_mark[] = "// emulated program at ";

/* The statements that the compiler kept. */
static void write_statements(FILE *file, const emulated_program *p, const translation *t)
{
    void (*used)(uint64_t *) = NULL;
    uint64_t range[2] = {0, 0};
    void *found = dlsym(p->library, "emulated_used");
    memcpy(&used, &found, sizeof used);
    if (used)
        used(range);
    const uint32_t *end = (const uint32_t *)(uintptr_t)range[1];
    for (const uint32_t *at = (const uint32_t *)(uintptr_t)range[0]; at < end; at++)
        if (*at < t->num_statements)
            fprintf(file, "%s%u\n%s%s", begin_mark, (unsigned)*at, t->statements[*at], end_mark);
}

static char *write_ptx(const emulated_program *p, const translation *t)
{
    char *ptx = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&ptx, &size);
    if (!file)
        return NULL;
    fprintf(file, "%s%p\n.version 9.0\n.target sm_%d, texmode_independent\n.address_size 64\n", name_mark,
            (void *)p->library, p->capability);
    for (const char *at = t->entries; *at; at = strchr(at, '\n') + 1) {
        char name[100];
        int items = 0;
        sscanf(at, "%99s %d", name, &items);
        fprintf(file, "\n.entry %s(\n)\n", name);
        if (items > 0)
            fprintf(file, ".reqntid %d, 1, 1\n", items);
        fprintf(file, "{\n");
        if (at == t->entries)
            write_statements(file, p, t);
        fprintf(file, "ret;\n}\n");
    }
    fclose(file);
    return ptx;
}

/* The statement of that number, of which there may be copies. */
static ptx_statement *statement_of(warp_program *w, size_t number)
{
    if (number >= w->num_statements) {
        ptx_statement *more = realloc(w->statements, (number + 1) * sizeof *more);
        if (!more)
            return NULL;
        memset(more + w->num_statements, 0, (number + 1 - w->num_statements) * sizeof *more);
        w->statements = more;
        w->num_statements = number + 1;
    }
    return &w->statements[number];
}

static const char lacking[] = "an instruction that the device is not to have";

static const char *read_statement(emulated_program *p, size_t number, const char *text)
{
    const char *unknown = getenv("CLATTN_EMULATION_WITHOUT");
    ptx_statement *s = statement_of(&p->warp, number);
    if (!s)
        return "out of memory";
    if (s->text)
        return NULL;
    return unknown && strstr(text, unknown) ? lacking : ptx_parse(s, text);
}

static int read_statements(emulated_program *p)
{
    int is_sm_90a = 0, is_memory = 0;
    const char *why = NULL;
    char *copy = strdup(p->ptx);
    for (char *at = copy; !why && (at = strstr(at, begin_mark)) != NULL;) {
        char *text;
        const size_t number = strtoul(at + strlen(begin_mark), &text, 10);
        char *end = strstr(text, end_mark);
        if (!end)
            why = "inline assembly that does not end";
        else {
            *end = 0;
            why = read_statement(p, number, text + 1);
            at = end + 1;
        }
    }
    free(copy);
    if (why)
        return why == lacking ? complain(p, why) : give_up(why);
    for (size_t i = 0; i < p->warp.num_statements; i++) {
        is_sm_90a |= p->warp.statements[i].is_sm_90a;
        is_memory |= p->warp.statements[i].is_memory;
    }
    if (is_sm_90a && !strstr(p->ptx, ".target sm_90a,"))
        return complain(p, "instructions of sm_90a in PTX for another target");
    const char *cap = strstr(p->ptx, ".maxnreg ");
    p->warp.registers = cap ? (uint32_t)strtoul(cap + strlen(".maxnreg "), NULL, 10) : 0;
    const char *declared = strstr(p->ptx, ".b8 clattn_program_memory[");
    if (is_memory && !declared)
        return complain(p, "memory of the program that is not declared");
    if (!declared)
        return 1;
    const size_t bytes = strtoul(strchr(declared, '[') + 1, NULL, 10);
    if (posix_memalign(&p->warp.memory, 128, bytes) != 0)
        return complain(p, "out of memory");
    memset(p->warp.memory, 0xff, bytes);
    return 1;
}

/* ---- Local memory: what the library has without contents ---- */

static int find_local(struct dl_phdr_info *info, size_t size, void *user)
{
    emulated_program *p = user;
    const struct link_map *map = p->library;
    (void)size;
    if (info->dlpi_addr != map->l_addr)
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_W) || part->p_memsz == part->p_filesz)
            continue;
        p->warp.local = (void *)(info->dlpi_addr + part->p_vaddr + part->p_filesz);
        p->warp.local_bytes = part->p_memsz - part->p_filesz;
    }
    return 1;
}

/* ---- Programs ---- */

emulated_program *program_from_source(char *source)
{
    emulated_program *p = calloc(1, sizeof *p);
    if (p)
        p->source = source;
    return p;
}

emulated_program *program_from_ptx(const emulated_program *programs, const char *ptx, size_t length)
{
    void *library = NULL;
    char *copy = strndup(ptx, length);
    emulated_program *p = calloc(1, sizeof *p);
    if (copy && p && strncmp(copy, name_mark, strlen(name_mark)) == 0)
        sscanf(copy + strlen(name_mark), "%p", &library);
    while (programs && (!library || programs->library != library))
        programs = programs->next;
    if (!programs) {
        free(copy);
        free(p);
        return NULL;
    }
    p->ptx = copy;
    p->library = library;
    return p;
}

static int build_source(emulated_program *p, const char *options)
{
    files f;
    translation t;
    if (!open_files(&f, options))
        return give_up("no folder for its files");
    const uint64_t seed = hash(hash(UINT64_C(14695981039346656037), p->source), f.known);
    snprintf(f.base, sizeof f.base, "%s/%016llx", f.folder, (unsigned long long)seed);
    char *preprocessed = preprocess(&f, p->source);
    if (!preprocessed)
        return give_up("the program cannot be preprocessed");
    const char *why = translate(&t, preprocessed);
    free(preprocessed);
    if (why)
        return give_up(why);
    snprintf(f.base + strlen(f.folder), sizeof f.base - strlen(f.folder), "/%016llx",
             (unsigned long long)hash(hash(seed, t.source), (const char *)emulated_builtins));
    p->library = compile(&f, &t);
    p->ptx = p->library ? write_ptx(p, &t) : NULL;
    translation_release(&t);
    close_files(&f);
    return p->ptx ? 1 : give_up("the program cannot be compiled");
}

int program_build(emulated_program *p, const char *options)
{
    offer_functions();
    if (p->source && !build_source(p, options))
        return 0;
    dl_iterate_phdr(find_local, p);
    return read_statements(p);
}

warp_kernel program_kernel(const emulated_program *p, const char *name)
{
    char symbol[128];
    warp_kernel function = NULL;
    snprintf(symbol, sizeof symbol, "emulated_%s", name);
    void *found = dlsym(p->library, symbol);
    memcpy(&function, &found, sizeof function);
    return function;
}
