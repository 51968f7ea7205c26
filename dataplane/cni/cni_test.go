package cni_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vtepd/dataplane"
	"vtepd/dataplane/cni"
	"vtepd/dataplane/kerneltest"
)

// TestMain is the plugins too: ipvlan and static are this program under their names.
func TestMain(m *testing.M) {
	if os.Getenv("CNI_COMMAND") != "" {
		os.Exit(plugin(os.Args[0]))
	}
	os.Exit(m.Run())
}

// binary is this program where anybody can run it: the plugins aren't root.
var binary []byte

// lab is a directory that anybody can write into: the plugins in bin, and one file for every link in links.
type lab struct {
	dir   string
	state string // of the CNI
}

func newLab(t testing.TB) *lab {
	t.Helper()
	dir, err := os.MkdirTemp("", "vtepd-cni-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	l := &lab{dir: dir, state: filepath.Join(t.TempDir(), "cni")}
	must(t, os.Chmod(dir, 0o755))
	must(t, os.Mkdir(l.Path(), 0o755))
	must(t, os.Mkdir(filepath.Join(dir, "links"), 0o777))
	must(t, os.Chmod(filepath.Join(dir, "links"), 0o777))
	if binary == nil {
		binary, err = os.ReadFile("/proc/self/exe")
		must(t, err)
	}
	must(t, os.WriteFile(filepath.Join(l.Path(), "ipvlan"), binary, 0o755))
	must(t, os.Link(filepath.Join(l.Path(), "ipvlan"), filepath.Join(l.Path(), "static")))
	l.Add(t, "eth1")
	return l
}

func (l *lab) open() *cni.CNI {
	return cni.New(cni.Options{Dir: l.state, Links: l.links})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (l *lab) Path() string { return filepath.Join(l.dir, "bin") }

func (l *lab) Links(t testing.TB) []string {
	t.Helper()
	names, err := l.links()
	must(t, err)
	return names
}

func (l *lab) links() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(l.dir, "links"))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

func (l *lab) Add(t testing.TB, name string) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(l.dir, "links", name), nil, 0o644))
}

func (l *lab) Remove(t testing.TB, name string) {
	t.Helper()
	must(t, os.Remove(filepath.Join(l.dir, "links", name)))
}

func (l *lab) cacheFile(a dataplane.Attachment) string {
	dir := a.CacheDir
	if dir == "" {
		dir = filepath.Join(l.state, "cache")
	}
	return filepath.Join(dir, "results", "uplink-"+a.ContainerID+"-"+a.Link)
}

func (l *lab) LoseCache(t testing.TB, a dataplane.Attachment) {
	t.Helper()
	must(t, os.Remove(l.cacheFile(a)))
}

func (l *lab) Restart(testing.TB) dataplane.CNI { return l.open() }

// tell has the plugin do something else at its next call of a verb: refuse in words, hang, lie, or write its environment.
func (l *lab) tell(t testing.TB, verb, what string) {
	t.Helper()
	file := filepath.Join(l.Path(), verb)
	if what == "" {
		must(t, os.Remove(file))
		return
	}
	must(t, os.WriteFile(file, []byte(what), 0o644))
}

