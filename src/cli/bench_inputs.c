/* bench_inputs.c: random inputs of a shape, as a file would hold them. */
#include "bench.h"

#include "cli.h"
#include "random_values.h"
#include "tensor_convert.h"

#include <stdlib.h>
#include <string.h>

/* The values repeat, a prime number of them apart: time does not depend on it, and large shapes would take
 * longer to draw than to measure. */
static void *repeated_tensor(random_state *random, int64_t count, int32_t dtype)
{
    enum { APART = 1999993 };
    const int64_t drawn = count < APART ? count : APART;
    const size_t size = dtype_size(dtype), bytes = (size_t)count * size;
    size_t known = (size_t)drawn * size;
    unsigned char *some = random_tensor(random, drawn, dtype, 1.0f);
    unsigned char *values = some ? realloc(some, bytes + 1) : NULL;
    if (!values) {
        free(some);
        return NULL;
    }
    for (; known < bytes; known *= 2)
        memcpy(values + known, values, bytes - known < known ? bytes - known : known);
    return values;
}

/* Values of NULL: there is no memory for them. */
static int add(bench_inputs *in, const safetensors_tensor *t, void *values)
{
    in->owned[in->count] = values;
    in->tensor[in->count] = *t;
    in->tensor[in->count++].data = values;
    return values ? CLI_OK : cli_fail(CLI_FAILED, "not enough memory for the inputs");
}

static int add_matrix(bench_inputs *in, const bench_options *o, const bench_shape *s, random_state *random,
                      const char *name, int32_t dtype, int64_t heads, int64_t length, int64_t dim)
{
    const int bshd = o->call.layout_bshd, packed = o->num_seqlens > 0;
    int64_t total = 0;
    for (int b = 0; b < o->num_seqlens; b++)
        total += o->seqlens[b];
    const int64_t rows = packed ? total : s->batch * length, count = rows * heads * dim;
    const safetensors_tensor t = {
        name,
        dtype_safetensors_name(dtype),
        packed ? 3 : 4,
        {packed ? total : s->batch, bshd || packed ? (packed ? heads : length) : heads,
         packed ? dim : (bshd ? heads : length), packed ? 0 : dim},
        NULL,
        (size_t)count * dtype_size(dtype),
    };
    return add(in, &t, repeated_tensor(random, count, dtype));
}

static int add_integers(bench_inputs *in, const char *name, int64_t count, int32_t **values)
{
    const safetensors_tensor t = {name, "I32", 1, {count}, NULL, (size_t)count * sizeof **values};
    *values = calloc((size_t)count, sizeof **values);
    return add(in, &t, *values);
}

/* Lengths that leave nothing out: what it costs to ask for them. */
static int add_lens(bench_inputs *in, const bench_shape *s)
{
    int32_t *rows = NULL, *keys = NULL;
    int status = add_integers(in, "q_lens", s->batch, &rows);
    if (status == CLI_OK)
        status = add_integers(in, "kv_lens", s->batch, &keys);
    for (int64_t b = 0; status == CLI_OK && b < s->batch; b++) {
        rows[b] = (int32_t)s->q_len;
        keys[b] = (int32_t)s->kv_len;
    }
    return status;
}

static int add_starts(bench_inputs *in, const bench_options *o, const char *name)
{
    int32_t *starts;
    const int status = add_integers(in, name, o->num_seqlens + 1, &starts);
    for (int b = 0; status == CLI_OK && b < o->num_seqlens; b++)
        starts[b + 1] = starts[b] + (int32_t)o->seqlens[b];
    return status;
}

static int add_sinks(bench_inputs *in, const bench_shape *s, random_state *random)
{
    const safetensors_tensor t = {"sinks", "F32", 1, {s->heads_q}, NULL, (size_t)s->heads_q * sizeof(float)};
    return add(in, &t, random_tensor(random, s->heads_q, CLATTN_DTYPE_F32, 1.0f));
}

int bench_inputs_make(bench_inputs *out, const bench_options *o, const bench_shape *s)
{
    random_state random = {1};
    memset(out, 0, sizeof *out);
    int status = add_matrix(out, o, s, &random, "q", o->dtype[0], s->heads_q, s->q_len, s->head_dim_qk);
    if (status == CLI_OK)
        status = add_matrix(out, o, s, &random, "k", o->dtype[1], s->heads_kv, s->kv_len, s->head_dim_qk);
    if (status == CLI_OK)
        status = add_matrix(out, o, s, &random, "v", o->dtype[2], s->heads_kv, s->kv_len, s->head_dim_v);
    if (status == CLI_OK && o->sinks)
        status = add_sinks(out, s, &random);
    if (status == CLI_OK && o->lens)
        status = add_lens(out, s);
    if (status == CLI_OK && o->num_seqlens > 0)
        status = add_starts(out, o, "cu_seqlens_q");
    if (status == CLI_OK && o->num_seqlens > 0)
        status = add_starts(out, o, "cu_seqlens_k");
    if (status != CLI_OK)
        bench_inputs_release(out);
    return status;
}

void bench_inputs_release(bench_inputs *inputs)
{
    for (size_t i = 0; i < inputs->count; i++)
        free(inputs->owned[i]);
    memset(inputs, 0, sizeof *inputs);
}
