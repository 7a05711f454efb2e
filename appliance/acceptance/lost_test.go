package acceptance

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bellwether/controller/api"
)

// TestRegistrationsLostWithADisk: where a node lost the journal of its workers,
// the lists soon tell who is still registered, an alarm says how many are not,
// and their phones register anew and are called.
func TestRegistrationsLostWithADisk(t *testing.T) {
	t.Parallel()
	c := start(t, usual, nil)
	n1, n2, n3 := c.Node("n1"), c.Node("n2"), c.Node("n3")
	users := subscribe(t, c, "lost", 6)
	phones := phonesAt(t, users, n1, n2, n3)
	register(t, phones...)
	var lost, kept []string
	for _, u := range users {
		eventually(t, 10*time.Second, func() string {
			got, err := n3.Admin.User(within(t, 5*time.Second), "sip:"+u+"@"+domain)
			if err != nil {
				return err.Error()
			}
			if got.SCSCF.Home == "s2" {
				lost = append(lost, u)
			} else {
				kept = append(kept, u)
			}
			return ""
		})
	}
	if len(lost) == 0 || len(kept) == 0 {
		t.Fatalf("s2 has %v, s1 %v", lost, kept)
	}
	cutPower(t, n2)
	if err := os.RemoveAll(filepath.Join(n2.DataDir(), "store")); err != nil {
		t.Fatal(err)
	}
	if err := n2.Start(); err != nil {
		t.Fatal(err)
	}
	ready(t, c)
	eventually(t, upWithin, func() string {
		st, err := n3.Admin.Status(within(t, 5*time.Second))
		if err != nil {
			return err.Error()
		}
		page, err := n3.Admin.Users(within(t, 5*time.Second), "", 100)
		if err != nil {
			return err.Error()
		}
		listed := map[string]bool{}
		for _, u := range page.Users {
			listed[strings.TrimSuffix(u.IMPI, "@"+domain)] = true
		}
		i := slices.IndexFunc(st.Alarms, func(a api.Alarm) bool { return a.Code == "registrations_lost:s2" })
		switch {
		case st.Users != len(kept) || len(listed) != len(kept) || slices.ContainsFunc(lost, func(u string) bool { return listed[u] }):
			return fmt.Sprintf("%d users are counted and %v listed, registered are %v", st.Users, listed, kept)
		case i < 0 || !strings.Contains(st.Alarms[i].Text, fmt.Sprintf("%d user", len(lost))):
			return fmt.Sprintf("%d registrations were lost, the alarms are %+v", len(lost), st.Alarms)
		}
		return ""
	})
	var no *api.Error
	if _, err := n3.Admin.User(within(t, 5*time.Second), "sip:"+lost[0]+"@"+domain); !errors.As(err, &no) || no.Code != api.NotFound || strings.Contains(no.Error(), "another identity") {
		t.Errorf("about %s: %v", lost[0], err)
	}
	register(t, phones...)
	talkInARing(t, phones, users)
}
