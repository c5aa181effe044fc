#include "path.h"

#include "emit.h"

#define PIECE(name)                                 \
    extern const unsigned char clattn__cl_##name[]; \
    extern const size_t clattn__cl_##name##_size;
PIECE(args)
PIECE(convert)
PIECE(cache_types)
PIECE(bounds)
PIECE(address)
PIECE(score)
PIECE(tiles)
PIECE(check)
PIECE(combine)
PIECE(portable)
PIECE(cpu_vectors)
PIECE(cpu)
PIECE(parts)
PIECE(append_args)
PIECE(convert_args)
PIECE(merge_args)
PIECE(encode)
PIECE(rows)
PIECE(append)
PIECE(convert_rows)
PIECE(merge)
#undef PIECE

/* clang-format off */
#define PIECE(name) { "cl/" #name ".cl", clattn__cl_##name, &clattn__cl_##name##_size }
/* clang-format on */

#define FORWARD_PIECES                                                                            \
    PIECE(args), PIECE(convert), PIECE(cache_types), PIECE(bounds), PIECE(address), PIECE(score), \
        PIECE(tiles), PIECE(check)

static int is_cpu(const clattn__device *device, const char **why)
{
    *why = "the device is no CPU";
    return (device->type & CL_DEVICE_TYPE_CPU) != 0;
}

static int is_any(const clattn__device *device, const char **why)
{
    (void)device;
    *why = "";
    return 1;
}

static const clattn__path table[] = {
    {CLATTN_PATH_CPU,
     "cpu",
     is_cpu,
     {{clattn__tile_cpu,
       {"forward", NULL, "classify_tiles", NULL, "check_sequences"},
       CLATTN__BUFFERS,
       sizeof(attention_args),
       {FORWARD_PIECES, PIECE(cpu_vectors), PIECE(cpu)}},
      {NULL, {NULL}, 0, 0, {{NULL, NULL, NULL}}}}},
    {CLATTN_PATH_PORTABLE,
     "portable",
     is_any,
     {{clattn__tile_portable,
       {"forward_any", "forward_aligned", "classify_tiles", NULL, "check_sequences"},
       CLATTN__BUFFERS,
       sizeof(attention_args),
       {FORWARD_PIECES, PIECE(portable)}},
      {clattn__tile_portable_decode,
       {"forward_any", "forward_aligned", "classify_tiles", "combine", "check_sequences"},
       CLATTN__BUFFERS,
       sizeof(attention_args),
       {FORWARD_PIECES, PIECE(portable), PIECE(parts), PIECE(combine)}}}},
};

const clattn__path *clattn__path_at(int index)
{
    return (size_t)index < sizeof table / sizeof *table ? &table[index] : NULL;
}

/* What operations other than attention share: types and addresses, and rows that go to caches. */
#define ADDRESS_PIECES PIECE(convert), PIECE(cache_types), PIECE(bounds), PIECE(address)
#define ROW_PIECES ADDRESS_PIECES, PIECE(encode), PIECE(rows)

static const clattn__path operations[] = {
    [CLATTN_OPERATION_KV_APPEND] = {CLATTN_PATH_PORTABLE,
                                    "append",
                                    is_any,
                                    {{clattn__tile_flat,
                                      {"append", "append_lengths"},
                                      CLATTN__APPEND_BUFFERS,
                                      sizeof(append_args),
                                      {PIECE(args), PIECE(append_args), ROW_PIECES, PIECE(append)}},
                                     {NULL, {NULL}, 0, 0, {{NULL, NULL, NULL}}}}},
    [CLATTN_OPERATION_MERGE] = {CLATTN_PATH_PORTABLE,
                                "merge",
                                is_any,
                                {{clattn__tile_flat,
                                  {"merge"},
                                  CLATTN__MERGE_BUFFERS,
                                  sizeof(merge_args),
                                  {PIECE(args), PIECE(merge_args), ADDRESS_PIECES, PIECE(parts),
                                   PIECE(merge)}},
                                 {NULL, {NULL}, 0, 0, {{NULL, NULL, NULL}}}}},
    [CLATTN_OPERATION_CONVERT] = {CLATTN_PATH_PORTABLE,
                                  "convert",
                                  is_any,
                                  {{clattn__tile_flat,
                                    {"convert_rows"},
                                    CLATTN__CONVERT_BUFFERS,
                                    sizeof(convert_args),
                                    {PIECE(args), PIECE(convert_args), ROW_PIECES, PIECE(convert_rows)}},
                                   {NULL, {NULL}, 0, 0, {{NULL, NULL, NULL}}}}},
};

const clattn__path *clattn__path_of_operation(int32_t operation) { return &operations[operation]; }
