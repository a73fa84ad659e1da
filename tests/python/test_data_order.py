"""tests/golden/mixture_order.csv against docs/data-order.md: the C++ order is held to the same file.

`python tests/python/test_data_order.py` writes the file anew.
"""

import csv
import itertools
import random
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/eager"))
import data_order  # noqa: E402

GOLDEN = ROOT / "tests/golden/mixture_order.csv"
COLUMNS = ["seed", "weights", "sizes", "sequence", "source", "window"]
MIXTURES = [
    ([0.7, 0.3], [100, 40]),
    ([1.0, 1.0, 1.0], [1000, 5, 333]),
    ([1e9, 3.5e5, 12345678.9], [77, 1, 20000]),
    ([0.1] * 10, list(range(10, 110, 10))),
    ([4095.0, 1.0], [300, 300]),
]


def read_golden():
    with GOLDEN.open(newline="") as file:
        for row in csv.DictReader(file):
            weights = [float(w) for w in row["weights"].split()]
            sizes = [int(n) for n in row["sizes"].split()]
            place = int(row["source"]), int(row["window"])
            yield int(row["seed"]), weights, sizes, int(row["sequence"]), place


def write_golden():
    numbers = random.Random(1)
    with GOLDEN.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for seed, (weights, sizes) in itertools.product([0, 1234, 2**64 - 1], MIXTURES):
            sequences = [0, 1, 8191, 8192, numbers.randrange(10**6), numbers.randrange(2**40)]
            for sequence in [*sequences, numbers.randrange(2**61)]:
                place = data_order.mixture_at(seed, sequence, weights, sizes)
                texts = " ".join(map(repr, weights)), " ".join(map(str, sizes))
                writer.writerow([seed, *texts, sequence, *place])


def test_golden_places_follow_the_document():
    rows = list(read_golden())
    assert len(rows) == 3 * len(MIXTURES) * 7
    for seed, weights, sizes, sequence, place in rows:
        assert data_order.mixture_at(seed, sequence, weights, sizes) == place


if __name__ == "__main__":
    write_golden()
