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

	aka   bool   // K and OPc of a USIM, asked for
	akaIn bool   // from standard input
	amf   string // of the USIM; empty: the default
}

func (f secretFlags) usim() bool { return f.aka || f.akaIn }

// check reports flags that do not go together.
func (f secretFlags) check() error {
	switch {
	case f.password && f.ha1:
		return usagef("--password-stdin and --ha1-stdin exclude each other; give one of them")
	case f.ha1 && len(f.algorithms) > 0:
		return usagef("--algorithm is for a password; with --ha1-stdin, give only the HA1 to store")
	case f.aka && f.akaIn:
		return usagef("--aka and --aka-stdin exclude each other; give one of them")
	case f.usim() && (f.password || f.ha1 || len(f.algorithms) > 0):
		return usagef("one command stores a USIM or a password; for both, import a file with the columns k, opc and password")
	case f.amf != "" && !f.usim():
		return usagef("--amf is for a USIM; give --aka or --aka-stdin as well")
	}
	if _, err := amfOf(f.amf); err != nil {
		return &usageError{err.Error()}
	}
	return nil
}

// secret gets a password or HA1 values, and returns only hashes.
func (a *app) secret(ctx context.Context, from secretFlags, impi, realm string) (api.Credentials, error) {
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
		password, err = a.newPassword(ctx, tty, impi)
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

// newPassword asks twice for a password.
func (a *app) newPassword(ctx context.Context, tty *os.File, impi string) (string, error) {
	answers, err := a.prompt(ctx, tty, "Password of "+clean(impi)+": ", "Again: ")
	if err != nil {
		return "", err
	}
	if answers[0] != answers[1] {
		return "", errors.New("the passwords differ; try again")
	}
	return answers[0], nil
}

// prompt asks questions at the terminal, without echo of the answers.
func (a *app) prompt(ctx context.Context, tty *os.File, questions ...string) ([]string, error) {
	fd := int(tty.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("ask for a secret: %w", err)
	}
	silent := *before
	silent.Lflag &^= unix.ECHO
	silent.Lflag |= unix.ICANON | unix.ISIG
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &silent); err != nil {
		return nil, fmt.Errorf("ask for a secret: %w", err)
	}
	defer unix.IoctlSetTermios(fd, unix.TCSETS, before)

	in := bufio.NewReader(io.LimitReader(tty, 2*maxSecret))
	var answers []string
	for _, question := range questions {
		fmt.Fprint(a.err, question)
		line, err := readLine(ctx, in)
		fmt.Fprintln(a.err)
		if err != nil {
			return nil, fmt.Errorf("ask for a secret: %w", err)
		}
		answers = append(answers, line)
	}
	return answers, nil
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
