/* greedy: lets llama.cpp decode greedily and prints what it chose.
 *
 *     greedy MODEL DEVICE SCENARIO TYPE_K TYPE_V [no-flash]
 *
 * DEVICE is the backend device that gets all layers and the cache, or `none`: the CPU backend alone. Prompts
 * are made here, longer than a ubatch. One line a choice: sequence, token, its logit and that of the second
 * best. */
#include <ggml-backend.h>
#include <llama.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 256, UBATCH = 32, SEQUENCES = 3, PROMPT = 97 };

typedef struct decoder {
    struct llama_context *context;
    llama_memory_t memory;
    int vocab;
    struct llama_batch batch;
    int row[SEQUENCES];          /* of the batch: where a sequence's logits are */
    llama_token next[SEQUENCES]; /* chosen, not yet decoded */
    llama_pos length[SEQUENCES]; /* tokens decoded so far */
} decoder;

static void fail(const char *what)
{
    fprintf(stderr, "greedy: %s\n", what);
    exit(1);
}

static enum ggml_type type_named(const char *name)
{
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        const char *known = ggml_type_name((enum ggml_type)type);
        if (known != NULL && strcmp(known, name) == 0)
            return (enum ggml_type)type;
    }
    fail("no such type");
    return GGML_TYPE_COUNT;
}

static void add(decoder *d, llama_seq_id sequence, llama_token token, bool last)
{
    const int i = d->batch.n_tokens++;
    d->batch.token[i] = token;
    d->batch.pos[i] = d->length[sequence]++;
    d->batch.n_seq_id[i] = 1;
    d->batch.seq_id[i][0] = sequence;
    d->batch.logits[i] = last;
    if (last)
        d->row[sequence] = i;
}

static void decode(decoder *d)
{
    if (llama_decode(d->context, d->batch) != 0)
        fail("llama_decode failed");
    d->batch.n_tokens = 0;
}

static void choose(decoder *d, llama_seq_id sequence)
{
    const float *logits = llama_get_logits_ith(d->context, d->row[sequence]);
    int best = 0, second = 1;
    for (int token = 1; token < d->vocab; token++) {
        if (logits[token] > logits[best]) {
            second = best;
            best = token;
        } else if (token != second && logits[token] > logits[second]) {
            second = token;
        }
    }
    d->next[sequence] = best;
    printf("%d %d %.9g %.9g\n", (int)sequence, best, (double)logits[best], (double)logits[second]);
}

/* A prompt for each of the first sequences, in one batch: long, medium, short. */
static void prompts(decoder *d, int sequences)
{
    static const int length[SEQUENCES] = {PROMPT, 41, 5};
    uint32_t state = 12345;
    for (int s = 0; s < sequences; s++)
        for (int i = 0; i < length[s]; i++) {
            state = state * 1664525u + 1013904223u;
            add(d, s, (llama_token)((state >> 8) % (uint32_t)d->vocab), i == length[s] - 1);
        }
    decode(d);
    for (int s = 0; s < sequences; s++)
        choose(d, s);
}

/* All of the first sequences go on by as many tokens, a batch for each. */
static void generate(decoder *d, int sequences, int tokens)
{
    for (int i = 0; i < tokens; i++) {
        for (int s = 0; s < sequences; s++)
            add(d, s, d->next[s], true);
        decode(d);
        for (int s = 0; s < sequences; s++)
            choose(d, s);
    }
}

static void plain(decoder *d)
{
    prompts(d, 1);
    generate(d, 1, 24);
}

static void sequences(decoder *d)
{
    prompts(d, SEQUENCES);
    generate(d, SEQUENCES, 12);
}

