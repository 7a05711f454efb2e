package cli

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal opens a pseudo-terminal: the user's side and the program's.
func terminal(t *testing.T) (user, tty *os.File) {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { user.Close() })
	if err := unix.IoctlSetPointerInt(int(user.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetUint32(int(user.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	return user, tty
}

// echoed is what the terminal has shown; it also says that echo is on again.
func echoed(t *testing.T, user, tty *os.File) string {
	t.Helper()
	const end = "END"
	if mode, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS); err != nil || mode.Lflag&unix.ECHO == 0 {
		t.Errorf("echo is off afterwards (%v)", err)
	}
	if _, err := tty.WriteString(end); err != nil {
		t.Fatal(err)
	}
	var shown strings.Builder
	b := make([]byte, 100)
	for !strings.HasSuffix(shown.String(), end) {
		n, err := user.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		shown.Write(b[:n])
	}
	return shown.String()
}
