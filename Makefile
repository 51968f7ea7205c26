export GOFLAGS ?= -trimpath
VERSION ?= $(shell git describe --always --dirty 2>/dev/null || echo unknown)

.PHONY: build
build:
	CGO_ENABLED=0 go build -ldflags "-s -w -X main.version=$(VERSION)" -o bin/vtepd ./cmd/vtepd
	CGO_ENABLED=0 go build -ldflags "-s -w" -o bin/vmrun ./e2e/vm/vmrun