/* The saved state of a sequence goes on just as the sequence did. */
static void state(decoder *d)
{
    prompts(d, 1);
    generate(d, 1, 6);
    const size_t bytes = llama_state_seq_get_size(d->context, 0);
    uint8_t *saved = malloc(bytes);
    if (saved == NULL || llama_state_seq_get_data(d->context, saved, bytes, 0) != bytes)
        fail("the state of a sequence was not saved");
    const llama_pos length = d->length[0];
    const llama_token next = d->next[0];
    generate(d, 1, 6);
    const llama_token end = d->next[0];

    llama_memory_clear(d->memory, true);
    if (llama_state_seq_set_data(d->context, saved, bytes, 0) != bytes)
        fail("the state of a sequence was not restored");
    free(saved);
    d->length[0] = length;
    d->next[0] = next;
    generate(d, 1, 6);
    if (d->next[0] != end)
        fail("a restored sequence went on in another way");
}

/* A sequence is copied; the copy loses its last tokens and goes on with others. */
static void fork_sequence(decoder *d)
{
    prompts(d, 1);
    generate(d, 1, 6);
    llama_memory_seq_cp(d->memory, 0, 1, -1, -1);
    if (!llama_memory_seq_rm(d->memory, 1, PROMPT + 2, -1))
        fail("the end of a sequence was not removed");
    d->length[1] = PROMPT + 2;
    d->next[1] = (d->next[0] + 1) % d->vocab;
    generate(d, 2, 8);
}

/* Tokens in the middle are forgotten and what follows moves up. */
static void shift(decoder *d)
{
    const llama_pos from = 16, to = 48;
    prompts(d, 1);
    generate(d, 1, 4);
    if (!llama_memory_can_shift(d->memory))
        fail("this memory cannot be shifted");
    if (!llama_memory_seq_rm(d->memory, 0, from, to))
        fail("the middle of a sequence was not removed");
    llama_memory_seq_add(d->memory, 0, to, -1, from - to);
    d->length[0] += from - to;
    generate(d, 1, 10);
}

static const struct {
    const char *name;
    void (*run)(decoder *);
    bool unified; /* one cache for all sequences */
} scenarios[] = {{"plain", plain, true}, {"sequences", sequences, false}, {"unified", sequences, true},
                 {"state", state, true}, {"fork", fork_sequence, false},  {"shift", shift, true}};

int main(int argc, char **argv)
{
    if (argc < 6)
        fail("greedy MODEL DEVICE SCENARIO TYPE_K TYPE_V [no-flash]");
    size_t scenario = 0;
    while (strcmp(scenarios[scenario].name, argv[3]) != 0)
        if (++scenario == sizeof scenarios / sizeof *scenarios)
            fail("no such scenario");

    llama_backend_init();
    ggml_backend_dev_t devices[2] = {NULL, NULL};
    if (strcmp(argv[2], "none") != 0 && (devices[0] = ggml_backend_dev_by_name(argv[2])) == NULL)
        fail("no such device");

    struct llama_model_params of_model = llama_model_default_params();
    of_model.devices = devices;
    of_model.n_gpu_layers = 99;
    struct llama_model *model = llama_model_load_from_file(argv[1], of_model);
    if (model == NULL)
        fail("the model was not loaded");

    struct llama_context_params of_context = llama_context_default_params();
    of_context.n_ctx = CONTEXT * (scenarios[scenario].unified ? 1 : SEQUENCES);
    of_context.n_batch = CONTEXT;
    of_context.n_ubatch = UBATCH;
    of_context.n_seq_max = SEQUENCES;
    of_context.kv_unified = scenarios[scenario].unified;
    of_context.n_threads = of_context.n_threads_batch = 1;
    of_context.type_k = type_named(argv[4]);
    of_context.type_v = type_named(argv[5]);
    of_context.flash_attn_type = argc > 6 ? LLAMA_FLASH_ATTN_TYPE_DISABLED : LLAMA_FLASH_ATTN_TYPE_ENABLED;

    decoder d = {.context = llama_init_from_model(model, of_context)};
    if (d.context == NULL)
        fail("no context was made");
    d.memory = llama_get_memory(d.context);
    d.vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    d.batch = llama_batch_init(CONTEXT, 0, 1);
    scenarios[scenario].run(&d);

    llama_batch_free(d.batch);
    llama_free(d.context);
    llama_model_free(model);
    llama_backend_free();
    return 0;
}
