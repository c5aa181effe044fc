#include "path.h"

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
PIECE(portable)
PIECE(cpu)
#undef PIECE

#define PIECE(name)                                                     \
    {                                                                   \
        "cl/" #name ".cl", clattn__cl_##name, &clattn__cl_##name##_size \
    }

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
     clattn__tile_cpu,
     "forward",
     NULL,
     {PIECE(args), PIECE(convert), PIECE(cache_types), PIECE(bounds), PIECE(address), PIECE(score), PIECE(tiles), PIECE(cpu)}},
    {CLATTN_PATH_PORTABLE,
     "portable",
     is_any,
     clattn__tile_portable,
     "forward_any",
     "forward_aligned",
     {PIECE(args), PIECE(convert), PIECE(cache_types), PIECE(bounds), PIECE(address), PIECE(score), PIECE(tiles),
      PIECE(portable)}},
};

const clattn__path *clattn__path_at(int index)
{
    return (size_t)index < sizeof table / sizeof *table ? &table[index] : NULL;
}
