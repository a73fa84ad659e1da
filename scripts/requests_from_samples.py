#!/usr/bin/env python3
"""Samples that lm-eval logged (--log_samples) -> requests for `cplm eval requests`, on standard output.

Takes samples_TASK_DATE.jsonl of tasks that score continuations (multiple_choice, loglikelihood):
the same contexts and continuations then run without Python.
"""

import argparse
import json
import sys

from project_version import add_version_argument


def requests_of(sample, delimiter):
    """The request of one logged line; ValueError where it is of another kind of task."""
    arguments = sample["arguments"]
    if isinstance(arguments, dict):  # gen_args_0, gen_args_1 ...: in order
        arguments = [list(each.values()) for each in arguments.values()]
    if any(len(each) != 2 or not all(isinstance(text, str) for text in each) for each in arguments):
        raise ValueError("it asks for generated text, and not for the log P of a continuation")
    contexts, texts = zip(*arguments)
    request = {"id": str(sample["doc_id"])}
    if delimiter and all(text.startswith(delimiter) and text != delimiter for text in texts):
        request["delimiter"] = delimiter
        texts = [text.removeprefix(delimiter) for text in texts]
    if len(texts) == 1:
        return request | {"context": contexts[0], "continuation": texts[0]}
    try:
        gold = json.loads(str(sample["target"]))
    except ValueError:
        gold = None
    if not isinstance(gold, (int, list)):
        raise ValueError(f"its target {sample['target']!r} is not the number of a choice")
    same = len(set(contexts)) == 1
    request |= {"context": contexts[0]} if same else {"contexts": list(contexts)}
    return request | {"choices": list(texts), "gold": gold}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_version_argument(parser)
    parser.add_argument("samples", help="samples_TASK_DATE.jsonl")
    parser.add_argument(
        "--delimiter", default=" ", help="the task's target_delimiter, which no choice's length counts (default: a blank)"
    )  # fmt: skip
    arguments = parser.parse_args()
    try:
        with open(arguments.samples, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                try:
                    print(json.dumps(requests_of(json.loads(line), arguments.delimiter), ensure_ascii=False))
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    reason = f"no key {error}" if isinstance(error, KeyError) else error
                    sys.exit(f"{arguments.samples}:{number}: not a sample of continuations: {reason}")
    except OSError as error:
        sys.exit(f"cannot read {arguments.samples}: {error.strerror}")


if __name__ == "__main__":
    main()
