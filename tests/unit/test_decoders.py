"""Decoders of msgspec are made by one thread at a time: two at once would crash the process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "detent"

# Six threads decode to a class that msgspec has not seen, a hundred times.  With msgspec alone, the process
# ends by a segmentation fault in the first few rounds.
PROGRAM = """
import sys, threading, types, msgspec
from detent.serialization import decoders
from detent.serialization.codec import Codec

sys.setswitchinterval(1e-6)
HOW = {"own": lambda text, cls: decoders.decode(text, cls), "codec": Codec().decode}[sys.argv[1]]
TEXT = '{"nodes": [{"b0": [{"a1": 3}]}], "other": {"x": {"a2": 1}}}'

def module(number):
    made = types.ModuleType(f"made{number}")
    made.msgspec, sys.modules[made.__name__] = msgspec, made
    leaf = "".join(f"    a{i}: 'int | None' = None\\n" for i in range(12))
    node = "".join(f"    b{i}: 'list[Leaf]' = []\\n" for i in range(12))
    exec(f"class Leaf(msgspec.Struct):\\n{leaf}", made.__dict__)
    exec(f"class Node(msgspec.Struct):\\n{node}", made.__dict__)
    exec("class Doc(msgspec.Struct):\\n    nodes: 'list[Node]'\\n    other: 'dict[str, Leaf]'", made.__dict__)
    return made

def decode(gate, cls, found):
    gate.wait()
    found.append(HOW(TEXT, cls).other["x"].a2)

for number in range(100):
    made, gate, found = module(number), threading.Barrier(6), []
    threads = [threading.Thread(target=decode, args=(gate, made.Doc, found)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 6
"""


def test_threads_may_decode_to_the_same_new_class_at_once() -> None:
    for how in ("own", "codec"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]


def test_no_other_code_lets_msgspec_look_at_a_class() -> None:
    # Types that have no classes with fields in them are harmless, and so is what forms.py has looked at.
    looks = re.compile(
        r"msgspec\.json\.(?:decode\(.*type=(?!list\[str\]|dict\[str, )|Decoder\((?!\)|list\[tuple\[str))"
    )
    found = [
        f"{path.relative_to(SOURCE)}:{number}"
        for path in SOURCE.rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if (looks.search(line) or "msgspec.convert(" in line) and path.name not in ("decoders.py", "forms.py")
    ]
    assert found == []
