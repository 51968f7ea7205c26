package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Pos is a place in a config file. Line and Column count from 1, columns in
// characters; a byte order mark is not counted.
type Pos struct {
	File   string
	Line   int
	Column int
}

// String is file:line:column.
func (p Pos) String() string { return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column) }

func (p Pos) compare(q Pos) int {
	return cmp.Or(cmp.Compare(p.File, q.File), cmp.Compare(p.Line, q.Line), cmp.Compare(p.Column, q.Column))
}

// Problem is one thing wrong with a config: where, in which field, and in Msg
// what is wrong and what would be right. Field is a dotted path such as
// vnis.100.port, and empty where the file as a whole is meant.
type Problem struct {
	Pos   Pos
	Field string
	Msg   string
}

// Error is file:line:column: field: what is wrong; what would be right.
func (p Problem) Error() string {
	if p.Field == "" {
		return p.Pos.String() + ": " + p.Msg
	}
	return p.Pos.String() + ": " + p.Field + ": " + p.Msg
}

// Problems is everything wrong with a config, sorted by place. It is the only
// type of error that Parse and ParseAll return.
type Problems []Problem

// Error is one problem a line. It stops after 100, so that a file that is
// something else altogether doesn't flood a log.
func (ps Problems) Error() string {
	const most = 100
	lines := make([]string, 0, most+1)
	for i, p := range ps {
		if i == most {
			lines = append(lines, fmt.Sprintf("and %d more problems", len(ps)-most))
			break
		}
		lines = append(lines, p.Error())
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.As reach the first problem.
func (ps Problems) Unwrap() []error {
	errs := make([]error, len(ps))
	for i, p := range ps {
		errs[i] = p
	}
	return errs
}

func (ps Problems) sort() {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(a.Pos.compare(b.Pos), cmp.Compare(a.Field, b.Field), cmp.Compare(a.Msg, b.Msg))
	})
}
