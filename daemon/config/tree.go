package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// Limits of what is read at all. They are far above what a router can use,
// and keep what a broken or hostile file can cost within bounds.
const (
	maxFile        = 1 << 20 // bytes of one file
	maxFiles       = 256     // files of a directory
	maxDepth       = 8       // levels of nesting; the schema has five
	maxEndpoints   = 4096
	maxVNIs        = 16384
	maxPools       = 256
	maxPoolEntries = 4096  // addresses, ranges and prefixes entries of all pools
	maxExcludes    = 16384 // exclude entries of all pools
)

// node is a YAML node that knows its file.
type node struct {
	kind    yaml.Kind // a mapping, a sequence or a scalar
	tag     string
	value   string
	quoted  bool
	pos     Pos
	entries []entry // of a mapping, in the file's order, no key twice
	items   []*node // of a sequence
}

// entry is a key of a mapping with its value.
type entry struct {
	key string
	pos Pos // of the key
	val *node
}

// file is one file on its way to a tree.
type file struct {
	name  string
	lines []int // the length of each line, in characters
	probs Problems
}

func (f *file) bad(line, column int, field, format string, args ...any) {
	f.probs = append(f.probs, Problem{f.pos(line, column), field, fmt.Sprintf(format, args...)})
}

// pos keeps a place inside the file: YAML reports the end of a file as a line
// after the last one.
func (f *file) pos(line, column int) Pos {
	if line > len(f.lines) {
		line = len(f.lines)
		column = f.lines[line-1] + 1
	}
	line = max(line, 1)
	return Pos{f.name, line, min(max(column, 1), f.lines[line-1]+1)}
}

// parseTree reads one file. It returns no tree if the file isn't one YAML
// mapping in plain YAML.
func parseTree(name string, data []byte) (*node, Problems) {
	f := &file{name: name, lines: []int{0}}
	if len(data) > maxFile {
		f.bad(1, 1, "", "the file is longer than %d bytes; no config needs that much", maxFile)
		return nil, f.probs
	}
	if !f.scan(data) {
		return nil, f.probs
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	doc, ok := f.document(dec)
	if !ok {
		return nil, f.probs
	}
	if doc != nil {
		second, ok := f.document(dec)
		if !ok {
			return nil, f.probs
		}
		if second != nil {
			f.bad(second.Line, second.Column, "", "a second YAML document begins here; one file holds one document")
			return nil, f.probs
		}
	}
	if doc == nil || len(doc.Content) != 1 || isNull(doc.Content[0]) {
		f.bad(1, 1, "", "the file is empty; it must hold a mapping that begins with version: 1")
		return nil, f.probs
	}
	root := f.node(doc.Content[0], "", 0)
	if root == nil || len(f.probs) > 0 {
		return nil, f.probs
	}
	if root.kind != yaml.MappingNode {
		f.bad(root.pos.Line, root.pos.Column, "", "the file is %s; must be a mapping that begins with version: 1", root.describe())
		return nil, f.probs
	}
	return root, nil
}

// scan measures the lines and refuses what isn't text, or what YAML would
// count as a line's end and an editor wouldn't: from there on no position
// would be right.
func (f *file) scan(data []byte) bool {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	line, column := 1, 0
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		column++
		msg := ""
		switch {
		case r == utf8.RuneError && size == 1:
			msg = fmt.Sprintf("the byte 0x%02x is not UTF-8; the file must be UTF-8 text", data[i])
		case r == '\r' && (i+1 == len(data) || data[i+1] != '\n'):
			msg = "a carriage return without a newline; lines end with a newline"
		case r == '\n' || r == '\t' || r == '\r':
		case r < ' ', r >= 0x7f && r < 0xa0, r == '\u2028', r == '\u2029', r == '\ufeff', r == '\ufffe', r == '\uffff':
			msg = fmt.Sprintf("the character %U; the file must be plain text without control characters", r)
		}
		if msg != "" {
			f.lines[line-1] = column
			f.bad(line, column, "", "%s", msg)
			return false
		}
		if i += size; r == '\n' {
			line, column = line+1, 0
			f.lines = append(f.lines, 0)
		} else if r != '\r' {
			f.lines[line-1] = column
		}
	}
	if line > 1 && column == 0 {
		f.lines = f.lines[:line-1] // the last newline ends a line, and begins none
	}
	return true
}

