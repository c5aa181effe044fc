"""Attention in numpy, one KV head at a time: the yardstick of the grids. The meaning of each word is clattn.h's."""

import numpy as np


def alibi_slopes(heads, max_bias):
    """Slopes for any number of heads (Press et al. 2022): powers for the largest power of two, the odd powers of the
    next finer series for the rest."""
    whole = 1 << (heads.bit_length() - 1)
    return np.array([2.0 ** (-max_bias * (h + 1) / whole) if h < whole else
                     2.0 ** (-max_bias / 2 * (2 * (h - whole) + 1) / whole) for h in range(heads)], np.float32)


def allowed_keys(rows, keys, offset, causal, window):
    """[rows, keys] bool: what causal bound and window leave; None if that is everything."""
    if not causal and window is None:
        return None
    distance = np.arange(keys)[None, :] - (np.arange(rows)[:, None] + offset)
    allowed = np.ones((rows, keys), bool)
    if causal:
        allowed &= distance <= 0
    if window is not None:
        left, right = window
        allowed &= (distance >= -left) | (left < 0)
        allowed &= (distance <= right) | (right < 0)
    return allowed


def softmax(scores, sinks=None):
    """Over the last axis, in place; a row of -inf becomes 0. sinks: a logit for each row, [..., 1]."""
    top = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        top = np.maximum(top, sinks)
    scores -= np.where(np.isneginf(top), 0, top)
    np.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total += np.exp(sinks - top)
    scores /= np.where(total == 0, 1, total)
    return scores


def forward(q, k, v, real=np.float64, rounded=None, causal=False, window=None, softcap=0.0, bias=None,
            bias_head_scale=None, alibi=None, sinks=None, q_lens=None, kv_lens=None):
    """o as [batch, heads, rows, dim], computed in `real`; rows beyond q_lens are 0. Row 0 stands at the bottom right.
    rounded: a function that rounds an array to the storage type, applied where a computation by whole matrices in
    that type rounds: the scaled K, the scores after each step, the probabilities and the result."""
    batch, heads, rows, dim = q.shape
    group = heads // k.shape[1]
    o = np.zeros((batch, heads, rows, v.shape[3]), real)
    as_stored = rounded or (lambda array: array)
    for b in range(batch):
        n = rows if q_lens is None else int(q_lens[b])
        m = k.shape[2] if kv_lens is None else int(kv_lens[b])
        allowed = allowed_keys(n, m, m - n, causal, window)
        distance = np.abs(np.arange(m)[None, :] - (np.arange(n)[:, None] + m - n)).astype(real) if alibi is not None \
            else None
        for h in range(k.shape[1]):
            of_group = slice(h * group, (h + 1) * group)
            key = as_stored(k[b, h, :m].astype(real) * real(dim ** -0.5))
            scores = q[b, of_group, :n].astype(real).reshape(group * n, dim) @ key.T
            scores = as_stored(scores.reshape(group, n, m))
            if softcap > 0:
                scores = as_stored(as_stored(np.tanh(as_stored(scores / real(softcap)))) * real(softcap))
            if bias is not None:
                part = bias[b, of_group, :n, :m].astype(real)
                if bias_head_scale is not None:
                    part = part * bias_head_scale[b, of_group].astype(real)[:, None, None]
                scores += part
            if alibi is not None:
                scores -= alibi[b, of_group].astype(real)[:, None, None] * distance
            if allowed is not None:
                scores[:, ~allowed] = -np.inf
            sink = None if sinks is None else sinks[b, of_group].astype(real)[:, None, None]
            p = as_stored(softmax(scores, sink)) if m else np.zeros((group, n, 0), real)
            o[b, of_group, :n] = as_stored((p.reshape(group * n, m) @ v[b, h, :m].astype(real))
                                           .reshape(group, n, v.shape[3]))
    return o
