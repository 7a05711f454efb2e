package ha

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"
)

// writeUntilKilled is the child of TestKilledProcessLosesNothingPromised: it
// prints each number that is safe.
func writeUntilKilled(dir string) {
	j, err := OpenJournal(dir, Options{Identity: "cluster/a", Log: quiet, SegmentSize: 2000, CompactAt: 5000})
	if err != nil {
		panic(err)
	}
	slots := make(chan struct{}, 8)
	for i := 1; ; i++ {
		slots <- struct{}{}
		j.Put(1, fmt.Sprint(i%10), []byte(fmt.Sprint(i)), time.Time{}, func(err error) {
			if err != nil {
				panic(err)
			}
			fmt.Println(i)
			<-slots
		})
	}
}

func TestKilledProcessLosesNothingPromised(t *testing.T) {
	dir := t.TempDir()
	for round := range 3 {
		os.RemoveAll(dir)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "HA_WRITE_UNTIL_KILLED="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		promised := 0
		for lines := bufio.NewScanner(out); lines.Scan(); {
			n, err := strconv.Atoi(lines.Text())
			must(t, err)
			if n != promised+1 {
				t.Errorf("promise %d after %d", n, promised)
			}
			promised = n
			if n == 300+100*round {
				must(t, cmd.Process.Kill())
			}
		}
		cmd.Wait()
		j := mustOpen(t, dir, Options{})
		newest := 0
		j.Range(1, func(r Record) bool {
			n, err := strconv.Atoi(string(r.Value))
			must(t, err)
			newest = max(newest, n)
			return true
		})
		if newest < promised || promised < 300 {
			t.Errorf("found record %d, promised %d", newest, promised)
		}
		if n := j.Stats().Records; n != 10 {
			t.Errorf("%d records, want 10", n)
		}
		must(t, j.Close())
	}
}