// plugin behaves like ipvlan with static: see the facts that were measured of those.
func plugin(path string) int {
	bin, name := filepath.Split(path)
	links := filepath.Join(bin, "..", "links")
	verb := os.Getenv("CNI_COMMAND")
	refuse := func(msg string) int {
		fmt.Printf(`{"cniVersion":"1.0.0","code":999,"msg":%q}`, msg)
		return 1
	}
	if verb == "VERSION" {
		fmt.Print(`{"cniVersion":"1.0.0","supportedVersions":["0.3.1","0.4.0","1.0.0"]}`)
		return 0
	}
	if name == "tuning" {
		if told, err := os.ReadFile(filepath.Join(bin, "tuning-"+verb)); err == nil {
			return refuse(string(told))
		}
		_, _ = io.Copy(os.Stdout, passThrough(os.Stdin))
		return 0
	}
	if name != "ipvlan" {
		return refuse("IPAM is run by ipvlan alone")
	}
	stdin, err := io.ReadAll(os.Stdin)
	if err != nil {
		return refuse(err.Error())
	}
	var conf struct {
		Master        string
		RuntimeConfig struct{ IPs []string }
		PrevResult    json.RawMessage
	}
	if err := json.Unmarshal(stdin, &conf); err != nil {
		return refuse(err.Error())
	}
	link, addr := filepath.Join(links, os.Getenv("CNI_IFNAME")), ""
	if len(conf.RuntimeConfig.IPs) == 1 {
		addr = conf.RuntimeConfig.IPs[0]
	}
	told, _ := os.ReadFile(filepath.Join(bin, verb))
	switch told := string(told); {
	case told == "hang":
		select {}
	case told == "look":
		status, _ := os.ReadFile("/proc/self/status")
		return refuse(fmt.Sprintf("%s\n%s", strings.Join(os.Environ(), "\n"), status))
	case told == "flood":
		_, _ = os.Stdout.Write(bytes.Repeat([]byte(" "), 3<<20))
		return 0
	case told == "babble":
		fmt.Print("no JSON at all\n")
		return 3
	case told == "lie":
		addr = "203.0.113.9/32"
	case told != "":
		if verb == "ADD" {
			_ = os.WriteFile(link, nil, 0o666)
		}
		return refuse(told)
	}
	switch verb {
	case "ADD":
		if _, err := os.Stat(filepath.Join(links, conf.Master)); err != nil {
			return refuse(fmt.Sprintf("failed to lookup master %q: Link not found", conf.Master))
		}
		if err := os.WriteFile(link, nil, 0o666); err != nil {
			return refuse(err.Error())
		}
		others, _ := filepath.Glob(filepath.Join(links, "*"))
		for _, o := range others {
			if text, _ := os.ReadFile(o); string(text) == addr {
				return refuse("failed to add IP addr: address already in use")
			}
		}
		if err := os.WriteFile(link, []byte(addr), 0o666); err != nil {
			return refuse(err.Error())
		}
		fmt.Printf(`{"cniVersion":"1.0.0","interfaces":[{"name":%q,"sandbox":%q}],"ips":[{"interface":0,"address":%q}]}`,
			filepath.Base(link), os.Getenv("CNI_NETNS"), addr)
	case "DEL":
		if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return refuse(err.Error())
		}
	case "CHECK":
		if text, err := os.ReadFile(link); conf.PrevResult == nil || err != nil || string(text) != addr {
			return refuse("it isn't as it was made")
		}
		if !strings.Contains(addr, ":") {
			return refuse("Failed to find Gateway <nil> for interface " + filepath.Base(link))
		}
	}
	return 0
}

// passThrough is the result that a plugin of the chain was given.
func passThrough(stdin io.Reader) io.Reader {
	var conf struct{ PrevResult json.RawMessage }
	_ = json.NewDecoder(stdin).Decode(&conf)
	return bytes.NewReader(conf.PrevResult)
}

// TestChain: what ipvlan's CHECK always has against an IPv4 host address isn't in the way of the plugins behind it.
func TestChain(t *testing.T) {
	l := newLab(t)
	must(t, os.Link(filepath.Join(l.Path(), "ipvlan"), filepath.Join(l.Path(), "tuning")))
	p, a := l.open(), l.attachment()
	a.Conflist = strings.Replace(a.Conflist, `"type":"ipvlan"}`, `"type":"ipvlan"},{"type":"tuning"}`, 1)
	must(t, p.Attach(t.Context(), a))
	must(t, p.Check(t.Context(), a))
	must(t, os.WriteFile(filepath.Join(l.Path(), "tuning-CHECK"), []byte("somaxconn is 1"), 0o644))
	if err := p.Check(t.Context(), a); err == nil || err.Error() != "CNI CHECK of net1-aaaaa: somaxconn is 1" {
		t.Errorf("%v", err)
	}
	must(t, p.Detach(t.Context(), a))
	l.clean(t, p, a)
}

func openSuite(t testing.TB) (dataplane.CNI, kerneltest.CNIEnv) {
	l := newLab(t)
	return l.open(), l
}

func TestSuite(t *testing.T) { kerneltest.CNI(t, openSuite) }

