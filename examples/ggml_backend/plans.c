/* plans.c: plans by description. A model has a handful; ggml asks about each node of each graph. */
#include "plugin.h"

#include "ggml-threading.h"

#include <stdlib.h>
#include <string.h>

struct plan_entry {
    plan_entry *next;
    clattn_plan_desc desc;
    char why[192]; /* empty: supported */
    clattn_plan *plan;
};

typedef struct slopes_entry {
    struct slopes_entry *next;
    const device *dev;
    int32_t heads;
    float max_bias;
    clattn_tensor tensor;
} slopes_entry;

/* Entries are only ever added, at the front, under ggml's lock; what has been found stays valid. */
static slopes_entry *all_slopes;

static plan_entry *find(const device *dev, const clattn_plan_desc *desc)
{
    for (plan_entry *e = dev->plans; e; e = e->next)
        if (memcmp(&e->desc, desc, sizeof *desc) == 0)
            return e;
    return NULL;
}

static plan_entry *find_or_add(device *dev, const clattn_plan_desc *desc)
{
    ggml_critical_section_start();
    plan_entry *entry = find(dev, desc);
    if (!entry && (entry = calloc(1, sizeof *entry)) != NULL) {
        entry->desc = *desc;
        const clattn_status status = clattn_plan_supported(dev->clattn, desc, entry->why, sizeof entry->why);
        if (status != CLATTN_SUCCESS && entry->why[0] == '\0')
            strncpy(entry->why, clattn_status_string(status), sizeof entry->why - 1);
        entry->next = dev->plans;
        dev->plans = entry;
    }
    ggml_critical_section_end();
    return entry;
}

const char *plan_fault(device *dev, const clattn_plan_desc *desc)
{
    const plan_entry *entry = find_or_add(dev, desc);
    if (!entry)
        return "out of memory";
    return entry->why[0] ? entry->why : NULL;
}

clattn_plan *plan_of(stream *s, const clattn_plan_desc *desc)
{
    plan_entry *entry = find_or_add(s->dev, desc);
    if (!entry)
        return NULL;
    ggml_critical_section_start();
    clattn_plan *plan = entry->plan;
    ggml_critical_section_end();
    if (plan)
        return plan;
    /* Compiling takes long: others are not kept waiting. Of two that are made at once, one is kept. */
    const int64_t start = ggml_time_us();
    clattn_plan *made;
    if (clattn_plan_create(&made, s->dev->clattn, desc) != CLATTN_SUCCESS)
        return NULL;
    ggml_critical_section_start();
    if (!entry->plan) {
        entry->plan = made;
        made = NULL;
    }
    plan = entry->plan;
    ggml_critical_section_end();
    s->plans_made++;
    s->plans_us += ggml_time_us() - start;
    clattn_plan_release(made);
    return plan;
}

/* ---- ALiBi ---- */

static clattn_tensor upload_slopes(const device *dev, int32_t heads, float max_bias)
{
    clattn_tensor tensor = CLATTN_TENSOR_INIT;
    float *slopes = malloc((size_t)heads * sizeof *slopes);
    if (slopes && clattn_alibi_slopes(slopes, heads, max_bias) == CLATTN_SUCCESS)
        tensor.handle = clCreateBuffer(dev->context, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR,
                                       (size_t)heads * sizeof *slopes, slopes, NULL);
    free(slopes);
    tensor.stride[1] = 1; /* the same for every batch entry */
    return tensor;
}

clattn_tensor plan_alibi_slopes(device *dev, int32_t heads, float max_bias)
{
    clattn_tensor tensor = CLATTN_TENSOR_INIT;
    ggml_critical_section_start();
    slopes_entry *entry = all_slopes;
    while (entry && (entry->dev != dev || entry->heads != heads || entry->max_bias != max_bias))
        entry = entry->next;
    if (!entry && (entry = calloc(1, sizeof *entry)) != NULL) {
        const slopes_entry made = {all_slopes, dev, heads, max_bias, upload_slopes(dev, heads, max_bias)};
        *entry = made;
        if (entry->tensor.handle) {
            all_slopes = entry;
        } else {
            free(entry);
            entry = NULL;
        }
    }
    if (entry)
        tensor = entry->tensor;
    ggml_critical_section_end();
    return tensor;
}
