# Everything a person does with a checkout. Needs make and Python 3.11 or later; all else goes into .venv here.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
RELEASE := .venv-release
VERSION = $(shell sed -n 's/^VERSION = "\(.*\)"$$/\1/p' suggest/distribution.py)
# Images of a release; cifar10 too where three gigabytes of torch are no matter: make images IMAGES='server cifar10'.
IMAGES := server collector digits
DOCS := .venv-docs
COMPILE := $(RELEASE)/bin/uv pip compile --universal --python-version 3.11 --generate-hashes \
  --custom-compile-command 'make lock' --no-annotate --quiet $(LOCK)
JOBS ?= auto
# One at a time: .ci/run installs for the cluster's tests and for others at the same time.
APT := flock /run/lock/tuner-apt.lock apt-get
KUBE_TESTS := $(addprefix tests/,unit/test_kube_client.py unit/test_kube_transport.py unit/test_kube_reflector.py \
  kube/test_kubeconfig.py)
LIGHT := archive cmaes dashboard examples kubernetes postgres scipy
INTEGRATIONS := hydra keras lightgbm lightning mlflow sklearn tensorboard torch transformers wandb
AXE := build/axe
RANGE_TESTS := $(addprefix tests/,unit contract service/test_tidying.py service/test_shared_store.py)
MUTANTS := $(BIN)/python -m tests.sim.mutants
.DEFAULT_GOAL := help

.PHONY: help
help:  ## show this
	@sed -n 's/^\([a-z0-9-]*\):.*  ## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done

.PHONY: demo
demo: $(VENV)/demo.stamp  ## tune a small network on handwritten digits, live; state in .demo, wiped first
	rm -rf .demo
	$(BIN)/tuner run examples/digits/experiment.yaml --state-dir .demo

.PHONY: test
test: $(VENV)/dev.stamp  ## run all tests
	$(BIN)/python -m pytest -m 'not soak' -n $(JOBS) --maxprocesses=8 --dist worksteal $(TESTS)

.PHONY: test-cluster
test-cluster: cluster-binaries  ## run the tests on a real Kubernetes, started here; TESTS=tests/cluster/test_x.py
	$(BIN)/python -m pytest -m 'not soak' -n 4 --timeout=900 $(or $(TESTS),tests/cluster)

.PHONY: test-operators
test-operators: operator-binaries .venv-katib/stamp  ## as root: run the tests beside the real Kueue, JobSet, Training Operator and Trainer
	$(BIN)/python -m pytest -n 2 $(or $(TESTS),tests/operators)

.PHONY: soak
soak: cluster-binaries  ## run the tests that take too long for every change: repeated kills, freezes and partitions, lost nodes, more examples
	$(BIN)/python -m pytest -m soak $(or $(TESTS),tests/e2e tests/service tests/cluster tests/ui tests/unit tests/kube)
	$(if $(TESTS),,TUNER_TEST_THOROUGH=1 TUNER_SIM_EXAMPLES=2000 $(MAKE) test TESTS='tests/sim tests/unit')
	$(if $(TESTS),,$(MAKE) bench-controller)

.PHONY: bench-controller
bench-controller: cluster-binaries  ## measure the controller in the cluster: 2,000 ended experiments, then 200 with 5,000 pods
	PYTHONPATH=. $(BIN)/python bench/in_cluster.py --experiments 200 --trials 25 --idle 2000

.PHONY: cluster-binaries
cluster-binaries: $(VENV)/dev.stamp  ## build what those need, once: ten minutes, with Go 1.26
	$(BIN)/python -m tests.cluster.binaries

.PHONY: operator-binaries
operator-binaries: cluster-binaries  ## build what the tests with operators need besides, once: ten minutes more
	$(BIN)/python -m tests.cluster.binaries operator-binaries

deploy/install.yaml: cluster-binaries $(wildcard deploy/chart/* deploy/chart/*/*)  ## write it again, from the chart
	$(BIN)/python -m tests.cluster.installed

.PHONY: operator-images
operator-images: operator-binaries cluster-images  ## as root: build the images that train under the operators, once: ten minutes
	$(BIN)/python -m tests.operators.trainers

.PHONY: cluster-images
cluster-images: $(VENV)/dev.stamp  ## as root: make the images for those with a real node, once: three minutes
	$(BIN)/python -m tests.cluster.images

.PHONY: cluster-packages
cluster-packages:  ## as root, on Debian: install what those with a real node need
	$(APT) update -qq
	DEBIAN_FRONTEND=noninteractive $(APT) install -y -qq --no-install-recommends \
	  containerd runc containernetworking-plugins buildah debootstrap iproute2 iptables openssl </dev/null

