# What one does with this tree. The work is done by cargo and the scripts; see CONTRIBUTING.md.

PROFILE ?= dev
export PROFILE
BENCH ?= v2v $(if $(filter 0,$(shell id -u)),--peer ovs-dpdk)

.PHONY: help setup build demo fabric-demo demo-guests test nightly check bench deb image docs clean

help: ## Shows this
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 13

setup: ## Installs what is missing (Debian packages) and says what
	@scripts/setup.sh test

build: ## Builds the switch and the lab; PROFILE=release for the fast ones
	@scripts/setup.sh build
	@cargo build --locked --profile $(PROFILE) -p penstock -p penstock-lab

demo: ## A victim and a noisy neighbour, under bps policing and under C2QoS: a table and a picture
	@scripts/setup.sh build
	@scripts/demo.sh

fabric-demo: ## Two racks under a controller: ten tenants on one core link, one bursts, one attacks
	@scripts/setup.sh demo
	@scripts/fabric-demo.sh

demo-guests: ## Real traffic through a switch in a minute: namespaces, guests, ping, iperf3
	@scripts/setup.sh demo
	@scripts/demo-guests.sh

test: ## Everything CI runs; as root all of it, else what can be run
	@scripts/setup.sh test
	@scripts/checks.sh test

nightly: ## What CI leaves out: release program, full lengths, other seeds, fuzzing; hours, goes on where it stopped
	@scripts/setup.sh test
	@scripts/nightly.sh

check: ## Format, lints, documentation, licences, house rules; no root needed
	@scripts/checks.sh check

bench: ## Cycles per frame and rates, as root beside OVS-DPDK; BENCH="v2v --sizes 64" picks another
	@scripts/setup.sh bench
	@cargo build --locked --release -p penstock -p penstock-lab
	@"$${CARGO_TARGET_DIR:-target}/release/penstock-lab" bench $(BENCH)

deb: ## Builds Debian packages in target/deb; PENSTOCK_PREBUILT=DIR takes programs that are built
	@scripts/setup.sh deb
	@scripts/deb.sh

image: ## Builds a container image with the package in target/deb/penstock-image.tar; needs root
	@scripts/setup.sh deb
	@scripts/image.sh

docs: ## Builds the site of the documentation in target/book; installs mdbook if it is missing
	@scripts/setup.sh build
	@scripts/docs.sh

clean: ## Removes build output and the cached guest images
	@cargo clean
	@rm -rf "$${PENSTOCK_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/penstock}"
