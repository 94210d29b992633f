# Everything a developer does here has a verb; `make help` lists them. Nothing outside this directory is touched.
# A verb installs what it needs the first time, in a virtual environment of its own, and not again until
# pyproject.toml changes.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
JOBS   ?= 2

# Where the packages come from is pip's business: set PIP_INDEX_URL and its like. On Linux the default index gives a
# torch with CUDA inside; PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu gives a far smaller one.
PIP_INSTALL := -m pip --disable-pip-version-check --quiet install

DEV   := .venv/bin/python
PEERS := .venv-peers/bin/python
BROWSER := .venv-browser/bin/python
CLOUD := .venv-cloud/bin/python
DOCS  := .venv-docs/bin/python
BUILT := .venv-wheel/bin/python

# Tests start hundreds of interpreters, so all is compiled before. Where a test limits the size of files, Python would
# write half a module.
export PYTHONDONTWRITEBYTECODE := 1

# In continuous integration, the slowest tests of each run are listed, so that one that has become slow is seen.
SLOWEST := $(if $(CI),--durations=20)

SCHEMA := .venv/bin/check-jsonschema --quiet --builtin-schema

RAY := .venv-ray/bin/python

LINTED := shardvar spec_tests benchmarks examples docs/conf.py docs/apply_delta.py docs/derivation.py docs/tensor_digest.py docs/notebooks hatch_build.py

