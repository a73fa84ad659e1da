#!/usr/bin/env python3
"""Measured times of `cplm bench ops --json` beside the modelled ones for an H200.

Modelled: the products' FLOPs at 0.75 of 790 TFLOP/s, and their operands' and results' bytes once more
for the rows between them, at 4.3 TB/s.
"""

import json
import sys

FLOPS_PER_S, BYTES_PER_S = 0.75 * 790e12, 4.3e12


def main(path):
    report = json.load(open(path, encoding="utf-8"))
    print(f"{'op':<48} {'size':<6} {'T':>6} {'measured ms':>12} {'modelled ms':>12} {'TFLOP/s':>9} {'/products':>9}")
    for row in report["ops"]:
        flops = row["gflop_per_s"] * 1e9 * row["ms"] / 1e3
        modelled = 1e3 * (flops / FLOPS_PER_S + row["product_bytes"] / BYTES_PER_S)
        print(f"{row['op']:<48} {row['size']:<6} {row['length']:>6} {row['ms']:>12.3f} {modelled:>12.3f} "
              f"{row['gflop_per_s'] / 1e3:>9.1f} {row['time_over_products'] or 0:>9.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
