# Every target does its own set-up on a fresh machine. What they do is in crates/xtask.

.DEFAULT_GOAL := help
XTASK := crates/xtask/run

.PHONY: help demo test test-unit cluster cluster-down deploy manifests bench simulate lint clean-all

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/; s/[$$][$$]/$$/' | expand -t 22

demo: ## See it work: a cluster, an app, and what happens to its configuration
	@$(XTASK) demo

test: ## Run every test; starts and stops a real cluster. A part: FILE=releases, FILTER=canary; again and again: REPEAT=5; on a busy machine: BUSY=2
	@$(XTASK) test $(if $(FILE),--file "$(FILE)") $(if $(FILTER),--filter "$(FILTER)") $(if $(REPEAT),--repeat "$(REPEAT)") $(if $(BUSY),--busy "$(BUSY)")

test-unit: ## Run the tests that need no cluster
	@$(XTASK) test-unit

cluster: ## Start a real Kubernetes on this machine: eval "$$(make -s cluster)". More in it: WITH="helm argo-rollouts"
	@$(XTASK) cluster up $(if $(WITH),--with "$(WITH)")

cluster-down: ## Stop it and remove all that it left
	@$(XTASK) cluster down

deploy: ## Install Lockstep with its chart into the cluster, which is started if need be
	@$(XTASK) deploy

manifests: ## Make the plain manifests in deploy/ from the chart
	@$(XTASK) manifests

bench: ## Measure. A part: PART=rollback; PART=list shows all
	@$(XTASK) bench $(PART)

simulate: ## Play the whole operator against a simulated cluster with faults: SCHEDULES=100000, MINUTES=10; one again: SEED=7
	@$(XTASK) simulate $(if $(SCHEDULES),--schedules "$(SCHEDULES)") $(if $(SEED),--seed "$(SEED)") $(if $(MINUTES),--minutes "$(MINUTES)")

lint: ## Check formatting and lints
	@$(XTASK) lint

clean-all: ## Remove what all of this left on the machine, and say how much space that freed
	@$(XTASK) clean-all
