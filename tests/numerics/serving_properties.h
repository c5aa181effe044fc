/* serving_properties.h: what must hold between serving calls. */
#ifndef CLATTN_SERVING_PROPERTIES_H
#define CLATTN_SERVING_PROPERTIES_H

#include "numerics_device.h"

/* Where a property says what does not hold; an empty text: it does. */
typedef struct property_fault {
    char text[2000];
} property_fault;

typedef void (*serving_check)(numerics_device *device, int32_t path, int32_t dtype, random_state *random,
                              property_fault *fault);

typedef struct serving_property {
    const char *name;
    serving_check check;
} serving_property;

enum { SERVING_PROPERTIES = 8 };

extern const serving_property serving_properties[SERVING_PROPERTIES];

#endif
