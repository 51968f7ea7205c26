package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"

	"vtepd/daemon/status"
)

// notify tells the service manager that the daemon is up, its condition whenever that changes, and, where it has a watchdog,
// that the loop is alive: as long as lastBeat is younger than half the watchdog's time. Without NOTIFY_SOCKET it does
// nothing. See sd_notify(3).
func notify(ctx context.Context, board *status.Board, lastBeat func() time.Time, log *slog.Logger) error {
	sent, err := systemd.SdNotify(false, systemd.SdNotifyReady)
	if err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	if !sent {
		return nil
	}
	limit, err := systemd.SdWatchdogEnabled(false)
	if err != nil {
		return fmt.Errorf("the service manager's watchdog: %w", err)
	}
	var tick <-chan time.Time
	if limit > 0 {
		t := time.NewTicker(limit / 4)
		defer t.Stop()
		tick = t.C
	}
	told := ""
	tell := func(state string) {
		if _, err := systemd.SdNotify(false, state); err != nil {
			log.Warn("the service manager can't be told", "err", err)
		}
	}
	for {
		s, changed := board.Get()
		if line := statusLine(s); line != told {
			told = line
			tell("STATUS=" + line)
		}
		select {
		case <-ctx.Done():
			tell(systemd.SdNotifyStopping)
			return nil
		case <-changed:
		case <-tick:
			if age := time.Since(lastBeat()); age < limit/2 {
				tell(systemd.SdNotifyWatchdog)
			} else {
				log.Error("the loop gives no sign of life", "since", age.Round(time.Second))
			}
		}
	}
}

// statusLine is what systemctl status shows of s: one line.
func statusLine(s status.Snapshot) string {
	line := fmt.Sprintf("%s, generation %d", s.Condition, s.Generation)
	if len(s.Messages) > 0 {
		first, _, _ := strings.Cut(s.Messages[0], "\n")
		line += ": " + first
	}
	return line
}