.PHONY: postgres-packages
postgres-packages:  ## as root, on Debian: install what the tests on PostgreSQL need
	$(APT) update -qq
	DEBIAN_FRONTEND=noninteractive $(APT) install -y -qq --no-install-recommends postgresql </dev/null

.PHONY: test-clients
test-clients: $(VENV)/dev.stamp  ## run the tests of clients in other languages, where Go is; TESTS=tests/clients/test_x.py
	$(BIN)/python -m pytest $(or $(TESTS),tests/clients)

.PHONY: ui-packages
ui-packages: $(VENV)/dev.stamp  ## as root, on Debian: install what the tests of the page in a browser need
	$(APT) update -qq
	DEBIAN_FRONTEND=noninteractive $(APT) install -y -qq --no-install-recommends chromium </dev/null
	command -v npm >/dev/null || DEBIAN_FRONTEND=noninteractive $(APT) install -y -qq --no-install-recommends npm </dev/null
	$(PIP) install 'playwright>=1.55,<2'
	mkdir -p $(AXE)
	cd $(AXE) && npm pack --silent axe-core@4.14.1 && tar -xzf axe-core-4.14.1.tgz package/axe.min.js

.PHONY: test-ui
test-ui: $(VENV)/dev.stamp  ## run the tests of the page in a browser, where chromium is; TESTS=tests/ui/test_x.py
	$(BIN)/python -m pytest -m 'not soak' $(or $(TESTS),tests/ui)

.PHONY: integration-packages
integration-packages: $(VENV)/dev.stamp  ## install the libraries that tuner.integrations bridges to, with torch
	$(PIP) install --no-compile --require-hashes -r requirements-integrations.lock

.PHONY: test-integrations
test-integrations: $(VENV)/dev.stamp  ## run the tests of tuner.integrations, its examples and the notebook; TESTS=tests/integrations/test_x.py
	$(BIN)/python -m pytest -n 2 --dist worksteal $(or $(TESTS),tests/integrations)

.PHONY: test-kubeflow
test-kubeflow: .venv-kubeflow/stamp  ## run the tests of the Kubernetes client beside Kubeflow's SDK, which needs an older package
	.venv-kubeflow/bin/python -m pytest -n 2 $(or $(TESTS),$(KUBE_TESTS))

.PHONY: test-katib
test-katib: $(VENV)/dev.stamp .venv-katib/stamp  ## run Katib's SDK against the controller on the test cluster
	$(BIN)/python -m pytest tests/cluster/test_katib_sdk.py

.PHONY: check
check: $(VENV)/dev.stamp  ## check format, lint, types, import rules and generated code
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python proto/generate.py --check

.PHONY: check-workflows
check-workflows:  ## lint .github/workflows with actionlint: Go 1.26
	"$$(go -C .github/actionlint tool -n actionlint)"

.PHONY: format
format: $(VENV)/dev.stamp  ## format the code, and fix what ruff can fix
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

.PHONY: fuzz
fuzz: $(VENV)/dev.stamp  ## send 20,000 random requests to the service: five minutes; FUZZ_REQUESTS=50000
	FUZZ_REQUESTS=$(or $(FUZZ_REQUESTS),20000) $(BIN)/python -m pytest -s --timeout=3600 tests/service/test_fuzz.py

.PHONY: mutants
mutants: $(VENV)/dev.stamp  ## plant bugs and check that the simulation detects each
	$(MUTANTS)

.PHONY: bench
bench: $(VENV)/dev.stamp  ## measure, and write the figures to docs/benchmarks.md
	$(BIN)/python bench/throughput.py $(BENCH)
	$(BIN)/python bench/suggest_latency.py $(BENCH)
	$(BIN)/python bench/suggest_prefetch.py $(BENCH)
	PYTHONPATH=. $(BIN)/python bench/studies.py $(BENCH)
	PYTHONPATH=. $(BIN)/python bench/slow_study.py $(BENCH)
	$(BIN)/python bench/tpe_cost.py
	$(BIN)/python bench/katib_suggestions.py $(BENCH)
	$(BIN)/python bench/collectors.py
	$(BIN)/python bench/function_overhead.py $(BENCH)

.PHONY: bench-cluster
bench-cluster: cluster-binaries cluster-images  ## as root: measure on a cluster made here, and write the figures there too
	PYTHONPATH=. $(BIN)/python bench/cluster.py $(BENCH)

.PHONY: docs
docs: $(DOCS)/stamp  ## build the documentation site into build/docs; a dead link fails
	PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build

