# The front door. `make help` says what there is; every target installs what it needs, once.

# One kind of build for all: static, as the image ships it, so that nothing is compiled twice.
HOST := $(shell rustc -vV | sed -n 's/^host: //p')
export CARGO_BUILD_TARGET := $(HOST)
export RUSTFLAGS := -C target-feature=+crt-static
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)
DENY := $(CACHE)/lockstep-tools/cargo-deny-0.20.2/bin/cargo-deny
FUZZ := $(CACHE)/lockstep-tools/cargo-fuzz-0.13.2/bin/cargo-fuzz
CYCLONEDX := $(CACHE)/lockstep-tools/cargo-cyclonedx-0.5.9/bin/cargo-cyclonedx
MUTANTS := $(CACHE)/lockstep-tools/cargo-mutants-27.1.0/bin/cargo-mutants
STEP := .ci/step
# only root can run a cluster
ROOT := $(filter 0,$(shell id -u))

.DEFAULT_GOAL := help
.PHONY: help demo test test-long zero-loss simulate scenarios bench fuzz mutants fmt lint audit image sbom reproducible packages programs peers clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

demo: packages programs image ## a real cluster, a real rollout, narrated; KEEP=1 leaves the cluster up
	@KEEP=$(KEEP) tests/cluster/demo target/image/lockstep

test: packages programs peers ## all tests, those on a real cluster included
	@$(STEP) "compile the tests" cargo test --locked --no-run
	@$(STEP) "run the tests" cargo test --locked --no-fail-fast

# the oldest and the newest Kubernetes beside the usual one
VERSIONS := 1.30 1.37

test-long: test ## what repeats and soaks, and other versions of Kubernetes, for some hours
	@$(STEP) "many random worlds" env LOCKSTEP_SEEDS=20000 LOCKSTEP_SEEDS_FROM=1000 cargo test --locked --test simulation seeds
	@$(STEP) "deliberate faults are found" cargo test --locked --test simulation sabotage
	@$(STEP) "requests lost behind HAProxy" cargo test --locked --test cluster -- --ignored zero_loss
	@$(STEP) "cert-manager" tests/cluster/build cert-manager > /dev/null
	@$(STEP) "certificates of cert-manager" cargo test --locked --test cluster -- --ignored cert_manager
	@for version in $(VERSIONS); do export LOCKSTEP_KUBERNETES=$$version; \
		$(STEP) "build Kubernetes $$version" tests/cluster/build > /dev/null && \
		$(STEP) "cluster tests on Kubernetes $$version" cargo test --locked --test cluster || exit 1; done
	@$(STEP) "two builds of the image" .ci/reproducible
	@for round in 1 2 3; do $(STEP) "cluster tests, again ($$round)" cargo test --locked --test cluster || exit 1; done

zero-loss: packages programs ## requests lost behind a real HAProxy while pods come and go, as a table; ROLLOUTS=3 is quicker
	@$(STEP) "zero loss" cargo test --locked --test cluster -- --ignored zero_loss

simulate: ## random worlds of the simulation; SEEDS=5000 runs so many, SEED=7 replays one
	@LOCKSTEP_SEEDS=$(SEEDS) LOCKSTEP_SEED=$(SEED) cargo test --locked --test simulation seeds

scenarios: ## the scenario files, run by the simulation; DIR=folder runs others
	@LOCKSTEP_SCENARIOS=$(DIR) cargo test --locked --test simulation scenarios

bench: packages programs ## what a review and a registration cost, as tables and in target/bench; figures are comparable within one run only
	@cargo bench --locked --bench admission
	@cargo bench --locked --bench serving
	@cargo bench --locked --bench registration

fuzz: $(FUZZ) ## hostile input for review, configuration and record; SECONDS=3600 for each of them
	@for target in review configuration record; do \
		PATH=$(dir $(FUZZ)):$$PATH $(STEP) "fuzz $$target" tests/fuzz/run $$target $(or $(SECONDS),60) || exit 1; done

mutants: $(MUTANTS) ## faults put into a pure part, each of which its tests must notice; LANE=registration for that part
	@env -u RUSTFLAGS -u CARGO_BUILD_TARGET PATH=$(dir $(MUTANTS)):$$PATH tests/mutants/run $(or $(LANE),admission)

