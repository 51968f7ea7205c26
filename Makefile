VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
static = CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o $@ ./$<

.PHONY: build test e2e demo bench fuzz lint clean

# The daemon, and the lab's two programs. FRR=bookworm|trixie|sid and RUN=REGEX choose for e2e.
build: bin/vtepd bin/vmrun bin/suite

bin/vtepd: cmd/vtepd FORCE
	$(static)
bin/vmrun: e2e/vm/vmrun FORCE
	$(static)
bin/suite: e2e/suite FORCE
	$(static)
bin/demo: e2e/demo FORCE
	$(static)

test: build
	@bin/vmrun setup
	@bin/suite test

e2e: build
	@bin/vmrun setup
	@bin/suite e2e -run '$(RUN)' -frr '$(FRR)'

demo: build bin/demo
	@bin/vmrun setup
	@bin/vmrun run -frr '$(or $(FRR),trixie)' -- bin/demo

bench: bin/suite
	@bin/suite bench

fuzz: bin/suite
	@bin/suite fuzz -time '$(or $(FUZZTIME),60s)'

lint: bin/suite
	@bin/suite lint

clean:
	rm -rf bin

.PHONY: FORCE
FORCE:
