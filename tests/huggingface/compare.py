"""`make test-hf`: small random models of each family are converted from transformers to Varuna and back, and both compute the same results.

compare.py BINARIES: the folder with varuna and varuna-worker. Nothing is downloaded and nothing is trained.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

# Set before transformers is imported: otherwise it asks its server for files that a folder does not have.
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.utils import logging

BINARIES = pathlib.Path(sys.argv[1]).resolve()
# Allowed difference of logits in single precision. Those of these models are a few units large.
ALLOWED = 1e-4
# The vocabulary of the byte tokenizer, so that the output of a model is text.
VOCABULARY, END, LENGTH = 257, 256, 64
PROMPT = "In the beginning God created"
COMMON = dict(vocab_size=VOCABULARY, bos_token_id=END, eos_token_id=END)
LIKE_LLAMA = dict(
    **COMMON,
    hidden_size=48,
    intermediate_size=112,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=LENGTH,
    initializer_range=0.15,
)
# Scaled rotary angles. The samples are long enough that the scaling has an effect.
SCALED = dict(
    rope_type="llama3",
    rope_theta=500.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)


BERT = dict(
    vocab_size=VOCABULARY,
    hidden_size=48,
    intermediate_size=112,
    num_hidden_layers=3,
    num_attention_heads=4,
    max_position_embeddings=LENGTH,
    initializer_range=0.15,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


def models():
    """Name, model, and maximum size of its files."""
    gpt2 = dict(**COMMON, n_positions=LENGTH, n_embd=48, n_layer=3, n_head=4, initializer_range=0.15)
    yield "gpt2", GPT2LMHeadModel(GPT2Config(**gpt2)), "5GB"
    own = GPT2Config(**gpt2, n_inner=112, activation_function="gelu", layer_norm_epsilon=1e-3)
    yield "gpt2-own-mlp", GPT2LMHeadModel(own), "5GB"
    yield "llama", LlamaForCausalLM(LlamaConfig(**LIKE_LLAMA, tie_word_embeddings=False)), "100KB"
    yield "llama-scaled", LlamaForCausalLM(LlamaConfig(**LIKE_LLAMA, rope_parameters=SCALED, tie_word_embeddings=True)), "5GB"
    yield "qwen3", Qwen3ForCausalLM(Qwen3Config(**LIKE_LLAMA, head_dim=32, tie_word_embeddings=True)), "5GB"
    yield "bert", BertForMaskedLM(BertConfig(**BERT)), "100KB"
    yield "bert-untied", BertForMaskedLM(BertConfig(**BERT, hidden_act="gelu_new", tie_word_embeddings=False)), "5GB"


def run(*command, text=""):
    done = subprocess.run([str(c) for c in command], input=text, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def varuna(*arguments, **more):
    return run(BINARIES / "varuna", *arguments, **more)


def logits_of(model, tokens):
    with torch.no_grad():
        return model(tokens).logits.float().numpy()


def difference(name, ours, theirs):
    worst, largest = float(abs(ours - theirs).max()), float(abs(theirs).max())
    print(f"  {name}: logits differ by {worst:.2e} at most; the largest is {largest:.2f}", flush=True)
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    assert largest > 1, "logits near zero would hide a difference"
    return worst


def greedy(model, prompt):
    with torch.no_grad():
        made = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=30, pad_token_id=END
        )
    return [token for token in made[0, prompt.shape[1] :].tolist() if token != END]


def check(name, model, size, folder):
    model = model.eval().to(torch.float32)
    with torch.no_grad():
        # Parameters that start as ones or zeros get random values as well, so that a norm or bias in the wrong place is noticed.
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        if isinstance(model, BertForMaskedLM) and not model.config.tie_word_embeddings:
            # With an untied head this bias is not used, and no file has it.
            model.cls.predictions.bias.zero_()
    model.save_pretrained(folder / "in", max_shard_size=size)
    varuna("checkpoint", "import", folder / "store", folder / "in", "--job", name)
    store = folder / "store" / name
    tokens = torch.randint(0, VOCABULARY, (3, LENGTH))
    expected = logits_of(model, tokens)
    run(
        BINARIES / "varuna-worker", "logits", "--checkpoint", store, "--device", "cpu", "--output", folder / "logits.npy",
        text=json.dumps(tokens.tolist()),
    )
    worst = difference(f"{name}, imported", numpy.load(folder / "logits.npy"), expected)

    varuna("checkpoint", "export", store, folder / "out")
    loader = AutoModelForMaskedLM if isinstance(model, BertForMaskedLM) else AutoModelForCausalLM
    again = loader.from_pretrained(folder / "out").eval()
    assert type(again) is type(model) and again.dtype == torch.float32, (type(again), again.dtype)
    worst = max(worst, difference(f"{name}, exported", logits_of(again, tokens), expected))

    varuna("checkpoint", "export", store, folder / "narrow", "--dtype", "bf16", "--max-shard-size", "100KB")
    assert len(list(folder.glob("narrow/model-*-of-*.safetensors"))) > 1
    narrow = loader.from_pretrained(folder / "narrow", dtype="auto")
    assert narrow.dtype == torch.bfloat16, narrow.dtype
    rounded = model.to(torch.bfloat16).state_dict()
    for parameter, value in narrow.state_dict().items():
        assert torch.equal(value, rounded[parameter]), parameter
    model.to(torch.float32)

    if loader is AutoModelForMaskedLM:
        return worst
    tokenizer = AutoTokenizer.from_pretrained(folder / "out")
    prompt = tokenizer(PROMPT, return_tensors="pt").input_ids
    assert prompt[0].tolist() == list(PROMPT.encode()), prompt
    assert tokenizer.eos_token_id == again.generation_config.eos_token_id == END
    expected = greedy(again, prompt)
    made = varuna("generate", store, "--device", "cpu", "--prompt", PROMPT, "--max-tokens", 30, "--temperature", 0, "--json")
    made = json.loads(made)
    assert made["prompt"] == prompt[0].tolist(), made
    assert made["tokens"] == expected, (made, expected)
    print(f"  {name}: the same {len(expected)} tokens greedily", flush=True)
    return worst


def main():
    logging.disable_progress_bar()
    torch.manual_seed(7)
    worst = 0.0
    for name, model, size in models():
        with tempfile.TemporaryDirectory() as folder:
            worst = max(worst, check(name, model, size, pathlib.Path(folder)))
    print(f"RESULT hf.logit_difference {worst:.3g}")
    if not worst <= ALLOWED:
        sys.exit(f"logits differ by {worst:.3g}; {ALLOWED} is allowed")


main()
