# Varuna's commands. CI (.ci/run) runs these.
.DEFAULT_GOAL := help
.PHONY: tensorboard-built hf-built own-models-built megatron-built programs help setup build build-demo build-release release test core sim sim-night mutants nightly fuzz fuzz-replay chaos lint fmt demo data test-data bench-engine bench-pipeline bench-recovery bench-zero bench-checkpoint bench-precision test-stores crds images images-cuda test-alerts test-kueue test-hf test-own-models test-tensorboard test-megatron test-image-cuda e2e e2e-given e2e-quick e2e-built e2e-images bench-operator test-kube bench-plan bench-protocol bench-coordinator accuracy replay gpu-bundle gpu-dry-run clean bench-comparison bench-data

CARGO ?= cargo
TESTED := --workspace --locked --features varuna/kubernetes
# Left out of a plain `cargo test`: they need a control plane.
CLUSTER_TESTS := --test chart --test examples --test kueue --test operator --test plugin --test training
CORE := -p varuna-model -p varuna-mutants -p varuna-plan -p varuna-protocol -p varuna-api -p varuna-sim
# A new folder each time: nothing that exists is overwritten.
RUN_DIR := runs/demo-$(shell date +%Y%m%d-%H%M%S)

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what is missing (as root, on Debian) and fetch the pinned libtorch; quick when all is there
	@scripts/setup.sh

build: setup ## Build everything, quickly (dev profile)
	$(CARGO) build --workspace --locked --features varuna/kubernetes

# What a run on one machine needs: who tries the demo waits for no more.
build-demo: setup
	$(CARGO) build --locked --release -p varuna -p varuna-worker -p varuna-demo

build-release: setup ## Build everything, optimised
	$(CARGO) build --workspace --locked --release --features varuna/kubernetes

programs: setup ## Get the programs that tests start: MinIO, a Kubernetes control plane, CoreDNS, helm (pinned Go modules, built once), NVRTC
	@scripts/setup-stores.sh
	@scripts/setup-nvrtc.sh
	@scripts/setup-kube.sh

# Built for the tests at once: a build without the features of their own dependencies would build half of the crates twice. The tests on
# a control plane mostly wait for it, and the images for the mirrors: both leave the processors to the others.
test: setup programs ## Run all tests: the core by seeds, parity, real workers that are really killed, a real control plane; as root also real nodes
	$(CARGO) build $(TESTED) --lib --bins --examples --tests
	$(call dataset,target/debug/varuna)
	scripts/beside.sh "$(CARGO) test $(TESTED) $(CLUSTER_TESTS) && $(MAKE) e2e-images tensorboard-built" $(CARGO) test $(TESTED)
	$(MAKE) e2e-built

test-stores: build ## Test checkpoints on MinIO, Azurite, fake-gcs-server and local files, and deaths and faults in the middle of saves
	scripts/setup-stores.sh all
	$(CARGO) test --locked -p varuna-checkpoint -p varuna-store-tests --features varuna-store-tests/all
	$(CARGO) test --locked -p varuna-process-tests --test checkpoints --test stores -- --include-ignored

core: ## Test the pure core only (needs no libtorch; seconds)
	$(CARGO) test --locked $(CORE)

sim: ## Run the simulated world: thousands of seeds with crashes, partitions, delays
	$(CARGO) test --locked -p varuna-sim

sim-night: ## Run many seeds on JOBS cores and say what they reached (SEEDS=100000 FROM=0 JOBS=2); a failing seed is shrunk
	$(CARGO) run --release --locked -p varuna-sim --example seeds -- run $(or $(FROM),0) $(or $(SEEDS),100000) $(or $(JOBS),2)

mutants: ## Switch on each bug that core/plan and core/protocol can have at run time: the unit tests or the table's seeds must catch it (5 minutes)
	$(CARGO) run --release --locked -p varuna-sim --example seeds -- survivors
	$(CARGO) test --locked $(CORE) --lib mutant:: -- --include-ignored

