# Every target does its own set-up on a fresh machine. What they do is in crates/xtask.

.DEFAULT_GOAL := help
XTASK := cargo run --quiet --locked --package xtask --

.PHONY: help demo test test-unit cluster cluster-down deploy manifests bench lint

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/; s/[$$][$$]/$$/' | expand -t 22

demo: ## See it work: a cluster, an app, and what happens to its configuration
	@$(XTASK) demo

test: ## Run every test; starts and stops a real cluster
	@$(XTASK) test

test-unit: ## Run the tests that need no cluster
	@$(XTASK) test-unit

cluster: ## Start a real Kubernetes on this machine: eval "$$(make -s cluster)"
	@$(XTASK) cluster up

cluster-down: ## Stop it and remove all that it left
	@$(XTASK) cluster down

deploy: ## Install Lockstep into the cluster, which is started if need be
	@$(XTASK) deploy

manifests: ## Make the plain manifests in deploy/ from the chart
	@$(XTASK) manifests

bench: ## Measure
	@$(XTASK) bench

lint: ## Check formatting and lints
	@$(XTASK) lint
