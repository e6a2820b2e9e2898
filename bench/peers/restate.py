"""Restate: its own server (from npm) with its own store, and a Python service beside it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import restate

from bench.peers import protocol as p
from bench.peers.children import free_port, limited, server

AT_ONCE = p.CONCURRENCY  # connections to its ingress
service = restate.Service("bench")


def noop() -> int:
    return 1


@service.handler()
async def steps(ctx: restate.Context, count: int) -> int:
    for number in range(count):
        await ctx.run_typed(f"step-{number}", noop)
    return count


@service.handler()
async def fan(ctx: restate.Context, width: int) -> int:
    calls = [ctx.service_call(steps, arg=1) for _ in range(width)]
    return len(await restate.gather(*calls))


@service.handler()
async def late(ctx: restate.Context, sent: float) -> float:
    return await ctx.run_typed("stamp", lambda: time.time() - sent)


app = restate.app([service])


class Ingress:
    """Calls of the service over a few connections that stay open."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def call(self, handler: str, argument: Any) -> Any:
        body = json.dumps(argument)
        return await self._ask(f"POST /bench/{handler}", "Content-Type: application/json\r\n", body)

    async def attach(self, invocation: str) -> Any:
        return await self._ask(f"GET /restate/invocation/{invocation}/attach", "", "")

    async def _ask(self, what: str, header: str, body: str) -> Any:
        reader, writer = (
            self.free.pop() if self.free else await asyncio.open_connection("127.0.0.1", self.port)
        )
        head = f"{what} HTTP/1.1\r\nHost: localhost\r\n{header}Content-Length: {len(body)}\r\n\r\n"
        writer.write(f"{head}{body}".encode())
        answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(answer.partition("content-length:")[2].split()[0])
        found = await reader.readexactly(length)
        if " 200 " not in answer.splitlines()[0] and " 202 " not in answer.splitlines()[0]:
            raise RuntimeError(found.decode())
        self.free.append((reader, writer))
        return json.loads(found)


def binary() -> Path:
    root = Path(sys.executable).parents[1] / "npm" / "node_modules" / "@restatedev"
    for found in root.glob("restate-server-*/bin/restate-server"):
        return found
    raise p.Missing("its npm package has no server for this machine")


Work = Callable[[Ingress], Awaitable[list[p.Figure]]]


def measured(work: Work) -> Callable[[str], list[p.Figure]]:
    def main(url: str) -> list[p.Figure]:
        ingress, admin, node, own = (free_port() for _ in range(4))
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            settings = {
                "RESTATE_BASE_DIR": folder,
                "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
                "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
                "RESTATE_BIND_ADDRESS": f"127.0.0.1:{node}",
                "RESTATE_LISTEN_MODE": "tcp",
                "RESTATE_DISABLE_TELEMETRY": "true",
            }
            p.is_a_server(stack.enter_context(server([str(binary())], admin, settings)))
            hypercorn = [sys.executable, "-m", "hypercorn", "bench.peers.restate:app"]
            stack.enter_context(server([*hypercorn, "--bind", f"127.0.0.1:{own}"], own, dict(os.environ)))
            _register(admin, own)
            return asyncio.run(_warm(Ingress(ingress), work))

    return main


async def _warm(ingress: Ingress, work: Work) -> list[p.Figure]:
    await ingress.call("steps", 1)
    return await work(ingress)


def _register(admin: int, own: int) -> None:
    body = json.dumps({"uri": f"http://127.0.0.1:{own}"}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{admin}/deployments", body, {"Content-Type": "application/json"}
    )
    until = time.monotonic() + timedelta(seconds=30).total_seconds()
    while True:
        try:
            with urllib.request.urlopen(request):
                return
        except OSError:  # it answers before it is ready
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


async def many_steps(ingress: Ingress) -> list[p.Figure]:
    with p.window() as seen:
        await limited(p.RUNS, lambda _: ingress.call("steps", p.STEPS), AT_ONCE)
    return [p.rate("steps", p.RUNS * p.STEPS, seen, "requests with an answer")]


async def runs(ingress: Ingress) -> list[p.Figure]:
    count = p.MANY // 2
    with p.window() as seen:
        await limited(count, lambda _: ingress.call("steps", 1), AT_ONCE)
    return [
        p.rate("runs", count, seen, f"{count} requests with an answer, {AT_ONCE} at a time: no bulk call")
    ]


async def singles(ingress: Ingress) -> list[p.Figure]:
    """Accepted one after the other; the caller comes back for the results."""
    with p.window() as seen:
        sent = [await ingress.call("steps/send", 1) for _ in range(p.SINGLES)]
        await limited(len(sent), lambda number: ingress.attach(sent[number]["invocationId"]), 50)
    return [p.rate("singles", p.SINGLES, seen)]


async def sequence(ingress: Ingress) -> list[p.Figure]:
    with p.window() as seen:
        await ingress.call("steps", p.SEQUENCE)
    return [p.rate("sequence", p.SEQUENCE, seen)]


async def fan_out(ingress: Ingress) -> list[p.Figure]:
    with p.window() as seen:
        await ingress.call("fan", p.WIDTH)
    return [p.taken("fan-out", p.WIDTH, seen, "calls of a service")]


async def idle_latency(ingress: Ingress) -> list[p.Figure]:
    found = []
    for _ in range(p.SAMPLES):
        await asyncio.sleep(0.01)
        found.append(await ingress.call("late", time.time()) * 1000)
    title, unit, better = p.TITLES["latency-same"]
    absent = p.Figure(title, None, unit, better, note="its server is a process of its own")
    return [absent, p.latencies("latency-other", found)]


async def idle(ingress: Ingress) -> list[p.Figure]:
    return await asyncio.to_thread(p.idle)


if __name__ == "__main__":
    shapes: dict[str, Work] = {
        "steps": many_steps,
        "sequence": sequence,
        "runs": runs,
        "singles": singles,
        "fan-out": fan_out,
        "latency": idle_latency,
        "idle": idle,
    }
    p.serve(
        {name: measured(shape) for name, shape in shapes.items()}
        | {"import": lambda _: p.import_time("restate")},
        {"limits": "not measured: a virtual object would execute one call per key at a time"},
    )
