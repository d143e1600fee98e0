"""A child process. Its output is recorded, tests can wait for a line of it, and it never outlives the test run."""

import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

from harness.disks import slow_disk
from harness.patience import PATIENCE

started = []
"""Children that run, and those that have ended since `forget_ended`: who speaks for a test that fails."""


def forget_ended():
    started[:] = [child for child in started if child.running()]


class Child:
    """`logs` is a directory for the process's own log files. `stderr` is a file that receives standard error, which is then
    not part of the recorded output."""

    def __init__(self, argv, log: Path, env=None, cwd=None, stdin=None, logs=None, pass_fds=(), stderr=subprocess.STDOUT):
        self.log = log
        self.logs = logs
        self.lines = []
        self.ended = False
        self.changed = threading.Condition()
        # setpriv kills the child when the test run ends, even if the run itself is killed.
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *map(str, argv)],
            env=env,
            cwd=cwd,
            stdin=stdin or subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            errors="replace",
            # Ctrl-C goes to pytest only, which then stops its children in order.
            start_new_session=True,
            pass_fds=pass_fds,
        )
        # Open the log here: the child may exit, and its directory may be removed, before the thread runs.
        self.reader = threading.Thread(target=self._read, args=[self.log.open("w")], daemon=True)
        self.reader.start()
        started.append(self)

    @property
    def pid(self):
        return self.process.pid

    def _read(self, log):
        with log:
            for line in self.process.stdout:
                log.write(line)
                log.flush()
                with self.changed:
                    self.lines.append(line.rstrip("\n"))
                    self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def wait_line(self, pattern, seconds=PATIENCE, behind=0):
        """Waits for the first line that matches the pattern; returns the match. Fails if the output ends first. Skips the
        first `behind` lines, the ones that existed before."""
        deadline = time.monotonic() + seconds
        seen = behind
        with self.changed:
            while True:
                for line in self.lines[seen:]:
                    if match := re.search(pattern, line):
                        return match
                seen = len(self.lines)
                left = deadline - time.monotonic()
                if self.ended or left <= 0:
                    problem = "ended" if self.ended else f"has not come within {seconds} s"
                    raise AssertionError(f"waiting for a line like {pattern!r}: {problem}\n{self.tail()}")
                self.changed.wait(left)

    def running(self):
        return self.process.poll() is None

    def send(self, number):
        self.process.send_signal(number)

    def wait(self, seconds=PATIENCE):
        """Waits for the exit code; kills a child that does not exit, and fails the test."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"process {self.pid} still ran after {seconds} s\n{self.tail()}") from None
        self.reader.join(PATIENCE)
        return code

    def stop(self, number=signal.SIGTERM, seconds=PATIENCE):
        """Sends the stop signal and returns the exit code."""
        if self.running():
            self.send(number)
        return self.wait(seconds)

    def kill(self):
        if self.running():
            self.process.kill()
        self.process.wait()

    def output(self):
        return "\n".join(self.lines)

    def tail(self, count=40):
        return f"the end of {self.log.name}:\n{self.last_lines(count)}"

    def said(self):
        """The amount of output so far; it never decreases."""
        return len(self.lines) + sum(log.stat().st_size for log in self.own_logs())

    def own_logs(self):
        return list(self.logs.glob("*.log")) if self.logs else []

    def last_lines(self, count=40):
        """The last lines of the largest non-empty log file of the process, otherwise of its output."""
        logs = sorted(self.own_logs(), key=lambda log: log.stat().st_size)
        kept = logs[-1].read_text(errors="replace").splitlines() if logs else []
        return "\n".join((kept or self.lines)[-count:])


def resident_bytes(pid):
    """Resident memory of a process (VmRSS)."""
    return _status_kibibytes(pid, "VmRSS") * 1024


def peak_resident_bytes(pid):
    """Peak resident memory of a process since its start or the last `reset_peak_memory` (VmHWM)."""
    return _status_kibibytes(pid, "VmHWM") * 1024


def peak_reserved_bytes(pid):
    """Peak virtual memory of a process since its start (VmPeak), used or not."""
    return _status_kibibytes(pid, "VmPeak") * 1024


def _status_kibibytes(pid, key):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1])
    raise AssertionError(f"no {key} of process {pid}")


def clean_environment(**additions):
    """A minimal environment, so that the developer's settings do not affect the tests."""
    kept = {key: os.environ[key] for key in ("PATH", "LANG", "TMPDIR", "RUST_BACKTRACE", "LLVM_PROFILE_FILE") if key in os.environ}
    return kept | {"LANG": kept.get("LANG", "C.UTF-8")} | slow_disk() | additions
