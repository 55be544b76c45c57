"""Phases of a long script: each has a time limit, says what went wrong, and does not keep the next from running."""

import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


class OutOfTime(BaseException):
    """Not an Exception, so that only a phase catches it."""


@contextmanager
def time_limit(seconds):
    """Raises OutOfTime in the block when its time is over."""

    def stop(*_):
        raise OutOfTime(f"not done within {seconds:.0f} s")

    if seconds < 1:
        stop()
    signal.signal(signal.SIGALRM, stop)
    signal.alarm(int(seconds))
    try:
        yield
    finally:
        signal.alarm(0)


@dataclass
class Bench:
    """One run of bench/gpu.py: on a GPU, or a dry run on the processor."""

    dry: bool
    # For files, until the end of the run.
    scratch: Path
    # When all phases must have ended, on the monotonic clock.
    end: float
    # Fewer rounds and smaller sizes where a start takes longer than what is measured.
    brief: bool = False
    failed: list = field(default_factory=list)

    @property
    def rounds(self):
        """How many of two rounds there is time for."""
        return 1 if self.dry or self.brief else 2

    @property
    def device(self):
        return "cpu" if self.dry else "cuda"

    def result(self, name, value):
        print(f"RESULT gpu.{'dry_run.' if self.dry else ''}{name} {value}", flush=True)

    def judge(self, name, value, bound):
        """A difference, which must be small."""
        self.result(name, f"{value:.2e}")
        # Not `value > bound`: what is not a number is no success.
        if not value <= bound:
            raise RuntimeError(f"{name} is {value:.2e}; at most {bound:.0e} is right")

    def phase(self, name, seconds, work):
        """Does some work within a time limit. What goes wrong is said and counted."""
        seconds = min(seconds, self.end - time.monotonic())
        print(f"== {name} (at most {seconds:.0f} s)", flush=True)
        start = time.monotonic()
        try:
            with time_limit(seconds):
                work(self)
        # Helpers of bench/common.py end with SystemExit.
        except (Exception, SystemExit, OutOfTime) as error:
            self.failed.append(name)
            print(f"FAILED {name}: {type(error).__name__}: {error}", flush=True)
        print(f"== {name}: {time.monotonic() - start:.0f} s", flush=True)
