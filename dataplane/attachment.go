package dataplane

import (
	"context"
	"fmt"
	"net/netip"
)

// Attachment is an ipvlan in the router's namespace that CNI plugins make and take away, with all that they have to be told
// for either: it outlives the file that it comes from. Two are the same when they are equal.
type Attachment struct {
	Link        string       `json:"link"`        // the interface name that the plugins are given (CNI_IFNAME)
	Owner       string       `json:"owner"`       // as Link.Owner: endpoint/vtep0
	ContainerID string       `json:"containerID"` // CNI_CONTAINERID: one of its own for every attachment
	Conflist    string       `json:"conflist"`    // Conflist.Text
	Parent      string       `json:"parent"`      // the conflist's master, in the router's namespace
	Addr        netip.Prefix `json:"addr"`        // a host address, given as the capability `ips`
	Path        string       `json:"path"`        // CNI_PATH: where the plugins are, separated by colons
	CacheDir    string       `json:"cacheDir,omitempty"`
}

// AsLink is the link that the plugins make, once vtepd's alias is on it.
func (a Attachment) AsLink() Link {
	return Link{
		Name: a.Link, Kind: IPVLAN, Owner: a.Owner, Up: true, Addrs: []netip.Prefix{a.Addr}, Parent: a.Parent, Mode: "l3",
	}
}

// String names the attachment for people.
func (a Attachment) String() string { return fmt.Sprintf("%s (CNI attachment of %s)", a.Link, a.Owner) }

// CNI has plugins make and take away links of the router's namespace. It keeps a record of every attachment that outlives
// the process. One goroutine at a time uses it.
type CNI interface {
	// Conflist reads the file at path, an absolute one.
	Conflist(path string) ([]byte, error)
	// Validate says what keeps the plugins of a from being used: those that are missing, and those that don't know the
	// conflist's version, each by name. No network is touched.
	Validate(ctx context.Context, a Attachment) []string
	// Attach has a made (ADD), and holds what the plugins report against a. A whole attachment is left alone; what is left of
	// one that isn't whole is taken away first. A link of that name that isn't an attachment's is ErrInTheWay, and stays.
	// After an error all that was made is taken away again; where that fails too, the error says so, and Detach is to be
	// called once more. Errors: *AttachError.
	Attach(ctx context.Context, a Attachment) error
	// Detach has a taken away (DEL), with its entry in the plugins' cache and its record; of what has no record, nothing. The
	// errors are an *AttachError.
	Detach(ctx context.Context, a Attachment) error
	// Check asks the plugins whether a is as they made it (CHECK): nil, or an *AttachError with their words.
	Check(ctx context.Context, a Attachment) error
	// Attachments are all that have a record, sorted by link; one is Whole when it was made, its cache entry is there, and so
	// is a link of that name.
	Attachments(ctx context.Context) ([]Attached, error)
}

// Attached is an attachment as observed.
type Attached struct {
	Attachment
	Whole bool
}

// AttachError is a call to CNI plugins that failed.
type AttachError struct {
	Verb       string // ADD, DEL or CHECK, as CNI has it
	Attachment Attachment
	Err        error // the plugin's own words are in it
}

func (e *AttachError) Error() string {
	return fmt.Sprintf("CNI %s of %s: %v", e.Verb, e.Attachment.Link, e.Err)
}
func (e *AttachError) Unwrap() error { return e.Err }
