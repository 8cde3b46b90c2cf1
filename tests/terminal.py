"""What a terminal shows of what is written to it, and a command that runs in one."""

import os
import pty
import re
import subprocess


def screen(written: str) -> list[str]:
    """What a terminal shows in the end: lines, with cursor movements and deletions obeyed."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[\??[\d;]*[A-Za-z]|[^\x1b]", written):
        if part.startswith("\x1b"):
            kind, number = part[-1], re.sub(r"\D", "", part)
            if kind == "A":
                row -= int(number or 1)
            elif kind == "K":
                lines[row] = ""
            elif kind not in "mhl":
                raise AssertionError(f"unknown control sequence {part!r}")
        elif part == "\r":
            column = 0
        elif part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        else:
            before = lines[row].ljust(column)
            lines[row] = before[:column] + part + before[column + 1 :]
            column += 1
    return [line.rstrip() for line in lines if line.strip()]


def in_a_terminal(command: list[str], columns: int = 100) -> tuple[int, str]:
    """The exit status of a command in a pseudo-terminal, and all that it wrote."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns)}
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, close_fds=True
    )
    os.close(theirs)
    written = drained(ours)
    return process.wait(), written


def drained(terminal: int) -> str:
    """All that is written to the other end of a pseudo-terminal, until that is closed."""
    written = b""
    while True:
        try:
            part = os.read(terminal, 10**5)
        except OSError:  # Linux says so where the other end is closed
            part = b""
        if not part:
            os.close(terminal)
            return written.decode()
        written += part
