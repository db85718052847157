# `make demo` runs the main job, `make test` the tests of the core, `make check` everything, `make docs` builds the site.
# Each sets up its own virtual environment in .venv on first use.

PYTHON ?= python3
BIN := .venv/bin
DEMO_TABLE := data/measurements/h200/unseen.csv.gz
# Modules are compiled when they are first imported: most never are.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

# Tests start many processes: without compiled modules each would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check sizes lint golden mutants logic docs package release oldest fuzz clean

demo: .venv/package-installed
	$(BIN)/gemm-model predict --input $(DEMO_TABLE) --output results/h200 --html results/h200/page.html

test: .venv/tests-installed
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow"

# All tests (documentation, a browser, killed workers, hostile input and campaigns' tables too), sizes, the site and the package.
check: .venv/checks-installed sizes
	$(BIN)/python -m pytest -n 2 --dist loadgroup
	$(MAKE) docs package oldest

sizes:
	$(PYTHON) scripts/sizes.py

lint: .venv/checks-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# What the shipped calibration says, for the gate to hold it to: read the diff.
golden: .venv/checks-installed
	$(BIN)/python -m tests.gate.write

# Which damage to a number the gate would miss; minutes.
mutants: .venv/checks-installed
	$(BIN)/python -m tests.gate.mutants

# Which damage to a folder's operators and conditions its own tests would miss; a run of them for each change.
logic: .venv/checks-installed
	$(BIN)/python -m tests.gate.logic $(FOLDER)

docs: .venv/docs-installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Wheel and sdist, built and tried away from the repository.
package:
	$(PYTHON) scripts/try_package.py wheel

# Sdist, wheel and SBOM of a release, in dist/; the version comes from the last tag.
release:
	$(PYTHON) scripts/try_package.py release

# The tests of the core with the oldest versions that pyproject.toml admits.
oldest:
	$(PYTHON) scripts/try_package.py oldest

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/package-installed: .venv/bin/python pyproject.toml
	$(PIP_INSTALL) --editable '.[plot]'
	touch $@

# One call installs the package too: it is built once. Tests of packages that it leaves to `make check` are skipped.
.venv/tests-installed: .venv/bin/python pyproject.toml
	$(PIP_INSTALL) --editable '.[test]'
	touch .venv/package-installed $@

# The benchmark extra is installed too: its kernels are compiled in the tests, which needs no GPU. FlashInfer and
# Vidur come alone: what their readers of tables import comes with the others, and the rest is much larger.
.venv/checks-installed: .venv/bin/python pyproject.toml constraints-test.txt
	$(PIP_INSTALL) --constraint constraints-test.txt --editable '.[dev]'
	$(PIP_INSTALL) --constraint constraints-test.txt --no-deps flashinfer-python 'vidur; python_version < "3.14"'
	touch .venv/package-installed .venv/tests-installed $@

.venv/docs-installed: .venv/package-installed
	$(PIP_INSTALL) --editable '.[docs]'
	touch $@

# Ten thousand hostile and ordinary words, files and Python calls; the tests run 1,500 others.
fuzz: .venv/checks-installed
	$(BIN)/python -m tests.fuzz --cases 10000

clean:
	rm -rf .venv results build