.PHONY: docs-serve
docs-serve: $(DOCS)/stamp  ## show the documentation site on localhost:8000, built again when a page changes
	PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs serve --watch docs_site

.PHONY: picture
picture: $(VENV)/dev.stamp  ## record the README's picture from a real run
	$(PIP) install 'pyte>=0.8'
	$(BIN)/python bench/picture.py

.PHONY: torch-packages
torch-packages: $(VENV)/dev.stamp  ## install what the tests with torch need: three gigabytes, a minute and a half
	$(PIP) install --no-compile --require-hashes -r requirements-torch.lock

.PHONY: test-torch
test-torch: torch-packages  ## run the tests of the programs that train with torch; all tests include them once it is there
	TUNER_TEST_TORCH_REQUIRED=1 $(BIN)/python -m pytest $(or $(TESTS),tests/trial tests/e2e/test_examples.py)

.PHONY: test-lowest test-newest
test-lowest: .venv-lowest/stamp  ## run tests with the lowest versions that pyproject.toml allows, on PYTHON=python3.11
test-newest: .venv-newest/stamp  ## run tests with the newest versions that pyproject.toml allows
test-lowest test-newest: test-%:
	.venv-$*/bin/python -m pytest -m 'not soak' -n $(JOBS) --maxprocesses=8 --dist worksteal $(or $(TESTS),$(RANGE_TESTS))

.PHONY: image-digits
image-digits: $(VENV)/demo.stamp  ## build the digits trial's image with docker, podman or buildah: BASE=python:3.11-slim TAG=tuner/digits:1
	PYTHON=$(BIN)/python BASE='$(BASE)' TAG='$(TAG)' trial_image/build.sh digits

.PHONY: image-cifar10
image-cifar10:  ## build the CIFAR-10 trial's image: TORCH=cuda|cpu BASE=python:3.11-slim TAG=tuner/cifar10:1 WHEELS=… DATA=…
	TORCH='$(or $(TORCH),cuda)' BASE='$(BASE)' TAG='$(TAG)' WHEELS='$(WHEELS)' DATA='$(DATA)' trial_image/build.sh cifar10

.PHONY: image-server
image-server: $(VENV)/demo.stamp sbom  ## build the image of `tuner serve`: BASE=python:3.11-slim@sha256:… TAG=tuner/server:1 WHEELS=…
	PYTHON=$(BIN)/python BASE='$(BASE)' TAG='$(TAG)' WHEELS='$(WHEELS)' SBOM=dist/tuner-server.cdx.json trial_image/build.sh server

.PHONY: image-collector
image-collector:  ## build the image of the sidecar that collects metrics, where Go is: GOARCH=amd64|arm64 TAG=tuner/collector:1
	TAG='$(TAG)' trial_image/build.sh collector

.PHONY: dist
dist: $(RELEASE)/stamp  ## build wheel and source archive into dist/, check them, and run the README with the wheel alone
	rm -f dist/*.whl dist/*.tar.gz
	$(RELEASE)/bin/uv build --quiet
	$(RELEASE)/bin/twine check --strict dist/*.whl dist/*.tar.gz
	.ci/install dist/*.whl

.PHONY: images
images:  ## with buildah: build the images of a release as OCI archives in dist/, and write their digests; BASE=… as above
	mkdir -p dist
	rm -f dist/images.txt
	for image in $(IMAGES); do \
	  tag=tuner/$$image:$(VERSION) archive=dist/tuner-$$image-$(VERSION).tar; \
	  BUILDER=buildah $(MAKE) image-$$image TAG=$$tag && \
	  buildah push --quiet --digestfile build/digest $$tag oci-archive:$$archive:$$tag && \
	  echo "$$(cat build/digest)  $$tag" >>dist/images.txt || exit 1; \
	done

.PHONY: release
release:  ## make all of a release in dist/: wheel, sources, bill of materials, documentation, images; TAG=v0.1.0
	@test "$(or $(TAG),v$(VERSION))" = v$(VERSION) || { echo "the tag $(TAG) is not v$(VERSION), see suggest/distribution.py" >&2; exit 1; }
	$(MAKE) dist sbom docs
	tar -czf dist/tuner-docs-$(VERSION).tar.gz -C build docs
	if command -v buildah >/dev/null; then $(MAKE) images; else echo 'no images: install buildah, then run make images' >&2; fi
	cd dist && sha256sum *.whl *.tar.gz *.json $$(ls images.txt 2>/dev/null) | tee SHA256SUMS

.PHONY: sbom
sbom: $(RELEASE)/stamp  ## write the software bill of materials of that image (CycloneDX) to dist/
	mkdir -p build dist
	sed 's/^dynamic = .*/version = "$(VERSION)"/' pyproject.toml >build/pyproject.toml
	$(RELEASE)/bin/cyclonedx-py requirements --pyproject build/pyproject.toml --mc-type application \
	  --output-reproducible -o dist/tuner-server.cdx.json deploy/requirements.lock

