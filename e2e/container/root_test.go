//go:build containers || containerlab

package container

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// A router's container has of Debian what FRR and its scripts run, and what people look with. The rest of the guest's root
// would take an emulated engine minutes to import.
var (
	routerPrograms = []string{
		"/usr/lib/frr/watchfrr", "/usr/lib/frr/mgmtd", "/usr/lib/frr/zebra", "/usr/lib/frr/staticd", "/usr/lib/frr/bgpd", "/usr/bin/vtysh",
		"/usr/bin/bash", "/usr/bin/dash", "/usr/bin/cat", "/usr/bin/chmod", "/usr/bin/chown", "/usr/bin/dirname", "/usr/bin/env", "/usr/bin/getent",
		"/usr/bin/grep", "/usr/bin/id", "/usr/bin/install", "/usr/bin/ls", "/usr/bin/pkill", "/usr/bin/ps", "/usr/bin/rm", "/usr/bin/sleep", "/usr/bin/ip", "/usr/sbin/bridge",
		// What vtysh asks whether it may be used.
		"/usr/lib/x86_64-linux-gnu/security/pam_permit.so",
	}
	routerFilesOther = []string{
		"/", "/bin", "/sbin", "/lib", "/lib64", "/root", "/run", "/tmp", "/var", "/var/run", "/var/lib", "/var/lib/frr", "/var/log", "/var/log/frr", "/var/tmp",
		"/etc", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/ld.so.cache", "/etc/frr", "/etc/frr/support_bundle_commands.conf", "/etc/pam.d", "/etc/pam.d/frr",
		"/usr/bin/sh", "/usr/lib/frr/frrinit.sh", "/usr/lib/frr/frrcommon.sh", "/usr/lib/frr/watchfrr.sh", "/usr/lib64", "/usr/lib64/ld-linux-x86-64.so.2",
	}
	libraries = []string{"/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu/frr"}
)

// routerFiles lists the files of a router's container: programs with the libraries that they load, and by which links.
func routerFiles() ([]string, error) {
	files := map[string]bool{}
	for _, f := range routerFilesOther {
		if _, err := os.Lstat(f); err == nil {
			files[f] = true
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	wanted := slices.Clone(routerPrograms)
	for len(wanted) > 0 {
		path := wanted[0]
		wanted = wanted[1:]
		if files[path] {
			continue
		}
		files[path] = true
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			return nil, err
		}
		files[real] = true
		needs, err := loads(real)
		if err != nil {
			return nil, err
		}
		wanted = append(wanted, needs...)
	}
	return slices.Sorted(maps.Keys(files)), nil
}

// loads are the paths of the libraries that a program or library names.
func loads(path string) ([]string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.ImportedLibraries()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var needs []string
	for _, name := range names {
		i := slices.IndexFunc(libraries, func(dir string) bool {
			_, err := os.Stat(filepath.Join(dir, name))
			return err == nil
		})
		if i < 0 {
			return nil, fmt.Errorf("%s needs %s, which is in none of %v", path, name, libraries)
		}
		needs = append(needs, filepath.Join(libraries[i], name))
	}
	return needs, nil
}
