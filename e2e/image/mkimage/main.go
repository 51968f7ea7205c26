// Command mkimage writes vtepd's container image, as an archive for docker load, podman load, skopeo or ctr, with no engine.
package main

import (
	"flag"
	"fmt"
	"os"

	"vtepd/e2e/image"
)

func main() {
	out := flag.String("o", "", "the archive to write")
	ref := flag.String("ref", "vtepd:latest", "the image's name and tag")
	version := flag.String("version", "unknown", "that of the program")
	flag.Parse()
	if *out == "" || flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: mkimage -o ARCHIVE [-ref NAME:TAG] [-version V] PROGRAM")
		os.Exit(2)
	}
	if err := image.Write(*out, flag.Arg(0), *version, *ref); err != nil {
		fmt.Fprintln(os.Stderr, "mkimage:", err)
		os.Exit(1)
	}
	fmt.Printf("%s: %s\n", *out, *ref)
}
