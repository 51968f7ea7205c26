VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
static = CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o $@ ./$<

.PHONY: build image next-image test container-test containerlab-test e2e faults soak demo bench fuzz lint clean

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
bin/mkimage: e2e/image/mkimage FORCE
	$(static)

# The container image, made without an engine: docker load -i bin/vtepd-image.tar
image: bin/vtepd bin/mkimage
	@bin/mkimage -o bin/vtepd-image.tar -ref vtepd:latest -version '$(VERSION)' bin/vtepd

# And a newer one, for the story of its replacement.
next-image: bin/vtepd-next bin/mkimage
	@bin/mkimage -o bin/vtepd-next-image.tar -ref vtepd:next -version '$(VERSION)-next' bin/vtepd-next
bin/vtepd-next: VERSION := $(VERSION)-next
bin/vtepd-next: cmd/vtepd FORCE
	$(static)

test: build image next-image
	@bin/vmrun setup
	@bin/suite test -seed '$(SEED)'

# Two leaves of compose.yaml and a spine, under Docker in a guest: swaps, newer images, kills.
container-test: build image next-image
	@bin/vmrun setup
	@bin/suite containers

CONTAINERLAB = 0.79.0
# The topologies of containerlab/ under containerlab itself, in that guest. make builds it from its published module, which takes a
# few minutes the first time.
containerlab-test: build image bin/containerlab-$(CONTAINERLAB)
	@ln -sf containerlab-$(CONTAINERLAB) bin/containerlab
	@bin/vmrun setup
	@bin/suite containerlab
bin/containerlab-%:
	cd "$$(go mod download -json github.com/srl-labs/containerlab@v$* | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')" && \
		CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X github.com/srl-labs/containerlab/cmd.Version=$*" -o '$(CURDIR)/$@' .

e2e: build
	@bin/vmrun setup
	@bin/suite e2e -run '$(RUN)' -frr '$(FRR)'

# Whatever fails at whatever moment, the router is in the old state or in the new one. SEED=N repeats a run.
faults: build
	@bin/vmrun setup
	@bin/suite faults -seed '$(SEED)' -frr '$(FRR)'

# Ten minutes of files, good and bad, and of kills, at random moments. SEED=N repeats a run, FILES=N makes it shorter.
soak: build
	@bin/vmrun setup
	@VTEPD_SOAK_FILES='$(or $(FILES),200)' VTEPD_SOAK_SEED='$(SEED)' CGO_ENABLED=0 go test -tags guest -count=1 -timeout 30m -v \
		-exec '$(CURDIR)/bin/vmrun exec -frr $(or $(FRR),trixie)' -run '^TestSoak$$' ./e2e

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