nightly: fuzz ## What takes too long for every change: fuzzing, all mutants, each of the protocol's also in 4,000 schedules, checkpoints on all kinds of stores, a run that stays without workers for five minutes, the goals of the protocol at scale, every kernel compiled for every GPU, the memory of steps in bf16, the alerts, what the GPU bundle does on the processor, as root the GPU image (half an hour on one core)
	scripts/setup-nvrtc.sh --needed
	VARUNA_NEEDS_NVRTC=1 $(CARGO) test --locked -p varuna-cuda --lib kernels
	$(CARGO) run --release --locked -p varuna-bench-protocol -- --goals 64 1000
	$(MAKE) mutants test-stores
	$(CARGO) test --locked -p varuna-process-tests --test restarts -- --ignored
	$(CARGO) test --locked -p varuna-worker --test memory -- --ignored
	$(CARGO) run --release --locked -p varuna-sim --example seeds -- mutants 4000
	$(MAKE) test-alerts
	$(MAKE) gpu-dry-run
	if [ "$$(id -u)" = 0 ]; then $(MAKE) test-image-cuda; fi

fuzz: ## Fuzz each parser for a minute (SECONDS_EACH=60 SEED=... TARGETS="frames shard"); inputs that fail go to runs/fuzz
	$(CARGO) run --profile fuzz --locked -p varuna-fuzz -- explore --seconds $(or $(SECONDS_EACH),60) $(if $(SEED),--seed $(SEED)) $(TARGETS)

fuzz-replay: ## Run one input again: TARGET=frames INPUT=runs/fuzz/...
	$(CARGO) run --profile fuzz --locked -p varuna-fuzz -- replay $(TARGET) $(INPUT)

test-megatron: build ## Datasets of Megatron's own code are read, and ours by it (installs what test-hf does)
	$(MAKE) megatron-built

test-hf: build ## Compare small models of each family with transformers, both ways: logits, tensors, text; train one on packed documents through a kill (installs PyTorch and transformers once, 3 GB)
	$(MAKE) hf-built

test-own-models: build ## The tests of python/varuna_export; models of one's own, trained through kills and growth and loaded into PyTorch again (installs what test-hf does)
	$(MAKE) own-models-built

# The same three with programs that are built. CI runs them after `make test`, which alone does not install PyTorch (3 GB).
megatron-built:
	$$(scripts/setup-hf.sh | tail -n 1) tests/megatron/compare.py target/debug

hf-built:
	$$(scripts/setup-hf.sh | tail -n 1) tests/huggingface/compare.py target/debug
	$$(scripts/setup-hf.sh | tail -n 1) tests/huggingface/train.py target/debug

own-models-built:
	python=$$(scripts/setup-hf.sh | tail -n 1) && PYTHONPATH=python/varuna_export/src $$python -m unittest discover -s python/varuna_export/tests \
		&& $$python tests/own-models/train.py target/debug

test-tensorboard: setup ## Read a run's event files back by TensorBoard itself, with both of its readers (installs it once, 50 MB)
	$(CARGO) build --locked -p varuna-run-folder --example event_files
	$(MAKE) tensorboard-built

tensorboard-built:
	$$(scripts/setup-tensorboard.sh | tail -n 1) tests/tensorboard/read_back.py target/debug/examples/event_files

chaos: build ## Real processes under faults, judged by the run folder (DURATION=600 SEED=... KILLS=... RUNS=...); runs/chaos, taken up again where it stood
	target/debug/varuna-chaos --duration $(or $(DURATION),600) $(if $(SEED),--seed $(SEED)) $(if $(KILLS),--kills $(KILLS)) $(if $(RUNS),--runs $(RUNS)) $(ARGUMENTS)

lint: setup ## Check the format, clippy and the documentation without any warning, licences and sources of dependencies
	@# CI runs no benchmark: what their targets need must at least exist.
	@$(MAKE) --dry-run --no-print-directory $$(sed -n 's/^\(bench-[a-z]*\|accuracy\|replay\):.*/\1/p' Makefile) >/dev/null
	$(CARGO) fmt --all --check
	$(CARGO) clippy $(TESTED) --all-targets -- -D warnings
	$(CARGO) clippy $(TESTED) $(CLUSTER_TESTS) --test kueue_controller -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(TESTED) --no-deps
	scripts/cargo-deny.sh