.PHONY: lock
lock: $(RELEASE)/stamp  ## update the lock files after a change of pyproject.toml; LOCK=--upgrade takes the newest versions
	$(COMPILE) pyproject.toml --extra examples --extra kubernetes --extra postgres --group dev -o requirements.lock
	$(COMPILE) pyproject.toml --extra examples --extra cifar10 -c requirements.lock -o requirements-torch.lock
	$(COMPILE) pyproject.toml $(addprefix --extra ,$(INTEGRATIONS)) --group integrations \
	  -c requirements.lock -c requirements-torch.lock -o requirements-integrations.lock
	$(COMPILE) pyproject.toml --extra kubernetes --extra postgres --extra archive --extra cmaes -c requirements.lock -o deploy/requirements.lock
	$(COMPILE) --group docs -o docs/requirements.lock

.PHONY: clean
clean:  ## remove what make made
	rm -rf $(VENV) .venv-proto .venv-lowest .venv-newest .venv-kubeflow .venv-katib $(RELEASE) $(DOCS) .demo build dist
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps lie inside the environment, so that removing it starts over; a changed pyproject.toml installs again.
$(VENV)/pip.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else 1)' 2>/dev/null || { \
	  echo "tuner needs Python 3.11 or later, and '$(PYTHON)' is older or missing; try: make PYTHON=python3.13 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade 'pip>=25.1'
	@touch $@

# Not quiet: this is the first thing that a person sees, and it takes most of a minute.
$(VENV)/demo.stamp: $(VENV)/pip.stamp pyproject.toml
	@echo 'installing tuner and the packages that it needs into $(VENV)'
	@$(filter-out --quiet,$(PIP)) install -e '.[examples]'
	@touch $@

# What is tested is what the lock file says, each package by its hash.
$(VENV)/dev.stamp: $(VENV)/pip.stamp pyproject.toml requirements.lock
	$(PIP) install --require-hashes -r requirements.lock
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@ $(VENV)/demo.stamp

# Kubeflow's SDK 0.5 demands kubernetes < 36.
.venv-kubeflow/stamp: pyproject.toml
	$(PYTHON) -m venv .venv-kubeflow
	.venv-kubeflow/bin/python -m pip --disable-pip-version-check --quiet install --upgrade 'pip>=25.1'
	.venv-kubeflow/bin/python -m pip --disable-pip-version-check --quiet install --group dev \
	  -e '.[kubernetes-asyncio]' 'kubeflow==0.5.0'
	@touch $@

# Katib's SDK demands protobuf < 5, and kubernetes 37 breaks it.
.venv-katib/stamp: Makefile
	$(PYTHON) -m venv .venv-katib
	.venv-katib/bin/python -m pip --disable-pip-version-check --quiet install 'kubeflow-katib==0.19.0' 'kubernetes==35.*' \
	  'kubeflow==0.5.0'
	@touch $@

# The lowest versions of what pyproject.toml names with the newest of what these need, or the newest of all.
.venv-lowest/stamp: RESOLUTION := lowest-direct
.venv-newest/stamp: RESOLUTION := highest
.venv-lowest/stamp .venv-newest/stamp: .venv-%/stamp: pyproject.toml $(RELEASE)/stamp
	$(PYTHON) -m venv .venv-$*
	$(RELEASE)/bin/uv pip compile --quiet --resolution $(RESOLUTION) --only-binary :all: --python .venv-$*/bin/python \
	  pyproject.toml $(addprefix --extra ,$(LIGHT)) --group dev -o .venv-$*/requirements.txt
	.venv-$*/bin/python -m pip --disable-pip-version-check --quiet install -r .venv-$*/requirements.txt
	.venv-$*/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --no-build-isolation -e .
	@touch $@

$(RELEASE)/stamp: Makefile
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip --disable-pip-version-check --quiet install 'uv==0.13.9' 'cyclonedx-bom==7.5.0' 'twine==7.0.0'
	@touch $@

# Without the project itself: the references need its parsers only, which import nothing else.
$(DOCS)/stamp: docs/requirements.lock
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes -r docs/requirements.lock
	@touch $@