fmt: ## format the code
	@cargo fmt

lint: packages $(DENY) ## formatting, clippy, licences and bans, scripts, chart
	@$(STEP) "formatting" cargo fmt --check
	@$(STEP) "clippy" cargo clippy --locked --all-targets -- -D warnings
	@$(STEP) "bans, licences, sources" $(DENY) --config .deny.toml --log-level error check bans licenses sources
	@$(STEP) "scripts" shellcheck --severity warning .ci/* certs/make $$(find tests -maxdepth 2 -type f -exec grep -lE '^#!/bin/(ba)?sh' {} +)
	@$(STEP) "chart" sh -c '$$(tests/cluster/build helm)/helm lint --strict --quiet charts/lockstep'

audit: $(DENY) ## known vulnerabilities in what we depend on
	@$(DENY) --config .deny.toml fetch db || { echo "audit: the advisory database cannot be reached, so nothing was checked" >&2; exit 2; }
	@$(DENY) --config .deny.toml check --disable-fetch advisories

image: ## the static binary of the image, target/image/lockstep: the same bytes for the same sources and compilers, wherever they are
	@RUSTFLAGS="$(RUSTFLAGS) --remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)=/cargo" \
		$(STEP) "release build" cargo build --locked --release
	@mkdir -p target/image && cp target/$(HOST)/release/lockstep target/image/

sbom: $(CYCLONEDX) ## what the binary is made of, as CycloneDX, target/image/lockstep.cdx.json
	@mkdir -p target/image
	@PATH=$(dir $(CYCLONEDX)):$$PATH $(STEP) "list of components" .ci/sbom $(HOST) target/image/lockstep.cdx.json

reproducible: ## builds the image's binary in two folders, compares them byte by byte, and says its hash
	@$(STEP) "two builds" .ci/reproducible

# haproxy is a registry that the driver's tests run against, python3-venv holds programs in Python
packages:
	@tests/cluster/packages haproxy shellcheck python3-venv

# moto is the AWS of others; the chart is held against the schemas of Kubernetes; promtool plays alerts and asks the dashboard's queries
peers:
	@$(STEP) "promtool" tests/cluster/build prometheus > /dev/null
ifneq ($(ROOT),)
	@$(STEP) "helm 3" tests/cluster/build helm3 > /dev/null
endif
	@$(STEP) "Python programs of others" sh -c 'tests/integration/python moto && tests/integration/python chart' > /dev/null

# consul is a registry that the driver's tests run against
programs:
	@$(STEP) "Consul" tests/cluster/build consul > /dev/null
ifneq ($(ROOT),)
	@$(STEP) "programs of the test cluster" tests/cluster/build > /dev/null
endif

$(DENY):
	@env -u RUSTFLAGS -u CARGO_BUILD_TARGET $(STEP) "build cargo-deny" \
		cargo install cargo-deny --version 0.20.2 --locked --debug --quiet --root $(CACHE)/lockstep-tools/cargo-deny-0.20.2

$(FUZZ):
	@env -u RUSTFLAGS -u CARGO_BUILD_TARGET $(STEP) "build cargo-fuzz" \
		cargo install cargo-fuzz --version 0.13.2 --locked --debug --quiet --root $(CACHE)/lockstep-tools/cargo-fuzz-0.13.2

$(CYCLONEDX):
	@env -u RUSTFLAGS -u CARGO_BUILD_TARGET $(STEP) "build cargo-cyclonedx" \
		cargo install cargo-cyclonedx --version 0.5.9 --locked --debug --quiet --root $(CACHE)/lockstep-tools/cargo-cyclonedx-0.5.9

$(MUTANTS):
	@env -u RUSTFLAGS -u CARGO_BUILD_TARGET $(STEP) "build cargo-mutants" \
		cargo install cargo-mutants --version 27.1.0 --locked --debug --quiet --root $(CACHE)/lockstep-tools/cargo-mutants-27.1.0

clean: ## remove what was built here; the caches under ~/.cache stay
	@cargo clean
