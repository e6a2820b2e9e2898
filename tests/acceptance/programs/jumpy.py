"""A worker whose clock jumps: SIGUSR1 puts it an hour forward, SIGUSR2 an hour back."""

import signal

from detent.clock import SystemClock

from . import worker

HOUR = 3_600_000_000  # microseconds


class JumpyClock(SystemClock):
    def __init__(self) -> None:
        self.offset = 0

    def now(self) -> int:
        return super().now() + self.offset

    def jump(self, by: int) -> None:
        self.offset += by


if __name__ == "__main__":
    clock = JumpyClock()
    signal.signal(signal.SIGUSR1, lambda number, frame: clock.jump(HOUR))
    signal.signal(signal.SIGUSR2, lambda number, frame: clock.jump(-HOUR))
    worker.main(clock=clock)
