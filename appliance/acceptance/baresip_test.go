package acceptance

import (
	"bufio"
	endian "encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"bellwether/appliance/localcluster"
	"bellwether/controller/api"
	"bellwether/media/tone"
)

// toneFor is how long a baresip's tone lasts: longer than its calls.
const toneFor = 60 * time.Second

// baresip is a baresip process with one account, driven over its control port
// (module ctrl_tcp: netstrings of JSON).
type baresip struct {
	user    string
	dir     string
	control net.Conn

	mu     sync.Mutex
	events []baresipEvent
}

type baresipEvent struct {
	Event bool   `json:"event"`
	Type  string `json:"type"`
	Param string `json:"param"`
	// Of the answer to a command.
	Response bool   `json:"response"`
	OK       bool   `json:"ok"`
	Data     string `json:"data"`
}

// startBaresip starts one that plays a tone of hz to whom it talks, records what
// it hears, answers every call, and registers at a node.
func startBaresip(t *testing.T, n *localcluster.Node, at netip.Addr, user string, hz float64) *baresip {
	t.Helper()
	b := &baresip{user: user, dir: t.TempDir()}
	played := filepath.Join(b.dir, "tone.wav")
	pcm := make([]int16, int(toneFor.Seconds())*tone.Rate)
	tone.NewGenerator(hz, 8000).Fill(pcm)
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("tone.wav", string(wav(pcm)))
	write("accounts", fmt.Sprintf("<sip:%[1]s@%[2]s>;auth_user=%[1]s@%[2]s;auth_pass=%[3]s;outbound=\"sip:%[4]s;transport=udp\";regint=600;answermode=auto;audio_codecs=PCMA,PCMU;ptime=20\n",
		user, domain, password, n.P()))
	write("contacts", "")
	control := netip.AddrPortFrom(at, 4444)
	// The received sound passes the filter sndfile, which writes it down; the
	// bridge with nobody at its other end is the sound card.
	write("config", fmt.Sprintf(`poll_method epoll
sip_listen %[1]s:5060
net_interface %[1]s
call_local_timeout 60
audio_source aufile,%[2]s
audio_player aubridge,nobody
audio_alert aubridge,nobody
ausrc_channels 1
auplay_channels 1
ausrc_srate %[5]d
auplay_srate %[5]d
audio_buffer 20-160
jitter_buffer_delay 5-10
rtp_stats yes
snd_path %[3]s
ctrl_tcp_listen %[4]s
module_path /usr/lib/baresip/modules
module g711.so
module sndfile.so
module aufile.so
module aubridge.so
module_tmp account.so
module_app menu.so
module_app ctrl_tcp.so
ringback_disabled yes
redial_attempts 0
statmode_default off
`, at, played, b.dir, control, tone.Rate))

	output, err := os.Create(filepath.Join(b.dir, "output"))
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	cmd := exec.Command("baresip", "-4", "-f", b.dir)
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
		if t.Failed() {
			out, _ := os.ReadFile(output.Name())
			t.Logf("baresip of %s:\n%s\nevents: %+v", user, out, b.all())
		}
	})
	eventually(t, 10*time.Second, func() string {
		select {
		case <-ended:
			t.Fatalf("baresip of %s ended at once", user)
		default:
		}
		if b.control, err = net.Dial("tcp", control.String()); err != nil {
			return err.Error()
		}
		return ""
	})
	listening := make(chan struct{})
	go func() {
		defer close(listening)
		b.listen()
	}()
	t.Cleanup(func() { b.control.Close(); <-listening })
	return b
}

// listen keeps what the control port says.
func (b *baresip) listen() {
	in := bufio.NewReader(b.control)
	for {
		length, err := in.ReadString(':')
		if err != nil {
			return
		}
		n, err := strconv.Atoi(length[:len(length)-1])
		if err != nil || n < 0 || n > 1<<20 {
			return
		}
		text := make([]byte, n+1) // and a comma
		if _, err := io.ReadFull(in, text); err != nil {
			return
		}
		var e baresipEvent
		if json.Unmarshal(text[:n], &e) == nil {
			b.mu.Lock()
			b.events = append(b.events, e)
			b.mu.Unlock()
		}
	}
}

func (b *baresip) all() []baresipEvent {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]baresipEvent(nil), b.events...)
}

// saw counts the events of a type.
func (b *baresip) saw(kind string) int {
	n := 0
	for _, e := range b.all() {
		if e.Type == kind {
			n++
		}
	}
	return n
}

func (b *baresip) do(t *testing.T, command, params string) {
	t.Helper()
	text, err := json.Marshal(map[string]string{"command": command, "params": params})
	if err == nil {
		_, err = fmt.Fprintf(b.control, "%d:%s,", len(text), text)
	}
	if err != nil {
		t.Fatalf("%s: %s: %v", b.user, command, err)
	}
}

// until waits for the n-th event of a type.
func (b *baresip) until(t *testing.T, kind string, n int) {
	t.Helper()
	eventually(t, 15*time.Second, func() string {
		if got := b.saw(kind); got < n {
			return fmt.Sprintf("%s saw %d events %s, want %d", b.user, got, kind, n)
		}
		return ""
	})
}