# The folders of tests that need nothing but the developer's tools.
LAYERS := $(filter-out peers notebook browser cloud,$(sort $(notdir $(patsubst %/,%,$(dir $(wildcard spec_tests/*/test_*.py))))))

.DEFAULT_GOAL := help
.PHONY: help manual setup demo test check docs laws rules layers picture crash vectors peers browser bench wheel notebook tour clean

help: ## list these verbs
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "LAYER is one of: $(LAYERS)"

setup: .venv/installed ## install shardvar and the developer's tools in .venv

demo: .venv/installed ## make a sharded checkpoint, inspect it, reshard it, verify and diff the result
	@PATH="$(CURDIR)/.venv/bin:$$PATH" bash examples/demo.sh

# shardvar.torch and shardvar.jax import what the developer's environment lacks; `make peers` tests them.
test: .venv/installed ## run the tests and doctests, then the quick ones on the built wheel; LAYER=wire: one folder's tests
ifdef LAYER
	$(DEV) -m pytest -q -n $(JOBS) --dist worksteal spec_tests/$(LAYER)
else
	$(DEV) -m compileall -q shardvar spec_tests
	$(DEV) -m pytest -q -n $(JOBS) --dist worksteal --ignore=spec_tests/architecture $(SLOWEST)
	$(DEV) -m pytest -q -n $(JOBS) --doctest-modules --ignore=shardvar/torch --ignore=shardvar/jax shardvar spec_tests/helpers
	@$(MAKE) --no-print-directory wheel
endif

check: .venv/installed ## lint, format, types, architecture, rules
	$(DEV) -m ruff check $(LINTED)
	$(DEV) -m ruff format --check $(LINTED)
	$(DEV) -m mypy
	$(DEV) -m vulture
	$(SCHEMA) vendor.github-workflows .github/workflows/*.yml
	$(SCHEMA) vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/checkpoint.yml
	$(SCHEMA) vendor.citation-file-format CITATION.cff
	$(DEV) -m pytest -q spec_tests/architecture spec_tests/project/test_repository.py spec_tests/docs/test_rules.py

docs: .venv-docs/installed ## build the site in build/docs; warnings are errors, and so is a reference that leads nowhere
	rm -rf build/docs
	$(DOCS) -m sphinx --quiet --nitpicky --fail-on-warning --keep-going docs build/docs
	@echo "file://$(CURDIR)/build/docs/index.html"

.PHONY: wrong fuzz
wrong: .venv/installed ## break a right adapter in every known way; print how many the kit catches in each family
	JOBS=$(JOBS) $(DEV) -m spec_tests.wrong

PER_LAYER ?= 20

# The tests of shardvar.torch and shardvar.jax need the real frameworks.
MUTATION = -m spec_tests.mutation $(if $(SEED),--seed $(SEED)) --per-layer $(PER_LAYER) $(if $(LAYER),--layer $(LAYER))

.PHONY: mutation matrix
mutation: .venv/installed .venv-peers/installed ## change PER_LAYER random lines of each layer (LAYER=wire: of one; SEED=7), and see what its tests notice
	JOBS=$(JOBS) $(DEV) $(MUTATION)
	JOBS=$(JOBS) $(PEERS) $(MUTATION) --peers

matrix: .venv/installed .venv-peers/installed ## find all tests that notice each of PER_LAYER random mutants (LAYER, SEED as above), and list spare tests
	JOBS=$(JOBS) $(DEV) $(MUTATION) --matrix
	JOBS=$(JOBS) $(PEERS) $(MUTATION) --matrix --peers

FUZZ := .venv-fuzz/bin/python

fuzz: .venv-fuzz/installed ## fuzz every reader, FUZZ_SECONDS each (60)
	$(FUZZ) -m spec_tests.fuzzing

.venv-fuzz/installed: pyproject.toml
	$(PYTHON) -m venv .venv-fuzz
	$(FUZZ) $(PIP_INSTALL) --upgrade "pip>=25.1"
	$(FUZZ) $(PIP_INSTALL) --editable . --group fuzz
	@touch $@

laws: .venv/installed ## look for counterexamples with many more examples a property: EXAMPLES (500)
	$(DEV) -m pytest -q -n $(JOBS) --dist worksteal --hypothesis-profile=laws -m hypothesis

rules: .venv/installed ## write docs/rules.md: each sentence of the RFCs, what obeys it, which tests hold it, who keeps it
	$(DEV) -m spec_tests.rules

layers: .venv/installed ## draw docs/images/layers.svg: the layers, with an arrow for each import between them
	$(DEV) -m spec_tests.helpers.layer_picture

manual: .venv/installed ## write what is made from the parser: options in docs/cli, keys of JSON, docs/shardvar.1
	$(DEV) -m spec_tests.helpers.cli_pages

picture: .venv/installed .venv-browser/installed ## draw docs/images/inspect.svg, and take view.png, a page of shardvar view, in headless Chromium
	$(DEV) -m spec_tests.helpers.inspect_picture
	@if .ci/chromium; then $(BROWSER) -m spec_tests.helpers.view_picture; fi

# Where `make test` takes a sample of the combinations.
THOROUGH = $(shell grep -rlE "thoroughness|mark\.sample" spec_tests --include="test_*.py")

crash: .venv/installed .venv-peers/installed ## kill 2,000 writers at random system calls, and try every combination where the tests take a sample
	OPENBLAS_NUM_THREADS=1 $(DEV) -m spec_tests.helpers.killed_writers 2000
	EXHAUSTIVE=1 $(DEV) -m pytest -q -n $(JOBS) --dist worksteal $(SLOWEST) $(filter-out spec_tests/peers/%,$(THOROUGH))
	EXHAUSTIVE=1 $(PEERS) -m pytest -q -W default -n $(JOBS) --dist loadfile $(SLOWEST) $(filter spec_tests/peers/%,$(THOROUGH))

vectors: .venv/installed ## make the published vectors again, and pack them into shardvar/vectors/vectors.zip if one changed
	$(DEV) -m spec_tests.vector_generators.make
	$(DEV) -m spec_tests.vector_generators.digests

peers: .venv-peers/installed ## install the real frameworks in .venv-peers; parity tests, and a quarter of the cases of the conformance kit on each
	$(PEERS) -m pytest -q -rs -W default -n $(JOBS) --dist loadfile $(SLOWEST) spec_tests/peers
	$(PEERS) -m spec_tests.conformance.run --sample

.PHONY: conformance
conformance: .venv-peers/installed ## judge the real frameworks with the whole kit, and write docs/conformance.md
	$(PEERS) -m spec_tests.conformance.run
	$(PEERS) -m spec_tests.rules

.PHONY: ray
ray: .venv-ray/installed ## install Ray; train with it, kill a worker, and go on with another number of workers
	$(RAY) -m pytest -q -rs -W default spec_tests/peers/test_ray_peer.py

.venv-ray/installed: pyproject.toml
	$(PYTHON) -m venv .venv-ray
	$(RAY) $(PIP_INSTALL) --upgrade "pip>=25.1"
	$(RAY) $(PIP_INSTALL) torch==2.13.0
	$(RAY) $(PIP_INSTALL) --editable . --group ray
	@touch $@

notebook: .venv-docs/notebook ## open the notebooks of docs/notebooks in JupyterLab, the first one in front
	$(DOCS) -m jupyterlab docs/notebooks/geometry.ipynb

tour: .venv-docs/installed ## execute the notebooks, and compare each picture, law and solution with what is stored
	$(DOCS) -m pytest -q -W default spec_tests/docs/test_stored_notebooks.py spec_tests/notebook

.PHONY: outputs
outputs: .venv-docs/installed ## execute the notebooks and store their outputs, after a change of a cell or of what it shows
	$(DOCS) -m spec_tests.helpers.notebooks

browser: .venv-browser/installed ## open the pages of shardvar view in headless Chromium: search, click, hover, keys
	@if .ci/chromium; then $(BROWSER) -m pytest -q -p no:cacheprovider spec_tests/browser; fi

.PHONY: cloud
cloud: .venv-cloud/installed build/azurite/installed ## write and read buckets of S3, Google and Azure, as emulators on this machine have them
	$(CLOUD) -m pytest -q -rs -p no:cacheprovider -n $(JOBS) --dist worksteal $(SLOWEST) spec_tests/cloud spec_tests/storage/test_remote.py

bench: .venv-peers/installed .venv-cloud/installed ## measure beside the peers, and write docs/performance.md (half an hour); SUBJECTS="table tiny": these alone
	$(PEERS) -m benchmarks --write $(SUBJECTS)
	$(if $(or $(findstring simulate,$(SUBJECTS)),$(if $(SUBJECTS),,all)),$(CLOUD) -m benchmarks --write simulate)

wheel: .venv/installed ## build the sdist and the wheel, install it alone in .venv-wheel, run quick tests and demo on it
	rm -rf build/dist .venv-wheel
	$(DEV) -m build --no-isolation --outdir build/dist . > /dev/null
	$(PYTHON) -m venv .venv-wheel
	$(BUILT) $(PIP_INSTALL) "$$(echo build/dist/shardvar-*.whl)[testing]"
	$(BUILT) -I -c "import shardvar; assert 'site-packages' in shardvar.__file__, shardvar.__file__"
	$(BUILT) -I -m pytest -q -m smoke -p no:cacheprovider
	PATH="$(CURDIR)/.venv-wheel/bin:$$PATH" bash examples/demo.sh > build/demo-of-wheel.txt

clean: ## remove everything that these verbs made
	rm -rf build dist .venv .venv-* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find shardvar spec_tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

# Dependency groups need pip 25.1; a plain Python 3.11 comes with an older one.
.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(DEV) $(PIP_INSTALL) --upgrade "pip>=25.1"
	$(DEV) $(PIP_INSTALL) --editable . --group dev
	@touch $@

.venv-docs/installed: pyproject.toml
	$(PYTHON) -m venv .venv-docs
	$(DOCS) $(PIP_INSTALL) --upgrade "pip>=25.1"
	$(DOCS) $(PIP_INSTALL) --editable . --group docs
	@touch $@

.venv-docs/notebook: .venv-docs/installed
	$(DOCS) $(PIP_INSTALL) --editable ".[notebook]"
	@touch $@

.venv-browser/installed: pyproject.toml
	$(PYTHON) -m venv .venv-browser
	$(BROWSER) $(PIP_INSTALL) --upgrade "pip>=25.1"
	$(BROWSER) $(PIP_INSTALL) --editable . --group browser
	@touch $@

.venv-cloud/installed: pyproject.toml
	$(PYTHON) -m venv .venv-cloud
	$(CLOUD) $(PIP_INSTALL) --upgrade "pip>=25.1"
	$(CLOUD) $(PIP_INSTALL) --editable ".[cloud,deltas]" --group cloud
	@touch $@

# Azure's emulator is a program of node. Without npm its tests are skipped, and say so.
build/azurite/installed:
	@mkdir -p build/azurite
	@if command -v npm > /dev/null; then npm install --silent --no-audit --no-fund --prefix build/azurite azurite@3.35.0; \
	else echo "npm is not installed: the tests of Azure will be skipped"; fi
	@touch $@

# Models that maps convert to. Without their own dependencies, which bring other versions of TensorFlow and torch: what
# the models need of them is there already, or in this list.
HUBS := keras-hub==0.32.0 openai-whisper==20250625 tiktoken more-itertools numba llvmlite regex

# torch goes first and alone: any other package of the group would accept, and fetch, another version of it.
.venv-peers/installed: pyproject.toml
	$(PYTHON) -m venv .venv-peers
	$(PEERS) $(PIP_INSTALL) --upgrade "pip>=25.1"
	$(PEERS) $(PIP_INSTALL) torch==2.13.0
	$(PEERS) $(PIP_INSTALL) --editable . --group peers
	$(PEERS) $(PIP_INSTALL) --no-deps $(HUBS)
	@touch $@
