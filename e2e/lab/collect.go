package lab

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Collect writes what there is to see of the lab into a directory of the given
// name under that for artifacts, and returns its path: of each node its links, addresses, routes
// and FRR's tables, every process's log, what every GoBGP speaker heard, and the captures of traffic. Without a
// directory for artifacts it does nothing and returns "".
func (l *Lab) Collect(name string) (string, error) {
	if l.opt.Artifacts == "" {
		return "", nil
	}
	dir := filepath.Join(l.opt.Artifacts, name)
	return dir, l.collect(dir)
}

func (l *Lab) collect(dir string) error {
	// Its own time: a test that fails has often used up its.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
	)
	note := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, err)
	}
	for _, n := range l.Nodes() {
		wg.Go(func() {
			note(os.WriteFile(filepath.Join(dir, n.Name+".txt"), []byte(n.Dump(ctx)), 0o644))
		})
		if n.speaker != nil {
			note(writeLines(filepath.Join(dir, n.Name+"-heard.jsonl"), n.speaker.Events()))
		}
	}
	wg.Wait()
	if logs := filepath.Join(l.scratch, "log"); exists(logs) {
		if err := os.CopyFS(filepath.Join(dir, "log"), os.DirFS(logs)); err != nil {
			note(err)
		}
	}
	l.mu.Lock()
	traffic := slices.Clone(l.traffic)
	l.mu.Unlock()
	for i, t := range traffic {
		note(t.writeCaptures(dir, i))
	}
	return errors.Join(errs...)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func writeLines[T any](path string, list []T) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(f)
	for _, e := range list {
		err = errors.Join(err, enc.Encode(e))
	}
	return errors.Join(err, f.Close())
}