// recordings are the files of received sound, in order of time.
func (b *baresip) recordings() []string {
	all, _ := filepath.Glob(filepath.Join(b.dir, "dump-*-dec.wav"))
	return all
}

// wav is a RIFF file of 16-bit mono PCM.
func wav(pcm []int16) []byte {
	size := uint32(2 * len(pcm))
	le := endian.LittleEndian
	out := le.AppendUint32([]byte("RIFF"), 36+size)
	out = le.AppendUint32(append(out, "WAVEfmt "...), 16)
	for _, v := range []uint16{1, 1, tone.Rate, 0, 2 * tone.Rate, 0, 2, 16} { // format, channels, rate, bytes a second, frame, bits
		out = le.AppendUint16(out, v)
	}
	out = le.AppendUint32(append(out, "data"...), size)
	for _, s := range pcm {
		out = le.AppendUint16(out, uint16(s))
	}
	return out
}

// readWAV returns the samples of such a file.
func readWAV(file string) ([]int16, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if len(b) < 12 || string(b[:4]) != "RIFF" || string(b[8:12]) != "WAVE" {
		return nil, errors.New("not a WAV file")
	}
	le := endian.LittleEndian
	for b = b[12:]; len(b) >= 8; {
		name, size := string(b[:4]), int(le.Uint32(b[4:]))
		body := b[8:min(len(b), 8+size)]
		switch name {
		case "fmt ":
			if len(body) < 16 || le.Uint16(body) != 1 || le.Uint16(body[2:]) != 1 || le.Uint32(body[4:]) != tone.Rate || le.Uint16(body[14:]) != 16 {
				return nil, fmt.Errorf("format % x, want 16-bit mono PCM at %d Hz", body, tone.Rate)
			}
		case "data":
			pcm := make([]int16, len(body)/2)
			for i := range pcm {
				pcm[i] = int16(le.Uint16(body[2*i:]))
			}
			return pcm, nil
		}
		b = b[min(len(b), 8+size+size%2):]
	}
	return nil, errors.New("no data chunk")
}

func TestBaresipPhonesHearEachOther(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	ctx := within(t, time.Minute)
	var users []string
	for i := range 2 {
		// Debian's baresip gives up at a SHA-256 challenge even if one for MD5
		// stands beside it, so its subscribers have no such secret.
		s := subscriber(fmt.Sprintf("baresip%d", i))
		s.HA1.SHA256 = ""
		if err := c.Nodes[0].Admin.AddSubscriber(ctx, s, false); err != nil {
			t.Fatal(err)
		}
		users = append(users, fmt.Sprintf("baresip%d", i))
	}
	addr := freshNet()
	tones := []float64{740, 1330}
	phones := []*baresip{
		startBaresip(t, c.Node("n1"), addr(1), users[0], tones[0]),
		startBaresip(t, c.Node("n2"), addr(2), users[1], tones[1]),
	}
	whereabouts(t, c.Node("n3"), users) // returns when they are registered
	for i, caller := range phones {
		called := phones[1-i]
		caller.do(t, "dial", "sip:"+called.user+"@"+domain)
		for _, p := range phones {
			p.until(t, "CALL_ESTABLISHED", i+1)
		}
		var call api.Call
		eventually(t, 5*time.Second, func() string {
			list, err := c.Node("n3").Admin.Calls(ctx)
			if err != nil {
				return err.Error()
			}
			for _, call = range list {
				if call.From == "sip:"+caller.user+"@"+domain && call.State == "confirmed" {
					return ""
				}
			}
			return fmt.Sprintf("no confirmed call of %s in %+v", caller.user, list)
		})
		if call.To != "sip:"+called.user+"@"+domain || call.POrig == "" || call.SOrig == "" || call.STerm == "" || call.PTerm == "" {
			t.Errorf("the call is listed as %+v", call)
		}
		// Two seconds of sound in each recording of this call.
		for _, p := range phones {
			eventually(t, 15*time.Second, func() string {
				files := p.recordings()
				if len(files) <= i {
					return fmt.Sprintf("%s has %d recordings, want %d", p.user, len(files), i+1)
				}
				st, err := os.Stat(files[i])
				if err != nil {
					return err.Error()
				}
				if st.Size() < 2*2*tone.Rate {
					return fmt.Sprintf("%s recorded %d bytes", p.user, st.Size())
				}
				return ""
			})
		}
		caller.do(t, "hangup", "")
		for _, p := range phones {
			p.until(t, "CALL_CLOSED", i+1)
		}
		for j, p := range phones {
			checkTone(t, p, i, tones[1-j], tones)
		}
	}
}

// checkTone wants the other phone's tone in a recording, and clear.
func checkTone(t *testing.T, p *baresip, recording int, want float64, candidates []float64) {
	t.Helper()
	pcm, err := readWAV(p.recordings()[recording])
	if err != nil {
		t.Error(err)
		return
	}
	const settle = tone.Rate / 2 // the jitter buffer fills first
	if len(pcm) < 3*settle {
		t.Errorf("%s recorded %d samples", p.user, len(pcm))
		return
	}
	heard, ok := tone.Detect(pcm[settle:], candidates)
	if !ok || heard.Hz != want || heard.SNR < 10 {
		t.Errorf("%s heard %+v (%v) in call %d, want %g Hz", p.user, heard, ok, recording+1, want)
	}
}
