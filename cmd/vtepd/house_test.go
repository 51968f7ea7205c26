package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// rooms are the packages of the daemon and what each may import of this module; its tests may import more of its own
// family, see inTests. Where a path ends in "/..." all below it is meant.
var rooms = map[string][]string{
	// The values: the standard library and nothing else, least of all each other.
	"alloc":     {},
	"dataplane": {},
	"frr":       {},

	// The adapters: their own values, and what is below them in the same family.
	"alloc/dirstore":    {"alloc"},
	"alloc/etcdstore":   {"alloc"},
	"dataplane/cni":     {"dataplane"},
	"dataplane/kernel":  {"dataplane", "dataplane/netns"},
	"dataplane/monitor": {"dataplane/netns"},
	"dataplane/netns":   {},
	"frr/vty":           {"frr"},
	"frr/witness":       {},

	// What only tests use.
	"alloc/memstore":       {"alloc"},
	"alloc/storetest":      {"alloc"},
	"dataplane/fake":       {"dataplane"},
	"dataplane/kerneltest": {"dataplane"},
	"frr/frrtest":          {"frr"},

	// The daemon. Adapters are for cmd to know.
	"daemon/config":  {"alloc"},
	"daemon/watch":   {},
	"daemon/disk":    {},
	"daemon/state":   {"alloc", "dataplane", "frr"},
	"daemon/desired": {"daemon/config", "daemon/state", "dataplane"},
	"daemon/plan":    {"alloc", "daemon/state", "dataplane", "frr"},
	"daemon/journal": {"daemon/disk", "daemon/plan", "daemon/state"},
	"daemon/txn":     {"alloc", "daemon/journal", "daemon/plan", "daemon/state", "dataplane", "frr"},
	"daemon/status":  {"daemon/plan"},
	"daemon/history": {"daemon/config", "daemon/disk"},
	"daemon/control": {"daemon/config", "daemon/status"},
	"daemon/claims":  {"alloc"},
	"daemon":         {"alloc", "dataplane", "frr", "daemon/..."},

	"cmd/vtepd": {
		"daemon", "daemon/...", "alloc", "alloc/dirstore", "alloc/etcdstore", "dataplane/cni", "dataplane/kernel", "dataplane/monitor", "dataplane/netns", "frr/vty",
	},
	// It judges the daemon, and must not see with its eyes.
	"e2e/judge": {"e2e/lab"},
	"e2e/...":   {"alloc/...", "daemon/...", "dataplane/...", "e2e/...", "frr/..."},
}

// testOnly are the packages that the daemon's code doesn't import.
var testOnly = []string{"alloc/memstore", "alloc/storetest", "dataplane/fake", "dataplane/kerneltest", "frr/frrtest"}

// libraries are the modules of others, and the rooms that may have them.
var libraries = map[string][]string{
	"github.com/vishvananda/netlink":           {"dataplane/kernel", "e2e/..."},
	"github.com/mdlayher/netlink":              {"dataplane/kernel", "dataplane/monitor"},
	"github.com/fsnotify/fsnotify":             {"daemon/watch"},
	"gopkg.in/yaml.v3":                         {"daemon/config", "e2e/clab"},
	"github.com/osrg/gobgp/v3":                 {"frr/witness", "e2e/..."},
	"google.golang.org/protobuf":               {"frr/witness", "e2e/..."}, // in gobgp's own interface
	"github.com/spf13/cobra":                   {"cmd/vtepd"},
	"github.com/google/go-containerregistry":   {"e2e/..."},
	"github.com/containernetworking/cni":       {"dataplane/cni"},
	"github.com/coreos/go-systemd/v22":         {"cmd/vtepd"}, // the service manager's protocol
	"github.com/google/renameio/v2":            {"daemon", "daemon/journal", "daemon/history", "alloc/dirstore", "alloc/etcdstore", "dataplane/cni"},
	"go.etcd.io/etcd/client/v3":                {"alloc/etcdstore"},
	"go.etcd.io/etcd/api/v3":                   {"alloc/etcdstore"}, // in the client's own interface, as are the next two
	"go.uber.org/zap":                          {"alloc/etcdstore"},
	"google.golang.org/grpc":                   {"alloc/etcdstore"},
	"go.etcd.io/etcd/server/v3":                {},
	"go.etcd.io/etcd/client/pkg/v3":            {},
	"golang.org/x/sync":                        {"cmd/vtepd", "e2e/..."},
	"golang.org/x/net":                         {"dataplane/kernel", "e2e/..."}, // ICMP; packet filters
	"golang.org/x/sys":                         {"alloc/dirstore", "cmd/vtepd", "dataplane/kernel", "dataplane/monitor", "dataplane/netns", "e2e/..."},
	"github.com/vishvananda/netns":             {"e2e/..."}, // in netlink's own interface
	"github.com/google/go-cmp":                 {"alloc/storetest", "dataplane/kerneltest", "frr/frrtest", "e2e/..."},
	"pgregory.net/rapid":                       {"alloc/storetest", "dataplane/kerneltest", "frr/frrtest"},
	"github.com/rogpeppe/go-internal":          {},
	"github.com/santhosh-tekuri/jsonschema/v6": {},
}

