/* main.c: the clattn command: which subcommand. */
#include "clattn.h"
#include "cli.h"

#include <stdio.h>
#include <string.h>

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} command;

static const command commands[] = {
    {"info", cmd_info, "devices, and the path and tiles that would be taken"},
    {"run", cmd_run, "one attention call on tensors from a safetensors file"},
    {"check", cmd_check, "every path of this device against the built-in reference"},
    {"bench", cmd_bench, "time, rate and memory, also against naive attention"},
    {"tune", cmd_tune, "measure other tiles on this device and keep the fastest in a file"},
    {"source", cmd_source, "the OpenCL C and build options of a configuration"},
};

enum { NUM_COMMANDS = sizeof commands / sizeof commands[0] };

static void print_help(void)
{
    printf("Usage: clattn COMMAND [options]\n\n"
           "Exact FlashAttention on any OpenCL device.\n\nCommands:\n");
    for (int i = 0; i < NUM_COMMANDS; i++)
        printf("  %-8s %s\n", commands[i].name, commands[i].help);
    printf("\n`clattn COMMAND --help` tells a command's options.\n");
}

static int print_version(void)
{
    const unsigned version = clattn_version();
    printf("clattn %u.%u.%u\n", version / 1000000u, version / 1000u % 1000u, version % 1000u);
    return CLI_OK;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return cli_fail(CLI_USAGE, "no command given; `clattn --help` lists them");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help();
        return CLI_OK;
    }
    if (strcmp(argv[1], "--version") == 0)
        return print_version();
    for (int i = 0; i < NUM_COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0) {
            cli_set_command(commands[i].name);
            const int status = commands[i].run(argc - 1, argv + 1);
            if (fflush(stdout) != 0 && status == CLI_OK)
                return cli_fail(CLI_FAILED, "standard output cannot be written");
            return status;
        }
    return cli_fail(CLI_USAGE, "unknown command '%.100s'; `clattn --help` lists them", argv[1]);
}
