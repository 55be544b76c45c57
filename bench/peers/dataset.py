"""Megatron's side of bench/dataset.py, with megatron-core's own tokenizer and builder.

dataset.py tokenizer SOURCE FOLDER: trains a byte-pair tokenizer of 32,000 tokens on the first of the documents.
dataset.py build SOURCE TOKENIZER PREFIX PROCESSES: prints the seconds that the documents took.
"""

import json
import multiprocessing
import os
import sys
import time
import warnings

warnings.filterwarnings("ignore")
# Each process has one thread of the tokenizer's own.
os.environ["TOKENIZERS_PARALLELISM"] = "false"

END = "<|endoftext|>"
SENTENCES = 5000
# Documents that a process gets at a time.
CHUNK = 32


def train(source, folder):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=32_000,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    with open(source) as lines:
        texts = [json.loads(line)["text"] for _, line in zip(range(SENTENCES), lines)]
    tokenizer.train_from_iterator(texts, trainer)
    os.makedirs(folder)
    tokenizer.save(f"{folder}/tokenizer.json")
    with open(f"{folder}/tokenizer_config.json", "w") as file:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END}, file)


class Encoder:
    """What each process does with a line."""

    tokenizer = None

    @classmethod
    def begin(cls, folder, barrier):
        from megatron.core.tokenizers.text.libraries.huggingface_tokenizer import HuggingFaceTokenizer

        cls.tokenizer = HuggingFaceTokenizer(folder, use_fast=True)
        cls.end = cls.tokenizer.tokenizer.convert_tokens_to_ids(END)
        barrier.wait()

    @classmethod
    def encode(cls, line):
        return [*cls.tokenizer.text_to_ids(json.loads(line)["text"]), cls.end]


def build(source, folder, prefix, processes):
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    barrier = multiprocessing.Barrier(processes + 1)
    with multiprocessing.Pool(processes, initializer=Encoder.begin, initargs=(folder, barrier)) as pool:
        barrier.wait()
        began = time.monotonic()
        with open(f"{folder}/tokenizer.json") as file:
            vocabulary = len(json.load(file)["model"]["vocab"])
        builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=DType.optimal_dtype(vocabulary))
        with open(source) as lines:
            for tokens in pool.imap(Encoder.encode, lines, CHUNK):
                builder.add_document(tokens, [len(tokens)])
        builder.finalize(f"{prefix}.idx")
        print(time.monotonic() - began)


if __name__ == "__main__":
    if sys.argv[1] == "tokenizer":
        train(*sys.argv[2:4])
    else:
        build(*sys.argv[2:5], int(sys.argv[5]))