// inTests are the libraries that every test may have, and those that the tests of a room may have beside it.
var inTests = map[string][]string{
	"github.com/google/go-cmp":                 {"..."},
	"pgregory.net/rapid":                       {"..."},
	"github.com/rogpeppe/go-internal":          {"cmd/vtepd"},
	"github.com/santhosh-tekuri/jsonschema/v6": {"e2e/clab"},                               // containerlab's own schema
	"go.etcd.io/etcd/server/v3":                {"alloc/etcdstore", "cmd/vtepd", "daemon"}, // embedded
	"go.etcd.io/etcd/client/pkg/v3":            {"alloc/etcdstore"},                        // in the options of the embedded one
	"golang.org/x/sys":                         {"frr/vty"},                                // a root with few capabilities
	"github.com/vishvananda/netlink":           {"dataplane/monitor"},                      // makes the links that are heard of
	"github.com/vishvananda/netns":             {"dataplane/kernel", "dataplane/monitor"},
}

// topLevel are the folders that a user sees.
var topLevel = []string{"alloc", "cmd", "containerlab", "daemon", "dataplane", "e2e", "frr"}

const module = "vtepd/"

// pkg is what go list says of a package.
type pkg struct {
	ImportPath, Name, Doc                       string
	GoFiles, Imports, TestImports, XTestImports []string
}

// TestHouse holds the module to the tables above.
func TestHouse(t *testing.T) {
	var all []pkg
	for _, tags := range []string{"", "guest"} {
		all = append(all, list(t, tags)...)
	}
	entries, err := os.ReadDir("../..")
	if err != nil {
		t.Fatal(err)
	}
	ignored, err := os.ReadFile("../../.gitignore")
	if err != nil {
		t.Fatal(err)
	}
	var folders []string
	for _, e := range entries {
		// What git doesn't track is what make builds, and what the user of the compose file makes.
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") && !strings.Contains("\n"+string(ignored), "\n/"+e.Name()+"/\n") {
			folders = append(folders, e.Name())
		}
	}
	for _, b := range broken(all, folders) {
		t.Error(b)
	}
	for room := range rooms {
		if !strings.HasSuffix(room, "...") && !slices.ContainsFunc(all, func(p pkg) bool { return p.ImportPath == module+room }) {
			t.Errorf("%s is in the table, and nowhere else", room)
		}
	}
}

// list is what there is with a build tag.
func list(t *testing.T, tags string) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-tags="+tags, "-json=ImportPath,Name,Doc,GoFiles,Imports,TestImports,XTestImports", module+"...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// broken says, sorted, what is not as the tables have it.
func broken(all []pkg, folders []string) []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, p := range all {
		room := strings.TrimPrefix(p.ImportPath, module)
		allowed, ok := allowedIn(room)
		if !ok {
			add("%s has no place in the house", room)
			continue
		}
		kind := "Package "
		if p.Name == "main" {
			kind = "Command "
			p.Name = path.Base(room)
		}
		if len(p.GoFiles) > 0 && !strings.HasPrefix(p.Doc, kind+p.Name+" ") {
			add("%s has no comment that begins with %q", room, kind+p.Name)
		}
		inHelpers := matches(testOnly, room) || strings.HasPrefix(room, "e2e/")
		for _, i := range p.Imports {
			own, isOurs := strings.CutPrefix(i, module)
			switch {
			case isOurs && !matches(allowed, own):
				add("%s imports %s", room, own)
			case isOurs && matches(testOnly, own) && !inHelpers:
				add("%s imports %s, which is for tests", room, own)
			case i == "os/exec" && !strings.HasPrefix(room, "e2e/") && room != "dataplane/cni": // CNI's plugins are programs
				add("%s runs other programs", room)
			case !isOurs && foreign(i) && !matches(libraries[library(i)], room):
				add("%s imports %s", room, i)
			}
		}
		for _, i := range slices.Concat(p.TestImports, p.XTestImports) {
			own, isOurs := strings.CutPrefix(i, module)
			lib := library(i)
			switch {
			case isOurs && own != room && !matches(allowed, own) && !ownFamily(room, own):
				add("the tests of %s import %s", room, own)
			case !isOurs && foreign(i) && !matches(libraries[lib], room) && !matches(inTests[lib], room):
				add("the tests of %s import %s", room, i)
			}
		}
	}
	for _, f := range folders {
		if !slices.Contains(topLevel, f) {
			add("%s is no folder for the top level", f)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// allowedIn is the entry of the table for a room.
func allowedIn(room string) ([]string, bool) {
	if a, ok := rooms[room]; ok {
		return a, true
	}
	for r, a := range rooms {
		if strings.HasSuffix(r, "...") && matches([]string{r}, room) {
			return a, true
		}
	}
	return nil, false
}

// matches reports whether a path is one of patterns, or below one that ends in "...".
func matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		under, all := strings.CutSuffix(p, "...")
		return p == name || all && (strings.HasPrefix(name, under) || name+"/" == under)
	})
}

