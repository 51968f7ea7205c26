package config

import (
	"fmt"
	"path"
	"strconv"
	"strings"
)

// badLink says why s can't name a link, or "". The kernel's rules
// (dev_valid_name in net/core/dev.c: 1 to 15 bytes, not "." or "..", no '/',
// ':' or space) and two more: printable ASCII only, because the name ends up
// in FRR's lines and in logs, and no '%', which the kernel takes for a
// pattern.
func badLink(s string) string {
	switch {
	case s == "":
		return "is an empty name; must be a link name of 1 to 15 bytes"
	case len(s) > 15:
		return fmt.Sprintf("%s is %d bytes long; a link name has at most 15", quote(s), len(s))
	case s == "." || s == "..":
		return fmt.Sprintf("%s can't name a link; use letters, digits, '-' and '_'", quote(s))
	}
	for _, r := range s {
		if what := oddRune(r); what != "" {
			return fmt.Sprintf("%s can't name a link: it holds %s; use letters, digits, '-' and '_'", quote(s), what)
		}
		if r == '/' || r == ':' || r == '%' {
			return fmt.Sprintf("%s can't name a link: it holds %q; use letters, digits, '-' and '_'", quote(s), r)
		}
	}
	return ""
}

// badName says why s can't name a pool or a node, or "". Both end up in file
// names and keys of the ledger.
func badName(s string) string {
	const right = "use letters, digits, '.', '-' and '_', at most 63, the first a letter or a digit"
	if s == "" {
		return "is an empty name; " + right
	}
	if len(s) > 63 {
		return fmt.Sprintf("%s is %d bytes long; %s", quote(s), len(s), right)
	}
	for i, r := range s {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
		case i > 0 && (r == '.' || r == '-' || r == '_'):
		case oddRune(r) != "":
			return fmt.Sprintf("%s can't be a name here: it holds %s; %s", quote(s), oddRune(r), right)
		default:
			return fmt.Sprintf("%s can't be a name here: it holds %q; %s", quote(s), r, right)
		}
	}
	return ""
}

// badNetns says why s names no network namespace, or "".
func badNetns(s string) string {
	const right = "write a name under /run/netns, or an absolute path"
	if s == "" {
		return "is an empty name; " + right
	}
	for _, r := range s {
		if what := oddRune(r); what != "" {
			return fmt.Sprintf("%s can't name a network namespace: it holds %s; %s", quote(s), what, right)
		}
	}
	switch {
	case s[0] == '/' && len(s) > 4095:
		return fmt.Sprintf("%s is %d bytes long; a path has at most 4095", quote(s), len(s))
	case s[0] == '/' && (s == "/" || path.Clean(s) != s):
		return fmt.Sprintf("%s is not a plain path; write it without '//', '.', '..' or a '/' at its end", quote(s))
	case s[0] == '/':
		return ""
	case len(s) > 255:
		return fmt.Sprintf("%s is %d bytes long; a name under /run/netns has at most 255", quote(s), len(s))
	case s == "." || s == ".." || strings.Contains(s, "/"):
		return fmt.Sprintf("%s is neither a name nor an absolute path; %s", quote(s), right)
	}
	return ""
}

// oddRune says what is odd about a character that no name may hold, or "".
func oddRune(r rune) string {
	switch {
	case r == ' ':
		return "a space"
	case r == '\n' || r == '\r':
		return "a newline"
	case r == '\t':
		return "a tab"
	case r < ' ' || r == 0x7f:
		return "a control character"
	case r > 0x7f:
		return "a character that is not ASCII"
	}
	return ""
}

// quote shows text from the file in a message, cut to a readable length. The
// result holds no newline or control character.
func quote(s string) string { return strconv.QuoteToASCII(cut(s)) }

func cut(s string) string {
	const most = 64
	n := 0
	for i := range s {
		if n++; n > most {
			return s[:i] + "..."
		}
	}
	return s
}

// join appends a key to a dotted path. A key that no field has, and that
// would garble the path, is quoted.
func join(path, key string) string {
	for _, r := range key {
		if oddRune(r) != "" {
			key = quote(key)
			break
		}
	}
	if key == "" {
		key = `""`
	}
	key = cut(key)
	if path == "" {
		return key
	}
	return path + "." + key
}

// closest is the one of names that s is most likely a misspelling of, or "".
func closest(s string, names []string) string {
	best, least := "", 3
	if len(s) > 64 {
		return ""
	}
	for _, name := range names {
		if len(name) > 64 {
			continue
		}
		d := distance(strings.ToLower(s), strings.ToLower(name))
		if d < least && d*2 < len(name) {
			best, least = name, d
		}
	}
	return best
}

// distance is the number of bytes to insert, delete, replace or swap with
// their neighbour on the way from a to b.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

// listing names what exists, for a message about what doesn't.
func listing(names []string) string {
	const most = 10
	shown := make([]string, 0, most+1)
	for _, name := range names {
		if len(shown) == most {
			shown = append(shown, fmt.Sprintf("and %d more", len(names)-most))
			break
		}
		if strings.ContainsFunc(name, func(r rune) bool { return oddRune(r) != "" }) {
			name = quote(name)
		}
		shown = append(shown, cut(name))
	}
	return strings.Join(shown, ", ")
}
