# Shortcuts. `make test` is the whole proof; everything it needs it installs itself (tests/setup.sh).

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

# How many random programs `make differential` runs for each release of RabbitMQ (some 15 a second on two cores), how many in which time
# passes beside them, and from which seed (that of `make openapi` and of `make spool`, too).
PROGRAMS ?= 250
TIMED ?= 50
SEED ?= 1

# How many lives `make crash` gives each simulated disk.
SEEDS ?= 10000

.PHONY: docs front-page package package-test helm static static-here static-elsewhere binaries release image arm64 arm64-test test prepared compiled progress computed quick setup unit loom leveret scenarios differential differential-program openapi cluster hostile bystander lock-profile tails upgrades spool spool-outage spool-study crash soak coverage mutants figures frameworks backlog capacity pika-latency routing-study studies screenshot check run clean

# Cargo has jobs of its own.
CARGO := env --unset=MAKEFLAGS cargo
# The workspace as it is linted and unit tested: without jemalloc, whose C takes a minute to build; the release build has it.
WORKSPACE := --workspace --no-default-features --features leveret/bench --locked --quiet
# No example in the documentation is code to run.
UNIT := $(CARGO) test $(WORKSPACE) --lib --bins --tests
LOOM := store/loom,transport/loom,broker/loom,server/loom
# A test in Rust that hangs would hold a run for ever: half an hour is enough for a slow machine to compile all of it as well. `timeout` ends
# what cargo has started, too, for which it leaves the terminal's group, so that Ctrl-C is passed on.
RUST_SECONDS ?= $$((10 * $${LEVERET_PATIENCE:-180}))
bounded = trap 'kill $$!' INT TERM; timeout --kill-after=10 $(RUST_SECONDS) $(1) & wait $$!

# What is fetched waits for the network, scenarios wait mostly for each other, and a build has only one crate to compile at times: what
# computes runs beside them. Only one cargo at a time is in target/debug, as another would wait for it. A test that fails keeps no
# other from running, so that one run tells everything.
test:
	$(MAKE) --jobs=2 --keep-going --output-sync=target setup leveret progress computed

compiled:
	$(UNIT) --no-run

# Scenarios' output as it comes, that of the others when each has ended. What they need is there by then.
progress: setup leveret
	@$(MAKE) --output-sync=none READY=yes scenarios

