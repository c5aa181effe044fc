/* check_run.c: a case of `clattn check` on the device, and whether its result is right. */
#include "check_run.h"

#include "case_layout.h"
#include "cli.h"
#include "device_call.h"
#include "device_serving.h"
#include "verify.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* One run; outputs to be freed by the caller, whatever `reason` says. */
static void run_once(device_call *call, unsigned char **o, float **lse, char *reason, size_t capacity)
{
    if (device_call_poison(call) != CLI_OK || device_call_enqueue(call) != CLI_OK ||
        device_call_finish(call) != CLI_OK || device_serving_trouble(call, reason, capacity) != CLI_OK)
        cli_format(reason, capacity, "the call failed");
    if (!reason[0] && device_call_fetch(call, o, lse, reason, capacity) != CLI_OK)
        cli_format(reason, capacity, "the call failed");
}

/* Further runs, which have to give the bits of the first. */
static void run_again(device_call *call, int64_t repeat, const unsigned char *o, const float *lse,
                      char *reason, size_t capacity)
{
    const size_t o_bytes =
        (size_t)case_elements(&call->c->tensor[TENSOR_O]) * call->c->tensor[TENSOR_O].element;
    const size_t lse_bytes = (size_t)case_elements(&call->c->tensor[TENSOR_LSE]) * sizeof *lse;
    for (int64_t run = 2; run <= repeat && !reason[0]; run++) {
        unsigned char *other = NULL;
        float *other_lse = NULL;
        run_once(call, &other, &other_lse, reason, capacity);
        if (!reason[0] && (memcmp(o, other, o_bytes) != 0 || (lse && memcmp(lse, other_lse, lse_bytes) != 0)))
            cli_format(reason, capacity, "run %" PRId64 " gave other bits than the first", run);
        free(other);
        free(other_lse);
    }
}

int check_run(cli_device *device, check_case *check, int64_t repeat, char *reason, size_t capacity,
              double *share)
{
    device_call call;
    unsigned char *o = NULL;
    float *lse = NULL;
    case_state state = {{NULL}};
    verdict v;
    reason[0] = 0;
    *share = 0;
    if (device_call_open(&call, device, &check->c) != CLI_OK) {
        cli_format(reason, capacity, "refused: %s", device->last_error);
        return CLI_OK;
    }
    run_once(&call, &o, &lse, reason, capacity);
    if (!reason[0])
        run_again(&call, repeat, o, lse, reason, capacity);
    if (!reason[0] && device_serving_fetch(&call, &state, reason, capacity) != CLI_OK)
        cli_format(reason, capacity, "the call failed");
    device_call_close(&call);
    int status = CLI_OK;
    if (!reason[0]) {
        status = verify_result(&v, &check->c, &state, o, lse, NULL);
        if (status == CLI_OK) {
            *share = v.worst;
            cli_format(reason, capacity, "%s", v.reason);
        }
    }
    free(o);
    free(lse);
    case_state_release(&state);
    return status;
}