func (l *lab) attachment() dataplane.Attachment {
	return kerneltest.CNIAttachment(l.Path(), "net1-aaaaa", "192.0.2.1/32")
}

// clean: no link, no record, no cache entry.
func (l *lab) clean(t *testing.T, c *cni.CNI, a dataplane.Attachment) {
	t.Helper()
	left, err := c.Attachments(t.Context())
	must(t, err)
	if links := l.Links(t); len(left) > 0 || !slices.Equal(links, []string{"eth1"}) {
		t.Errorf("left: %v, links %v", left, links)
	}
	if _, err := os.Stat(l.cacheFile(a)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the cache entry is still there: %v", err)
	}
}

// TestRefusals: what a plugin does wrong is said in its words, and nothing is left.
func TestRefusals(t *testing.T) {
	for _, c := range []struct{ told, want string }{
		{"no more room", `CNI ADD of net1-aaaaa: plugin type="ipvlan" failed (add): no more room`},
		{"lie", "CNI ADD of net1-aaaaa: the plugins report the addresses [203.0.113.9/32], and were told 192.0.2.1/32"},
		{"babble", `CNI ADD of net1-aaaaa: plugin type="ipvlan" failed (add): BIN/ipvlan: exit status 3: no JSON at all`},
		{"flood", `CNI ADD of net1-aaaaa: plugin type="ipvlan" failed (add): BIN/ipvlan answers with more than 1048576 bytes`},
	} {
		t.Run(c.told, func(t *testing.T) {
			l := newLab(t)
			p, a := l.open(), l.attachment()
			l.tell(t, "ADD", c.told)
			err := p.Attach(t.Context(), a)
			if err == nil || strings.ReplaceAll(err.Error(), l.Path(), "BIN") != c.want {
				t.Errorf("%v\nwant %s", err, c.want)
			}
			l.clean(t, p, a)
		})
	}
}

// TestDelRefused: both refusals are said; the record stays until DEL is done.
func TestDelRefused(t *testing.T) {
	l := newLab(t)
	p, a := l.open(), l.attachment()
	l.tell(t, "ADD", "no more room")
	l.tell(t, "DEL", "not now")
	want := `CNI ADD of net1-aaaaa: plugin type="ipvlan" failed (add): no more room; taking it away again: plugin type="ipvlan" failed (delete): not now`
	if err := p.Attach(t.Context(), a); err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
	p = l.open()
	if err := p.Detach(t.Context(), a); err == nil || err.Error() != `CNI DEL of net1-aaaaa: plugin type="ipvlan" failed (delete): not now` {
		t.Errorf("%v", err)
	}
	l.tell(t, "DEL", "")
	must(t, p.Detach(t.Context(), a))
	l.clean(t, p, a)
}

// TestKilled: a record of an ADD that nobody saw the end of is enough to take away what it left.
func TestKilled(t *testing.T) {
	l := newLab(t)
	p, a := l.open(), l.attachment()
	l.tell(t, "DEL", "killed")
	l.tell(t, "ADD", "killed")
	if err := p.Attach(t.Context(), a); err == nil {
		t.Fatal("attached")
	}
	l.tell(t, "DEL", "")
	l.tell(t, "ADD", "")
	p = l.open()
	must(t, p.Attach(t.Context(), a)) // takes the rest away, and makes it
	must(t, p.Check(t.Context(), a))
	must(t, p.Detach(t.Context(), a))
	l.clean(t, p, a)
}

// TestBounded: a plugin that hangs is killed with the context, and its DEL still runs.
func TestBounded(t *testing.T) {
	l := newLab(t)
	p, a := l.open(), l.attachment()
	l.tell(t, "ADD", "hang")
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the transaction's time is over")
	go func() { cancel(gone) }()
	err := p.Attach(ctx, a)
	if !errors.Is(err, gone) {
		t.Errorf("%v", err)
	}
	l.clean(t, p, a)
}

