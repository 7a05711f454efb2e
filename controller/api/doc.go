// Package api holds the types of the admin API and its client.
//
// The API is HTTP and JSON on a unix socket. The command line, the terminal
// screens and scripts all use it and nothing else; what a screen shows is one
// of the structs here, so every screen has the same content as JSON.
//
// The package knows nothing of how the answers come about (package admin
// serves them) and imports none of the project's packages. Secrets travel one
// way only: Credentials go in, and no type that comes out can hold them.
//
// Every error that the API answers is an *Error with a stable Code. A client
// that cannot reach the node answers one too, with the code Unreachable.
package api
