// Package acceptance proves the program from outside: its tests build the real
// binary with the race detector, run clusters of real node processes on
// loopback addresses, and drive them with real peers: sipp, baresip, tcpdump
// and the built-in phones.
//
// It holds only tests. One cluster of three nodes is shared by all tests that
// break nothing; a test that kills, restarts or misconfigures nodes starts its
// own on other addresses. Every node log is searched for data races and panics
// at the end.
package acceptance
