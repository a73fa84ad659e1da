"""The order of training, written from docs/data-order.md alone."""

import math

WORD = (1 << 64) - 1


def mix(x):
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & WORD
    return x ^ x >> 31


def key(k, i):
    return mix((k + 0x9E3779B97F4A7C15 * (i + 1)) & WORD)


def permute(k, m, x):
    half = max(4, ((m - 1).bit_length() + 1) // 2)
    low = (1 << half) - 1
    while True:
        left, right = x >> half, x & low
        for r in range(8):
            left, right = right, left ^ (mix(right ^ key(k, r)) & low)
        x = (left << half) + right
        if x < m:
            return x


def window_at(seed, epoch, index, n):
    e = key(key(seed, 0), epoch)
    span = index // 8192
    m = min(8192, n - 8192 * span)
    place = 8192 * span + permute(key(e ^ 0x7370616E73000001, span), m, index - 8192 * span)
    blocks = -(-n // 32)
    last = n - 32 * (blocks - 1)
    kb = key(e ^ 0x626C6F636B730001, 0)
    q = next(x for x in range(blocks) if permute(kb, blocks, x) == blocks - 1)
    if place >= 32 * q + last:
        place += 32 - last
    return 32 * permute(kb, blocks, place // 32) + place % 32


def mixture_at(seed, sequence, weights, sizes):
    """(source, window within it) of one sequence of a mixture."""
    total = 0.0
    for weight in weights:
        total += weight
    shares, running = [0], 0.0
    for weight in weights:
        running += weight
        shares.append(math.floor(running / total * 2.0**32 + 0.5))

    def count(s, b):  # sequences of the sources before s in the blocks before b
        return (8192 * b * shares[s] + 2**31) // 2**32

    b = sequence // 8192
    slot = permute(key(seed ^ 0x6D69787475726501, b), 8192, sequence % 8192)
    ends = [count(s, b + 1) - count(s, b) for s in range(len(shares))]
    s = next(s for s in range(len(weights)) if slot < ends[s + 1])
    k = count(s + 1, b) - count(s, b) + slot - ends[s]
    n = sizes[s]
    return s, window_at(key(seed ^ 0x736F757263650001, s), k // n, k % n, n)
