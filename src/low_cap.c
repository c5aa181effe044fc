#include "low_cap.h"

#include "kernel_args.h"

#include <math.h>
#include <string.h>

void clattn__low_cap(float low[4], double scale, double softcap)
{
    /* tanh(y) / y about y^2 = LOW_CAP^2: of all quadratics the one whose largest relative error is least. */
    static const double terms[] = {0.9796750372284088, -0.317167065474491, 0.12841613415128178};
    const double to_cap = softcap > 0.0 ? scale / softcap : 0.0, from_product = scale * 1.4426950408889634;
    const double last = fabs(from_product * terms[2]) * pow(to_cap, 4.0);
    memset(low, 0, 4 * sizeof *low);
    if (!(last > 1e-36 && last < 1e36))
        return;
    low[0] = (float)((double)LOW_CAP * (double)LOW_CAP / (to_cap * to_cap));
    for (int i = 0; i < 3; i++)
        low[i + 1] = (float)(from_product * terms[i] * pow(to_cap, 2.0 * i));
}
