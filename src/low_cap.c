#include "low_cap.h"

#include <math.h>
#include <string.h>

/* tanh(y) / y, of z = y^2. */
static double ratio(double z) { return tanh(sqrt(z)) / sqrt(z); }

/* How far it serves, in units of the cap: tanh(y) is off by about y end^4 / 60 there. */
static double end_of(double softcap) { return fmin(0.25, pow(60.0 * LOW_CAP_ERROR / softcap, 0.2)); }

void clattn__low_cap(float low[3], double scale, double softcap)
{
    const double to_cap = softcap > 0.0 ? scale / softcap : 0.0, from_product = scale * 1.4426950408889634;
    const double smallest = fabs(from_product) * to_cap * to_cap;
    memset(low, 0, 3 * sizeof *low);
    if (!(smallest > 1e-36 && smallest < 1e36))
        return;
    /* The line through two points of tanh(y) / y, where the largest error is least. */
    const double end = end_of(softcap), half = end * end / 2.0, step = half * sqrt(0.5);
    const double below = ratio(half - step), above = ratio(half + step),
                 rise = (above - below) / (2.0 * step);
    low[0] = (float)(2.0 * half / (to_cap * to_cap));
    low[1] = (float)(from_product * (below + (half + step) * rise));
    low[2] = (float)(from_product * rise * to_cap * to_cap);
}
