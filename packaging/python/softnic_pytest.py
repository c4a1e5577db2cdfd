"""The software NIC for pytest: a fixture `softnic` that starts programs on a fabric of its own and tells what their NICs counted.

    def test_writes_arrive(softnic):
        server = softnic.start("ib_write_bw", "-n", "100")
        softnic.run_until("ib_write_bw", "-n", "100", "127.0.0.1")
        server.wait()
        assert softnic.counters("messages_received") > 0
        softnic.assert_clean()

Options of `softnic run` are keywords of the fixture's methods: `softnic.start(..., model="cx7", rate_gbps=10)`.
"""

import json
import os
import signal
import subprocess
import time
import uuid

import pytest

from softnic import executable

# Beginnings of the names of counters that an unimpaired run of a correct program leaves at 0; a queue that is taken down flushes.
FAULTS = ("error_", "injected_", "lost_", "doorbell_", "doorbells_stray", "cq_overruns")
NO_FAULTS = ("error_flush",)


class Failed(AssertionError):
    """A program on the fabric ended with an error, or did not end."""


class Program:
    """A program that runs on the fabric."""

    def __init__(self, words, process):
        self.words = words
        self.process = process

    def wait(self, timeout=60):
        """Waits for the end: what it wrote. Raises `Failed` with that if its exit code is not 0, or it does not end in time."""
        try:
            said, _ = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            said = self.kill()
            raise Failed(f"{' '.join(self.words)} has not ended within {timeout} s:\n{said}") from None
        if self.process.returncode != 0:
            raise Failed(f"{' '.join(self.words)} ended with {self.process.returncode}:\n{said}")
        return said

    def kill(self):
        """Kills the program and all that it started: what it wrote, if its end is seen."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        try:
            return self.process.communicate(timeout=10)[0]
        except subprocess.TimeoutExpired:
            return "(something that it started still holds its output)"


class Fabric:
    """Programs that reach each other, and no others, through software NICs."""

    def __init__(self, folder):
        self.name = f"pytest-{uuid.uuid4().hex[:12]}"
        self.stats = os.path.join(folder, "softnic-stats.jsonl")
        self.programs = []

    def start(self, *words, env=None, **options):
        """Starts a program on a NIC: a `Program`. `options`: those of `softnic run`, with `_` for `-`."""
        command = [executable(), "run", "--fabric", self.name, "--stats", self.stats]
        for name, value in options.items():
            command.append("--" + name.replace("_", "-"))
            if value is not True:
                command.append(str(value))
        words = [str(word) for word in words]
        environment = None if env is None else {**os.environ, **env}
        process = subprocess.Popen(
            [*command, "--", *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        program = Program(words, process)
        self.programs.append(program)
        return program

    def run(self, *words, timeout=60, env=None, **options):
        """Runs a program to its end: what it wrote. Raises `Failed`."""
        return self.start(*words, env=env, **options).wait(timeout)

    def run_until(self, *words, timeout=60, env=None, **options):
        """Runs a client whose server may not listen yet: tries it again for `timeout` seconds."""
        until = time.monotonic() + timeout
        while True:
            try:
                return self.run(*words, timeout=timeout, env=env, **options)
            except Failed:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def lines(self):
        """What the NICs of ended processes have counted, one dictionary each. A process that a signal ended leaves none."""
        try:
            with open(self.stats, encoding="utf-8") as file:
                return [json.loads(line) for line in file]
        except FileNotFoundError:
            return []

    def counters(self, name):
        """A counter's sum over all processes that have ended. Raises `KeyError`: no NIC has such a counter."""
        lines = [line["counters"] for line in self.lines()]
        if not any(name in line for line in lines):
            raise KeyError(f"{name}: in none of {len(lines)} lines of counters")
        return sum(line.get(name, 0) for line in lines)

    def assert_clean(self):
        """Asserts that no NIC counted a fault: an error CQE, a wrong doorbell, anything lost or injected."""
        lines = self.lines()
        assert lines, "no program with a NIC has ended yet"
        for line in lines:
            counted = line["counters"].items()
            faults = {name: count for name, count in counted if count and name.startswith(FAULTS) and name not in NO_FAULTS}
            assert not faults, f"process {line['pid']} ({line['comm']}): {faults}"

    def end(self):
        """Kills what still runs."""
        for program in self.programs:
            if program.process.poll() is None:
                program.kill()


@pytest.fixture
def softnic(tmp_path):
    """A fabric of software NICs for one test."""
    fabric = Fabric(str(tmp_path))
    yield fabric
    fabric.end()
