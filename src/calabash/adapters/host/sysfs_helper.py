"""Writes to files of the kernel for whoever holds the other end of the pipe: one JSON line asks, one answers.

A program of its own (it imports nothing of ours): a write to sysfs may block inside the kernel for hours, and then neither
signals nor time-outs reach its process. It ends when the pipe does.
"""

import json
import os
import sys


def main() -> None:
    """``{"path": ..., "text": ...}`` -> ``{"errno": 0}``; one answer beforehand says that it listens."""
    sys.stdout.write('{"errno": 0}\n')
    sys.stdout.flush()
    for line in sys.stdin:
        asked = json.loads(line)
        number = 0
        try:
            descriptor = os.open(asked["path"], os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.write(descriptor, asked["text"].encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            number = error.errno or 5
        sys.stdout.write(json.dumps({"errno": number}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
