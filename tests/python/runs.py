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


def wait_for(what, process, log_file, condition):
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        if process.poll() is not None:
            sys.exit(f"the run ended with {process.returncode} before {what}:\n{log_file.read_text()}")
        time.sleep(0.05)
    sys.exit(f"no {what} within {PATIENCE_S} s:\n{log_file.read_text()}")


def status(folder):
    done = subprocess.run([BINARIES / "varuna", "status", folder, "--json"], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else {"step": 0, "workers": []}


def names(folder, kind):
    """Names of the workers of all events of a kind. The last line may be incomplete."""
    events = folder / "events.jsonl"
    lines = events.read_text().split("\n")[:-1] if events.exists() else []
    return {event["name"] for event in map(json.loads, lines) if event["event"] == kind}


def train_through_changes(job, run_folder, steps):
    """Trains with four workers, of which one is killed; another one joins. Returns the records of all steps."""
    log_file = run_folder.with_suffix(".log")
    with open(log_file, "w") as log:
        process = subprocess.Popen([BINARIES / "varuna", "run", job, "--workers", "4", "--run-dir", run_folder], stdout=log, stderr=log)
    try:
        def under_way():
            found = status(run_folder)
            return found if found["step"] >= steps // 6 and found["workers"] else None

        # Early in the run, so that the new worker has steps to train.
        found = wait_for("a sixth of the steps", process, log_file, under_way)
        os.kill(found["workers"][0]["pid"], signal.SIGKILL)
        wait_for("the loss of a worker", process, log_file, lambda: names(run_folder, "workerLost"))
        varuna("scale", run_folder, 4)
        if process.wait(PATIENCE_S) != 0:
            sys.exit(log_file.read_text())
    finally:
        process.kill()
        process.wait()
    joined = names(run_folder, "workerJoined")
    assert len(joined) >= 5, f"no worker came for the one that was lost: {joined}"
    return metrics(run_folder)
