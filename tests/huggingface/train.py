"""`make test-hf`: a Qwen is trained on packed documents while workers are killed and join. transformers computes the same results with it, and its training is continued.

train.py BINARIES: the folder with varuna and varuna-worker. Nothing is downloaded.
"""

import gzip
import json
import math
import os
import pathlib
import shutil
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "python"))
from runs import ROOT, metrics, train_through_changes, varuna

LENGTH, STEPS, END = 64, 120, 256
# Values in the imported folder: a space as the end of a text, which differs from the default for this vocabulary and occurs soon in every text; how the tokenizer
# spells a space; and samples that are longer than those in training.
SPACE, SPELLED, LONGER = 32, "\u0120", 256
PROMPT = "And the LORD said unto "
WINDOWS = 32

JOB = """
apiVersion: varuna.dev/v1alpha1
kind: VarunaJob
metadata: {{name: {name}}}
spec:
  model: {{preset: qwen3-tiny, layers: 3, sequenceLength: {length}, vocabularySize: 257}}
  data:
    path: {folder}/data-train
    validationPath: {folder}/data-validation
    packing: {{blockMask: true, resetPositions: true, maskLoss: true}}
  training:
    globalBatchSize: 16
    microBatchSize: 2
    steps: {steps}
    seed: 5
    optimizer: {{learningRate: {rate}, warmupSteps: {warmup}}}
  pipeline: {{minDepth: 2}}
  elasticity: {{minWorkers: 2, maxWorkers: 5}}
  workers: {{threads: 1}}
  checkpoint: {{uri: {folder}/store, intervalSteps: 40{origin}}}
"""


def build(folder):
    """Builds a dataset from lines of JSON, with documents that are shorter than a sample."""
    text = gzip.decompress((ROOT / "examples/data/text/kjv.txt.gz").read_bytes()).decode()
    lines = [line for line in text.splitlines() if line.strip()][:6000]
    documents = [" ".join(lines[i : i + 1 + i % 2]) for i in range(0, len(lines), 2)]
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": d}) + "\n" for d in documents))
    varuna("data", "build", "--tokenizer", "byte", "--split", "95,5,0", "--output", folder / "data", folder / "text.jsonl")


def job(folder, name, steps, rate, origin=""):
    path = folder / f"{name}.yaml"
    path.write_text(JOB.format(name=name, folder=folder, length=LENGTH, steps=steps, rate=rate, warmup=min(10, steps), origin=origin))
    return path


