package eventrouter

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv("EVENTROUTER_CRASH") != "" {
		crash()
	}
	goleak.VerifyTestMain(m)
}

// crash is the child process of TestPanicEndsTheProcessByDefault.
func crash() {
	r := New(Config{}, func(int, string) { panic("handler broke") })
	r.Post(3, "")
	r.Close()
	fmt.Println("still alive")
	os.Exit(0)
}