// TestLeastPrivilege: a plugin is nobody, and has neither more capabilities than it needs nor anything of vtepd's environment.
func TestLeastPrivilege(t *testing.T) {
	t.Setenv("VTEPD_SECRET", "1")
	t.Setenv("CNI_ARGS", "IP=192.0.2.9")
	l := newLab(t)
	p, a := l.open(), l.attachment()
	l.tell(t, "ADD", "look")
	err := p.Attach(t.Context(), a)
	if err == nil {
		t.Fatal("attached")
	}
	said := err.Error()
	for _, want := range []string{"CNI_COMMAND=ADD", "CNI_IFNAME=net1-aaaaa", "CNI_CONTAINERID=vtepd-r1-net1-aaaaa", "CNI_NETNS=/proc/self/ns/net", "CNI_PATH=" + l.Path()} {
		if !strings.Contains(said, want+"\n") {
			t.Errorf("no %s in\n%s", want, said)
		}
	}
	if strings.Contains(said, "SECRET") || strings.Contains(said, "192.0.2.9") {
		t.Errorf("it has vtepd's environment:\n%s", said)
	}
	if os.Geteuid() != 0 {
		return
	}
	for _, want := range []string{"Uid:\t65534\t65534\t65534\t65534", "Gid:\t65534\t65534\t65534\t65534", "CapEff:\t0000000000201000", "CapPrm:\t0000000000201000", "Groups:\t \n"} {
		if !strings.Contains(said, want) {
			t.Errorf("no %q in\n%s", want, said)
		}
	}
}

// TestMissingPlugins: each one is named, before anything is made.
func TestMissingPlugins(t *testing.T) {
	l := newLab(t)
	p, a := l.open(), l.attachment()
	must(t, os.Remove(filepath.Join(l.Path(), "static")))
	if got, want := fmt.Sprint(p.Validate(t.Context(), a)), fmt.Sprintf("[the plugin static is not in %s; install it, or name its directory]", l.Path()); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	a.Path = "/nowhere:/neither"
	if got, want := fmt.Sprint(p.Validate(t.Context(), a)), "[the plugin ipvlan is not in /nowhere, /neither; install it, or name its directory the plugin static is not in /nowhere, /neither; install it, or name its directory]"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	a = l.attachment()
	a.Conflist = strings.Replace(a.Conflist, "1.0.0", "1.1.0", 1)
	must(t, os.WriteFile(filepath.Join(l.Path(), "static"), binary, 0o755))
	if got, want := fmt.Sprint(p.Validate(t.Context(), a)), fmt.Sprintf("[the plugin %[1]s/ipvlan doesn't know cniVersion 1.1.0; it knows 0.3.1, 0.4.0, 1.0.0 the plugin %[1]s/static doesn't know cniVersion 1.1.0; it knows 0.3.1, 0.4.0, 1.0.0]", l.Path()); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	l.clean(t, p, a)
}

// TestDamagedRecord: a record that makes no sense is named, and left as it is.
func TestDamagedRecord(t *testing.T) {
	l := newLab(t)
	p, a := l.open(), l.attachment()
	must(t, p.Attach(t.Context(), a))
	file := filepath.Join(l.state, "net1-aaaaa.json")
	must(t, os.WriteFile(file, []byte(`{"version":2,"attachment":{"link":"net1-aaaaa"}}`), 0o600))
	want := "record " + file + `: version 2 of "net1-aaaaa" is not of this vtepd; it is left as it is`
	if _, err := p.Attachments(t.Context()); err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
	if err := p.Detach(t.Context(), a); err == nil || err.Error() != "CNI DEL of net1-aaaaa: "+want {
		t.Errorf("%v", err)
	}
}

// TestConflistFile: what can be read, and what can't.
func TestConflistFile(t *testing.T) {
	l := newLab(t)
	p := l.open()
	file := filepath.Join(l.dir, "a.conflist")
	must(t, os.WriteFile(file, []byte("{}"), 0o600))
	if b, err := p.Conflist(file); err != nil || string(b) != "{}" {
		t.Errorf("%q, %v", b, err)
	}
	for path, want := range map[string]string{
		l.dir:        "read " + l.dir + ": not a regular file",
		file + "not": "open " + file + "not: no such file or directory",
		os.DevNull:   "read " + os.DevNull + ": not a regular file",
	} {
		if _, err := p.Conflist(path); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