// document decodes the next document: nil at the end, false if it is broken.
func (f *file) document(dec *yaml.Decoder) (doc *yaml.Node, ok bool) {
	defer func() {
		// The library panics in states that it holds to be impossible, such as
		// "unexpected tail comment event (please report)".
		if r := recover(); r != nil {
			f.syntax(dec, "can't be read; a comment may stand where none can")
			doc, ok = nil, false
		}
	}()
	doc = new(yaml.Node)
	switch err := dec.Decode(doc); {
	case errors.Is(err, io.EOF):
		return nil, true
	case err != nil:
		f.syntax(dec, strings.TrimPrefix(err.Error(), "yaml: "))
		return nil, false
	}
	return doc, true
}

// syntax reports that the decoder gave up, and where. The library's own
// message names a line only, in some cases the wrong one, and none if it is
// the first: its parser knows better, in fields that are not exported.
func (f *file) syntax(dec *yaml.Decoder, fallback string) {
	outer := field(reflect.ValueOf(dec), "parser")
	parser := field(outer, "parser")
	problem, context := text(field(parser, "problem")), text(field(parser, "context"))
	line, column := mark(field(parser, "problem_mark"))
	from, fromColumn := mark(field(parser, "context_mark"))
	switch {
	case problem == "":
		// Not the scanner or the parser gave up, but what comes after them.
		line, column = mark(field(field(outer, "event"), "start_mark"))
		if strings.HasPrefix(fallback, "unknown anchor") {
			f.bad(line, column, "", "%s", noAlias)
			return
		}
		problem, context = fallback, ""
	case problem == "could not find expected ':'":
		// A line that is neither a key nor a value; the parser stands after it.
		line, column, context = from, fromColumn, ""
	case problem == "found unexpected end of stream" || strings.HasPrefix(problem, "found unexpected document indicator"):
		// Where a quote was opened says more than where the file ends.
		line, column = from, fromColumn
		if strings.Contains(context, "quoted scalar") {
			problem, context = "this quote is never closed", ""
		}
	case problem == "found character that cannot start any token" && atTab(parser):
		problem, context = "a tab can't indent; use spaces", ""
	}
	at, begin := f.pos(line, column), f.pos(from, fromColumn)
	msg := "not valid YAML: " + problem
	if context != "" {
		msg += " " + context
		switch {
		case begin.Line != at.Line:
			msg += fmt.Sprintf(" that begins at line %d", begin.Line)
		case begin != at:
			msg += fmt.Sprintf(" that begins at column %d", begin.Column)
		}
	}
	f.bad(line, column, "", "%s", msg)
}

// atTab reports whether the parser stands at a tab.
func atTab(parser reflect.Value) bool {
	buffer, at := field(parser, "buffer"), field(parser, "buffer_pos")
	if buffer.Kind() != reflect.Slice || !at.CanInt() || at.Int() < 0 || int(at.Int()) >= buffer.Len() {
		return false
	}
	b := buffer.Index(int(at.Int()))
	return b.CanUint() && b.Uint() == '\t'
}

// field is a field of a struct, or of what a pointer points to; the zero
// Value if there is no such thing.
func field(v reflect.Value, name string) reflect.Value {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return reflect.Value{}
	}
	return v.FieldByName(name)
}

func text(v reflect.Value) string {
	if v.Kind() != reflect.String {
		return ""
	}
	return v.String()
}

func mark(v reflect.Value) (line, column int) {
	l, c := field(v, "line"), field(v, "column")
	if !l.CanInt() || !c.CanInt() {
		return 1, 1
	}
	return int(l.Int()) + 1, int(c.Int()) + 1
}

const noAlias = "anchors, aliases and merge keys are not accepted; write the values out"

