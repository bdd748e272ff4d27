"""Helper program that writes to files of the kernel: one JSON line is one write, answered by one JSON line.

A separate program without imports of this package: a write to sysfs may block inside the kernel for hours, during which
neither signals nor time-outs reach its process. It ends when its pipe is closed.
"""

import json
import os
import sys


def main() -> None:
    """Answer each ``{"path": ..., "text": ...}`` with ``{"errno": NUMBER}``, which is 0 if the write succeeded.

    A first answer, before any request, says that the helper is ready.
    """
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
