# Shortcuts. `make test` runs every test; it installs its own dependencies (tests/setup.sh).

SHELL := /bin/bash
PYTEST := cd tests && ../.cache/venv/bin/python -m pytest
DENY_VERSION := 0.20.2
DENY := .cache/cargo-deny-$(DENY_VERSION)/bin/cargo-deny
COVERAGE_VERSION := 0.9.1
COVERAGE := .cache/cargo-llvm-cov-$(COVERAGE_VERSION)/bin/cargo-llvm-cov
MDBOOK_VERSION := 0.5.4
MDBOOK := .cache/mdbook-$(MDBOOK_VERSION)/bin/mdbook
MUTANTS_VERSION := 27.1.0
MUTANTS := .cache/cargo-mutants-$(MUTANTS_VERSION)/bin/cargo-mutants
HELM_VERSION := 3.22.0
HELM := .cache/helm-$(HELM_VERSION)/helm
ZIG_VERSION := 0.17.0
ZIGBUILD_VERSION := 0.24.0
ZIG := .cache/zig-$(ZIG_VERSION)-$(ZIGBUILD_VERSION)
ZIGBUILD := $(ZIG)/bin/cargo-zigbuild
WITH_ZIG := PATH=$(CURDIR)/$(ZIG)/bin:$$PATH

# The number of random programs that `make differential` runs for each RabbitMQ release (about 15 a second on two cores), how
# many of them let time pass and run concurrently, and the first seed (also of `make openapi` and `make spool`).
PROGRAMS ?= 250
TIMED ?= 50
SEED ?= 1

# How many seeds `make crash` gives each simulated disk.
SEEDS ?= 10000

.PHONY: docs front-page package package-test helm static static-here static-elsewhere binaries release image arm64 arm64-test test prepared compiled progress computed quick setup unit loom leveret scenarios differential differential-program openapi cluster hostile bystander lock-profile tails upgrades spool spool-outage spool-study crash soak coverage mutants figures frameworks backlog capacity pika-latency routing-study studies screenshot check run clean

# Cargo has its own jobs.
CARGO := env --unset=MAKEFLAGS cargo
# The workspace as it is linted and unit tested: without jemalloc, whose C code takes a minute to build. The release build has
# it.
WORKSPACE := --workspace --no-default-features --features leveret/bench --locked --quiet
# The documentation's examples are not tests.
UNIT := $(CARGO) test $(WORKSPACE) --lib --bins --tests
LOOM := store/loom,transport/loom,broker/loom,server/loom
# Ends a Rust test that hangs: half an hour is enough to compile and run everything on a slow machine. `timeout` also ends
# cargo's children, for which it runs in its own process group; Ctrl-C is forwarded.
RUST_SECONDS ?= $$((10 * $${LEVERET_PATIENCE:-180}))
bounded = trap 'kill $$!' INT TERM; timeout --kill-after=10 $(RUST_SECONDS) $(1) & wait $$!

# Downloads wait for the network, scenarios mostly wait for each other, and a build often has only one crate to compile, so
# CPU-bound work runs concurrently. Only one cargo uses target/debug at a time, because another would wait for its lock. A
# failing test does not stop the others, so one run reports everything.
test:
	$(MAKE) --jobs=2 --keep-going --output-sync=target setup leveret progress computed

compiled:
	$(UNIT) --no-run

# The scenarios' output appears as it comes, that of the others when each has ended. Their dependencies are built by then.
progress: setup leveret
	@$(MAKE) --output-sync=none READY=yes scenarios

