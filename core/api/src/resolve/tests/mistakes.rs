//! Every mistake in a job file, with its error message.

use super::{FULL, MINIMAL, errors, with};

/// (text, its replacement, the error). Each is a change of the minimal job, or of the full job for fields that only that has.
const OF_MINIMAL: &[(&str, &str, &str)] = &[
    (
        "varuna.dev/v1alpha1",
        "varuna.dev/v2",
        "apiVersion: \"varuna.dev/v2\" — varuna.dev/v1alpha1",
    ),
    (
        "{name: demo}",
        "{name: demo, labels: {kueue.x-k8s.io/queue-name: team-a}}",
        "metadata.labels.kueue.x-k8s.io/queue-name: \"team-a\" — a queue only with spec.checkpoint, or with spec.allowStateLoss true: it may take its quota back at any time, and then the workers end",
    ),
    (
        "spec:",
        "spec:\n  elasticity: {minWorkers: 10, maxWorkers: 15}\n  workerGroups: [{name: a, gpusPerPod: 8}]",
        "spec.workerGroups: 8 workers in whole pods — together at least spec.elasticity.minWorkers (10): raise maxWorkers of the job or of a group, or lower gpusPerPod",
    ),
    (
        "spec:",
        "spec:\n  elasticity: {maxWorkers: 16}\n  workerGroups: [{name: a, maxWorkers: 7, gpusPerPod: 8}]",
        "spec.workerGroups: 0 workers in whole pods — together at least spec.elasticity.minWorkers (1): raise maxWorkers of the job or of a group, or lower gpusPerPod",
    ),
    (
        "spec:",
        "spec:\n  workers: {device: cpu, transport: nccl}",
        "spec.workers.transport: nccl — auto or tcp, as spec.workers.device is cpu: NCCL needs GPUs",
    ),
    ("kind: VarunaJob", "kind: Job", "kind: \"Job\" — VarunaJob"),
    ("kind: VarunaJob", "", "kind: missing — VarunaJob"),
    (
        "{name: demo}",
        "{name: Demo_1}",
        "metadata.name: \"Demo_1\" — 1 to 63 of a-z, 0-9 and -, neither first nor last a -",
    ),
    (
        "{name: demo}",
        "{}",
        "metadata.name: missing — 1 to 63 of a-z, 0-9 and -, neither first nor last a -",
    ),
    (
        "metadata: {name: demo}",
        "",
        "metadata: missing — a mapping with a name",
    ),
    (
        "  model: {preset: gpt2-tiny}\n",
        "",
        "spec.model: missing — a preset or explicit sizes",
    ),
    (
        "gpt2-tiny",
        "gpt3",
        "spec.model.preset: \"gpt3\" — gpt2-tiny, gpt2-small, gpt2-medium, gpt2-large, gpt2-1.5b, gpt2-2.5b, gpt2-8.3b, llama-tiny, llama3.2-1b, llama3.2-3b, llama3-8b, qwen3-tiny, qwen3-0.6b, qwen3-1.7b, qwen3-8b, bert-tiny, bert-base or bert-large",
    ),
    (
        "gpt2-tiny",
        "gpt2-tiny, hiddenSize: 380",
        "spec.model.hiddenSize: 380 — a multiple of heads (6), or give headSize",
    ),
    (
        "gpt2-tiny",
        "gpt2-tiny, kvHeads: 4",
        "spec.model.kvHeads: 4 — a divisor of heads (6)",
    ),
    (
        "gpt2-tiny",
        "llama-tiny, heads: 3",
        "spec.model.kvHeads: 2 — a divisor of heads (3)",
    ),
    (
        "gpt2-tiny",
        "gpt2-tiny, kvHeads: 0",
        "spec.model.kvHeads: 0 — 1 to 1048576",
    ),
    (
        "gpt2-tiny",
        "gpt2-tiny, headSize: 20000",
        "spec.model.headSize: 20000 — 1 to 16384",
    ),
    (
        "gpt2-tiny",
        "gpt2-tiny, heads: 1000, headSize: 1049",
        "spec.model.headSize: 1049 — with all heads (1000) together at most 1048576",
    ),
    (
        "gpt2-tiny",
        "qwen3-tiny, headSize: 33",
        "spec.model.headSize: 33 — an even number (hiddenSize by heads where it is left out): rotary positions turn pairs of a head's elements",
    ),
    (
        "gpt2-tiny",
        "gpt2-tiny, innerSize: 0",
        "spec.model.innerSize: 0 — 1 to 4194304",
    ),
    (
        "gpt2-tiny",
        "gpt2-tiny, slidingWindow: 0",
        "spec.model.slidingWindow: 0 — 1 to 1048576",
    ),
    (
        "gpt2-tiny",
        "gpt2-tiny, mlp: silu",
        "spec.model.mlp: \"silu\" — gelu or geluErf or swiglu or relu2",
    ),
    (
        "gpt2-tiny",
        "gpt2-tiny, logitSoftcap: 0",
        "spec.model.logitSoftcap: 0 — a number above 0, at most 1000000",
    ),
    (
        "gpt2-tiny",
        "gpt2-tiny, layers: 0",
        "spec.model.layers: 0 — 1 to 10000",
    ),
    (
        "gpt2-tiny",
        "gpt2-tiny, layers: -1",
        "spec.model.layers: -1 — a whole number that is not negative",
    ),
    (
        "gpt2-tiny",
        "gpt2-tiny, layers: 1.5",
        "spec.model.layers: 1.5 — a whole number that is not negative",
    ),
    (
        "gpt2-tiny",
        "gpt2-tiny, layer: 2",
        "spec.model.layer: unknown field — one of `preset`, `layers`, `hiddenSize`, `heads`, `kvHeads`, `headSize`, `qkNorm`, `innerSize`, `mlp`, `sequenceLength`, `positions`, `ropeTheta`, `ropeScaling`, `slidingWindow`, `bidirectional`, `vocabularySize`, `tiedHead`, `norm`, `normEpsilon`, `attentionBias`, `mlpBias`, `logitSoftcap`, `dropout`, `exported`",
    ),
    (
        "gpt2-tiny",
        "gpt2-tiny, dropout: 1.0",
        "spec.model.dropout: 1 — 0 <= p < 1",
    ),
    (
        "gpt2-tiny",
        "gpt2-tiny, dropout: -0.1",
        "spec.model.dropout: -0.1 — 0 <= p < 1",
    ),
    (
        "gpt2-tiny",
        "gpt2-tiny, dropout: .nan",
        "job file: line 6 column 39: value `.nan` is not a finite number — one YAML document",
    ),
    (
        "gpt2-tiny",
        "gpt2-tiny, tiedHead: maybe",
        "spec.model.tiedHead: \"maybe\" — true or false",
    ),
    (
        "  data: {path: data/kjv}\n",
        "",
        "spec.data: missing — a mapping with a path",
    ),
    (
        "path: data/kjv",
        "path: ''",
        "spec.data.path: \"\" — the path or the URL of a dataset without .bin or .idx",
    ),
    (
        "data/kjv",
        "s3://b/kjv?key=secret",
        "spec.data.path: \"s3://b/kjv?...\" — the path or the URL of a dataset without .bin or .idx; a URL has no ? or #, such as s3://bucket/folder",
    ),
    (
        "data/kjv",
        "x, validationPath: 's3://b/held#1'",
        "spec.data.validationPath: \"s3://b/held#...\" — the path or the URL of a dataset without .bin or .idx; a URL has no ? or #, such as s3://bucket/folder",
    ),
    (
        "data/kjv",
        "data/kjv.bin",
        "spec.data.path: data/kjv.bin — the path without .bin or .idx",
    ),
    (
        "data/kjv",
        "x, validationFraction: 0.6",
        "spec.data.validationFraction: 0.6 — 0 to 0.5",
    ),
    (
        "data/kjv",
        "x, validationPath: held, validationFraction: 0.1",
        "spec.data.validationFraction: 0.1 — nothing, as spec.data.validationPath is given: that dataset is held out",
    ),
    (
        "data/kjv",
        "x, validationPath: held.idx",
        "spec.data.validationPath: held.idx — the path without .bin or .idx",
    ),
    (
        "data/kjv",
        "x, train: [{path: other}]",
        "spec.data.path: x — nothing, as spec.data.train is given: it stands for path",
    ),
    (
        "{path: data/kjv}",
        "{train: []}",
        "spec.data.train: 0 datasets — 1 to 64",
    ),
    (
        "{path: data/kjv}",
        "{train: [{path: x}, {weight: 2}]}",
        "spec.data.train.1.path: missing — the path or the URL of a dataset without .bin or .idx",
    ),
    (
        "{path: data/kjv}",
        "{train: [[x, 2]]}",
        "spec.data.train.0: a list — a mapping",
    ),
    (
        "{path: data/kjv}",
        "{train: [{path: x, weight: 0}]}",
        "spec.data.train.0.weight: 0 — a number above 0, at most 1000000000000000",
    ),
    (
        "globalBatchSize: 16",
        "globalBatchSize: 0",
        "spec.training.globalBatchSize: 0 — 1 to 1099511627776",
    ),
    (
        "    globalBatchSize: 16\n",
        "",
        "spec.training.globalBatchSize: missing — 1 to 1099511627776",
    ),
    (
        "globalBatchSize: 16",
        "globalBatchSize: 16\n    microBatchSize: 3",
        "spec.training.microBatchSize: 3 — a divisor of globalBatchSize (16)",
    ),
    (
        "globalBatchSize: 16",
        "globalBatchSize: 16384\n    microBatchSize: 16384",
        "spec.training.microBatchSize: 16384 — at most 10922: a sample has 393216 bytes between two stages, and a message at most 4294967295",
    ),
    (
        "gpt2-tiny",
        "gpt2-tiny, hiddenSize: 1048572, sequenceLength: 1048576",
        "spec.model: 4398029733888 bytes of a sample between two stages — at most 4294967295, as a message has no more; or make spec.pipeline.maxDepth 1",
    ),
    (
        "globalBatchSize: 16",
        "globalBatchSize: 16\n    microBatchSize: 0",
        "spec.training.microBatchSize: 0 — a divisor of globalBatchSize (16)",
    ),
    (
        "steps: 200",
        "steps: 0",
        "spec.training.steps: 0 — 1 to 1099511627776",
    ),
    (
        "steps: 200",
        "steps:",
        "spec.training.steps: empty — a value, or leave the field out",
    ),
    (
        "steps: 200",
        "steps: many",
        "spec.training.steps: \"many\" — a whole number that is not negative",
    ),
    (
        "steps: 200\n    optimizer: {learningRate: 3e-4}",
        "steps: -3\n    optimizer: {learningRate: 3e-4, warmupSteps: 30}",
        "spec.training.steps: -3 — a whole number that is not negative",
    ),
    (
        "steps: 200",
        "steps: 1\n    seed: 9223372036854775808",
        "spec.training.seed: 9223372036854775808 — 0 to 9223372036854775807",
    ),
    (
        "steps: 200",
        "steps: 1\n    precision: fp8",
        "spec.training.precision: \"fp8\" — fp32 or bf16 or fp16",
    ),
    (
        "steps: 200",
        "steps: 1\n    masking: {maskToken: 3}",
        "spec.training.masking: given — nothing, or make spec.model.bidirectional true: masked tokens are filled in from both sides",
    ),
    (
        "steps: 200",
        "steps: 1\n    lossScale: {initial: 1024}",
        "spec.training.lossScale: given — nothing, as spec.training.precision is not fp16: wider numbers need no loss scale",
    ),
    (
        "steps: 200",
        "steps: 1\n    precision: fp16\n    lossScale: {initial: 1000}",
        "spec.training.lossScale.initial: 1000 — a power of two from 1 to 4294967296",
    ),
    (
        "steps: 200",
        "steps: 1\n    precision: fp16\n    lossScale: {static: 0}",
        "spec.training.lossScale.static: 0 — a power of two from 1 to 4294967296",
    ),
    (
        "steps: 200",
        "steps: 1\n    precision: fp16\n    lossScale: {static: 8, window: 100}",
        "spec.training.lossScale: static and others — static alone, or initial, minimum and window: a static scale never changes",
    ),
    (
        "steps: 200",
        "steps: 1\n    precision: fp16\n    lossScale: {initial: 8, minimum: 16}",
        "spec.training.lossScale.minimum: 16 — at most initial (8)",
    ),
    (
        "steps: 200",
        "steps: 1\n    precision: fp16\n    lossScale: {window: 0}",
        "spec.training.lossScale.window: 0 — 1 to 1000000",
    ),
    (
        "steps: 200",
        "steps: 1\n    skipLimit: 1000001",
        "spec.training.skipLimit: 1000001 — 0 to 1000000",
    ),
    (
        "    optimizer: {learningRate: 3e-4}\n",
        "",
        "spec.training.optimizer: missing — a mapping with learningRate",
    ),
    (
        "{learningRate: 3e-4}",
        "{}",
        "spec.training.optimizer.learningRate: missing — a number above 0, at most 10",
    ),
    (
        "3e-4",
        "0",
        "spec.training.optimizer.learningRate: 0 — a number above 0, at most 10",
    ),
    (
        "3e-4",
        "high",
        "spec.training.optimizer.learningRate: \"high\" — a number",
    ),
    (
        "3e-4",
        "0.1, kind: lion",
        "spec.training.optimizer.kind: \"lion\" — adamw or sgd or muon",
    ),
    (
        "3e-4",
        "0.1, momentum: 0.5",
        "spec.training.optimizer.momentum: 0.5 — nothing but with kind sgd or muon: adamw has beta1",
    ),
    (
        "3e-4",
        "0.1, kind: sgd, momentum: 1",
        "spec.training.optimizer.momentum: 1 — 0 <= momentum < 1",
    ),
    (
        "3e-4",
        "0.1, kind: muon, momentum: 1.5",
        "spec.training.optimizer.momentum: 1.5 — 0 <= momentum < 1",
    ),
    (
        "3e-4",
        "0.1, kind: muon, beta1: 1",
        "spec.training.optimizer.beta1: 1 — 0 <= beta < 1",
    ),
    (
        "3e-4",
        "0.1, kind: sgd, beta2: 0.9",
        "spec.training.optimizer.beta2: 0.9 — nothing with kind sgd, which has momentum",
    ),
    (
        "3e-4",
        "0.1, minLearningRate: 0.2",
        "spec.training.optimizer.minLearningRate: 0.2 — 0 to learningRate (0.1)",
    ),
    (
        "3e-4",
        "0.1, warmupSteps: 201",
        "spec.training.optimizer.warmupSteps: 201 — at most steps (200)",
    ),
    (
        "3e-4",
        "0.1, warmupSteps: 11, decaySteps: 10",
        "spec.training.optimizer.warmupSteps: 11 — at most decaySteps (10)",
    ),
    (
        "3e-4",
        "0.1, schedule: triangle",
        "spec.training.optimizer.schedule: \"triangle\" — cosine or linear or wsd or constant",
    ),
    (
        "3e-4",
        "0.1, schedule: wsd, warmupSteps: 11, stableSteps: 10",
        "spec.training.optimizer.warmupSteps: 11 — at most stableSteps (10)",
    ),
    (
        "3e-4",
        "0.1, schedule: wsd, stableSteps: 201",
        "spec.training.optimizer.stableSteps: 201 — at most steps (200)",
    ),
    (
        "3e-4",
        "0.1, schedule: wsd, stableSteps: 11, decaySteps: 10",
        "spec.training.optimizer.stableSteps: 11 — at most decaySteps (10)",
    ),
    (
        "3e-4",
        "0.1, stableSteps: 10",
        "spec.training.optimizer.stableSteps: 10 — nothing but with schedule wsd: other decays begin after the warm-up",
    ),
    (
        "3e-4",
        "0.1, schedule: constant, minLearningRate: 0.01",
        "spec.training.optimizer.minLearningRate: 0.01 — nothing with schedule constant, which has no decay",
    ),
    (
        "3e-4",
        "0.1, schedule: constant, decaySteps: 10",
        "spec.training.optimizer.decaySteps: 10 — nothing with schedule constant, which has no decay",
    ),
    (
        "3e-4",
        "0.1, schedule: constant, stableSteps: 10",
        "spec.training.optimizer.stableSteps: 10 — nothing with schedule constant, which has no decay",
    ),
    (
        "3e-4",
        "0.1, beta1: 1",
        "spec.training.optimizer.beta1: 1 — 0 <= beta < 1",
    ),
    (
        "3e-4",
        "0.1, beta2: -1",
        "spec.training.optimizer.beta2: -1 — 0 <= beta < 1",
    ),
    (
        "3e-4",
        "0.1, epsilon: 0",
        "spec.training.optimizer.epsilon: 0 — a number above 0, at most 1",
    ),
    (
        "3e-4",
        "0.1, weightDecay: -1",
        "spec.training.optimizer.weightDecay: -1 — 0 to 10",
    ),
    (
        "3e-4",
        "0.1, weightDecayOn: [matrices, scales]",
        "spec.training.optimizer.weightDecayOn.1: \"scales\" — matrices or embeddings or biases or norms",
    ),
    (
        "3e-4",
        "0.1, weightDecayOn: [norms, norms]",
        "spec.training.optimizer.weightDecayOn.1: \"norms\" — each kind once",
    ),
    (
        "3e-4",
        "0.1, sharding: zero3",
        "spec.training.optimizer.sharding: \"zero3\" — none or zero1",
    ),
    (
        "3e-4",
        "0.1, kind: muon, sharding: zero1",
        "spec.training.optimizer.sharding: zero1 — none with kind muon, which needs whole matrices",
    ),
    (
        "3e-4",
        "0.1, weightDecayOn: norms",
        "spec.training.optimizer.weightDecayOn: \"norms\" — a list",
    ),
    (
        "3e-4",
        "0.1, clipNorm: -1",
        "spec.training.optimizer.clipNorm: -1 — 0 to 1000000",
    ),
    (
        "{learningRate: 3e-4}",
        "[1]",
        "spec.training.optimizer: a list — a single value or a mapping",
    ),
];

