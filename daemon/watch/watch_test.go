package watch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
)

const patience = 20 * time.Second

// start runs a Watcher until the test is over.
func start(t *testing.T, path string) *Watcher {
	t.Helper()
	w, err := New(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return w
}

// hint waits for one hint.
func hint(t *testing.T, w *Watcher, after string) {
	t.Helper()
	select {
	case <-w.C:
	case <-time.After(patience):
		t.Fatalf("no hint after %s", after)
	}
}

// sees looks after every hint, and only then, until the file holds text.
func sees(t *testing.T, w *Watcher, path, text string) {
	t.Helper()
	late := time.After(patience)
	got := "(no hint)"
	for {
		select {
		case <-w.C:
			data, err := os.ReadFile(path)
			if err == nil && string(data) == text {
				return
			}
			got = fmt.Sprintf("%q, %v", data, err)
		case <-late:
			t.Fatalf("after the last hint the file held %s; want %q", got, text)
		}
	}
}

// gone looks after every hint until there is no file.
func gone(t *testing.T, w *Watcher, path string) {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case <-w.C:
			if _, err := os.Stat(path); err != nil {
				return
			}
		case <-late:
			t.Fatal("the file was still there after the last hint")
		}
	}
}

func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	do(t, os.WriteFile(path, []byte(text), 0o644))
}

// replace writes beside path and renames over it.
func replace(t *testing.T, path, text string) {
	t.Helper()
	put(t, path+".tmp", text)
	do(t, os.Rename(path+".tmp", path))
}

func TestFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "vtepd.yaml")
	w := start(t, path)
	put(t, path, "created")
	sees(t, w, path, "created")
	put(t, path, "written in place")
	sees(t, w, path, "written in place")
	for i := range 3 {
		text := fmt.Sprintf("renamed over %d", i)
		replace(t, path, text)
		sees(t, w, path, text)
	}
	put(t, path, "written in place after a rename")
	sees(t, w, path, "written in place after a rename")
	do(t, os.Remove(path))
	gone(t, w, path)
	put(t, path, "again")
	sees(t, w, path, "again")
	do(t, os.Chmod(path, 0o600))
	hint(t, w, "chmod")
}

// What happens between New and Run isn't lost.
func TestBeforeRun(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "vtepd.yaml")
	w, err := New(path)
	do(t, err)
	put(t, path, "early")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	sees(t, w, path, "early")
	cancel()
	do(t, <-done)
}

func TestDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := start(t, dir)
	a, b := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	put(t, a, "1")
	sees(t, w, a, "1")
	replace(t, b, "2")
	sees(t, w, b, "2")
	put(t, a, "3")
	sees(t, w, a, "3")
	do(t, os.Remove(b))
	gone(t, w, b)

	// A link to a file elsewhere is followed.
	elsewhere := filepath.Join(t.TempDir(), "c")
	c := filepath.Join(dir, "c.yaml")
	put(t, elsewhere, "4")
	do(t, os.Symlink(elsewhere, c))
	sees(t, w, c, "4")
	put(t, elsewhere, "5")
	sees(t, w, c, "5")
	replace(t, elsewhere, "6")
	sees(t, w, c, "6")
}

// volume is a directory as the kubelet writes it.
type volume struct {
	t    *testing.T
	dir  string
	turn int
}

// swap writes a new data directory, turns ..data to it and removes the old one.
func (v *volume) swap(text string) {
	v.t.Helper()
	old, _ := os.Readlink(filepath.Join(v.dir, "..data"))
	v.turn++
	data := fmt.Sprintf("..2024_%d", v.turn)
	do(v.t, os.Mkdir(filepath.Join(v.dir, data), 0o755))
	put(v.t, filepath.Join(v.dir, data, "vtepd.yaml"), text)
	tmp := filepath.Join(v.dir, "..data_tmp")
	do(v.t, os.Symlink(data, tmp))
	do(v.t, os.Rename(tmp, filepath.Join(v.dir, "..data")))
	if old != "" {
		do(v.t, os.RemoveAll(filepath.Join(v.dir, old)))
	}
}

func TestKubernetes(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"file", "directory"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			v := &volume{t: t, dir: t.TempDir()}
			path := filepath.Join(v.dir, "vtepd.yaml")
			v.swap("1")
			do(t, os.Symlink("..data/vtepd.yaml", path))
			w := start(t, map[string]string{"file": path, "directory": v.dir}[what])
			for i := range 5 {
				text := fmt.Sprint("swapped ", i)
				v.swap(text)
				sees(t, w, path, text)
			}
			for i := range 50 {
				v.swap(fmt.Sprint("burst ", i))
			}
			sees(t, w, path, "burst 49")
			put(t, filepath.Join(v.dir, "..data", "vtepd.yaml"), "in place behind the link")
			sees(t, w, path, "in place behind the link")
		})
	}
}

// A link on the way to the directory is turned.
func TestLinkOnTheWay(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	for _, v := range []string{"v1", "v2"} {
		do(t, os.MkdirAll(filepath.Join(top, v, "etc"), 0o755))
		put(t, filepath.Join(top, v, "etc", "vtepd.yaml"), v)
	}
	current := filepath.Join(top, "current")
	do(t, os.Symlink(filepath.Join(top, "v1"), current))
	path := filepath.Join(current, "etc", "vtepd.yaml")
	w := start(t, path)
	do(t, os.Symlink("v2", current+".tmp"))
	do(t, os.Rename(current+".tmp", current))
	sees(t, w, path, "v2")
	put(t, filepath.Join(top, "v2", "etc", "vtepd.yaml"), "v2, changed")
	sees(t, w, path, "v2, changed")
}

