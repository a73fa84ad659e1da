"""What ends a study in one line."""


class StudyError(Exception):
    """exit_code as the program's: 1 failed, 2 arguments, 75 stopped."""

    def __init__(self, message: str, exit_code: int = 1):
        super().__init__(message)
        self.exit_code = exit_code
