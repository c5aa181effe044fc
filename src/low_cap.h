/* low_cap.h: softcap of scores far below the cap, as a polynomial. */
#ifndef CLATTN_LOW_CAP_H
#define CLATTN_LOW_CAP_H

/* low[] so that for a product x of q and k, with u = x^2 - low[0],
 *     x (low[1] + low[2] u + low[3] u^2) = softcap tanh(scale x / softcap) log2(e)
 * wherever u < 0: there |scale x / softcap| is below LOW_CAP. Off by 4e-7 of it, before rounding. low[0] is
 * 0 where softcap is 0, or a step of this could leave the range of float. */
void clattn__low_cap(float low[4], double scale, double softcap);

#endif
