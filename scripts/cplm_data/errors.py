"""Errors with the exit codes of the command; each message is one line."""


class PrepareError(Exception):
    """What, where, expected, found, what to do, in one line."""

    exit_code = 1


class ArgumentError(PrepareError):
    exit_code = 2


class BadDataError(PrepareError):
    exit_code = 3


def one_line(error: BaseException) -> str:
    """The first line of a library's message, without the name of a Python class."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def system_reason(error: OSError) -> str:
    return error.strerror or one_line(error)
