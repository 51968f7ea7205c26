package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// guestTag is on the test files that need the guest's kernel or its FRR, containersTag on those that need a container engine too,
// containerlabTag on those that need containerlab as well.
const (
	guestTag        = "guest"
	containersTag   = "containers"
	containerlabTag = "containerlab"
)

// pkg is what go list says of a package of this module.
type pkg struct {
	ImportPath   string
	Dir          string
	Imports      []string
	TestGoFiles  []string
	XTestGoFiles []string
	TestImports  []string
	XTestImports []string
}

func (p pkg) testFiles() []string { return slices.Concat(p.TestGoFiles, p.XTestGoFiles) }

// goList lists the module's packages as they are under a build tag; "" is none.
func goList(ctx context.Context, tag string) ([]pkg, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-tags="+tag,
		"-json=ImportPath,Dir,Imports,TestGoFiles,XTestGoFiles,TestImports,XTestImports", "./...")
	out, err := cmd.Output()
	if err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			return nil, fmt.Errorf("go list: %w\n%s", err, failed.Stderr)
		}
		return nil, fmt.Errorf("go list: %w", err)
	}
	return decodePackages(strings.NewReader(string(out)))
}

func decodePackages(r io.Reader) ([]pkg, error) {
	var all []pkg
	for dec := json.NewDecoder(r); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		all = append(all, p)
	}
}

// guestPkg is a package with test files that only the guest tag brings.
type guestPkg struct {
	pkg
	files []string // those files
	frr   bool     // it has to do with FRR, so every version of it matters
}

// guestPackages are those that have more test files with the tag than without.
func guestPackages(plain, tagged []pkg) []guestPkg {
	without := map[string]pkg{}
	for _, p := range plain {
		without[p.ImportPath] = p
	}
	with := map[string]pkg{}
	for _, p := range tagged {
		with[p.ImportPath] = p
	}
	var all []guestPkg
	for _, p := range tagged {
		known := without[p.ImportPath].testFiles()
		var more []string
		for _, f := range p.testFiles() {
			if !slices.Contains(known, f) {
				more = append(more, f)
			}
		}
		if more != nil {
			all = append(all, guestPkg{pkg: p, files: more, frr: aboutFRR(p, with)})
		}
	}
	return all
}

// aboutFRR says whether a package's tests reach the module's frr or e2e trees.
func aboutFRR(p pkg, module map[string]pkg) bool {
	seen := map[string]bool{}
	var reach func(path string) bool
	reach = func(path string) bool {
		if seen[path] {
			return false
		}
		seen[path] = true
		_, tree, _ := strings.Cut(path+"/", "/")
		if strings.HasPrefix(tree, "frr/") || strings.HasPrefix(tree, "e2e/") {
			_, ours := module[path]
			return ours
		}
		return slices.ContainsFunc(module[path].Imports, reach)
	}
	return reach(p.ImportPath) || slices.ContainsFunc(p.TestImports, reach) || slices.ContainsFunc(p.XTestImports, reach)
}

// functions are the names of the top-level functions in test files whose names
// begin with one of the prefixes, as go test means them: TestX, not Testify.
func functions(dir string, files []string, prefixes ...string) ([]string, error) {
	var names []string
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || f.Name.Name == "TestMain" {
				continue
			}
			for _, prefix := range prefixes {
				rest, ok := strings.CutPrefix(f.Name.Name, prefix)
				if ok && !(len(rest) > 0 && rest[0] >= 'a' && rest[0] <= 'z') {
					names = append(names, f.Name.Name)
				}
			}
		}
	}
	return names, nil
}

// runPattern is the -test.run for those of the names that a user's pattern
// selects; "" when it selects none. As in go test, a slash ends the part for
// the top-level names.
func runPattern(names []string, user string) (string, error) {
	top, rest, slash := strings.Cut(user, "/")
	re, err := regexp.Compile(top)
	if err != nil {
		return "", err
	}
	names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !re.MatchString(n) })
	if len(names) == 0 {
		return "", nil
	}
	pattern := "^(" + strings.Join(names, "|") + ")$"
	if slash {
		pattern += "/" + rest
	}
	return pattern, nil
}

// short is a package's path below the module.
func short(importPath string) string {
	if _, rest, ok := strings.Cut(importPath, "/"); ok {
		return rest
	}
	return "."
}
