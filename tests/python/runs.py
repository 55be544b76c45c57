"""Runs of the built programs, for tests in Python. The script's first argument is the folder with varuna and varuna-worker."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

BINARIES = pathlib.Path(sys.argv[1]).resolve()
ROOT = pathlib.Path(__file__).resolve().parents[2]
PATIENCE_S = 300


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=PATIENCE_S)
    if done.returncode != 0:
        sys.exit(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def varuna(*arguments):
    return run(BINARIES / "varuna", *arguments)


def metrics(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def wait_for(what, process, condition):
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        if process.poll() is not None:
            sys.exit(f"the run ended with {process.returncode} before {what}")
        time.sleep(0.05)
    sys.exit(f"no {what} within {PATIENCE_S} s")


def status(folder):
    done = subprocess.run([BINARIES / "varuna", "status", folder, "--json"], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else {"step": 0, "workers": []}


def train_through_changes(job, run_folder, steps):
    """Four workers; one is killed, one joins. Returns the records of all steps."""
    log_file = run_folder.with_suffix(".log")
    with open(log_file, "w") as log:
        process = subprocess.Popen([BINARIES / "varuna", "run", job, "--workers", "4", "--run-dir", run_folder], stdout=log, stderr=log)
    try:
        def in_the_middle():
            found = status(run_folder)
            return found if found["step"] >= steps // 3 and found["workers"] else None

        found = wait_for("a third of the steps", process, in_the_middle)
        os.kill(found["workers"][0]["pid"], signal.SIGKILL)
        wait_for("two thirds", process, lambda: status(run_folder)["step"] >= 2 * steps // 3)
        varuna("scale", run_folder, 4)
        if process.wait(PATIENCE_S) != 0:
            sys.exit(log_file.read_text())
    finally:
        process.kill()
    recoveries = (run_folder / "events.jsonl").read_text().count('"workerLost"')
    assert recoveries >= 1, "no worker was lost"
    return metrics(run_folder)
