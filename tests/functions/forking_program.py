"""A program that forks while its app is open; `python -m tests.functions.forking_program URL WAY`."""

import json
import os
import sys
import time
from datetime import timedelta

import detent
from tests.functions.test_forked_processes import doubled, session, worker_id
from tests.functions.world import result


def main(url: str, way: str) -> None:
    lease = timedelta(seconds=60)
    with detent.App(url, include=[doubled], migrate=True, lease=lease, concurrency=4) as app:
        results = [result(app.start(doubled, 1))]
        before = session(app), worker_id(app)
        pid = os.fork()
        if pid == 0:
            child(app, way)
            return
        if way == "orphan":
            print(json.dumps({"child": pid, "worker": worker_id(app)}), flush=True)
            time.sleep(600)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        results.append(result(app.start(doubled, 2)))
        time.sleep(2)
        results.append(result(app.start(doubled, 3)))
        after = session(app), worker_id(app)
    told = {
        "session": [before[0], after[0]],
        "worker": [before[1], after[1]],
        "results": results,
        "code": code,
    }
    print(json.dumps(told), flush=True)


def child(app: detent.App, way: str) -> None:
    """Use the app, and end so."""
    if way == "orphan":
        time.sleep(600)
    assert result(app.start(doubled, 10)) == 20
    if way == "exit":
        sys.exit(3)
    if way == "raise":
        raise ValueError("the child fails")
    if way == "_exit":
        os._exit(5)


if __name__ == "__main__":
    main(*sys.argv[1:])