const OF_FULL: &[(&str, &str, &str)] = &[
    (
        "intervalSteps: 20, ",
        "",
        "spec.training.evaluation.intervalSteps: missing — 1 to 1099511627776",
    ),
    (
        "intervalSteps: 20",
        "intervalSteps: 0",
        "spec.training.evaluation.intervalSteps: 0 — 1 to 1099511627776",
    ),
    (
        "samples: 32",
        "samples: 0",
        "spec.training.evaluation.samples: 0 — 1 to 1099511627776",
    ),
    (
        "validationPath: held-out",
        "validationFraction: 0",
        "spec.training.evaluation: asked for — nothing, as spec.data.validationFraction is 0: no samples are held out",
    ),
    (
        "schedule: 1f1b",
        "schedule: pipedream",
        "spec.pipeline.schedule: \"pipedream\" — 1f1b or gpipe or interleaved",
    ),
    (
        "schedule: 1f1b",
        "schedule: gpipe",
        "spec.pipeline.warmupFactor: 2 — nothing with schedule gpipe, which has no warm-up",
    ),
    (
        "warmupFactor: 2",
        "warmupFactor: 0.5",
        "spec.pipeline.warmupFactor: 0.5 — 1 to 16",
    ),
    (
        "recompute: full",
        "recompute: some",
        "spec.pipeline.recompute: \"some\" — auto or none or selective or full",
    ),
    (
        "encryption: tls",
        "encryption: ssl",
        "spec.network.encryption: \"ssl\" — none or tls",
    ),
    (
        "name: spot, maxWorkers: 8",
        "name: lasting, maxWorkers: 8",
        "spec.workerGroups.1.name: \"lasting\" — a name that no other group has",
    ),
    (
        "name: spot, maxWorkers: 8",
        "maxWorkers: 8",
        "spec.workerGroups.1.name: missing — 1 to 63 of a-z, 0-9 and -, neither first nor last a -",
    ),
    (
        "name: spot, maxWorkers: 8",
        "name: spot, maxWorkers: 8, minWorkers: 8",
        "spec.workerGroups: 10 as minWorkers — together at most spec.elasticity.maxWorkers (9)",
    ),
    (
        "name: spot, maxWorkers: 8",
        "name: spot, maxWorkers: 5, minWorkers: 6",
        "spec.workerGroups.1.maxWorkers: 5 — at least minWorkers (6)",
    ),
    (
        "name: spot, maxWorkers: 8",
        "name: spot, maxWorkers:",
        "spec.workerGroups.1.maxWorkers: empty — a value, or leave the field out",
    ),
    (
        "name: spot, maxWorkers: 8",
        "name: spot, most: 8",
        "spec.workerGroups.1.most: unknown field — one of `name`, `minWorkers`, `maxWorkers`, `gpusPerPod`, `image`, `resources`, `nodeSelector`, `template`",
    ),
    (
        "nodeSelector: {spot: \"false\"}",
        "nodeSelector: 3",
        "spec.workerGroups.0.nodeSelector: 3 — a mapping from labels to values",
    ),
    (
        "policy: isolated",
        "policy: strict",
        "spec.network.policy: \"strict\" — ingress or isolated or none",
    ),
    (
        "policy: isolated",
        "policy: ingress",
        "spec.network.extraEgress: 1 rules — none, unless spec.network.policy is isolated: pods can reach everything",
    ),
    (
        "policy: isolated, extraIngress: [{ports: [{port: 9400}]}], extraEgress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}]}]",
        "policy: none, extraIngress: [{}]",
        "spec.network.extraIngress: 1 rules — none, because spec.network.policy is none: everyone can reach the pods",
    ),
    (
        "extraIngress: [{ports: [{port: 9400}]}]",
        "extraIngress: [9400]",
        "spec.network.extraIngress.0: 9400 — a rule of a NetworkPolicy (a mapping)",
    ),
    (
        "minDepth: 2",
        "minDepth: 0",
        "spec.pipeline.minDepth: 0 — 1 to 10: a stage holds at least one of the model's segments",
    ),
    (
        "maxDepth: 5",
        "maxDepth: 11",
        "spec.pipeline.maxDepth: 11 — 1 to 10: a stage holds at least one of the model's segments",
    ),
    (
        "minDepth: 2, maxDepth: 5",
        "minDepth: 3, maxDepth: 2",
        "spec.pipeline.minDepth: 3 — at most maxDepth (2)",
    ),
    (
        "minWorkers: 3",
        "minWorkers: 1",
        "spec.elasticity.minWorkers: 1 — at least spec.pipeline.minDepth (2): a pipeline needs that many",
    ),
    (
        "maxWorkers: 9",
        "maxWorkers: 2",
        "spec.elasticity.maxWorkers: 2 — at least minWorkers (3)",
    ),
    (
        "spareCopies: auto",
        "spareCopies: 2",
        "spec.elasticity.spareCopies: 2 — 0, 1 or auto",
    ),
    (
        "spareCopies: auto",
        "spareCopies: \"1\"",
        "spec.elasticity.spareCopies: \"1\" — 0, 1 or auto",
    ),
    (
        "gpusPerPod: 4",
        "gpusPerPod: 0",
        "spec.workers.gpusPerPod: 0 — 1 to 64",
    ),
    (
        "300Mi",
        "lots",
        "spec.workers.deviceMemory: \"lots\" — an amount of memory above 0, such as 300Mi, 1.5Gi, 2G or a number of bytes",
    ),
    (
        "device: cuda",
        "device: gpu",
        "spec.workers.device: \"gpu\" — auto or cpu or cuda",
    ),
    (
        "transport: tcp",
        "transport: gloo",
        "spec.workers.transport: \"gloo\" — auto or nccl or tcp",
    ),
    (
        "transport: tcp",
        "transport: nccl",
        "spec.workers.transport: nccl — auto or tcp, as spec.network.encryption is tls: NCCL does not encrypt what it sends",
    ),
    ("threads: 2", "threads: 0", "spec.workers.threads: 0 — 1 to 1024"),
    (
        "cpu: 8}}, template: {spec: {new: null}}",
        "cpu: 8}}, template: 3",
        "spec.workers.template: 3 — a pod template (a mapping)",
    ),
    (
        "uri: \"s3://bucket/x\", ",
        "",
        "spec.checkpoint.uri: missing — a folder or the URI of a bucket",
    ),
    (
        "uri: \"s3://bucket/x\", ",
        "uri: \"s3://bucket/x#1\", ",
        "spec.checkpoint.uri: \"s3://bucket/x#...\" — a folder or the URI of a bucket; a URL has no ? or #, such as s3://bucket/folder",
    ),
    (
        "uri: \"gs://other/y\"",
        "uri: \"gs://other/y?key=secret\"",
        "spec.checkpoint.from.uri: \"gs://other/y?...\" — a folder or the URI of a bucket; a URL has no ? or #, such as s3://bucket/folder",
    ),
    (
        "intervalSteps: 50",
        "intervalSteps: 0",
        "spec.checkpoint.intervalSteps: 0 — 1 to 1099511627776",
    ),
    (
        "job: base, uri",
        "uri",
        "spec.checkpoint.from.job: missing — 1 to 63 of a-z, 0-9 and -, neither first nor last a -",
    ),
    (
        "uri: \"gs://other/y\"",
        "uri: \" \"",
        "spec.checkpoint.from.uri: \" \" — a folder or the URI of a bucket",
    ),
    (
        "step: 40",
        "step: -1",
        "spec.checkpoint.from.step: -1 — a whole number that is not negative",
    ),
    ("keep: 2", "keep: 0", "spec.checkpoint.keep: 0 — 1 to 1000000"),
    (
        "compareEverySteps: 20",
        "compareEverySteps: 0",
        "spec.integrity.compareEverySteps: 0 — 1 to 1099511627776",
    ),
    (
        "noticeSeconds: 30",
        "noticeSeconds: 90000",
        "spec.disruption.noticeSeconds: 90000 — 0 to 86400",
    ),
    (
        "[example.com/spot]",
        "[1]",
        "spec.disruption.nodeSignals.0: 1 — a string",
    ),
    ("suspend: true", "suspend: 3", "spec.suspend: 3 — true or false"),
    (
        "suspend: true",
        "paused: true",
        "spec.paused: unknown field — one of `model`, `data`, `training`, `pipeline`, `elasticity`, `workers`, `workerGroups`, `checkpoint`, `network`, `integrity`, `disruption`, `coordinator`, `failurePolicy`, `activeDeadlineSeconds`, `ttlSecondsAfterFinished`, `allowStateLoss`, `suspend`, `managedBy`",
    ),
    (
        "coordinator: {serviceAccountName: checkpoints, template: {spec: {new: null}}}",
        "coordinator: {template: 3}",
        "spec.coordinator.template: 3 — a pod template (a mapping)",
    ),
    (
        "maxCrashes: 4",
        "maxCrashes: 0",
        "spec.failurePolicy.maxCrashes: 0 — 1 to 50",
    ),
    (
        "activeDeadlineSeconds: 86400",
        "activeDeadlineSeconds: 0",
        "spec.activeDeadlineSeconds: 0 — 1 to 1099511627776",
    ),
    (
        "requests: {cpu: 8}",
        "cpu: 8",
        "spec.workers.resources.cpu: 8 — limits and requests, each a mapping from a resource's name to a quantity",
    ),
    (
        "shmSize: 1Gi",
        "shmSize: big",
        "spec.workers.shmSize: \"big\" — an amount of memory above 0, such as 300Mi, 1.5Gi, 2G or a number of bytes",
    ),
    (
        "labels: {a: b}",
        "labels: {kueue.x-k8s.io/queue-name: Team}",
        "metadata.labels.kueue.x-k8s.io/queue-name: \"Team\" — 1 to 63 of a-z, 0-9 and -, neither first nor last a -",
    ),
    (
        "managedBy: example.com/another",
        "managedBy: another",
        "spec.managedBy: \"another\" — a domain and a name, such as varuna.dev/operator, of 3 to 63 characters",
    ),
    (
        "managedBy: example.com/another",
        "managedBy: Example.com/another",
        "spec.managedBy: \"Example.com/another\" — a domain and a name, such as varuna.dev/operator, of 3 to 63 characters",
    ),
];

#[test]
fn errors_of_yaml_do_not_name_a_librarys_settings() {
    let twice = with(MINIMAL, "steps: 200", "steps: 200\n    steps: 300");
    let two = format!("{MINIMAL}---{MINIMAL}");
    for (text, part) in [(twice, "duplicate mapping key"), (two, "single YAML document")] {
        let found = errors(&text);
        let [why] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert!(why.contains(part), "{why}");
        for foreign in ["Options", "from_str"] {
            assert!(!why.contains(foreign), "{why}");
        }
    }
}

#[test]
fn every_mistake_is_reported_with_field_value_and_limits() {
    let cases = OF_MINIMAL
        .iter()
        .map(|c| (MINIMAL, c))
        .chain(OF_FULL.iter().map(|c| (FULL, c)));
    let mut wrong = Vec::new();
    for (base, (from, to, want)) in cases {
        let got = errors(&with(base, from, to));
        if got != [*want] {
            wrong.push(format!("{from} -> {to}\n   want {want}\n   got  {got:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
