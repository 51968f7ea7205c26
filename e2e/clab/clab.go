// Package clab reads containerlab's topology files: bytes in, a Topology with
// every inheritance resolved or all the problems out. It holds no state,
// touches no file but the one ReadFile is given, and never guesses: what it
// doesn't know is a problem with its place.
//
// The format is containerlab's own (https://containerlab.dev/manual/topo-def-file/):
// a value of a node comes from the node, else from its group, else from its
// kind, else from the defaults; lists are joined in the opposite order and maps
// are merged, the more specific one winning. It reads the part that a lab of
// namespaces can keep, and refuses the rest by name.
package clab

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
)

// Topology is a lab as its file describes it.
type Topology struct {
	Name   string // the lab's name
	Prefix string // of the container names; "clab" where the file has none
	Nodes  []Node // sorted by name
	Links  []Link // as in the file
}

// Node is one container, with everything inherited.
type Node struct {
	Name        string
	Pos         Pos // of its key in the file
	Kind        string
	Group       string
	Image       string
	Entrypoint  []string // split into words; empty means the image's
	Cmd         []string // split into words; empty means the image's
	Exec        [][]string
	Binds       []Bind // sorted by destination
	Env         []Setting
	Sysctls     []Setting // net.* only
	Labels      []Setting
	NetworkMode string // "none", or "container:NODE"
	PidMode     string // empty for its own processes alone, or "container:NODE"
	Hostname    string // the node's name where the file has none
}

// NetworkOf is the node whose network namespace n uses, or empty for its own.
func (n Node) NetworkOf() string { return container(n.NetworkMode) }

// PidOf is the node whose process namespace n uses, so that it sees that node's processes, or empty for its own.
func (n Node) PidOf() string { return container(n.PidMode) }

func container(mode string) string {
	name, ok := strings.CutPrefix(mode, "container:")
	if !ok {
		return ""
	}
	return name
}

// Bind is a file or directory of the host's in a node. A relative source is
// meant from the directory of the topology file.
type Bind struct {
	Source   string
	Target   string // absolute and clean
	ReadOnly bool
}

// Setting is one entry of a map; a list of them is sorted by key.
type Setting struct{ Key, Value string }

// Link is a pair of interfaces, a veth. MTU is containerlab's 9500 where the
// file has none.
type Link struct {
	Pos  Pos
	A, B Endpoint
	MTU  int
}

// Endpoint is one end of a link. MAC is empty where the file has none.
type Endpoint struct{ Node, Interface, MAC string }

func (e Endpoint) String() string { return e.Node + ":" + e.Interface }

// Node returns the node of that name.
func (t *Topology) Node(name string) (Node, bool) {
	i, ok := slices.BinarySearchFunc(t.Nodes, name, func(n Node, name string) int { return cmp.Compare(n.Name, name) })
	if !ok {
		return Node{}, false
	}
	return t.Nodes[i], true
}

// Pos is a place in a file. Line and Column count from 1.
type Pos struct {
	File   string
	Line   int
	Column int
}

func (p Pos) String() string { return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column) }

// Problem is one thing wrong with a file: where, in which field, and in Msg
// what is wrong. Field is a dotted path, empty for the file as a whole.
type Problem struct {
	Pos   Pos
	Field string
	Msg   string
}

// Error is file:line:column: field: what is wrong.
func (p Problem) Error() string {
	if p.Field == "" {
		return p.Pos.String() + ": " + p.Msg
	}
	return p.Pos.String() + ": " + p.Field + ": " + p.Msg
}

// Problems is everything wrong with a file, sorted by place. It is the only
// error of Parse.
type Problems []Problem

// Error is one problem a line.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// ReadFile parses the topology in a file. Its error is Problems, or that of
// reading.
func ReadFile(path string) (*Topology, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}
