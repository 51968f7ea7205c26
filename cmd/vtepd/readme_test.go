package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"vtepd/daemon/config"
)

// TestReadme: what the README shows is true: the config is one, the commands are there, and so is what it points to.
func TestReadme(t *testing.T) {
	raw, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	_, rest, ok := strings.Cut(text, "```yaml\n")
	example, _, closed := strings.Cut(rest, "```")
	if !ok || !closed {
		t.Fatal("no config in the README")
	}
	if _, err := config.Parse("README.md", []byte(example)); err != nil {
		t.Errorf("its config: %v", err)
	}
	for _, m := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(text, -1) {
		if strings.HasPrefix(m[1], "https://") {
			continue
		}
		if _, err := os.Stat(filepath.Join("../..", m[1])); err != nil {
			t.Errorf("a link: %v", err)
		}
	}
	for _, m := range regexp.MustCompile(`vtepd ([a-z]+)\b`).FindAllStringSubmatch(text, -1) {
		found, _, err := command().Find([]string{m[1]})
		if strings.Contains(text, "`vtepd "+m[1]) || strings.Contains(text, "    vtepd "+m[1]) {
			if err != nil || found.Name() != m[1] {
				t.Errorf("vtepd %s: %v", m[1], err)
			}
		}
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^    make ([a-z]+)`).FindAllStringSubmatch(text, -1) {
		if !strings.Contains(string(makefile), "\n"+m[1]+":") {
			t.Errorf("make %s is not in the Makefile", m[1])
		}
	}
}
