/* The directory-backed cache: entries are found again, several processes and threads may share it,
 * no temporary file stays behind, and nothing that may lie in the directory harms. */
#include "fixture.h"

#include <dirent.h>
#include <fakedev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROCESSES = 3, THREADS = 4 };

static char directory[] = "/tmp/clattn-cache-XXXXXX";
static clattn_plan_desc desc;

/* ---- The directory's content ---- */

/* Calls `visit` with each file's path; returns how many there are. */
static int for_each_file(void (*visit)(const char *path))
{
    int files = 0;
    DIR *open_directory = opendir(directory);
    assert_non_null(open_directory);
    for (const struct dirent *entry; (entry = readdir(open_directory)) != NULL;) {
        char path[512];
        if (entry->d_name[0] == '.')
            continue;
        files++;
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        if (visit != NULL)
            visit(path);
    }
    closedir(open_directory);
    return files;
}

static char found[512];

static void remember(const char *path) { snprintf(found, sizeof found, "%s", path); }

/* The path of the only file; it is a whole entry, not a temporary one. */
static const char *only_file(void)
{
    assert_int_equal(for_each_file(remember), 1);
    assert_non_null(strstr(found, ".clattn"));
    assert_null(strstr(found, ".tmp"));
    return found;
}

static void drop(const char *path)
{
    if (remove(path) != 0)
        fail_msg("cannot remove %s", path);
}

static int empty_directory(void **state)
{
    (void)state;
    for_each_file(drop);
    return 0;
}

static void write_file(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static unsigned char *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *size = (size_t)ftell(file);
    rewind(file);
    unsigned char *data = malloc(*size);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *size, file), *size);
    fclose(file);
    return data;
}

/* ---- Use ---- */

/* A context over the directory makes a plan and a call. 0: something failed. Asserts nothing. */
static int use(const char *path, const clattn_plan_desc *wanted)
{
    attention_call call;
    clattn_context_options options = CLATTN_CONTEXT_OPTIONS_INIT;
    clattn_context *context = NULL;
    clattn_plan *plan = NULL;
    int right = 0;
    if (clattn_directory_cache_open(&options.cache, path) != CLATTN_SUCCESS)
        return 0;
    if (clattn_context_create(&context, device.context, device.id, &options) == CLATTN_SUCCESS &&
        clattn_plan_create(&plan, context, wanted) == CLATTN_SUCCESS) {
        call_open(&call, device.context, wanted, 1, 5, 9, 1);
        right = call_runs(&call, plan, device.queue);
        call_close(&call);
    }
    clattn_plan_release(plan);
    clattn_context_release(context);
    clattn_directory_cache_close(&options.cache);
    return right;
}

/* Uses the directory; the number of sources that were built. */
static uint64_t builds_of_use(const char *path, const clattn_plan_desc *wanted)
{
    struct clattn_fakedev_counters counters;
    clattn_fakedev_reset();
    assert_true(use(path, wanted));
    clattn_fakedev_counters(&counters);
    return counters.builds_from_source;
}

static void test_found_again(void **state)
{
    (void)state;
    assert_int_equal(builds_of_use(directory, &desc), 1);
    only_file();
    assert_int_equal(builds_of_use(directory, &desc), 0);
    only_file();
}

/* ---- Whatever may lie there ---- */

/* With these bytes as the entry: rebuilt, and stored whole again. */
static void expect_rebuild(const char *path, const void *bytes, size_t size)
{
    write_file(path, bytes, size);
    assert_int_equal(builds_of_use(directory, &desc), 1);
    assert_int_equal(builds_of_use(directory, &desc), 0);
    only_file();
}

static void test_damaged_files(void **state)
{
    char path[512];
    size_t size;
    (void)state;
    assert_int_equal(builds_of_use(directory, &desc), 1);
    snprintf(path, sizeof path, "%s", only_file());
    unsigned char *whole = read_file(path, &size);
    expect_rebuild(path, "", 0);
    expect_rebuild(path, "garbage", 7);
    expect_rebuild(path, whole, size / 2);
    expect_rebuild(path, whole, size - 1);
    whole[size - 1] ^= 0x80;
    expect_rebuild(path, whole, size);
    whole[size - 1] ^= 0x80;
    whole[0] = 'C';
    expect_rebuild(path, whole, size);
    free(whole);
}