computed: compiled setup leveret
	@failed=; \
	for part in unit loom differential; do \
	  $(MAKE) READY=yes $$part || failed="$$failed $$part"; \
	done; \
	[ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

# While a change is being written: lints, unit tests of the crates that differ from BASE, and CLIENT's scenarios on the broker and the
# pool, with the debug build, which also asserts the order of locks.
BASE ?= HEAD
CLIENT ?= pika
quick: setup
	.cache/venv/bin/python tests/quick.py --base $(BASE) --client $(CLIENT) -- $(WORKSPACE)

# Debian's RabbitMQ, the five clients and their drivers. Quick when nothing has changed.
setup:
	tests/setup.sh

unit:
	$(call bounded,$(UNIT) --no-fail-fast)
	$(call bounded,$(CARGO) test --package sync --features lock-profile --lib --locked --quiet)

# What many threads run through at once, in every order in which they can meet (crate sync). With --workspace, dependencies have the
# features that they have in the unit tests, and are not built again.
loom:
	$(call bounded,$(CARGO) test --workspace --features $(LOOM) --test interleavings --locked --quiet --no-fail-fast)

leveret:
	$(CARGO) build --release --locked --quiet --package leveret

# Narrow it down with ARGS, for example: make scenarios ARGS="--target leveret --client pika -k confirms"
# How many files run beside each other: most of their time is waiting, so that four take a quarter less of it than two on two cores. What is
# narrowed down runs alone, and shows its output as it comes.
WORKERS ?= $(if $(ARGS),0,4)
scenarios: $(if $(READY),,setup leveret)
	$(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

# Random programs on either release of RabbitMQ and on Leveret, which is told to follow it, compared step by step; for more:
# make differential PROGRAMS=100000 SEED=7 RELEASES=4. A failing program is printed as lines of JSON; in a file:
# make differential RELEASES=4 ARGS="--replay file".
RELEASES ?= 3.10 4
differential: $(if $(READY),,setup leveret) differential-program
	failed=; \
	for release in $(RELEASES); do \
	  .cache/venv/bin/python tests/differential/run.py --release $$release --programs $(PROGRAMS) --timed $(TIMED) --seed $(SEED) $(ARGS) \
	    || failed=yes; \
	done; \
	[ -z "$$failed" ]

# As the unit tests have built it: a release build would compile lapin and all else once more.
differential-program:
	$(CARGO) build $(WORKSPACE) --bin differential

# A cluster of three RabbitMQ nodes behind the proxy, under load: each node is killed ROUNDS times, in turn; then, with
# a thousand MQTT sessions at two Leverets, each of these as well.
ROUNDS ?= 1
cluster: setup leveret
	LEVERET_CLUSTER_ROUNDS=$(ROUNDS) $(SHELL) -c '$(PYTEST) -rP blackbox/cluster.py blackbox/mqtt_cluster.py $(ARGS)'

# Each operation of the OpenAPI description, asked EXAMPLES times with values that SEED makes up.
EXAMPLES ?= 15
openapi: setup leveret
	LEVERET_OPENAPI_EXAMPLES=$(EXAMPLES) LEVERET_OPENAPI_SEED=$(SEED) $(SHELL) -c '$(PYTEST) blackbox/http_openapi.py $(ARGS)'

# Hostile clients of ten kinds, so many of each at a time, in front of the broker and of the proxy.
HOSTILE ?= 15000
hostile: setup leveret
	LEVERET_HOSTILE=$(HOSTILE) $(SHELL) -c '$(PYTEST) -rP blackbox/hostile_clients.py $(ARGS)'

# Applications that use Spring AMQP, Celery, Bunny, php-amqplib and aio-pika, beside each other, while the alarms are raised and RabbitMQ,
# the pool in front of it and the broker are stopped and killed: some minutes. `make scenarios` has the pool alone.
# For another one: make frameworks TRIALS=broker
TRIALS ?= all
frameworks: setup leveret
	$(PYTEST) frameworks/no_restart.py --trials $(TRIALS) $(ARGS)

# Kills of a pool with a spool under load, on a link that flaps: KILLS rounds of two, of which `make scenarios`
# has three, each with a seed of its own, from SEED on.
KILLS ?= 30
spool: setup leveret
	cd tests && LEVERET_SPOOL_ROUNDS=$(KILLS) LEVERET_SPOOL_SEED=$(SEED) ../.cache/venv/bin/python -m pytest -rP blackbox/spool_kills.py $(ARGS)

# The outage of an hour behind a spool, in docs/benchmarks.md: 3.6 million messages, for which there must be 11 GB of disk.
spool-outage: setup leveret
	cd tests && ../.cache/venv/bin/python spool_outage.py $(ARGS)

# docs/benchmarks/spool: publishers beside a spool, far from the broker, on a machine that has nothing else to do.
spool-study: setup leveret
	cd tests && ../.cache/venv/bin/python spool_study.py $(ARGS)

# What others wait beside publishers that never stop, on RabbitMQ and on the broker, on a machine that has nothing else to do.
bystander: setup leveret
	cd tests && ../.cache/venv/bin/python bystander.py $(ARGS)

# How long threads wait for each lock and hold it, with 64 connections on 16 queues and on one (docs/scaling.md): with a build of its own,
# which is moved away, so that the next build of the release puts its own there again.
LOCK_PROFILE := $(CURDIR)/target/lock-profile/leveret
lock-profile: setup
	$(CARGO) build --release --locked --quiet --package leveret --features lock-profile
	mkdir -p $(dir $(LOCK_PROFILE))
	mv target/release/leveret $(LOCK_PROFILE)
	cd tests && LEVERET_BIN=$(LOCK_PROFILE) ../.cache/venv/bin/python lock_profile.py $(ARGS)

# The longest times from publish to delivery beside both releases of RabbitMQ, with 10,000 idle connections around and during what might
# cause a pause: some eight minutes.
tails: setup leveret
	cd tests && ../.cache/venv/bin/python tails.py $(ARGS)

# Clients of a pool that go on through UPGRADES of it: pika with confirms and acknowledgements, and a Java and a PHP publisher.
CLIENTS ?= 1000
UPGRADES ?= 10
upgrades: setup leveret
	cd tests && UPGRADED_CLIENTS=$(CLIENTS) UPGRADES=$(UPGRADES) ../.cache/venv/bin/python -m pytest -q \
		blackbox/takeover_clients.py::test_many_clients_go_through_many_upgrades

# The Debian package of this tree, in target/packages.
package: leveret
	packaging/build-deb.sh target/release/leveret target/packages

# It is built, installed, started, upgraded, removed and purged in a copy of this machine, which takes root (as it also does
# in `make scenarios`, where it is left out without). So is the unit under a systemd, and the static binary and its image;
# and what the README says to install it by has what it needs.
package-test: setup leveret
	$(MAKE) binaries TARGETS="$(sort $(MUSL) $(ARM64))"
	$(CARGO) install --path crates/leveret --locked --quiet --force --root target/installed --target $(MUSL) --target-dir target
	target/installed/bin/leveret --version
	cd tests && $$([ $$(id -u) -eq 0 ] || echo sudo --preserve-env=PATH) env LEVERET_PACKAGE_TEST=1 LEVERET_STATIC=$(CURDIR)/$(call static_file,$(MUSL)) \
	  LEVERET_STATIC_ARM64=$(CURDIR)/$(call static_file,$(ARM64)) \
	  ../.cache/venv/bin/python -m pytest blackbox/package_*.py $(ARGS)

# The Helm chart, linted and rendered by Helm itself, which is built first.
helm: setup leveret $(HELM)
	LEVERET_HELM=$(abspath $(HELM)) $(SHELL) -c '$(PYTEST) blackbox/package_helm.py blackbox/package_helm_rendered.py $(ARGS)'

$(HELM):
	GOBIN=$(abspath $(dir $(HELM))) GOFLAGS=-mod=mod go install helm.sh/helm/v3/cmd/helm@v$(HELM_VERSION)

# One file that needs nothing of the system, without debug information: target/static/leveret-PROCESSOR for MUSL's triple. For this machine's
# processor musl-gcc compiles the C in it, and zig for others.
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

# The files of a release in target/release-files, with their sums: archive, Debian package and bill of materials for each of TARGETS, and
# one container image. For both processors: make release TARGETS="x86_64-unknown-linux-musl aarch64-unknown-linux-musl"
TARGETS ?= $(MUSL)
# Only for what is packed: the libraries in C are built again when this variable has changed.
COMMITTED = $$(git log -1 --format=%ct)
BINARIES = $(foreach target,$(TARGETS),$(call static_file,$(target)))
release: binaries
	SOURCE_DATE_EPOCH=$(COMMITTED) packaging/build-release.py target/release-files $(BINARIES)

binaries:
	for target in $(TARGETS); do $(MAKE) static MUSL=$$target || exit; done

# The container image of TARGETS in target/images, without Docker.
image: binaries
	SOURCE_DATE_EPOCH=$(COMMITTED) packaging/build-image.py target/images $(BINARIES)

# The binary for arm64 and its Debian package in target/packages, built on this machine.
ARM64 := aarch64-unknown-linux-musl
arm64:
	$(MAKE) static MUSL=$(ARM64)
	packaging/build-deb.sh $(call static_file,$(ARM64)) target/packages

# What depends on the processor (the order of memory is the emulator's, not an arm64's own): the unit tests of the codecs, the disk and the
# broker, and pika's scenarios with a broker, all of it built for arm64 and run by qemu. Unoptimised, as that is what takes the least time.
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

# For MINUTES, what looks for rare faults, where it has seeds with new ones or from SOAK_SEED on; the report is target/soak/report.md.
# PARTS are by commas: fuzz,crash,spool,differential,openapi,hostile,cluster.
MINUTES ?= 60
soak: setup leveret
	cd tests && ../.cache/venv/bin/python soak.py --minutes $(MINUTES) $(if $(PARTS),--parts $(PARTS)) $(if $(SOAK_SEED),--seed $(SOAK_SEED))

# Which code the tests reach, by crate: unit tests, and the scenarios with an instrumented build. It takes rustup's llvm-tools.
coverage: setup $(COVERAGE)
	cd tests && PATH=$(abspath $(dir $(COVERAGE))):$$PATH ../.cache/venv/bin/python coverage.py $(ARGS)

$(COVERAGE):
	cargo install cargo-llvm-cov --quiet --locked --debug --config profile.dev.debug=0 --version $(COVERAGE_VERSION) --root .cache/cargo-llvm-cov-$(COVERAGE_VERSION)

# Faults put into the code that nothing may break (.cargo/mutants.toml), one at a time: does a unit test see each? Hours for all;
# some minutes for a part: make mutants ARGS="--re amqp/src/frame" or ARGS="--shard 3/40 --sharding round-robin".
mutants: $(MUTANTS)
	$(MUTANTS) mutants --workspace --output target $(ARGS)

$(MUTANTS):
	cargo install cargo-mutants --quiet --locked --debug --config profile.dev.debug=0 --version $(MUTANTS_VERSION) --root .cache/cargo-mutants-$(MUTANTS_VERSION)

# The figures of docs/benchmarks.md, on a machine that has nothing else to do.
figures: setup leveret
	cd tests && ../.cache/venv/bin/python figures.py $(ARGS)

# Their section on long queues: ten million messages, for which there must be 12 GB of disk.
backlog: setup leveret
	cd tests && ../.cache/venv/bin/python backlog.py $(ARGS)

# Their WebSocket section: very many connections, on as many descriptors as the hard limit allows.
capacity: setup leveret
	cd tests && ../.cache/venv/bin/python capacity.py $(ARGS)

# And pika's BlockingConnection with a connection for each message, to a RabbitMQ that is far away.
pika-latency: setup leveret
	cd tests && ../.cache/venv/bin/python pika_latency.py $(ARGS)

# The pictures of the pages in the README, as tests see them.
screenshot: export LEVERET_SCREENSHOT := $(CURDIR)/docs/images/page.png
screenshot: export LEVERET_SCREENSHOTS := $(CURDIR)/docs/images
screenshot: setup leveret
	$(PYTEST) blackbox/browser_page.py blackbox/dashboard_looks.py -k pictured

# The README's plot, from the table in docs/benchmarks.md.
front-page:
	python3 tests/front_page.py

# The manual as a site with search, its links checked: target/site/book/index.html.
docs: $(MDBOOK)
	cd tests && python3 manual.py --mdbook ../$(MDBOOK)

$(MDBOOK):
	$(CARGO) install mdbook --quiet --locked --debug --config profile.dev.debug=0 --no-default-features --features search --version $(MDBOOK_VERSION) --root .cache/mdbook-$(MDBOOK_VERSION)

# docs/metrics.md, from what a broker and a pool show.
metrics-reference: setup leveret
	cd tests && ../.cache/venv/bin/python metrics_reference.py

# docs/benchmarks/routing, likewise.
routing-study: setup leveret
	cd tests && ../.cache/venv/bin/python routing_study.py $(ARGS)

# docs/benchmarks/studies: every study in one report; some 20 minutes.
studies: setup leveret
	cd tests && ../.cache/venv/bin/python studies.py $(ARGS)

# The second clippy is of the program without its bench: with --workspace, everything else is as for the first, and not checked again.
# The third is of the locks that measure; all else that belongs to `lock-profile` is compiled without it, too.
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
