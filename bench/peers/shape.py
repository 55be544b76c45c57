"""The model of every benchmark, in numbers that both sides read: bench/common.py makes the job file from them."""

LAYERS, HIDDEN, HEADS, SEQUENCE, VOCABULARY, BATCH = 6, 384, 6, 256, 8192, 8
LEARNING_RATE, BETAS, WEIGHT_DECAY = 3e-4, (0.9, 0.95), 0.1
