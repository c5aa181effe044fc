/* low_cap.h: softcap of scores far below the cap, as a polynomial. */
#ifndef CLATTN_LOW_CAP_H
#define CLATTN_LOW_CAP_H

/* Of a score, natural: less than a weight is off by when it is rounded to 16 bits. */
#define LOW_CAP_ERROR 2e-4

/* low[] so that for a product x of q and k, with u = x^2 - low[0],
 *     x (low[1] + low[2] u) = softcap tanh(scale x / softcap) log2(e)
 * wherever u < 0, but for LOW_CAP_ERROR and rounding: there |scale x / softcap| is below 0.25, and lower
 * where the cap is above 12, as its fifth root. low[0] is 0 where softcap is 0, or a step of this could leave
 * the range of float. */
void clattn__low_cap(float low[3], double scale, double softcap);

#endif
