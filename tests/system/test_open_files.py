"""How many files a process may have open."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from stellwerk.system.machine import allow_open_files, open_files_max
soft, hard, wanted = (int(text) for text in sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
allow_open_files(wanted)
print(open_files_max(), resource.getrlimit(resource.RLIMIT_NOFILE)[1])
"""


@pytest.mark.parametrize(
    "soft, hard, wanted, allowed",
    [(100, 400, 300, 300), (100, 400, 9_000, 400), (300, 400, 200, 300), (400, 400, 500, 400)],
)
def test_the_limit_is_raised_as_far_as_the_system_lets_it_and_never_lowered(
    soft: int, hard: int, wanted: int, allowed: int
) -> None:
    command = [sys.executable, "-c", PROGRAM, str(soft), str(hard), str(wanted)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.split() == [str(allowed), str(hard)]
