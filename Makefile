# Shortcuts. `make test` is the whole proof; everything it needs it installs itself (tests/setup.sh).

SHELL := /bin/bash
PYTEST := cd tests && ../.cache/venv/bin/python -m pytest
DENY_VERSION := 0.20.2
DENY := .cache/cargo-deny-$(DENY_VERSION)/bin/cargo-deny

# How many random programs `make differential` runs (some 20 a second on two cores), and from which seed.
PROGRAMS ?= 2000
SEED ?= 1

.PHONY: test setup unit leveret scenarios differential figures check run clean

test: setup unit scenarios differential

# Debian's RabbitMQ, the five clients and their drivers. Quick when nothing has changed.
setup:
	tests/setup.sh

unit:
	cargo test --workspace --locked --quiet

leveret:
	cargo build --release --locked --quiet --package leveret

# Narrow it down with ARGS, for example: make scenarios ARGS="--target leveret --client pika -k confirms"
scenarios: setup leveret
	$(PYTEST) $(ARGS)

# Random programs on RabbitMQ and on Leveret, compared step by step; for more: make differential PROGRAMS=100000 SEED=7.
# A failing program is printed as lines of JSON; in a file: make differential ARGS="--replay file".
differential: setup leveret
	cargo build --release --locked --quiet --package differential
	.cache/venv/bin/python tests/differential/run.py --programs $(PROGRAMS) --seed $(SEED) $(ARGS)

# The figures of docs/benchmarks.md, on a machine that has nothing else to do.
figures: setup leveret
	cd tests && ../.cache/venv/bin/python figures.py $(ARGS)

check: $(DENY)
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
	$(DENY) --log-level error --locked check bans licenses sources
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet

$(DENY):
	cargo install cargo-deny --quiet --locked --version $(DENY_VERSION) --root .cache/cargo-deny-$(DENY_VERSION)

run:
	cargo run --release --locked -- serve

clean:
	cargo clean
	rm -rf .cache tests/amqplib/node_modules