def documents(prefix):
    """Reads a dataset in Megatron's format: its tokens, and where documents begin."""
    index = prefix.with_suffix(".idx").read_bytes()
    assert index[:9] == b"MMIDIDX\0\0" and index[17] == 8, "16-bit tokens"
    sequences, entries = numpy.frombuffer(index, "<u8", 2, 18)
    pointers = numpy.frombuffer(index, "<i8", int(sequences), 34 + 4 * int(sequences))
    firsts = numpy.frombuffer(index, "<i8", int(entries), 34 + 12 * int(sequences))
    begins = {int(pointers[first]) // 2 for first in firsts if first < sequences}
    return numpy.fromfile(prefix.with_suffix(".bin"), "<u2").astype(numpy.int64), begins


def unpacked_loss(model, prefix):
    """The mean loss over the targets of some windows, in which each document is separate."""
    tokens, begins = documents(prefix)
    total, count = 0.0, 0
    for window in range(WINDOWS):
        first, end = window * LENGTH, window * LENGTH + LENGTH + 1
        cuts = [first, *(b for b in range(first + 1, end) if b in begins), end]
        for begin, after in zip(cuts, cuts[1:]):
            piece = torch.from_numpy(tokens[begin:after])
            if len(piece) > 1:
                with torch.no_grad():
                    logits = model(piece[None, :-1]).logits[0]
                total += torch.nn.functional.cross_entropy(logits, piece[1:], reduction="sum").item()
                count += len(piece) - 1
    return total / count, count


def check_loss(model, folder, store, *more):
    options = ["--whole", "--block-mask", "--reset-positions", "--mask-loss", "--device", "cpu", "--batch", 8, "--steps", WINDOWS // 8, "--json", *more]
    ours = json.loads(varuna("evaluate", store, folder / "data-validation", *options))
    loss, count = unpacked_loss(model, folder / "data-validation")
    difference = abs(ours["loss"] - loss) / loss
    print(f"  loss of {count} targets: {ours['loss']:.6f} packed, {loss:.6f} document by document by transformers", flush=True)
    assert ours["tokens"] == count < WINDOWS * LENGTH, (ours, count)
    return loss, difference


def check_text(model, folder, store):
    prompt = AutoTokenizer.from_pretrained(folder / "out")(PROMPT, return_tensors="pt").input_ids
    with torch.no_grad():
        made = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=32, pad_token_id=END)
    expected = [token for token in made[0, prompt.shape[1] :].tolist() if token != END]
    ours = json.loads(varuna("generate", store, "--device", "cpu", "--prompt", PROMPT, "--max-tokens", 32, "--temperature", 0, "--json"))
    assert ours["tokens"] == expected, (ours, expected)
    print(f"  the same {len(expected)} tokens greedily: {PROMPT + ours['text']!r}", flush=True)


def change(path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def publish(model, folder):
    """Saves a model with a tokenizer and an unusual end-of-text token."""
    model.save_pretrained(folder / "in")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / "out" / name, folder / "in")
    change(folder / "in/config.json", eos_token_id=SPACE, max_position_embeddings=LONGER)
    change(folder / "in/generation_config.json", eos_token_id=SPACE)
    change(folder / "in/tokenizer_config.json", eos_token=SPELLED)


def check_end(folder, store):
    """The continued job is exported with the tokenizer of the import with which it began, and its texts end with the same token."""
    varuna("checkpoint", "export", store, folder / "more-out")
    tokenizer = AutoTokenizer.from_pretrained(folder / "more-out")
    model = AutoModelForCausalLM.from_pretrained(folder / "more-out").eval()
    assert tokenizer.eos_token_id == model.generation_config.eos_token_id == model.config.eos_token_id == SPACE, model.generation_config
    assert model.config.max_position_embeddings == LONGER, model.config
    prompt = tokenizer(PROMPT, return_tensors="pt").input_ids
    assert prompt[0].tolist() == list(PROMPT.encode()), prompt
    with torch.no_grad():
        made = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=32, pad_token_id=END)
    made = made[0, prompt.shape[1] :].tolist()
    assert made.index(SPACE) == len(made) - 1, made
    ours = json.loads(varuna("generate", store, "--device", "cpu", "--prompt", PROMPT, "--max-tokens", 32, "--temperature", 0, "--json"))
    assert (ours["tokens"], ours["end"]) == (made[:-1], "endOfDocument"), (ours, made)
    print(f"  texts of the continued job end with the same token as those of the import: {ours['text']!r}", flush=True)


def main():
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        build(folder)
        steps = train_through_changes(job(folder, "qwen", STEPS, 3e-3), folder / "run", STEPS)
        first, last = steps[0]["loss"], steps[-1]["loss"]
        print(f"  {STEPS} steps through a kill and a growth: loss {first:.3f} to {last:.3f}", flush=True)
        assert first > 0.9 * math.log(257) and last < 0.6 * first, (first, last)
        store = folder / "store" / "qwen"
        varuna("checkpoint", "export", store, folder / "out", "--tokenizer", folder / "data-train")
        model = AutoModelForCausalLM.from_pretrained(folder / "out").eval()
        loss, difference = check_loss(model, folder, store)
        check_text(model, folder, store)

        # A model that transformers has saved is imported, and its training is continued.
        publish(model, folder)
        varuna("checkpoint", "import", folder / "store", folder / "in", "--job", "base")
        difference = max(difference, check_loss(model, folder, folder / "store/base", "--sequence-length", LENGTH)[1])
        more = job(folder, "more", 5, 1e-4, ", from: {job: base, weightsOnly: true}")
        varuna("run", more, "--workers", 2, "--run-dir", folder / "more")
        losses = [step["loss"] for step in metrics(folder / "more")]
        print(f"  trained on from what transformers saved: losses {losses[0]:.3f} to {losses[-1]:.3f}", flush=True)
        assert all(abs(step - loss) < 0.25 * loss for step in losses), (losses, loss)
        check_end(folder, folder / "store/more")
    print(f"RESULT hf.packed_loss_difference {difference:.3g}")
    if not difference <= 1e-5:
        sys.exit(f"losses differ by {difference:.3g}; 1e-5 is allowed")


main()
