// Package supervisor starts the processes of a node, watches them and starts
// them again when they end.
//
// A child is the same program with another subcommand. It inherits two pipes:
// on one it writes the line "ready" when it serves, the other never carries
// anything and ends when the supervisor is gone, however that came about. The
// kernel also kills the child at that moment (PR_SET_PDEATHSIG), so no child
// outlives its supervisor and holds the node's ports.
//
// An exit is reported the moment it happens, through a callback and the log,
// with exit code or signal and the last lines that the child wrote. The child
// is started again after 100 ms, which doubles at each further exit up to 5 s
// and begins anew once it has run for 30 s.
//
// A child that ends by itself before the node was ever ready cannot be mended
// by trying again (a wrong configuration, a foreign data directory): then Run
// stops the others and returns ErrStart.
//
// The package does not know what the children do, does not restart one that
// hangs, and does nothing for a node that runs in one process.
package supervisor
