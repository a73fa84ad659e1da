#!/usr/bin/env python3
"""Fails unless a GoogleTest program's JSON report has tests that ran to their end, and none that failed.

A filter that matches nothing, or a program that was killed, must not count as a check.
"""

import json
import sys


def problem(path):
    try:
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
    except (OSError, ValueError) as error:
        return f"no report of its tests: {error}"
    results = [test for suite in report.get("testsuites", []) for test in suite["testsuite"]]
    completed = [test for test in results if test.get("result") == "COMPLETED"]
    failed = [test["name"] for test in completed if test.get("failures")]
    if failed:
        return f"{len(failed)} of {len(completed)} tests failed, the first of them {failed[0]}"
    return None if completed else "no test ran"


def main(path):
    text = problem(path)
    if text is not None:
        print(f"{path}: {text}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
