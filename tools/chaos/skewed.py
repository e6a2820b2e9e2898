"""A worker whose clock jumps: SIGUSR1 puts it 1.5 seconds forward, SIGUSR2 back."""

import signal

from tests.acceptance.programs import worker
from tests.acceptance.programs.jumpy import JumpyClock

JUMP = 1_500_000  # microseconds

if __name__ == "__main__":
    clock = JumpyClock()
    signal.signal(signal.SIGUSR1, lambda number, frame: clock.jump(JUMP))
    signal.signal(signal.SIGUSR2, lambda number, frame: clock.jump(-JUMP))
    worker.main(clock=clock)