fmt: ## Format the sources
	$(CARGO) fmt --all

# $(call dataset,PROGRAM): makes the dataset of the examples with this program.
dataset = @test -e .cache/data/kjv.idx || $(1) data build --tokenizer byte --output .cache/data/kjv examples/data/text/kjv.txt.gz

data: build-release ## Make the dataset of the examples
	$(call dataset,target/release/varuna)

# Tests run the programs of the dev profile; they need no release build.
test-data: build
	$(call dataset,target/debug/varuna)

demo: build-demo ## Four workers learn the King James Bible; two are killed, one joins (two minutes)
	$(call dataset,target/release/varuna)
	target/release/varuna-demo --run-dir $(RUN_DIR)

bench-engine: data ## One process, a GPT and a Llama, against PyTorch eager
	python3 bench/engine.py

bench-pipeline: data ## Two stages, against PyTorch's Schedule1F1B
	python3 bench/pipeline.py

bench-recovery: data ## kill -9 to the next step, against torchrun; as root also a growth by 2 GiB over 1 Gb/s, against stop-and-copy, and a loss there
	python3 bench/recovery.py
	@if [ "$$(id -u)" = 0 ]; then python3 bench/growth.py && python3 bench/loss.py; else echo "bench/growth.py and bench/loss.py are left out: they make network namespaces, which needs root"; fi

bench-zero: data ## What sharded optimizer state takes and costs with four pipelines
	python3 bench/zero.py

bench-checkpoint: data ## What a checkpoint costs, against torch.save and DCP
	scripts/setup-stores.sh
	python3 bench/checkpoint.py

bench-data: build-release ## Building a dataset from JSON lines, against Megatron's own builder (installs what test-hf does)
	python3 bench/dataset.py

bench-comparison: data ## What comparing the states of workers costs (spec.integrity.compareEverySteps), with and without by turns (five minutes)
	python3 bench/comparison.py

bench-precision: data ## Curves in bf16 and fp16 against fp32, and a loss scale at work, on the processor (a minute)
	python3 bench/precision.py

crds: ## Write the custom resource definitions, docs/reference/job-file.md and status.md from the types of core/api
	@set -e; crds="$(CARGO) run --quiet --locked -p varuna-api --features kubernetes --example crds"; for name in $$($$crds); do \
		$$crds -- $$name > crds/$$name.yaml.partial; mv crds/$$name.yaml.partial crds/$$name.yaml; cp crds/$$name.yaml charts/varuna/crd/; done
	VARUNA_UPDATE_GOLDEN=1 $(CARGO) test --quiet --locked -p varuna-api --features kubernetes --test job_file --test status

images: build-release ## Build the images of operator, coordinator and worker as OCI archives in .cache/images (root, Debian: no daemon, no registry)
	images/build.sh

images-cuda: build-release ## Build the worker's image for nodes with GPUs likewise (4 GB on disk, 2.3 GB to fetch)
	images/build.sh --cuda

test-image-cuda: build-release ## Whether a worker in that image finds the node's driver where GKE, EKS and AKS mount it, with a stand-in for the driver (root)
	images/setup-cuda.sh
	python3 images/check_cuda.py

release: setup ## Make what users install, in dist/: images, chart with their digests, SBOMs, checksums (REGISTRY=...; CUDA=1; root, Debian)
	scripts/release.sh

test-kueue: build ## Test jobs in queues of Kueue's own controller, built from a checkout (KUEUE=CHECKOUT of v0.19.2; four minutes on two cores); then make e2e has its case as well
	@test -n "$(KUEUE)" || { echo "make test-kueue KUEUE=CHECKOUT: see scripts/setup-kueue.sh" >&2; exit 2; }
	scripts/setup-kube.sh
	scripts/setup-kueue.sh $(KUEUE)
	$(CARGO) test $(TESTED) --test kueue_controller -- --ignored

