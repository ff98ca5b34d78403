# Needs make and a python3 with venv; everything else is installed into .venv on first use. The report's viewer comes
# built: only to change it you need node (20.12 or newer) and npm, and only its tests need chromium.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test slow trainers lint accuracy bench hta viewer docs clean

demo: .venv/.installed ## what gpuprof says of a run that comes with it
	@$(BIN)/gpuprof demo

test: .venv/.installed-dev ## the tests (ARGS=tests/unit: seconds); those that need what is not there are skipped, in CI failed
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest $(ARGS)

slow: .venv/.installed-dev ## the tests that take minutes
	@HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -m "slow or hypothesis" $(ARGS)

trainers: .venv/.installed-dev ## torch for CPUs and what people train with, for the tests that train (CI; 1 GB)
	@$(PIP) --extra-index-url https://download.pytorch.org/whl/cpu torch transformers peft accelerate trl datasets lightning sentence-transformers

accuracy: .venv/.installed-dev ## the floors under the accuracy: replay, unprofiled step, verdicts, fixes, projection
	@$(BIN)/python -m pytest -n 2 --dist loadfile tests/accuracy $(ARGS)

lint: .venv/.installed-dev ## style, format and types
	@$(BIN)/ruff check && $(BIN)/ruff format --check && $(BIN)/pyright --pythonpath $(BIN)/python

bench: .venv/.installed-dev .venv-hta/.installed ## loading, beside json, orjson, HTA and the machine's own limit
	@$(BIN)/python -m benchmarks.load --hta-python .venv-hta/bin/python $(ARGS)

hta: .venv-hta/.installed ## HolisticTraceAnalysis, in a venv of its own: it wants an older pandas

viewer: viewer/node_modules/.installed ## the report's viewer, checked and built into the package: commit what changed
	@cd viewer && npm run --silent check && npm run --silent build

docs: .venv/.installed-docs ## the picture of the report, the pages that are written by programs, and the site into site/
	@$(BIN)/python docs/picture.py
	@$(BIN)/python -m benchmarks.glossary_page
	@$(BIN)/python -m benchmarks.architecture_page
	@$(BIN)/python -m benchmarks.readme_cases
	@$(BIN)/python -m gpuprof explain --markdown docs/findings
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --site-dir site

clean:
	rm -rf .venv .venv-hta viewer/node_modules viewer/build

# A stamp is newer than what it was made from, so an unchanged checkout installs nothing.
.venv/.installed: pyproject.toml constraints.txt
	@echo "installing gpuprof into .venv (once) …"
	@$(PYTHON) -m venv .venv
	@$(PIP) --editable .
	@touch $@

.venv/.installed-dev: .venv/.installed
	@echo "installing what the tests need into .venv (once) …"
	@$(PIP) --editable '.[dev]'
	@touch $@

.venv/.installed-docs: .venv/.installed-dev
	@echo "installing what the site needs into .venv (once) …"
	@$(PIP) --editable '.[docs]'
	@touch $@

.venv-hta/.installed: pyproject.toml constraints.txt
	@echo "installing HTA into .venv-hta (once) …"
	@$(PYTHON) -m venv .venv-hta
	@.venv-hta/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[hta]'
	@touch $@

viewer/node_modules/.installed: viewer/package.json viewer/package-lock.json
	@echo "installing the viewer's tools into viewer/node_modules (once) …"
	@cd viewer && npm ci --loglevel=error --no-audit --no-fund
	@touch $@
