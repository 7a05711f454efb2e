// Command bellwether is a SIP/IMS core that runs as a cluster: a node of it,
// its command line and its demo.
//
// It only joins the command line to the processes; each of them documents what
// it does and how it fails.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"bellwether/appliance/cli"
	"bellwether/appliance/demo"
	"bellwether/appliance/node"
)

// version is set by the linker.
var version = "development"

func main() {
	at := func(file string) *node.Node { return &node.Node{Version: version, File: file, Log: os.Stderr} }
	os.Exit(cli.Main(cli.Hooks{
		Version: version,
		Node:    func(ctx context.Context, file string) error { return at(file).Run(ctx) },
		Front:   func(ctx context.Context, file string) error { return at(file).Front(ctx) },
		Worker:  func(ctx context.Context, file string) error { return at(file).Worker(ctx) },
		Demo:    runDemo,
	}))
}

func runDemo(ctx context.Context, o cli.DemoOptions) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program: %w", err)
	}
	err = demo.Run(ctx, demo.Options{Binary: self, For: o.For, JSON: o.JSON, Plain: o.NoTUI, Keep: o.Keep, Out: o.Out, Err: o.Err})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
