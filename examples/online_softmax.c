/* online_softmax: the algorithm behind every kernel here, in plain C, next to the naive one.
 *
 * Both compute o = softmax(scale * q k^T) v for one head. The naive one stores a row of scores for every
 * query. The other one walks the keys in tiles and keeps, for each query, three things only:
 *
 *     m  the largest score so far
 *     l  the sum of exp(score - m) so far
 *     o  the sum of exp(score - m) * v so far
 *
 * When a tile raises m, what was summed against the old m is scaled by exp(m_old - m_new). That is exact:
 * exp(s - m_old) * exp(m_old - m_new) = exp(s - m_new). (Milakov and Gimelshein 2018; Dao et al. 2022.)
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { QUERIES = 61, KEYS = 203, HEAD_DIM = 32, BLOCK_K = 16 };

static double dot(const double *a, const double *b)
{
    double sum = 0;
    for (int d = 0; d < HEAD_DIM; d++)
        sum += a[d] * b[d];
    return sum;
}

static void naive_attention(double (*o)[HEAD_DIM], double (*q)[HEAD_DIM], double (*k)[HEAD_DIM],
                            double (*v)[HEAD_DIM], double scale)
{
    static double s[QUERIES][KEYS]; /* the N x N buffer */
    for (int i = 0; i < QUERIES; i++) {
        double m = -INFINITY, l = 0;
        for (int j = 0; j < KEYS; j++) {
            s[i][j] = scale * dot(q[i], k[j]);
            m = fmax(m, s[i][j]);
        }
        for (int j = 0; j < KEYS; j++)
            l += s[i][j] = exp(s[i][j] - m);
        for (int d = 0; d < HEAD_DIM; d++) {
            o[i][d] = 0;
            for (int j = 0; j < KEYS; j++)
                o[i][d] += s[i][j] / l * v[j][d];
        }
    }
}

static void flash_attention(double (*o)[HEAD_DIM], double (*q)[HEAD_DIM], double (*k)[HEAD_DIM],
                            double (*v)[HEAD_DIM], double scale)
{
    for (int i = 0; i < QUERIES; i++) {
        double m = -INFINITY, l = 0;
        for (int d = 0; d < HEAD_DIM; d++)
            o[i][d] = 0;
        for (int first = 0; first < KEYS; first += BLOCK_K) {
            const int keys = KEYS - first < BLOCK_K ? KEYS - first : BLOCK_K;
            double s[BLOCK_K], m_new = m; /* all that is ever stored of the scores */
            for (int j = 0; j < keys; j++) {
                s[j] = scale * dot(q[i], k[first + j]);
                m_new = fmax(m_new, s[j]);
            }
            const double shrink = exp(m - m_new);
            l *= shrink;
            for (int d = 0; d < HEAD_DIM; d++)
                o[i][d] *= shrink;
            for (int j = 0; j < keys; j++) {
                const double p = exp(s[j] - m_new);
                l += p;
                for (int d = 0; d < HEAD_DIM; d++)
                    o[i][d] += p * v[first + j][d];
            }
            m = m_new;
        }
        for (int d = 0; d < HEAD_DIM; d++)
            o[i][d] /= l;
    }
}

static void fill(double (*x)[HEAD_DIM], int rows, double size)
{
    for (int i = 0; i < rows; i++)
        for (int d = 0; d < HEAD_DIM; d++)
            x[i][d] = size * (2.0 * rand() / RAND_MAX - 1.0);
}

int main(void)
{
    static double q[QUERIES][HEAD_DIM], k[KEYS][HEAD_DIM], v[KEYS][HEAD_DIM];
    static double naive[QUERIES][HEAD_DIM], flash[QUERIES][HEAD_DIM];
    double worst = 0;
    fill(q, QUERIES, 5);
    fill(k, KEYS, 5);
    fill(v, KEYS, 1);
    naive_attention(naive, q, k, v, 1 / sqrt(HEAD_DIM));
    flash_attention(flash, q, k, v, 1 / sqrt(HEAD_DIM));
    for (int i = 0; i < QUERIES; i++)
        for (int d = 0; d < HEAD_DIM; d++)
            worst = fmax(worst, fabs(naive[i][d] - flash[i][d]));
    printf("scores stored: naive %d, online %d; largest difference %.1e\n", QUERIES * KEYS, BLOCK_K, worst);
    return worst < 1e-13 ? 0 : 1;
}
