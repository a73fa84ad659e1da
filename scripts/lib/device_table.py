#!/usr/bin/env python3
"""Measured times of `cplm bench ops --json` beside the modelled ones for an H200.

Modelled: the matrix products' FLOPs at 0.75 of 790 TFLOP/s, and all bytes (products' operands and results,
and what the rows between them move by the formulas of kernels/*.h) at 4.3 TB/s, nothing overlapped.
"""

import json
import sys

FLOPS_PER_S, BYTES_PER_S = 0.75 * 790e12, 4.3e12


def modelled_ms(row):
    return 1e3 * (row["product_flops"] / FLOPS_PER_S + row["bytes"] / BYTES_PER_S)


def table(report):
    lines = [f"{'op':<48} {'size':<6} {'T':>6} {'measured ms':>12} {'modelled ms':>12} "
             f"{'TFLOP/s':>9} {'GB/s':>7} {'/products':>9}"]
    for row in report["ops"]:
        over = "-" if row["time_over_products"] is None else f"{row['time_over_products']:.3f}"
        lines.append(
            f"{row['op']:<48} {row['size']:<6} {row['length']:>6} {row['ms']:>12.3f} "
            f"{modelled_ms(row):>12.3f} {row['gflop_per_s'] / 1e3:>9.2f} {row['gb_per_s']:>7.0f} {over:>9}"
        )
    return lines


def main(path):
    with open(path, encoding="utf-8") as file:
        print("\n".join(table(json.load(file))))


if __name__ == "__main__":
    main(sys.argv[1])
