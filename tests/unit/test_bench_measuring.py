"""One measurement, by processes that behave and by processes that do not."""

import os
import sys
import time
from pathlib import Path

import pytest

from bench.measuring import Answer, Failed, measure

HEAD = "import os, subprocess, sys, time\nfrom bench.peers import protocol as p\n"


def run(folder: Path, code: str, limit: float = 60.0) -> Answer:
    """Measure what this code does; `own` needs no database."""
    script = folder / "adapter.py"
    script.write_text(HEAD + code)
    return measure([sys.executable, str(script)], "steps", "own", limit)


def test_noise_between_the_lines_of_the_protocol_does_no_harm(tmp_path: Path) -> None:
    code = """
def steps(url):
    print("hello", end="")
    with p.window() as seen:
        print("@ben")
    return [p.rate("steps", 100, seen)]
p.serve({"steps": steps})
"""
    (figure,) = run(tmp_path, code).figures
    assert (figure.shape, figure.unit, figure.units) == ("500 x 5 steps", "steps/s", 100)
    assert figure.value is not None


def test_cpu_of_children_is_counted_and_servers_apart(tmp_path: Path) -> None:
    code = """
burn = "import time\\nwhile time.process_time() < 0.3: pass\\nprint(1, flush=True); time.sleep(60)"
def steps(url):
    with p.window() as seen:
        argv = [sys.executable, "-c", burn]
        client, server = (subprocess.Popen(argv, stdout=subprocess.PIPE) for _ in range(2))
        p.is_a_server(server.pid)
        client.stdout.readline(), server.stdout.readline()
    return [p.rate("steps", 1, seen)]
p.serve({"steps": steps})
"""
    (figure,) = run(tmp_path, code).figures
    assert figure.cpu_client is not None
    assert figure.cpu_client >= 0.25
    assert figure.cpu_server is not None
    assert figure.cpu_server >= 0.25
    assert figure.cpu_ms == pytest.approx(1000 * (figure.cpu_client + figure.cpu_server))


def test_a_shape_that_a_system_does_not_have_is_reported_with_its_reason(tmp_path: Path) -> None:
    assert run(tmp_path, 'p.serve({}, {"steps": "a plain queue"})').missing == "a plain queue"


def test_a_process_that_dies_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="ended with 1: ValueError: no such thing"):
        run(tmp_path, 'raise ValueError("no such thing")')


def test_a_process_that_hangs_is_ended_with_all_that_it_has_started(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = f"""
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
open({str(pid_file)!r}, "w").write(str(child.pid))
time.sleep(3600)
"""
    with pytest.raises(Failed, match="not done within 3 s"):
        run(tmp_path, code, limit=3.0)
    child = int(pid_file.read_text())
    until = time.monotonic() + 30
    while _lives(child) and time.monotonic() < until:
        time.sleep(0.01)
    assert not _lives(child)


def _lives(pid: int) -> bool:
    """A child whose parent has gone may stay a zombie until somebody collects it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return os.path.exists(f"/proc/{pid}")