test-alerts: ## Test what the chart's alerts fire for, with promtool (built once, minutes)
	scripts/setup-prometheus.sh
	.cache/prometheus/promtool test rules tests/cluster/prometheus/alerts.yaml

# The programs of a test build: the end-to-end run of `make test`, which is left out, and says so, where there is no root.
e2e-quick: build test-data
	$(MAKE) e2e-built

e2e-images:
	scripts/setup-kube.sh
	scripts/setup-nodes.sh
	@if [ "$$(id -u)" = 0 ]; then BINARIES=target/debug images/build.sh --text; fi

# The same with programs that are built.
e2e-built: e2e-images
	BINARIES=target/debug target/debug/varuna-e2e --if-possible pod-deleted worker-killed

e2e: build-release data ## The operator end to end: real kubelets, a bucket, nodes and pods that go (root; KUBECONFIG=... : on that cluster; CASES="...")
	@if [ -z "$(KUBECONFIG)" ]; then scripts/setup-kube.sh && scripts/setup-nodes.sh && scripts/setup-prometheus.sh && images/build.sh --text && images/next.sh; fi
	@if [ -z "$(KUBECONFIG)" ] && [ -x scripts/setup-stores.sh ]; then scripts/setup-stores.sh; fi
	BINARIES=target/release target/release/varuna-e2e $(CASES)

e2e-given: build-release data ## The cases that any cluster can run, on a cluster that they did not make (root; CASES="...")
	scripts/setup-kube.sh && scripts/setup-nodes.sh && images/build.sh --text
	BINARIES=target/release tests/cluster/given.sh $(CASES)

bench-operator: build-release data ## The operator: from a signal to the plan and the next step; a thousand jobs that step (25 minutes)
	$(CARGO) build --release --locked -p varuna-worker --example stub_agents
	scripts/setup-kube.sh
	python3 bench/operator.py

test-kube: build test-data ## Test the operator on a real control plane, without root (KUBECONFIG=... : on that cluster)
	@test -n "$(KUBECONFIG)" || scripts/setup-kube.sh
	$(CARGO) test $(TESTED) $(CLUSTER_TESTS)

bench-protocol: ## What a launch, a step, a recovery and a growth cost with many workers, on simulated time (needs no libtorch)
	$(CARGO) run --release --locked -p varuna-bench-protocol

bench-coordinator: ## The coordinator's process with TLS and real streams: 64, 256 and 1,000 shipped agents whose engines compute nothing
	$(CARGO) build --release --locked -p varuna -p varuna-worker --bins --example stub_agents
	python3 bench/coordinator.py

bench-plan: ## The planner: search time by workers and segments, plans for any number of workers
	python3 bench/plan.py

accuracy: data ## Predicted against measured steps, published ones and this machine's own, on rows that nothing was fitted on
	python3 bench/accuracy.py

replay: ## Replay the spot traces: goodput, and what is lost to what (needs no libtorch)
	$(CARGO) build --release --locked -p varuna -p varuna-published
	python3 bench/replay.py

# Without kubectl's plugin, which would take 4 MiB of the bundle.
gpu-bundle: setup ## Make .gpu: a folder that checks and times Varuna on a GPU machine, without network (docs/guides/gpu.md)
	$(CARGO) build --locked --release -p varuna -p varuna-worker
	scripts/gpu-bundle.sh

gpu-dry-run: gpu-bundle ## What the bundle does on a GPU, on the processor with tiny models, to try the script (four minutes)
	@# Without a Python or a list nothing would run, and nothing would fail.
	@set -e; python=$$(scripts/setup-peers.sh | tail -n 1); test -n "$$python"; parts=$$($$python .gpu/bench/gpu.py --list); test -n "$$parts"; \
	result=0; for part in $$parts; do $$python .gpu/bench/gpu.py --part $$part --dry-run || result=1; done; exit $$result

clean: ## Remove build outputs (libtorch and datasets stay)
	$(CARGO) clean
