package clab

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"gopkg.in/yaml.v3"
)

// theirSchema is containerlab's own, of its release 0.78, under the license beside it:
// https://github.com/srl-labs/containerlab/blob/main/schemas/clab.schema.json
const theirSchema = "testdata/containerlab/clab.schema.json"

func compileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	s, err := jsonschema.NewCompiler().Compile(theirSchema)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// validate holds a YAML file against a schema. What is wrong is sorted: at '/path': what.
func validate(s *jsonschema.Schema, file []byte) ([]string, error) {
	var doc any
	if err := yaml.Unmarshal(file, &doc); err != nil {
		return nil, err
	}
	text, err := json.Marshal(doc) // fails where YAML has what JSON can't say
	if err != nil {
		return nil, err
	}
	if doc, err = jsonschema.UnmarshalJSON(bytes.NewReader(text)); err != nil {
		return nil, err
	}
	invalid, ok := s.Validate(doc).(*jsonschema.ValidationError)
	if !ok {
		return nil, nil
	}
	out := leaves(nil, invalid)
	slices.Sort(out)
	return slices.Compact(out), nil
}

// leaves are the errors that have no causes: of an alternative, those of each.
func leaves(out []string, e *jsonschema.ValidationError) []string {
	for _, c := range e.Causes {
		out = leaves(out, c)
	}
	if len(e.Causes) == 0 {
		out = append(out, e.Error())
	}
	return out
}

// Every topology of the project, wherever it is, obeys containerlab's schema, and is one that this package reads.
func TestTheirSchema(t *testing.T) {
	s := compileSchema(t)
	var files []string
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "bin" || strings.HasPrefix(d.Name(), ".") && !strings.HasPrefix(d.Name(), "..")):
			return filepath.SkipDir
		case strings.HasSuffix(d.Name(), ".clab.yml") || strings.HasSuffix(d.Name(), ".clab.yaml"):
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	shipped, err := filepath.Glob("../../containerlab/*.clab.yml")
	if err != nil || len(shipped) < 2 {
		t.Fatalf("%d topologies: %v", len(shipped), err)
	}
	for _, f := range shipped {
		if !slices.Contains(files, f) {
			t.Errorf("%s was passed over", f)
		}
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		wrong, err := validate(s, text)
		if err != nil || len(wrong) > 0 {
			t.Errorf("%s: %v\n%s", f, err, strings.Join(wrong, "\n"))
		}
	}
}

// What is wrong for this package is mostly wrong for containerlab too. A schema that is never seen to refuse anything
// would prove nothing.
func TestTheirSchemaRefuses(t *testing.T) {
	s := compileSchema(t)
	node := func(more string) string {
		return "name: x\ntopology:\n  nodes:\n    r1: {kind: linux, image: i, " + more + "}\n"
	}
	for _, tt := range []struct{ name, file, want string }{
		{"right", node("cmd: a"), ""},
		{"unknown at the top", node("") + "nodes: {}\n", "at '': additional properties 'nodes' not allowed"},
		{"unknown in a node", node("commands: [a]"), "at '/topology/nodes/r1': additional properties 'commands' not allowed"},
		{"a text for a list", node("exec: a"), "at '/topology/nodes/r1/exec': got string, want array"},
		{"a list for a text", node("cmd: [a]"), "at '/topology/nodes/r1/cmd': got array, want string"},
		{"a bind twice", node("binds: [a:/a, a:/a]"), "at '/topology/nodes/r1/binds': items at 0 and 1 are equal"},
		{"a kind that isn't there", strings.Replace(node(""), "kind: linux", "kind: lynux", 1), "at '/topology/nodes/r1/kind': value must be one of 'nokia_srlinux'"},
		{"a restart policy that isn't there", node("restart-policy: maybe"), "at '/topology/nodes/r1/restart-policy': value must be one of 'no'"},
		{"a stage that isn't there", node("stages: {make: {}}"), "at '/topology/nodes/r1/stages': additional properties 'make' not allowed"},
		{"no name", "topology: {nodes: {r1: {kind: linux}}}", "at '': missing property 'name'"},
		{"a mistyped MAC", node("") + "  links: [{type: veth, endpoints: [{node: r1, interface: e, mac: x}, {node: r1, interface: f}]}]", "at '/topology/links/0/endpoints/0/mac': 'x' does not match pattern"},
	} {
		got, err := validate(s, []byte(tt.file))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if tt.want == "" {
			if diff := cmp.Diff([]string(nil), got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.name, diff)
			}
			continue
		}
		if !slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, tt.want) }) {
			t.Errorf("%s: none begins with %q:\n%s", tt.name, tt.want, strings.Join(got, "\n"))
		}
	}
}
