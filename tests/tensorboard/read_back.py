"""Lets TensorBoard itself read event files of Varuna: with its library, and with the server that a browser uses.

    read_back.py PROGRAM    PROGRAM FOLDER makes a run folder and prints its steps as a JSON list of [step, loss]
"""

import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

# Timeout, far longer than TensorBoard needs to start and to read a folder.
PATIENCE_S = 120


def by_library(folder):
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


def asked(address, page, **query):
    url = f"{address}data/plugin/scalars/{page}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        return json.load(answer)


def by_server(folder, reader, log):
    """The values that the server shows. It reads with the library or with a separate program (`--load_fast`)."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port", "0", "--host", "127.0.0.1"]
    command += ["--load_fast", reader, "--samples_per_plugin", "scalars=100000"]
    with open(log, "w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        end, address = time.monotonic() + PATIENCE_S, None
        while time.monotonic() < end:
            found = re.search(r"http://\S+", pathlib.Path(log).read_text())
            address = found and found.group(0)
            # The folder is read in the background.
            if address and (runs := asked(address, "tags")):
                run, tags = next(iter(runs.items()))
                values = {tag: asked(address, "scalars", run=run, tag=tag) for tag in tags}
                shown = values.get("loss/training")
                if shown and shown[-1][1] == 120:
                    return {tag: [(step, value) for _, step, value in points] for tag, points in values.items()}
            if server.poll() is not None:
                break
            time.sleep(0.1)
        sys.exit(f"TensorBoard ({reader}) did not show the folder:\n{pathlib.Path(log).read_text()}")
    finally:
        server.kill()
        server.wait()


def compare(who, shown, steps):
    points = shown["loss/training"]
    assert [step for step, _ in points] == [step for step, _ in steps], (who, points)
    for (_, value), (step, loss) in zip(points, steps):
        assert math.isclose(value, loss, rel_tol=1e-6), (who, step, value, loss)
    evaluated = [step for step, _ in shown["loss/evaluation"]]
    assert evaluated == [step for step, _ in steps if step % 10 == 0], (who, evaluated)
    # A value of 0 must be shown, too.
    assert all(value == 0 for _, value in shown["speed/mfu"]) and len(shown["speed/mfu"]) == len(steps), who
    print(f"{who}: {len(points)} steps, {len(shown)} tags", flush=True)


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as temp:
        run = pathlib.Path(temp) / "run"
        steps = json.loads(subprocess.run([program, run], check=True, stdout=subprocess.PIPE).stdout)
        assert len(steps) == 120, len(steps)
        folder = run / "tensorboard"
        compare("library", by_library(folder), steps)
        for reader in ["false", "true"]:
            name = {"false": "server", "true": "server with its own reader"}[reader]
            compare(name, by_server(folder, reader, pathlib.Path(temp) / reader), steps)


main()
