/* bench_lines.c: many measurements in one process, each asked for by a line of options, so that a script can
 * alternate with another program on the same device without opening it anew each time. */
#include "bench.h"

#include "cli.h"
#include "progress.h"

#include <stdio.h>
#include <string.h>

enum { MAX_LINE = 4096, MAX_WORDS = 64 };

/* Options of one measurement, without what belongs to the whole command. */
static int parse_line(bench_options *out, char *line)
{
    static char name[] = "bench";
    char *word[MAX_WORDS + 2] = {name};
    int count = 1;
    for (char *next = strtok(line, " \t\r\n"); next; next = strtok(NULL, " \t\r\n")) {
        if (count > MAX_WORDS)
            return cli_fail(CLI_USAGE, "--lines: expected at most %d words in a line", MAX_WORDS);
        word[count++] = next;
    }
    const int status = bench_options_parse(out, count, word);
    const common_options *c = &out->common;
    if (status == CLI_OK && (c->device || c->cache_dir || c->no_cache || c->verbose || c->help ||
                             c->local_bytes || c->tuning || out->json || out->plot || out->lines))
        return cli_fail(CLI_USAGE, "--lines: expected a line with options of a measurement alone");
    if (status == CLI_OK && !out->num_shapes && !out->decode && !out->paper)
        return cli_fail(CLI_USAGE, "--lines: expected --shape or --preset in a line");
    return status;
}

static int run_line(bench_state *state, char *line)
{
    const bench_options *const whole = state->options;
    bench_options one;
    int status = parse_line(&one, line);
    if (status == CLI_OK) {
        state->options = &one;
        status = bench_run_list(state);
        state->options = whole;
    }
    progress_clear();
    if (bench_print_json(&state->results, status) != CLI_OK)
        return CLI_FAILED;
    bench_results_release(&state->results);
    return CLI_OK;
}

int bench_run_lines(bench_state *state)
{
    char line[MAX_LINE];
    int status = CLI_OK;
    while (status == CLI_OK && fgets(line, sizeof line, stdin)) {
        if (!strchr(line, '\n') && !feof(stdin))
            return cli_fail(CLI_USAGE, "--lines: expected lines of less than %d characters", MAX_LINE - 1);
        if (line[strspn(line, " \t\r\n")] != 0)
            status = run_line(state, line);
    }
    return status;
}