// node converts a YAML node. Whatever is not plain YAML is a problem, so that
// nothing is ever expanded.
func (f *file) node(y *yaml.Node, path string, depth int) *node {
	if y.Kind == yaml.AliasNode || y.Anchor != "" || y.Tag == "!!merge" {
		f.bad(y.Line, y.Column, path, "%s", noAlias)
		if y.Kind != yaml.ScalarNode {
			return nil
		}
	}
	if y.Style&yaml.TaggedStyle != 0 {
		f.bad(y.Line, y.Column, path, "the tag %s is not accepted; leave it out", quote(y.Tag))
		return nil
	}
	if depth > maxDepth {
		f.bad(y.Line, y.Column, path, "is nested more than %d levels deep; nothing in a config is", maxDepth)
		return nil
	}
	n := &node{
		kind: y.Kind, tag: y.Tag, value: y.Value, pos: f.pos(y.Line, y.Column),
		quoted: y.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0,
	}
	switch y.Kind {
	case yaml.SequenceNode:
		for i, item := range y.Content {
			if c := f.node(item, fmt.Sprintf("%s[%d]", path, i), depth+1); c != nil {
				n.items = append(n.items, c)
			}
		}
	case yaml.MappingNode:
		f.mapping(n, y, path, depth)
	}
	return n
}

func (f *file) mapping(n *node, y *yaml.Node, path string, depth int) {
	first := map[string]Pos{}
	for i := 0; i+1 < len(y.Content); i += 2 {
		k, v := y.Content[i], y.Content[i+1]
		switch {
		case k.Kind == yaml.AliasNode || k.Anchor != "" || k.Tag == "!!merge":
			f.bad(k.Line, k.Column, path, "%s", noAlias)
			continue
		case k.Style&yaml.TaggedStyle != 0:
			f.bad(k.Line, k.Column, path, "the tag %s is not accepted; leave it out", quote(k.Tag))
			continue
		case k.Kind != yaml.ScalarNode:
			f.bad(k.Line, k.Column, path, "a key is a list or a mapping; must be a name")
			continue
		}
		e := entry{key: k.Value, pos: f.pos(k.Line, k.Column)}
		at := join(path, e.key)
		if p, ok := first[e.key]; ok {
			f.bad(k.Line, k.Column, at, "is here a second time, the first is at %s; keep one", p)
			continue
		}
		first[e.key] = e.pos
		if e.val = f.node(v, at, depth+1); e.val == nil {
			continue
		}
		if isNull(v) && v.Value == "" {
			e.val.pos = e.pos // the place of nothing is where the next thing is
		}
		n.entries = append(n.entries, e)
	}
}

func isNull(y *yaml.Node) bool { return y.Kind == yaml.ScalarNode && y.Tag == "!!null" }

// describe says what a node is, for "is X; must be Y".
func (n *node) describe() string {
	switch {
	case n.kind == yaml.MappingNode:
		return "a mapping"
	case n.kind == yaml.SequenceNode:
		return "a list"
	case n.tag == "!!null":
		return "empty"
	case n.tag == "!!str":
		return "the text " + quote(n.value)
	}
	return cut(n.value)
}

// merge puts the files of a directory together: the sections that hold named
// things are merged, any other key must be in one file only.
func merge(roots []*node) (*node, Problems) {
	var probs Problems
	all := &node{kind: yaml.MappingNode, tag: "!!map", pos: Pos{roots[0].pos.File, 1, 1}}
	at := map[string]int{} // key -> index in all.entries
	for _, root := range roots {
		for _, e := range root.entries {
			i, twice := at[e.key]
			if !twice {
				at[e.key] = len(all.entries)
				if e.val.kind == yaml.MappingNode {
					val := *e.val
					e.val = &val // what is merged into it must not reach the file's own tree
				}
				all.entries = append(all.entries, e)
				continue
			}
			into := all.entries[i]
			if !named[e.key] || into.val.kind != yaml.MappingNode || e.val.kind != yaml.MappingNode {
				probs = append(probs, Problem{e.pos, join("", e.key), fmt.Sprintf("is here a second time, the first is at %s; keep one", into.pos)})
				continue
			}
			first := make(map[string]Pos, len(into.val.entries))
			for _, c := range into.val.entries {
				first[c.key] = c.pos
			}
			for _, c := range e.val.entries {
				if p, ok := first[c.key]; ok {
					probs = append(probs, Problem{c.pos, join(e.key, c.key), fmt.Sprintf("is here a second time, the first is at %s; keep one", p)})
					continue
				}
				into.val.entries = append(into.val.entries, c)
			}
		}
	}
	return all, probs
}
