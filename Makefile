# One-word targets; `make help` lists them. CI calls the same ones.
SHELL := /bin/bash
.DEFAULT_GOAL := help
UV := $(shell command -v uv || echo $(CURDIR)/.tools/bin/uv)
RUN := $(UV) run --no-sync
# Modules with rewritten assertions are kept, also where PYTHONDONTWRITEBYTECODE is set: rewriting is most of the collection.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(RUN) pytest tests
# Tests of whole systems wait for most of their time, so that twice as many as there are cores keep the cores busy.
WAITING := $(shell echo $$((2 * $$(nproc))))

.PHONY: help setup native demo kube-demo net-lab test test-all repeat test-changed examples soak lint format bench image dist sanitize stubs docs site clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: ## bring a fresh machine to the point where .venv/bin/calabash works
	@./tools/bootstrap --try

# What the targets below stand on; silent when everything is in place.
.PHONY: ready
ready:
	@./tools/bootstrap

native: ## compile the C libraries (warnings are errors)
	@$(MAKE) --no-print-directory -C native

demo: ready ## three tenants on one card for about 20 seconds, every limit checked
	@$(RUN) calabash demo

kube-demo: ## three tenants, a gang and a queue on a real Kubernetes with simulated cards, in a minute; STAY=1 leaves it to you
	@./tools/bootstrap --kube
	@$(RUN) python -m tools.kube_demo $(if $(filter-out 0 no,$(STAY)),--stay)

net-lab: ready ## a network of OVN in namespaces: three hosts, two gateway hosts and an outside; `calabash net down` ends it
	@$(RUN) calabash net up --hosts 3 --host none --gateways 2
	@$(RUN) calabash net status

test: ## the quick tests, in at most eight minutes: no root, Go, browser or network namespaces
	@./tools/bootstrap --quick
	@$(PYTEST) -n auto --dist worksteal -m quick

test-all: ## `make test`, and then all other tests: whole pools, clusters, networks, browsers, hostile users
	@./tools/bootstrap --tests
	@failed=0; $(MAKE) --no-print-directory test || failed=1; \
		CALABASH_FAILED_KEEP=1 $(PYTEST) -n $(WAITING) --dist loadscope -m "complete or system" || failed=1; exit $$failed

repeat: ## run the tests that failed in `make test-all` once more, alone, if they are five at most
	@$(RUN) python -m tools.repeat

test-changed: ## the tests of the packages that differ from BASE (what is not committed), and of those that import them
	@./tools/bootstrap --quick
	@$(RUN) python -m tools.changed $(if $(BASE),--base $(BASE))

examples: ready ## the property tests on new random examples, ROUNDS times (10)
	@for round in $$(seq $(or $(ROUNDS),10)); do \
		CALABASH_EXAMPLES=random $(PYTEST) -n auto -q -m "hypothesis and quick" || exit 1; done

soak: ready ## everything there is on one pool of simulated cards, with random faults, for MINUTES (60); SEED is drawn and printed
	@$(RUN) python -m bench.soak --minutes $(or $(MINUTES),60) $(if $(SEED),--seed $(SEED))

lint: ready ## style, types, layers, language, links
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) mypy
	@$(RUN) lint-imports
	@$(RUN) python -m tools.language
	@$(RUN) python -m tools.links
	@$(RUN) python -m tools.cformat --check
	@$(RUN) python -m tools.ccircles

format: ready ## rewrite sources to the house style
	@$(RUN) ruff check --fix .
	@$(RUN) ruff format .
	@$(RUN) python -m tools.cformat

bench: ready ## all benchmarks; results go to docs/measurements/
	@$(RUN) python -m bench

image: ready ## the product's image as an OCI archive, in build/image, without a registry or a container engine
	@$(RUN) python -m tools.image

dist: ready ## a release in dist/: wheels, source distribution, image, chart, SBOM and SHA256SUMS
	@$(RUN) python -m tools.dist

sanitize: ready ## the native tests under address and undefined-behaviour sanitizers
	@$(MAKE) --no-print-directory -C native sanitize

stubs: ready ## regenerate the kubelet's gRPC messages from proto/
	@$(RUN) python -m tools.stubs

docs: ready ## regenerate docs/reference, and what the chart has from the product
	@$(RUN) python -m tools.chart
	@$(RUN) python -m tools.reference
	@$(RUN) python -m tools.reference_api

site: ready ## the documentation site, in build/site; fails on dead links
	@NO_MKDOCS_2_WARNING=1 $(RUN) python -m mkdocs build --strict

clean: ## remove what was built
	rm -rf build dist src/calabash/_native .tools
