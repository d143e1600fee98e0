# Shortcuts. `make test` is the whole proof; everything it needs it installs itself (tests/setup.sh).

SHELL := /bin/bash
PYTEST := .cache/venv/bin/python -m pytest --config-file tests/pytest.ini --rootdir tests
DENY := .cache/cargo/bin/cargo-deny
DENY_VERSION := 0.20.2

.PHONY: test setup unit leveret scenarios check run clean

test: setup unit scenarios

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

check: $(DENY)
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
	$(DENY) --log-level error --locked check bans licenses sources
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet

$(DENY):
	cargo install cargo-deny --quiet --locked --version $(DENY_VERSION) --root .cache/cargo

run:
	cargo run --release --locked -- serve

clean:
	cargo clean
	rm -rf .cache tests/amqplib/node_modules
