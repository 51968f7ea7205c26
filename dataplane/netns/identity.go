package netns

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Identity tells the caller's network namespace from any other that was or will be, on this boot of the machine or
// another: the boot's id and the kernel's cookie of the namespace (SO_NETNS_COOKIE, Linux 5.14).
func Identity() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("identity of the network namespace: %w", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("identity of the network namespace: socket: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return "", fmt.Errorf("identity of the network namespace: SO_NETNS_COOKIE, which needs Linux 5.14: %w", err)
	}
	return fmt.Sprintf("%s/%d", strings.TrimSpace(string(boot)), cookie), nil
}