// ownFamily: a test may use all of its own family, and the daemon's tests the fakes of the others too.
func ownFamily(room, own string) bool {
	first := func(s string) string { s, _, _ = strings.Cut(s, "/"); return s }
	values := []string{"alloc", "dataplane", "frr"}
	adapters := []string{"alloc/dirstore", "alloc/etcdstore", "dataplane/cni", "dataplane/kernel", "dataplane/monitor", "dataplane/netns"}
	return first(room) == first(own) || room == "daemon" && slices.Contains(adapters, own) || // the real ones
		first(room) == "daemon" && (matches(testOnly, own) || slices.Contains(values, own))
}

// foreign: not of the standard library, whose import paths begin with no domain.
func foreign(i string) bool {
	first, _, _ := strings.Cut(i, "/")
	return strings.Contains(first, ".")
}

// library is the module in the table that an import is of.
func library(i string) string {
	for m := range libraries {
		if i == m || strings.HasPrefix(i, m+"/") {
			return m
		}
	}
	return ""
}

// TestHouseIsWatched checks the checker: each way to break the house is seen.
func TestHouseIsWatched(t *testing.T) {
	all := []pkg{
		{ImportPath: "vtepd/alloc", Name: "alloc", Doc: "Package alloc provides pools.", Imports: []string{"fmt", "vtepd/frr", "golang.org/x/sys/unix"}},
		{ImportPath: "vtepd/daemon", Name: "daemon", Doc: "Package daemon is.", Imports: []string{"vtepd/daemon/txn", "vtepd/dataplane/kernel", "vtepd/frr"}},
		{ImportPath: "vtepd/daemon/plan", Name: "plan", GoFiles: []string{"plan.go"}, Imports: []string{"vtepd/daemon/config"}, XTestImports: []string{"vtepd/daemon/config", "vtepd/alloc/memstore", "vtepd/frr/vty"}},
		{ImportPath: "vtepd/daemon/txn", Name: "txn", GoFiles: []string{"txn.go"}, Doc: "Package x is.", Imports: []string{"os/exec", "vtepd/dataplane/fake"}, TestImports: []string{"os/exec"}},
		{ImportPath: "vtepd/cmd/vtepd", Name: "main", Doc: "Command vtepd is.", Imports: []string{"github.com/spf13/cobra", "vtepd/e2e/lab", "vtepd/frr/frrtest"}},
		{ImportPath: "vtepd/frr/vty", Name: "vty", Doc: "Package vty is.", Imports: []string{"vtepd/frr", "github.com/spf13/cobra", "example.org/x"}, TestImports: []string{"pgregory.net/rapid", "example.org/x"}},
		{ImportPath: "vtepd/util", Name: "util", Doc: "Package util is."},
		{ImportPath: "vtepd/e2e/lab", Name: "lab", Doc: "Package lab is.", Imports: []string{"os/exec", "vtepd/frr/frrtest", "github.com/vishvananda/netlink/nl"}},
	}
	want := []string{
		"alloc imports frr",
		"alloc imports golang.org/x/sys/unix",
		"cmd/vtepd imports e2e/lab",
		"cmd/vtepd imports frr/frrtest",
		"daemon imports dataplane/kernel",
		"daemon/plan has no comment that begins with \"Package plan\"",
		"daemon/plan imports daemon/config",
		"daemon/txn has no comment that begins with \"Package txn\"",
		"daemon/txn imports dataplane/fake",
		"daemon/txn runs other programs",
		"frr/vty imports example.org/x",
		"frr/vty imports github.com/spf13/cobra",
		"hack is no folder for the top level",
		"the tests of daemon/plan import frr/vty",
		"the tests of frr/vty import example.org/x",
		"util has no place in the house",
	}
	if diff := cmp.Diff(want, broken(all, []string{"alloc", "hack"})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
