package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"bellwether/controller/api"
)

const maxSecret = 4096

// secretFlags say where a secret comes from, by default it is asked for, and
// what is stored of it.
type secretFlags struct {
	password, ha1 bool
	algorithms    algorithms
}

// secret gets a password or HA1 values, and returns only hashes.
func (a *app) secret(ctx context.Context, from secretFlags, impi, realm string) (api.Credentials, error) {
	if from.password && from.ha1 {
		return api.Credentials{}, usagef("--password-stdin and --ha1-stdin exclude each other; give one of them")
	}
	if from.ha1 && len(from.algorithms) > 0 {
		return api.Credentials{}, usagef("--algorithm is for a password; with --ha1-stdin, give only the HA1 to store")
	}
	if from.ha1 {
		text, err := readSecret(a.in)
		if err != nil {
			return api.Credentials{}, err
		}
		return parseHA1(text)
	}
	var password string
	var err error
	if from.password {
		password, err = readSecret(a.in)
	} else if tty, ok := a.in.(*os.File); ok && isTerminal(tty) {
		password, err = a.prompt(ctx, tty, impi)
	} else {
		return api.Credentials{}, usagef("there is no terminal to ask for a password at; give --password-stdin or --ha1-stdin")
	}
	if err != nil {
		return api.Credentials{}, err
	}
	if password == "" {
		return api.Credentials{}, errors.New("the password is empty; give one")
	}
	if strings.ContainsAny(password, "\r\n\x00") {
		return api.Credentials{}, errors.New("the password has more than one line; give one line")
	}
	return from.algorithms.credentials(impi, realm, password), nil
}

// readSecret reads all of r, without the end of its last line.
func readSecret(r io.Reader) (string, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxSecret+1))
	if err != nil {
		return "", fmt.Errorf("read the secret: %w", err)
	}
	if len(b) > maxSecret {
		return "", fmt.Errorf("the secret has more than %d bytes; give a shorter one", maxSecret)
	}
	text := strings.TrimSuffix(string(b), "\n")
	return strings.TrimSuffix(text, "\r"), nil
}

// parseHA1 reads MD5=HEX and SHA-256=HEX, white space between them.
func parseHA1(text string) (api.Credentials, error) {
	var c api.Credentials
	for _, f := range strings.Fields(text) {
		algorithm, value, _ := strings.Cut(f, "=")
		var dst *string
		switch strings.ToUpper(algorithm) {
		case "MD5":
			dst = &c.MD5
		case "SHA-256":
			dst = &c.SHA256
		}
		if dst == nil || *dst != "" {
			// The text may be a secret: it is not repeated.
			return api.Credentials{}, errors.New("standard input holds no HA1; write MD5=HEX, SHA-256=HEX or both")
		}
		*dst = strings.ToLower(value)
	}
	return c, nil
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// prompt asks twice for a password, without echo.
func (a *app) prompt(ctx context.Context, tty *os.File, impi string) (string, error) {
	fd := int(tty.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return "", fmt.Errorf("ask for a password: %w", err)
	}
	silent := *before
	silent.Lflag &^= unix.ECHO
	silent.Lflag |= unix.ICANON | unix.ISIG
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &silent); err != nil {
		return "", fmt.Errorf("ask for a password: %w", err)
	}
	defer unix.IoctlSetTermios(fd, unix.TCSETS, before)

	in := bufio.NewReader(io.LimitReader(tty, 2*maxSecret))
	var answers [2]string
	for i, question := range []string{"Password of " + clean(impi) + ": ", "Again: "} {
		fmt.Fprint(a.err, question)
		line, err := readLine(ctx, in)
		fmt.Fprintln(a.err)
		if err != nil {
			return "", fmt.Errorf("ask for a password: %w", err)
		}
		answers[i] = line
	}
	if answers[0] != answers[1] {
		return "", errors.New("the passwords differ; try again")
	}
	return answers[0], nil
}

// readLine waits for a line or for ctx. After ctx its goroutine is left
// waiting at the terminal: the process is about to end.
func readLine(ctx context.Context, in *bufio.Reader) (string, error) {
	type answer struct {
		line string
		err  error
	}
	got := make(chan answer, 1)
	go func() {
		line, err := in.ReadString('\n')
		got <- answer{strings.TrimRight(line, "\r\n"), err}
	}()
	select {
	case a := <-got:
		return a.line, a.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}
