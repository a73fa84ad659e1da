"""What scripts/device_check makes of reports: a check that ran nothing fails, and modelled times follow the counts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

LIB = Path(__file__).resolve().parents[2] / "scripts" / "lib"
sys.path.insert(0, str(LIB))
from device_table import modelled_ms, table  # noqa: E402
from tests_ran import problem  # noqa: E402


def report(*tests):
    return {"tests": len(tests), "testsuites": [{"name": "All/DeviceCheck", "testsuite": list(tests)}]}


PASSED = {"name": "LossHead/DeviceFloat32", "result": "COMPLETED"}
FAILED = {"name": "Norms/DeviceFloat32", "result": "COMPLETED", "failures": [{"failure": "error 1 over 0"}]}
SKIPPED = {"name": "Sampling/DeviceFloat32", "result": "SKIPPED"}


@pytest.mark.parametrize("content, text", [
    (report(PASSED), None),
    (report(PASSED, SKIPPED), None),
    (report(), "no test ran"),
    ({"tests": 0}, "no test ran"),
    (report(SKIPPED), "no test ran"),
    (report(PASSED, FAILED), "1 of 2 tests failed, the first of them Norms/DeviceFloat32"),
])
def test_reports(tmp_path, content, text):
    path = tmp_path / "tests.json"
    path.write_text(json.dumps(content))
    assert problem(path) == text
    assert subprocess.run([sys.executable, LIB / "tests_ran.py", path]).returncode == (
        0 if text is None else 1
    )


def test_a_report_that_is_missing_or_cut_fails(tmp_path):
    assert problem(tmp_path / "none.json").startswith("no report of its tests")
    (tmp_path / "cut.json").write_text('{"tests": 3, "testsu')
    assert problem(tmp_path / "cut.json").startswith("no report of its tests")


def test_modelled_time_counts_products_and_all_bytes():
    row = {"op": "cp_decode", "size": "135m", "length": 2048, "ms": 2.0, "product_flops": 0.0, "bytes": 4.3e9,
           "gflop_per_s": 500.0, "gb_per_s": 2150.0, "time_over_products": None}
    assert modelled_ms(row) == pytest.approx(1.0)
    row["product_flops"] = 0.75 * 790e9
    assert modelled_ms(row) == pytest.approx(2.0)
    lines = table({"ops": [row]})
    assert len(lines) == 2 and lines[1].split() == [
        "cp_decode",
        "135m",
        "2048",
        "2.000",
        "2.000",
        "0.50",
        "2150",
        "-",
    ]
