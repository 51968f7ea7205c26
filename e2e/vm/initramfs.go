package vm

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// writeInitramfs writes the guest's initial file system: this program as its
// first process, and the modules that must be there before any other thing.
func writeInitramfs(w io.Writer, self string, modules []string) error {
	buf := bufio.NewWriter(w)
	c := cpio{w: buf}
	for _, dir := range []string{"dev", "proc", "sys", "modules"} {
		c.entry(dir, 0o040755, nil)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		return err
	}
	c.entry("init", 0o100755, program)
	c.entry("modprobe", 0o120777, []byte("init"))
	for i, path := range modules {
		body, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		c.entry(fmt.Sprintf("modules/%03d-%s", i, filepath.Base(path)), 0o100644, body)
	}
	c.entry("TRAILER!!!", 0, nil)
	if c.err != nil {
		return c.err
	}
	return buf.Flush()
}

// cpio writes the "newc" format, which the kernel unpacks.
type cpio struct {
	w   io.Writer
	ino int
	err error
}

func (c *cpio) entry(name string, mode int, body []byte) {
	if c.err != nil {
		return
	}
	c.ino++
	head := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		c.ino, mode, 0, 0, 1, 0, len(body), 0, 0, 0, 0, len(name)+1, 0, name)
	for _, part := range [][]byte{[]byte(head), pad(len(head)), body, pad(len(body))} {
		if _, err := c.w.Write(part); err != nil {
			c.err = err
			return
		}
	}
}

func pad(n int) []byte { return make([]byte, (4-n%4)%4) }

// moduleFiles returns the files of the named modules, each after those that it
// depends on, from the module directory's modules.dep.
func moduleFiles(dir string, names []string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(dir, "modules.dep"))
	if err != nil {
		return nil, err
	}
	path := map[string]string{}   // name -> file
	deps := map[string][]string{} // file -> files, in modprobe's order: last first
	for line := range bytes.Lines(text) {
		file, rest, ok := strings.Cut(strings.TrimSpace(string(line)), ":")
		if !ok {
			continue
		}
		path[moduleName(file)] = file
		deps[file] = strings.Fields(rest)
	}
	var files []string
	done := map[string]bool{}
	var add func(file string)
	add = func(file string) {
		if done[file] {
			return
		}
		done[file] = true
		for _, d := range deps[file] {
			add(d)
		}
		files = append(files, filepath.Join(dir, file))
	}
	for _, name := range names {
		file, ok := path[name]
		if !ok {
			return nil, fmt.Errorf("kernel module %s: not in %s", name, dir)
		}
		add(file)
	}
	return files, nil
}

// moduleName is the name that modprobe takes: of kernel/net/8021q/8021q.ko.xz, 8021q.
func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}