computed: compiled setup leveret
	@failed=; \
	for part in unit loom differential; do \
	  $(MAKE) READY=yes $$part || failed="$$failed $$part"; \
	done; \
	[ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

# Checks a change in progress: lints, unit tests of the crates that differ from BASE, and CLIENT's scenarios on the broker and
# the pool, with the debug build, which also asserts the lock order.
BASE ?= HEAD
CLIENT ?= pika
quick: setup
	.cache/venv/bin/python tests/quick.py --base $(BASE) --client $(CLIENT) -- $(WORKSPACE)

# Installs Debian's RabbitMQ, the five clients and their drivers; skips what is up to date.
setup:
	tests/setup.sh

unit:
	$(call bounded,$(UNIT) --no-fail-fast)
	$(call bounded,$(CARGO) test --package sync --features lock-profile --lib --locked --quiet)

# Model checks concurrent code (crate sync) in every interleaving. With --workspace, dependencies have the same features as in
# the unit tests, and are not built again.
loom:
	$(call bounded,$(CARGO) test --workspace --features $(LOOM) --test interleavings --locked --quiet --no-fail-fast)

leveret:
	$(CARGO) build --release --locked --quiet --package leveret

# Select tests with ARGS, for example: make scenarios ARGS="--target leveret --client pika -k confirms" WORKERS is the number of
# files that run concurrently: they mostly wait, so on two cores four workers take a quarter less time than two. A selection
# runs alone, and shows its output as it comes.
WORKERS ?= $(if $(ARGS),0,4)
scenarios: $(if $(READY),,setup leveret)
	$(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

# Runs random programs on each RabbitMQ release and on the compatible Leveret, and compares them step by step; for more: make
# differential PROGRAMS=100000 SEED=7 RELEASES=4. A failing program is printed as lines of JSON; to run one from a file: make
# differential RELEASES=4 ARGS="--replay file".
RELEASES ?= 3.10 4
differential: $(if $(READY),,setup leveret) differential-program
	failed=; \
	for release in $(RELEASES); do \
	  .cache/venv/bin/python tests/differential/run.py --release $$release --programs $(PROGRAMS) --timed $(TIMED) --seed $(SEED) $(ARGS) \
	    || failed=yes; \
	done; \
	[ -z "$$failed" ]

# Uses the build of the unit tests: a release build would compile lapin and all other dependencies again.
differential-program:
	$(CARGO) build $(WORKSPACE) --bin differential

# A cluster of three RabbitMQ nodes behind the proxy, under load: kills each node ROUNDS times, in turn; then does the same with
# a thousand MQTT sessions at two Leverets, and kills each of those as well.
ROUNDS ?= 1
cluster: setup leveret
	LEVERET_CLUSTER_ROUNDS=$(ROUNDS) $(SHELL) -c '$(PYTEST) -rP blackbox/cluster.py blackbox/mqtt_cluster.py $(ARGS)'

# Calls each operation of the OpenAPI description EXAMPLES times, with values generated from SEED.
EXAMPLES ?= 15
openapi: setup leveret
	LEVERET_OPENAPI_EXAMPLES=$(EXAMPLES) LEVERET_OPENAPI_SEED=$(SEED) $(SHELL) -c '$(PYTEST) blackbox/http_openapi.py $(ARGS)'

# Hostile clients of ten kinds, HOSTILE of each at a time, in front of the broker and of the proxy.
HOSTILE ?= 15000
hostile: setup leveret
	LEVERET_HOSTILE=$(HOSTILE) $(SHELL) -c '$(PYTEST) -rP blackbox/hostile_clients.py $(ARGS)'

# Applications that use Spring AMQP, Celery, Bunny, php-amqplib and aio-pika run concurrently while alarms are raised and
# RabbitMQ, the pool in front of it and the broker are stopped and killed: takes some minutes. `make scenarios` runs the pool's
# trial only. For another one: make frameworks TRIALS=broker
TRIALS ?= all
frameworks: setup leveret
	$(PYTEST) frameworks/no_restart.py --trials $(TRIALS) $(ARGS)

# Kills a pool with a spool under load, on a link that flaps: KILLS rounds of two kills (`make scenarios` has three rounds),
# with consecutive seeds from SEED on.
KILLS ?= 30
spool: setup leveret
	cd tests && LEVERET_SPOOL_ROUNDS=$(KILLS) LEVERET_SPOOL_SEED=$(SEED) ../.cache/venv/bin/python -m pytest -rP blackbox/spool_kills.py $(ARGS)

# The one-hour outage behind a spool of docs/benchmarks.md: 3.6 million messages; needs 11 GB of disk.
spool-outage: setup leveret
	cd tests && ../.cache/venv/bin/python spool_outage.py $(ARGS)

# docs/benchmarks/spool: publishers beside a spool, far from the broker. Needs an idle machine.
spool-study: setup leveret
	cd tests && ../.cache/venv/bin/python spool_study.py $(ARGS)

# How long others wait beside publishers that never pause, on RabbitMQ and on the broker. Needs an idle machine.
bystander: setup leveret
	cd tests && ../.cache/venv/bin/python bystander.py $(ARGS)

# How long threads wait for each lock and hold it, with 64 connections on 16 queues and on one (docs/scaling.md). Uses a
# separate build, which is moved away so that the next release build replaces it.
LOCK_PROFILE := $(CURDIR)/target/lock-profile/leveret
lock-profile: setup
	$(CARGO) build --release --locked --quiet --package leveret --features lock-profile
	mkdir -p $(dir $(LOCK_PROFILE))
	mv target/release/leveret $(LOCK_PROFILE)
	cd tests && LEVERET_BIN=$(LOCK_PROFILE) ../.cache/venv/bin/python lock_profile.py $(ARGS)

# Tail latencies from publish to delivery beside both RabbitMQ releases, with 10,000 idle connections and during events that
# might cause a pause: about eight minutes.
tails: setup leveret
	cd tests && ../.cache/venv/bin/python tails.py $(ARGS)

# Clients of a pool that continue through UPGRADES of it: pika with confirms and acknowledgements, and a Java and a PHP
# publisher.
CLIENTS ?= 1000
UPGRADES ?= 10
upgrades: setup leveret
	cd tests && UPGRADED_CLIENTS=$(CLIENTS) UPGRADES=$(UPGRADES) ../.cache/venv/bin/python -m pytest -q \
		blackbox/takeover_clients.py::test_many_clients_go_through_many_upgrades

# The Debian package of this tree, in target/packages.
package: leveret
	packaging/build-deb.sh target/release/leveret target/packages

# The Debian package is built, installed, started, upgraded, removed and purged in a copy of this machine, which requires root
# (`make scenarios` skips this without root). Also tests the unit under systemd, the static binary and its image, and that the
# README's installation commands find what they need.
package-test: setup leveret
	$(MAKE) binaries TARGETS="$(sort $(MUSL) $(ARM64))"
	$(CARGO) install --path crates/leveret --locked --quiet --force --root target/installed --target $(MUSL) --target-dir target
	target/installed/bin/leveret --version
	cd tests && $$([ $$(id -u) -eq 0 ] || echo sudo --preserve-env=PATH) env LEVERET_PACKAGE_TEST=1 LEVERET_STATIC=$(CURDIR)/$(call static_file,$(MUSL)) \
	  LEVERET_STATIC_ARM64=$(CURDIR)/$(call static_file,$(ARM64)) \
	  ../.cache/venv/bin/python -m pytest blackbox/package_*.py $(ARGS)

# Lints and renders the Helm chart with Helm, which is built first.
helm: setup leveret $(HELM)
	LEVERET_HELM=$(abspath $(HELM)) $(SHELL) -c '$(PYTEST) blackbox/package_helm.py blackbox/package_helm_rendered.py $(ARGS)'

$(HELM):
	GOBIN=$(abspath $(dir $(HELM))) GOFLAGS=-mod=mod go install helm.sh/helm/v3/cmd/helm@v$(HELM_VERSION)

# A static binary without debug information: target/static/leveret-PROCESSOR for MUSL's triple. musl-gcc compiles its C code for
# this machine's processor, zig for others.
THIS := $(shell uname -m)
MUSL ?= $(THIS)-unknown-linux-musl
processor = $(firstword $(subst -, ,$(1)))
static_file = target/static/leveret-$(call processor,$(1))
static: $(if $(filter $(THIS)-%,$(MUSL)),static-here,static-elsewhere)
	readelf --dynamic target/$(MUSL)/release/leveret >target/$(MUSL)/release/leveret.dynamic
	! grep NEEDED target/$(MUSL)/release/leveret.dynamic
	mkdir -p target/static
	$(call processor,$(MUSL))-linux-gnu-strip --strip-unneeded -o $(call static_file,$(MUSL)) target/$(MUSL)/release/leveret

static-here:
	tests/setup.sh static
	rustup target add $(MUSL)
	$(CARGO) build --release --locked --quiet --package leveret --target $(MUSL)

static-elsewhere: $(ZIGBUILD)
	tests/setup.sh arm64
	rustup target add $(MUSL)
	$(WITH_ZIG) $(CARGO) zigbuild --release --locked --quiet --package leveret --target $(MUSL)

$(ZIGBUILD):
	tests/setup.sh arm64
	python3 -m venv $(ZIG)
	$(ZIG)/bin/pip install --quiet --disable-pip-version-check ziglang==$(ZIG_VERSION) cargo-zigbuild==$(ZIGBUILD_VERSION)

# The files of a release in target/release-files, with checksums: archive, Debian package and bill of materials for each of
# TARGETS, and one container image. For both processors: make release TARGETS="x86_64-unknown-linux-musl
# aarch64-unknown-linux-musl"
TARGETS ?= $(MUSL)
# Set only while packaging: when this variable changes, the C libraries are built again.
COMMITTED = $$(git log -1 --format=%ct)
BINARIES = $(foreach target,$(TARGETS),$(call static_file,$(target)))
release: binaries
	SOURCE_DATE_EPOCH=$(COMMITTED) packaging/build-release.py target/release-files $(BINARIES)

binaries:
	for target in $(TARGETS); do $(MAKE) static MUSL=$$target || exit; done

# The container image of TARGETS in target/images, without Docker.
image: binaries
	SOURCE_DATE_EPOCH=$(COMMITTED) packaging/build-image.py target/images $(BINARIES)

# The arm64 binary and its Debian package in target/packages, cross-compiled.
ARM64 := aarch64-unknown-linux-musl
arm64:
	$(MAKE) static MUSL=$(ARM64)
	packaging/build-deb.sh $(call static_file,$(ARM64)) target/packages

# Processor-dependent code: the unit tests of the codecs, the disk and the broker, and pika's scenarios with a broker, all built
# for arm64 and run by qemu (whose memory order is not that of a real arm64). Unoptimised, because that is fastest overall.
ARM64_CRATES := amqp mqtt stomp websocket proxy-protocol spool store broker
ARM64_LEVERET := target/$(ARM64)/emulated
arm64-test: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER := qemu-aarch64
arm64-test: export LEVERET_CRASH_SEEDS ?= 20
arm64-test: export PROPTEST_CASES ?= 32
arm64-test: setup $(ZIGBUILD)
	tests/setup.sh arm64
	rustup target add $(ARM64)
	$(WITH_ZIG) $(CARGO) zigbuild --package leveret --no-default-features --features jemalloc --target $(ARM64) --locked --quiet
	$(WITH_ZIG) $(CURDIR)/$(ZIGBUILD) test $(addprefix --package ,$(ARM64_CRATES)) --lib --tests --target $(ARM64) --locked --quiet --no-fail-fast
	printf '#!/bin/sh\nexec qemu-aarch64 %s "$$@"\n' $(CURDIR)/target/$(ARM64)/debug/leveret >$(ARM64_LEVERET)
	chmod +x $(ARM64_LEVERET)
	LEVERET_BIN=$(CURDIR)/$(ARM64_LEVERET) $(SHELL) -c '$(PYTEST) scenarios/same_answers.py --target leveret --client pika $(ARGS)'

# Simulated power failures, kills and failing disks; `make unit` runs a few hundred of each.
crash:
	LEVERET_CRASH_SEEDS=$(SEEDS) cargo test --release --package store --test store_crash --test journal_crash --locked --quiet -- --nocapture
	LEVERET_CRASH_SEEDS=$(SEEDS) cargo test --release --package server --lib --locked --quiet -- --nocapture spool::tests::crashes
	LEVERET_CRASH_SEEDS=$(SEEDS) cargo test --release --package store --lib --locked --quiet pages::tests::crash

# Searches for rare faults for MINUTES, with new seeds or from SOAK_SEED on; the report is target/soak/report.md. PARTS is a
# comma-separated list of fuzz,crash,spool,differential,openapi,hostile,cluster.
MINUTES ?= 60
soak: setup leveret
	cd tests && ../.cache/venv/bin/python soak.py --minutes $(MINUTES) $(if $(PARTS),--parts $(PARTS)) $(if $(SOAK_SEED),--seed $(SOAK_SEED))

# Code coverage by crate: unit tests, and the scenarios with an instrumented build. Needs rustup's llvm-tools.
coverage: setup $(COVERAGE)
	cd tests && PATH=$(abspath $(dir $(COVERAGE))):$$PATH ../.cache/venv/bin/python coverage.py $(ARGS)

$(COVERAGE):
	cargo install cargo-llvm-cov --quiet --locked --debug --config profile.dev.debug=0 --version $(COVERAGE_VERSION) --root .cache/cargo-llvm-cov-$(COVERAGE_VERSION)

# Mutation testing (.cargo/mutants.toml): does a unit test catch each mutant? Hours for everything; some minutes for a part:
# make mutants ARGS="--re amqp/src/frame" or ARGS="--shard 3/40 --sharding round-robin".
mutants: $(MUTANTS)
	$(MUTANTS) mutants --workspace --output target $(ARGS)

$(MUTANTS):
	cargo install cargo-mutants --quiet --locked --debug --config profile.dev.debug=0 --version $(MUTANTS_VERSION) --root .cache/cargo-mutants-$(MUTANTS_VERSION)

# The figures of docs/benchmarks.md. Needs an idle machine.
figures: setup leveret
	cd tests && ../.cache/venv/bin/python figures.py $(ARGS)

# The section on long queues: ten million messages; needs 12 GB of disk.
backlog: setup leveret
	cd tests && ../.cache/venv/bin/python backlog.py $(ARGS)

# The section on WebSocket: very many connections, up to the hard limit of open files.
capacity: setup leveret
	cd tests && ../.cache/venv/bin/python capacity.py $(ARGS)

# pika's BlockingConnection with one connection per message, to a distant RabbitMQ.
pika-latency: setup leveret
	cd tests && ../.cache/venv/bin/python pika_latency.py $(ARGS)

# The README's screenshots, taken by tests.
screenshot: export LEVERET_SCREENSHOT := $(CURDIR)/docs/images/page.png
screenshot: export LEVERET_SCREENSHOTS := $(CURDIR)/docs/images
screenshot: setup leveret
	$(PYTEST) blackbox/browser_page.py blackbox/dashboard_layout.py -k pictured

# The README's plot, from the table in docs/benchmarks.md.
front-page:
	python3 tests/front_page.py

# The manual as a site with search, its links checked: target/site/book/index.html.
docs: $(MDBOOK)
	cd tests && python3 manual.py --mdbook ../$(MDBOOK)

$(MDBOOK):
	$(CARGO) install mdbook --quiet --locked --debug --config profile.dev.debug=0 --no-default-features --features search --version $(MDBOOK_VERSION) --root .cache/mdbook-$(MDBOOK_VERSION)

# docs/metrics.md, from the metrics of a broker and a pool.
metrics-reference: setup leveret
	cd tests && ../.cache/venv/bin/python metrics_reference.py

# docs/benchmarks/routing, from a new measurement.
routing-study: setup leveret
	cd tests && ../.cache/venv/bin/python routing_study.py $(ARGS)

# docs/benchmarks/studies: every study in one report; some 20 minutes.
studies: setup leveret
	cd tests && ../.cache/venv/bin/python studies.py $(ARGS)

# The second clippy checks the program without its bench: with --workspace, everything else is already checked by the first. The
# third checks the instrumented locks; everything else in `lock-profile` is compiled without it, too.
check: $(DENY)
	$(CARGO) fmt --all --check
	python3 tests/tidy.py
	$(CARGO) clippy $(WORKSPACE) --all-targets -- -D warnings
	$(CARGO) clippy --workspace --all-targets --no-default-features --locked --quiet -- -D warnings
	$(CARGO) clippy --package sync --features lock-profile --all-targets --locked --quiet -- -D warnings
	$(DENY) --log-level error --locked check bans licenses sources
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(WORKSPACE) --no-deps --document-private-items

$(DENY):
	$(CARGO) install cargo-deny --quiet --locked --debug --config profile.dev.debug=0 --version $(DENY_VERSION) --root .cache/cargo-deny-$(DENY_VERSION)

run:
	cargo run --release --locked -- serve

clean:
	cargo clean
	rm -rf .cache tests/amqplib/node_modules tests/websocket/node_modules
