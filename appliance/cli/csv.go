package cli

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"bellwether/appliance/config"
	"bellwether/controller/api"
)

// importErrors has a line for each fault of an import file.
type importErrors []string

func (e importErrors) Error() string { return strings.Join(e, "\n") }

const maxImportErrors = 20

var importColumns = []string{"impi", "impus", "password", "ha1_md5", "ha1_sha256", "realm", "k", "opc", "op", "amf"}

// readImport reads a CSV file of subscribers, or standard input for "-".
func (a *app) readImport(path string, keep algorithms) ([]api.NewSubscriber, error) {
	if path == "-" {
		return parseImport("standard input", a.in, keep)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("import subscribers: %w", err)
	}
	defer f.Close()
	return parseImport(path, f, keep)
}

// parseImport reads subscribers; of passwords it keeps what is asked for. Its
// error is importErrors, or that r broke.
func parseImport(name string, r io.Reader, keep algorithms) ([]api.NewSubscriber, error) {
	p := &importer{name: name, keep: keep, seen: map[string]int{}, rows: csv.NewReader(skipBOM(io.LimitReader(r, api.MaxImportBytes)))}
	p.rows.ReuseRecord = true
	p.rows.TrimLeadingSpace = true
	if err := p.read(); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(p.errs) > 0 {
		return nil, append(p.errs, fmt.Sprintf("%s: nothing was imported", name))
	}
	return p.all, nil
}

type importer struct {
	name    string
	keep    algorithms
	rows    *csv.Reader
	columns map[string]int
	seen    map[string]int // line of each IMPI and identity
	all     []api.NewSubscriber
	errs    importErrors
}

func (p *importer) fault(line int, text string) {
	p.errs = append(p.errs, fmt.Sprintf("%s:%d: %s", p.name, line, text))
}

func (p *importer) read() error {
	for len(p.errs) < maxImportErrors {
		row, err := p.rows.Read()
		var bad *csv.ParseError
		switch {
		case errors.Is(err, io.EOF):
			if len(p.errs) == 0 && len(p.all) == 0 {
				p.fault(1, "there are no subscribers; write impi,impus,password and a line for each")
			}
			return nil
		case errors.As(err, &bad) && errors.Is(bad.Err, csv.ErrFieldCount):
			p.fault(bad.StartLine, fmt.Sprintf("there are %d columns; write %d, as in the first line", len(row), p.rows.FieldsPerRecord))
			continue
		case errors.As(err, &bad):
			p.fault(bad.Line, fmt.Sprintf("this is not CSV (%v); put a value with quotes in quotes, and double them", bad.Err))
			return nil // where the next row begins is anyone's guess
		case err != nil:
			return err
		}
		line, _ := p.rows.FieldPos(0)
		switch {
		case p.columns == nil:
			p.head(line, row)
			if len(p.errs) > 0 {
				return nil
			}
		case len(p.all) == api.MaxImport:
			p.fault(line, fmt.Sprintf("there are more than %d subscribers; import them in parts", api.MaxImport))
			return nil
		default:
			p.subscriber(line, row)
		}
	}
	p.errs = append(p.errs, p.name+": and perhaps more; mend these first")
	return nil
}

func (p *importer) head(line int, row []string) {
	p.columns = map[string]int{}
	for i, name := range row {
		name = strings.ToLower(strings.TrimSpace(name))
		if !slices.Contains(importColumns, name) {
			hint := "write some of " + strings.Join(importColumns, ", ")
			if name == "impu" { // as near to impi
				hint = "write impus"
			} else if near, ok := config.Nearest(name, importColumns); ok {
				hint = "write " + near
			}
			p.fault(line, fmt.Sprintf("there is no column %q; %s", name, hint))
			continue
		}
		if _, twice := p.columns[name]; twice {
			p.fault(line, fmt.Sprintf("the column %s is there twice; write it once", name))
		}
		p.columns[name] = i
	}
	if len(p.errs) > 0 {
		return
	}
	if _, ok := p.columns["impi"]; !ok {
		p.fault(line, "the column impi is missing; write impi,impus,password in the first line")
	}
	_, password := p.columns["password"]
	_, md5 := p.columns["ha1_md5"]
	_, sha256 := p.columns["ha1_sha256"]
	_, k := p.columns["k"]
	_, opc := p.columns["opc"]
	_, op := p.columns["op"]
	switch {
	case !password && !md5 && !sha256 && !k:
		p.fault(line, "there is no secret; add a column password, ha1_md5 or ha1_sha256, or k and opc")
	case k && !opc && !op:
		p.fault(line, "there is a column k, but no opc; add a column opc, or op")
	}
}

func (p *importer) subscriber(line int, row []string) {
	field := func(name string) string {
		i, ok := p.columns[name]
		if !ok {
			return ""
		}
		return row[i]
	}
	trimmed := func(name string) string { return strings.TrimSpace(field(name)) }
	s := api.NewSubscriber{IMPI: trimmed("impi"), Realm: trimmed("realm"), Line: line}
	if s.Realm == "" {
		s.Realm = realmOf(s.IMPI)
	}
	var err error
	if s.Identities, err = identities(orDefault(trimmed("impus"), s.IMPI)); err != nil {
		p.fault(line, err.Error())
		return
	}
	s.HA1 = api.Credentials{MD5: strings.ToLower(trimmed("ha1_md5")), SHA256: strings.ToLower(trimmed("ha1_sha256"))}
	if password := field("password"); password != "" {
		if s.HA1 != (api.Credentials{}) {
			p.fault(line, fmt.Sprintf("%s has both a password and an HA1; give one of them", s.IMPI))
			return
		}
		s.HA1 = p.keep.credentials(s.IMPI, s.Realm, password)
	}
	given := usimText{k: trimmed("k"), opc: trimmed("opc"), op: trimmed("op"), amf: trimmed("amf")}
	if given != (usimText{}) {
		if s.AKA, err = given.keys(s.IMPI); err != nil {
			p.fault(line, err.Error())
			return
		}
	}
	if err := s.Check(); err != nil {
		p.fault(line, err.Error())
		return
	}
	names := []string{"IMPI " + s.IMPI}
	for _, id := range s.Identities {
		names = append(names, id.URI)
	}
	for _, name := range names {
		if first, twice := p.seen[name]; twice {
			p.fault(line, fmt.Sprintf("%s is on line %d already; give it once", name, first))
			return
		}
		p.seen[name] = line
	}
	p.all = append(p.all, s)
}

// skipBOM drops the mark that spreadsheets put before UTF-8.
func skipBOM(r io.Reader) io.Reader {
	b := bufio.NewReader(r)
	if mark, err := b.Peek(3); err == nil && string(mark) == "\xef\xbb\xbf" {
		b.Discard(3)
	}
	return b
}