/* One program's entry under another's name. */
static void test_foreign_file(void **state)
{
    char path[512];
    size_t size;
    const clattn_plan_desc other = small_desc(CLATTN_FEATURE_SOFTCAP);
    (void)state;
    assert_int_equal(builds_of_use(directory, &other), 1);
    unsigned char *foreign = read_file(only_file(), &size);
    empty_directory(NULL);
    assert_int_equal(builds_of_use(directory, &desc), 1);
    snprintf(path, sizeof path, "%s", only_file());
    expect_rebuild(path, foreign, size);
    free(foreign);
}

/* A directory where the entry should be can be neither read nor replaced: built each time. */
static void test_directory_for_a_file(void **state)
{
    char path[512];
    (void)state;
    assert_int_equal(builds_of_use(directory, &desc), 1);
    snprintf(path, sizeof path, "%s", only_file());
    assert_int_equal(remove(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(builds_of_use(directory, &desc), 1);
    assert_int_equal(builds_of_use(directory, &desc), 1);
    only_file();
}

/* /proc/self takes no files, not even from root. */
static void test_unwritable_directory(void **state)
{
    struct stat info;
    (void)state;
    if (stat("/proc/self", &info) != 0)
        skip();
    assert_int_equal(builds_of_use("/proc/self", &desc), 1);
    assert_int_equal(builds_of_use("/proc/self", &desc), 1);
}

static void test_directory_that_goes_away(void **state)
{
    clattn_context_options options = options_with(NULL);
    attention_call call;
    char path[100];
    (void)state;
    snprintf(path, sizeof path, "%s/inner", directory);
    assert_int_equal(clattn_directory_cache_open(&options.cache, path), CLATTN_SUCCESS);
    assert_int_equal(rmdir(path), 0);
    clattn_context *context = context_with(&options);
    clattn_plan *plan = plan_with(context, &desc);
    call_open(&call, device.context, &desc, 1, 5, 9, 1);
    call_run(&call, plan);
    call_close(&call);
    clattn_plan_release(plan);
    clattn_context_release(context);
    clattn_directory_cache_close(&options.cache);
    assert_int_equal(for_each_file(NULL), 0);
}

/* ---- Sharing ---- */

static void *use_from_thread(void *user)
{
    int *right = user;
    *right = 1;
    for (int i = 0; i < 4; i++)
        *right &= use(directory, &desc);
    return NULL;
}

static void test_threads_share_it(void **state)
{
    pthread_t threads[THREADS];
    int right[THREADS];
    (void)state;
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use_from_thread, &right[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_true(right[i]);
    }
    only_file();
    assert_int_equal(builds_of_use(directory, &desc), 0);
}

/* Forked before the first OpenCL call of this process: drivers do not survive a fork. */
static int processes_failed;

static void run_processes(void)
{
    pid_t children[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            fixture_open(NULL);
            int right = 1;
            for (int round = 0; round < 3; round++)
                right &= use(directory, &desc);
            _exit(right ? 0 : 1);
        }
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status = 1;
        processes_failed += children[i] < 0 || waitpid(children[i], &status, 0) < 0 || !WIFEXITED(status) ||
                            (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 77);
    }
}

static void test_processes_shared_it(void **state)
{
    (void)state;
    assert_int_equal(processes_failed, 0);
    only_file();
    assert_int_equal(builds_of_use(directory, &desc), 0);
}

static int close_all(void **state)
{
    empty_directory(state);
    rmdir(directory);
    return fixture_close(state);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_processes_shared_it), /* first: the files are theirs */
        cmocka_unit_test_setup(test_found_again, empty_directory),
        cmocka_unit_test_setup(test_damaged_files, empty_directory),
        cmocka_unit_test_setup(test_foreign_file, empty_directory),
        cmocka_unit_test_setup(test_directory_for_a_file, empty_directory),
        cmocka_unit_test_setup(test_unwritable_directory, empty_directory),
        cmocka_unit_test_setup(test_directory_that_goes_away, empty_directory),
        cmocka_unit_test_setup(test_threads_share_it, empty_directory),
    };
    fixture_arguments(argc, argv);
    desc = small_desc(CLATTN_FEATURE_LSE);
    if (mkdtemp(directory) == NULL)
        return 1;
    run_processes();
    return cmocka_run_group_tests(tests, fixture_open, close_all);
}
