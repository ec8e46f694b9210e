"""A controller that is told to end as soon as it has said that it serves ends in order."""

import os
import subprocess
import sys

SCRIPT = """
import os, signal, sys
from headrace.controller import server

ready, write = int(sys.argv[1]), os.write

def write_and_be_told(descriptor, data):
    count = write(descriptor, data)
    if descriptor == ready:
        os.kill(os.getpid(), signal.SIGTERM)
    return count

os.write = write_and_be_told
sys.exit(server.main(["--listen", "insecure-tcp:localhost:0", "--ready-fd", str(ready)]))
"""


def test_a_signal_during_the_word_of_serving_ends_in_order() -> None:
    read_end, write_end = os.pipe()
    try:
        ended = subprocess.run([sys.executable, "-c", SCRIPT, str(write_end)], pass_fds=[write_end], timeout=300)
        assert os.read(read_end, 100).startswith(b"insecure-tcp:")
    finally:
        os.close(read_end)
        os.close(write_end)
    assert ended.returncode == 0