func TestDirectoryDeletedAndRecreated(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"file", "directory"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			top := t.TempDir()
			dir := filepath.Join(top, "etc", "vtepd", "conf")
			path := filepath.Join(dir, "vtepd.yaml")
			w := start(t, map[string]string{"file": path, "directory": dir}[what]) // nothing is there yet
			for i := range 5 {
				do(t, os.MkdirAll(dir, 0o755))
				text := fmt.Sprint("made ", i)
				put(t, path, text)
				sees(t, w, path, text)
				put(t, path, text+", written")
				sees(t, w, path, text+", written")
				do(t, os.RemoveAll(filepath.Join(top, "etc")))
				gone(t, w, path)
			}
			// Without a pause in between.
			for i := range 50 {
				do(t, os.RemoveAll(filepath.Join(top, "etc")))
				do(t, os.MkdirAll(dir, 0o755))
				put(t, path, fmt.Sprint("quick ", i))
			}
			sees(t, w, path, "quick 49")
			put(t, path, "after that")
			sees(t, w, path, "after that")

			// Moved away, and another one moved there.
			do(t, os.Rename(dir, dir+".old"))
			gone(t, w, path)
			other := filepath.Join(top, "other")
			do(t, os.Mkdir(other, 0o755))
			put(t, filepath.Join(other, "vtepd.yaml"), "moved here")
			do(t, os.Rename(other, dir))
			sees(t, w, path, "moved here")
			put(t, path, "and written")
			sees(t, w, path, "and written")
		})
	}
}

func TestBurst(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		write func(t *testing.T, path, text string)
	}{{"in place", put}, {"rename", replace}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "vtepd.yaml")
			w := start(t, path)
			for i := range 1000 {
				test.write(t, path, fmt.Sprint("write ", i))
			}
			sees(t, w, path, "write 999")
		})
	}
}

func TestWriterThatNeverStops(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "vtepd.yaml")
	w := start(t, path)
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				stopped <- os.WriteFile(path, []byte("last"), 0o644)
				return
			default:
				if err := os.WriteFile(path, fmt.Append(nil, i), 0o644); err != nil {
					stopped <- err
					return
				}
			}
		}
	}()
	for range 3 {
		hint(t, w, "writes that never stop")
	}
	close(stop)
	do(t, <-stopped)
	sees(t, w, path, "last")
}

// Losing events is a reason to look again, and to set the watches again.
func TestOverflow(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "vtepd.yaml")
	put(t, path, "1")
	w, err := New(path)
	do(t, err)
	do(t, w.fs.Remove(dir)) // as if all its events were lost
	do(t, w.fs.Remove(path))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	w.fs.Errors <- fsnotify.ErrEventOverflow
	hint(t, w, "an overflow")
	replace(t, path, "2")
	sees(t, w, path, "2")
	cancel()
	do(t, <-done)
}

func TestEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vtepd.yaml")
	w, err := New(path)
	do(t, err)
	do(t, w.Close())
	want := "watch " + path + ": fsnotify: watcher already closed"
	if err := w.Run(context.Background()); err == nil || err.Error() != want {
		t.Errorf("Run of a closed Watcher: %v, want %s", err, want)
	}
}

func TestLook(t *testing.T) {
	top, err := filepath.EvalSymlinks(t.TempDir())
	do(t, err)
	do(t, os.Mkdir(filepath.Join(top, "d"), 0o755))
	put(t, filepath.Join(top, "d", "f"), "")
	do(t, os.Symlink("../d/f", filepath.Join(top, "d", "up.yaml")))
	do(t, os.Symlink("loop.yaml", filepath.Join(top, "loop.yaml")))
	do(t, os.Symlink("nowhere/x", filepath.Join(top, "dangling")))
	for _, test := range []struct {
		path  string
		watch []string // below top
		last  string
		isDir bool
	}{
		{"d/f", []string{"", "/d", "/d/f"}, "/d", false},
		{"d/new", []string{"", "/d"}, "/d", false},
		{"no/such/thing", []string{""}, "", false},
		{"d/f/below", []string{"", "/d", "/d/f"}, "/d", false},
		{"d/up.yaml", []string{"", "/d", "/d/f"}, "/d", false},
		{"d", []string{"", "/d", "/d/f"}, "/d", true},
		{"loop.yaml", []string{""}, "", false},
		{"dangling", []string{""}, "", false},
	} {
		l := look(filepath.Join(top, test.path))
		var watch []string
		for _, at := range l.watch {
			if below, ok := strings.CutPrefix(at, top); ok {
				watch = append(watch, below)
			}
		}
		if !reflect.DeepEqual(watch, test.watch) || l.last != top+test.last || l.isDir != test.isDir || l.watch[0] != "/" {
			t.Errorf("%s: %+v, below %s %q", test.path, l, top, watch)
		}
	}

	file, dir := look(filepath.Join(top, "d/f")), look(filepath.Join(top, "d"))
	for _, test := range []struct {
		name      string
		file, dir bool
	}{
		{"/x/f", true, true}, // up.yaml leads to it
		{"/x/d", true, true},
		{"/x/f.tmp", false, false},
		{"/x/g.yaml", false, true},
		{"/x/.g.yaml", false, false},
		{"/x/g.yaml~", false, false},
		{"/x/..data", false, true},
		{"/x/.f.swp", false, false},
		{"", false, false},
	} {
		if got := file.matters(test.name); got != test.file {
			t.Errorf("file: matters(%q) = %t", test.name, got)
		}
		if got := dir.matters(test.name); got != test.dir {
			t.Errorf("directory: matters(%q) = %t", test.name, got)
		}
	}
}
