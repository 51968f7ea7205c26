package kerneltest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"vtepd/dataplane"
)

// CNIEnv is the world around a CNI's router: it has a link eth1 that an ipvlan can sit on, and the plugins ipvlan and static.
type CNIEnv interface {
	// Path is the CNI_PATH of the plugins.
	Path() string
	// Links are the names of all links of the router's namespace but lo, sorted.
	Links(t testing.TB) []string
	// Add makes a link of somebody else's of that name; Remove takes one away behind everybody's back.
	Add(t testing.TB, name string)
	Remove(t testing.TB, name string)
	// LoseCache takes the cache entry of an attachment away.
	LoseCache(t testing.TB, a dataplane.Attachment)
	// Restart is the CNI as the next process has it.
	Restart(t testing.TB) dataplane.CNI
}

// A conflist that can be accepted.
const goodConflist = `{"cniVersion":"1.0.0","name":"uplink","plugins":[{"capabilities":{"ips":true},"ipam":{"type":"static"},"master":"eth1","mode":"l3","type":"ipvlan"}]}`

// CNIAttachment is one for an address, on eth1.
func CNIAttachment(path, link, address string) dataplane.Attachment {
	return dataplane.Attachment{
		Link: link, Owner: "endpoint/vtep0", ContainerID: "vtepd-r1-" + link, Conflist: goodConflist, Parent: "eth1",
		Addr: prefixes(address)[0], Path: path,
	}
}

// CNI runs the cases that every dataplane.CNI must pass.
func CNI(t *testing.T, open func(t testing.TB) (dataplane.CNI, CNIEnv)) {
	run := func(name string, f func(b *cniBench)) {
		t.Run(name, func(t *testing.T) {
			c, env := open(t)
			b := &cniBench{T: t, CNI: c, env: env}
			f(b)
		})
	}
	run("attach, check, detach", func(b *cniBench) {
		one, two := b.attachment("net1-aaaaa", "192.0.2.1/32"), b.attachment("net1-bbbbb", "2001:db8::1/128")
		b.must(b.Attach(b.Context(), one))
		b.must(b.Attach(b.Context(), two))
		b.must(b.Attach(b.Context(), one)) // twice is once
		b.has("eth1", "net1-aaaaa", "net1-bbbbb")
		b.are(dataplane.Attached{Attachment: one, Whole: true}, dataplane.Attached{Attachment: two, Whole: true})
		b.must(b.Check(b.Context(), one))
		b.CNI = b.env.Restart(b)
		b.are(dataplane.Attached{Attachment: one, Whole: true}, dataplane.Attached{Attachment: two, Whole: true})
		b.must(b.Detach(b.Context(), one))
		b.must(b.Detach(b.Context(), one))
		b.has("eth1", "net1-bbbbb")
		b.are(dataplane.Attached{Attachment: two, Whole: true})
		b.must(b.Detach(b.Context(), two))
		b.has("eth1")
		b.are()
	})
	run("an address in use", func(b *cniBench) {
		one, two := b.attachment("net1-aaaaa", "192.0.2.1/32"), b.attachment("net1-bbbbb", "192.0.2.1/32")
		b.must(b.Attach(b.Context(), one))
		b.refused(b.Attach(b.Context(), two), "CNI ADD of net1-bbbbb: ", "address already in use")
		b.has("eth1", "net1-aaaaa")
		b.are(dataplane.Attached{Attachment: one, Whole: true})
		b.must(b.Check(b.Context(), one))
	})
	run("a parent that isn't there", func(b *cniBench) {
		b.env.Remove(b, "eth1")
		b.refused(b.Attach(b.Context(), b.attachment("net1-aaaaa", "192.0.2.1/32")), "CNI ADD of net1-aaaaa: ", "eth1")
		b.has()
		b.are()
	})
	run("a stranger of that name", func(b *cniBench) {
		b.env.Add(b, "net1-aaaaa")
		err := b.Attach(b.Context(), b.attachment("net1-aaaaa", "192.0.2.1/32"))
		b.refused(err, "CNI ADD of net1-aaaaa: in the way: there is a link net1-aaaaa already, which no attachment of vtepd's made")
		if !errors.Is(err, dataplane.ErrInTheWay) {
			b.Errorf("%v is no ErrInTheWay", err)
		}
		b.must(b.Detach(b.Context(), b.attachment("net1-aaaaa", "192.0.2.1/32")))
		b.has("eth1", "net1-aaaaa")
		b.are()
	})
	run("drift", func(b *cniBench) {
		one := b.attachment("net1-aaaaa", "192.0.2.1/32")
		b.must(b.Attach(b.Context(), one))
		b.env.LoseCache(b, one)
		b.are(dataplane.Attached{Attachment: one})
		b.refused(b.Check(b.Context(), one), "CNI CHECK of net1-aaaaa: ")
		b.must(b.Attach(b.Context(), one)) // made anew
		b.are(dataplane.Attached{Attachment: one, Whole: true})
		b.env.Remove(b, "net1-aaaaa")
		b.are(dataplane.Attached{Attachment: one})
		b.refused(b.Check(b.Context(), one), "CNI CHECK of net1-aaaaa: ")
		b.must(b.Attach(b.Context(), one))
		b.must(b.Check(b.Context(), one))
		b.has("eth1", "net1-aaaaa")
		b.env.Remove(b, "net1-aaaaa")
		b.must(b.Detach(b.Context(), one))
		b.has("eth1")
		b.are()
	})
	run("what a plugin needs", func(b *cniBench) {
		one := b.attachment("net1-aaaaa", "192.0.2.1/32")
		if p := b.Validate(b.Context(), one); len(p) > 0 {
			b.Errorf("valid, and yet %q", p)
		}
		one.Conflist = strings.Replace(one.Conflist, `"mode":"l3",`, "", 1)
		want := `["plugins[0].mode is missing; must be \"l3\" in the same entry as the rest"]`
		if got := fmt.Sprintf("%q", b.Validate(b.Context(), one)); got != want {
			b.Errorf("%s, want %s", got, want)
		}
	})
}

type cniBench struct {
	*testing.T
	dataplane.CNI
	env CNIEnv
}

func (b *cniBench) attachment(link, address string) dataplane.Attachment {
	return CNIAttachment(b.env.Path(), link, address)
}

func (b *cniBench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// refused wants an AttachError that begins with the first of words and holds the others.
func (b *cniBench) refused(err error, words ...string) {
	b.Helper()
	if _, ok := errors.AsType[*dataplane.AttachError](err); !ok {
		b.Fatalf("%v is no AttachError", err)
	}
	for i, w := range words {
		if s := err.Error(); i == 0 && !strings.HasPrefix(s, w) || !strings.Contains(s, w) {
			b.Errorf("%q doesn't say %q", s, w)
		}
	}
}

func (b *cniBench) has(want ...string) {
	b.Helper()
	if have := b.env.Links(b); !slices.Equal(have, want) {
		b.Errorf("links %q, want %q", have, want)
	}
}

func (b *cniBench) are(want ...dataplane.Attached) {
	b.Helper()
	have, err := b.Attachments(b.Context())
	b.must(err)
	if !slices.Equal(have, want) {
		b.Errorf("attachments %+v, want %+v", have, want)
	}
}
