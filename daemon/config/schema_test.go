package config

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

// knownFields is every path that fields allows, "*" for any name.
func knownFields() []string {
	var all []string
	for of, keys := range fields {
		for _, key := range keys {
			all = append(all, join(of, key))
		}
		if name, ok := strings.CutSuffix(of, ".*"); ok {
			all = append(all, of)
			if !named[name] {
				panic(name + " has names but is not in named")
			}
		}
	}
	slices.Sort(all)
	return all
}

func TestReferenceHasEveryField(t *testing.T) {
	if _, err := Parse("reference.yaml", Reference); err != nil {
		t.Fatal(err)
	}
	root, probs := parseTree("reference.yaml", Reference)
	if len(probs) > 0 {
		t.Fatal(probs)
	}
	var have []string
	var walk func(n *node, path string)
	walk = func(n *node, path string) {
		for _, e := range n.entries {
			at := join(path, e.key)
			if named[path] {
				at = join(path, "*")
			}
			have = append(have, at)
			walk(e.val, at)
		}
	}
	walk(root, "")
	have = append(have, "store.directory") // instead of store.etcd, in a comment
	if text := strings.Replace(withoutEtcd(t), "#directory:", "directory:", 1); !strings.Contains(text, "\n  directory: ") {
		t.Error("the reference file doesn't show store.directory")
	} else if _, err := Parse("reference.yaml", []byte(text)); err != nil {
		t.Error(err)
	}
	slices.Sort(have)
	if have, want := slices.Compact(have), knownFields(); !slices.Equal(have, want) {
		t.Errorf("the reference file has\n%v\nthe known fields are\n%v", have, want)
	}
	for i, line := range strings.Split(string(Reference), "\n") {
		if len(line) > 100 || strings.HasSuffix(line, " ") {
			t.Errorf("reference.yaml:%d: over-long, or a space at its end", i+1)
		}
	}
}

// withoutEtcd is the reference file without store.etcd.
func withoutEtcd(t *testing.T) string {
	t.Helper()
	before, rest, ok := strings.Cut(string(Reference), "  etcd:\n")
	_, after, closed := strings.Cut(rest, "\n\n")
	if !ok || !closed {
		t.Fatal("the reference file has no store.etcd that ends in an empty line")
	}
	return before + "\n" + after
}

// What the reference file calls a default is what leaving it out gives.
func TestReferenceDefaults(t *testing.T) {
	full, err := Parse("full", Reference)
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	dropped := 0
	for _, line := range strings.Split(string(Reference), "\n") {
		if _, comment, ok := strings.Cut(line, " # default"); ok && (comment == "" || comment[0] == ';' || strings.HasPrefix(comment, `: "br"`)) {
			dropped++
			continue
		}
		kept = append(kept, line)
	}
	if dropped != 12 {
		t.Errorf("%d defaults, want 12", dropped)
	}
	// What is left of a mapping without its keys is no mapping.
	text := strings.Replace(strings.Join(kept, "\n"), "frr:\n", "frr: {}\n", 1)
	text = strings.Replace(text, "  drain:\n", "  drain: {}\n", 1)
	short, err := Parse("short", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if !full.Equal(short) {
		t.Errorf("with defaults written out %+v\nwithout %+v", full, short)
	}
}

// jsonSchema is as much of a JSON Schema as the file uses for its structure.
type jsonSchema struct {
	Type                 string
	Properties           map[string]jsonSchema
	AdditionalProperties any
	Default              any
}

func TestSchemaHasEveryField(t *testing.T) {
	var root jsonSchema
	if err := json.Unmarshal(Schema, &root); err != nil {
		t.Fatal(err)
	}
	var have []string
	defaults := map[string]any{}
	var walk func(s jsonSchema, path string)
	walk = func(s jsonSchema, path string) {
		if s.Default != nil {
			defaults[path] = s.Default
		}
		if s.Type != "object" {
			return
		}
		switch more := s.AdditionalProperties.(type) {
		case bool:
			if more {
				t.Errorf("%s allows unknown keys", path)
			}
		case map[string]any:
			text, err := json.Marshal(more)
			if err != nil {
				t.Fatal(err)
			}
			var each jsonSchema
			if err := json.Unmarshal(text, &each); err != nil {
				t.Fatal(err)
			}
			have = append(have, join(path, "*"))
			walk(each, join(path, "*"))
		default:
			t.Errorf("%s allows unknown keys", path)
		}
		for key, p := range s.Properties {
			have = append(have, join(path, key))
			walk(p, join(path, key))
		}
	}
	walk(root, "")
	slices.Sort(have)
	if want := knownFields(); !slices.Equal(have, want) {
		t.Errorf("the schema has\n%v\nthe known fields are\n%v", have, want)
	}

	var ref any
	if err := yaml.Unmarshal(Reference, &ref); err != nil {
		t.Fatal(err)
	}
	for path, def := range defaults {
		if !hasDefault(ref, strings.Split(path, "."), def) {
			t.Errorf("%s: the reference file doesn't show the schema's default %v", path, def)
		}
	}
	if len(defaults) != 13-1 { // a bridge's depends on its VNI
		t.Errorf("%d defaults, want 12: %v", len(defaults), defaults)
	}
}

func hasDefault(v any, path []string, def any) bool {
	if len(path) == 0 {
		if n, ok := def.(float64); ok {
			return v == int(n)
		}
		return v == def
	}
	switch m := v.(type) {
	case map[string]any:
		for key, c := range m {
			if (key == path[0] || path[0] == "*") && hasDefault(c, path[1:], def) {
				return true
			}
		}
	case map[any]any: // keys are numbers
		for _, c := range m {
			if path[0] == "*" && hasDefault(c, path[1:], def) {
				return true
			}
		}
	}
	return false
}
